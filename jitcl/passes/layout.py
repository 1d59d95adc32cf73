"""How tensors lie in memory, chosen over the whole graph: a conversion costs a kernel.

A layout is part of a node's type; ops infer row-major types, and every op reads any layout (the
loader maps the logical index). So a layout is set by making the node again with another type:

    Node.make(n.op, n.inputs, n.kwargs, type=n.type.with_(layout=...))

What is to be weighed, in bytes moved:
- a blocked layout (NCHW16c) makes a direct convolution's inner loop one contiguous vector load;
- the first and last layers pay for the change: inputs and outputs of the graph stay row-major,
  and so does what is read by ops that walk rows (matmul, softmax, reshape);
- rows of odd lengths begin anywhere, so that a GPU reads and writes them by elements: they are
  padded (rows4), which costs what is computed of the padding;
- pointwise groups don't care, so a layout spreads through them at no cost; elementwise nodes take
  the layout of their largest operand;
- a conversion reads and writes the tensor once, unless the producer's epilogue stores the new
  layout at once, which each kernel here can: then only strided access is lost.
Passes behind this one keep layouts: they make nodes from existing types, never by inference.
"""

from __future__ import annotations

from dataclasses import dataclass

from jitcl.ir.graph import Graph
from jitcl.ir.sizes import judged_by_hint
from jitcl.passes.base import Pass
from jitcl.passes.blocks import block_channels
from jitcl.passes.rows import pad_rows
from jitcl.target import Target


@dataclass(frozen=True)
class AssignLayouts(Pass):
    """Choose each node's layout; targets without kernels for these layouts keep row-major.

        %1 = conv(%x, %w) : f32[1,64,56,56]     =>     %1 = conv(%x, %w) : f32[1,64,56,56; NCHW16c]
        %1 = conv(%x, %w) : f32[1,64,13,13]     =>     %1 = conv(%x, %w) : f32[1,64,13,13; rows4]
    """

    target: Target
    half: bool = False          # some layers may be computed in half, by OpenCL's own templates

    def run(self, graph: Graph) -> Graph:
        cpu = self.target if self.target.kind == "cpu" else self.target.as_cpu
        if self.half and self.target.kind == "opencl":
            cpu = None
        if cpu is not None:
            with judged_by_hint():
                return block_channels(graph, cpu)
        gpu = self.target.kind == "opencl" and self.target.device_type != "cpu"
        return pad_rows(graph) if gpu and not self.target.stages_tiles else graph
