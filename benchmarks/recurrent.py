#!/usr/bin/env python3
"""Recurrent networks on jitcl's CPU path beside onnxruntime's, in turns of a quarter of a second.

    recurrent.py [--rounds 12] [--threads 2] [--models FOLDER] [PATTERN ...]

Each engine runs in a process of its own, so that neither meets the other's waiting threads; where
the machine is shared, both meet the same neighbours. Prints for each case the median ms, and the
ratio of medians round by round. Real models are taken from --models, with their golden inputs.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"
TURN = 0.25                                  # seconds
# name -> (op, steps, batch, input, hidden, direction, layers)
CASES: dict[str, tuple[str, int, int, int, int, str, int]] = {
    "bilstm_t40_h48": ("LSTM", 40, 1, 512, 48, "bidirectional", 2),
    "bilstm_t80_h48": ("LSTM", 80, 1, 512, 48, "bidirectional", 2),
    "bilstm_t40_h256": ("LSTM", 40, 1, 512, 256, "bidirectional", 2),
    "bilstm_t80_h256": ("LSTM", 80, 1, 512, 256, "bidirectional", 2),
    "bilstm_t80_h256_b8": ("LSTM", 80, 8, 512, 256, "bidirectional", 2),
    "lstm_t1_h128": ("LSTM", 1, 1, 128, 128, "forward", 1),
    "lstm_t100_h128": ("LSTM", 100, 1, 64, 128, "forward", 1),
    "gru_t1_h16": ("GRU", 1, 1, 8, 16, "forward", 1),
    "gru_t33_h4": ("GRU", 33, 1, 8, 4, "bidirectional", 1),
    "gru_t1_h8_b33": ("GRU", 1, 33, 8, 8, "forward", 1),
    "gru_t100_h256": ("GRU", 100, 1, 64, 256, "forward", 1),
    "gru_t100_h256_b8": ("GRU", 100, 8, 64, 256, "forward", 1),
    "rnn_t100_h128_b4": ("RNN", 100, 4, 64, 128, "forward", 1),
}
REAL = ("dtln_1", "gtcrn_stream_simple", "silero_vad")
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def build(case: str) -> tuple[bytes, dict[str, np.ndarray]]:
    """A stack of recurrent layers, as a recogniser of text lines has it, and its input."""
    from onnx import TensorProto, helper, numpy_helper
    op, steps, batch, size, hidden, direction, layers = CASES[case]
    rng, gates = np.random.default_rng(0), GATES[op]
    directions = 2 if direction == "bidirectional" else 1
    x = rng.uniform(-1, 1, (steps, batch, size)).astype(np.float32)
    nodes, weights, name = [], [], "x"

    def tensor(key: str, *shape: int) -> str:
        array = rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(hidden))
        weights.append(numpy_helper.from_array(array, key))
        return key
    weights.append(numpy_helper.from_array(np.array([0, 0, -1], np.int64), "flat"))
    for k in range(layers):
        operands = [name, tensor(f"w{k}", directions, gates * hidden, size),
                    tensor(f"r{k}", directions, gates * hidden, hidden),
                    tensor(f"b{k}", directions, 2 * gates * hidden)]
        attributes = {"linear_before_reset": 1} if op == "GRU" else {}
        nodes += [helper.make_node(op, operands, [f"y{k}"], hidden_size=hidden,
                                   direction=direction, **attributes),
                  helper.make_node("Transpose", [f"y{k}"], [f"p{k}"], perm=[0, 2, 1, 3]),
                  helper.make_node("Reshape", [f"p{k}", "flat"], [f"z{k}"])]
        name, size = f"z{k}", directions * hidden
    graph = helper.make_graph(
        nodes, case, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [steps, batch, size])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return model.SerializeToString(), {"x": x}


def load(case: str, models: Path) -> tuple[bytes, dict[str, np.ndarray]]:
    """A case's model and feeds."""
    if case in CASES:
        return build(case)
    golden = np.load(sorted((models / "golden").glob(f"{case}.*.npz"))[0])
    feeds = {k.split(":", 1)[1]: golden[k] for k in golden.files if k.startswith("in")}
    return (models / f"{case}.onnx").read_bytes(), feeds


def engine(name: str, model: bytes, feeds: dict[str, np.ndarray], threads: int
           ) -> Callable[[], list[np.ndarray]]:
    if name == "jitcl":
        import jitcl
        compiled = jitcl.compile(model, device="cpu")
        return lambda: list(compiled.run(feeds).values())
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def worker(options: argparse.Namespace) -> None:
    """Answers each line of stdin with the median ms of a turn of runs."""
    model, feeds = load(options.patterns[0], options.models)
    run = engine(options.worker, model, feeds, options.threads)
    np.save(options.result, np.concatenate([np.ravel(a) for a in run()]))
    print("ready", flush=True)
    for _ in sys.stdin:
        times, end = [], time.perf_counter() + TURN
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        print(float(np.median(times)) * 1e3, flush=True)


def measure(case: str, options: argparse.Namespace, folder: Path) -> str:
    """One row of the table."""
    env = dict(os.environ, JITCL_THREADS=str(options.threads))
    results = {e: folder / f"{case}.{e}.npy" for e in ("jitcl", "onnxruntime")}
    running = {e: subprocess.Popen(
        [sys.executable, __file__, "--worker", e, "--result", str(result), "--threads",
         str(options.threads), "--models", str(options.models), case],
        env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for e, result in results.items()}
    for process in running.values():
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    times: dict[str, list[float]] = {e: [] for e in running}
    for _ in range(options.rounds + 1):      # the first is for warming up
        for e, process in running.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            times[e].append(float(process.stdout.readline()))
    for process in running.values():
        process.communicate()
    ours, theirs = (np.array(times[e][1:]) for e in running)
    got, want = (np.load(r).astype(np.float64) for r in results.values())
    error = np.abs(got - want).max() / (np.abs(want).max() + 1e-30)
    return (f"| {case} | {np.median(ours):.3f} | {np.median(theirs):.3f} | "
            f"{np.median(ours) / np.median(theirs):.2f} | {np.max(ours / theirs):.2f} | "
            f"{error:.0e} |")


def main() -> None:
    import tempfile
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    real = [name for name in REAL if (options.models / f"{name}.onnx").is_file()]
    print("| case | jitcl ms | onnxruntime ms | ratio | worst round | difference |\n"
          "|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in (*CASES, *real):
            if any(fnmatch.fnmatch(case, p) for p in options.patterns):
                print(measure(case, options, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
