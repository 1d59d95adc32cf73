"""`jitcl.quantize`: a model with weights in few bits, as a file that loads again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitcl.compiling import packed, within
from jitcl.devices.base import Progress
from jitcl.errors import InputError, OptionError, UnsupportedError
from jitcl.passes.layers import check_layers, weight_bits
from jitcl.passes.options import Held, Options
from jitcl.passes.pack_weights import FEW_CHANNELS, SMALL
from jitcl.passes.packing import SMALLEST, Array, Packing, Rows, tolerated
from jitcl.runtime.arguments import shown
from jitcl.runtime.cache import kernel_cache
from jitcl.runtime.calls import Shapes
from jitcl.runtime.source import OnnxSource, Source, open_source

if TYPE_CHECKING:
    from jitcl.accuracy.auto import Judge


@dataclass(frozen=True)
class Quantised:
    """What was written: weights that were packed, by name, and bytes of the model. held: what a
    tolerance came to.
    """

    path: Path
    weights: tuple[str, ...]
    bytes_before: int
    bytes: int
    held: Held | None = None


def quantize(model: Any, output: str | Path, *, bits: int = 8, block: int = 64,
             symmetric: bool = True, skip: Sequence[str] = (), wide: Sequence[str] = (),
             calibrate: Any = None, cache_dir: str | Path | None = None,
             progress: Progress | None = None, tolerance: float | Judge | None = None,
             budget: float | None = None, shapes: Shapes | None = None) -> Quantised:
    """Write an ONNX model whose weights of MatMul, Gemm, Conv and look-ups take 4 or 8 bits, with a
    scale (f16) for each block of a sum: DequantizeLinear of opset 21, which other engines read.

    model: what `jitcl.compile` takes of ONNX. bits, block, symmetric, skip, wide: as of `memory=`
    there. calibrate: inputs that weights are rounded for (GPTQ): a dict, several, or a folder of
    .npz; None: each goes to the nearest code. tolerance, budget, shapes: what hurts more than that
    takes 8 bits or stays, as of `memory=` and `jitcl.compile`. See docs/quantisation.md.

    Raises OptionError, InputError, ModelError, UnsupportedError (no ONNX model, one that onnx can't
    bring to opset 21, or to be calibrated and no single graph).
    """
    packing = Packing.of({"bits": bits, "block": block, "symmetric": symmetric, "skip": skip,
                          "wide": wide})
    _, limit = tolerated({} if tolerance is None else {"tolerance": tolerance})
    if limit is None and (budget is not None or shapes is not None):
        raise OptionError("quantize: budget and shapes are of a tolerance")
    if not isinstance(output, (str, Path)):
        raise OptionError(f"output: got {shown(output)}, wanted the path of a file to write")
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise OptionError(f"cannot write '{path}': there is no folder '{path.parent}'")
    if isinstance(model, (str, Path)) and (
            Path(model).is_dir() or Path(model).suffix in (".gguf", ".jitcl")):
        raise UnsupportedError(
            f"quantize: '{model}' is no ONNX model\n  Language models take their weights' bits "
            "when they are loaded: jitcl.lm.load(.., memory={'bits': 4}).")
    source = open_source(model, kernel_cache(cache_dir).root)
    if not isinstance(source, OnnxSource):
        raise UnsupportedError("quantize: wanted an ONNX model, got a graph of jitcl's")
    from jitcl.frontends.onnx.packed import in_blocks, save, with_packed_weights

    proto = in_blocks(source.model)
    before = proto.ByteSize()
    source = open_source(proto)
    assert isinstance(source, OnnxSource)
    check_layers(f"model {source.name}", source.nodes(), Options("high", packing))
    parsed = source

    def made_with(packing: Packing) -> tuple[Any, list[str]]:
        def pack(op: str, own: int | None, rows: Array, dims: Sequence[int]) -> Rows | None:
            """The rule of `PackWeights`."""
            if (rows.size < SMALL or rows.shape[1] < SMALLEST
                    or (op == "Conv" and dims[1] < FEW_CHANNELS)):
                return None
            return replace(packing, bits=own or packing.bits).packed(rows)

        return with_packed_weights(parsed.model, pack, weight_bits(parsed.nodes(), packing))

    def written(packing: Packing) -> Source:
        return open_source(made_with(packing)[0])

    options = {"cache_dir": cache_dir, "progress": progress}
    if limit is not None:
        packing, _ = within(proto, options, packing, limit, calibrate, budget, shapes,
                            written=written)
    elif calibrate is not None:
        packing, _ = packed(proto, options, packing, calibrate, folded=False)
    made, names = made_with(packing)
    if not names and packing.held is not None:
        raise InputError(f"quantize: model {source.name} has no weights whose bits hold the "
                         f"tolerance of {packing.held.tolerance}\n  Give a larger tolerance, 8 "
                         "bits, or smaller blocks.")
    if not names:
        raise InputError(f"quantize: model {source.name} has no weights that would be packed\n  "
                         f"They are f32 or f16, of {SMALL} elements and sums of {SMALLEST} terms "
                         "at least, not skipped, and such that scales of f16 reach them.")
    save(made, path)
    return Quantised(path, tuple(names), before, made.ByteSize(), packing.held)


__all__ = ["Quantised", "quantize"]
