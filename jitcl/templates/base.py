"""What a template is. With no template at all the compiler still gives right answers, from
generated loops.

A template is one folder: `template.py` says what it implements, the candidates for a group (its
tuning space) and the launch; the `.j2` files beside it are the kernel's text. Fused prologues and
epilogues reach it through `CpuHooks` or `OpenClHooks`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from jitcl.errors import JitclError
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Node
from jitcl.ir.group import Group
from jitcl.ir.kernel import Store
from jitcl.ir.sizes import same
from jitcl.ir.types import TensorType
from jitcl.ops.core import Loader as OperandLoader
from jitcl.target import Target

ENTRY = (
    "KERNEL_ENTRY"  # stands for the function's name in a rendered body, until its digest is known
)
GROUP = "KERNEL_GROUP "  # before an OpenCL kernel's type: stands for what declares its work-group


class Declined(JitclError):
    """Why a template that would write a group can't: reports tell it."""


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
    global_size: tuple[int, ...] = ()    # on the CPU 0 or 1, where not all runs launch it
    local_size: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    images: tuple[Argument, ...] = ()  # those of `arguments` that are read as image1d_buffer
    main: int = 0               # 1 where the group's work is done here (a size, where that depends
                                # on sizes); of no kernel, where the last one does it


def with_main(kernels: list[Emitted]) -> list[Emitted]:
    """The kernels of a group, of which at least one does its work: the last, if none says so."""
    if not all(same(e.main, 0) for e in kernels):
        return kernels
    return [*kernels[:-1], dataclasses.replace(kernels[-1], main=1)]


def launched(kernels: list[Emitted], when: int) -> list[Emitted]:
    """Kernels that do a group's work where `when` (a size) is 1, and are left out where it is 0."""
    return [dataclasses.replace(e, main=when * e.main, global_size=(
        when * (e.global_size or (1,))[0], *e.global_size[1:])) for e in with_main(kernels)]


@dataclass(frozen=True)
class Loader:
    """The body of a function that returns one element of an operand, and what it reads."""

    lines: tuple[str, ...]
    helpers: tuple[str, ...]                     # functions that the lines call
    operands: tuple[tuple[str, str], ...]        # (name, C type of the buffer's elements)
    nodes: tuple[Node, ...]                      # the operands' nodes, in the same order
    fast_k: bool                                 # elements along k are neighbours in memory
    sizes: Mapping[str, int] = field(default_factory=dict)   # that it reads, of a sized template


@dataclass(frozen=True)
class Place:
    """The body of a function that returns where an operand's element lies in its buffer."""

    lines: tuple[str, ...]
    helpers: tuple[str, ...]                     # functions that the lines call
    node: Node                                   # whose buffer it is
    runs: Mapping[str, int]     # variable -> elements that are neighbours and aligned along it
    sizes: Mapping[str, int] = field(default_factory=dict)   # that it reads, of a sized template


@dataclass(frozen=True)
class Epilogue:
    """The body of a function that stores one vector of the result, and what it reads."""

    lines: tuple[str, ...]
    helpers: tuple[str, ...]                     # functions that the lines call
    operands: tuple[tuple[str, str], ...]        # (name, C type of the buffer's elements)
    nodes: tuple[Node, ...]                      # the operands' nodes, in the same order
    y_type: str                                  # C type of the result's elements
    rows_apart: bool = False                     # registers hold what it needs for one row alone
    sizes: dict[str, int] = field(default_factory=dict)  # parameters that it reads
    beside: tuple[str, ...] = ()                 # vectors that it takes behind the first


Arrangement = Callable[[tuple[Expr, ...]], tuple[Sequence[Expr], Expr]]


class Hooks(Protocol):
    """How a template reads fused prologues and writes fused epilogues, in either language
    (implemented in codegen/hooks.py).
    """

    group: Group
    target: Target
    names: dict[Node, str]      # of the buffers that the group reads, in the group's order

    @property
    def anchor(self) -> Node:
        """The group's anchor, which a template's group has."""

    def render(self, template: str, **values: object) -> str:
        """The text of a file of `jitcl/templates` with its variables filled in; in OpenCL after the
        functions of codegen/opencl_helpers.py that it calls.
        """

    def place(self, node: Node, ix: Sequence[Expr]) -> tuple[Node, Expr] | None:
        """(the operand, the place in its buffer) of the element of a node at `ix`; None where it is
        computed or rounded, or is 0 for some `ix`."""

    def arranged(self, node: Node, key: str, dtype: str, shape: tuple[int, ...],
                 where: Arrangement, order: Sequence[int] = ()) -> tuple[Scratch, Emitted]:
        """(a copy of an operand in an arrangement of `shape`, the launch that writes it): element
        `at` is the operand's at the logical index where(at)[0] if where(at)[1] holds, else 0. Its
        loops go over the axes in this order.
        """


