"""Weights read as images of float4, where the target says that they are faster so."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from jitcl import config
from jitcl.codegen.plan import Plan
from jitcl.devices.select import open_device
from jitcl.ir.graph import Graph
from jitcl.runtime.memory import plan_memory
from jitcl.target import Target
from jitcl.target.features import features_of
from tests.compiling import compile_graph
from tests.devices import device, needs_driver
from tests.generated import clang
from tests.generated.kernels import TARGETS
from tests.test_templates_opencl import CONVS, DEVICES, GEMMS, POSES, Own, conv_case

pytestmark = [needs_driver(), pytest.mark.in_turn]
PIXELS = 65536

# case -> whether tiles of a device of few cores are of whole pixels, as GPU ("mali") and as CPU
READ = {
    "1x1": "mali cpu", "1x1, a bias over pixels": "mali cpu", "3x3": "mali cpu",
    "odd sizes, batch": "mali cpu", "stem 7x7": "mali cpu", "groups": "mali cpu",
    "groups of few pixels": "cpu", "asymmetric": "mali cpu", "strided 1x1": "mali cpu",
    "half": "cpu", "half, strided": "cpu", "1-D": "mali cpu", "1-D strided": "mali cpu",
    "constant": "mali cpu", "one row": "mali cpu", "batch, merged": "mali cpu",
    "constant a": "mali cpu", "half product": "mali cpu", "weights not constant": "",
    "one output": ""}


def case(name: str) -> tuple[Graph, list[np.ndarray]]:
    if name in CONVS:
        y, inputs, _ = conv_case(**CONVS[name])
    else:
        y, inputs = GEMMS["half" if name == "half product" else name]()
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal(n.type.dims).astype("f4" if n.type.dtype == "f32" else "f2")
              for n in inputs]
    return Graph("t", tuple(inputs), (("y", y),)), arrays


def plan_of(graph: Graph, target: Target, **fields: Any) -> Plan:
    target = dataclasses.replace(target, **fields)
    plan = compile_graph(graph, target, passes=False, chooser=Own()).plan
    return plan_memory(plan, "slots", "normal", max(64, target.alignment))


def read_as_images(plan: Plan) -> list[str]:
    return [plan.buffers[b].name for s in plan.steps for b in s.images]


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.parametrize("name, pose", [
    ("1x1", "mali"), ("3x3", "mali"), ("3x3", "cpu"), ("groups", "mali"), ("stem 7x7", "mali"),
    ("asymmetric", "cpu"), ("half, strided", "cpu"), ("1-D", "cpu"), ("constant", "mali"),
    ("constant", "cpu"), ("batch, merged", "mali"), ("constant a", "cpu"), ("constant a", "mali"),
    ("1x1, a bias over pixels", "mali")])
def test_results_are_equal_bit_for_bit(name, spec, pose):
    place = device(spec)
    graph, arrays = case(name)
    target = dataclasses.replace(place.target, compute_units=1, **POSES[pose])
    plain = plan_of(graph, target, images=False, image_pixels=PIXELS)
    image = plan_of(graph, target, images=True, image_pixels=PIXELS)
    want = place.load(plain).run(arrays)
    for streamed in (False, True):
        got = place.load(dataclasses.replace(image, streamed=streamed)).run(arrays)
        assert [a.tobytes() for a in got] == [b.tobytes() for b in want]


@clang.needed
@pytest.mark.parametrize("name", READ)
def test_which_weights_are_images(name):
    """And clang takes their kernels."""
    graph, _ = case(name)
    for pose in ("mali", "cpu"):
        target = dataclasses.replace(TARGETS[pose], compute_units=1)
        plan = plan_of(graph, target, images=True, image_pixels=PIXELS)
        assert bool(read_as_images(plan)) == (pose in READ[name])
        kernels = [k for k in plan.kernels if "image" in features_of(k.body)]
        assert bool(kernels) == (pose in READ[name])
        assert clang.objections(kernels) == ""


def test_an_image_has_a_limit():
    graph, _ = case("3x3")
    mali = TARGETS["mali"]
    (weights,) = {b for s in plan_of(graph, mali, images=True, image_pixels=PIXELS).steps
                  for b in s.images}
    plan = plan_of(graph, mali, images=True, image_pixels=PIXELS)
    needed = plan.buffers[weights].nbytes // 16
    assert read_as_images(plan_of(graph, mali, images=True, image_pixels=needed))
    assert not read_as_images(plan_of(graph, mali, images=True, image_pixels=needed - 1))


@pytest.mark.parametrize("fields", [{"images": False}, {"max_vector_width": 2}],
                         ids=["not asked for", "no vectors of 4"])
def test_where_there_is_none(fields):
    graph, _ = case("3x3")
    plan = plan_of(graph, TARGETS["mali"], **{"images": True, "image_pixels": PIXELS, **fields})
    assert not read_as_images(plan)
    assert not any("image" in features_of(k.body) for k in plan.kernels)


@pytest.mark.parametrize("spec", DEVICES)
def test_only_where_it_is_asked_for(spec):
    assert not device(spec).target.images
    with config.override(target=f"images=1,image_pixels={PIXELS}"):
        target = open_device(spec).target
    assert target.images and target.image_pixels == PIXELS


def test_weights_are_staged_once():
    """A texture cache in place of tiles in local memory."""
    graph, _ = case("constant")
    gpu = TARGETS["gpu"]
    templates = [plan_of(graph, gpu, image_pixels=PIXELS, images=images).kernels[-1].template
                 for images in (False, True)]
    assert templates == ["gemm_tiled_opencl", "gemm_opencl"]
