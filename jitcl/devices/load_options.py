"""How carefully a plan is loaded: in which process kernels are built, and what they are tried on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jitcl import config
from jitcl.codegen.plan import Plan


class Trial(Protocol):
    """One group's steps, to be run once on random data (codegen/trial.py has it)."""

    subject: str                    # "softmax_3": the group's main step
    plan: Plan                      # of the group alone; inputs and outputs are physical buffers

    @property
    def entries(self) -> frozenset[str]: ...    # kernels that it tries

    @property
    def reason(self) -> str: ...                # why no result can be judged; "" where one can

    def prepare(self) -> None: ...              # slow work, once; may run while kernels are built

    def inputs(self) -> list[np.ndarray]: ...   # the same each time

    def wrong(self, outputs: Sequence[np.ndarray]) -> str:
        """What differs from the interpreter beyond the precision's bound; "" where nothing does."""


PRIORITIES = ("low", "normal", "high")


@dataclass(frozen=True)
class LoadOptions:
    """What `Device.load` is told about trust, and of what priority its runs are.

    isolation: "always", "untrusted" or "never": when kernels are built and first launched in a
    worker process. trials: what new kernels are tried on; none for a plan from the cache. priority:
    one of PRIORITIES, a hint for drivers.
    """

    isolation: str = "untrusted"
    trials: tuple[Trial, ...] = ()
    priority: str = "normal"


def configured() -> LoadOptions:
    """As JITCL_ISOLATION says, without trials."""
    return LoadOptions(config.get("isolation"))
