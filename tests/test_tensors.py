"""Results that stay on the device: fed without a copy, mapped, copied across devices, closed; and
what `bind` does on OpenCL devices.
"""

from __future__ import annotations

import gc
import logging
import sys

import numpy as np
import pytest

import jitcl
from jitcl.devices.opencl import arrays, executable
from jitcl.ir.graph import Graph, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from tests.devices import present

DEVICES = [s for s in present() if s != "reference"]
OPENCL = [s for s in DEVICES if s.startswith("opencl")]
X = np.random.default_rng(5).standard_normal((8, 16)).astype(np.float32)


def text(name: str, op: str) -> str:
    return f"graph @{name}(%x: f32[n,16]) {{\n  %1 = {op}(%x)\n  %y = tanh(%1)\n  return %y\n}}"


@pytest.fixture(params=[(d, shared) for d in DEVICES for shared in (True, False)
                        if d in OPENCL or shared], ids=str)
def pair(request, monkeypatch):
    """Two models of a device; of OpenCL devices once as if memory was not shared."""
    device, shared = request.param
    if not shared:
        for module in (arrays, executable):
            monkeypatch.setattr(module, "shares_memory", lambda session: False)
    with (jitcl.compile(jitcl.parse(text("a", "relu")), device=device) as a,
          jitcl.compile(jitcl.parse(text("b", "neg")), device=device) as b):
        yield a, b


def copies(p) -> list[str]:
    return [s.name for run in p.runs for s in run.spans if s.kind == "copy"]


def test_a_chain_on_one_device(pair):
    a, b = pair
    want = a.run({"x": X})["y"]
    after = b.run({"x": want})["y"]
    with jitcl.profile() as p:
        t = a.run({"x": X}, keep_on_device=True)["y"]
        got = b.run({"x": t})["y"]
        again = b.submit({"x": t}, keep_on_device=True).result(60)["y"]
    assert got.tobytes() == after.tobytes() == again.numpy().tobytes()
    assert t.numpy().tobytes() == want.tobytes() and not t.copies
    assert (t.dtype, t.shape, t.ndim, t.nbytes) == (want.dtype, want.shape, 2, want.nbytes)
    if a.device.name == "cpu":
        assert t.device == "host"
    else:
        assert t.device == a.device.name
        assert copies(p) == ["input 'x'", "output 'y'"]     # what came, and what left
    a.run({"x": -X})                                        # it is no buffer of the model's
    a.run({"x": X + 1}, keep_on_device=True)
    assert t.numpy().tobytes() == want.tobytes()
    assert np.asarray(t).tobytes() == want.tobytes()
    view = t.__buffer__(0) if sys.version_info < (3, 12) else memoryview(t)
    assert (view.tobytes(), view.shape, view.format) == (want.tobytes(), want.shape, "f")
    np.asarray(view)[...] = 0                       # a copy
    assert t.numpy().tobytes() == want.tobytes()


def test_reading_and_writing_in_a_mapping(pair):
    a, b = pair
    t, want = a.run({"x": X}, keep_on_device=True)["y"], a.run({"x": X})["y"]
    with t.map() as array:
        assert array.shape == want.shape and np.array_equal(array, want)
        array += 1
        array[0] = 7
        kept, part, total = array.copy(), array[1:3], array.sum()
        computed = array * 2
    changed = want + 1
    changed[0] = 7
    assert np.array_equal(kept, changed) and np.array_equal(computed, 2 * changed)
    assert total == changed.sum() and type(computed) is np.ndarray
    assert np.array_equal(b.run({"x": t})["y"], b.run({"x": changed})["y"])
    for use in (lambda: array[0], lambda: array + 1, lambda: part.sum(), lambda: np.sum(part),
                lambda: array.__setitem__(0, 1), lambda: np.add(1, part), lambda: list(part),
                lambda: array.shape, lambda: np.concatenate([kept, array]), lambda: repr(array)):
        with pytest.raises(jitcl.ClosedError, match="mapped from 'y' of model a, and its `with`"):
            use()
    with t.map(write=False) as array:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        assert np.array_equal(b.run({"x": t})["y"], b.run({"x": changed})["y"])
    assert np.array_equal(t.numpy(), changed)


@pytest.mark.sampled(quick=2)
def test_memory_is_given_back(pair):
    a, b = pair
    a.run({"x": X})
    b.run({"x": X})
    gc.collect()
    before = jitcl.memory_stats()
    tensors = [a.run({"x": X}, keep_on_device=True)["y"] for _ in range(5)]
    if a.device.name != "cpu":
        spec = a.device.session.spec
        held = jitcl.memory_stats().devices[spec].bytes - before.devices[spec].bytes
        assert held == 5 * X.nbytes
    tensors[0].close()
    tensors[0].close()
    with tensors[1]:
        pass
    del tensors[2:4]
    assert len(tensors) == 3 and tensors[2].numpy().shape == X.shape
    a.close()
    for t in tensors:
        with pytest.raises(jitcl.ClosedError, match="was closed, or the model was"):
            t.numpy()
        with pytest.raises(jitcl.ClosedError):
            b.run({"x": t})
    del tensors, t
    b.close()
    gc.collect()
    after = jitcl.memory_stats()
    assert sum(d.bytes for d in after.devices.values()) < sum(
        d.bytes for d in before.devices.values())


