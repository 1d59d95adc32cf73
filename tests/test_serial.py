"""Plans as bytes: exact round trips, aligned constants that are not copied, fast, nothing accepted
that is not a plan."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.errors import CacheError
from jitcl.runtime import serial
from jitcl.runtime.cache import KernelCache
from jitcl.target import Target


def dumps(plan: Plan, extra: Any = None) -> bytes:
    return b"".join(serial.encode(plan, extra))


DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
          "uint32", "uint64", "bool", "complex64"]


def make_plan(steps: int = 3, constants: dict[int, np.ndarray] | None = None) -> Plan:
    """A chain of convolutions, as large in text as real ones."""
    kernels = tuple(
        KernelSource(f"conv_{i}", f"kernel void conv_{i}(...) {{ /* é */ {'x += 1; ' * 150} }}",
                     "opencl", ("-cl-std=CL1.2",), "conv_direct")
        for i in range(max(steps // 3, 1)))
    buffers = [BufferSpec("image", "f32", (1, 3, 8, 8), 768, "input")]
    for i in range(steps):
        buffers.append(BufferSpec(f"w{i}", "f32", (64, 64, 3, 3), 147456, "const"))
        buffers.append(BufferSpec(f"y{i}", "f32", (1, 64, 8, 8), 16384, "temp", 0, 16384 * (i % 2)))
    launches = tuple(
        Step(f"conv_{i}", kernels[i % len(kernels)].entry, (2 * i, 2 * i + 1, 2 * i + 2),
             (64, 64, 3), (64, 8), (), f"// conv_{i}: conv 3x3\n", (("layer/conv", "Conv"),
             ("layer/relu", "Relu")), 10**12, 5, (2 * i + 2,)) for i in range(steps))
    return Plan(
        inputs=(TensorSpec("image", "f32", (1, 3, 8, 8), 0),),
        outputs=(TensorSpec("probabilities", "f32", (), 2 * steps),),
        kernels=kernels, steps=launches, buffers=tuple(buffers), slots=(32768,),
        constants={} if constants is None else constants)


def expect_equal(plan: Plan, other: Plan) -> None:
    """Equal in every field, and in its type; constants bit for bit."""
    for f in dataclasses.fields(Plan):
        if f.name != "constants":
            assert getattr(plan, f.name) == getattr(other, f.name)
            assert repr(getattr(plan, f.name)) == repr(getattr(other, f.name))
    assert list(plan.constants) == list(other.constants)
    for index, array in plan.constants.items():
        back = other.constants[index]
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes()
        assert not back.flags.writeable


def arrays(seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [(), (0,), (3, 0, 2), (1,), (7,), (2, 3, 5)]
    found = {}
    for dtype in DTYPES:
        for shape in shapes:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            bits = rng.integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
            found[len(found)] = np.frombuffer(bits.tobytes(), dtype).reshape(shape)
    return found


def test_round_trip_of_every_dtype_and_rank():
    plan = make_plan(constants=arrays())
    back, extra = serial.decode(dumps(plan, {"device": "cpu", "list": [1, None, 2.5]}))
    expect_equal(plan, back)
    assert extra == {"device": "cpu", "list": [1, None, 2.5]}
    assert dumps(back, extra) == dumps(plan, extra)


def test_round_trip_of_an_empty_plan():
    plan = Plan((), (), (), (), (), ())
    back, extra = serial.decode(dumps(plan))
    assert back == plan
    assert extra is None


def test_any_memory_order_comes_back_row_major():
    base = np.arange(24, dtype=">i4").reshape(2, 3, 4)
    given_ = {0: base.transpose(2, 0, 1), 1: np.asfortranarray(base), 2: base[:, ::-1, ::2]}
    back, _ = serial.decode(dumps(make_plan(constants=given_)))
    for index, array in given_.items():
        np.testing.assert_array_equal(back.constants[index], array)
        assert back.constants[index].dtype == np.dtype("<i4")
        assert back.constants[index].flags.c_contiguous


def test_numpy_integers_become_plain_ones():
    plan = dataclasses.replace(make_plan(), slots=(np.int64(64),))
    back, _ = serial.decode(dumps(plan))
    assert back.slots == (64,)
    assert type(back.slots[0]) is int


@given(st.lists(st.tuples(st.text(max_size=20), st.lists(st.integers(-2**63, 2**63 - 1)))))
def test_round_trip_of_any_text_and_integers(rows):
    steps = tuple(Step(text, text, (), tuple(numbers), head=text, origins=((text, ""),))
                  for text, numbers in rows)
    plan = dataclasses.replace(make_plan(), steps=steps)
    expect_equal(plan, serial.decode(dumps(plan))[0])


def test_constants_are_used_where_the_cache_maps_them(tmp_path):
    constants = {1: np.arange(1 << 19, dtype=np.float32), 3: np.arange(5, dtype=np.uint16),
                 5: np.ones((3, 3))}
    plan = make_plan(constants=constants)
    cache = KernelCache(tmp_path, limit=10**9).for_target(Target(kind="cpu", name="c"))
    cache.put("plan", "p", serial.encode(plan))
    view = cache.get_mmap("plan", "p")
    back, _ = serial.decode(view)
    expect_equal(plan, back)
    everything = np.frombuffer(view, np.uint8)
    for array in back.constants.values():
        assert array.ctypes.data % serial.ALIGN == 0
        assert np.shares_memory(array, everything)


def test_a_small_plan_is_aligned_too(tmp_path):
    cache = KernelCache(tmp_path, limit=10**9).for_target(Target(kind="cpu", name="c"))
    cache.put("plan", "p", serial.encode(make_plan(constants={1: np.ones(3), 2: np.ones(4)})))
    back, _ = serial.decode(cache.get_mmap("plan", "p"))
    assert [a.ctypes.data % serial.ALIGN for a in back.constants.values()] == [0, 0]


def test_a_plan_of_150_steps_is_decoded_in_a_few_times_what_its_json_takes():
    data = dumps(make_plan(150, {i: np.ones(100, np.float32) for i in range(150)}))
    text = data[24:data.rindex(b"}") + 1]
    turns = [(_seconds(serial.decode, data), _seconds(json.loads, text)) for _ in range(15)]
    plan, parsed = (min(column) for column in zip(*turns, strict=True))
    assert plan < 10 * parsed, f"{plan * 1e3:.1f} ms, its JSON {parsed * 1e3:.1f} ms"


def _seconds(function, given) -> float:
    began = time.thread_time()                      # waiting for a busy machine does not count
    function(given)
    return time.thread_time() - began


@pytest.mark.parametrize("array", [
    np.array([object()]), np.zeros(3, "V2"), np.array(["text"]), np.array([0], "datetime64[s]")],
    ids=lambda a: str(a.dtype))
def test_constants_that_are_no_numbers_are_refused(array):
    with pytest.raises(CacheError, match="constant of buffer 4 has NumPy dtype"):
        dumps(make_plan(constants={4: array}))


def test_fields_that_are_not_plain_are_refused():
    plan = make_plan()
    odd = dataclasses.replace(plan.steps[0], params=({"a": 1},))
    with pytest.raises(CacheError, match=r"field 'steps.params' of a plan holds a dict"):
        dumps(dataclasses.replace(plan, steps=(odd,)))
    with pytest.raises(CacheError, match="'extra' of a plan is no JSON value"):
        dumps(plan, {"a": object()})


@pytest.mark.parametrize("data", [b"", b"JITCL", b"x" * 100, b"\x80\x04\x95"])
def test_bytes_that_are_no_plan_are_refused(data):
    with pytest.raises(CacheError, match="these bytes are not a plan"):
        serial.decode(data)


def test_a_plan_of_another_version_is_refused(monkeypatch):
    data = dumps(make_plan())
    monkeypatch.setitem(serial._SCHEMA, "Step", ["name", "kernel", "more"])
    with pytest.raises(CacheError, match="written by another version of jitcl"):
        serial.decode(data)
