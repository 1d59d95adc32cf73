"""What a driver says of itself, and the conditions that rows of the quirk table put on it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from jitcl.forking import cached_property
from jitcl.target.generations import Generation, parse
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
    details: str = ""  # versions of the platform and the device: "OpenCL 2.0 v1.r14p0-01rel0.e4cc"
    extensions: str = ""  # as the device lists them, with spaces between

    @cached_property
    def generation(self) -> Generation:
        return parse(self.device, self.platform, self.details)

    @cached_property
    def number(self) -> tuple[int, ...]:
        """The version that rows compare: Arm's r14p0 and Qualcomm's compiler E031.38 stand
        elsewhere than in `version`, and where they don't, it is unknown: ().
        """
        spelled = {"arm": r"\br\d+p\d+", "qualcomm": r"\bE\d+(\.\d+)+"}
        pattern = spelled.get(self.generation.vendor)
        if pattern is None:
            return version_key(self.version)
        found = re.search(pattern, f"{self.version} {self.details}")
        return version_key(found[0]) if found else ()


def version_key(version: str) -> tuple[int, ...]:
    """'3.0-rc2' -> (3, 0), 'r14p0' -> (14, 0), 'E031.38.11' -> (31, 38, 11); text behind the
    numbers is ignored.
    """
    arm = re.match(r"r(\d+)p(\d+)", version)
    if arm:
        return int(arm[1]), int(arm[2])
    found = re.match(r"E?(\d+(\.\d+)*)", version)
    return tuple(int(n) for n in found[1].split(".")) if found else ()


Key = tuple[int, ...]
OPERATORS: dict[str, Callable[[Key, Key], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, ">": operator.gt}


def version_holds(number: Key, conditions: str) -> bool:
    """Whether a version fits '>=23.20,<24.20': all of it, compared as far as a condition says
    (3.1.2 is ==3.1). An unknown version fits no condition but none.
    """
    for condition in filter(None, conditions.split(",")):
        found = re.fullmatch(r"\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*", condition)
        wanted = version_key(found[2]) if found else ()
        if found is None or not wanted:
            raise ValueError(f"'{condition}' is no condition on a version: write '<3.2'")
        if not number or not OPERATORS[found[1]](number[:len(wanted)], wanted):
            return False
    return True


@dataclass(frozen=True)
class When:
    """Which drivers a row is for: each field that is not empty must hold. Names are regular
    expressions, without regard to case.
    """

    platform: str = ""
    vendor: str = ""                         # of the parsed generation: "arm"
    architectures: tuple[str, ...] = ()      # "midgard", "a6xx"
    models: str = ""                         # a pattern of whole models: "T8[68]0"
    device: str = ""                         # anywhere in the device's name
    device_type: str = ""                    # "gpu"
    version: str = ""                        # ">=3.0,<3.2"
    extension: str = ""
    compute_units: tuple[int, ...] = ()
    compiler_cpu: str = ""
    isa: tuple[str, ...] = ()                # features that the target must have
    compiler_lacks: str = ""                 # a pattern that compiler_cpu must not match
    unless: tuple[When, ...] = ()            # exceptions

    def holds(self, driver: Driver, target: Target) -> bool:
        return (self._named(driver) and self._placed(driver.generation)
                and version_holds(driver.number, self.version)
                and self._built(driver, target)
                and not any(w.holds(driver, target) for w in self.unless))

    def _named(self, driver: Driver) -> bool:
        pairs = ((self.platform, driver.platform), (self.device, driver.device),
                 (self.extension, driver.extensions))
        return all(re.search(pattern, text, re.I) for pattern, text in pairs)

    def _placed(self, g: Generation) -> bool:
        if self.vendor and g.vendor != self.vendor:
            return False
        if self.architectures and g.architecture not in self.architectures:
            return False
        return not self.models or re.fullmatch(self.models, g.model, re.I) is not None

    def _built(self, driver: Driver, target: Target) -> bool:
        if self.device_type and target.device_type != self.device_type:
            return False
        if self.compute_units and target.compute_units not in self.compute_units:
            return False
        if not re.search(self.compiler_cpu, driver.compiler_cpu):
            return False
        if self.compiler_lacks and re.search(self.compiler_lacks, driver.compiler_cpu):
            return False
        return set(self.isa) <= set(target.isa)

    def __str__(self) -> str:
        said = [f"{name} {' or '.join(map(str, v)) if isinstance(v, tuple) else v}"
                for name in self.__dataclass_fields__
                if name != "unless" and (v := getattr(self, name))]
        said += [f"unless {w}" for w in self.unless]
        return ", ".join(said)
