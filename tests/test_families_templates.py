"""Plans for many shapes whose kernels templates write: right at shapes that no tile divides, and
nothing compiled on the way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import jitcl
from jitcl import config
from jitcl.ir.size_ranges import grows, most, require
from jitcl.ir.sizes import SizeFixed, SizePinned, SizeUnfit, Space, at
from tests.devices import opened

PICTURES = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[b, 3, h, w] x, float[16, 3, 3, 3] w1, float[16, 16, 3, 3] w2, float[16, 1, 3, 3] w3,
   float[40, 16, 1, 1] w4, float[40, 24] w5) => (float[b, 24] y) {
    c1 = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x, w1)
    r1 = Relu(c1)
    p1 = MaxPool<kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]>(r1)
    c2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p1, w2)
    a2 = Add(c2, p1)
    c3 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 16>(a2, w3)
    r3 = Relu(c3)
    c4 = Conv<kernel_shape = [1, 1]>(r3, w4)
    m = GlobalAveragePool(c4)
    f = Flatten(m)
    y = MatMul(f, w5)
}
"""
TEXT = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[b, n, 32] x, float[b, 1, 1, n] mask, float[32, 96] w1, float[32, 40] w2)
        => (float[b, n, 40] y) {
    to = Constant<value_ints = [0, 0, 2, 16]>()
    back = Constant<value_ints = [0, 0, 32]>()
    qkv = MatMul(x, w1)
    q, k, v = Split<axis = 2, num_outputs = 3>(qkv)
    q4 = Reshape(q, to)
    k4 = Reshape(k, to)
    v4 = Reshape(v, to)
    qt = Transpose<perm = [0, 2, 1, 3]>(q4)
    kt = Transpose<perm = [0, 2, 3, 1]>(k4)
    vt = Transpose<perm = [0, 2, 1, 3]>(v4)
    scores = MatMul(qt, kt)
    masked = Add(scores, mask)
    p = Softmax<axis = -1>(masked)
    found = MatMul(p, vt)
    rows = Transpose<perm = [0, 2, 1, 3]>(found)
    flat = Reshape(rows, back)
    z = MatMul(flat, w2)
    y = Relu(z)
}
"""


def with_weights(text: str, names: tuple[str, ...]) -> onnx.ModelProto:
    """The model with these inputs as constants."""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for value in [v for v in model.graph.input if v.name in names]:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(dims).astype(np.float32) / np.float32(np.sqrt(dims[-2]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    return model


def picture(b: int, h: int, w: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(b * h * w)
    return {"x": rng.standard_normal((b, 3, h, w)).astype(np.float32)}


def text(b: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(b * n)
    mask = np.where(rng.random((b, 1, 1, n)) < 0.2, np.float32(-1e4), np.float32(0))
    return {"x": rng.standard_normal((b, n, 32)).astype(np.float32), "mask": mask}


CASES = {
    "pictures": (with_weights(PICTURES, ("w1", "w2", "w3", "w4", "w5")), picture,
                 ((2, 40, 50), (3, 44, 52), (4, 48, 56)),
                 ((3, 33, 79), (5, 81, 36), (2, 48, 64), (2, 31, 31))),
    "text": (with_weights(TEXT, ("w1", "w2")), text, ((2, 40), (3, 44), (4, 50)),
             ((3, 17), (2, 150), (7, 64), (2, 33), (5, 7))),
}


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("name", CASES)
def test_templates_write_plans_for_many_shapes(
        name: str, tmp_path: Path) -> None:
    """And shapes that come again stay with them."""
    proto, feeds, first, then = CASES[name]
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    for shape in first:
        model.run(feeds(*shape))
    plan = model.report()
    assert plan.sizes and not plan.no_family
    assert {s.template for s in plan.steps} >= (
        {"conv_cpu", "winograd_cpu", "depthwise_cpu", "pool_cpu", "gemm_cpu"}
        if name == "pictures" else {"gemm_cpu", "attention_cpu"})
    (family,) = model._families.kept.values()
    for shape in (*then, *then[:1] * 6):
        found, (wanted,) = model.run(feeds(*shape))["y"], exact.run(None, feeds(*shape))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    assert list(model._families.kept.values()) == [family] and not model._kept


def test_a_new_shape_builds_nothing_and_the_order_of_shapes_changes_no_bit(
        tmp_path: Path) -> None:
    """Fewer rows than a tile has, and a batch or a length of 1, too."""
    proto, feeds, *_ = CASES["text"]
    shapes = ((2, 40), (1, 40), (4, 1), (1, 1), (1, 3), (2, 3), (3, 130))
    found = []
    for folder, order in (("there", shapes), ("back", shapes[::-1])):
        model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path / folder)
        found.append({s: model.run(feeds(*s))["y"] for s in order})
        assert model.cache.stats.builds == 1 and not model._kept
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    for s in shapes:
        np.testing.assert_array_equal(found[0][s], found[1][s])
        (wanted,) = exact.run(None, feeds(*s))
        np.testing.assert_allclose(found[0][s], wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def test_a_row_has_its_bits_in_any_number_of_rows(tmp_path: Path) -> None:
    """Tiles are of other heights for them, the last one's is another again; sums of so many terms
    are added in parts."""
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        f (float[m, 1200] x, float[1200, 70] w, float[70] c) => (float[m, 70] y) {
            p = MatMul(x, w)
            y = Add(p, c)
        }""")
    rng = np.random.default_rng(0)
    x, w, c = (rng.standard_normal(s).astype(np.float32) for s in ((90, 1200), (1200, 70), (70,)))
    for name, array in (("w", w), ("c", c)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    wanted = model.run({"x": x})["y"]
    exact = x.astype("f8") @ w + c
    assert np.abs(wanted - exact).max() < 1e-5 * np.abs(exact).max()
    assert model.report().steps[-1].template == "gemm_cpu"
    for m in range(1, 90):
        np.testing.assert_array_equal(model.run({"x": x[:m]})["y"], wanted[:m])
    assert model.cache.stats.builds == 1


DECODER = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[b, m, 32] q, float[b, 2, past, 16] key, float[b, 2, m, 16] new, float[b, 2, 16, 300] far)
        => (float[b, 2, m, 16] y, float[b, 2, m, 300] z) {
    to = Constant<value_ints = [0, 0, 2, 16]>()
    q4 = Reshape(q, to)
    qt = Transpose<perm = [0, 2, 1, 3]>(q4)
    keys = Concat<axis = 2>(key, new)
    kt = Transpose<perm = [0, 1, 3, 2]>(keys)
    scores = MatMul(qt, kt)
    p = Softmax<axis = -1>(scores)
    y = MatMul(p, keys)
    other = MatMul(y, far)
    po = Softmax<axis = -1>(other)
    back = Transpose<perm = [0, 1, 3, 2]>(far)
    found = MatMul(po, back)
    z = MatMul(found, far)
}
"""


def decoder_step(b: int, m: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(b * m * past)
    shapes = {"q": (b, m, 32), "key": (b, 2, past, 16), "new": (b, 2, m, 16),
              "far": (b, 2, 16, 300)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.slow
def test_a_decoder_has_kernels_for_few_rows_and_for_many(tmp_path: Path) -> None:
    """A run launches one or the other. Results of few rows are those of a plan of their own, bit
    for bit, on any number of threads; keys may be copied (`far`), and fill several blocks."""
    proto = onnx.parser.parse_model(DECODER)
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    for b, m, past in ((2, 1, 7), (1, 40, 3), (1, 3, 300), (2, 7, 253), (1, 8, 600), (1, 9, 1)):
        fed = decoder_step(b, m, past)
        found = model.run(fed)
        for name, want in zip("yz", exact.run(None, fed)):
            np.testing.assert_allclose(found[name], want, rtol=0, atol=2e-5 * np.abs(want).max())
        with config.override(threads=3), jitcl.profile() as profile:
            again = model.run(fed)
        ran = {k.name.partition("_attention")[2] for k in profile.kernels if "matmul" in k.name}
        assert ("_4_rows" in ran) == (m <= 8), ran
        if m in (1, 7):
            shapes = {n: x.shape for n, x in fed.items()}
            alone = jitcl.compile(proto, device="cpu", cache_dir=tmp_path / "own", shapes=shapes)
            own = alone.run(fed)
        for name in "yz":
            np.testing.assert_array_equal(again[name], found[name])
            if m in (1, 7):
                np.testing.assert_array_equal(own[name], found[name])
    assert model.cache.stats.builds == 1


def test_a_square_is_no_reason_for_a_plan_of_squares(tmp_path: Path) -> None:
    proto, feeds, *_ = CASES["pictures"]
    model = jitcl.compile(proto, device="cpu", cache_dir=tmp_path)
    for shape in ((1, 64, 64), (3, 64, 90)):
        model.run(feeds(*shape))
    assert len(model._families.kept) == 1 and model.cache.stats.builds == 1


STAGING = ("device_type=gpu,vector_width=4,max_vector_width=4,local_is_real=1,local_memory=49152,"
           "max_work_group=256,compute_units=4")


@pytest.mark.slow
@pytest.mark.sampled(slow=2)
@pytest.mark.parametrize("device", [
    "opencl:pocl", "opencl:intel", "opencl:pocl as a GPU of tiles"])
@pytest.mark.parametrize("name", CASES)
def test_templates_on_opencl_devices(name: str, device: str, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan for all shapes from the first on; its products, windows and convolutions are
    templates', of CPUs those of the CPU path. GPUs that stage tiles in local memory have kernels
    for few rows and many, of which a run launches one; they serve rows shorter than a vector, too,
    for which the CPU path's convolutions have plans of their own."""
    device, _, tiles = device.partition(" as ")
    if tiles:
        monkeypatch.setenv("JITCL_TARGET", STAGING)
    else:
        opened(device)
    proto, feeds, first, then = CASES[name]
    model = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    short = ((1, 9, 11), (2, 1, 1)) if name == "pictures" else ((1, 1), (5, 7), (1, 3))
    then = (*then, *short) if tiles or name == "text" else then
    family = None
    for shape in (first[0], *then):
        family = family or [*model._families.kept.values()]
        found, (wanted,) = model.run(feeds(*shape))["y"], exact.run(None, feeds(*shape))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    assert list(model._families.kept.values()) == family and model.cache.stats.builds == 1
    written = {s.template for s in model.report().steps}
    for shape in short:
        found, (wanted,) = model.run(feeds(*shape))["y"], exact.run(None, feeds(*shape))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    if tiles:
        assert written == ({"", "gemm_tiled_opencl", "gemv_opencl"} if name == "pictures"
                           else {"gemv_opencl", "attention_opencl"})
        return
    assert written >= ({"conv_cpu", "depthwise_cpu", "pool_cpu", "gemm_cpu"}
                       if name == "pictures" else {"gemm_cpu", "attention_cpu"})


