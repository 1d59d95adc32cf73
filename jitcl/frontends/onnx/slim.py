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

from jitcl.errors import ModelError

MOST_FIELDS = 1 << 19                   # of a file: each takes up to 100 times its bytes
LARGE = 1 << 16                         # bytes of a tensor that is left in the file
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5        # wire types
GRAPH = ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER


class Malformed(Exception):
    """The bytes are no protocol buffer; protobuf's own parser says so better."""


def read(path: Path, file: BinaryIO) -> bytes:
    """The encoded ModelProto in an open file, its large initialisers as external data of `path`;
    all of the file where it can't be taken apart. Raises OSError; ModelError for too many parts.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        return b"".join(_Parts(file, path).model(size))
    except Malformed:
        file.seek(0)
        return file.read()


class _Parts:
    """What is read of one file, in pieces."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path, self.seen = file, path, 0

    def model(self, end: int) -> Iterator[bytes]:
        for field, _start, stop, head in self.fields(end):
            if field != GRAPH:
                yield head + _rest(self.file, stop)
                continue
            graph = b"".join(self.graph(stop))
            yield _tag(GRAPH, BYTES) + _varint(len(graph)) + graph

    def graph(self, end: int) -> Iterator[bytes]:
        for field, start, stop, head in self.fields(end):
            if field != INITIALIZER or stop - start <= LARGE:
                yield head + _rest(self.file, stop)
                continue
            tensor = b"".join(self.tensor(stop))
            yield _tag(INITIALIZER, BYTES) + _varint(len(tensor)) + tensor

    def tensor(self, end: int) -> Iterator[bytes]:
        for field, start, stop, head in self.fields(end):
            if field != RAW_DATA or stop - start <= LARGE:
                yield head + _rest(self.file, stop)
                continue
            stand_in = TensorProto(data_location=TensorProto.EXTERNAL)
            for key, value in (("location", self.path.name), ("offset", start),
                               ("length", stop - start)):
                stand_in.external_data.add(key=key, value=str(value))
            yield stand_in.SerializeToString()
            self.file.seek(stop)

    def fields(self, end: int) -> Iterator[tuple[int, int, int, bytes]]:
        """(number, where its value begins, where it ends, what stands before the value) of each
        field up to `end`; the file is at the value then, and must be at its end when the next is
        asked for.
        """
        file = self.file
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
            if start + size > end or not field:
                raise Malformed
            self.seen += 1
            if self.seen > MOST_FIELDS:
                raise ModelError(f"{self.path}: has more than {MOST_FIELDS} nodes and tensors; it "
                                 "is no model, or was written by a faulty exporter")
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
