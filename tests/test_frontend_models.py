"""Real models import at their golden shapes, and their graphs, evaluated by NumPy references, give
the golden outputs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from jitcl.frontends.onnx import import_model, load
from jitcl.ops.builder import evaluate
from tests.real_models import MODELS, goldens, needs_models
from tests.rounding import of_model

NAMES = (
    "squeezenet1.0_fp32",
    "squeezenet1.0_fp16",
    "mnist8",
    "ultraface_rfb320",
    "yolox_nano",
    "selfie_segmentation",
    "super_resolution_espcn",
    "fns_candy_stdops",
    "hyperlpr_y5fu_320",
    "oww_melspectrogram",
    "oww_embedding",
    "minilm_l6_v2",
    "stories260K_kv",
)


@needs_models
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if "candy" in n else n for n in NAMES]
)
def test_golden(name: str) -> None:
    feeds, wanted = goldens(name)[0]
    graph = import_model(load(MODELS / f"{name}.onnx"), {n: v.shape for n, v in feeds.items()})
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    assert [n for n, _ in graph.outputs] == list(wanted)
    for output, node in graph.outputs:
        got, want = evaluate(node, memo).astype(np.float64), wanted[output].astype(np.float64)
        assert got.shape == want.shape
        tolerance = of_model(name) if "fp16" in name else 2e-4   # 3e-5 was seen
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


@needs_models
def test_origins_are_complete() -> None:
    """Every node that is not a constant or an input says which node of the model it came from."""
    graph = import_model(load(MODELS / "yolox_nano.onnx"), {"images": (1, 3, 416, 416)})
    assert all(n in graph.origins for n in graph.nodes if n.op not in ("const", "input"))


@needs_models
def test_large_model_imports_fast() -> None:
    started = time.thread_time()                # waiting for a busy machine does not count
    model = load(MODELS / "minilm_l6_v2.onnx")
    shapes = {"input_ids": (1, 16), "attention_mask": (1, 16), "token_type_ids": (1, 16)}
    import_model(model, shapes)
    assert time.thread_time() - started < 3.0   # 0.5 s on an idle core
    started = time.thread_time()
    import_model(model, dict.fromkeys(shapes, (1, 32)))
    assert time.thread_time() - started < 1.5   # weights are shared with the first specialisation
