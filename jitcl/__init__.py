"""jitcl: a JIT compiler that writes OpenCL C and CPU kernels for neural networks."""

__version__ = "0.1.0"
