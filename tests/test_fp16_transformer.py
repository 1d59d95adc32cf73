"""A transformer in fp16 on a Mali whose compiler aborts on some of its kernels, from the command
line: right results, one line of what happened, remembered. The Mali is posed (tests/drivers).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, TensorProto, numpy_helper

from tests.devices import opened
from tests.drivers import posing
from tests.lacking import unless
from tests.real_models import MODELS, absent, goldens

NAME, CASE = "minilm_l6_v2", 1
RULES = (r"abort /exp.*half t/", r"abort /gemm_.*vload_half4/")      # softmax-like; a product
CRASH = "LLVM ERROR: Cannot select: intrinsic %llvm.bifrost.2586"
HALF_ERROR = 2 ** -7            # of the largest output: 2**-11 a rounding, 12 blocks of 6 roundings

pytestmark = [
    unless(not absent(NAME), absent(NAME)), posing.needed()]


def halved(tensor: TensorProto) -> TensorProto:
    """A float tensor as fp16, its infinities the largest halves."""
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    limited = np.clip(numpy_helper.to_array(tensor), -65504, 65504)
    return numpy_helper.from_array(limited.astype(np.float16), tensor.name)


def in_fp16(graph: GraphProto) -> None:
    """All floats of a graph become fp16: weights, constants, casts, inputs and outputs."""
    for tensor in graph.initializer:
        tensor.CopyFrom(halved(tensor))
    for node in graph.node:
        for a in node.attribute:
            if a.type == AttributeProto.TENSOR:
                a.t.CopyFrom(halved(a.t))
            if (node.op_type, a.name, a.i) == ("Cast", "to", TensorProto.FLOAT):
                a.i = TensorProto.FLOAT16
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del graph.value_info[:]


def command(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`jitcl ...` on the posed Mali, whose compiler aborts by RULES."""
    env = posing.environment(cache, posing.POSES["mali-g78:intel"], RULES)
    return subprocess.run([sys.executable, "-m", "jitcl", *arguments], env=env, text=True,
                          capture_output=True, timeout=170, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model in fp16, its inputs as files and the output that float32 gives."""
    folder = tmp_path_factory.mktemp("transformer")
    model = onnx.load(MODELS / f"{NAME}.onnx")
    in_fp16(model.graph)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    feeds, outputs = goldens(NAME)[CASE]
    np.savez(folder / "in.npz", **feeds)
    (wanted,) = outputs.values()
    return {"folder": folder, "wanted": wanted}


def run(files: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What `jitcl run --json` says of the model on the posed Mali, and its stderr."""
    folder = files["folder"]
    done = command(folder / "cache", "run", str(folder / "model.onnx"), "-d", "opencl:mali-g78",
                   "--precision", "low", "-i", str(folder / "in.npz"), "-o",
                   str(folder / "out.npz"), "--json")
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as out:
        (got,) = (out[k] for k in out.files)
    worst = np.abs(got.astype(np.float64) - files["wanted"]).max()
    assert worst <= HALF_ERROR * np.abs(files["wanted"]).max()
    return json.loads(done.stdout), done.stderr


def aborts(files: dict[str, Any]) -> int:
    return posing.read_stats(files["folder"] / "cache" / "stats").faults["abort"]


@pytest.mark.slow
def test_a_transformer_finishes_on_a_compiler_that_aborts_and_is_remembered(files):
    opened("opencl:intel")                          # has fp16
    _, said = run(files)
    lines = [line for line in said.splitlines() if "its driver failed on" in line]
    assert len(lines) == 1, said
    assert CRASH in lines[0]
    assert " runs with " in lines[0] or " run with" in lines[0]
    assert "jitcl cache retry" in lines[0]
    assert 0 < aborts(files) <= 6

    before = aborts(files)
    _, said = run(files)                            # what failed is not tried again
    assert aborts(files) == before
    assert "its driver failed" not in said

    told = command(files["folder"] / "cache", "devices", "--json")
    assert told.returncode == 0, told.stderr
    devices = json.loads(told.stdout)["devices"]
    (mali,) = (d for d in devices if d["name"].startswith("Mali-G78"))
    assert any(CRASH in json.dumps(fault) for fault in mali["faults"])
