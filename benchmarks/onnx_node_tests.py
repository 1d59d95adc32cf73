#!/usr/bin/env python3
"""Runs onnx's backend tests (onnx.backend.test) on an engine and prints what became of each.

    onnx_node_tests.py [--kind node|simple|light|pytorch-converted|pytorch-operator] [--jobs N]
    [--engine refs|cpu|opencl[:platform]|reference] [--json FILE] [--all] [PATTERN ...]

Each test runs in a worker process, so that a crash costs one test: the worker is started again.
Outcomes:

    kernel       right; a generated kernel of the device came from the op under test, and nothing
                 of the model ran on the host
    host         right, but `model.report().host` is not empty
    folded       right, but computed when it was compiled
    wrong        ran, but the values, types or shapes differ: never acceptable
    unsupported  refused with UnsupportedError
    error        any other exception
    crash        the process died; "timeout" if it had to be killed

The engine "refs" imports a model and evaluates it by the ops' NumPy references: it tests the
frontend alone. Exit status 1 if any test is wrong, crashed or timed out.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

Outcome = dict[str, Any]
OUTCOMES = ("kernel", "host", "folded", "wrong", "unsupported", "error", "crash", "timeout")
PASSED = ("kernel", "host", "folded")
BAD = ("wrong", "crash", "timeout")
KINDS = ("node", "simple", "light", "pytorch-converted", "pytorch-operator")
# Ops that no kernel could compute; by their types, `on_values` finds more.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
          "RandomUniformLike"}


@dataclass
class Ran:
    """What an engine did: outputs, op types that ran in kernels, op types that ran on the host."""

    outputs: list[Any]
    kernels: set[str]
    host: set[str] = field(default_factory=set)


Engine = Callable[[Any, dict[str, Any]], Ran]

# ---- engines


def refs(model: Any, feeds: dict[str, Any]) -> Ran:
    """Import, then evaluate by references."""
    from jitcl.errors import InputError, NeedsValue
    from jitcl.frontends.onnx import import_model, load
    from jitcl.ops.builder import evaluate

    loaded, values = load(model), {}
    unknown = set(feeds) - {*loaded.inputs, *loaded.defaults}
    if unknown:
        raise InputError(f"no inputs {unknown}")
    while True:
        try:
            graph = import_model(loaded, {n: a.shape for n, a in feeds.items()}, values)
            break
        except NeedsValue as error:
            values[error.input_name] = feeds[error.input_name]
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    outputs = [evaluate(node, memo) for _, node in graph.outputs]
    dynamic: set[Any] = set(graph.inputs)
    ran = set()
    for node in graph.nodes:
        if any(i in dynamic for i in node.inputs):
            dynamic.add(node)
            if node in graph.origins:
                ran.add(graph.origins[node].op_type)
    return Ran(outputs, ran)


def compiled(device: str) -> Engine:
    """jitcl on a device, through onnx's backend interface, fed as onnx's own runner does."""
    from jitcl import onnx_backend
    from jitcl.devices.select import open_device

    opened = open_device(device)

    def engine(model: Any, feeds: dict[str, Any]) -> Ran:
        prepared = onnx_backend.prepare(model, opened)
        found = prepared.run([feeds.get(name) for name in fed_names(model)])
        report = prepared.model.report()
        return Ran(list(found),
                   {op for step in report.steps for _, op in step.nodes},
                   {op for _, op, _ in report.host})

    return engine


# ---- one test


def run_case(case: Any, engine: Engine) -> Outcome:
    """The outcome of one test case; crashes are the parent's to see."""
    from jitcl.errors import UnsupportedError

    model = case.model
    kernels: set[str] = set()
    host: set[str] = set()
    try:
        for inputs, wanted in case.data_sets:
            feeds = {n: as_value(a) for n, a in zip(fed_names(model), inputs)}
            ran = engine(model, {n: a for n, a in feeds.items() if a is not None})
            kernels |= ran.kernels
            host |= ran.host
            difference = compare(ran.outputs, [as_value(w) for w in wanted], case.rtol, case.atol)
            if difference:
                return {"outcome": "wrong", "detail": difference}
    except UnsupportedError as error:
        return {"outcome": "unsupported", "detail": str(error)}
    except Exception as error:  # noqa: BLE001  whatever it is, it is this test's outcome
        return {"outcome": "error", "detail": f"{type(error).__name__}: {error}"}
    under_test = {n.op_type for n in model.graph.node}
    outcome = "host" if host else "kernel" if kernels & under_test else "folded"
    return {"outcome": outcome, "detail": f"on the host: {', '.join(sorted(host))}" if host else ""}


