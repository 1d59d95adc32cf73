"""What became of the precision that was asked for, read from a plan: the same from the cache."""

from __future__ import annotations

from jitcl.codegen.plan import Plan
from jitcl.passes.options import ALL, Options
from jitcl.target import Target

AS_MODEL, IN_F32 = "as the model says", "stored as f32, computed in f32"


def precision_got(options: Options, plan: Plan, target: Target) -> tuple[str, str]:
    """(what tensors between kernels are stored and computed in, why that is less than was asked
    for; "" where it is not). `target`: of the device that runs the plan.
    """
    asked = options.least
    if ALL in options.promoted:
        return IN_F32, ""
    if asked == "high":
        return AS_MODEL, ""
    stored = plan.stores_f16
    if not stored:
        return IN_F32, _not_stored(options, target)
    if asked == "normal":
        return "stored as f16, computed in f32", ""
    halves = sum("half" in k.features for k in plan.kernels)
    if halves:
        return f"stored as f16, computed in f16 by {halves} of {len(plan.kernels)} kernels", ""
    return "stored as f16, computed in f32", _not_computed(plan, target)


def _not_stored(options: Options, target: Target) -> str:
    if not target.fp16_storage:
        return f"device '{target.name}' can't store f16"
    if options.promoted or any(p == "high" for _, p in options.layers):
        return "of the layers that are not in more, no tensor is large, and survives f16"
    return "no tensor that may be f16 is large, and survives it"


def _not_computed(plan: Plan, target: Target) -> str:
    if target.kind != "opencl":
        return f"'{target.kind}' computes f16 in f32"
    if not target.computes_f16:
        return f"device '{target.name}' has no f16 arithmetic, or its driver gets it wrong"
    if any(step.variant for step in plan.steps):
        return "the driver failed on kernels that compute in f16"
    return "its kernels sum, or are templates that stay in f32"


__all__ = ["AS_MODEL", "precision_got"]
