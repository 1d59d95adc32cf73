"""Where a model comes from: an ONNX file, bytes or ModelProto, text IR, or a Graph made by hand.

A source knows its digest without importing anything heavy, so that a warm start reads its plan from
the cache and
never loads the onnx package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jitcl import dtypes
from jitcl.errors import InputError, ModelError, OptionError, ParseError, StepsVary
from jitcl.frontends.values import ValueType
from jitcl.ir.files import read_regular
from jitcl.ir.graph import Graph, ModelNode
from jitcl.ir.types import Dim, Sym, TensorType
from jitcl.runtime.digests import begun, digest

MOST_BESIDE = 1 << 36           # bytes of a text graph's constants


@dataclass(frozen=True)
class Tensor:
    """A model's input or output as its user sees it; unknown dimensions are `Sym`s."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    optional: bool = False  # an input that has a default (an initialiser)
    value: ValueType | None = None  # where it is not a tensor of numbers of known rank

    def __str__(self) -> str:
        what = self.value or TensorType(self.dtype, self.shape)
        return f"'{self.name}' {what}" + (" (optional)" if self.optional else "")

    def row(self) -> list[Any]:
        """As JSON values."""
        return [self.name, self.dtype, [str(d) if isinstance(d, Sym) else d for d in self.shape],
                self.optional, self.value.row() if self.value is not None else None]

    @staticmethod
    def of_row(row: list[Any]) -> Tensor:
        """What `row` wrote."""
        name, dtype, shape, optional, value = row
        return Tensor(name, dtype, tuple(Sym(d) if isinstance(d, str) else d for d in shape),
                      optional, ValueType.of_row(value) if value is not None else None)


class Source(Protocol):
    """A model before it is specialised."""

    name: str
    whole: bool             # a model, no part of one

    @property
    def digest(self) -> str:
        """What the model is known by."""

    def signature(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[str, ...]]:
        """Inputs, outputs, and the files beside the model that its digest does not cover."""

    def called(self, name: str) -> str:
        """An input in messages."""

    def graph(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
    ) -> Graph:
        """The graph for concrete input shapes; NeedsValue where an input's value decides a shape.
        """

    def nodes(self) -> Mapping[str, ModelNode]:
        """The model's nodes by name; of a part, all the same. OptionError where they have none."""


class OnnxSource:
    """An ONNX model; parsed when first needed."""

    whole = True

    def __init__(self, data: Any, name: str, digest: str | Future[str]) -> None:
        self.data, self.name, self._digest = data, name, digest
        self._model: Any = None
        self._partition: Any = None

    @property
    def digest(self) -> str:
        """Of the model's bytes. A large file whose digest is still being taken was likely never
        compiled: it is read meanwhile.
        """
        if isinstance(self._digest, Future):
            if not self._digest.done():
                _ = self.model
            self._digest = self._digest.result()
        return self._digest

    @property
    def model(self) -> Any:
        if self._model is None:
            from jitcl.frontends.onnx import load

            self._model = load(self.data)
        return self._model

    def derived(self, model: Any, *what: Any) -> OnnxSource:
        """The source of a model that was made of this one; `what` was done, as JSON values."""
        made = OnnxSource(None, self.name, digest(json.dumps([self.digest, *what]).encode()))
        made._model = model
        return made

    def inner(self, names: Sequence[str]) -> OnnxSource:
        """The model which gives inner tensors, too, for names of tensors or of nodes. Raises
        InputError for an unknown one.
        """
        from jitcl.frontends.onnx.inner import tensors_of, with_outputs

        found = tensors_of(self.model, names)
        return self.derived(with_outputs(self.model, found), "intermediates", found)

    def signature(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[str, ...]]:
        m = self.model
        taken, given = m.value_types
        inputs = [_described(n, t, n in m.initialisers) for n, t in taken.items()]
        outputs = [
            Tensor(n, "unknown", ()) if t.kind == "unknown" or t.kind == "tensor" and (
                t.shape is None and t.dtype in dtypes.STORED)
            else _described(n, t)
            for n, t in given.items()
        ]
        return tuple(inputs), tuple(outputs), self.beside()

    def called(self, name: str) -> str:
        return f"input '{name}'"

    def beside(self) -> tuple[str, ...]:
        """Files beside the model that hold its weights."""
        return tuple(map(str, self.model.external_files))

    @property
    def partition(self) -> Any:
        """The model as a program: made when first needed."""
        if self._partition is None:
            from jitcl.frontends.onnx.partition import Partition

            self._partition = Partition(self.model)
        return self._partition

    def graph(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
    ) -> Graph:
        from jitcl.frontends.onnx import import_model

        try:
            return import_model(self.model, dict(shapes), dict(values))
        except StepsVary as error:
            self.partition.loops.add(error.node)
            raise

    def nodes(self) -> Mapping[str, ModelNode]:
        from jitcl.frontends.onnx.layer_names import named_nodes

        return named_nodes(self.model)


