"""Products with weights of 4 and 8 bits that stay packed, on CPUs that add products of bytes by
fours: as the references have them, to the precision of rows of 24 bits (f16: of 16).
"""

from __future__ import annotations

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.devices.cpu import CpuDevice
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder, evaluate
from jitcl.templates import packed
from jitcl.templates.gemm_opencl import codes
from jitcl.templates.gemm_opencl.codes import Coded
from tests.compiling import plan_on

DEVICE = CpuDevice()
pytestmark = pytest.mark.skipif(
    not DEVICE.target.byte_dot, reason="this CPU does not add products of bytes by fours")
g = GraphBuilder()


def weights(kind: str, n: int, k: int, block: int, to: str = "f32") -> Node:
    """[k, n] in blocks along k, with codes over their whole range."""
    rng = np.random.default_rng(0)
    dims = (n, k // block, block)
    scale = const(rng.uniform(0.01, 0.02, (n, k // block, 1)).astype(
        np.float16 if kind == "half scales" else np.float32))
    if kind == "shifted":
        packed = const(rng.integers(0, 256, n * k // 2).astype(np.uint8))
        shift = const(rng.uniform(-0.1, 0, scale.type.dims).astype(dtypes.to_numpy(to)))
        w = g.add(g.dequantize(g.unpack_uint4(packed, shape=dims), scale, to=to), shift)
    elif kind in ("uint4", "half scales"):
        packed = const(rng.integers(0, 256, n * k // 2).astype(np.uint8))
        w = g.dequantize(g.unpack_uint4(packed, shape=dims), scale, const(8, "u8"), to=to)
    elif kind == "i8":
        w = g.dequantize(const(rng.integers(-128, 128, dims).astype(np.int8)), scale, to=to)
    else:
        w = g.dequantize(const(rng.integers(0, 256, dims).astype(np.uint8)), scale,
                         const(131, "u8"), to=to)
    return g.transpose(g.reshape(w, shape=(n, k)), perm=(1, 0))


def compared(y: Node, inputs: dict[Node, np.ndarray], bound: np.ndarray) -> None:
    """Results no further from the reference's than `bound`."""
    plan = plan_on(DEVICE, Graph("t", tuple(inputs), (("y", y),)), passes=False)
    assert "gemm_packed_cpu" in {k.template for k in plan.kernels}
    (got,) = DEVICE.load(plan).run([*inputs.values()])
    assert (np.abs(got - evaluate(y, inputs)) <= bound).all()


def most(rows: np.ndarray, w: np.ndarray, unit: int) -> np.ndarray:
    """How far a product [m, n] may be off: half a step of a unit's largest term, for each weight of
    the unit; and what float32 rounds, or f16, which stores results and the reference's weights."""
    steps = {"f4": 8355584, "f2": 32512}[rows.dtype.str[1:]]
    rounding = 1e-6 if rows.dtype == np.float32 else 2**-10
    rows = rows.astype("f4")
    step = np.abs(rows).reshape(len(rows), -1, unit).max(-1) / steps
    w = w.astype("f4")
    units = np.abs(w.T).reshape(w.shape[1], -1, unit).sum(-1)
    return 0.5 * step @ units.T + rounding * np.abs(rows) @ np.abs(w)


@pytest.mark.parametrize("kind", ["uint4", "i8", "u8"])
def test_weights_are_arranged_piece_by_piece(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 75 rows 16 at a time, and 4 columns of 75."""
    w = packed.Weights.of(weights(kind, 75, 64, 32))
    assert w is not None
    data, coded = w.const.data, Coded(w)
    whole = [w.codes(data, 8, pairs) for pairs in (False, True)] + [coded._words(data)]
    for module in (packed, codes):
        monkeypatch.setattr(module, "PIECE", 700)
    pieces = [w.codes(data, 8, pairs) for pairs in (False, True)] + [coded._words(data)]
    for one, other in zip(whole, pieces):
        assert one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("kind", ["uint4", "i8", "u8", "half scales", "shifted"])
@pytest.mark.parametrize("m, n, k, block, dtype", [
    (1, 70, 96, 32, "f32"), (3, 130, 128, 16, "f16"), (17, 200, 256, 128, "f32"),
    (30, 75, 64, 32, "f32"), (25, 40, 64, 32, "f16"), (61, 150, 128, 64, "f16"),
    (64, 9, 96, 16, "f16")])
def test_products(kind: str, m: int, n: int, k: int, block: int, dtype: str) -> None:
    a, w = graph_input("a", TensorType(dtype, (m, k))), weights(kind, n, k, block, dtype)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((m, k)) * np.exp(rng.normal(0, 3, (m, 1)))
    rows = rows.astype(dtypes.to_numpy(dtype))
    compared(g.matmul(a, w), {a: rows}, most(rows, evaluate(w), min(block, 32)))


def test_what_is_fused_and_what_is_not_finite() -> None:
    """What is read through views, a bias; numbers that are too large, or none, stay so."""
    x = graph_input("x", TensorType("f32", (2, 5, 64)))
    w, bias = weights("uint4", 40, 320, 32), const(np.arange(40, dtype=np.float32))
    a = g.reshape(g.transpose(g.abs(x), perm=(0, 2, 1)), shape=(2, 320))
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2, 5, 64)).astype("f4")
    y = g.relu(g.add(g.matmul(a, w), bias))
    bound = most(evaluate(a, {x: rows}), evaluate(w), 32)
    compared(y, {x: rows}, bound)
    rows[0, 3, 7], rows[1, 2, 5] = np.nan, np.inf
    plan = plan_on(DEVICE, Graph("t", (x,), (("y", g.matmul(a, w)),)), passes=False)
    (got,) = DEVICE.load(plan).run([rows])
    assert np.isnan(got[0]).all() and not np.isfinite(got[1]).any()
