"""Where onnxruntime keeps its exceptions: `capi.onnxruntime_pybind11_state`."""

from jitcl.onnxruntime.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