def fed_names(model: Any) -> list[str]:
    """Inputs that a test's data are for, in order: those that are no initialisers."""
    stored = {t.name for t in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name not in stored]


def as_value(value: Any) -> Any:
    """A test's datum as NumPy has it: array, list, dict or None."""
    import onnx
    from onnx import numpy_helper

    read: dict[type, Callable[[Any], Any]] = {
        onnx.TensorProto: numpy_helper.to_array, onnx.SequenceProto: numpy_helper.to_list,
        onnx.OptionalProto: numpy_helper.to_optional, onnx.MapProto: numpy_helper.to_dict}
    return read[type(value)](value) if type(value) in read else value


def compare(outputs: list[Any], wanted: list[Any], rtol: float, atol: float) -> str:
    """What differs, by the rule of onnx's own runner; "" if nothing does."""
    if len(outputs) != len(wanted):
        return f"{len(outputs)} outputs instead of {len(wanted)}"
    found = (difference(got, want, rtol, atol) for got, want in zip(outputs, wanted))
    return next((f"output {i}: {text}" for i, text in enumerate(found) if text), "")


def difference(got: Any, want: Any, rtol: float, atol: float) -> str:
    """What differs between two values of any kind."""
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)):
            return f"{type(got).__name__} instead of a sequence"
        return compare(list(got), list(want), rtol, atol)
    if isinstance(want, dict):
        if not isinstance(got, dict) or list(got) != list(want):
            return f"{got} instead of {want}"
        return compare(list(got.values()), list(want.values()), rtol, atol)
    if want is None or got is None:
        return "" if got is want else f"{got} instead of {want}"
    if not isinstance(got, np.ndarray):
        return f"{type(got).__name__} instead of an array"
    want = np.asarray(want)
    if got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype.kind in "OUS":
        same = got.dtype.kind in "OUS" and text_of(got) == text_of(want)
        return "" if same else f"{got.tolist()} instead of {want.tolist()}"
    if got.dtype != want.dtype:
        return f"{got.dtype} instead of {want.dtype}"
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    if want.dtype.kind == "V" or want.dtype.name == "bfloat16":  # NumPy does not know these
        got, want = got.astype(np.float32), want.astype(np.float32)
    try:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def text_of(array: np.ndarray) -> list[str]:
    return [s.decode() if isinstance(s, bytes) else str(s) for s in array.reshape(-1).tolist()]


def on_values(model: Any) -> bool:
    """Whether an op of the model works on strings, sequences, optionals or maps by its types, is
    random, decodes pictures or is control flow: what the share of kernels does not count."""
    import onnx

    versions = {o.domain: o.version for o in model.opset_import}
    for node in model.graph.node:
        if node.op_type in RANDOM or node.op_type == "ImageDecoder":
            return True
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        if any(a.type == onnx.defs.OpSchema.AttrType.GRAPH for a in schema.attributes.values()):
            return True
        for formal in (*schema.inputs, *schema.outputs):
            if all(t == "tensor(string)" or not t.startswith("tensor(") for t in formal.types):
                return True
    return False


# ---- workers


def cases(kind: str = "node") -> dict[str, Any]:
    """All tests of a kind by name. Those on file are read when `loaded` is called on them."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="real" if kind == "light" else kind)
    return {c.name: c for c in found if kind != "light" or (c.url or "").startswith("onnx/")}


def loaded(case: Any) -> Any:
    """The case with its model and its data."""
    import onnx
    from onnx.backend.test import runner

    if case.model is not None:
        return case
    if case.model_dir is None:
        path = Path(onnx.__file__).parent.parent / case.url
        model = onnx.load(path)
        (name,) = fed_names(model)
        fed = next(i for i in model.graph.input if i.name == name)
        shape = [d.dim_value for d in fed.type.tensor_type.shape.dim]
        ramp = (np.arange(math.prod(shape)).reshape(shape) / math.prod(shape)).astype(np.float32)
        outputs = [onnx.load_tensor(path.with_name(f"{path.stem}_output_{i}.pb"))
                   for i in range(len(model.graph.output))]
        return replace(case, model=model, data_sets=[([ramp], outputs)])
    model = onnx.load(Path(case.model_dir) / "model.onnx")
    given = {i.name: i for i in model.graph.input}
    kinds = [given[n].type for n in fed_names(model)]
    read = runner.Runner._load_proto
    sets = []
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        values: tuple[list[Any], list[Any]] = [], []
        for target, name, types in zip(values, ("input", "output"),
                                       (kinds, [o.type for o in model.graph.output])):
            for i, kind in enumerate(types):
                read(None, str(folder / f"{name}_{i}.pb"), target, kind)  # type: ignore[arg-type]
        sets.append(values)
    return replace(case, model=model, data_sets=sets)


def work(engine_name: str, kind: str) -> None:
    """A worker: reads names from stdin, writes outcomes as JSON lines to its own copy of stdout."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    known = cases(kind)
    engine = refs if engine_name == "refs" else compiled(engine_name)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        case = loaded(known[line.strip()])
        outcome = {**run_case(case, engine), "on_values": on_values(case.model)}
        print(json.dumps(outcome), file=out, flush=True)


