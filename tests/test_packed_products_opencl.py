"""Products with weights of 4 and 8 bits that stay packed, on GPUs that stage no tiles: a vector of
columns is decoded at a time, as the references have it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import evaluate
from jitcl.target.features import features_of
from tests.compiling import plan_on
from tests.devices import cpus, device
from tests.lacking import unless
from tests.test_packed_products import g, weights
from tests.test_templates_opencl import POSES

DEVICES = cpus()
KINDS = ["uint4", "i8", "u8", "half scales", "shifted"]
MALI = POSES["mali"]
SLICED = {**POSES["gpu"], "images": True, "image_pixels": 1 << 16, "compute_units": 8}

pytestmark = [unless(DEVICES, "there is no OpenCL driver of a CPU"), pytest.mark.in_turn]


def compared(spec: str, y: Node, inputs: dict[Node, np.ndarray], pose: dict[str, object],
             bound: np.ndarray | float, precision: str = "high") -> str:
    """Results no further from the reference's than `bound`; the text of the product's kernel."""
    place = device(spec)
    target = dataclasses.replace(place.target, **pose)
    plan = plan_on(place, Graph("t", tuple(inputs), (("y", y),)), target, precision, passes=False)
    (got,) = place.load(plan).run([*inputs.values()])
    assert (np.abs(got - evaluate(y, inputs)) <= bound).all()
    (text,) = {k.body for k in plan.kernels if k.template == "gemm_opencl"}
    return text


@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("pose", [MALI, SLICED], ids=["mali", "slices"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m, n, k, block, dtype", [
    (1, 70, 1152, 32, "f32"), (3, 131, 128, 16, "f16"), (17, 200, 256, 128, "f32"),
    (2, 4, 40, 8, "f32")])
def test_products(spec, pose, kind, m, n, k, block, dtype):
    a, w = graph_input("a", TensorType(dtype, (m, k))), weights(kind, n, k, block, dtype)
    rows = np.random.default_rng(1).standard_normal((m, k)).astype(dtypes.to_numpy(dtype))
    bound = np.abs(rows.astype("f4")) @ np.abs(evaluate(w).astype("f4"))
    text = compared(spec, g.matmul(a, w), {a: rows}, pose,
                    (1e-6 if dtype == "f32" else 2**-10) * bound + 1e-6)
    bits = 8 if kind in ("i8", "u8") else 4
    unsigned = "u" if kind in ("u8", "shifted") else ""
    assert f" jitcl_{unsigned}int{bits}_f32x4(" in text and "vload4" not in text
    assert {"int8", "int4"} & features_of(text) == ({"int8"} if bits == 8 else {"int4", "int8"})


@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("precision", ["high", "normal", "low"])
def test_what_is_fused(spec, rows, precision):
    """What is read through views, a bias and a residual; several matrices of rows."""
    x, r = (graph_input(name, TensorType("f32", dims)) for name, dims in (
        ("x", (rows, 5, 64)), ("r", (2, rows, 40))))
    w, bias = weights("uint4", 40, 320, 32), const(np.arange(40, dtype=np.float32))
    a = g.reshape(g.transpose(g.abs(x), perm=(0, 2, 1)), shape=(1, rows, 320))
    y = g.relu(g.add(g.add(g.matmul(g.concat(a, g.neg(a), axis=0), w), bias), r))
    rng = np.random.default_rng(3)
    inputs = {n: rng.standard_normal(n.type.dims).astype("f4") for n in (x, r)}
    most = float(np.abs(evaluate(y, inputs)).max())
    compared(spec, y, inputs, MALI, (1e-5 if precision == "high" else 1e-2) * most, precision)


def test_one_copy_of_weights_serves_all_numbers_of_rows():
    """Of an answer's step and a prompt's piece, whose tiles differ."""
    place, w = device(DEVICES[-1]), weights("shifted", 64, 256, 32)
    target = dataclasses.replace(place.target, **{**MALI, "registers": 8})
    a, b = (graph_input("ab"[i], TensorType("f32", (m, 256))) for i, m in enumerate((1, 64)))
    products = ("y", g.matmul(a, w)), ("z", g.matmul(b, w))
    plan = plan_on(place, Graph("t", (a, b), products), target)
    assert len({k.entry for k in plan.kernels}) == 2
    assert sorted(c.nbytes for c in plan.constants.values()) == [2048, 2048, 64 * 256 // 2]
