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
    "DeviceLostError", "InferenceSession", "InputError", "JitclError", "KernelFault", "Model",
    "ModelError", "OptionError", "OutOfMemoryError", "ParseError", "Pool", "Run", "ShapeError",
    "TypeError_", "UnsupportedError", "VerifyError", "__version__", "check", "compile",
    "devices", "memory_stats", "parse",
]

if TYPE_CHECKING:
    from jitcl.accuracy.checking import check
    from jitcl.devices.select import devices
    from jitcl.onnxruntime.session import InferenceSession
    from jitcl.runtime.bound import Bound
    from jitcl.runtime.memory_stats import memory_stats
    from jitcl.runtime.model import Model, compile
    from jitcl.runtime.pool import Pool
    from jitcl.runtime.source import parse
    from jitcl.runtime.submitted import Run


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """The API is imported when first used: `import jitcl` alone costs nothing."""
    if name in ("compile", "Model"):
        from jitcl.runtime import model
        return getattr(model, name)
    if name == "Bound":
        from jitcl.runtime.bound import Bound
        return Bound
    if name == "InferenceSession":
        from jitcl.onnxruntime.session import InferenceSession
        return InferenceSession
    if name == "Pool":
        from jitcl.runtime.pool import Pool
        return Pool
    if name == "memory_stats":
        from jitcl.runtime.memory_stats import memory_stats
        return memory_stats
    if name == "Run":
        from jitcl.runtime.submitted import Run
        return Run
    if name == "check":
        from jitcl.accuracy.checking import check
        return check
    if name == "devices":
        import jitcl.devices
        return jitcl.devices                 # callable: see there
    if name == "parse":
        from jitcl.runtime.source import parse
        return parse
    raise AttributeError(f"module 'jitcl' has no attribute '{name}'")