def _described(name: str, type: ValueType, optional: bool = False) -> Tensor:
    """An input or output of any kind."""
    plain = type.kind == "tensor" and type.dtype in dtypes.STORED and type.shape is not None
    inner = type
    while inner.of is not None:
        inner = inner.of
    return Tensor(name, inner.dtype, inner.shape or (), optional, None if plain else type)


class GraphSource:
    """A Graph, whose symbolic dimensions are bound to the shapes that are fed."""

    whole = True

    def __init__(self, graph: Graph, name: str, digest: str) -> None:
        self._graph, self.name, self.digest = graph, name, digest

    def signature(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[str, ...]]:
        g = self._graph
        return (
            tuple(Tensor(str(n.attr("name")), n.type.dtype, n.type.shape) for n in g.inputs),
            tuple(Tensor(name, n.type.dtype, n.type.shape) for name, n in g.outputs), ())

    def called(self, name: str) -> str:
        return f"input '{name}'"

    def graph(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]
    ) -> Graph:
        from jitcl.passes.specialise import specialise

        bound: dict[str, int] = {}
        places: dict[str, str] = {}
        for node in self._graph.inputs:
            name = str(node.attr("name"))
            for axis, (dim, size) in enumerate(zip(node.type.shape, shapes[name])):
                if isinstance(dim, Sym) and bound.setdefault(dim.name, size) != size:
                    raise InputError(       # types of the graph, where ONNX's names are hints
                        f"input '{name}' {node.type}: axis {axis} ('{dim.name}') is {size}, but "
                        f"'{dim.name}' is {bound[dim.name]} at {places[dim.name]}")
                if isinstance(dim, Sym):
                    places.setdefault(dim.name, f"axis {axis} of '{name}'")
        return specialise(self._graph, bound)

    def nodes(self) -> Mapping[str, ModelNode]:
        raise OptionError(f"graph '{self.name}' keeps no names of layers\n  They are known of "
                          "ONNX models; of a graph, say one precision for all, and skip none.")


def parse(text: str) -> Graph:
    """The graph that a text describes; types that it leaves out follow from the operands.

    Raises ParseError, pointing at the place.
    """
    from jitcl.ir.parser import parse_graph
    from jitcl.ops import OPS
    from jitcl.ops.builder import infer

    if not isinstance(text, str):
        raise ParseError(f"parse() takes the text of a graph, got {type(text).__name__}\n"
                         "  Of a file: jitcl.compile(path), or parse(path.read_text()).")
    return parse_graph(text, known_ops=OPS, infer=infer)


def open_source(model: Any, root: Path | None = None) -> Source:
    """A source for whatever `jitcl.compile` takes; ModelError where it is none.

    Digests of files are remembered under `root`.
    """
    if isinstance(model, Graph):
        from jitcl.ir.printer import print_graph

        constants: dict[str, np.ndarray] = {}
        text = print_graph(model, constants=constants)
        return GraphSource(model, model.name, digest(text.encode()))
    if isinstance(model, (str, os.PathLike)):
        return _open_path(Path(model), root)
    if isinstance(model, (bytes, bytearray, memoryview)):
        data = bytes(model)
        return OnnxSource(data, "model", digest(data))
    if type(model).__name__ == "ModelProto" and hasattr(model, "SerializeToString"):
        data = model.SerializeToString(deterministic=True)
        return OnnxSource(model, model.graph.name or "model", digest(data))
    raise ModelError(
        f"cannot compile a {type(model).__name__}: pass a path to an .onnx or .jitcl file, the "
        f"bytes of an ONNX model, an onnx.ModelProto, or a jitcl Graph"
    )


def _open_path(path: Path, root: Path | None) -> Source:
    try:
        if path.suffix != ".jitcl":
            return OnnxSource(path, path.stem, begun(path, root))
        data = read_regular(path)
    except (OSError, ValueError) as e:       # ValueError: no name that a file can have
        reason = getattr(e, "strerror", None) or e
        raise ModelError(f"cannot read model {str(path)!r}: {reason}") from e
    from jitcl.ir.parser import load_graph
    from jitcl.ir.printer import side_file
    from jitcl.ops import OPS
    from jitcl.ops.builder import infer

    side = side_file(path)
    try:
        extra = read_regular(side, MOST_BESIDE) if side.exists() else b""
        graph = load_graph(path, known_ops=OPS, infer=infer)
    except OSError as e:
        raise ModelError(f"cannot read '{e.filename}': {e.strerror or e}") from e
    return GraphSource(graph, path.stem, digest(data + extra))
