"""jitcl: a JIT compiler that writes OpenCL C and CPU kernels for neural networks.

    model = jitcl.compile("model.onnx", device="auto")
    result = model.run({"image": array})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitcl.errors import JitclError

__version__ = "0.1.0"
__all__ = ["JitclError", "Model", "__version__", "compile", "devices"]

if TYPE_CHECKING:
    from jitcl.devices.select import devices
    from jitcl.runtime.model import Model, compile


def __getattr__(name: str) -> Any:
    """The API is imported when first used: `import jitcl` alone costs nothing."""
    if name in ("compile", "Model"):
        from jitcl.runtime import model
        return getattr(model, name)
    if name == "devices":
        from jitcl.devices.select import devices
        return devices
    raise AttributeError(f"module 'jitcl' has no attribute '{name}'")
