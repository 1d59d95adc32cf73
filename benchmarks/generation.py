"""Milliseconds per token of a language model with a KV cache that grows, beside onnxruntime's.

    python benchmarks/generation.py ../shared/models/stories260K_kv.onnx --device cpu opencl:pocl

Both write the same story, token by token in turns, so that what else a machine does falls on both.
The model has the inputs that Hugging Face's exporter gives it: input_ids, attention_mask,
position_ids and past_key_values.*. The first tokens compile and are told apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort

import jitcl
from jitcl import config
from jitcl.ir.types import Sym

Arrays = Mapping[str, np.ndarray]
WARM = 4                        # tokens until nothing is compiled any more


@dataclass
class Writer:
    """One engine's side of the story."""

    run: Callable[[Arrays], Arrays]
    past: dict[str, np.ndarray]
    ids: list[int]
    length: int = 0
    seconds: list[float] = field(default_factory=list)

    def step(self) -> int:
        """The next token."""
        whole = self.length + len(self.ids)
        feeds = {"input_ids": np.array([self.ids], np.int64),
                 "attention_mask": np.ones((1, whole), np.int64),
                 "position_ids": np.arange(self.length, whole, dtype=np.int64)[None], **self.past}
        begin = time.perf_counter()
        outputs = self.run(feeds)
        self.seconds.append(time.perf_counter() - begin)
        self.past = {n: outputs[n.replace("past_key_values", "present")] for n in self.past}
        self.ids, self.length = [int(outputs["logits"][0, -1].argmax())], whole
        return self.ids[0]


def empty_past(model: jitcl.Model) -> dict[str, np.ndarray]:
    """A cache of no tokens: every dimension that is not known has none, but for the batch."""
    return {
        t.name: np.zeros([1 if k == 0 else 0 if isinstance(d, Sym) else d
                          for k, d in enumerate(t.shape)], np.float32)
        for t in model.inputs if t.name.startswith("past_key_values")}


def compare(path: str, device: str, tokens: int, prompt: list[int]) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as cache_dir:
        model = jitcl.compile(path, device=device, cache_dir=cache_dir)
        options = ort.SessionOptions()
        options.intra_op_num_threads = config.get("threads")
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        ours = Writer(model.run, empty_past(model), list(prompt))
        theirs = Writer(lambda feeds: dict(zip(names, session.run(None, dict(feeds)))),
                        empty_past(model), list(prompt))
        equal = sum(ours.step() == theirs.step() for _ in range(tokens))
        builds = model.cache.stats.writes
    cold = sum(ours.seconds[:WARM])
    rows = [np.array(w.seconds[WARM:]) * 1e3 for w in (ours, theirs)]
    cells = [f"{np.median(r):.2f} ({np.percentile(r, 10):.2f})" for r in rows]
    return (f"| {model.source.name} | {device} | {cells[0]} | {cells[1]} | {cold:.1f} | "
            f"{equal} of {tokens} | {builds} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--device", nargs="+", default=["cpu"])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 403, 407, 261])
    args = parser.parse_args()
    print("| model | device | ms a token (10th percentile) | onnxruntime | s until warm "
          "| equal tokens | entries written to the cache |\n|---|---|---|---|---|---|---|")
    for path in args.models:
        for device in args.device:
            print(compare(path, device, args.tokens, args.prompt), flush=True)


if __name__ == "__main__":
    main()
