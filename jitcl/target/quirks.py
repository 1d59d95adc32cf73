"""What drivers do wrong, as data: one row a fault, with the reason and where it was seen.

A row changes fields of a `Target`; no other code asks which driver it runs on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitcl.target.target import Target


@dataclass(frozen=True)
class Driver:
    """What a driver says of itself. `compiler_cpu`: the CPU that its compiler generates code for
    ('' unknown).
    """

    platform: str  # "Portable Computing Language"
    version: str  # "3.0-rc2"
    device: str = ""
    compiler_cpu: str = ""


@dataclass(frozen=True)
class When:
    """Which drivers a row is for: regular expressions over names, a version range, fields of the
    target.
    """

    platform: str = ""
    device: str = ""
    since: str = ""  # first version with the fault
    before: str = ""  # first version without it
    compiler_cpu: str = ""
    isa: tuple[str, ...] = ()  # features that the target must have
    compiler_lacks: str = ""  # a pattern that compiler_cpu must not match

    def holds(self, driver: Driver, target: Target) -> bool:
        if not re.search(self.platform, driver.platform, re.I) or not re.search(
            self.device, driver.device, re.I
        ):
            return False
        if self.since and version_key(driver.version) < version_key(self.since):
            return False
        if self.before and version_key(driver.version) >= version_key(self.before):
            return False
        if not re.search(self.compiler_cpu, driver.compiler_cpu):
            return False
        if self.compiler_lacks and re.search(self.compiler_lacks, driver.compiler_cpu):
            return False
        return set(self.isa) <= set(target.isa)


@dataclass(frozen=True)
class Quirk:
    """One fault: `effect` names fields of Target and their corrected values."""

    id: str
    when: When
    why: str
    seen_on: str
    effect: Mapping[str, Any] = field(default_factory=dict)


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        id="pocl-3.0-library-cpu-mismatch",
        when=When(
            platform="Portable Computing Language",
            before="3.2",
            isa=("avx512f",),
            compiler_lacks="^(skylake-avx512|cascadelake|cooperlake|icelake|tigerlake|sapphire)",
        ),
        effect={"max_vector_width": 8, "fast_fma": False},
        why="the built-in library is compiled for skylake-avx512, can't be inlined into code for "
        "another CPU: 16-wide float arithmetic aborts the process ('Do not know how to scalarize "
        "this operator's operand!'), fma() and mad() are calls (8 times slower than a*b+c). "
        "devices/opencl/pocl.py makes "
        "the two agree where it can; then this row does not hold",
        seen_on="PoCL 3.0-rc2 (LLVM 14), AMD Zen 4 and Zen 5",
    ),
)


def version_key(version: str) -> tuple[int, ...]:
    """'3.0-rc2' -> (3, 0); text behind the numbers is ignored."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(n) for n in found[0].split(".")) if found else ()


def applying(driver: Driver, target: Target) -> tuple[Quirk, ...]:
    """The rows that hold for a driver and what was probed on its device."""
    return tuple(q for q in QUIRKS if q.when.holds(driver, target))


def corrected(driver: Driver, target: Target) -> Target:
    """The target with the effects of all rows that hold."""
    for quirk in applying(driver, target):
        target = dataclasses.replace(target, **quirk.effect)
    return target
