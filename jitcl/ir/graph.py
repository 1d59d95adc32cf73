"""The graph level: interned nodes, each with one output, and graphs over them.

Equal nodes are one object, so a common subexpression costs nothing and identity is equality.
Interning keeps -0.0 apart from 0.0, and 1, 1.0 and True apart inside attributes. Pickling interns
again. Real graphs are deeper than Python's stack, so every traversal here is iterative.
"""

from __future__ import annotations

import hashlib
import struct
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jitcl import dtypes
from jitcl.forking import cached_property
from jitcl.ir.types import TensorType

SOME = 64               # elements that tell constants apart
PIECE = 1 << 18         # elements that stay in a cache meanwhile


class Data:
    """A constant's elements: a read-only ndarray that is equal by content (and dtype and shape). An
    array that owns its memory and is read-only already is taken as it is, others are copied.

    Constants are told apart by a few elements; where these are equal, by digests of all, which take
    long of a model's weights, and which few of them need.

    With `reload`, which gives the same elements again, they are held only while somebody else
    holds them, too: a model's weights need not be in memory beside what is made of them. What is
    `derived` of such is equal by what it was made of. `halves`: the same elements as f16, if known;
    `turned`: the matrix of which it is the transposition, likewise.
    """

    __slots__ = ("dtype", "shape", "_some", "_of", "_digest", "_held", "_largest", "_lent",
                 "_reload", "halves", "turned", "__weakref__")

    def __init__(self, array: np.ndarray, reload: Callable[[], np.ndarray] | None = None) -> None:
        if reload is None:
            if array.flags.writeable or not (array.flags.owndata and array.flags.c_contiguous):
                array = np.array(array, order="C")      # a copy: the caller may change his
            array.flags.writeable = False
        self.dtype, self.shape = array.dtype, array.shape
        self._some = _said(array.dtype, array.shape, array.flat[::apart(array.size)])
        self._of: tuple[Data, ...] = ()
        self._digest = None if array.size > SOME else _digest(array)
        self._reload = reload
        self._held = None if reload else array
        self._lent: weakref.ref[np.ndarray] | None = None
        self._largest: float | None = None
        self.halves: Data | None = None
        self.turned: Data | None = None

    @classmethod
    def derived(cls, dtype: np.dtype[Any], shape: tuple[int, ...], said: str, of: Iterable[Data],
                make: Callable[[], np.ndarray], halves: Data | None = None) -> Data:
        """What is computed of other constants when it is asked for, and not looked at before:
        `said` names the way, so that equal texts of equal constants are equal elements."""
        return cls._without(dtype, shape, said.encode(), tuple(of), make, halves)

    @classmethod
    def later(cls, dtype: np.dtype[Any], shape: tuple[int, ...], few: np.ndarray,
              reload: Callable[[], np.ndarray]) -> Data:
        """More than SOME elements, of which only those have been read that tell constants apart."""
        return cls._without(dtype, shape, _said(dtype, shape, few), (), reload)

    @classmethod
    def _without(cls, dtype: np.dtype[Any], shape: tuple[int, ...], some: bytes,
                 of: tuple[Data, ...], make: Callable[[], np.ndarray], halves: Data | None = None
                 ) -> Data:
        """Elements that nobody has yet."""
        data = cls.__new__(cls)
        data.dtype, data.shape = dtype, shape
        data._some, data._of, data._digest = some, of, None
        data._reload, data._held, data._lent, data._largest = make, None, None, None
        data.halves, data.turned = halves, None
        return data

    @property
    def digest(self) -> str:
        """Of the type and all elements, or of how they are made."""
        if self._digest is None and self._of:
            said = self._some + repr([d.digest for d in self._of]).encode()
            self._digest = hashlib.blake2b(said, digest_size=16).hexdigest()
        elif self._digest is None:
            self._digest = _digest(self.array)
        return self._digest

    @property
    def content(self) -> str:
        """The digest of the type and all elements, however they are made."""
        return _digest(self.array) if self._of else self.digest

    @property
    def largest(self) -> float:
        """The largest magnitude of finite floats, 0 where there is none; looked for once."""
        if self._largest is None:
            self._largest = (self.halves.largest if self.halves is not None
                             else _largest(self.array.ravel(order="K")))
        return self._largest

    @property
    def reloads(self) -> bool:
        """Whether the elements are held only while somebody else holds them."""
        return self._reload is not None

    @property
    def array(self) -> np.ndarray:
        if self._held is not None:
            return self._held
        array = self._lent() if self._lent is not None else None
        if array is None:
            assert self._reload is not None
            array = self._reload()
            array.flags.writeable = False
            self._lent = weakref.ref(array)
        return array

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Data):
            return self is other
        return (self._some == other._some and self._of == other._of
                and (bool(self._of) or self.digest == other.digest))

    def __hash__(self) -> int:
        return hash(self._some)

    def __repr__(self) -> str:
        return f"Data({self.dtype}{list(self.shape)} {self.digest[:8]})"

    def __reduce__(self) -> Any:
        return Data, (self.array,)


