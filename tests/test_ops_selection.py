"""NonMaxSuppression, Unique, Compress, TopK and Scatter beside onnxruntime and NumPy, on more
elements than ONNX's own tests have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitcl
from jitcl.errors import JitclError, ModelError, ShapeError, TypeError_
from jitcl.frontends.onnx import import_model, load
from tests import devices
from tests.one_node import by_jitcl, by_onnxruntime, by_reference, fed, one_node

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array | None]
DEVICES = tuple(d for d in devices.present() if d != "reference")
OTHERS = tuple(pytest.param(d, marks=pytest.mark.slow) for d in DEVICES[1:])


def assert_same(got: list[Array], want: list[Array]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


# ---- NonMaxSuppression


def boxes(images: int, classes: int, n: int, most: int | None = 20, overlap: float | None = 0.4,
          score: float | None = 0.3, seed: int = 0) -> Feeds:
    """Boxes of equal scores, too, and boxes whose corners are given in another order."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 100, (images, n, 2))
    corners = np.concatenate([low, low + rng.uniform(1, 30, (images, n, 2))], 2)
    corners[:, ::7] = corners[:, ::7, [2, 3, 0, 1]]
    scores = np.round(rng.uniform(0, 1, (images, classes, n)), 2)
    return {"boxes": corners.astype(np.float32), "scores": scores.astype(np.float32),
            "most": None if most is None else np.array([most], np.int64),
            "overlap": None if overlap is None else np.array([overlap], np.float32),
            "score": None if score is None else np.array([score], np.float32)}


def suppression(feeds: Feeds, **attrs: Any) -> Any:
    constants = tuple(n for n in ("most", "overlap", "score") if feeds.get(n) is not None)
    return one_node("NonMaxSuppression", feeds, opset=11, constants=constants, **attrs)


@pytest.mark.parametrize("device", [DEVICES[0], *OTHERS])
def test_a_thousand_boxes(device: str) -> None:
    feeds = boxes(2, 3, 1000)
    model = suppression(feeds)
    assert_same(by_jitcl(model, feeds, device), by_onnxruntime(model, feeds))


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize(("most", "overlap", "score"), [
    (500, 0.0, 0.0), (3, 1.0, None), (7, None, 0.99), (5, 0.5, 1.5)])
def test_limits(most: int, overlap: float | None, score: float | None) -> None:
    """As many as there are; no threshold; nothing above the threshold."""
    feeds = boxes(1, 2, 60, most, overlap, score)
    model = suppression(feeds)
    got = by_jitcl(model, feeds)
    assert_same(got, by_onnxruntime(model, feeds))
    assert got[0].shape[0] > 0 or score == 1.5


def test_boxes_by_their_centres() -> None:
    feeds = boxes(1, 2, 80)
    model = suppression(feeds, center_point_box=1)
    assert_same(by_jitcl(model, feeds), by_onnxruntime(model, feeds))


@pytest.mark.parametrize("feeds", [boxes(1, 2, 0), boxes(1, 2, 9, None), boxes(1, 2, 9, 0),
                                   boxes(0, 2, 9)])
def test_nothing_to_select(feeds: Feeds) -> None:
    assert_same(by_jitcl(suppression(feeds), feeds), [np.zeros((0, 3), np.int64)])


# ---- Unique and Compress


@pytest.mark.parametrize("device", [DEVICES[0], *OTHERS])
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique_numbers(device: str, ordered: int) -> None:
    feeds: Feeds = {"x": np.random.default_rng(ordered).integers(-90, 90, (30, 50))}
    model = one_node("Unique", feeds, outputs=4, opset=11, sorted=ordered)
    assert_same(by_jitcl(model, feeds, device), by_onnxruntime(model, feeds))


@pytest.mark.parametrize(("axis", "dtype"), [(0, np.float32), (-1, np.int8), (1, np.float64)])
def test_unique_slices(axis: int, dtype: Any) -> None:
    x = np.random.default_rng(1).integers(0, 2, (9, 3, 8)).astype(dtype)
    feeds: Feeds = {"x": x}
    model = one_node("Unique", feeds, outputs=4, opset=11, axis=axis)
    y, first, inverse, counts = by_jitcl(model, feeds)
    want = np.unique(x, True, True, True, axis=axis)
    assert_same([y, first, inverse, counts], [want[0], *(w.reshape(-1) for w in want[1:])])


def test_unique_of_nan_and_signed_zeros() -> None:
    feeds: Feeds = {"x": np.array([1, np.nan, 0.0, -0.0, np.nan, np.inf, -np.inf, 1], np.float32)}
    y, first, inverse, counts = by_jitcl(one_node("Unique", feeds, outputs=4), feeds)
    np.testing.assert_array_equal(y, [-np.inf, 0.0, 1, np.inf, np.nan])
    assert_same([first, inverse, counts], [np.array(v) for v in (
        [6, 2, 0, 5, 1], [2, 4, 1, 1, 4, 3, 0, 2], [1, 2, 2, 1, 2])])


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_unique_of_nothing(shape: tuple[int, ...]) -> None:
    feeds: Feeds = {"x": np.zeros(shape, np.int64)}
    got = by_jitcl(one_node("Unique", feeds, outputs=4), feeds)
    assert [v.size for v in got] == [0, 0, 0, 0]


@pytest.mark.parametrize(("shape", "axis", "length"), [
    ((7, 5), 0, 7), ((7, 5), -1, 3), ((7, 5), None, 30), ((400, 3), 0, 400), ((3, 0), 0, 3),
    ((4, 2), 0, 9)])
