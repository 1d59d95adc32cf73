"""What counts as f32 by decision, and what as a miss, of kernels under "low": without compilers, of
machine code that says it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import static_cost

GPU = "mali-g610"
STATS = {"ls": 2.0, "arith": 1.0, "fma": 1.0, "cvt": 0.5, "sfu": 0.0, "threads": 2,
         "registers": 30, "instructions": 40}
FLOATS = "FMA.f32 r4, r5, r6, r4^"
PAIRS = "FMA.v2f16 r4, r5.h00, r6, r4^"
LONE = "FMA.v2f16.wait2 r4, r5.h00, r6^.h11, r4^.h00"
CODE = "block0 {\n        NOP\n}\n   LOAD.i128.unsigned.slot0 @r5:r6:r7:r8, r2, offset:0\n"


@pytest.fixture
def planned(tmp_path: Path) -> static_cost.Planned:
    """Two convolutions, of which the first reads the model's input."""
    nodes, tensors = [], []
    for i, c in enumerate((3, 64)):
        w = np.full((64, c, 3, 3), 0.01, np.float32)
        tensors.append(numpy_helper.from_array(w, f"w{i}"))
        nodes += [helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"c{i}"], pads=[1] * 4),
                  helper.make_node("Relu", [f"c{i}"], [f"x{i + 1}"])]
    nodes.append(helper.make_node("GlobalAveragePool", ["x2"], ["y"]))
    model = helper.make_model(helper.make_graph(
        nodes, "two", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, (1, 3, 32, 32))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 64, 1, 1))], tensors))
    model.opset_import[0].version, model.ir_version = 13, 8
    onnx.save(model, tmp_path / "two.onnx")
    return static_cost.plan_of(tmp_path / "two.onnx", GPU, "low", {})


def products(planned: static_cost.Planned) -> list[str]:
    """The kernels of the two convolutions."""
    plan, _ = planned
    kernels = {k.entry: k for k in plan.kernels}
    found = [s.kernel for s in plan.steps
             if static_cost.kind_of(s, kernels[s.kernel]) in static_cost.LOOPS]
    assert len(found) == 2
    return found


def told(planned: static_cost.Planned, monkeypatch, codes: list[str]) -> str:
    """What --check prints where the convolutions' machine code has these multiply-adds."""
    lines = dict(zip(products(planned), codes))

    def compiled(files, *_):
        return {name: {"ok": True, "log": "", "stats": STATS,
                       "disasm": CODE + 16 * f"   {lines.get(name, 'NOP')}\n"} for name in files}

    monkeypatch.setattr(static_cost, "compiled", compiled)
    rows = static_cost.measure({(Path("two.onnx"), "low"): planned}, GPU, Path(), Path())
    return static_cost.misses(rows)


def test_a_kernel_that_the_pass_keeps_in_f32_is_listed_with_its_reason(planned, monkeypatch):
    text = told(planned, monkeypatch, [FLOATS, PAIRS])
    first, _ = products(planned)
    decided, _, missed = text.partition("miss a criterion")
    assert f"{first}, " in decided and "of inputs, which may be large" in decided
    assert "1 of " in decided and "are f32 by decision" in decided
    assert missed.strip() == "." and decided.endswith("0 of 5 kernels ")


@pytest.mark.parametrize("code", [FLOATS, LONE])
def test_a_kernel_that_is_to_compute_halves_is_a_miss_where_it_does_not(planned, monkeypatch, code):
    """In f32, or one by one."""
    text = told(planned, monkeypatch, [FLOATS, code])
    _, second = products(planned)
    decided, _, missed = text.partition("miss a criterion")
    assert missed.count("halves") == 1 and f"{second}, " in missed
    assert f"{second}, " not in decided


def test_f32_without_a_decision_is_a_miss(planned, monkeypatch):
    text = told((planned[0], {}), monkeypatch, [FLOATS, PAIRS])
    assert text.partition("miss a criterion")[2].count("halves") == 1
