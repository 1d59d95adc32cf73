"""Small models that once came out wrong, on every device, beside NumPy's results. The kinds that
they stand for have tests of their own: test_broadcast_operands, test_families_values,
test_extreme_masks, test_resize, test_values_decide, test_forking.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from tests.devices import opened, present
from tests.one_node import Array

DEVICES = pytest.mark.parametrize("device", present())
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def made(lines: str, inputs: dict[str, tuple[int, list[Any]]], output: str,
         constants: dict[str, Any], **attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of lines `result... = Op(operand, ...)`; `attributes` belong to a line by its first
    result."""
    nodes = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        results, call = line.split(" = ")
        op, operands = call.rstrip(")").split("(")
        names = results.split(", ")
        nodes.append(helper.make_node(op, operands.split(", "), names,
                                      **attributes.get(names[0], {})))
    graph = helper.make_graph(
        nodes, "reported",
        [helper.make_tensor_value_info(n, t, dims) for n, (t, dims) in inputs.items()],
        [helper.make_empty_tensor_value_info(output)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def quantised(x: Array) -> tuple[Array, Array, int]:
    """DynamicQuantizeLinear, as its text has it: bytes, scale, zero point."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    zero = int(np.clip(np.rint(-low / scale), 0, 255))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(int), scale, zero


@DEVICES
@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("channels", [24, 33])
def test_dynamically_quantised_conv(device: str, channels: int) -> None:
    """A 1x1 and a 3x3 convolution of bytes whose scale and zero point the input decides."""
    r = np.random.default_rng(channels)
    constants = {"w0": r.integers(-99, 99, (channels, 3, 3, 3)).astype("i1"),
                 "w1": r.integers(-99, 99, (8, channels, 1, 1)).astype("i1"),
                 "k": np.array([0.01], "f4")}
    model = made("""
        q0, s0, z0 = DynamicQuantizeLinear(x)
        a0 = ConvInteger(q0, w0, z0)
        f0 = Cast(a0)
        t0 = Mul(s0, k)
        m0 = Mul(f0, t0)
        q1, s1, z1 = DynamicQuantizeLinear(m0)
        a1 = ConvInteger(q1, w1, z1)
        f1 = Cast(a1)
        t1 = Mul(s1, k)
        y = Mul(f1, t1)""", {"x": (FLOAT, [1, 3, 9, 9])}, "y", constants,
        a0={"pads": [1] * 4}, f0={"to": FLOAT}, f1={"to": FLOAT})
    x = r.standard_normal((1, 3, 9, 9)).astype("f4")

    q, s, z = quantised(x)
    padded = np.pad(q - z, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    m = np.einsum("nchwij,ocij->nohw", windows, constants["w0"].astype(int)) * (s * constants["k"])
    q, s, z = quantised(m.astype("f4"))
    want = np.einsum("nchw,oc->nohw", q - z, constants["w1"][..., 0, 0].astype(int)) * (s * 0.01)
    got = jitcl.compile(model, device=device).run({"x": x})["y"]
    # One step of the second quantisation, times a weight, where its value lay on the border of two.
    assert np.abs(got - want).max() <= 99 * s * 0.01 * 1.01


@DEVICES
def test_rows_masked_everywhere(device: str) -> None:
    """Two layers of attention over a batch whose second text is padded on the left: rows of padding
    are the mean of the values, and no NaN of theirs reaches the next layer."""
    layers = "\n".join(f"""
        kt{i} = Transpose({x})
        q{i} = Mul({x}, scale)
        s{i} = MatMul(q{i}, kt{i})
        t{i} = Add(s{i}, mask)
        p{i} = Softmax(t{i})
        y{i} = MatMul(p{i}, {x})""" for i, x in enumerate(("x", "y0")))
    model = made(layers, {"x": (FLOAT, [2, 3, 7, 16]), "mask": (FLOAT, [2, 1, 7, 7])}, "y1",
                 {"scale": np.float32(0.25)}, kt0={"perm": [0, 1, 3, 2]},
                 kt1={"perm": [0, 1, 3, 2]})
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 16)).astype("f4")
    keep = np.tril(np.ones((7, 7), bool))[None, None].repeat(2, 0)
    keep[1, :, :, :3] = False
    mask = np.where(keep, 0, np.finfo("f4").min).astype("f4")
    want = x
    for _ in range(2):
        scores = (want * np.float32(0.25)) @ want.transpose(0, 1, 3, 2) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = (weights / weights.sum(-1, keepdims=True)) @ want
    got = jitcl.compile(model, device=device).run({"x": x, "mask": mask})["y1"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@DEVICES
def test_rotary_angles_of_a_growing_past(device: str) -> None:
    """Positions come from the past's length, which differs in each step."""
    inverse = (1 / 100 ** (np.arange(0, 16, 2) / 16)).astype("f4")[:, None]
    model = made("""
        ps = Shape(past)
        p = Gather(ps, one)
        xs = Shape(x)
        t = Gather(xs, one)
        end = Add(p, t)
        pos = Range(p, end, one)
        posf = Cast(pos)
        u = Unsqueeze(posf, row)
        angles = MatMul(inverse, u)
        at = Transpose(angles)
        cos = Cos(at)
        k = Mul(x, cos)
        present = Concat(past, k)""",
        {"x": (FLOAT, [1, "t", 8]), "past": (FLOAT, [1, "p", 8])}, "present",
        {"one": np.array(1), "row": np.array([0]), "inverse": inverse},
        posf={"to": FLOAT}, at={"perm": [1, 0]}, present={"axis": 1})
    compiled, past = jitcl.compile(model, device=device), np.zeros((1, 0, 8), "f4")
    r = np.random.default_rng(0)
    for length in (5, 1, 1, 3, 1, 1):
        x = r.standard_normal((1, length, 8)).astype("f4")
        positions = np.arange(past.shape[1], past.shape[1] + length, dtype="f4")
        want = np.concatenate([past, x * np.cos(positions[:, None] * inverse[:, 0])], 1)
        past = compiled.run({"x": x, "past": past})["present"]
        np.testing.assert_allclose(past, want, rtol=1e-5, atol=1e-5)


@DEVICES
@pytest.mark.parametrize("size, scale", [(12, 1.7), (7, 2.3), (9, 0.6)])
def test_align_corners_by_fractional_scales(device: str, size: int, scale: float) -> None:
    """The last sample is the last element, also where size times scale is no integer."""
    model = made("y = Resize(x, , s)", {"x": (FLOAT, [1, 1, 1, size])}, "y",
                 {"s": np.array([1, 1, 1, scale], "f4")},
                 y={"mode": "linear", "coordinate_transformation_mode": "align_corners"})
    x = np.random.default_rng(0).standard_normal((1, 1, 1, size)).astype("f4")
    new = int(np.floor(np.float32(size) * np.float32(scale)))
    want = np.interp(np.arange(new) * (size - 1) / (new - 1), np.arange(size), x.ravel())
    got = jitcl.compile(model, device=device).run({"x": x})["y"]
    np.testing.assert_allclose(got.ravel(), want, rtol=1e-5, atol=1e-5)


@DEVICES
@pytest.mark.parametrize("size, scale, new", [(10, 2.3, 23), (10, 0.7, 7), (20, 1.15, 23),
                                              (80, 0.35, 28)])
def test_scales_that_floats_do_not_hold(device: str, size: int, scale: float, new: int) -> None:
    """The product is float32's, so that 10 * 2.3 makes 23."""
    model = made("y = Resize(x, , s)", {"x": (FLOAT, [1, 1, 1, size])}, "y",
                 {"s": np.array([1, 1, 1, scale], "f4")},
                 y={"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                    "nearest_mode": "floor"})
    x = np.arange(size, dtype="f4").reshape(1, 1, 1, size)
    want = np.floor(np.arange(new, dtype="f4") / np.float32(scale)).astype("f4")
    got = jitcl.compile(model, device=device).run({"x": x})["y"]
    np.testing.assert_array_equal(got.ravel(), want)


@DEVICES
def test_values_decide_how_long_the_result_is(device: str) -> None:
    """Each token sounds as long as a layer says, as in speech; no text is folded on the host."""
    r = np.random.default_rng(0)
    constants = {"table": r.standard_normal((40, 16)).astype("f4"),
                 "w": (r.standard_normal((16, 1)) * 0.5).astype("f4"), "three": np.float32(3),
                 "last": np.array([-1]), "zero": np.array(0), "one": np.array(1),
                 "v0": np.array([0]), "v1": np.array([1])}
    model = made("""
        h = Gather(table, ids)
        l = MatMul(h, w)
        s = Sigmoid(l)
        u = Mul(s, three)
        c = Ceil(u)
        lengths = Squeeze(c, last)
        ends = CumSum(lengths, zero)
        total = ReduceMax(ends)
        n = Cast(total)
        time = Range(zero, n, one)
        at = Cast(time)
        column = Unsqueeze(at, v1)
        row = Unsqueeze(ends, v0)
        before = Less(column, row)
        bf = Cast(before)
        which = ArgMax(bf)
        y = Gather(h, which)""", {"ids": (INT64, ["t"])}, "y", constants,
        total={"keepdims": 0}, n={"to": INT64}, at={"to": FLOAT}, bf={"to": FLOAT},
        which={"axis": 1, "keepdims": 0})
    compiled = jitcl.compile(model, device=device, strict=True)
    for ids in (r.integers(0, 40, n) for n in (4, 4, 9, 4, 15)):
        h = constants["table"][ids]
        sounds = np.ceil(3 / (1 + np.exp(-(h @ constants["w"])[:, 0]))).astype(int)
        np.testing.assert_array_equal(compiled.run({"ids": ids})["y"], np.repeat(h, sounds, 0))


def _in_child(model: Any, x: Array, said: Any) -> None:
    try:
        said.put(model.run({"x": x})["y"].tolist())
    except jitcl.JitclError as error:
        said.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@DEVICES
def test_a_forked_child_ends(device: str) -> None:
    """With the result, or an error that says what to do."""
    model = jitcl.compile(made("y = Relu(x)", {"x": (FLOAT, [64])}, "y", {}), device=device)
    x = np.arange(64, dtype="f4") - 32
    model.run({"x": x})
    fork = multiprocessing.get_context("fork")
    said = fork.SimpleQueue()
    child = fork.Process(target=_in_child, args=(model, x, said))
    child.start()
    child.join(30)
    ended = not child.is_alive()
    child.kill()
    assert ended
    got = said.get()
    if isinstance(got, str):
        assert not opened(device).target.fork_safe and "get_context('spawn')" in got
    else:
        assert got == np.maximum(x, 0).tolist()
