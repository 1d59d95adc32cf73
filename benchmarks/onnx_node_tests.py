#!/usr/bin/env python3
"""Runs onnx's node tests (onnx.backend.test, kind "node") on an engine and prints what became of
each.

    onnx_node_tests.py [--engine refs|cpu|opencl[:platform]|reference] [--jobs N] [--json FILE]
    [--all] [PATTERN ...]

Each test runs in a worker process, so that a crash costs one test: the worker is started again.
Outcomes:

    kernel       right, and a step of the compiled plan came from the op under test
    folded       right, but the op under test was computed at compile time
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
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Outcome = dict[str, Any]
OUTCOMES = ("kernel", "folded", "wrong", "unsupported", "error", "crash", "timeout")
BAD = ("wrong", "crash", "timeout")


# ---- engines: (model, feeds) -> (outputs, op types of those of the model's nodes that ran)


def refs(model: Any, feeds: dict[str, np.ndarray]) -> tuple[list[np.ndarray], set[str]]:
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
    return outputs, ran


def compiled(device: str) -> Callable[..., tuple[list[np.ndarray], set[str]]]:
    """jitcl on a device."""
    import jitcl
    from jitcl.devices.select import open_device

    opened = open_device(device)

    def engine(model: Any, feeds: dict[str, np.ndarray]) -> tuple[list[np.ndarray], set[str]]:
        compiled = jitcl.compile(model, device=opened, strict=True)
        outputs = list(compiled.run(feeds).values())
        plan = compiled.plan
        assert plan is not None
        return outputs, {op for step in plan.steps for _, op in step.origins}

    return engine


# ---- one test


def run_case(case: Any, engine: Callable[..., tuple[list[np.ndarray], set[str]]]) -> Outcome:
    """The outcome of one test case; crashes are the parent's to see."""
    from jitcl.errors import UnsupportedError

    under_test = {n.op_type for n in case.model.graph.node}
    ran: set[str] = set()
    try:
        for inputs, wanted in case.data_sets:
            names = [i.name for i in case.model.graph.input]
            feeds = {n: as_array(a) for n, a in zip(names, inputs)}
            outputs, ran = engine(case.model, feeds)
            difference = compare(outputs, [as_array(w) for w in wanted], case.rtol, case.atol)
            if difference:
                return {"outcome": "wrong", "detail": difference}
    except UnsupportedError as error:
        return {"outcome": "unsupported", "detail": str(error)}
    except Exception as error:  # noqa: BLE001  whatever it is, it is this test's outcome
        return {"outcome": "error", "detail": f"{type(error).__name__}: {error}"}
    return {"outcome": "kernel" if ran & under_test else "folded", "detail": ""}


def as_array(value: Any) -> Any:
    import onnx

    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def compare(outputs: list[Any], wanted: list[Any], rtol: float, atol: float) -> str:
    """What differs, by the rule of onnx's own runner; "" if nothing does."""
    if len(outputs) != len(wanted):
        return f"{len(outputs)} outputs instead of {len(wanted)}"
    for i, (got, want) in enumerate(zip(outputs, wanted)):
        if not isinstance(want, np.ndarray) and not np.isscalar(want):
            return f"output {i}: an array instead of {type(want).__name__}"
        want = np.asarray(want)
        if got.shape != want.shape or got.dtype != want.dtype:
            kinds = (f"{a.dtype}{list(a.shape)}" for a in (got, want))
            return f"output {i}: " + " instead of ".join(kinds)
        if want.dtype.name == "bfloat16":
            rtol, got, want = max(rtol, 2**-6), got.astype(np.float32), want.astype(np.float32)
        try:
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        except AssertionError as error:
            return f"output {i}: " + " ".join(str(error).split())[:300]
    return ""


# ---- workers


def cases() -> dict[str, Any]:
    """All node tests by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {c.name: c for c in load_model_tests(kind="node")}


def work(engine_name: str) -> None:
    """A worker: reads names from stdin, writes outcomes as JSON lines to its own copy of stdout."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    known = cases()
    engine = refs if engine_name == "refs" else compiled(engine_name)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(run_case(known[line.strip()], engine)), file=out, flush=True)


class Worker:
    """A worker process and the pipe to it."""

    def __init__(self, engine: str) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the worker
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", engine],
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


def run_all(names: Iterable[str], engine: str, jobs: int, limit_s: float) -> dict[str, Outcome]:
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
                worker = Worker(engine)
                worker.start()

    workers = [Worker(engine) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    threads = [threading.Thread(target=serve, args=(worker,)) for worker in workers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return dict(sorted(done.items()))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help="names or globs; default: all"
    )
    parser.add_argument("--engine", default="cpu", help="refs, or a jitcl device (default: cpu)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a test")
    parser.add_argument("--json", metavar="FILE", help="write all outcomes to a file")
    parser.add_argument("--all", action="store_true", help="name the passing tests too")
    parser.add_argument("--work", metavar="ENGINE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work)
        return 0
    names = sorted(cases())
    if args.patterns:
        names = [n for n in names if any(fnmatch.fnmatch(n, p) for p in args.patterns)]
    results = run_all(names, args.engine, max(1, min(args.jobs, len(names))), args.limit)
    for name, r in results.items():
        if args.all or r["outcome"] not in ("kernel", "folded", "unsupported"):
            detail = r["detail"].splitlines()[0][:200] if r["detail"] else ""
            print(f"{r['outcome']:12}{name:70}{detail}")
    count = collections.Counter(r["outcome"] for r in results.values())
    print(
        f"\n{len(results)} tests on {args.engine}: "
        + ", ".join(f"{count[o]} {o}" for o in OUTCOMES if count[o])
    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return int(any(count[o] for o in BAD))


if __name__ == "__main__":
    sys.exit(main())
