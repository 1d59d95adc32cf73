"""onnxruntime's exceptions, under the name by which scripts import them."""

from __future__ import annotations

from jitcl.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
    RuntimeException,
)

__all__ = ["Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile",
           "NotImplemented", "RuntimeException"]
