"""What names stand for while a model is imported: nodes, sequences of them, empty optionals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto

from jitcl.ir.graph import Node, Origin
from jitcl.ir.types import TensorType


@dataclass(frozen=True)
class Seq:
    """A sequence whose length is known at import. `dtype`: of its tensors, where nothing else says
    it.
    """

    items: tuple[Value, ...] = ()
    dtype: str | None = None


@dataclass(frozen=True)
class Empty:
    """An optional that holds nothing."""


@dataclass(frozen=True)
class Opaque:
    """A value that no kernel can read (strings, a sequence that is fed): there when the model runs.
    `signature`: see `frontends.values.signature`.
    """

    what: str
    signature: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Sized:
    """A result of `Bounded` that is cut to its size between two parts: nobody reads it before."""

    padded: Node
    count: Node
    axis: int


Value = Node | Seq | Empty | Opaque | Sized

# the result of a node that could not be imported
MISSING = Node("missing", (), (), TensorType("f32", ()))


def tensors_in(value: Value | None) -> Iterator[Node]:
    """All nodes of a value."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, Seq):
        for item in value.items:
            yield from tensors_in(item)
    elif isinstance(value, Sized):
        yield from (value.padded, value.count)


@dataclass
class Scope:
    """Names in sight of a node: a graph's, a body's (which sees its surroundings), or a
    function's."""

    values: dict[str, Value | None]  # None: a function's input that the caller left out
    stored: Callable[[str], Value | None]  # initialisers, made when first read
    opsets: Mapping[str, int]
    bound: dict[str, AttributeProto] = field(default_factory=dict)
    parent: Scope | None = None
    prefix: str = ""  # of node names, in a function of the model
    origin: Origin | None = None  # in a body that ONNX defines: the node it stands for
    depth: int = 0  # 0: the graph itself

    def find(self, name: str) -> tuple[bool, Value | None]:
        """Whether the name is known, and its value."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return True, scope.values[name]
            node = scope.stored(name)
            if node is not None:
                scope.values[name] = node
                return True, node
            scope = scope.parent
        return False, None


__all__ = ["MISSING", "Empty", "Opaque", "Scope", "Seq", "Sized", "Value", "tensors_in"]
