#!/usr/bin/env python3
"""Models in eight bits on jitcl's CPU path beside onnxruntime's, in turns of a quarter of a second.

    int8.py [--models FOLDER] [--rounds 12] [--threads 2] [--keep FOLDER] [NAME ...]

FOLDER holds NAME.onnx in f32 and NAME.npz with its inputs by name, as the peers' harness makes them
(mobilenetv2 and bert_base_128 by default). Each is quantised by onnxruntime's own tool: QDQ form,
its default types, ranges as the inputs give them; --keep keeps what it wrote. Each engine runs in a
process of its own. Printed: median ms of the engines in f32 and in eight bits, jitcl's ratio to
onnxruntime in eight bits (median of the rounds, and worst), and how far its results lie from
onnxruntime's, over the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
from pathlib import Path

import numpy as np

from jitcl.bench.contest import Contest
from jitcl.bench.openers import jitcl_entrant
from jitcl.bench.peers import peer_entrant

NAMES = ("mobilenetv2", "bert_base_128")
TURN = 0.25                                  # seconds


class Ranges:
    """The inputs, once: what the tool takes the ranges of values from."""

    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.feeds = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.feeds.pop() if self.feeds else None


def quantise(source: Path, target: Path, feeds: dict[str, np.ndarray]) -> None:
    """The model in QDQ form."""
    from onnxruntime.quantization import QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    logging.getLogger().setLevel(logging.ERROR)
    prepared = target.with_suffix(".prepared.onnx")
    with contextlib.redirect_stdout(None):
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(str(prepared), str(target), Ranges(feeds), quant_format=QuantFormat.QDQ)
    prepared.unlink()


def compare(name: str, folder: Path, made: Path, rounds: int, threads: int) -> float:
    """One model's row; its ratio in eight bits."""
    feeds = dict(np.load(folder / f"{name}.npz"))
    feeds.pop("out", None)
    quantised = made / f"{name}.int8.onnx"
    quantise(folder / f"{name}.onnx", quantised, feeds)
    times: dict[tuple[str, str], float] = {}
    for bits, path in (("f32", folder / f"{name}.onnx"), ("int8", quantised)):
        entrants = [jitcl_entrant(str(path), feeds), peer_entrant("onnxruntime", str(path), feeds)]
        with Contest(entrants, threads) as contest:
            contest.open()
            contest.time(rounds, TURN)
        for entry in contest.entries:
            if entry.timing is None:
                raise SystemExit(f"{name} in {bits}: {entry.name}: {entry.error}")
            times[entry.name, bits] = 1e3 * entry.timing.median
        ours = contest.entries[0]
    jitcl, other = (e.name for e in contest.entries)
    print(f"{name:16s}" + "".join(
        f"{times[engine, bits]:11.2f}" for bits in ("f32", "int8") for engine in (jitcl, other))
        + f"{ours.ratio.median:10.2f}{ours.ratio.worst:10.2f}{ours.difference:12.1e}", flush=True)
    return ours.ratio.median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for the quantised models")
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    for file in (options.models / f"{n}{end}" for n in options.names for end in (".onnx", ".npz")):
        if not file.is_file():
            parser.error(f"there is no {file}: --models names the folder that has it")
    print(f"{'':16s}{'f32 jitcl':>11s}{'f32 ort':>11s}{'int8 jitcl':>11s}{'int8 ort':>11s}"
          f"{'ratio':>10s}{'worst':>10s}{'difference':>12s}")
    with contextlib.ExitStack() as stack:
        made = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made.mkdir(parents=True, exist_ok=True)
        for name in options.names:
            compare(name, options.models, made, options.rounds, options.threads)


if __name__ == "__main__":
    main()
