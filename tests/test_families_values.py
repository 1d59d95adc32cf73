"""What is made of sizes (positions, angles, masks, counts) in plans for many shapes: right on every
device while a past grows from nothing, and each kernel that reads it is tried like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jitcl
from jitcl.runtime.families import Families
from tests.devices import present

DEVICES = [s for s in present() if s != "reference"]
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
SIZES = """
    ps = Shape<start = 1, end = 2>(past)
    xs = Shape<start = 1, end = 2>(x)
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    v0 = Constant<value_ints = [0]>()
    v1 = Constant<value_ints = [1]>()
    p = Squeeze(ps)
    t = Squeeze(xs)
    end = Add(p, t)
    ends = Add(ps, xs)
    pos = Range(p, end, one)
    present = Concat<axis = 1>(past, x)
"""
ANGLES = """
    posf = Cast<to = 1>(pos)
    row = Unsqueeze(posf, v0)
    rates = Constant<value_floats = [1.0, 0.5, 0.25, 0.1]>()
    column = Unsqueeze(rates, v1)
    a = MatMul(column, row)
    at = Transpose<perm = [1, 0]>(a)
    cos = Cos(at)
    rotated = Mul(x, cos)
    posh = Cast<to = 10>(pos)
    rowh = Unsqueeze(posh, v0)
    columnh = Cast<to = 10>(column)
    ah = MatMul(columnh, rowh)
    af = Cast<to = 1>(ah)
    half = Transpose<perm = [1, 0]>(af)
"""
MASKS = """
    cs = Range(zero, end, one)
    c = Unsqueeze(cs, v0)
    r = Unsqueeze(pos, v1)
    seen = LessOrEqual(c, r)
    far = Sub(r, c)
    farf = Cast<to = 1>(far)
    low = Constant<value_float = -10000.0>()
    b = Where(seen, farf, low)
    kt = Transpose<perm = [0, 2, 1]>(present)
    s = MatMul(x, kt)
    sb = Add(s, b)
    w = Softmax<axis = -1>(sb)
    attended = MatMul(w, present)
    square = Concat<axis = 0>(ends, ends)
    full = ConstantOfShape<value = float[1] {-5.0}>(square)
    upper = Trilu<upper = 1>(full, one)
    lasting = Constant<value_ints = [1000]>()
    cut = Slice(upper, ps, lasting, v0)
    trilu = ReduceSum<keepdims = 1>(cut, v1)
"""
COUNTS = """
    ones = ConstantOfShape<value = float[1] {1.0}>(ends)
    sums = CumSum(ones, zero)
    grown = Exp(sums)
    counted = Unsqueeze(sums, v0)
    weighed = MatMul(counted, present)
    pos32 = Cast<to = 6>(pos)
    squares = Mul(pos32, pos32)
    total = ReduceSum<keepdims = 0>(squares, v0)
    sizes = Shape(present)
    sized = Mul(sizes, sizes)
    wide = Cast<to = 11>(end)
    log = Log(wide)
    logf = Cast<to = 1>(log)
    scaled = Div(x, logf)
    tilted = Concat<axis = 0>(ends, xs)
    spread = Expand(pos, tilted)
    spreadf = Cast<to = 1>(spread)
    mixed = MatMul(spreadf, x)
"""


def model(body: str, outputs: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"{HEAD}f (float[1, t, 4] x, float[1, p, 4] past) => ({outputs}, float[1, n, 4] present) {{"
        f"{SIZES}{body}}}")


MODELS = {
    "angles": model(ANGLES, "float[1, t, 4] rotated, float[t, 4] half"),
    "masks": model(MASKS, "float[1, t, 4] attended, float[t, 1] trilu"),
    "counts": model(COUNTS, "float[n] grown, float[1, 1, 4] weighed, int32 total, int64[3] sized, "
                            "float[1, t, 4] scaled, float[1, n, 4] mixed")}
STEPS = {"from a prompt": (5, 1, 1, 1, 1), "from nothing": (2, 1, 1, 2, 1, 3),
         "each length": (1, 2, 3, 4, 5, 6)}
QUICK = {("angles", "from a prompt"), ("counts", "from nothing"), ("masks", "each length")}
CASES = [pytest.param(device, name, steps, marks=() if (name, steps) in QUICK else
                      (pytest.mark.slow,)) for device in DEVICES for name in MODELS
         for steps in STEPS]


def decode(proto: onnx.ModelProto, model: jitcl.Model, steps: Sequence[int]) -> None:
    """As many new tokens in each step, what was there fed back; compared with onnx's reference."""
    reference = ReferenceEvaluator(proto)
    rng = np.random.default_rng(3)
    past = np.zeros((1, 0, 4), np.float32)
    for t in steps:
        feeds = {"x": rng.uniform(0.1, 1, (1, t, 4)).astype(np.float32), "past": past}
        with np.errstate(divide="ignore"):                  # log(1) in the first step
            wanted = dict(zip(reference.output_names, reference.run(None, feeds)))
        got = model.run(feeds)
        for name, array in wanted.items():
            array = np.asarray(array)
            assert got[name].shape == array.shape and got[name].dtype == array.dtype
            rough = 2e-3 if name == "half" else 1e-5
            np.testing.assert_allclose(got[name], array, rtol=rough, atol=rough, err_msg=name)
        past = wanted["present"]