@pytest.mark.slow
def test_sums_are_split_while_there_are_few_rows(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many parts as keep 16 cores busy."""
    monkeypatch.setenv("JITCL_TARGET", STAGING.replace("units=4", "units=16"))
    proto = with_weights("""
<ir_version: 8, opset_import: ["" : 18]>
f (float[n, 512] x, float[512, 72] w) => (float[n, 72] y) {
    z = MatMul(x, w)
    y = Relu(z)
}
""", ("w",))
    model = jitcl.compile(proto, device="opencl:pocl", cache_dir=tmp_path)
    exact, rng = onnxruntime.InferenceSession(proto.SerializeToString()), np.random.default_rng(2)
    for n in (40, 1, 6, 130, 700, 1500):
        x = rng.standard_normal((n, 512)).astype(np.float32)
        found, (wanted,) = model.run({"x": x})["y"], exact.run(None, {"x": x})
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    assert model.cache.stats.builds == 1
    assert {s.kernel.partition("_")[0] for s in model.report().steps} == {"gemv", "gemm", "join"}


@pytest.mark.sampled(slow=4)
@pytest.mark.parametrize("precision", ["normal", pytest.param("low", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name, device", [
    ("text", "cpu"),
    *(pytest.param(n, d, marks=pytest.mark.slow) for n, d in (
        ("pictures", "cpu"), ("text", "opencl:intel"), ("pictures", "opencl:intel"))),
])
def test_halves_in_plans_for_many_shapes(
        name: str, device: str, precision: str, tmp_path: Path) -> None:
    """Stored, and under "low" computed with where the device can: one plan, near f32."""
    opened(device)
    proto, feeds, first, then = CASES[name]
    model = jitcl.compile(proto, device=device, precision=precision, cache_dir=tmp_path)
    exact = onnxruntime.InferenceSession(proto.SerializeToString())
    for shape in first:
        model.run(feeds(*shape))
    assert model.report().sizes and not model.report().no_family
    (family,) = model._families.kept.values()
    assert family.plan.stores_f16
    for shape in then:
        found, (wanted,) = model.run(feeds(*shape))["y"], exact.run(None, feeds(*shape))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-2 * np.abs(wanted).max())
    assert list(model._families.kept.values()) == [family] and not model._kept


def test_what_a_tile_needs_is_a_guard() -> None:
    space = Space()
    n = space.symbol("n", 40)
    require(n, 14)
    assert space.holds([14]) and not space.holds([13])
    with pytest.raises(SizeUnfit, match="is not so now"):
        require(space.symbol("m", 40, now=3), 4)
    with pytest.raises(SizeFixed, match="n"):
        assert n == 40
    with pytest.raises(SizePinned, match="is less than '41'"):
        require(n, 41)


def test_sizes_that_shrink_have_bounds() -> None:
    """-ceil(n / 2) + n, and 100 - n."""
    space = Space()
    n = space.symbol("n", 9)
    for size in (n - (n + 1) // 2, 100 - n, 7 * (n // 4) * (n - 3)):
        bound = most(space, size, space.values({"n": 60}))
        assert all(at(size, space.values({"n": k})) <= bound for k in range(2, 61))
    assert grows(space, 3 * n + n // 2) and not grows(space, 100 - n)
