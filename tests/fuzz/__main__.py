"""The longer mode: `python -m tests.fuzz --graphs 10000 --seed 7 --device cpu`.

Prints each kind of failure once, as the smallest model that was found for it: jitcl's text form,
ONNX's, and the data.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from collections.abc import Callable, Sequence
from random import Random

import hypothesis
from hypothesis import HealthCheck, Phase, errors, given, settings

from tests.fuzz.drawing import Case
from tests.fuzz.engines import DEVICES, Verdict, ir_text, judge
from tests.fuzz.graphs import cases
from tests.fuzz.reduce import reduced
from tests.fuzz.registry import DRAWS
from tests.fuzz.sized import judge_sizes

Judge = Callable[[Case, str], Verdict]


def options(examples: int) -> settings:
    return settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck))


def sweep(graphs: int, seed: int, device: str, ops: Sequence[str] = (), nodes: int = 8,
          verbose: bool = False, judge: Judge = judge
          ) -> tuple[collections.Counter[str], dict[str, Case]]:
    """Outcomes of so many graphs, and the first failing case of each kind."""
    count: collections.Counter[str] = collections.Counter()
    failing: dict[str, Case] = {}

    @hypothesis.seed(seed)
    @options(graphs)
    @given(cases(ops, nodes))
    def run(case: Case) -> None:
        verdict = judge(case, device)
        count[verdict.outcome] += 1
        if verdict.outcome != "ok" and verbose:
            print(verdict.outcome, case.ops(), verdict.detail[:300].replace("\n", " "), flush=True)
        if verdict.bad:
            smaller = reduced(case, lambda c: judge(c, device).outcome == verdict.outcome)
            failing.setdefault(f"{verdict.outcome} {' '.join(sorted(smaller.ops()))}", smaller)

    run()
    return count, failing


def smallest(case: Case, device: str, seed: int, judge: Judge = judge) -> tuple[Case, Verdict]:
    """Of graphs of the same ops, the smallest failing one that Hypothesis finds; else the case."""
    first = judge(case, device)

    def fails(c: Case) -> bool:
        return judge(c, device).outcome == first.outcome

    try:
        found = hypothesis.find(
            cases(tuple(case.ops()), len(case.ops())), fails, random=Random(seed),
            settings=settings(options(300), phases=[Phase.generate, Phase.shrink]))
    except errors.NoSuchExample:
        return case, first
    return found, judge(found, device)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="reference", choices=DEVICES)
    parser.add_argument("--ops", nargs="*", default=(), metavar="OP", help=", ".join(sorted(DRAWS)))
    parser.add_argument("--nodes", type=int, default=8, help="most nodes of a graph")
    parser.add_argument("--sizes", action="store_true",
                        help="feed each compiled model several shapes")
    parser.add_argument("--no-shrink", action="store_true", help="failures as they were met")
    parser.add_argument("--verbose", action="store_true", help="name failures when they are met")
    args = parser.parse_args()
    started = time.perf_counter()
    judging = judge_sizes if args.sizes else judge
    count, failing = sweep(args.graphs, args.seed, args.device, args.ops, args.nodes, args.verbose,
                           judging)
    seconds = time.perf_counter() - started
    for kind, case in failing.items():
        verdict = judging(case, args.device)
        if not args.no_shrink:
            case, verdict = smallest(case, args.device, args.seed, judging)
        print(f"\n==== {kind}\n{verdict.detail}\n{ir_text(case)}\n{case!r}")
    total = sum(count.values())
    print(f"\n{total} graphs on {args.device}, seed {args.seed}: "
          + ", ".join(f"{n} {outcome}" for outcome, n in count.most_common())
          + f"; {60 * total / seconds:.0f} graphs a minute")
    return int(bool(failing))


if __name__ == "__main__":
    sys.exit(main())
