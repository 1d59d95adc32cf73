"""`load`: from a file, bytes or ModelProto to a checked `OnnxModel`, or a ModelError that says how
to fix it. What is checked: `checking`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from jitcl import dtypes
from jitcl.errors import ModelError, NotOneGraph
from jitcl.forking import cached_property
from jitcl.frontends.onnx import checking, external, functions, integrity, tensors
from jitcl.frontends.onnx.labels import labels_apart
from jitcl.frontends.onnx.scope import Opaque
from jitcl.frontends.values import ValueType
from jitcl.ir.graph import Node, const
from jitcl.ir.types import Dim, Sym, TensorType


@dataclass(eq=False)
class OnnxModel:
    """A checked model. `source` is what messages call it; `base` the folder of its external
    data."""

    proto: ModelProto                    # without the elements of what `_constants` begins with
    source: str
    base: external.Folder | None
    _constants: dict[str, Node] = field(default_factory=dict)

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Operator set version of each domain ("" is ONNX's own)."""
        return {functions.domain_of(o): o.version for o in self.proto.opset_import}

    @cached_property
    def inputs(self) -> dict[str, TensorType]:
        """What must be fed: names and types; unknown dimensions are `Sym`s."""
        return {
            v.name: self._type(v) for v in self.proto.graph.input if v.name not in self.initialisers
        }

    @cached_property
    def defaults(self) -> dict[str, TensorType]:
        """Inputs that may be fed: they have an initialiser, which holds where they are not."""
        return {
            v.name: self._type(v) for v in self.proto.graph.input if v.name in self.initialisers}

    @cached_property
    def outputs(self) -> dict[str, TensorType | None]:
        """What the model gives; None where the file does not say the type."""
        return {
            v.name: self._type(v)
            if v.HasField("type")
            and v.type.HasField("tensor_type")
            and v.type.tensor_type.HasField("shape")
            else None
            for v in self.proto.graph.output
        }

    @cached_property
    def initialisers(self) -> dict[str, Any]:
        """The protos of stored constants by name, dense and sparse."""
        graph = self.proto.graph
        return {
            **{t.name: t for t in graph.initializer},
            **{t.values.name: t for t in graph.sparse_initializer}}

    @cached_property
    def value_types(self) -> tuple[dict[str, ValueType], dict[str, ValueType]]:
        """Inputs (those with an initialiser last) and outputs of any kind, by name."""
        graph = self.proto.graph
        inputs = {v.name: v for v in graph.input}
        order = sorted(inputs, key=lambda n: n in self.initialisers)
        return ({n: value_type(inputs[n].type, n) for n in order},
                {v.name: value_type(v.type, v.name) for v in graph.output})

    @cached_property
    def external_files(self) -> tuple[Path, ...]:
        """Files beside the model that hold elements of its tensors."""
        found = {
            external.location(t): None
            for t in self.initialisers.values()
            if isinstance(t, onnx.TensorProto) and external.is_external(t)
        }
        folder = Path() if self.base is None else self.base.path
        return tuple(folder / f for f in found)

    def holds(self, name: str) -> bool:
        """Whether an initialiser was made a constant, whose proto may have no elements any more."""
        node = self._constants.get(name)
        return node is not None and node.op == "const"

    def constant(self, name: str) -> Node:
        """The constant node of an initialiser; made once and shared by all specialisations."""
        node = self._constants.get(name)
        if node is None:
            node = self._constants[name] = constant(
                self.initialisers[name], self.base, f"initialiser '{name}'")
        return node

    def _type(self, value: onnx.ValueInfoProto) -> TensorType:
        """The declared type of an input or output; UnsupportedError for sequences and odd
        elements."""
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "no type"
            raise NotOneGraph(
                f"{self.source}: '{value.name}' is a {kind.replace('_type', '')}; "
                f"jitcl takes and gives tensors"
            )
        tensor = value.type.tensor_type
        dtype = tensors.dtype_of(tensor.elem_type)
        if dtype is None:
            raise NotOneGraph(
                f"{self.source}: '{value.name}' has elements of type "
                f"{tensors.dtype_name(tensor.elem_type)}; jitcl takes floats of 4 to 64 "
                f"bits, integers of 2 to 64 bits and bool"
            )
        if not tensor.HasField("shape"):
            raise NotOneGraph(
                f"{self.source}: '{value.name}' has no rank in the file\n  Give it one "
                f"with onnx.shape_inference or in the export."
            )
        return TensorType(
            dtype, tuple(_dim(d, f"{value.name}.{i}") for i, d in enumerate(tensor.shape.dim)))


def constant(proto: Any, base: external.Folder | None, what: str) -> Node:
    """The constant node of a TensorProto or SparseTensorProto."""
    if isinstance(proto, onnx.TensorProto):
        return tensors.to_node(proto, base, what)
    return const(tensors.to_dense(proto, base, what))


def unreadable(proto: Any) -> Opaque | None:
    """What stands for a stored constant that no kernel can read (strings); None for others."""
    code = proto.data_type if isinstance(proto, onnx.TensorProto) else proto.values.data_type
    if tensors.dtype_of(code) is not None:
        return None
    what = tensors.dtype_name(code)
    text = "strings" if what == "string" else f"elements of type {what}"
    return Opaque(text, (what, tuple(proto.dims)))


def value_type(type: onnx.TypeProto, name: str) -> ValueType:
    """A declared type of any kind."""
    kind = type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return ValueType(kind.split("_")[0],
                         of=value_type(getattr(type, kind).elem_type, f"?{name}"))
    if kind == "map_type":
        key = type.map_type.key_type
        return ValueType("map", tensors.dtype_of(key) or tensors.dtype_name(key),
                         of=value_type(type.map_type.value_type, f"?{name}"))
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return ValueType("unknown")
    tensor = getattr(type, kind)
    dtype = tensors.dtype_of(tensor.elem_type) or tensors.dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return ValueType("tensor", dtype, None)
    return ValueType("tensor", dtype, tuple(
        _dim(d, f"{name}.{i}") for i, d in enumerate(tensor.shape.dim)))


