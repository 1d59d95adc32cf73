"""What is expected of onnx's backend tests: which may fail, and why that is not ours."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FLOOR = 1860                # node tests that pass on each device, of the 1,884 of onnx 1.23.2

_DICE = ("Bernoulli is random, and the expectation is one draw of NumPy's generator, which no seed "
         "of the model determines; ours are draws, too (test_onnx_conformance.py shows both)")
_DFT = ("the expectation was computed in float32: it is off from NumPy's transform in float64 by "
        "up to 1.5e-6 where the test allows 1e-7 (test_onnx_conformance.py shows it)")
_CORNERS = ("align_corners with a size that is no whole number (4 * 0.6): the expectation takes "
            "2.4 for the length of the output; ONNX's text, onnxruntime and torch take 2, so that "
            "the last element is the input's last (test_resize.py shows both)")
# test -> (devices, or () for all; why its failure is not jitcl's)
MAY_FAIL: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys((f"test_bernoulli{kind}{body}" for kind in ("", "_double", "_seed")
                     for body in ("", "_expanded")), ((), _DICE)),
    **dict.fromkeys((f"test_resize_downsample_scales_{mode}_align_corners"
                     for mode in ("linear", "cubic")), ((), _CORNERS)),
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), ((), _DFT)),
}
# by luck these pass
RANDOM = {name for name, (_, why) in MAY_FAIL.items() if why is _DICE}


@functools.cache
def runner() -> ModuleType:
    """benchmarks/onnx_node_tests.py as a module."""
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "onnx_node_tests.py"
    spec = importlib.util.spec_from_file_location("onnx_node_tests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onnx_node_tests"] = module
    spec.loader.exec_module(module)
    return module


def excused(device: str) -> dict[str, str]:
    """Tests that may fail on a device, and why."""
    return {name: why for name, (devices, why) in MAY_FAIL.items()
            if not devices or device in devices}