class Written(Protocol):
    """Sizes that are not known, as a kernel's text has them."""

    def params(self) -> dict[str, int]:
        """What a kernel takes for them behind its other parameters."""


class CpuHooks(Hooks, Protocol):
    """Those of templates for the CPU. Epilogues are lines of Numba code: see codegen/hooks.py for
    the variables in their scope, and for where there are none (None).
    """

    @property
    def sizes(self) -> Written:
        """Of lines and of what `render` was given: the last parameters of a `sized` template's
        kernel."""

    def part(self, group: Group, prefix: str, result: str) -> CpuHooks:
        """The hooks of a part of a chain, whose operands and root have names of their own."""

    def loader(self, node: Node) -> OperandLoader:
        """What an op's body reads an operand through."""

    def text(self, x: Expr) -> str:
        """An index as an operand in a kernel's text."""

    def blocked(self, node: Node, width: int, pads: tuple[int, ...]) -> tuple[Scratch, Emitted]:
        """(a copy of an operand in zero-padded blocks of `width` channels, the launch that writes
        it); of width 0 in planes.
        """

    def vector_epilogue(self, lane_width: int, *, flat_space: bool, channels_left: str = ""
                        ) -> Lines | None:
        """Stores a vector of channels of a root in blocks."""

    def pixel_epilogue(self, width: int, *, flat_space: bool) -> Lines | None:
        """Stores a vector of pixels along a row of a row-major root."""

    def scalar_epilogue(self, lane_width: int) -> Lines:
        """Stores one element of a root of any layout, at a channel and a pixel."""

    def row_epilogue(self, width: int, into: str = "", whole: bool = False) -> Lines | None:
        """Stores a vector of columns of a row-major root."""

    def row_scalar_epilogue(self, width: int) -> Lines:
        """Stores one element of a row-major root, at a row and a column."""

    def cell_lines(self, stores: Sequence[Store], lane: Expr, width: int, wide: tuple[str, ...],
                   left: str = "") -> Lines | None:
        """Does a recurrence's stores for vectors along `lane`."""

    def cell_starts(self, stores: Sequence[Store]) -> Lines:
        """Does a recurrence's stores element by element."""


