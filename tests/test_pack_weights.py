"""memory={"bits": 4}: which weights are packed, how they are rounded, what devices make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.errors import InputError, OptionError
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.passes.options import Options
from jitcl.passes.pack_weights import PackWeights, Weight
from jitcl.passes.packing import Packing, gptq, nearest
from tests.devices import present
from tests.lm_models import IDS, stored
from tests.real_models import MODELS, needs_models

g = GraphBuilder()
KINDS = [Packing(4, 32), Packing(4, 64, False), Packing(8, 64), Packing(8, 128, False)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net() -> onnx.ModelProto:
    """A look-up, a product, a Gemm and two convolutions."""
    def tensor(name: str, *dims: int) -> onnx.TensorProto:
        return numpy_helper.from_array(0.1 * normal(*dims, seed=len(name)), name)

    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="/embed"),
        helper.make_node("MatMul", ["e", "w1"], ["h"], name="/first"),
        helper.make_node("Relu", ["h"], ["r"], name="/relu"),
        helper.make_node("Gemm", ["r", "w_two", "b"], ["m"], name="/second", transB=1),
        helper.make_node("Reshape", ["m", "dims"], ["p"], name="/image"),
        helper.make_node("Conv", ["p", "filters"], ["c"], name="/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"], name="/relu2"),
        helper.make_node("Conv", ["d", "pointwise"], ["y"], name="/last"),
    ]
    weights = [tensor("table", 40, 64), tensor("w1", 64, 96), tensor("w_two", 48, 96),
               tensor("b", 48), tensor("filters", 32, 16, 3, 3), tensor("pointwise", 32, 32, 1, 1),
               numpy_helper.from_array(np.array([1, 16, 4, 9], np.int64), "dims")]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("ids", TensorProto.INT64, [12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


IDS12 = {"ids": np.arange(12) * 3}


# ---- rounding

@pytest.mark.parametrize("packing", KINDS, ids=lambda p: p.said)
def test_nearest_is_off_by_half_a_scale_at_most(packing: Packing) -> None:
    rows = normal(7, 100) * np.logspace(-3, 3, 7, dtype=np.float32)[:, None]
    rows[0] = 0
    rows[1, :40] = np.abs(rows[1, :40])
    rows[2, 3] = 50 * np.abs(rows[2]).max()
    found = nearest(rows, packing)
    assert found.codes.shape[2] == packing.block_of(100) and found.scales.dtype == np.float16
    scale = np.repeat(found.scales[..., 0].astype("f4"), found.codes.shape[2], axis=1)[:, :100]
    off = np.abs(rows - found.numbers(100))
    assert (off <= 0.5 * scale * (1 + 1e-4)).all() and (off > 0.4 * scale)[2:].any()
    assert not found.numbers(100)[0].any()


def test_blocks_divide_sums_where_they_can() -> None:
    assert [Packing(4, 128).block_of(k) for k in (256, 64, 96, 100)] == [128, 64, 32, 32]


@pytest.mark.parametrize("packing", KINDS, ids=lambda p: p.said)
def test_gptq_loses_less_than_rounding(packing: Packing) -> None:
    """On other inputs of the same kind: a few causes, mixed."""
    mix, rows = normal(12, 160, seed=1), normal(24, 160, seed=2)
    seen, fresh = (normal(600, 12, seed=s) @ mix + 0.1 * normal(600, 160, seed=s + 9)
                   for s in (3, 4))

    def lost(numbers: np.ndarray) -> float:
        return float(np.linalg.norm(fresh @ (rows - numbers).T))

    found = gptq(rows, seen, packing)
    assert lost(found.numbers(160)) < 0.5 * lost(nearest(rows, packing).numbers(160))
    assert found.codes.max() < 1 << packing.bits and found.codes.dtype == np.uint8
    zeros = gptq(rows, 0 * seen, packing)
    assert (zeros.codes == nearest(rows, packing).codes).all()


# ---- the pass

def test_text_in_and_out() -> None:
    w = normal(64, 32)
    graph = Graph("g", (x := graph_input("x", TensorType("f32", (3, 64))),),
                  (("y", g.matmul(x, const(w))),))
    made = PackWeights(Packing(4, 32)).run(graph)
    assert [n.op for n in made.nodes if n.op not in ("const", "input")] == [
        "unpack_uint4", "dequantize", "reshape", "transpose", "matmul"]
    codes, scales = (n for n in made.nodes if n.op == "const" and n.type.size > 1)
    rows = nearest(np.ascontiguousarray(w.T), Packing(4, 32))
    low, high = codes.data & 15, codes.data >> 4
    assert (np.stack([low, high], -1).reshape(32, 2, 32) == rows.codes).all()
    assert (scales.data == rows.scales).all() and scales.type == TensorType("f16", (32, 2, 1))
    assert (evaluate(made.outputs[0][1].inputs[1], {}) == rows.numbers(64).T).all()


@pytest.mark.parametrize("packing", KINDS, ids=lambda p: p.said)
def test_each_order_decodes_to_what_was_rounded(packing: Packing) -> None:
    """Bit for bit, of all that is packed: also of sums that no block divides."""
    x = graph_input("x", TensorType("f32", (1, 40, 5, 6)))
    rows = graph_input("r", TensorType("f32", (2, 7, 72)))
    ids = graph_input("i", TensorType("i32", (3,)))
    for node in (
            g.matmul(rows, const(normal(72, 48))), g.matmul(rows, const(normal(2, 72, 24))),
            g.matmul(const(normal(33, 40)), g.reshape(x, shape=(40, 30))),
            g.gather(const(normal(30, 40)), ids, axis=0),
            g.op("conv", x, const(normal(24, 20, 3, 2)), strides=(1, 1), pads=(0, 0, 1, 1),
                 dilations=(1, 1), group=2)):
        weight = Weight.of(node, node.inputs)
        assert weight is not None
        w = node.inputs[weight.slot]
        found = weight.rows(w.data)
        numbers = nearest(found, packing).numbers(found.shape[1])
        decoded = weight.decoded(g, w, nearest(found, packing))
        assert decoded.type == w.type
        again = weight.rows(np.asarray(evaluate(decoded, {})))
        assert (again == numbers).all()


def test_what_stays() -> None:
    """Small weights, depthwise filters, what scales of f16 don't reach."""
    x = graph_input("x", TensorType("f32", (2, 64)))
    image = graph_input("i", TensorType("f32", (1, 32, 9, 9)))
    huge = normal(64, 32)
    huge[3, 3] = 1e9
    odd = normal(64, 32)
    odd[3, 3] = np.nan
    for y in (g.matmul(x, const(normal(64, 8))), g.matmul(x, const(huge)), g.matmul(x, const(odd)),
              g.matmul(x, const(normal(64, 32) * np.float32(1e-7))),
              g.op("conv", image, const(normal(32, 1, 7, 7)), strides=(1, 1), pads=(0,) * 4,
                   dilations=(1, 1), group=32)):
        graph = Graph("g", (x, image), (("y", y),))
        assert PackWeights(Packing(4, 32)).run(graph) == graph