def _dim(dim: Any, name: str) -> Dim:
    """An int, or a symbol: the file's name for it, or one made of the input's name and the axis."""
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0:
        return int(dim.dim_value)
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value == 0:
        return Sym(name)  # exporters write 0 for "unknown"
    return Sym(dim.dim_param or name)


def load(source: str | Path | bytes | ModelProto) -> OnnxModel:
    """Read and check a model. ModelError: unreadable, not ONNX, invalid, a cycle, too old or too
    new."""
    base: external.Folder | None = None
    file: external.File | None = None
    if isinstance(source, ModelProto):
        proto, name = source, "the given ModelProto"
    else:
        data, name, base, file = _read(source)
        proto = _parse(data, name)
        del data                             # given bytes are as large as the weights are
    if not proto.HasField("graph"):
        raise ModelError(f"{name}: holds no graph; it is not an ONNX model, or only a part of one")
    integrity.check(proto, name)
    checking.check_opsets(proto, name)
    model = OnnxModel(labels_apart(_sorted(proto, name)), name, base)
    for name_of, tensor in model.initialisers.items():
        if isinstance(tensor, onnx.TensorProto) and external.is_external(tensor):
            external.checked_path(tensor, base, f"{name}: initialiser '{name_of}'")
    checking.check(model.proto, name)
    return model if isinstance(source, ModelProto) else _apart(model, file)


def _apart(model: OnnxModel, file: external.File | None) -> OnnxModel:
    """The model with its large initialisers as constants, and out of its proto, which would hold
    them a second time. `file`: where those are that have become external on reading (slim).

    The proto is changed: it must be nobody else's. What cleared fields took is freed with it.
    """
    constants: dict[str, Node] = {}
    for t in model.proto.graph.initializer:
        dtype, what = tensors.dtype_of(t.data_type), f"initialiser '{t.name}'"
        whole = dtype is not None and dtypes.bits(dtype) >= 8
        left = file is not None and external.location(t) == file.path.name
        large = t.HasField("raw_data") and t.ByteSize() > checking.SLOW_CHECK_BYTES
        if whole and (left or large):
            with suppress(ModelError):       # said where it is read, if it is
                constants[t.name] = tensors.to_node(t, model.base, what, file if left else None)
        if left:
            _put_back(t, file, what, elements=t.name not in constants)
        elif t.name in constants:
            t.ClearField("raw_data")
    if not constants:
        return model
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    return OnnxModel(proto, model.source, model.base, constants)


def _put_back(tensor: onnx.TensorProto, file: external.File | None, what: str,
              elements: bool) -> None:
    """Undo what reading the file has done to a large tensor; with its `elements`, or without."""
    if elements:
        count = next(int(e.value) for e in tensor.external_data if e.key == "length")
        tensor.raw_data = external.read(tensor, count, None, what, file).tobytes()
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _read(
    source: str | Path | bytes
) -> tuple[bytes, str, external.Folder | None, external.File | None]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), "the given bytes", None, None
    path = Path(source)
    try:
        file = external.File(path, open=True)
        return file.protocol_buffer(), str(path), external.Folder.of(path), file
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror or error}") from error


def _parse(data: bytes, name: str) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{name}: is not an ONNX model, or was cut off ({len(data)} bytes)\n"
            f"  Fetch or export the file again; a git-lfs pointer is not the model."
        ) from error
    if proto.ir_version < 3 and proto.ir_version and not proto.opset_import:
        proto.opset_import.append(onnx.helper.make_opsetid("", 1))  # there was only one then
    if proto.ir_version < 1 or not proto.opset_import:
        raise ModelError(
            f"{name}: is not an ONNX model: it has no IR version or no opset\n"
            f"  jitcl reads ONNX files (.onnx) and its own text (.jitcl)."
        )
    return proto


def _sorted(proto: ModelProto, name: str) -> ModelProto:
    """The model with its nodes in an order that computes operands first; ModelError for a cycle."""
    nodes = proto.graph.node
    maker = {out: i for i, node in enumerate(nodes) for out in node.output if out}
    needs = [sorted({maker[v] for v in reads(node) if v in maker}) for node in nodes]
    if all(j < i for i, js in enumerate(needs) for j in js):
        return proto
    try:
        order = [*TopologicalSorter(dict(enumerate(needs))).static_order()]
    except CycleError as error:
        cycle = " -> ".join(f"'{label(nodes[i])}' ({nodes[i].op_type})" for i in error.args[1])
        raise ModelError(
            f"{name}: its nodes form a cycle: {cycle}\n"
            f"  A model must be acyclic; use Loop or Scan for recurrence."
        ) from None
    result = ModelProto()
    result.CopyFrom(proto)
    del result.graph.node[:]
    result.graph.node.extend(nodes[i] for i in order)
    return result


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names of the values that a node needs, those that its subgraphs capture included."""
    yield from (i for i in node.input if i)
    if node.op_type == "Gradient":           # of the value that an attribute names
        yield from (a.s.decode() for a in node.attribute if a.name == "y")
    for a in node.attribute:
        for graph in [a.g] if a.HasField("g") else a.graphs:
            own = functions.own_names(graph)
            yield from (v for n in graph.node for v in reads(n) if v not in own)
            yield from (v.name for v in graph.output if v.name not in own)


def label(node: onnx.NodeProto) -> str:
    """What people call a node: its name, or that of its first output."""
    return node.name or next((o for o in node.output if o), node.op_type)
