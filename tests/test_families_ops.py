"""Ops that need more of a size than arithmetic: in plans for many shapes all the same, made for the
first shape, and right on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import jitcl
from jitcl.ir.sizes import SizePinned, Space
from jitcl.ops.size_arithmetic import Ratio, product, quotient
from tests.devices import present

DEVICES = [s for s in present() if s != "reference"]
Case = tuple[onnx.ModelProto, Callable[[int], dict[str, np.ndarray]]]


def node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, ["" if i == "-" else i for i in inputs.split()], outputs.split(),
                            **attributes)


def case(nodes: list[onnx.NodeProto], shapes: dict[str, list[int | str]], outputs: str = "y",
         **constants: np.ndarray) -> Case:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs.split()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()])

    def feeds(n: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(n)
        sizes: dict[int | str, int] = {"n": n, "m": 2 * n + 3}
        return {name: rng.standard_normal([sizes.get(d, d) for d in s]).astype(np.float32)
                for name, s in shapes.items()}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)],
                             ir_version=8), feeds


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def resized(scale: float, **attributes: object) -> Case:
    return case([node("Resize", "x - s", "y", **attributes)], {"x": [1, 2, "n", 5]},
                s=np.array([1, 1, scale, 2], np.float32))


PICTURE: dict[str, list[int | str]] = {"x": [1, 2, "n", 5]}
AS_OTHER: dict[str, list[int | str]] = {"x": [1, 2, "n", 5], "z": [1, 1, "m", 7]}
TO_OTHER = [node("Shape", "x", "begin", end=2), node("Shape", "z", "end", start=2),
            node("Concat", "begin end", "to", axis=0)]
BOXES = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 10.2, 1, 11]], np.float32)

CASES: dict[str, Case] = {
    "lstm": case([node("LSTM", "x w r", "y", hidden_size=8)], {"x": ["n", 1, 6]},
                 w=weights(1, 32, 6), r=weights(1, 32, 8)),
    "gru both ways": case([node("GRU", "x w r", "y h", hidden_size=4, direction="bidirectional")],
                          {"x": ["n", "m", 6]}, "y h", w=weights(2, 12, 6), r=weights(2, 12, 4)),
    "rnn": case([node("RNN", "x w r", "y", hidden_size=4)], {"x": [3, "n", 6]},
                w=weights(1, 4, 6), r=weights(1, 4, 4)),
    "topk of all": case([node("Shape", "x", "k", end=1), node("TopK", "x k", "y i", axis=0)],
                        {"x": ["n", 4]}, "y i"),
    "topk of half": case([node("Shape", "x", "all", end=1), node("Div", "all two", "k"),
                          node("TopK", "x k", "y i", axis=0, largest=0)], {"x": ["n", 3]}, "y i",
                         two=np.array(2)),
    "nonzero": case([node("Greater", "x h", "g"), node("NonZero", "g", "y")], {"x": ["n", 4]},
                    h=np.float32(0)),
    "compress": case([node("Greater", "x h", "g"), node("Compress", "x g", "y")], {"x": ["n"]},
                     h=np.float32(0)),
    "unique": case([node("Floor", "x", "f"), node("Unique", "f", "y i j c")], {"x": ["n"]},
                   "y i j c"),
    "running sum": case([node("CumSum", "x a", "y")], {"x": [2, "n"]}, a=np.array(1)),
    "suppression": case(
        [node("Abs", "x", "p"), node("CumSum", "p axis", "c"), node("Concat", "c c", "b", axis=2),
         node("Add", "b d", "boxes"), node("NonMaxSuppression", "boxes s most limit", "y")],
        {"x": [1, "n", 2], "s": [1, 2, "n"]}, axis=np.array(1), d=np.float32([0, 0, 1, 1]),
        most=np.array([5]), limit=np.float32([0.3])),
    "nearest by 2": resized(2, mode="nearest"),
    "nearest by 2, asymmetric": resized(2, mode="nearest", nearest_mode="floor",
                                        coordinate_transformation_mode="asymmetric"),
    "nearest by 3/2": resized(1.5, mode="nearest", nearest_mode="round_prefer_ceil"),
    "nearest by 1/2": resized(0.5, mode="nearest", nearest_mode="ceil",
                              coordinate_transformation_mode="asymmetric"),
    "linear by 2": resized(2, mode="linear"),
    "linear by 1/2": resized(0.5, mode="linear", coordinate_transformation_mode="asymmetric"),
    "nearest to another's shape": case([*TO_OTHER, node("Resize", "x - - to", "y")], AS_OTHER),
    "linear to another's shape": case(
        [*TO_OTHER, node("Resize", "x - - to", "y", mode="linear",
                         coordinate_transformation_mode="align_corners")], AS_OTHER),
    "linear to another's shape, torch": case(
        [*TO_OTHER, node("Resize", "x - - to", "y", mode="linear",
                         coordinate_transformation_mode="pytorch_half_pixel")], AS_OTHER),
    "scales of floats of shapes": case(
        [node("Shape", "x", "all"), node("Cast", "all", "f", to=1), node("Mul", "f by", "g"),
         node("Floor", "g", "h"), node("Cast", "h", "to", to=7), node("Resize", "x - - to", "y")],
        PICTURE, by=np.float32([1, 1, 2.5, 2])),
    "cut to a quarter, rounded up": case(
        [node("Shape", "x", "all", end=1), node("Cast", "all", "f", to=1),
         node("Div", "f four", "q"), node("Ceil", "q", "c"), node("Cast", "c", "to", to=7),
         node("Slice", "x zero to zero", "y")], {"x": ["n", 3]}, four=np.float32(4),
        zero=np.array([0])),
    "lstm of texts of their own lengths": case(
        [node("LSTM", "x w r - s", "y h", hidden_size=8, direction="bidirectional")],
        {"x": ["n", 3, 6]}, "y h", w=weights(2, 32, 6), r=weights(2, 32, 8),
        s=np.array([1, 0, 1], np.int32)),
    "topk of 30 at most": case(
        [node("Shape", "x", "all", end=1), node("Concat", "all thirty", "both", axis=0),
         node("ReduceMin", "both", "k"), node("TopK", "x k", "y i", axis=0)], {"x": ["n", 4]},
        "y i", thirty=np.array([30])),
    "nonzero of two open axes": case(
        [node("Greater", "x h", "g"), node("NonZero", "g", "y")], {"x": ["n", "m"]},
        h=np.float32(0)),
    "suppression of many classes": case(
        [node("Abs", "x", "p"), node("CumSum", "p axis", "c"), node("Concat", "c c", "b", axis=2),
         node("Add", "b d", "boxes"), node("NonMaxSuppression", "boxes s most", "y")],
        {"x": [1, "n", 2], "s": [1, "m", "n"]}, axis=np.array(1), d=np.float32([0, 0, 1, 1]),
        most=np.array([1])),
    "padded to a multiple of 32": case(
        [node("Shape", "x", "all", start=2, end=3), node("Mod", "all by", "over"),
         node("Sub", "by over", "lacks"), node("Mod", "lacks by", "end"),
         node("Concat", "none end zero", "pads", axis=0), node("Pad", "x pads", "p"),
         node("Conv", "p w", "y", strides=[4, 4])],
        {"x": [1, 3, "n", 8]}, by=np.array([32]), none=np.array([0] * 6), zero=np.array([0]),
        w=weights(4, 3, 4, 4)),
    "padded to an even length by reflection": case(
        [node("Shape", "x", "all", start=1), node("Mod", "all two", "end"),
         node("Concat", "none end", "pads", axis=0), node("Pad", "x pads", "y", mode="reflect")],
        {"x": ["m", "n"]}, two=np.array([2]), none=np.array([0] * 3)),
    "split in three": case([node("Split", "x", "y a b", axis=1, num_outputs=3)],
                           {"x": [2, "n"]}, "y a b"),
    "one-hot": case([node("ArgMax", "x", "a", axis=1, keepdims=0),
                     node("Shape", "x", "k", start=1), node("OneHot", "a k v", "y")],
                    {"x": ["n", "m"]}, v=np.float32([0, 1])),
    "diagonal": case([node("EyeLike", "x", "y", k=1)], {"x": ["n", "m"]}),
    "grid": case([node("Tanh", "g", "at"), node("GridSample", "x at", "y", align_corners=0)],
                 {"x": [1, 2, "n", 5], "g": [1, "m", "n", 2]}),
    "grid by reflection": case(
        [node("GridSample", "x g", "y", align_corners=1, padding_mode="reflection")],
        {"x": [1, 2, "n", 5], "g": [1, "m", "n", 2]}),
    "regions": case(
        [node("Softplus", "r", "near"), node("Add", "near far", "boxes"),
         node("Shape", "r", "k", end=1),
         node("ConstantOfShape", "k", "first", value=numpy_helper.from_array(np.array([0]))),
         node("RoiAlign", "x boxes first", "y", output_height=3, output_width=2,
              sampling_ratio=2)], {"x": [1, 2, "n", "m"], "r": ["m", 4]},
        far=np.float32([0, 0, 4, 5])),
    "regions, each with a grid of its own": case(
        [node("Softplus", "r", "near"), node("Add", "near far", "boxes"),
         node("Shape", "r", "k", end=1),
         node("ConstantOfShape", "k", "first", value=numpy_helper.from_array(np.array([0]))),
         node("RoiAlign", "x boxes first", "y", output_height=3, output_width=2)],
        {"x": [1, 2, "n", "m"], "r": ["m", 4]}, far=np.float32([0, 0, 4, 5])),
    "cubic by 2": resized(2, mode="cubic"),
    "cubic to another's shape": case(
        [*TO_OTHER, node("Resize", "x - - to", "y", mode="cubic", cubic_coeff_a=-0.5,
                         coordinate_transformation_mode="pytorch_half_pixel")], AS_OTHER),
    "einsum": case([node("Einsum", "x z", "y", equation="ihd,jhd->hij")],
                   {"x": ["n", 2, 8], "z": ["m", 2, 8]}),
    "scattered": case([node("Shape", "x", "all"), node("ConstantOfShape", "all", "empty"),
                       node("ArgMax", "x", "i", axis=1),
                       node("ScatterElements", "empty i m", "y", axis=1)],
                      {"x": ["n", "m"], "m": ["n", 1]}),
}
QUICK = ("lstm", "nonzero", "suppression", "nearest by 2", "linear to another's shape, torch",
         "topk of half", "scales of floats of shapes")
LENGTHS = (21, 22, 40, 23, 17, 57, 33)


def rounding(name: str, n: int) -> float:
    """What results may be off by: of a grid, places among n elements are rounded."""
    return max(1e-5, n * 2.0 ** -20) if "grid" in name else 1e-5


@pytest.mark.sampled(quick=4, slow=5)
@pytest.mark.parametrize("device, name", [
    pytest.param(d, n, marks=() if d == "cpu" and n in QUICK else (pytest.mark.slow,))
    for d in DEVICES for n in CASES])
def test_no_op_keeps_a_model_from_a_plan_for_many_shapes(
        device: str, name: str, tmp_path: Path) -> None:
    proto, feeds = CASES[name]
    model = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [o.name for o in exact.get_outputs()]
    for count, n in enumerate(LENGTHS):
        found = model.run(feeds(n))
        for key, wanted in zip(names, exact.run(None, feeds(n))):
            assert found[key].shape == wanted.shape and found[key].dtype == wanted.dtype
            np.testing.assert_allclose(
                found[key], wanted, rtol=1e-5, atol=rounding(name, n), err_msg=key)
        stats = model.cache.stats
        if count < 3:
            before = stats.misses, stats.writes
        else:
            assert (stats.misses, stats.writes) == before, n
    report = model.report()
    rows = report.program or (report,)
    assert not any(row.no_family for row in rows) and any(row.sizes for row in rows)


# what has one plan, whatever comes first
WHOLE = ("lstm", "lstm of texts of their own lengths", "running sum", "nearest to another's shape",
         "linear to another's shape", "linear to another's shape, torch",
         "padded to a multiple of 32", "one-hot", "diagonal", "grid", "einsum",
         "scattered", "regions", "cubic to another's shape")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in (
    "padded to a multiple of 32", "linear to another's shape", "one-hot") else (pytest.mark.slow,))
    for n in WHOLE])
def test_no_length_is_a_case_of_its_own(name: str, tmp_path: Path) -> None:
    """Neither one element, nor a multiple of what is padded to, nor two axes that are equal."""
    proto, feeds = CASES[name]
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    builds = []
    for n in (1, 2, 70, 64, 1, 130, 32):
        found = model.run(feeds(n))
        for output, wanted in zip(exact.get_outputs(), exact.run(None, feeds(n))):
            np.testing.assert_allclose(
                found[output.name], wanted, rtol=1e-5, atol=rounding(name, n))
        builds.append(model.cache.stats.builds)
    assert builds == builds[:1] * 7


# in another order of sums, or of roundings: a running sum in blocks of eight lanes or more (the
# last of 40 is behind eight roundings), weights that kernels compute, places among 40
NEARLY = {"running sum": 8 * 2.0 ** -24, "linear to another's shape, torch": 2e-8,
          "cubic to another's shape": 4e-7, "grid": 40 * 2.0 ** -23,
          "grid by reflection": 40 * 2.0 ** -23, "regions, each with a grid of its own": 1e-7}


@pytest.mark.sampled(slow=3)
@pytest.mark.parametrize("name", [
    pytest.param(n, marks=() if n == "topk of half" else (pytest.mark.slow,)) for n in CASES])
def test_results_are_those_of_the_plan_for_that_shape_alone(
        name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, feeds = CASES[name]
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    found = [model.run(feeds(n)) for n in (21, 22, 40)][1:]
    monkeypatch.setenv("JITCL_FAMILIES", "0")
    for n, shared in zip((22, 40), found):
        alone = jitcl.compile(proto, device="cpu", cache_dir=tmp_path).run(feeds(n))
        for key, wanted in alone.items():
            bound = NEARLY.get(name, 0) * np.abs(wanted).max(initial=0)
            np.testing.assert_allclose(shared[key], wanted, rtol=0, atol=bound, err_msg=key)


def test_floats_of_sizes_are_exact_where_they_become_sizes() -> None:
    space = Space()
    n = space.symbol("n", 10)
    half = product(Ratio.of(n), Ratio.of(np.float32(0.5)), "f32")
    assert half == Ratio(n, 2) and str(half.floor()) == str(n // 2)
    assert quotient(Ratio.of(2 * n), Ratio.of(n), "f32") == Ratio(2, 1)
    assert space.holds([1 << 20]) and not space.holds([1 << 25])      # float32 is no integer there
    with pytest.raises(SizePinned, match="rounded twice"):
        product(quotient(Ratio.of(n), Ratio.of(n + 1), "f32"), Ratio.of(n), "f32")
    with pytest.raises(SizePinned):
        product(Ratio.of(n), Ratio.of(np.float32(2.3)), "f32").floor()
    with pytest.raises(SizePinned, match="needed as a number"):
        float(half)
