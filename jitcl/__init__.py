"""jitcl: a JIT compiler that writes OpenCL C and CPU kernels for neural networks.

    model = jitcl.compile("model.onnx", device="auto")
    result = model.run({"image": array})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitcl.errors import (
    BuildError,
    BusyError,
    CacheError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    InputError,
    JitclError,
    KernelFault,
    ModelError,
    OptionError,
    OutOfMemoryError,
    ParseError,
    ShapeError,
    TypeError_,
    UnsupportedError,
    VerifyError,
)

__version__ = "0.1.0"
__all__ = [
    "Bound", "BuildError", "BusyError", "CacheError", "ClosedError", "DeviceError",
    "DeviceLostError", "DeviceTensor", "InferenceSession", "InputError", "JitclError",
    "KernelFault", "Model",
    "ModelError", "OptionError", "OutOfMemoryError", "ParseError", "Pipeline", "Pool", "Run",
    "ShapeError", "TypeError_", "UnsupportedError", "VerifyError", "__version__", "check",
    "compile", "devices", "from_torch", "lm", "memory_stats", "parse", "profile", "quantize",
]

if TYPE_CHECKING:
    from jitcl import lm
    from jitcl.accuracy.checking import check
    from jitcl.compiling import compile
    from jitcl.devices.select import devices
    from jitcl.onnxruntime.session import InferenceSession
    from jitcl.profiling.profile import profile
    from jitcl.quantising import quantize
    from jitcl.runtime.bound import Bound
    from jitcl.runtime.memory_stats import memory_stats
    from jitcl.runtime.model import Model
    from jitcl.runtime.pipeline import Pipeline
    from jitcl.runtime.pool import Pool
    from jitcl.runtime.source import parse
    from jitcl.runtime.submitted import Run
    from jitcl.runtime.tensors import DeviceTensor
    from jitcl.torch import from_torch


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_HOMES = {
    "Bound": "runtime.bound", "DeviceTensor": "runtime.tensors",
    "InferenceSession": "onnxruntime.session", "Model": "runtime.model",
    "Pipeline": "runtime.pipeline", "Pool": "runtime.pool", "Run": "runtime.submitted",
    "check": "accuracy.checking",
    "compile": "compiling", "from_torch": "torch", "memory_stats": "runtime.memory_stats",
    "parse": "runtime.source",
    "profile": "profiling.profile", "quantize": "quantising",
}


def __getattr__(name: str) -> Any:
    """The API is imported when first used: `import jitcl` alone costs nothing."""
    if name in ("devices", "lm"):            # modules; `devices` is callable: see there
        from importlib import import_module
        return import_module(f"jitcl.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'jitcl' has no attribute '{name}'")
    from importlib import import_module
    if name == "from_torch":
        from jitcl.lm.extra import library
        library("torch", "jitcl.from_torch", "torch")
    return getattr(import_module(f"jitcl.{_HOMES[name]}"), name)