class Worker:
    """A worker process and the pipe to it."""

    def __init__(self, engine: str, kind: str) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the worker
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--kind", kind, "--work", engine],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def start(self) -> None:
        """Wait until the worker answers; SystemExit with its last words if it does not."""
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"the engine did not start: {self.last_words()}")

    def last_words(self) -> str:
        """The last line that the worker wrote to stderr."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def run(self, name: str, limit_s: float) -> Outcome:
        """The test's outcome; a dead worker is a crash, a slow one is killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            self.process.kill()

        timer = threading.Timer(limit_s, kill)
        timer.start()
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            found: Outcome = json.loads(line)
            return found
        code = self.process.wait()
        return {
            "outcome": "timeout" if killed.is_set() else "crash",
            "detail": f"exit status {code}: {self.last_words()}",
        }

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def run_all(names: Iterable[str], engine: str, jobs: int, limit_s: float, kind: str = "node"
            ) -> dict[str, Outcome]:
    """Outcomes by test name, from a pool of workers."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        todo.put(name)
    done: dict[str, Outcome] = {}

    def serve(worker: Worker) -> None:
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                worker.close()
                return
            started = time.perf_counter()
            outcome = worker.run(name, limit_s)
            done[name] = {**outcome, "seconds": round(time.perf_counter() - started, 3)}
            if outcome["outcome"] in ("crash", "timeout"):
                worker = Worker(engine, kind)
                worker.start()

    workers = [Worker(engine, kind) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    threads = [threading.Thread(target=serve, args=(worker,)) for worker in workers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return dict(sorted(done.items()))


def summary(results: dict[str, Outcome], engine: str) -> str:
    """How many tests passed, and how many of those ran in kernels that could."""
    count = collections.Counter(r["outcome"] for r in results.values())
    could = [r["outcome"] for r in results.values()
             if r["outcome"] in PASSED and not r.get("on_values")]
    share = 100 * could.count("kernel") / max(1, len(could))
    return (f"{len(results)} tests on {engine}: {sum(count[o] for o in PASSED)} pass; "
            + ", ".join(f"{count[o]} {o}" for o in OUTCOMES if count[o])
            + f"\n{could.count('kernel')} of {len(could)} ({share:.1f} %) passing tests of ops on "
            "numbers ran the op under test in generated kernels alone")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help="names or globs; default: all"
    )
    parser.add_argument("--engine", default="cpu", help="refs, or a jitcl device (default: cpu)")
    parser.add_argument("--kind", default="node", choices=KINDS, help="which tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a test")
    parser.add_argument("--json", metavar="FILE", help="write all outcomes to a file")
    parser.add_argument("--all", action="store_true", help="name the passing tests too")
    parser.add_argument("--work", metavar="ENGINE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.kind)
        return 0
    names = sorted(cases(args.kind))
    if args.patterns:
        names = [n for n in names if any(fnmatch.fnmatch(n, p) for p in args.patterns)]
    results = run_all(names, args.engine, max(1, min(args.jobs, len(names))), args.limit,
                      args.kind)
    for name, r in results.items():
        if args.all or r["outcome"] not in PASSED:
            detail = r["detail"].splitlines()[0][:200] if r["detail"] else ""
            print(f"{r['outcome']:12}{name:70}{detail}")
    print("\n" + summary(results, args.engine))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return int(any(r["outcome"] in BAD for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
