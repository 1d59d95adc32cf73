"""Cases of ops on quantised tensors and of weights of few bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.contrib_cases import Array, case, f16, f32, i8, i32, i64, one, u8

# ---- on the numbers that integers stand for: within one quantum

A, B = u8(2, 30), u8(30)
_two = (one(0.02), one(7, np.uint8)), (one(0.03), one(9, np.uint8)), (one(0.05), one(3, np.uint8))
(AS, AZ), (BS, BZ), (CS, CZ) = _two
for _op in ("QLinearAdd", "QLinearMul"):
    case(_op.lower(), _op, A, AS, AZ, B, BS, BZ, CS, CZ, fed=(0, 3), atol=1)
    case(f"{_op.lower()}_i8", _op, i8(2, 30), AS, one(-3, np.int8), i8(2, 1), BS, one(5, np.int8),
         CS, one(1, np.int8), fed=(0, 3), atol=1)
case("qlinearadd_no_zero", "QLinearAdd", A, AS, None, B, BS, None, CS, fed=(0, 3), atol=1,
     judge=lambda a, s, b, t, u: [np.clip(np.rint((a * s + b * t) / u), 0, 255).astype(np.uint8)])
case("qlinearconcat", "QLinearConcat", CS, CZ, u8(2, 5), AS, AZ, u8(2, 7), CS, CZ, fed=(2, 5),
     atol=1, axis=1)
case("qlinearwhere", "QLinearWhere", np.array([[True], [False]]), A, AS, AZ, B, BS, BZ, CS, CZ,
     fed=(0, 1, 4), atol=1)
P = u8(2, 3, 8, 8)
case("qlinearsigmoid", "QLinearSigmoid", P, AS, AZ, one(1 / 256), one(0, np.uint8), atol=1)
case("qlinearleakyrelu", "QLinearLeakyRelu", P, AS, one(90, np.uint8), CS, CZ, atol=1, alpha=0.1)
case("qlinearaveragepool", "QLinearAveragePool", P, AS, AZ, CS, CZ, atol=1, kernel_shape=[3, 3],
     strides=[2, 2], pads=[1, 1, 1, 1])
case("qlinearaveragepool_counted", "QLinearAveragePool", P, AS, AZ, CS, CZ, atol=1,
     kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1)
case("qlinearaveragepool_last", "QLinearAveragePool", u8(2, 8, 8, 3), AS, AZ, CS, CZ, atol=1,
     kernel_shape=[2, 2], strides=[2, 2], channels_last=1)
case("qlinearglobalaveragepool", "QLinearGlobalAveragePool", P, AS, AZ, BS, BZ, atol=1)
case("qlinearglobalaveragepool_last", "QLinearGlobalAveragePool", u8(2, 8, 8, 3), AS, AZ, BS, BZ,
     atol=1, channels_last=1)
case("qlinearsoftmax", "QLinearSoftmax", u8(2, 3, 16), one(0.05), AZ, one(1 / 256),
     one(0, np.uint8), atol=1, axis=-1, opset=13)
case("qlinearsoftmax_flat", "QLinearSoftmax", u8(2, 3, 16), one(0.05), AZ, one(1 / 256),
     one(0, np.uint8), atol=1, axis=1, opset=12)
case("qlinearreducemean", "QLinearReduceMean", P, AS, AZ, CS, CZ, atol=1, axes=[2, 3], keepdims=0,
     judge=lambda x, s, z, t, w: [np.clip(np.rint(
         ((x.astype(np.float32) - z) * s).mean(axis=(2, 3)) / t) + w, 0, 255).astype(np.uint8)])

# ---- sums of products of integers

W, WS = i8(20, 6), f32(6, low=0.01, high=0.02)
case("matmulintegertofloat", "MatMulIntegerToFloat", u8(4, 20), W, one(0.02), WS,
     one(120, np.uint8), i8(6), f32(6), atol=1e-3)
case("matmulintegertofloat_plain", "MatMulIntegerToFloat", u8(2, 4, 20), W, one(0.02), one(0.01),
     atol=1e-3)
case("dynamicquantizematmul", "DynamicQuantizeMatMul", f32(4, 20), W, WS, i8(6), f32(6), atol=1e-3)
case("dynamicquantizematmul_plain", "DynamicQuantizeMatMul", f32(4, 20, low=0.5), W, one(0.01),
     atol=1e-3)
case("qgemm", "QGemm", u8(4, 20), one(0.02), one(120, np.uint8), np.ascontiguousarray(W.T), WS,
     np.zeros(6, np.int8), i32(*range(-300, 300, 100)), one(0.1), one(100, np.uint8), atol=1,
     transB=1)
case("qgemm_float", "QGemm", u8(4, 20), one(0.02), one(120, np.uint8), W, one(0.01),
     one(3, np.int8), None, alpha=0.5, atol=1e-3)
_conv: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
case("qlinearconv_last", "QLinearConv", u8(1, 6, 5, 4), AS, AZ, i8(8, 4, 3, 3),
     f32(8, low=0.01, high=0.02), np.zeros(8, np.int8), one(0.5), one(128, np.uint8),
     i32(*range(8)), atol=1, channels_last=1, **_conv)
case("matmulinteger16", "MatMulInteger16", np.random.default_rng(2).integers(
    -300, 300, (3, 4)).astype(np.int16), np.arange(-10, 10).reshape(4, 5).astype(np.int16), atol=0)
case("mulinteger", "MulInteger", u8(2, 5), one(7, np.uint8), u8(5), one(9, np.uint8), fed=(0, 2),
     atol=0, judge=lambda a, p, b, q: [(a.astype(np.int32) - p) * (b.astype(np.int32) - q)])
case("reducesuminteger", "ReduceSumInteger", i8(3, 5), atol=0, axes=[1], keepdims=1,
     judge=lambda x: [x.astype(np.int32).sum(axis=1, keepdims=True, dtype=np.int32)])
case("qattention", "QAttention", u8(2, 4, 8), i8(8, 24), f32(24), one(0.01), one(0.02), i32(4, 3),
     one(128, np.uint8), one(1, np.int8), num_heads=2, atol=1e-4)
case("qattention_columns", "QAttention", u8(1, 4, 8), i8(8, 24), f32(24), one(0.01),
     f32(24, low=0.01, high=0.02), None, one(128, np.uint8), np.zeros(24, np.int8), None,
     num_heads=2, unidirectional=1, atol=1e-4)

# ---- between integers and numbers

for _dtype in (np.uint8, np.int8, np.uint16, np.int16):
    _top = np.iinfo(_dtype).max
    case(f"quantizelinear_{np.dtype(_dtype).name}", "QuantizeLinear", f32(3, 8, low=-9, high=9),
         f32(3, low=0.05, high=0.1), np.array([1, 2, 3], _dtype), atol=0, axis=0)
    case(f"dequantizelinear_{np.dtype(_dtype).name}", "DequantizeLinear",
         np.array([[0, 1, _top]] * 2, _dtype), f32(2, low=0.05, high=0.1), np.array([1, 2], _dtype),
         axis=0, atol=1e-3)

# ---- weights of few bits


def nbits(n: int, k: int, block: int, bits: int, dtype: Any = np.float32) -> tuple[Array, Array]:
    blocks = -(-k // block)
    return u8(n, blocks, block * bits // 8), f32(n, blocks, low=0.01, high=0.1).astype(dtype)


for _bits in (2, 4, 8):
    for _k, _block in ((64, 32), (48, 32)):
        _w, _s = nbits(10, _k, _block, _bits)
        _row = -(-_s.shape[1] * _bits // 8)
        _attrs = {"K": _k, "N": 10, "bits": _bits, "block_size": _block}
        _x = f32(3, _k)
        case(f"matmulnbits_{_bits}_{_k}", "MatMulNBits", _x, _w, _s, atol=1e-3, **_attrs)
        case(f"matmulnbits_{_bits}_{_k}_zeros", "MatMulNBits", _x, _w, _s, u8(10, _row), atol=1e-3,
             **_attrs)
_w, _s = nbits(10, 64, 16, 4)
_zeros, _bias = f32(10, 4, low=0, high=15), f32(10)
_attrs = {"K": 64, "N": 10, "bits": 4, "block_size": 16}
case("matmulnbits_float_zeros", "MatMulNBits", f32(2, 3, 64), _w, _s, _zeros, None, _bias,
     atol=1e-3, **_attrs)
case("matmulnbits_order", "MatMulNBits", f32(3, 64), _w, _s, None,
     np.random.default_rng(3).permutation(np.arange(64, dtype=np.int32) // 16).astype(np.int32),
     atol=1e-3, **_attrs)
_w, _s = nbits(10, 64, 32, 4, np.float16)
case("matmulnbits_f16", "MatMulNBits", f16(3, 64), _w, _s, u8(10, 1), atol=3e-2, K=64, N=10, bits=4,
     block_size=32)
for _kind in (0, 1):
    case(f"matmulbnb4_{_kind}", "MatMulBnb4", f32(3, 64), u8(320), f32(40, low=0.1), K=64, N=10,
         block_size=16, quant_type=_kind, atol=1e-4)
for _bits in (2, 4, 8):
    case(f"gatherblockquantized_{_bits}", "GatherBlockQuantized", u8(6, 32 * _bits // 8),
         i64([0, 3, 5], [1, 1, -2]), f32(6, 2, low=0.1), fed=(1,), bits=_bits, block_size=16,
         gather_axis=0, quantize_axis=1, atol=1e-4)
    case(f"gatherblockquantized_{_bits}_zeros", "GatherBlockQuantized", u8(6, 32 * _bits // 8),
         i64(4, 2), f32(6, 2, low=0.1), u8(6, 2 * _bits // 8 or 1), fed=(1,), bits=_bits,
         block_size=16, gather_axis=0, quantize_axis=1, atol=1e-4)
