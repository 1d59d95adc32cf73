"""onnxruntime's names over jitcl: a script changes one import.

    import jitcl.onnxruntime as ort
    session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": array})

What each option means here, and what is refused: docs/drop-in.md.
"""

from __future__ import annotations

from typing import Any

from jitcl import __version__
from jitcl.onnxruntime import capi
from jitcl.onnxruntime.described import ModelMetadata, NodeArg
from jitcl.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from jitcl.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from jitcl.onnxruntime.session import InferenceSession
from jitcl.onnxruntime.values import IOBinding, OrtValue

SessionIOBinding = IOBinding

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "ModelMetadata", "NodeArg", "OrtValue", "RunOptions", "SessionIOBinding", "SessionOptions",
    "__version__", "capi", "disable_telemetry_events", "enable_telemetry_events",
    "get_all_providers", "get_available_providers", "get_device", "get_version_string",
    "set_default_logger_severity", "set_default_logger_verbosity",
]


def get_version_string() -> str:
    """jitcl's version."""
    return __version__


def set_default_logger_severity(severity: int) -> None:
    """Nothing: jitcl's logger is `logging.getLogger("jitcl")`."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Nothing: JITCL_DEBUG says how much is told."""


def disable_telemetry_events() -> None:
    """Nothing: jitcl has no telemetry."""


def enable_telemetry_events() -> None:
    """Nothing: jitcl has no telemetry."""


def __getattr__(name: str) -> Any:
    raise AttributeError(f"jitcl.onnxruntime has no '{name}': it has {', '.join(__all__)}")
