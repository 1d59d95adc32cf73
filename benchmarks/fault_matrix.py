"""The fault matrix: what jitcl does on drivers that fail, as a table.

    python benchmarks/fault_matrix.py                         every row, both drivers, one model
    python benchmarks/fault_matrix.py --models 3 --jobs 2     each row on three models
    python benchmarks/fault_matrix.py --only fp16-abort,hang --drivers intel
    python benchmarks/fault_matrix.py --keep faults.json      leave out what the file has, add to it
    python benchmarks/fault_matrix.py --write docs/faults.md  the table into the docs

Rows and rules are data: tests/faults/scenarios.py. Exit status 1 where a row is not as it must be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.drivers import posing
from tests.faults.models import case, missing
from tests.faults.running import BUSY, RUNS, Result, check
from tests.faults.scenarios import BY_NAME, DRIVERS, SCENARIOS, Scenario

HEAD = """# What happens on a driver that fails

Written by `python benchmarks/fault_matrix.py --models {models} --write docs/faults.md`, on {where}.

Each row is a driver that fails in one way, on a model with known results. The driver is PoCL 3.0 or
Intel's CPU runtime, posing as a Mali-G78 with driver r32p1 (as an Adreno 640 where images count)
through an OpenCL layer of the test-suite, `tests/drivers`. What must hold in every row:

- no process dies, and none is left behind;
- the result is right (within the tolerance of the model's precision, against onnxruntime's), or a
  JitclError says what is wrong;
- a second process meets no crash and no hang;
- and it is at most 10 % slower than a *clean start*: a process with the same remembered variants on
  the same driver without its faults. So the cost of the variant itself is not in these figures.

Where it is slower the two are run again, in turns. Then a run counts as no slower, too, where the
least of its times is no longer and the median at most {busy} times as long: the machine is shared,
and these drivers compute on the CPU. Such rows end with "ok by the least run".

*first*: seconds until the first result, finding out included. *second* and *clean*: milliseconds of
a run, the median of {runs} to 60. *steps down to*: variants of kernels that failed.

"""
COLUMNS = ("row", "driver", "model", "result", "steps down to", "first", "second", "clean", "")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if posing.reason():
        print(f"The posing driver can't be built here: {posing.reason()}")
        return 1
    chosen = [BY_NAME[n] for n in options.only.split(",")] if options.only else list(SCENARIOS)
    jobs = [(row, driver, model) for row in chosen for model in _models(row, options.models)
            for driver in row.drivers if driver in options.drivers.split(",")]
    results = _kept(options.keep)
    done = {(r.scenario, r.driver, r.model) for r in results}
    jobs = [j for j in jobs if (j[0].name, *j[1:]) not in done]
    with tempfile.TemporaryDirectory(prefix="jitcl-faults-") as folder, \
            ThreadPoolExecutor(options.jobs) as threads:
        started = [threads.submit(_run, job, Path(folder) / str(n)) for n, job in enumerate(jobs)]
        for future in started:
            results.append(future.result())
            print(_line(results[-1]), flush=True)
            if options.keep:
                rows = [dataclasses.asdict(r) for r in results]
                Path(options.keep).write_text(json.dumps(rows, indent=1))
    bad = [r for r in results if r.problems]
    print(f"{len(results) - len(bad)} of {len(results)} as they must be")
    if options.write:
        Path(options.write).write_text(_document(chosen, results, options.models))
    return 1 if bad else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1, help="models for each row, 1 to 3")
    parser.add_argument("--jobs", type=int, default=1, help="rows at once; times suffer")
    parser.add_argument("--drivers", default=",".join(DRIVERS))
    parser.add_argument("--only", default="", help="rows, with commas")
    parser.add_argument("--keep", default="", help="a file of results, as JSON")
    parser.add_argument("--write", default="", help="a file for the table in Markdown")
    return parser.parse_args(arguments)


def _kept(path: str) -> list[Result]:
    """Results of earlier runs, in the rows' order."""
    if not path or not Path(path).exists():
        return []
    return [Result(**row) for row in json.loads(Path(path).read_text())]


def _models(row: Scenario, count: int) -> list[str]:
    """The row's first models that are here, or its own small one; none where it can't happen."""
    if row.impossible():
        return []
    return [m for m in row.models if not missing(m)][:count] or [row.own]


def _run(job: tuple[Scenario, str, str], folder: Path) -> Result:
    row, driver, model = job
    return check(row, driver, case(model), folder)


def _cells(result: Result) -> tuple[str, ...]:
    variants = ", ".join(result.variants) or "-"
    timed = result.clean > 0
    return (result.scenario, result.driver, result.model, result.outcome or "died", variants,
            f"{result.cold:.1f} s", f"{result.second * 1e3:.2f} ms" if timed else "-",
            f"{result.clean * 1e3:.2f} ms" if timed else "-",
            "; ".join(result.problems) or ("ok by the least run" if result.by_least else "ok"))


def _line(result: Result) -> str:
    row, driver, model, *rest = _cells(result)
    return f"{row:26s} {driver:6s} {model:20s} " + "  ".join(rest)


def _document(chosen: Iterable[Scenario], results: Sequence[Result], models: int) -> str:
    where = f"{platform.machine()} with {platform.system()}, {time.strftime('%Y-%m-%d')}"
    lines = [HEAD.format(models=models, where=where, runs=RUNS,
                         busy=BUSY), "## The rows", ""]
    lines += [f"- **{row.name}**: {row.says}." for row in chosen]
    lines += ["", "## What came of them", "", "| " + " | ".join(COLUMNS) + " |",
              "|" + "---|" * len(COLUMNS)]
    order = {row.name: n for n, row in enumerate(SCENARIOS)}
    lines += ["| " + " | ".join(_cells(r)) + " |"
              for r in sorted(results, key=lambda r: (order[r.scenario], r.model, r.driver))]
    lines += ["", "## What the user reads", "",
              "The first line that each row's first process logged, of those that had one:", ""]
    told = {r.scenario: r.told for r in reversed(results) if r.told}
    lines += [f"- *{row.name}*: {told[row.name]}" for row in chosen if row.name in told]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
