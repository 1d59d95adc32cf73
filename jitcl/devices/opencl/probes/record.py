"""What a probe is, and what it answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitcl.devices.opencl.platform import Found
    from jitcl.devices.opencl.probes.bench import Bench

GOOD, WRONG, REFUSED = "good", "wrong", "refused"
CRASH, HANG, SKIPPED = "crash", "hang", "skipped"
SHORT = "short"                     # the system lacked something: nothing is known
KINDS = (GOOD, WRONG, REFUSED, CRASH, HANG, SKIPPED, SHORT)


@dataclass(frozen=True)
class Verdict:
    """What a probe's kernels showed. `fields`: of Target, as measured."""

    good: bool
    evidence: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """A probe's result on one device. `kind` is one of KINDS; anything but "good" means that the
    feature is absent. Times are in seconds.
    """

    probe: str
    kind: str
    evidence: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.kind == GOOD

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Answer:
        """The answer of `as_dict`; ValueError where it is something else."""
        names = {f.name for f in dataclasses.fields(cls)}
        if set(row) != names or row["kind"] not in KINDS or not isinstance(row["fields"], dict):
            raise ValueError(f"no answer of a probe: {sorted(row)}")
        return cls(str(row["probe"]), row["kind"], str(row["evidence"]), dict(row["fields"]),
                   float(row["seconds"]))


@dataclass(frozen=True)
class Probe:
    """One question to a driver: tiny kernels, and how their results are judged.

    `features` are proven where this probe and every other that names them is good. `present` and
    `absent` are fields of Target where it is good or not; `wrong` are more of them, where its
    kernels ran and gave wrong values. A probe that sets no field and proves no feature is there for
    `jitcl devices --probe` alone.
    """

    name: str
    what: str                                     # "half arithmetic rounds as binary16 does"
    judge: Callable[[Bench, Any], Verdict]        # gets the built program, None without a source
    source: str = ""                              # OpenCL C 1.2
    features: tuple[str, ...] = ()                # names of target/features.py
    present: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)
    wrong: Mapping[str, Any] = field(default_factory=dict)
    skip: Callable[[Found], str] = lambda found: ""   # why it need not be asked of a device
    needs: tuple[str, ...] = ()                   # probes without which it makes no sense

    def fields(self, answer: Answer) -> dict[str, Any]:
        """Fields of Target that an answer sets."""
        if answer.good:
            return {**self.present, **answer.fields}
        return {**self.absent, **(self.wrong if answer.kind == WRONG else {})}