def apart(size: int) -> int:
    """Of so many elements, each so many-th tells constants apart."""
    return size // SOME | 1


def _said(dtype: np.dtype[Any], shape: tuple[int, ...], few: np.ndarray) -> bytes:
    return f"{dtype.name}{shape}".encode() + few.tobytes()


def _digest(array: np.ndarray) -> str:
    digest = hashlib.blake2b(f"{array.dtype.name}{array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _largest(x: np.ndarray) -> float:
    """Bits of a magnitude have the order of integers: no half is converted but the result."""
    if x.dtype not in (np.float16, np.float32, np.float64):
        x = dtypes.converted(x, "f32")
    bits = x.view(f"u{x.itemsize}")
    infinite = np.array(np.inf, x.dtype).view(bits.dtype)
    found = bits.dtype.type(0)
    for at in range(0, x.size, PIECE):
        size = bits[at:at + PIECE] & ~np.array(-0.0, x.dtype).view(bits.dtype)
        size[size >= infinite] = 0
        found = max(found, size.max())
    return float(np.array(found, bits.dtype).view(x.dtype))


Attr = Any          # int, float, bool, str, None, Data, or a tuple of these


def attr_key(value: Attr) -> Any:
    """A hashable that is equal exactly where two attribute values mean the same."""
    if isinstance(value, tuple):
        return ("t", *(attr_key(v) for v in value))
    if isinstance(value, float):
        return ("f", struct.pack("<d", value))
    return (type(value).__name__, value)


@dataclass(frozen=True, eq=False)
class Node:
    """One operation with one result. Make nodes through `Node.make`, or better an op's builder."""

    op: str
    inputs: tuple[Node, ...]
    attrs: tuple[tuple[str, Attr], ...]     # sorted by name
    type: TensorType

    @staticmethod
    def make(op: str, inputs: Iterable[Node] = (), attrs: Mapping[str, Attr] | None = None, *,
             type: TensorType) -> Node:
        inputs = tuple(inputs)
        items = tuple(sorted((attrs or {}).items()))
        key = (op, inputs, tuple((k, attr_key(v)) for k, v in items), type)
        found = _INTERNED.get(key)
        if found is None:
            found = _INTERNED[key] = Node(op, inputs, items, type)
        return found

    def attr(self, name: str, default: Attr = None) -> Attr:
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    @property
    def kwargs(self) -> dict[str, Attr]:
        return dict(self.attrs)

    @property
    def data(self) -> np.ndarray:
        """The elements of a constant node."""
        data = self.attr("data")
        assert isinstance(data, Data), f"{self.op} is no constant"
        return data.array

    def with_inputs(self, inputs: Iterable[Node]) -> Node:
        return Node.make(self.op, inputs, self.kwargs, type=self.type)

    def __repr__(self) -> str:
        return f"<{self.op} {self.type}>"

    def __reduce__(self) -> Any:
        return _remake, (self.op, self.inputs, self.attrs, self.type)


_INTERNED: weakref.WeakValueDictionary[Any, Node] = weakref.WeakValueDictionary()


def _remake(op: str, inputs: tuple[Node, ...], attrs: tuple[tuple[str, Attr], ...],
            type: TensorType) -> Node:
    return Node.make(op, inputs, dict(attrs), type=type)


def const(array: Any, dtype: str | None = None,
          reload: Callable[[], np.ndarray] | None = None) -> Node:
    """A constant node of an array-like; `dtype` is a jitcl dtype name, `reload` as Data takes it.
    """
    given, array = array, np.asarray(array, dtypes.to_numpy(dtype) if dtype else None)
    if array is not given and isinstance(given, np.ndarray):
        array.flags.writeable = False          # converted here, or a view: `Data` copies views
    name = dtypes.from_numpy(array.dtype)
    assert name is not None, f"no jitcl type for {array.dtype}"
    type = TensorType(name, array.shape)
    return Node.make("const", attrs={"data": Data(array, reload)}, type=type)


def later(dtype: str, shape: tuple[int, ...], few: np.ndarray,
          reload: Callable[[], np.ndarray]) -> Node:
    """A constant of a jitcl dtype that is read when it is asked for: see Data.later."""
    data = Data.later(dtypes.to_numpy(dtype), shape, few, reload)
    return Node.make("const", attrs={"data": data}, type=TensorType(dtype, shape))


def derived(type: TensorType, said: str, of: Iterable[Data], make: Callable[[], np.ndarray],
            halves: Data | None = None) -> Node:
    """A constant that `make` computes of others: see Data.derived."""
    dtype = dtypes.to_numpy(type.dtype)
    data = Data.derived(dtype, type.dims, f"{said} {type}", of,
                        lambda: np.asarray(make(), dtype), halves)
    return Node.make("const", attrs={"data": data}, type=type)


def graph_input(name: str, type: TensorType) -> Node:
    return Node.make("input", attrs={"name": name}, type=type)


@dataclass(frozen=True)
class Origin:
    """The model's node that IR nodes came from. twins: others that compute the same."""

    name: str
    op_type: str
    twins: tuple[str, ...] = ()

    def with_twin(self, name: str) -> Origin:
        """The origin of nodes that another node of the model came to, too."""
        return self if name in (self.name, *self.twins) else replace(
            self, twins=(*self.twins, name))


@dataclass
class ModelNode:
    """A node of the model, as its file has it. inside: the one in whose body, or call, it is;
    readers: who read its results.
    """

    name: str
    op_type: str
    inside: str = ""
    readers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Graph:
    """Named inputs and outputs over interned nodes. `origins` is no part of equality."""

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    origins: Mapping[Node, Origin] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that the outputs need, and the inputs, each after what it reads."""
        return tuple(toposort((*self.inputs, *(n for _, n in self.outputs))))

    def readers(self) -> dict[Node, list[Node]]:
        """Who reads each node (once for each operand that it is); outputs are not counted."""
        found: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for node in self.nodes:
            for source in node.inputs:
                found[source].append(node)
        return found


def toposort(roots: Iterable[Node], within: Container[Node] | None = None) -> list[Node]:
    """The nodes that `roots` need, each after its inputs, in an order of the graph alone; of those
    `within`, if said, and of what they alone lead to."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, Iterator[Node]]] = []
        if root not in seen:
            seen.add(root)
            stack.append((root, iter(root.inputs)))
        while stack:
            node, rest = stack[-1]
            for source in rest:
                if source not in seen and (within is None or source in within):
                    seen.add(source)
                    stack.append((source, iter(source.inputs)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def rebuild(graph: Graph, change: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
    """Rewrite bottom up: `change(node, new inputs)` gives each node's replacement.

    Origins are carried on: a replacement that brings in new nodes passes its origin to them all.
    """
    new: dict[Node, Node] = {}
    origins: dict[Node, Origin] = {}
    for node in graph.nodes:
        inputs = tuple(new[i] for i in node.inputs)
        new[node] = result = change(node, inputs)
        origin = graph.origins.get(node)
        if origin is not None:
            spread_origin(result, origin, origins)
    return Graph(graph.name, tuple(new[i] for i in graph.inputs),
                 tuple((name, new[n]) for name, n in graph.outputs), origins)


def spread_origin(node: Node, origin: Origin, origins: dict[Node, Origin]) -> None:
    """Give `origin` to `node` and to all below it that have none yet (no constants, no inputs)."""
    stack = [node]
    while stack:
        node = stack.pop()
        if node in origins or node.op in ("input", "const"):
            continue
        origins[node] = origin
        stack.extend(node.inputs)


def add_twin(node: Node, name: str, origins: dict[Node, Origin]) -> None:
    """Another node of the model came to `node`, too: so to all below that have the same origin.
    A call of a function only hands on what a node inside of it came to.
    """
    first = origins.get(node)
    if first is None or first.name == name or first.name.startswith(name + "/"):
        return
    stack = [node]
    while stack:
        node = stack.pop()
        origin = origins.get(node)
        if origin is not None and origin.name == first.name and name not in origin.twins:
            origins[node] = origin.with_twin(name)
            stack.extend(node.inputs)