# ---- models

def plain(model: onnx.ModelProto, packing: Packing) -> np.ndarray:
    """The model's answer with weights that are numbers: those which the codes stand for."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    orders = {"table": ("rows", 0), "w1": ("columns", 1), "w_two": ("rows", 0),
              "filters": ("window", 1), "pointwise": ("window", 1)}
    for t in changed.graph.initializer:
        if t.name in orders:
            w = numpy_helper.to_array(t)
            rows = {"rows": w, "columns": w.T, "window": np.moveaxis(w, 1, -1).reshape(
                len(w), -1)}[orders[t.name][0]]
            numbers = nearest(np.ascontiguousarray(rows), packing).numbers(rows.shape[1])
            if orders[t.name][0] == "columns":
                numbers = numbers.T
            if orders[t.name][0] == "window":
                numbers = np.moveaxis(numbers.reshape(len(w), *w.shape[2:], w.shape[1]), -1, 1)
            t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numbers), t.name))
    with jitcl.compile(changed, device="reference") as made:
        return np.asarray(made.run(IDS12)["y"])


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", [s for s in present() if s != "reference"])
@pytest.mark.parametrize("packing", KINDS[:3], ids=lambda p: p.said)
def test_devices_agree_with_weights_as_numbers(device: str, packing: Packing) -> None:
    want = plain(net(), packing)
    with jitcl.compile(net(), device=device, memory=packing.said) as made:
        got = made.run(IDS12)["y"]
        plan, = made.plans
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    count = sum(numpy_helper.to_array(t).size for t in net().graph.initializer)
    most = (packing.bits + 16 / 32 + (0 if packing.symmetric else packing.bits / 32)) / 8
    nbytes = sum(c.nbytes for c in plan.constants.values())
    assert nbytes < 1.12 * most * count                 # sums of 144 have blocks for 160


def test_channels_that_are_as_good_as_zero_keep_nobody_from_being_packed() -> None:
    x, w = graph_input("x", TensorType("f32", (2, 64))), normal(64, 32)
    w[:, 5] *= np.float32(1e-9)
    graph = Graph("g", (x,), (("y", g.matmul(x, const(w))),))
    assert PackWeights(Packing(4, 32)).run(graph) != graph


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e9, 1e-9, np.nan])
def test_weights_that_scales_dont_reach_are_not_rounded_for_inputs(scale, tmp_path: Path) -> None:
    """They stay, in a model of which others are packed; alone, it has none."""
    w = normal(64, 64)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
             helper.make_node("MatMul", ["a", "v"], ["y"], "second")]
    made = helper.make_model(helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", 1, [4, 64])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(w * np.float32(scale), "w"), numpy_helper.from_array(w, "v")]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = jitcl.compile(made, device="cpu", memory={"bits": 8}, calibrate={"x": normal(4, 64)},
                          cache_dir=tmp_path)
    assert sorted(len(c.tobytes()) for c in found.plan.constants.values())[-1] == w.nbytes


@pytest.mark.parametrize("wide", ["first", "second"])
def test_weights_that_are_read_in_four_bits_and_in_eight(wide, tmp_path: Path) -> None:
    """One matrix of two products: each has the bits that it was given, calibrated or not."""
    made = helper.make_model(helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
         helper.make_node("MatMul", ["a", "w"], ["y"], "second")], "net",
        [helper.make_tensor_value_info("x", 1, [4, 64])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(normal(64, 64), "w")]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    sizes = []
    for calibrate in (None, {"x": normal(4, 64)}):
        found = jitcl.compile(made, device="cpu", memory={"bits": 4, "wide": [wide]},
                              calibrate=calibrate, cache_dir=tmp_path)
        sizes.append(sorted(c.nbytes for c in found.plan.constants.values()))
    assert sizes[0] == sizes[1] and {2048, 4096} <= {*sizes[0]}


def test_names_that_are_skipped() -> None:
    sizes = {}
    for skip in ([], ["/first"], ["/con*"]):
        with jitcl.compile(net(), device="cpu", memory={"bits": 4, "skip": skip}) as made:
            plan, = made.plans
            sizes[str(skip)] = sum(c.nbytes for c in plan.constants.values())
    assert sizes["['/first']"] - sizes["[]"] > 64 * 96 * 3
    assert sizes["['/con*']"] - sizes["[]"] > 32 * 16 * 9 * 3


@pytest.mark.slow
@pytest.mark.parametrize("calibrate", [pytest.param(None, marks=pytest.mark.slow), IDS12])
def test_some_take_eight_bits(calibrate, tmp_path: Path) -> None:
    """In memory, from the cache, and in a file; what remains is in 4."""
    options, sizes = {"bits": 4, "block": 32}, []
    for wide in ([], ["/first", "/conv"], ["/first", "/conv"]):
        options["wide"] = wide
        with jitcl.compile(net(), device="cpu", memory=options, calibrate=calibrate,
                           cache_dir=tmp_path) as made:
            want = made.run(IDS12)["y"]
            sizes.append(sum(c.nbytes for c in made.plan.constants.values()))
    filled = 32 * (16 * 9 + 16)                 # sums of whole blocks
    assert sizes[1] == sizes[2] == sizes[0] + (64 * 96 + filled) // 2
    jitcl.quantize(net(), tmp_path / "q.onnx", calibrate=calibrate, cache_dir=tmp_path, **options)
    kinds = {t.name: t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert [n.split("_")[0] for n, kind in kinds.items() if kind == onnx.TensorProto.INT8] == [
        "w1", "filters"]
    with jitcl.compile(tmp_path / "q.onnx", device="cpu") as made:
        got = made.run(IDS12)["y"]
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize(("given", "wanted"), [
    ({"bits": 3}, "memory: bits is 3: use one of 4, 8"),
    ({"bits": True}, "memory: bits is True: use one of 4, 8"),
    ({"bits": 4, "block": 48}, "memory: block is 48: use one of 32, 64, 128"),
    ({"bit": 4}, "memory: got 'bit', wanted bits, block, symmetric, skip, plan, wide"),
    ({"skip": 3}, "memory: skip is 3: use a list of names or patterns of nodes"),
    ("bits=4;bits=8", "memory='bits=4;bits=8' says twice what 'bits' is"),
    ("bits=five", "memory: bits is 'five': use one of 4, 8"),
    ({"wide": ["/frst"]}, "memory: wide: model net has no node '/frst'\n"
                          "  The nearest names are: '/first', "),
    ({"skip": ["/frst"]}, "memory: skip: model net has no node '/frst'\n"
                          "  The nearest names are: '/first', "),
    ({"skip": ["/x/*"]}, "memory: skip: no node of model net matches '/x/*'\n"),
    ("tight", "memory='tight' is not known: use one of low, normal, high"),
])
def test_what_is_wrong_is_said(given, wanted) -> None:
    with pytest.raises(OptionError) as error:
        jitcl.compile(net(), device="reference", memory=given)
    assert wanted in str(error.value)


def test_text_says_the_same() -> None:
    packing = Packing.of({"bits": 4, "block": 32, "symmetric": False, "skip": ["/a", "/b*"],
                          "plan": "low", "wide": ["/c", "/d"]})
    assert Packing.of(packing.said) == packing
    options = Options("high", packing.said)
    assert (options.memory, options.weights) == ("low", packing)
    assert options.key_parts() != Options("high", "bits=4;block=32").key_parts()


def test_calibration_is_kept_and_brings_outputs_nearer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tried = [{"ids": rng.integers(0, 40, 12)} for _ in range(8)]
    with jitcl.compile(net(), device="reference") as made:
        want = made.run(IDS12)["y"]
    memory = {"bits": 4, "block": 32, "skip": ["/embed"]}

    def off(**more) -> float:
        with jitcl.compile(net(), device="reference", memory=memory, cache_dir=tmp_path,
                           **more) as made:
            return float(np.linalg.norm(made.run(IDS12)["y"] - want))

    nearer = off(calibrate=tried)
    assert nearer < 0.8 * off()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitcl.runtime.calibrated.gptq", lambda *_: pytest.fail("rounded again"))
        assert off(calibrate=tried) == nearer


def test_calibration_wants_packed_weights() -> None:
    with pytest.raises(OptionError, match="calibrate of memory="):
        jitcl.compile(net(), device="reference", calibrate=IDS12)
    with pytest.raises(InputError, match="has no weights that would be packed"):
        jitcl.compile(net(), device="reference", memory={"bits": 4, "skip": ["*"]},
                      calibrate=IDS12)


# ---- language models

@pytest.mark.slow
def test_a_language_model_of_packed_weights(tmp_path: Path) -> None:
    folder = stored("llama", tmp_path)
    want = jitcl.lm.load(folder, device="cpu").logits(IDS)
    off = {}
    for calibrate in (None, IDS):
        with jitcl.lm.load(folder, device="cpu", memory={"bits": 8, "block": 32},
                           calibrate=calibrate) as model:
            got = model.logits(IDS)
            off[calibrate is None] = float(np.abs(got - want).max() / np.abs(want).max())
    assert 0 < off[False] < 0.7 * off[True] < 0.07
    with pytest.raises(OptionError, match="language models have none"):
        jitcl.lm.load(folder, device="cpu", memory={"bits": 8, "skip": ["*"]})
    with pytest.raises(OptionError, match="calibrate: weights are rounded for a text where"):
        jitcl.lm.load(folder, device="cpu", calibrate=IDS)


def written(model: jitcl.lm.LanguageModel, seeds: range) -> list[int]:
    """What the model itself writes, by chance."""
    from jitcl.lm.sampling import Sampling

    found: list[int] = []
    for seed in seeds:
        start = model.tokenize(("ROMEO:\n", "KING:\n")[seed % 2])
        found += [*start, *model.tokens(start, 250, Sampling(temperature=1.0), seed)]
    return found


@needs_models
@pytest.mark.slow
def test_the_loss_of_shakespeare() -> None:
    """On the 256 held tokens that are there; calibrated on what the model writes itself."""
    folder = MODELS / "shakespeare-llama"
    held = json.loads((folder / "expected.json").read_text())["val_tokens_first_256"]
    with jitcl.lm.load(folder, device="cpu") as model:
        text = written(model, range(8))

    def scored(**options: Any) -> tuple[float, list[int]]:
        with jitcl.lm.load(folder, device="cpu", **options) as model:
            return model.score(held).loss, weight_bytes(model._model(256, "logits"))

    want, _ = scored()
    assert abs(want - 3.1636) < 1e-3
    loss, halves = scored(precision="normal")
    assert loss < 1.002 * want
    for memory, worse, part in (({"bits": 8}, 1.005, 0.56), ({"bits": 4, "block": 32}, 1.04, 0.31)):
        loss, sizes = scored(memory=memory, calibrate=text)
        assert loss < worse * want
        assert all(few < part * many for few, many in zip(sizes, halves))


def weight_bytes(model: jitcl.Model) -> list[int]:
    """Of constants: in the plan, and of what is allocated."""
    (plan,) = model.plans
    return [sum(c.nbytes for c in plan.constants.values()),
            jitcl.memory_stats().devices["cpu"].constants]


PAST = [f"{layer}.{kind}" for layer in range(5) for kind in ("key", "value")]


def stories_feeds(texts: np.ndarray, past: dict[str, np.ndarray] | None = None
                  ) -> dict[str, np.ndarray]:
    """The last tokens of texts [n, t], behind what the cache has of those before."""
    count, end = texts.shape
    past = past or {n: np.zeros((count, 4, 0, 8), np.float32) for n in PAST}
    begin = past[PAST[0]].shape[2]
    return {"input_ids": texts[:, begin:], "attention_mask": np.ones((count, end), np.int64),
            "position_ids": np.tile(np.arange(begin, end), (count, 1)),
            **{f"past_key_values.{n}": x for n, x in past.items()}}


def stories(model: jitcl.Model, seed: int, count: int, length: int = 192) -> np.ndarray:
    """Texts that the model itself writes, by chance."""
    rng, past = np.random.default_rng(seed), None
    texts = np.ones((count, 1), np.int64)
    while texts.shape[1] <= length:
        out = model.run(stories_feeds(texts, past))
        past = {n: out[f"present.{n}"] for n in PAST}
        chances = softmax(out["logits"][:, -1].astype(np.float64))
        tokens = [rng.choice(chances.shape[1], p=p) for p in chances]
        texts = np.concatenate([texts, np.array(tokens)[:, None]], 1)
    return texts


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@needs_models
@pytest.mark.long
def test_the_loss_of_stories() -> None:
    """260 thousand weights, in sums of 64: 4 bits need zero points, and some layers 8."""
    path = MODELS / "stories260K_kv.onnx"
    with jitcl.compile(path, device="cpu") as model:
        held, tried = stories(model, 1, 16), stories(model, 2, 16)

    def scored(**options: Any) -> tuple[float, list[int]]:
        with jitcl.compile(path, device="cpu", **options) as model:
            given = softmax(model.run(stories_feeds(held[:, :-1]))["logits"].astype(np.float64))
            sizes = weight_bytes(model)
        chosen = np.take_along_axis(given, held[:, 1:, None], -1)
        return float(-np.log(chosen).mean()), sizes

    want, _ = scored()
    loss, halves = scored(precision="normal")
    assert loss < 1.002 * want
    wide = ["/lm_head/*", "/model/embed_tokens/*", "*.[1-4]/*/k_proj/*"]
    for memory, worse, part in (
            ({"bits": 8}, 1.005, 0.56),
            ({"bits": 4, "block": 32, "symmetric": False, "wide": wide}, 1.04, 0.31)):
        loss, sizes = scored(memory=memory, calibrate=stories_feeds(tried[:, :-1]))
        assert loss < worse * want
        assert all(few < part * many for few, many in zip(sizes, halves))
