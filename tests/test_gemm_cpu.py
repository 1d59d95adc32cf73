"""The CPU's matrix products against the ops' NumPy references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import jitcl
from jitcl import config
from jitcl.codegen.plan import Plan
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.target import CpuCore, Target
from jitcl.templates.cpu.tiling import Tile, choose_tile
from tests.compiling import compile_graph
from tests.cpu_templates import DEVICE, WIDTH, b, check


def gemm_case(
    a, shape, *, const_b=True, transposed=False, bias=False, residual=False, act=None, dtype="f32",
    view=None
):
    rng = np.random.default_rng(1)
    kind = "f4" if dtype == "f32" else "f2"
    inputs = [graph_input("a", TensorType(dtype, a))]
    left = VIEWS[view](inputs[0]) if view else inputs[0]
    if const_b:
        w = const((rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(kind))
    else:
        w = graph_input("b", TensorType(dtype, shape))
        inputs.append(w)
    if transposed:
        w = b.transpose(w, perm=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
    y = b.matmul(left, w)
    if bias:
        y = b.add(y, const(rng.standard_normal(y.type.dims[-1:]).astype(kind)))
    if residual:
        inputs.append(graph_input("r", y.type))
        y = b.add(y, inputs[-1])
    return [b.op(act, y) if act else y], inputs, dtype


VIEWS = {
    "heads": lambda x: b.reshape(b.transpose(x, perm=(0, 2, 1, 3)),
                                 shape=(x.type.dims[0], x.type.dims[2], x.type.dims[1]
                                        * x.type.dims[3])),
    "transposed": lambda x: b.transpose(x, perm=(1, 0)),
}
GEMMS = {
    "constant": {"a": (128, 64), "shape": (64, 96)},
    "odd sizes, bias, residual": {
        "a": (130, 33),
        "shape": (33, 100),
        "bias": True,
        "act": "relu",
        "residual": True,
    },
    "two inputs": {
        "a": (130, 33),
        "shape": (33, 100),
        "bias": True,
        "act": "tanh",
        "const_b": False,
    },
    "batched": {"a": (2, 3, 20, 16), "shape": (2, 3, 16, 40), "const_b": False, "residual": True},
    "transposed": {
        "a": (2, 3, 20, 16),
        "shape": (2, 3, 40, 16),
        "const_b": False,
        "transposed": True,
    },
    "batch times constant": {"a": (2, 3, 20, 16), "shape": (16, 40), "bias": True},
    "broadcast batches": {"a": (2, 1, 20, 16), "shape": (3, 16, 40), "const_b": False},
    "one row": {"a": (1, 64), "shape": (64, 96), "bias": True},
    "few rows": {"a": (3, 64), "shape": (64, 97), "bias": True, "act": "sigmoid"},
    "few columns": {"a": (5, 64), "shape": (64, 9), "bias": True, "act": "sigmoid"},
    "half": {"a": (2, 20, 16), "shape": (16, 40), "bias": True, "dtype": "f16"},
    "half, odd depth": {"a": (2, 20, 37), "shape": (37, 40), "dtype": "f16"},
    "half, one row": {"a": (1, 200), "shape": (200, 100), "bias": True, "dtype": "f16"},
    "half, deep": {"a": (40, 2100), "shape": (2100, 90), "dtype": "f16"},
    "one product": {"a": (7, 1), "shape": (1, 40), "bias": True},
    "blocks of rows": {"a": (700, 300), "shape": (300, 64), "const_b": False},
    "rows in one set": {"a": (40, 1024), "shape": (1024, 100), "bias": True},
    "rows in two sets": {"a": (1, 2, 40, 1536), "shape": (1536, 100), "bias": True},
    "rows too far apart": {"a": (20, 4096), "shape": (4096, 40)},
    "transposed rows": {"a": (60, 20), "shape": (60, 40), "view": "transposed"},
    "heads": {"a": (1, 6, 30, 20), "shape": (120, 100), "bias": True, "view": "heads"},
    "heads, long sums": {"a": (1, 13, 30, 100), "shape": (1300, 72), "view": "heads"},
    "heads, batched": {"a": (2, 6, 30, 20), "shape": (120, 100), "view": "heads"},
    "heads, few rows": {"a": (1, 6, 3, 20), "shape": (120, 100), "view": "heads"},
    "long sums": {"a": (40, 2100), "shape": (2100, 72), "bias": True, "residual": True},
    "wide": {"a": (130, 64), "shape": (64, 256), "const_b": False, "bias": True},
    "wide, batched": {"a": (2, 3, 20, 16), "shape": (2, 3, 16, 48), "const_b": False},
    "wide, merged": {"a": (2, 3, 20, 16), "shape": (16, 80), "const_b": False, "residual": True},
    "wide, one row": {"a": (1, 64), "shape": (64, 96), "const_b": False},
    "wide, heads": {"a": (1, 6, 30, 20), "shape": (120, 64), "const_b": False, "view": "heads"},
    "wide, long sums": {"a": (40, 2100), "shape": (2100, 48), "const_b": False, "bias": True},
    "wide, read once": {"a": (20, 3000), "shape": (3000, 128), "const_b": False},
    "wide, too far apart": {"a": (40, 30), "shape": (30, 1040), "const_b": False},
    "wide, too many": {"a": (40, 12000), "shape": (12000, 96), "const_b": False},
    "long sums, batched": {"a": (2, 2, 17, 1300), "shape": (2, 2, 1300, 40), "const_b": False},
}


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("name", GEMMS)
def test_matrix_product(name):
    check(*gemm_case(**GEMMS[name]), "gemm_cpu")


@pytest.mark.parametrize("name", GEMMS)
def test_operands_are_read_where_they_lie(name):
    """The first operand is copied only where it must be, the second where it is computed and not
    small or not whole vectors wide."""
    outputs, inputs, _ = gemm_case(**GEMMS[name])
    graph = Graph("t", tuple(inputs), (("y", outputs[0]),))
    plan = compile_graph(graph, DEVICE.target, passes=False).plan
    copied = {"rows too far apart", "transposed rows", "heads, batched", "heads, few rows",
              "broadcast batches"}
    packed = {"transposed", "broadcast batches", "wide, too far apart", "wide, too many"}
    wide = GEMMS[name]["shape"][-1] % WIDTH == 0 and name not in packed
    copies = sum(k.entry.startswith("arranged") for k in plan.kernels)
    assert copies == (name in copied) + ("const_b" in GEMMS[name] and not wide)


def test_tiles_of_rows_that_share_sets_of_a_cache_are_low():
    def tile(k):
        return CpuCore(1 << 20).rows_in_l1(4 * k)

    assert tile(1024) == tile(3072) == 6    # of a set's eight places
    assert tile(1536) == 12 and tile(768) == 24
    assert tile(1000) >= 28                 # pitches that go through all sets


def test_the_share_of_a_cache_that_parts_of_rows_can_use():
    def used(pitch, terms):
        return CpuCore(1 << 20).sets_used(4 * pitch, 4 * terms)

    assert used(1024, 342) == pytest.approx(1 / 3, rel=0.01)
    assert used(2048, 410) == pytest.approx(1 / 5, rel=0.01)
    assert used(1024, 1024) == used(768, 384) == used(1000, 10) == 1


def numbers(plan: Plan) -> dict[str, int]:
    """The last step's integer arguments, by name."""
    (kernel,) = (k for k in plan.kernels if k.entry == plan.steps[-1].kernel)
    return dict(zip(kernel.params, plan.steps[-1].params))