class OpenClHooks(Hooks, Protocol):
    """Those of templates for OpenCL devices."""

    @property
    def half(self) -> bool:
        """Whether products of f16 operands are to be computed in the type half. Sums of them are
        too, of at most FLUSHED terms, before they are added in f32; epilogues are f32.
        """

    def lifting(self, first: Node | None = None) -> OpenClHooks:
        """For one kernel whose numbers are parameters, where all sizes are numbers: those of lines,
        and those that `number` is told. Its first operand is `first`, if it is one."""

    def number(self, n: int) -> int:
        """A number of a kernel's text, 1 or more: a size that is its parameter where such are
        lifted."""

    def part(self, group: Group, prefix: str) -> OpenClHooks:
        """The hooks of a part of a chain, whose operands have names of their own."""

    def ctype(self, dtype: str) -> str:
        """The C type of a buffer's elements."""

    def epilogue_lines(self, ix: tuple[Expr, ...], width: int,
                       types: dict[Node, TensorType] | None = None,
                       multiples: Mapping[str, int] = MappingProxyType({}),
                       beside: Sequence[Node] = ()) -> Epilogue | None:
        """Code that stores `width` neighbours of the root at logical index `ix` (of lane 0, moved
        along by `lane` in its last component) from the vector `v`, at element `at` of y.

        `types`: the shapes that the group's tensors are seen in; `multiples`: what variables of
        `ix` are multiples of; `beside`: other nodes whose values there are vectors `v1`, `v2`..
        None where the epilogue is no function of whole vectors.
        """

    def load_lines(self, node: Node, shape: tuple[int, ...], ix: list[Expr], *inside: Expr
                   ) -> Loader:
        """Code that returns the element at `ix` of a node, seen in a `shape`; 0 where not `inside`;
        as a half where `half` says so, else as a float.
        Its variables are those of `ix`, in which `k` counts terms.
        """

    def quad_lines(self, node: Node, ix: list[Expr]) -> Loader | None:
        """Code that returns four neighbours along `k` as a float4, from the element at `ix` of a
        node on, of which `k` is a multiple of four. None where it is no function of whole vectors.
        """

    def value_lines(self, ix: tuple[Expr, ...], root: Node | None = None,
                    given: Node | None = None) -> Loader | None:
        """Code that returns the root at logical index `ix` as a float, given the anchor's value `v`
        there; or another node, given another's. None where it can't be written.
        """

    def place_lines(self, node: Node, shape: tuple[int, ...], ix: list[Expr]) -> Place | None:
        """Where the element at `ix` of a node, seen in a `shape`, lies in a buffer of the node's
        type; None where it is computed, or is 0 for some `ix`.
        """

    def text(self, x: Expr) -> tuple[str, Mapping[str, int]]:
        """(an index as a kernel's text has it, the sizes that it reads)"""

    def flat_pixels(self) -> dict[Node, TensorType] | None:
        """Types of the epilogue's tensors with all spatial axes as one; None where something in it
        tells the axes apart.
        """

    def separate_epilogue(self) -> tuple[Scratch, OpenClHooks, Emitted]:
        """(the memory of the anchor's value, hooks of the anchor alone, a kernel that computes the
        epilogue from that memory), for where the template can't write the epilogue.
        """


@dataclass(frozen=True)
class Match:
    """How a template computes a group: its tuning parameters by name, all of them numbers, texts or
    records of such. None where there is but one way. What the group's own shapes say is no part.
    """

    def parameters(self) -> dict[str, object]:
        """The names and values, records as dictionaries: {"form": "direct", "tile": {...}}."""
        return dataclasses.asdict(self)


M = TypeVar("M", bound=Match)
H = TypeVar("H", bound=Hooks)
H_in = TypeVar("H_in", bound=Hooks, contravariant=True)


class Chooser(Protocol):
    """Which of a template's candidates a group is written with: the part of a tuner that code
    generation asks.
    """

    def choose(self, template: str, group: Group, candidates: tuple[M, ...], /) -> M | None:
        """One of the candidates (at least one, best first) of the template of this name; None where
        a later template, or generated loops, are to write the group.
        """


class First:
    """Takes what the template holds for the best."""

    def choose(self, template: str, group: Group, candidates: tuple[M, ...], /) -> M | None:
        return candidates[0]


FIRST = First()


class Template(ABC, Generic[M, H]):
    """One optimised implementation of a pattern, whose matches are `M`. `lengths`: of how many
    groups, each read by those behind it alone (`Chain`).
    """

    name: ClassVar[str]
    lengths: ClassVar[tuple[int, ...]] = (1,)
    sized: ClassVar[bool] = False       # groups whose sizes are not known (ir/sizes.py), too

    @abstractmethod
    def candidates(self, group: Group, target: Target) -> tuple[M, ...]:
        """The ways to compute the group on the target, best first by the template's own estimate
        of work and memory traffic; () where it doesn't implement the group.
        """

    @abstractmethod
    def emit(self, match: M, hooks: H, /) -> list[Emitted] | None:
        """The kernels, in launch order; the last writes the group's root. None where what is fused
        turns out to be nothing that they can write.
        """

    def write(self, hooks: H, chooser: Chooser) -> list[Emitted] | None:
        """The kernels of the candidate that the chooser takes; None where there are none."""
        found = self.candidates(hooks.group, hooks.target)
        match = chooser.choose(self.name, hooks.group, found) if found else None
        return None if match is None else self.emit(match, hooks)


class Writes(Protocol[H_in]):
    """A Template of whatever matches."""

    @property
    def name(self) -> str: ...

    @property
    def lengths(self) -> tuple[int, ...]: ...

    @property
    def sized(self) -> bool: ...

    def candidates(self, group: Group, target: Target) -> tuple[Match, ...]: ...

    def write(self, hooks: H_in, chooser: Chooser) -> list[Emitted] | None: ...