@pytest.mark.sampled(quick=5, slow=6)
@pytest.mark.parametrize("device, name, steps", CASES)
def test_a_past_grows_from_nothing(device: str, name: str, steps: str, tmp_path: Path) -> None:
    compiled = jitcl.compile(MODELS[name], device=device, cache_dir=tmp_path)
    decode(MODELS[name], compiled, STEPS[steps])
    assert compiled.report().sizes and not compiled.report().no_family


@pytest.mark.parametrize("device", [d for d in DEVICES if d.startswith("opencl")])
def test_sizes_that_are_equal_by_chance_are_told_apart(device: str, tmp_path: Path) -> None:
    """Ranges over p and over t are the same tensor while p is t, each in a buffer of its own."""
    proto = model("""
        ahead = Range(zero, t, one)
        behind = Range(zero, p, one)
        a = Cast<to = 1>(ahead)
        b = Cast<to = 1>(behind)
        y = Softmax<axis = 0>(a)
        z = Softmax<axis = 0>(b)
    """, "float[t] y, float[p] z")
    compiled = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    reference = ReferenceEvaluator(proto)
    for p, t in ((3, 2), (4, 3), (5, 5), (6, 4), (4, 7)):
        feeds = {"x": np.ones((1, t, 4), np.float32), "past": np.ones((1, p, 4), np.float32)}
        got = compiled.run(feeds)
        for name, array in zip(reference.output_names, reference.run(None, feeds)):
            np.testing.assert_allclose(got[name], array, rtol=1e-6, err_msg=name)
    assert compiled.report().sizes and not compiled.report().no_family


