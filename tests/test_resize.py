"""Resize and Upsample: sizes, coordinates and nearest elements are onnxruntime's in every mode, to
the last bit of float32."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import jitcl
from jitcl.errors import ModelError
from jitcl.frontends.onnx import import_model, load
from jitcl.ir.graph import Graph
from jitcl.ops.builder import evaluate
from jitcl.ops.resize import COORDINATES
from jitcl.ops.resize_axes import Axis, affine_step, nearest_table
from tests.conformance import runner
from tests.devices import present
from tests.one_node import Array, Feeds, by_onnxruntime, by_reference, fed, one_node

NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.1, 1 / 3, 0.35, 0.5, 0.6, 0.7, 1.15, 4 / 3, 1.7, 2, 2.3, 8 / 3)


def resize(x: Array, scales: Any = None, sizes: Any = None, roi: Any = None, opset: int = 22,
           op: str = "Resize", **attrs: Any) -> tuple[Any, Feeds]:
    """A model, and what it is made of."""
    feeds: Feeds = {"x": x}
    if opset >= 11:
        absent = None if opset >= 13 else np.zeros(0, np.float32)
        feeds["roi"] = absent if roi is None else np.array(roi, np.float32)
    if scales is not None:
        feeds["scales"] = np.array(scales, np.float32)
    elif sizes is not None:
        feeds["scales"], feeds["sizes"] = None, np.array(sizes, np.int64)
    model = one_node(op, feeds, opset=opset, result=TensorProto.FLOAT,
                     constants=tuple(n for n, a in feeds.items() if a is not None and n != "x"),
                     **attrs)
    return model, feeds


def imported(model: Any, feeds: Feeds) -> tuple[Graph, Array]:
    given = fed(model, feeds)
    graph = import_model(load(model), {n: a.shape for n, a in given.items()})
    memo = {n: given[str(n.attr("name"))] for n in graph.inputs}
    return graph, evaluate(graph.outputs[0][1], memo)


def same(model: Any, feeds: Feeds, want: Array) -> None:
    _, got = imported(model, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size, scale, want", [
    (10, 2.3, 23), (10, 0.7, 7), (20, 1.15, 23), (80, 0.35, 28), (7, 1 / 7, 1), (13, 2.0, 26),
    (3, 1.1, 3), (1000, 0.123, 123), (30, 1.1, 33)])
@pytest.mark.parametrize("op, opset", [("Upsample", 9), ("Resize", 10), ("Resize", 11),
                                       ("Resize", 22)])
def test_sizes_are_computed_in_float32(op: str, opset: int, size: int, scale: float,
                                       want: int) -> None:
    model, feeds = resize(np.zeros((1, size), np.float32), [1, scale], op=op, opset=opset)
    assert imported(model, feeds)[1].shape == (1, want)
    if op == "Resize" or scale >= 1:                # onnxruntime's Upsample only enlarges
        assert by_onnxruntime(model, feeds)[0].shape == (1, want)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_coordinates_are_those_of_onnxruntime(mode: str, coordinates: str) -> None:
    rng = np.random.default_rng(17)
    crops = coordinates == "tf_crop_and_resize"
    for nearest in NEAREST if mode == "nearest" else ("floor",):
        for scale in rng.choice(SCALES, 4):
            n = [int(v) for v in rng.integers(11, 48, 2)]
            x = rng.standard_normal((1, 1, *n)).astype(np.float32)
            roi = [0, 0, 0.1, 0.2, 1, 1, 0.9, 1.3] if crops else None
            attrs = {"mode": mode, "nearest_mode": nearest, "extrapolation_value": 3.5,
                     "coordinate_transformation_mode": coordinates}
            sizes = [1, 1, *(int(v) for v in rng.integers(1, 60, 2))]
            if crops and set(n) & set(sizes[2:]):
                continue                            # see test_crops_of_the_same_size
            for how in ({"scales": [1, 1, scale, scale]}, {"sizes": sizes}):
                model, feeds = resize(x, **how, roi=roi, **attrs)
                same(model, feeds, by_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-1, -2]])
def test_the_aspect_ratio_is_kept_in_float32(policy: str, axes: list[int]) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        n, sizes = rng.integers(3, 60, 2), rng.integers(1, 80, 2)
        x = rng.standard_normal((1, 2, *n)).astype(np.float32)
        attrs: Any = {"sizes": sizes, "keep_aspect_ratio_policy": policy}
        known = by_onnxruntime(*resize(x, **attrs, axes=[a % 4 for a in axes]))[0]
        same(*resize(x, **attrs, axes=axes), known)         # onnxruntime forgets it where axes < 0


@pytest.mark.parametrize("mode, outside, antialias", [
    ("linear", 0, 1), ("linear", 1, 1), ("cubic", 0, 0), ("cubic", 1, 0), ("cubic", 0, 1),
    ("cubic", 1, 1)])
def test_borders(mode: str, outside: int, antialias: int) -> None:
    x = np.random.default_rng(1).standard_normal((1, 1, 10, 8)).astype(np.float32)
    model, feeds = resize(x, [1, 1, 0.4, 1.7], mode=mode, exclude_outside=outside,
                          antialias=antialias, cubic_coeff_a=-0.5)
    same(model, feeds, by_onnxruntime(model, feeds)[0])


def test_what_lies_outside_may_be_left_out_of_linear_too() -> None:
    """Which onnxruntime refuses."""
    x = np.random.default_rng(1).standard_normal((1, 1, 10, 8)).astype(np.float32)
    model, feeds = resize(x, [1, 1, 0.5, 1.5], mode="linear", exclude_outside=1)
    same(model, feeds, by_reference(model, feeds)[0])


@pytest.mark.parametrize("old, scale", [(12, 1.7), (12, 0.65), (7, 2.9), (40, 0.33)])
def test_corners_are_aligned_where_the_size_is_no_whole_number(old: int, scale: float) -> None:
    """The last sample is the last element, as torch and onnxruntime have it: the length of the
    output is a whole number."""
    x = np.random.default_rng(old).standard_normal((1, old)).astype(np.float32)
    model, feeds = resize(x, [1, scale], mode="linear",
                          coordinate_transformation_mode="align_corners")
    new = int(np.float32(old) * np.float32(scale))
    want = np.interp(np.arange(new) * (old - 1) / (new - 1), np.arange(old), x[0])
    for device in present():
        got = jitcl.compile(model, device=device).run({"x": x})["y0"]
        np.testing.assert_allclose(got[0], want, atol=2e-6)
        assert got[0, -1] == pytest.approx(x[0, -1], abs=1e-6)


@pytest.mark.slow
@pytest.mark.sampled(slow=2)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_expectation_of_aligned_corners_takes_a_fraction_for_the_length(mode: str) -> None:
    """The proof for the excuse in conformance.py: its last sample lies inside of the input."""
    case = runner().cases("node")[f"test_resize_downsample_scales_{mode}_align_corners"]
    (((x, scales), (want,)),) = case.data_sets
    last = x[0, 0, 0 if want.shape[2] == 1 else -1, -1]
    assert any(v % 1 for v in np.multiply(x.shape, scales)) and want[0, 0, -1, -1] < last - 0.5
    (ort,) = by_onnxruntime(case.model, {"X": x, "scales": scales})
    assert ort[0, 0, -1, -1] == pytest.approx(last, abs=1e-5)


def test_crops_of_the_same_size_are_cropped() -> None:
    """Where onnxruntime takes a scale of 1 for nothing to do."""
    x = np.random.default_rng(2).standard_normal((1, 9)).astype(np.float32)
    model, feeds = resize(x, sizes=[1, 9], roi=[0, 0.25, 1, 0.75], mode="linear",
                          coordinate_transformation_mode="tf_crop_and_resize")
    same(model, feeds, np.interp(np.arange(9) / 2 + 2, np.arange(9), x[0])[None].astype("f4"))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("op, opset", [("Upsample", 9), ("Resize", 10)])
def test_forms_before_opset_11(op: str, opset: int, mode: str) -> None:
    """Their text leaves open which element is the nearest; onnxruntime's Resize takes the next one
    where it shrinks."""
    rng = np.random.default_rng(3)
    for low, high in ((1, 4), (0.2, 1))[:1 if op == "Upsample" else 2]:
        for _ in range(10):
            x = rng.standard_normal((1, 1, *rng.integers(6, 40, 2))).astype(np.float32)
            scales = [1, 1, *rng.uniform(low, high, 2)]
            model, feeds = resize(x, scales, op=op, opset=opset, mode=mode)
            same(model, feeds, by_onnxruntime(model, feeds)[0])


def test_a_half_is_a_half_within_the_noise_of_float32() -> None:
    at = np.array([3.4999998, 3.5, 3.5000002, 3.49999, 3.50001], np.float32)
    assert nearest_table(at, 9, "round_prefer_floor").tolist() == [3, 3, 3, 3, 4]
    assert nearest_table(at, 9, "round_prefer_ceil").tolist() == [4, 4, 4, 3, 4]


def test_nearest_is_arithmetic() -> None:
    model, feeds = resize(np.ones((1, 3, 4, 4), np.float32), [1, 1, 2, 2], mode="nearest",
                          coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    graph, _ = imported(model, feeds)
    assert [n.op for n in graph.nodes] == ["input", "resize_nearest"]
    assert graph.outputs[0][1].attr("steps")[2:] == ((1, 0, 2), (1, 0, 2))


def test_scales_that_float32_rounds_stay_arithmetic() -> None:
    """2.3, 1/3: one step of a division describes the table."""
    for size, scale in itertools.product((10, 17, 64), (2.3, 1 / 3, 0.35, 1.15)):
        axis = Axis(size, int(np.float32(size) * np.float32(scale)), np.float32(scale))
        table = nearest_table(axis.coordinates("asymmetric"), size, "floor")
        step = affine_step(table, size, axis.scale)
        assert step is not None
        num, offset, den = step
        o = np.arange(axis.out)
        assert (np.clip((o * num + offset) // den, 0, size - 1) == table).all()


@pytest.mark.parametrize("wrong, text", [
    ({"mode": "bilinear"}, "attribute 'mode' is 'bilinear', wanted one of nearest, linear, cubic"),
    ({"coordinate_transformation_mode": "middle"},
     "attribute 'coordinate_transformation_mode' is 'middle', wanted one of half_pixel, half"),
    ({"nearest_mode": "round"},
     "attribute 'nearest_mode' is 'round', wanted one of round_prefer_floor"),
    ({"keep_aspect_ratio_policy": "keep"},
     "attribute 'keep_aspect_ratio_policy' is 'keep', wanted one of stretch, not_larger")])
def test_values_that_no_opset_allows(wrong: dict[str, Any], text: str) -> None:
    model, feeds = resize(np.ones((1, 6), np.float32), sizes=[1, 9], **wrong)
    with pytest.raises(ModelError, match=text):
        imported(model, feeds)
