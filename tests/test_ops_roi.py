"""RoiAlign, MaxRoiPool and DeformConv beside onnxruntime and formulas written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitcl.errors import JitclError, ModelError, ShapeError
from jitcl.frontends.onnx import import_model, load
from tests import devices
from tests.one_node import by_jitcl, by_onnxruntime, by_reference, one_node

Array = np.ndarray[Any, Any]
DEVICES = tuple(d for d in devices.present() if d != "reference")
pytestmark = pytest.mark.in_turn


def f32(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def regions(rng: np.random.Generator, count: int, size: float) -> Array:
    """Boxes inside, across the border, far outside, reversed and empty."""
    low = rng.uniform(-size / 4, size, (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(0, size, (count, 2))], 1)
    boxes[:4] = [[0, 0, size, size], [-5 * size, 1, 7 * size, 3], [9, 8, 3, 2], [4, 4, 4, 4]]
    return boxes.astype(np.float32)


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize(("ratio", "mode", "device"), [
    *((0, "avg", device) for device in DEVICES), (2, "avg", "cpu"), (3, "max", "cpu"),
    *((0, "max", device) for device in DEVICES[:2])])
def test_roi_align(ratio: int, mode: str, device: str) -> None:
    """Adaptive grids too, of regions much larger than the picture."""
    rng = np.random.default_rng(ratio)
    for coordinates in ("half_pixel", "output_half_pixel"):
        feeds = {"x": f32(rng, 2, 3, 17, 23), "rois": regions(rng, 12, 20.0),
                 "images": rng.integers(0, 2, 12)}
        model = one_node("RoiAlign", feeds, opset=16, output_height=5, output_width=3,
                         sampling_ratio=ratio, spatial_scale=0.9, mode=mode,
                         coordinate_transformation_mode=coordinates)
        want = by_reference(model, feeds)[0]
        np.testing.assert_allclose(by_jitcl(model, feeds, device)[0], want, rtol=1e-4, atol=1e-4)


def test_the_mean_of_an_adaptive_grid_is_onnxruntimes() -> None:
    rng = np.random.default_rng(1)
    feeds = {"x": f32(rng, 1, 2, 50, 40), "rois": np.abs(regions(rng, 40, 36.0)),
             "images": np.zeros(40, np.int64)}
    model = one_node("RoiAlign", feeds, opset=16, output_height=7, output_width=7)
    np.testing.assert_allclose(by_jitcl(model, feeds)[0], by_onnxruntime(model, feeds)[0],
                               rtol=1e-4, atol=1e-4)


def test_roi_align_of_nothing() -> None:
    feeds = {"x": np.zeros((1, 2, 5, 5), np.float32), "rois": np.zeros((0, 4), np.float32),
             "images": np.zeros(0, np.int64)}
    model = one_node("RoiAlign", feeds, opset=16, output_height=7, output_width=7)
    assert by_jitcl(model, feeds)[0].shape == (0, 2, 7, 7)


@pytest.mark.parametrize("device", DEVICES)
def test_max_roi_pool(device: str) -> None:
    """Rounded corners, bins that share pixels, empty bins outside."""
    rng = np.random.default_rng(3)
    rois = np.concatenate([rng.integers(0, 2, (12, 1)), regions(rng, 12, 20.0)], 1)
    feeds = {"x": f32(rng, 2, 3, 13, 17), "rois": rois.astype(np.float32)}
    model = one_node("MaxRoiPool", feeds, opset=21, pooled_shape=[4, 3], spatial_scale=0.7)
    np.testing.assert_array_equal(by_jitcl(model, feeds, device)[0],
                                  by_onnxruntime(model, feeds)[0])


def convolution(rng: np.random.Generator, spatial: tuple[int, ...], kernel: tuple[int, ...], *,
                groups: int = 1, offset_groups: int = 1, mask: bool = True, bias: bool = True,
                **attrs: Any) -> tuple[Any, dict[str, Array | None]]:
    n, taps = len(spatial), int(np.prod(kernel))
    strides, pads = attrs.get("strides", [1] * n), attrs.get("pads", [0] * 2 * n)
    dilations = attrs.get("dilations", [1] * n)
    out = [(spatial[d] + pads[d] + pads[n + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d]
           + 1 for d in range(n)]
    feeds: dict[str, Array | None] = {
        "x": f32(rng, 2, 4, *spatial), "w": f32(rng, 6, 4 // groups, *kernel),
        "offset": f32(rng, 2, offset_groups * taps * n, *out) * 2,
        "b": f32(rng, 6) if bias else None,
        "mask": f32(rng, 2, offset_groups * taps, *out) if mask else None}
    return one_node("DeformConv", feeds, group=groups, offset_group=offset_groups, **attrs), feeds


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("groups", "offset_groups", "mask"), [(1, 1, False), (2, 4, True)])
def test_deform_conv(device: str, groups: int, offset_groups: int, mask: bool) -> None:
    rng = np.random.default_rng(groups)
    model, feeds = convolution(rng, (9, 8), (3, 2), groups=groups, offset_groups=offset_groups,
                               mask=mask, strides=[2, 1], pads=[1, 0, 1, 2], dilations=[1, 2])
    want = by_onnxruntime(model, feeds)[0]
    np.testing.assert_allclose(by_jitcl(model, feeds, device)[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("spatial", "kernel"), [((11,), (3,)), ((4, 5, 6), (2, 1, 3))])
def test_deform_conv_of_other_ranks_without_offsets_is_conv(spatial: tuple[int, ...],
                                                            kernel: tuple[int, ...]) -> None:
    model, feeds = convolution(np.random.default_rng(0), spatial, kernel, mask=False,
                               pads=[1] * 2 * len(spatial))
    feeds["offset"] = np.zeros_like(feeds["offset"])  # type: ignore[arg-type]
    plain = {k: feeds[k] for k in ("x", "w", "b")}
    conv = one_node("Conv", plain, pads=[1] * 2 * len(spatial))
    np.testing.assert_allclose(by_jitcl(model, feeds)[0], by_reference(conv, plain)[0],
                               rtol=1e-4, atol=1e-4)


def test_whole_offsets_move_pixels() -> None:
    """An offset of a whole pixel is a shifted picture."""
    rng = np.random.default_rng(0)
    model, feeds = convolution(rng, (6, 7), (1, 1), mask=False, bias=False)
    offset, x = feeds["offset"], feeds["x"]
    assert offset is not None and x is not None
    offset[:, 0], offset[:, 1] = 1.0, -2.0
    moved = np.zeros_like(x)
    moved[:, :, :-1, 2:] = x[:, :, 1:, :-2]
    want = np.einsum("nchw,mc->nmhw", moved, feeds["w"][:, :, 0, 0])  # type: ignore[index]
    np.testing.assert_allclose(by_jitcl(model, feeds)[0], want, rtol=1e-5, atol=1e-5)


X, ROIS = np.zeros((1, 2, 5, 5), np.float32), np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(("op", "feeds", "attrs", "error", "text"), [
    ("RoiAlign", {"x": X, "r": ROIS, "i": np.zeros(2, np.int64)}, {}, ShapeError,
     r"wanted x \[N, C, H, W\], rois \[R, 4\] and batch indices \[R\], got f32\[1,2,5,5\]"),
    ("RoiAlign", {"x": X, "r": ROIS, "i": np.zeros(3, np.int64)}, {"mode": "median"}, ModelError,
     "attribute 'mode' is 'median', wanted one of avg, max"),
    ("RoiAlign", {"x": X, "r": ROIS, "i": np.zeros(3, np.int64)},
     {"coordinate_transformation_mode": "none"}, ModelError,
     "is 'none', wanted one of half_pixel, output_half_pixel"),
    ("RoiAlign", {"x": X, "r": ROIS, "i": np.zeros(3, np.int64)}, {"output_width": 0}, ModelError,
     "attribute 'output_width' is 0, wanted 1 or more"),
    ("MaxRoiPool", {"x": X, "r": ROIS}, {"pooled_shape": [2, 2]}, ShapeError,
     r"wanted x \[N, C, H, W\] and rois \[R, 5\]"),
    ("DeformConv", {"x": X, "w": np.zeros((2, 2, 2, 2), np.float32),
                    "o": np.zeros((1, 4, 4, 4), np.float32)}, {}, ShapeError,
     r"want offset of shape \[1, 8, 4, 4\], got f32\[1,4,4,4\]"),
    ("DeformConv", {"x": X, "w": np.zeros((2, 3, 2, 2), np.float32),
                    "o": np.zeros((1, 8, 4, 4), np.float32)}, {}, ShapeError,
     r"2 channels of x f32\[1,2,5,5\] in 1 groups want w"),
])
def test_errors(op: str, feeds: dict[str, Array | None], attrs: dict[str, Any],
                error: type[JitclError], text: str) -> None:
    with pytest.raises(error, match=text):
        import_model(load(one_node(op, feeds, **attrs)), {})