@pytest.mark.slow
@pytest.mark.parametrize("device", [d for d in DEVICES if d.startswith("opencl")][:1])
def test_parts_of_programs_are_tried_too(device: str, tmp_path: Path) -> None:
    """Angles from a count that data decides: a family behind a cut."""
    proto = onnx.parser.parse_model(HEAD + """f (float[n] x) => (float[4, m] y) {
        zero = Constant<value_float = 0.0>()
        positive = Greater(x, zero)
        found = NonZero(positive)
        rows = Shape<start = 1, end = 2>(found)
        m = Squeeze(rows)
        none = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        pos = Range(none, m, one)
        posf = Cast<to = 1>(pos)
        v0 = Constant<value_ints = [0]>()
        v1 = Constant<value_ints = [1]>()
        row = Unsqueeze(posf, v0)
        rates = Constant<value_floats = [1.0, 0.5, 0.25, 0.1]>()
        column = Unsqueeze(rates, v1)
        angles = MatMul(column, row)
        values = Squeeze(found, v0)
        taken = Gather(x, values)
        cos = Cos(angles)
        y = Mul(cos, taken)
    }""")
    compiled = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    reference = ReferenceEvaluator(proto)
    for n, positive in ((9, 4), (9, 5), (9, 6), (12, 7), (12, 3)):
        x = np.where(np.arange(n) < positive, np.arange(n) + 1, -1).astype(np.float32)
        np.testing.assert_allclose(
            compiled.run({"x": x})["y"], reference.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
    assert any(row.sizes for row in compiled.report().program)


# ---- how often a plan is loaded while a past grows

CACHED = f"""{HEAD}f (float[1, 2, t, 8] q, float[1, 2, p, 8] past, float[1, 2, t, 8] k,
        float[8, 8] w) => (float[1, 2, t, 8] y, float[1, 2, m, 8] present) {{
    present = Concat<axis = 2>(past, k)
    keys = MatMul(present, w)
    kt = Transpose<perm = [0, 1, 3, 2]>(keys)
    scores = MatMul(q, kt)
    weights = Softmax<axis = -1>(scores)
    heads = MatMul(weights, keys)
    y = Tanh(heads)
}}"""


class Rooms:
    """Counts how often a plan for many shapes gets room, its first or more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        enlarge = Families._enlarge

        def counted(families: Families, *args: Any) -> None:
            self.count += 1
            enlarge(families, *args)

        monkeypatch.setattr(Families, "_enlarge", counted)


def grow(model: jitcl.Model, lengths: Sequence[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    fixed = {n: rng.uniform(-1, 1, s).astype(np.float32)
             for n, s in (("q", (1, 2, 1, 8)), ("k", (1, 2, 1, 8)), ("w", (8, 8)))}
    past = rng.uniform(-1, 1, (1, 2, max(lengths), 8)).astype(np.float32)
    for n in lengths:
        found = model.run({**fixed, "past": past[:, :, :n].copy()})
    return found


@pytest.mark.slow
@pytest.mark.sampled(slow=2)
@pytest.mark.parametrize("precision", ["high", "normal", "low"])
@pytest.mark.parametrize("device", [d for d in DEVICES if d != "opencl:intel"])
def test_a_growing_past_has_room_for_1_for_256_and_for_512(
        device: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether tensors are worth half a float is no question of the length that a plan was made at:
    what passes 4096 bytes on the way is no family of its own."""
    rooms = Rooms(monkeypatch)
    model = jitcl.compile(onnx.parser.parse_model(CACHED), device=device, precision=precision,
                          cache_dir=tmp_path)
    found = grow(model, range(301))
    assert len(model._families.kept) == 2               # of no past: for many, too
    assert rooms.count == 4
    assert model.report().sizes == (("t", 1, 1), ("p", 300, 512))
    exact = grow(jitcl.compile(onnx.parser.parse_model(CACHED), device="cpu"), [300])
    bound = 1e-5 if precision == "high" else 1e-2
    for name, array in exact.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=bound)


@pytest.mark.slow
def test_where_more_memory_is_dear_it_grows_by_parts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with gigabytes of keys: never more room for each token."""
    monkeypatch.setattr("jitcl.runtime.family.MODEST", 0)
    rooms = Rooms(monkeypatch)
    model = jitcl.compile(onnx.parser.parse_model(CACHED), device="cpu", cache_dir=tmp_path)
    grow(model, range(301))
    assert 10 < rooms.count < 50
    _, (_, value, room) = model.report().sizes
    assert value <= room <= value + value // 4


@pytest.mark.slow
def test_weights_are_no_part_of_what_grows(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they keep a plan from its room."""
    monkeypatch.setattr("jitcl.runtime.family.MODEST", 512 << 10)
    proto = onnx.parser.parse_model(CACHED)
    weights = np.random.default_rng(1).uniform(-1, 1, (8, 32768)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "wide"))
    proto.graph.node.append(helper.make_node("MatMul", ["y", "wide"], ["z"]))
    proto.graph.output.append(helper.make_empty_tensor_value_info("z"))
    rooms = Rooms(monkeypatch)
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    assert weights.nbytes > 512 << 10
    found = grow(model, range(2, 30))
    np.testing.assert_allclose(found["z"], found["y"] @ weights, rtol=0, atol=1e-4)
    (family,) = model._families.kept.values()
    assert rooms.count == 1 and family.capacity[:2] == [1, 256]


def test_a_capacity_reaches_as_far_as_guards_hold(tmp_path: Path) -> None:
    """A slice that longer inputs would fill: from 20 on, other plans begin."""
    text = HEAD + """f (float[n] x) => (float[m] y) {
        begin = Constant<value_ints = [0]>()
        end = Constant<value_ints = [20]>()
        y = Slice(x, begin, end)
    }"""
    model = jitcl.compile(onnx.parser.parse_model(text), device="cpu", cache_dir=tmp_path)
    for n in (*range(5, 20), *range(21, 30)):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(model.run({"x": x})["y"], x[:20])
    below, above = model._families.kept.values()
    assert below.capacity == [19] and above.capacity == [256]
