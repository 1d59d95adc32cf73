"""A model's file without the elements of its large initialisers, which stay in the file.

    model.onnx    ir | opset | graph { node ... initializer { dims name raw_data ######## } }
    read          ir | opset | graph { node ... initializer { dims name external_data } }
                                              location = model.onnx, offset, length ----^

What is read is a ModelProto whose large initialisers are external (ONNX's own term) to the file
that they are in, so that a model of 500 MB takes no more memory than what is computed of it.
Protocol buffers' encoding: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from onnx import GraphProto, ModelProto, TensorProto

LARGE = 1 << 16                         # bytes of a tensor that is left in the file
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5        # wire types
GRAPH = ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER


class Malformed(Exception):
    """The bytes are no protocol buffer; protobuf's own parser says so better."""


def read(path: Path, file: BinaryIO) -> bytes:
    """The encoded ModelProto in an open file, its large initialisers as external data of `path`;
    all of the file where it can't be taken apart. Raises OSError.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        return b"".join(_model(file, size, path.name))
    except Malformed:
        file.seek(0)
        return file.read()


def _model(file: BinaryIO, end: int, name: str) -> Iterator[bytes]:
    for field, _start, stop, head in _fields(file, end):
        if field != GRAPH:
            yield head + _rest(file, stop)
            continue
        graph = b"".join(_graph(file, stop, name))
        yield _tag(GRAPH, BYTES) + _varint(len(graph)) + graph


def _graph(file: BinaryIO, end: int, name: str) -> Iterator[bytes]:
    for field, start, stop, head in _fields(file, end):
        if field != INITIALIZER or stop - start <= LARGE:
            yield head + _rest(file, stop)
            continue
        tensor = b"".join(_tensor(file, stop, name))
        yield _tag(INITIALIZER, BYTES) + _varint(len(tensor)) + tensor


def _tensor(file: BinaryIO, end: int, name: str) -> Iterator[bytes]:
    for field, start, stop, head in _fields(file, end):
        if field != RAW_DATA or stop - start <= LARGE:
            yield head + _rest(file, stop)
            continue
        stand_in = TensorProto(data_location=TensorProto.EXTERNAL)
        for key, value in (("location", name), ("offset", start), ("length", stop - start)):
            stand_in.external_data.add(key=key, value=str(value))
        yield stand_in.SerializeToString()
        file.seek(stop)


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int, int, bytes]]:
    """(number, where its value begins, where it ends, what stands before the value) of each field
    up to `end`; the file is at the value then, and must be at its end when the next is asked for.
    """
    while (begin := file.tell()) < end:
        tag = _number(file)
        field, wire = tag >> 3, tag & 7
        if wire == VARINT:
            size = 0
            _number(file)
        elif wire == BYTES:
            size = _number(file)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise Malformed
        start = file.tell()
        if start + size > end:
            raise Malformed
        file.seek(begin)
        yield field, start, start + size, file.read(start - begin)


def _rest(file: BinaryIO, stop: int) -> bytes:
    return file.read(stop - file.tell())


def _number(file: BinaryIO) -> int:
    """A varint: seven bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise Malformed
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise Malformed


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)
