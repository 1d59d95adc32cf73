"""A user's program, for mypy: `.ci/run` checks it with --strict against the installed wheel. A
`type: ignore` that nothing needs is an error there, so these show that wrong calls are seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import jitcl
import jitcl.onnx_backend as backend
import jitcl.onnxruntime as ort


def told(done: int, total: int, what: str) -> None:
    print(done, total, what)


def main(path: str) -> None:
    model: jitcl.Model = jitcl.compile(path, device="cpu", progress=told)
    image = np.zeros((1, 3, 8, 8), np.float32)
    found: dict[str, Any] = model.run({"image": image})
    bound: jitcl.Bound = model.bind({"image": image.shape})
    names: list[str] = [t.name for t in model.inputs]
    print(found, bound.run(), names, model.report(), [d.spec for d in jitcl.devices()])

    options = ort.SessionOptions()
    session: ort.InferenceSession = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    results: list[Any] = session.run(None, {session.get_inputs()[0].name: image})
    prepared: backend.JitclRep = backend.prepare(path, "CPU")  # type: ignore[arg-type]
    print(results, prepared.run([image])[0])

    jitcl.compile(path, precision=16)  # type: ignore[arg-type]
    jitcl.compile(path, devise="cpu")  # type: ignore[call-arg]
    model.runs({"image": image})  # type: ignore[attr-defined]
    try:
        session.run("image", image)  # type: ignore[arg-type]
    except jitcl.InputError as error:
        print(error)
