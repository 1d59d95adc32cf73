"""What a template is. With no template at all the compiler still gives right answers, from
generated loops.

A template is one folder: `template.py` says what it implements, what it accepts, its tuning space
and its launch;
the `.j2` files beside it are the kernel's text. Fused prologues and epilogues reach it through
`Hooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Chain, Group
from jitcl.target import Target

ENTRY = (
    "KERNEL_ENTRY"  # stands for the function's name in a rendered body, until its digest is known
)
GROUP = "KERNEL_GROUP "  # before an OpenCL kernel's type: stands for what declares its work-group


@dataclass(frozen=True)
class Packed:
    """A constant operand in the template's own arrangement, made once when the model is compiled.
    """

    node: Node
    key: str  # names the arrangement; (node, key) is packed once however many layers read it
    make: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Scratch:
    """Temporary memory between the kernels of one group (a packed operand, partial sums)."""

    key: str
    dtype: str
    shape: tuple[int, ...]


Argument = Node | Packed | Scratch


class Lines(list[str]):
    """Statements as text, and the buffers that they read: `reads` all of them, `beside` those that
    are read in whole vectors at the address where the statements store."""

    def __init__(self, lines: Iterable[str] = (), reads: Iterable[str] = (),
                 beside: Iterable[str] = ()) -> None:
        super().__init__(lines)
        self.reads, self.beside = frozenset(reads), sorted(beside)


@dataclass(frozen=True)
class Emitted:
    """One kernel that a template wrote, and how to launch it."""

    stem: str  # readable stem of the kernel's name: "gemm_14x2_relu"
    body: str  # text with ENTRY for the function's name, GROUP where its work-group may be declared
    arguments: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    params: Mapping[str, int] = field(default_factory=dict)      # behind the buffers, in order
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    images: tuple[Argument, ...] = ()  # those of `arguments` that are read as image1d_buffer


class Hooks(Protocol):
    """How a template reads fused prologues and writes fused epilogues (implemented in codegen)."""

    group: Group
    target: Target

    def epilogue(self, ix: tuple[Expr, ...], value: Expr) -> Expr:
        """The root's value at logical index `ix`, given the anchor's `value` there."""


class Template(Protocol):
    """One optimised implementation of a pattern."""

    @property
    def name(self) -> str: ...

    @property
    def language(self) -> str: ...  # "opencl" or "numba"

    def accepts(self, group: Group, target: Target) -> Any | None:
        """A match (the template's own record) where it implements the group on the target, else
        None.
        """

    def emit(self, match: Any, hooks: Any, /) -> list[Emitted]:
        """The kernels, in launch order; the last writes the group's root."""


class ChainTemplate(Protocol):
    """One implementation of several groups in a row, each read by the next alone."""

    @property
    def name(self) -> str: ...

    @property
    def language(self) -> str: ...

    @property
    def length(self) -> int: ...  # how many groups

    def accepts(self, chain: Chain, target: Target) -> Any | None:
        """As Template's."""

    def emit(self, match: Any, hooks: Any, /) -> list[Emitted] | None:
        """As Template's; None where the epilogues turn out to be nothing that it can write."""
