"""Which kernels the driver gets in the user's process, and which a worker process tries first."""

from __future__ import annotations

from jitcl.target.features import GATED
from jitcl.target.target import Target

DIED = "an earlier process died while it was built or first launched"
UNFINISHED = "an earlier process ended while it had this driver build or launch kernels"
TWICE = "the process ended twice over it, and a worker process did not"


def isolated(mode: str, features: frozenset[str], target: Target, doubt: str = "") -> str:
    """Why a kernel with these features is tried in a worker process first; "" where it need not.

    `mode` is JITCL_ISOLATION. With "untrusted", a driver that is known good builds a kernel in
    the user's process where probes have proven all that it uses beyond plain C, and nothing in it
    is suspected of crashing this driver's compiler. `doubt`: what speaks against the driver, or
    the moment, all the same.
    """
    if mode == "never":
        return ""
    if mode == "always":
        return "isolation is 'always'"
    if doubt:
        return doubt
    if not target.trusted:
        return "the driver is not known good"
    suspected = sorted(features.intersection(target.suspects))
    if suspected:
        return f"suspected on this driver: {', '.join(suspected)}"
    unproven = sorted((features & GATED).difference(target.proven))
    return f"no probe has proven: {', '.join(unproven)}" if unproven else ""


def maker(mode: str, target: Target) -> str:
    """What the cache says of who built a kernel in the user's process without a worker."""
    return "trusted" if target.trusted and mode != "never" else "unproven"


def acceptable(made_by: str, mode: str) -> bool:
    """Whether a kernel from the cache may be given to the driver in the user's process.

    made_by: "worker" (it was built and launched in one), "trusted" (by a driver that is known
    good, with proven features) or "unproven" (isolation was "never").
    """
    if made_by == "worker" or mode == "never":
        return made_by in ("worker", "trusted", "unproven")
    return made_by == "trusted" and mode != "always"
