"""Weights of an ONNX model in few bits, as opset 21 says it: DequantizeLinear in blocks.

    y = MatMul(x, w [k, n])  =>  scale = Cast(scales: f16 [n, blocks])
                                 rows = DequantizeLinear(codes: int4 [n, k], scale) {axis=1}
                                 y = MatMul(x, Transpose(rows))

Rows are the weights that one output sums over, in the order of that sum: of a convolution by
(kh, kw, channels), which a Reshape and a Transpose put back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from jitcl.errors import OptionError, UnsupportedError
from jitcl.frontends.onnx.inner import whole
from jitcl.frontends.onnx.model import OnnxModel, label

OPSET = 21                              # the first with 4 bits and blocks
LARGEST = 2_000_000_000                 # bytes of one protobuf message
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16}
Array = np.ndarray[Any, Any]


class Rows(Protocol):
    """codes u8 [n, blocks, block], scales f16 and zeros u8 [n, blocks, 1]; None: the middle."""

    @property
    def bits(self) -> int: ...
    @property
    def codes(self) -> Array: ...
    @property
    def scales(self) -> Array: ...
    @property
    def zeros(self) -> Array | None: ...


# (operator, bits, rows f32 [n, k], shape of the weights) -> packed, or None for what stays
Pack = Callable[[str, int | None, Array, Sequence[int]], Rows | None]


def in_blocks(model: OnnxModel) -> ModelProto:
    """The whole model, of an opset that knows blocks. Raises UnsupportedError."""
    proto = whole(model)
    if model.opsets.get("", OPSET) >= OPSET:
        return proto
    try:
        return version_converter.convert_version(proto, OPSET)
    except Exception as error:              # of C++, of any class
        raise UnsupportedError(
            f"{model.source}: onnx can't bring it from opset {model.opsets['']} to {OPSET}, the "
            f"first with blocks of 4 bits: {error}\n  Export it for opset {OPSET}.") from error


def with_packed_weights(model: OnnxModel, pack: Pack, said: Mapping[str, int]
                        ) -> tuple[ModelProto, list[str]]:
    """The model with what `pack` makes of weights of its MatMul, Gemm, Conv and Gather; names of
    those. said: bits of nodes' weights, by labels; 0: they stay. Those in bodies stay, too.
    """
    proto = whole(model)
    graph, stored = proto.graph, {t.name: t for t in proto.graph.initializer}
    fed = {v.name for v in graph.input}
    made: dict[tuple[str, str, int | None], str | None] = {}    # (weights, order, bits) -> decoded
    nodes: list[NodeProto] = []
    for node in graph.node:
        slot, order = _read(node)
        name, bits = node.input[slot] if order else "", said.get(label(node))
        if name in stored and name not in fed and stored[name].data_type in FLOATS and bits != 0:
            if (name, order, bits) not in made:
                made[name, order, bits] = _decoded(
                    graph, nodes, node.op_type, order, stored[name], pack, bits)
            node.input[slot] = made[name, order, bits] or name
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    packed = sorted({name for (name, *_), found in made.items() if found})
    read = {i for node in _all_nodes(graph) for i in node.input} | {v.name for v in graph.output}
    kept = [t for t in graph.initializer if t.name in read or t.name not in packed]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return proto, packed


def readers(model: OnnxModel, least: int) -> list[str]:
    """Labels of nodes that read stored weights of so many elements, which `with_packed_weights`
    may pack."""
    sizes = {t.name: math.prod(t.dims) for t in model.proto.graph.initializer}
    return [label(node) for node in model.proto.graph.node for slot, order in [_read(node)]
            if order and sizes.get(node.input[slot], 0) >= least]


def save(proto: ModelProto, path: Path) -> None:
    """Beside it first, then renamed; elements in a file of their own where one is too small.
    Raises OptionError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if proto.ByteSize() > LARGEST:
            onnx.save_model(proto, path, save_as_external_data=True, location=f"{path.name}.data")
            return
        beside.write_bytes(proto.SerializeToString())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OptionError(f"cannot write to '{path}': {error.strerror or error}") from error