def blocks_of_rows(m: int, k: int) -> tuple[int, int]:
    """(tiles of rows, those in work at a time) of a product with many columns."""
    a = graph_input("a", TensorType("f32", (m, k)))
    graph = Graph("p", (a,), (("y", b.matmul(a, const(np.zeros((k, 1024), np.float32)))),))
    target = Target("cpu", "test", vector_width=16, registers=32)
    values = numbers(compile_graph(graph, target, passes=False).plan)
    return values["m_tiles"], values["m_block"]


def test_fewer_rows_are_in_work_where_they_share_sets():
    assert blocks_of_rows(2048, 2048)[1] < 10 < blocks_of_rows(2048, 2040)[1]
    tiles, together = blocks_of_rows(128, 3072)              # not many: all, to read b once
    assert together == tiles


@pytest.mark.parametrize("name", ["two inputs", "long sums"])
def test_matrix_product_is_equal_on_any_thread_count(name):
    results = []
    for n in (1, 2, 3):
        with config.override(threads=n):
            results.append(check(*gemm_case(**GEMMS[name]), "gemm_cpu")[0].tobytes())
    assert len(set(results)) == 1


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("name", ["long sums", "long sums, batched", "heads, long sums",
                                  "wide, long sums"])
def test_a_matrix_product_in_parts_is_the_whole_one_bit_for_bit(name, monkeypatch):
    def result(panel):
        monkeypatch.setattr(CpuCore, "panel", panel)
        monkeypatch.setattr(CpuCore, "rows", 1 << 30)      # of a smaller cache fewer terms stay
        outputs, inputs, _ = gemm_case(**GEMMS[name])
        graph = Graph("t", tuple(inputs), (("y", outputs[0]),))
        values = numbers(compile_graph(graph, DEVICE.target, passes=False).plan)
        assert (values["k_block"] < values["k_count"]) == (panel < 1 << 20)
        return check(*gemm_case(**GEMMS[name]), "gemm_cpu")[0].tobytes()

    # Narrower vectors have narrower panels: what stays is to be too small for them as well.
    assert result(40_000 * DEVICE.target.vector_width // 16) == result(1 << 30)


def parts_of_sums(m: int, k: int, n: int) -> int:
    a = graph_input("a", TensorType("f32", (m, k)))
    graph = Graph("p", (a,), (("y", b.matmul(a, const(np.zeros((k, n), np.float32)))),))
    target = Target("cpu", "test", vector_width=16, registers=32)
    values = numbers(compile_graph(graph, target, passes=False).plan)
    return -(-values["k_count"] // values["k_block"])


def test_sums_come_in_parts_where_that_reads_the_second_operand_less_often():
    assert parts_of_sums(128, 768, 3072) == 1
    assert parts_of_sums(64, 3000, 768) == 2           # a panel is to stay in the cache
    assert parts_of_sums(128, 3000, 768) == 4          # and all rows: the panels go by once
    assert parts_of_sums(2048, 4000, 2048) == 5        # for many rows 15 parts would cost more


def test_cores_with_one_unit_for_fmas_get_tiles_that_fit_exactly():
    def tile(fmas):
        target = Target("cpu", "test", vector_width=16, registers=32, fmas=fmas)
        return choose_tile(1, 64, 4, target, fmas=target.fmas)

    assert tile(2) == Tile(1, 13, 2)        # its loads go beside; the last rows come twice
    assert tile(1) == Tile(1, 16, 1)        # more loads for an FMA: here they cost nothing


@pytest.mark.parametrize("soft, stored", [(False, "float16"), (True, "float32")])
def test_halves_stay_halves_in_panels(soft: bool, stored: str) -> None:
    """But on CPUs that have no instruction to convert them."""
    outputs, inputs, _ = gemm_case((1, 64), (64, 96), dtype="f16")
    graph = Graph("g", tuple(inputs), (("y", outputs[0]),))
    generated = compile_graph(graph, replace(DEVICE.target, soft_half=soft))
    (panels,) = generated.plan.constants.values()
    assert panels.dtype == stored
    np.testing.assert_array_equal(panels.reshape(-1).sum(dtype="f8"),
                                  outputs[0].inputs[1].data.sum(dtype="f8"))


def test_an_operand_of_several_products_is_arranged_once():
    """Products of one matrix read the same panels; behind one of another matrix they are made
    again, and no panels wait in memory for those that are not there yet."""
    graph = jitcl.parse("""graph @g(%x: f32[21,21], %w: f32[21,21], %v: f32[21,21]) {
      %1 = matmul(%x, %w)
      %2 = matmul(%1, %w)
      %3 = matmul(%2, %v)
      %4 = matmul(%3, %w)
      return %4
    }""")
    model = jitcl.compile(graph, device="cpu")
    arranged = [s.buffers[0] for s in model.plan.steps if "arranged" in s.name]
    assert len(arranged) == 3 and arranged[0] == arranged[2] != arranged[1]
    panels = [model.plan.buffers[s.writes[0]] for s in model.plan.steps if "arranged" in s.name]
    assert len({p.offset for p in panels}) < len(panels)
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal((21, 21)).astype(np.float32) / 5 for _ in range(3))
    (result,) = model.run({"x": x, "w": w, "v": v}).values()
    np.testing.assert_allclose(result, x @ w @ w @ v @ w, rtol=1e-4, atol=1e-4)