def test_compress(shape: tuple[int, ...], axis: int | None, length: int) -> None:
    """Nothing, some and all of it."""
    rng = np.random.default_rng(length)
    x = rng.standard_normal(shape).astype(np.float16)
    for share in (0.0, 0.4, 1.0):
        kept = rng.random(length) < share
        feeds: Feeds = {"x": x, "kept": kept}
        model = one_node("Compress", feeds, opset=11, **({} if axis is None else {"axis": axis}))
        extent = x.size if axis is None else shape[axis]
        assert_same(by_jitcl(model, feeds), [np.compress(kept[:extent], x, axis)])


# ---- TopK and Scatter


LONG_AXES = [((2, 5000), 1, 17, 1, np.float32), ((4300, 2), 0, 4300, 0, np.int32),
             ((1, 4096), -1, 1, 1, np.uint8), ((5000,), 0, 0, 1, np.float32)]


@pytest.mark.slow
@pytest.mark.sampled(slow=3)
@pytest.mark.parametrize(("shape", "axis", "k", "largest", "dtype"), LONG_AXES)
@pytest.mark.parametrize("device", DEVICES)
def test_top_k_of_long_axes(device: str, shape: tuple[int, ...], axis: int, k: int, largest: int,
                            dtype: Any) -> None:
    """Many equal elements: the first of them comes first."""
    x = np.random.default_rng(k).integers(0, 200, shape).astype(dtype)
    feeds: Feeds = {"x": x, "k": np.array([k], np.int64)}
    model = one_node("TopK", feeds, outputs=2, opset=24, constants=("k",), axis=axis,
                     largest=largest)
    back = x.astype(np.int64)
    order = np.take(np.argsort(-back if largest else back, axis, kind="stable"), range(k), axis)
    assert_same(by_jitcl(model, feeds, device), [np.take_along_axis(x, order, axis), order])


@pytest.mark.parametrize("n", [3000, pytest.param(5000, marks=pytest.mark.slow)])
def test_top_k_of_nan(n: int) -> None:
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    x[[5, 999]], x[[7, 8]] = np.nan, np.inf
    feeds: Feeds = {"x": x, "k": np.array([5], np.int64)}
    model = one_node("TopK", feeds, outputs=2, constants=("k",))
    assert by_jitcl(model, feeds)[1].tolist()[:4] == [5, 999, 7, 8]


@pytest.mark.parametrize("device", [DEVICES[0], *OTHERS])
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_many_scattered_updates(device: str, op: str, reduction: str) -> None:
    """The last update of an element counts; sums are taken in the updates' order."""
    rng = np.random.default_rng(4)
    nd = op == "ScatterND"
    feeds: Feeds = {"x": rng.standard_normal((40, 6)).astype(np.float32),
                    "i": rng.integers(-40, 40, (300, 1) if nd else (300, 4)),
                    "u": rng.standard_normal((300, 6) if nd else (300, 4)).astype(np.float32)}
    model = one_node(op, feeds, opset=18, reduction=reduction)
    want = by_reference(model, feeds)
    np.testing.assert_allclose(by_jitcl(model, feeds, device)[0], want[0], rtol=1e-5, atol=1e-5)


def test_updates_of_known_places_are_gathered() -> None:
    """The last update of an element counts here, too."""
    rng = np.random.default_rng(4)
    feeds: Feeds = {"x": rng.standard_normal((4, 5, 3)).astype(np.float32),
                    "i": np.stack([rng.integers(-4, 4, 30), rng.integers(-5, 5, 30)], 1),
                    "u": rng.standard_normal((30, 3)).astype(np.float32)}
    model = one_node("ScatterND", feeds, opset=18, constants=("i",))
    compiled = jitcl.compile(model, device="cpu", strict=True)
    assert_same(list(compiled.run(fed(model, feeds)).values()), by_reference(model, feeds))
    assert compiled.plan is not None
    assert not any("written" in step.name for step in compiled.plan.steps)


# ---- errors

B, S = np.zeros((1, 6, 4), np.float32), np.zeros((1, 2, 6), np.float32)
M = np.array([3], np.int64)


@pytest.mark.parametrize(("op", "feeds", "attrs", "error", "text"), [
    ("NonMaxSuppression", {"b": B, "s": S[0], "m": M}, {}, ShapeError,
     r"wanted boxes \[images, n, 4\] and scores \[images, classes, n\], got f32\[1,6,4\]"),
    ("NonMaxSuppression", {"b": B, "s": S, "m": M}, {"center_point_box": 2}, ModelError,
     r"center_point_box is 2: wanted 0 \(corners\) or 1 \(centre, size\)"),
    ("NonMaxSuppression", {"b": B, "s": S, "m": np.array([1, 2])}, {}, ShapeError,
     "max_output_boxes_per_class is one number, got 2"),
    ("Compress", {"x": B, "c": S}, {}, TypeError_, r"a condition bool\[n\], got f32\[1,2,6\]"),
    ("Compress", {"x": B, "c": np.zeros(3, bool)}, {"axis": 5}, ShapeError, "axis 5 is outside"),
])
def test_errors(op: str, feeds: Feeds, attrs: dict[str, Any], error: type[JitclError],
                text: str) -> None:
    model = one_node(op, feeds, opset=11, constants=tuple(k for k in feeds if k == "m"), **attrs)
    with pytest.raises(error, match=text):
        import_model(load(model), {})