def _read(node: NodeProto) -> tuple[int, str]:
    """(which operand may be weights, how rows lie in it); "" for none."""
    attrs = {a.name: a.i for a in node.attribute}
    if node.domain not in ("", "ai.onnx") or len(node.input) < 2:
        return 0, ""
    if node.op_type == "Gemm":
        return 1, "rows" if attrs.get("transB") else "columns"
    if node.op_type == "Gather":
        return 0, "rows" if attrs.get("axis", 0) == 0 else ""
    return 1, {"MatMul": "columns", "Conv": "window"}.get(node.op_type, "")


def _decoded(graph: onnx.GraphProto, nodes: list[NodeProto], op: str, order: str,
             weight: TensorProto, pack: Pack, bits: int | None) -> str | None:
    """The name of the weights as they are decoded; None where they stay."""
    w, dims = numpy_helper.to_array(weight), tuple(weight.dims)
    if len(dims) != 2 and order != "window":
        return None                             # several matrices in one
    rows = w.T if order == "columns" else (
        np.moveaxis(w, 1, -1).reshape(len(w), -1) if order == "window" else w)
    n, k = rows.shape
    found = pack(op, bits, np.ascontiguousarray(rows, np.float32), dims)
    if found is None:
        return None
    stem = f"{weight.name}_{order}{bits or ''}"
    blocks, block = found.codes.shape[1:]
    graph.initializer.extend([
        _whole_numbers(f"{stem}_codes", found.codes.reshape(n, -1)[:, :k], found),
        numpy_helper.from_array(np.ascontiguousarray(found.scales[..., 0]), f"{stem}_scales")])
    given = [f"{stem}_codes", f"{stem}_scales"]
    if weight.data_type != TensorProto.FLOAT16:
        given[1] = f"{stem}_scale"
        nodes.append(helper.make_node("Cast", [f"{stem}_scales"], [given[1]], given[1],
                                      to=weight.data_type))
    if found.zeros is not None:
        graph.initializer.append(_whole_numbers(f"{stem}_zeros", found.zeros[..., 0], found))
        given.append(f"{stem}_zeros")
    steps: list[tuple[str, dict[str, Any]]] = [
        ("DequantizeLinear", {"axis": 1, "block_size": block})]
    if order == "columns":
        steps.append(("Transpose", {"perm": (1, 0)}))
    elif order == "window":
        space = len(dims) - 2
        graph.initializer.append(numpy_helper.from_array(
            np.array([n, *dims[2:], dims[1]], np.int64), f"{stem}_shape"))
        steps += [("Reshape", {}), ("Transpose", {"perm": (0, space + 1, *range(1, space + 1))})]
    for step, attrs in steps:
        if step == "Reshape":
            given.append(f"{stem}_shape")
        result = f"{stem}_{step}"
        nodes.append(helper.make_node(step, given, [result], result, **attrs))
        given = [result]
    return given[0]


def _whole_numbers(name: str, values: Array, rows: Rows) -> TensorProto:
    """Codes or zero points: with a sign where the middle is 0."""
    signed, dims = rows.zeros is None, values.shape
    flat: Array = np.ascontiguousarray(values, np.uint8).reshape(-1)
    if signed:
        flat = flat ^ np.uint8(1 << (rows.bits - 1))
    if rows.bits == 4:
        flat = np.pad(flat, (0, flat.size % 2))
        flat = (flat[::2] & 15) | flat[1::2] << 4
    kind = {(4, True): TensorProto.INT4, (4, False): TensorProto.UINT4,
            (8, True): TensorProto.INT8, (8, False): TensorProto.UINT8}[rows.bits, signed]
    return helper.make_tensor(name, kind, dims, flat.tobytes(), raw=True)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for a in node.attribute:
            for inner in (a.g, *a.graphs):
                yield from _all_nodes(inner)


__all__ = ["in_blocks", "readers", "save", "with_packed_weights"]
