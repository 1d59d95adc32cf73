"""Templates: optimised implementations of groups, one folder each, tried in this order."""

from __future__ import annotations

from jitcl.templates.attention_cpu.template import AttentionCpu
from jitcl.templates.attention_opencl.template import AttentionOpenCl
from jitcl.templates.base import CpuHooks, OpenClHooks, Writes
from jitcl.templates.conv_cpu.template import ConvCpu
from jitcl.templates.conv_cpu.transpose import ConvTransposeCpu
from jitcl.templates.conv_integer_cpu.template import ConvIntegerCpu
from jitcl.templates.conv_opencl.template import ConvOpenCl
from jitcl.templates.depthwise_cpu.template import DepthwiseCpu
from jitcl.templates.depthwise_opencl.template import DepthwiseOpenCl
from jitcl.templates.gemm_cpu.template import GemmCpu
from jitcl.templates.gemm_integer_cpu.template import GemmIntegerCpu
from jitcl.templates.gemm_opencl.template import GemmOpenCl
from jitcl.templates.gemm_packed_cpu.template import GemmPackedCpu
from jitcl.templates.gemm_tensor_opencl.template import GemmTensorOpenCl
from jitcl.templates.gemm_tiled_opencl.template import GemmTiledOpenCl
from jitcl.templates.gemv_opencl.template import GemvOpenCl
from jitcl.templates.pool_cpu.template import PoolCpu
from jitcl.templates.pool_opencl.template import PoolOpenCl
from jitcl.templates.recurrent_cpu.template import RecurrentCpu
from jitcl.templates.winograd_cpu.template import WinogradCpu

CPU_TEMPLATES: tuple[Writes[CpuHooks], ...] = (
    AttentionCpu(), WinogradCpu(), ConvCpu(), DepthwiseCpu(), ConvTransposeCpu(), GemmPackedCpu(),
    GemmCpu(), PoolCpu(), RecurrentCpu(), ConvIntegerCpu(), GemmIntegerCpu())

# those whose kernels OpenCL devices that are CPUs run, too
THREAD_TEMPLATES: tuple[Writes[CpuHooks], ...] = tuple(t for t in CPU_TEMPLATES if t.name in (
    "attention_cpu", "winograd_cpu", "conv_cpu", "depthwise_cpu", "gemm_cpu", "pool_cpu"))

OPENCL_TEMPLATES: tuple[Writes[OpenClHooks], ...] = (
    AttentionOpenCl(), ConvOpenCl(), DepthwiseOpenCl(), GemmOpenCl(), GemmTensorOpenCl(),
    GemvOpenCl(), GemmTiledOpenCl(), PoolOpenCl())

__all__ = ["CPU_TEMPLATES", "OPENCL_TEMPLATES", "THREAD_TEMPLATES"]
