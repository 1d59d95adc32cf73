"""Gates of a convolution's input channels (squeeze-and-excite), which may scale its weights."""

from __future__ import annotations

from jitcl.ir.graph import Node
from jitcl.ir.sizes import has_size

MOST_OUTPUTS = 128             # channels: each of them pays for the gate that the input is spared
LEAST_INPUTS = 16


def gated(conv: Node) -> tuple[Node, Node] | None:
    """(x, gate) of a 1x1 convolution of a product, where its weights may take the gate instead.

        %1 = mul(%x : f32[N,C,H,W], %gate : f32[N,C,1,1])
        %2 = conv(%1, const f32[K,C,1,1])                        the sum over c of (gate * w) * x

    That spares writing and reading the product, for one multiplication more per weight and tile of
    pixels.
    """
    if conv.op != "conv" or conv.inputs[1].op != "const" or conv.inputs[0].op != "mul":
        return None
    product, w = conv.inputs[:2]
    k, c, *taps = w.type.dims
    plain = conv.attr("group") == 1 and not any(conv.attr("pads")) and all(t == 1 for t in taps)
    if not plain or has_size(product.type.shape) or product.type.rank not in (3, 4):
        return None
    if k > MOST_OUTPUTS or c < LEAST_INPUTS:
        return None
    for x, gate in (product.inputs, product.inputs[::-1]):
        channels = (*product.type.shape[:2], *(1 for _ in taps))
        if x.type.shape == product.type.shape and gate.type.shape == channels != x.type.shape:
            floats = x.type.dtype == gate.type.dtype == "f32" and "const" not in (x.op, gate.op)
            return (x, gate) if floats else None
    return None


__all__ = ["gated"]