@pytest.mark.parametrize(("first", "second"), [("cpu", DEVICES[-1]), (DEVICES[-1], "cpu"),
                                               (DEVICES[1 % len(DEVICES)], DEVICES[-1])])
def test_across_devices_a_copy_is_made_and_told(first, second, caplog):
    with (jitcl.compile(jitcl.parse(text("a", "relu")), device=first) as a,
          jitcl.compile(jitcl.parse(text("b", "neg")), device=second) as b):
        t = a.run({"x": X}, keep_on_device=True)["y"]
        with caplog.at_level(logging.INFO, "jitcl"), jitcl.profile() as p:
            got = b.run({"x": t})["y"]
        assert got.tobytes() == b.run({"x": a.run({"x": X})["y"]})["y"].tobytes()
        if first == second:
            assert not t.copies
            return
        told = f"'y' from {t.device} to {b.device.name}"
        assert t.copies == {b.device.name: 1} and told in copies(p)
        assert f"copied from {t.device} to {b.device.name}" in caplog.text


def test_shapes_that_change_and_a_program_take_tensors(pair):
    a, b = pair
    for n in (3, 4, 6, 7, 5):
        x = np.resize(X, (n, 16))
        t = a.run({"x": x}, keep_on_device=True)["y"]
        want = b.run({"x": a.run({"x": x})["y"]})["y"]
        assert t.shape == (n, 16) and b.run({"x": t})["y"].tobytes() == want.tobytes()


def test_bind_on_pinned_and_on_shared_memory(pair):
    a, _ = pair
    bound = a.bind({"x": X.shape})
    y = bound.outputs["y"]
    assert not y.any() and not bound.inputs["x"].any()
    for x in (X, -X, X * 3):
        bound.inputs["x"][...] = x
        assert bound.run()["y"] is y
        assert y.tobytes() == a.run({"x": x})["y"].tobytes()
    kept = bound.outputs["y"]
    a.close()
    with pytest.raises(jitcl.ClosedError):
        bound.run()
    assert kept.tobytes() == y.tobytes()                    # memory that stays readable


@pytest.mark.parametrize("device", OPENCL)
def test_bound_inputs_of_whole_numbers_are_copied_and_kernels_read_others_in_place(device):
    graph = jitcl.parse("graph @g(%x: f32[4,8], %k: i32[4,8]) {\n  %1 = cast(%k) {to='f32'}\n"
                        "  %y = add(%x, %1)\n  return %y\n}")
    with jitcl.compile(graph, device=device) as model:
        bound = model.bind()
        bound.inputs["x"][...], bound.inputs["k"][...] = 1.5, 2
        with jitcl.profile() as p:
            assert (bound.run()["y"] == 3.5).all()
        assert copies(p) == ["input 'k'"]


@pytest.mark.parametrize("device", OPENCL)
def test_an_output_that_is_an_input_or_comes_twice_is_copied(device):
    g = GraphBuilder()
    fed = graph_input("x", TensorType("f32", (4, 8)))
    made = g.relu(fed)
    graph = Graph("g", (fed,), (("y", made), ("same", fed), ("twice", made)))
    x = np.arange(32, dtype=np.float32).reshape(4, 8) - 9
    with jitcl.compile(graph, device=device) as model:
        want = model.run({"x": x})
        found = model.run({"x": x}, keep_on_device=True)
        assert {n: t.numpy().tobytes() for n, t in found.items()} == {
            n: y.tobytes() for n, y in want.items()}
        name = "same"
        again = model.run({"x": found[name]}, keep_on_device=True)
        assert again[name].numpy().tobytes() == model.run({"x": want[name]})[name].tobytes()


@pytest.mark.parametrize("device", OPENCL)
def test_a_lost_device_has_lost_its_tensors(device):
    with jitcl.compile(jitcl.parse(text("a", "relu")), device=device) as model:
        t = model.run({"x": X}, keep_on_device=True)["y"]
        model.device.reopen()
        for use in (t.numpy, lambda: model.run({"x": t}), lambda: t.map().__enter__()):
            with pytest.raises(jitcl.DeviceError, match="what lay on the device is lost"):
                use()
        assert model.device.session.losses == 1


def test_models_share_a_device_and_those_of_an_open_one_do():
    for device in DEVICES:
        a = jitcl.compile(jitcl.parse(text("a", "relu")), device=device)
        b = jitcl.compile(jitcl.parse(text("b", "neg")), device=device)
        assert device == "cpu" or a.device is b.device
        c = jitcl.compile(jitcl.parse(text("c", "neg")), device=a.device)
        assert c.device is a.device
