#!/usr/bin/env python3
"""fp32 matrix products on jitcl's CPU path beside NumPy's (its BLAS) and torch's, in turns.

    matmul.py [--rounds 9] [--threads 1,2] [--engines numpy,torch] [--copied] [--json FILE]
              [PATTERN ...]

Squares of 64 to 4096, both operands fed; and the products of BERT-base at 128 tokens and of GPT-2
at 64 and at one, whose second operand is a constant, as in those models: jitcl arranges constants
when it compiles. Every engine reads its operands where they are and writes to one array over and
over (`Model.bind`, `out=`); --copied: each makes new arrays for results, and jitcl copies what it
is fed. Each engine runs in a process of its own, without OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE,
and says which BLAS kernels it has (threadpoolctl, of the extra "bench"). Printed for each product:
median us of the engines, GFLOP/s of jitcl and their share of the peak that multiply-adds in
registers reach here (measured in the same process), the ratio to the faster of the others (median
of the rounds, and worst). PATTERN picks products by name.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jitcl.bench.contest import Contest
from jitcl.bench.openers import JitclEngine
from jitcl.bench.peers import blas_kernels
from jitcl.bench.processes import Entrant

TURN = 0.2                                   # seconds


@dataclass(frozen=True)
class Case:
    """[batch, m, k] @ [batch or 1, k, n]. constant: the second operand is a weight."""

    m: int
    k: int
    n: int
    constant: bool = False
    batch: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.k * self.n


CASES = {
    **{f"square_{n}": Case(n, n, n)
       for n in (64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)},
    "bert_qkv": Case(128, 768, 768, True),
    "bert_up": Case(128, 768, 3072, True),
    "bert_down": Case(128, 3072, 768, True),
    "bert_scores": Case(128, 64, 128, batch=12),
    "bert_mix": Case(128, 128, 64, batch=12),
    "gpt2_qkv": Case(64, 768, 2304, True),
    "gpt2_up": Case(64, 768, 3072, True),
    "gpt2_down": Case(64, 3072, 768, True),
    "gpt2_scores": Case(64, 64, 64, batch=12),
    "gpt2_logits": Case(64, 768, 50257, True),
    "gpt2_token_up": Case(1, 768, 3072, True),
    "gpt2_token_down": Case(1, 3072, 768, True),
}


def operands(case: Case) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    first = (case.batch,) if case.batch > 1 else ()
    return {"a": rng.standard_normal((*first, case.m, case.k), np.float32),
            "b": rng.standard_normal((*first, case.k, case.n), np.float32)}


class InPlace(JitclEngine):
    """The same on arrays that stay where they are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        bound = self.model.bind()
        for name, array in self.feeds.items():
            bound.inputs[name] = array
        self.run = bound.run                    # type: ignore[method-assign]  # no call between


def open_jitcl(product: str, copied: bool, threads: int) -> JitclEngine:
    from jitcl.ir.graph import Graph, const, graph_input
    from jitcl.ir.types import TensorType
    from jitcl.ops.builder import GraphBuilder
    case = CASES[product]
    arrays = operands(case)
    inputs = {name: graph_input(name, TensorType("f32", x.shape)) for name, x in arrays.items()}
    if case.constant:
        weights = const(arrays.pop("b"))
        y, fed = GraphBuilder().matmul(inputs["a"], weights), (inputs["a"],)
    else:
        y, fed = GraphBuilder().matmul(inputs["a"], inputs["b"]), tuple(inputs.values())
    engine = JitclEngine if copied else InPlace
    return engine(Graph("product", fed, (("y", y),)), arrays, "cpu", threads, {})


class Library:
    """A library's product. Its threads are set by the environment."""

    def __init__(self, name: str, case: Case, copied: bool, threads: int) -> None:
        library = importlib.import_module(name)
        self.about = {"version": library.__version__, "kernels": blas_kernels()}
        a, b = operands(case).values()
        y = np.empty_like(a @ b)
        self.results = {} if copied else {"y": y}
        if name == "torch":
            library.set_num_threads(threads)
            a, b, y = map(library.from_numpy, (a, b, y))
        self.multiply = partial(library.matmul, a, b, **({} if copied else {"out": y}))

    def run(self) -> dict[str, np.ndarray]:
        y = self.multiply()
        return self.results or {"y": np.asarray(y)}


def open_library(name: str, product: str, copied: bool, threads: int) -> Library:
    return Library(name, CASES[product], copied, threads)


def compare(name: str, threads: int, engines: list[str], rounds: int,
            copied: bool) -> dict[str, Any]:
    """One product's row."""
    case = CASES[name]
    entrants = [Entrant("jitcl", f"{__file__}:open_jitcl", {"product": name, "copied": copied})]
    entrants += [Entrant(e, f"{__file__}:open_library",
                         {"name": e, "product": name, "copied": copied}, peer=True)
                 for e in engines]
    with Contest(entrants, threads) as contest:
        contest.open()
        contest.time(rounds, TURN)
        for entry in contest.entries:
            if entry.timing is None:
                raise SystemExit(f"{name}: {entry.name}: {entry.error}")
        peak = contest.entries[0].process.ask("peaks").flops
    ours = contest.entries[0]
    kernels = {e.name: f"{e.opened.about['version']}, {e.opened.about['kernels']}"
               for e in contest.entries[1:]}
    assert ours.difference is not None and ours.difference < 1e-5, (name, ours.difference)
    rate = case.flops / ours.timing.median
    return {"product": name, "threads": threads, "flops": case.flops,
            "us": {e.name: 1e6 * e.timing.median for e in contest.entries},
            "gflops": rate / 1e9, "peak_gflops": peak / 1e9, "of_peak": rate / peak,
            "kernels": kernels, "fastest": contest.fastest_peer,
            "ratio": ours.ratio.median, "worst": ours.ratio.worst}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", default="1,2", help="one or more counts (default: 1,2)")
    parser.add_argument("--engines", default="numpy,torch", help="of which those installed")
    parser.add_argument("--copied", action="store_true",
                        help="new arrays for results, and jitcl's operands are copied")
    parser.add_argument("--json", type=Path, help="write the table there as well")
    parser.add_argument("patterns", nargs="*", default=["*"], help="products to time")
    options = parser.parse_args()
    engines = [e for e in options.engines.split(",") if importlib.util.find_spec(e)]
    for absent in set(options.engines.split(",")) - set(engines):
        print(f"without {absent}, which is not installed")
    rows: list[dict[str, Any]] = []
    told: set[str] = set()
    print("".join(f"{h:>14s}" for h in ("product", "threads", "jitcl us", *engines, "GFLOP/s",
                                       "of peak", "ratio", "worst")))
    for name in CASES:
        if not any(fnmatch.fnmatch(name, p) for p in options.patterns):
            continue
        for threads in map(int, options.threads.split(",")):
            row = compare(name, threads, engines, options.rounds, options.copied)
            rows.append(row)
            for engine, kernels in row["kernels"].items():
                if (line := f"{engine} {kernels}") not in told:
                    told.add(line)
                    print(line)
            print(f"{name:>14s}{threads:14d}" + "".join(f"{us:14.1f}" for us in row["us"].values())
                  + f"{row['gflops']:14.1f}{row['of_peak']:14.0%}{row['ratio']:14.2f}"
                  f"{row['worst']:14.2f}", flush=True)
    if rows:
        mean = math.exp(sum(math.log(r["ratio"]) for r in rows) / len(rows))
        slower = [f"{r['product']} on {r['threads']}" for r in rows if r["ratio"] > 1]
        print(f"geometric mean of ratios {mean:.3f}; slower: {', '.join(slower) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
