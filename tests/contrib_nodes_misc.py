"""Cases of embeddings, forms of ONNX's ops and small numerical ones."""

from __future__ import annotations

import numpy as np

from tests.contrib_cases import Array, case, f32, i32, i64, one, u8

IDS, SEGMENTS = i32([1, 5, 2], [0, 9, 3]), i32([0, 1, 1], [0, 0, 1])
WORD, POSITION, SEGMENT = f32(10, 8), f32(6, 8), f32(2, 8)
case("embed", "EmbedLayerNormalization", IDS, SEGMENTS, WORD, POSITION, SEGMENT, f32(8), f32(8),
     i32([1, 1, 0], [1, 1, 1]), fed=(0, 1, 7), outputs=(0, 1, 2), mask_index_type=1)
case("embed_places", "EmbedLayerNormalization", IDS, None, WORD, POSITION, None, f32(8), f32(8),
     None, i32([3, 1, 2], [0, 5, 4]), fed=(0, 8), outputs=(0, 1), epsilon=1e-3)
_tables = [u8(*shape) for shape in ((10, 8), (6, 8), (2, 8), (8,), (8,))]
case("qembed", "QEmbedLayerNormalization", IDS, SEGMENTS, *_tables, i32([1, 1, 0], [1, 1, 1]),
     *(one(0.01 + 0.005 * i) for i in range(5)), *(one(100 + i, np.uint8) for i in range(5)),
     fed=(0, 1, 7), outputs=(0, 1), atol=1e-4)


def _bias(table: Array, queries: Array, keys: Array) -> list[Array]:
    """Element by element, 8 buckets, both directions, as far as 20."""
    y = np.zeros((1, table.shape[1], int(queries), int(keys)), np.float32)
    for q, k in np.ndindex(int(queries), int(keys)):
        distance = k - q
        bucket = 4 if distance > 0 else 0
        near = abs(distance)
        wide = min(3, int(2 + np.log(max(near, 1) / 2) / np.log(20 / 2) * 2))
        y[0, :, q, k] = table[bucket + (near if near < 2 else wide)]
    return [y]


case("relativepositionbias", "RelativePositionBias", f32(8, 2), i64(9).reshape(()),
     i64(9).reshape(()), max_distance=20, is_bidirectional=1, judge=_bias)

# ---- forms of ONNX's ops

case("gathernd", "GatherND", f32(2, 3, 4), i64([0, 1], [1, 2]), fed=(0, 1))
case("trilu", "Trilu", f32(2, 4, 5), one(1, np.int64), upper=0)
case("trilu_default", "Trilu", f32(4, 5))
case("range", "Range", one(1.0), one(3.0), one(0.5), fed=())
case("expanddims", "ExpandDims", f32(2, 3), one(-1, np.int32))
case("pad", "Pad", f32(2, 3), i64(0, 1, 2, 0), one(0.5).reshape(1))
case("pad_reflect", "Pad", f32(3, 4), i64(1, 1, 0, 2), mode="reflect")
case("sampleop", "SampleOp", f32(2, 3))
for _mode in ("bilinear", "nearest", "bicubic"):
    case(f"gridsample_{_mode}", "GridSample", f32(1, 2, 4, 5), f32(1, 3, 3, 2), fed=(0, 1),
         mode=_mode, padding_mode="border", align_corners=1)
case("unfold", "UnfoldTensor", f32(2, 7, 3), dim=1, size=3, step=2)
case("unique", "Unique", np.float32([2, 1, 1, 3, 4, 3]), outputs=(0, 1, 2), fed=())
_boxes = np.float32([[0, 0, 1, 1], [0.2, 0.1, 0.7, 0.9], [-0.3, 0.5, 0.6, 1.4]])
for _mode in ("bilinear", "nearest"):
    case(f"cropandresize_{_mode}", "CropAndResize", f32(2, 3, 6, 5), _boxes, i32(0, 1, 1),
         i32(4, 3), fed=(0, 1, 2), mode=_mode, extrapolation_value=7.0)
case("cropandresize_one", "CropAndResize", f32(2, 3, 6, 5), _boxes, i32(0, 1, 1), i32(1, 1),
     fed=(0, 1, 2))

# ---- small numerical ops

for _metric in ("euclidean", "sqeuclidean"):
    case(f"cdist_{_metric}", "CDist", f32(4, 6), f32(3, 6), fed=(0, 1), metric=_metric)
case("inverse", "Inverse", f32(2, 3, 3) + 2 * np.eye(3, dtype=np.float32), atol=1e-4)
case("inverse_pivot", "Inverse", np.float32([[0, 2, 1], [1, 0, 0], [3, 0, 1]]), atol=1e-4)
case("rfft", "Rfft", f32(2, 8), signal_ndim=1, onesided=1, normalized=0,
     judge=lambda x: [np.stack([(y := np.fft.rfft(x)).real, y.imag], axis=-1).astype(np.float32)])
case("irfft", "Irfft", f32(2, 5, 2), signal_ndim=1, onesided=1, normalized=0,
     judge=lambda x: [np.fft.irfft(x[..., 0] + 1j * x[..., 1]).astype(np.float32)])
case("complexmul", "ComplexMul", f32(2, 3, 2), f32(2, 3, 2), fed=(0, 1), judge=lambda a, b: [
    np.stack([(y := (a[..., 0] + 1j * a[..., 1]) * (b[..., 0] + 1j * b[..., 1])).real, y.imag],
             axis=-1).astype(np.float32)])
case("isallfinite", "IsAllFinite", f32(2, 3), np.float32([1, np.inf]), fed=(0, 1), isnan_only=1,
     judge=lambda a, b: [np.array(True)])
for _size in (1, 2, 3):
    case(f"ngramrepeatblock_{_size}", "NGramRepeatBlock", i64([0, 1, 2, 0, 1, 2, 0],
         [3, 1, 1, 1, 1, 2, 2]), f32(2, 5), fed=(0, 1), ngram_size=_size)
case("torchembedding", "TorchEmbedding", f32(4, 3), i64([0, 3], [2, 2]), fed=(1,),
     judge=lambda w, i: [w[i]])
