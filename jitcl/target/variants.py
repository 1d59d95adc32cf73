"""In which ways a kernel can be written, from the best variant down to the CPU.

A variant of a kernel is the kernel that is generated for a reduced Target. A Variant says how
the Target is reduced; what fails on a driver is left for the first none of whose kernels is known
to fail there. Most change nothing for most kernels, and cost nothing then: their kernels are
the ones that failed already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jitcl.target.target import Target


@dataclass(frozen=True)
class Variant:
    """A way to write kernels: `effect` sets fields of the Target, `caps` lowers numbers that are
    larger.
    """

    name: str                           # Step.variant; "" for the first
    says: str                           # for people: "the kernel is written <says>"
    effect: Mapping[str, Any] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    loops_only: bool = False            # no template
    split: bool = False                 # a kernel for each node, temporaries between them
    cpu: bool = False                   # this part of the graph runs on the CPU path

    def apply(self, target: Target) -> Target:
        """The target that this variant's kernels are generated for."""
        lowered = {k: min(getattr(target, k), v) for k, v in self.caps.items()}
        return dataclasses.replace(target, **{**self.effect, **lowered})


# a Mali's compiler may fail on any of these; a kernel that has none of them is plain C
SIMPLE = {"images": False, "local_works": False, "packed_weights": False}
SMALL = {"max_vector_width": 1, "max_work_group": 16}
F32 = {"fp16_arithmetic": False}
NO_HALF = {**F32, "soft_half": True}

VARIANTS: tuple[Variant, ...] = (
    Variant("", "as scheduled"),
    Variant("no-images", "without images", {"images": False}),
    Variant("no-warpgroups", "without products by groups of warps", {"warpgroup_memory": 0}),
    Variant("no-assembly", "without inline assembly", {"tensor_cores": False}),
    Variant("no-local", "without local memory", {"local_works": False}),
    Variant("vectors-8", "with vectors of at most 8", caps={"max_vector_width": 8}),
    Variant("vectors-4", "with vectors of at most 4", caps={"max_vector_width": 4}),
    Variant("no-vectors", "without vectors", caps={"max_vector_width": 1}),
    Variant("groups-64", "for work-groups of at most 64", caps={"max_work_group": 64}),
    Variant("groups-16", "for work-groups of at most 16", caps={"max_work_group": 16}),
    Variant("unpacked", "with its weights unpacked", {"packed_weights": False}),
    Variant("loops", "as generated loops", loops_only=True),
    Variant("simple", "as plain loops (no images, local memory, vectors or packed weights)",
         SIMPLE, SMALL, loops_only=True),
    Variant("f32-arithmetic", "with arithmetic in float32", F32),
    Variant("f32-arithmetic-simple", "as plain loops with arithmetic in float32",
         {**SIMPLE, **F32}, SMALL, loops_only=True),
    Variant("f32", "without the type half", NO_HALF),
    Variant("f32-simple", "as plain loops without the type half", {**SIMPLE, **NO_HALF}, SMALL,
         loops_only=True),
    Variant("split", "as a plain loop for each operation", {**SIMPLE, **NO_HALF}, SMALL,
         loops_only=True, split=True),
    Variant("cpu", "for the CPU", cpu=True),
)
