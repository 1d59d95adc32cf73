"""What a driver truly does, asked of it with tiny kernels. A wrong result is a missing feature.

    run_probe(found, "vec4+vec8")     asks in this process; the driver may take it down
    survey(found)                     asks everything, in worker processes (survey.py)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyopencl as cl

from jitcl import forking
from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.probes.assembly import ASSEMBLY
from jitcl.devices.opencl.probes.bench import Bench, Refused
from jitcl.devices.opencl.probes.halves import HALVES
from jitcl.devices.opencl.probes.launching import LAUNCHING
from jitcl.devices.opencl.probes.memory import MEMORY
from jitcl.devices.opencl.probes.numbers import NUMBERS
from jitcl.devices.opencl.probes.record import (
    GOOD,
    REFUSED,
    WRONG,
    Answer,
    Probe,
)

__all__ = ["PROBES", "Answer", "Probe", "run_probe"]

PROBES: dict[str, Probe] = {
    p.name: p for p in (*NUMBERS, *HALVES, *MEMORY, *LAUNCHING, *ASSEMBLY)}
_benches: dict[str, Bench] = {}
_lock = forking.lock()


def run_probe(found: Found, name: str) -> dict[str, Any]:
    """Answers of one probe or several ("vec4+vec8"): {"answers": [Answer.as_dict(), ...]}.

    Several are built as one program, which costs a driver little more than one; where that does not
    build, each by itself.
    """
    with _lock, forking.OPENCL:
        probes = [PROBES[n] for n in name.split("+")]
        answers: list[Answer] = []
        try:
            for answer in _asked(found, probes):
                answers.append(answer)
        except Refused as error:            # there is no context to be had
            answers += [Answer(p.name, REFUSED, str(error)) for p in probes[len(answers):]]
        return {"answers": [a.as_dict() for a in answers]}


def _asked(found: Found, probes: list[Probe]) -> Iterator[Answer]:
    """The answers; where a probe loses the context, it is asked once more in a new one."""
    bench = _bench(found)
    shared = _shared(bench, [p for p in probes if p.source])
    for probe in probes:
        if bench.lost:
            bench, shared = _bench(found), None
        answer = _ask(bench, probe, shared)
        if bench.lost:
            bench, shared = _bench(found), None
            answer = _ask(bench, probe, None)
        yield answer


def _bench(found: Found) -> Bench:
    """The device's bench in this process, a new one where its context is lost. Raises Refused."""
    bench = _benches.get(found.spec)
    if bench is None or bench.lost:
        bench = _benches[found.spec] = Bench(found)
    return bench


def _shared(bench: Bench, probes: list[Probe]) -> Any:
    """One program with the kernels of several probes; None if it fails."""
    if len(probes) < 2:
        return None
    try:
        return bench.build("\n".join(dict.fromkeys(p.source for p in probes)))
    except Refused:
        return None


def _ask(bench: Bench, probe: Probe, shared: Any) -> Answer:
    begin = time.perf_counter()
    try:
        program = (shared or bench.build(probe.source)) if probe.source else None
        verdict = probe.judge(bench, program)
    except cl.Error as error:
        return Answer(probe.name, REFUSED, str(bench.refused(error)), {},
                      time.perf_counter() - begin)
    except Refused as error:
        return Answer(probe.name, REFUSED, str(error), {}, time.perf_counter() - begin)
    return Answer(probe.name, GOOD if verdict.good else WRONG, verdict.evidence,
                  dict(verdict.fields), time.perf_counter() - begin)
