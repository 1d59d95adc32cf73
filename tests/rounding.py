"""How far results may be off, of the largest output, and why."""

from __future__ import annotations

UNIT = {"f32": 2.0 ** -24, "f16": 2.0 ** -11}           # of one rounding

# Templates against the references. f32: a sum of k terms in another order is off by about sqrt(k)
# roundings of its largest part sum; the longest here have 3,000 terms, and 47 roundings were the
# most that was seen (AVX-512). f16: kernels compute in f32 and round what they store, the
# references round after each op, and exp makes y roundings of one of y; 7.4 were the most seen.
TOLERANCE = {"f32": 128 * UNIT["f32"], "f16": 8 * UNIT["f16"]}


def of_model(name: str) -> float:
    """Of a real model's outputs against those of onnxruntime, which sums in another order too."""
    return _OF_MODELS.get(name, 2e-4)                   # 6e-5 was seen (yolox_nano)


_OF_MODELS = {
    # divides by the deviation of planes, 15 times in a row: 4e-4 was seen
    "fns_candy_stdops": 2e-3,
    # stores halves, 26 layers deep, then softmax: 3e-5 was seen
    "squeezenet1.0_fp16": 4 * UNIT["f16"],
    # onnxruntime rounds activations to 8 bits as well, and quantised sums in its own order
    "stories260K_kv_int4": 5e-2,
    "ultraface_qop_u8": 2e-2,
}
