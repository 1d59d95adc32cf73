#!/usr/bin/env python3
"""Recurrent networks on jitcl's CPU path beside onnxruntime's, in turns of a quarter of a second.

    recurrent.py [--rounds 12] [--threads 2] [--models FOLDER] [PATTERN ...]

Each engine runs in a process of its own, so that neither meets the other's waiting threads; where
the machine is shared, both meet the same neighbours. Prints for each case the median ms of both,
the ratio of medians round by round (the median and the worst), and the largest difference. Real
models are taken from --models, with their golden inputs.
"""

from __future__ import annotations

import argparse
import fnmatch
from pathlib import Path

import numpy as np

from jitcl.bench.contest import Contest
from jitcl.bench.openers import jitcl_entrant
from jitcl.bench.peers import peer_entrant

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


def measure(case: str, options: argparse.Namespace) -> str:
    """One row of the table."""
    model, feeds = load(case, options.models)
    entrants = [jitcl_entrant(model, feeds), peer_entrant("onnxruntime", model, feeds)]
    with Contest(entrants, options.threads) as contest:
        contest.open()
        contest.time(options.rounds, TURN)
    ours, theirs = contest.entries
    for entry in contest.entries:
        if entry.timing is None:
            raise SystemExit(f"{case}: {entry.name}: {entry.error}")
    return (f"| {case} | {1e3 * ours.timing.median:.3f} | {1e3 * theirs.timing.median:.3f} | "
            f"{ours.ratio.median:.2f} | {ours.ratio.worst:.2f} | {ours.difference:.0e} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", type=Path, default=MODELS)
    options = parser.parse_args()
    real = [name for name in REAL if (options.models / f"{name}.onnx").is_file()]
    print("| case | jitcl ms | onnxruntime ms | ratio | worst round | difference |\n"
          "|---|---|---|---|---|---|", flush=True)
    for case in (*CASES, *real):
        if any(fnmatch.fnmatch(case, p) for p in options.patterns):
            print(measure(case, options), flush=True)


if __name__ == "__main__":
    main()
