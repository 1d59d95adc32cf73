"""One plan for many shapes: right at ragged sizes on every device, and nothing compiled on the way.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import jitcl
from jitcl.codegen.plan import Plan
from jitcl.devices.cpu import device as cpu
from jitcl.devices.opencl import launches
from jitcl.devices.opencl.memory import Memory, ResidentMemory
from jitcl.errors import OutOfMemoryError
from jitcl.ir.size_ranges import divisor, everywhere
from jitcl.ir.sizes import Size, Space, at_least_always
from jitcl.ir.types import Sym
from jitcl.runtime.families import Families, disguised
from jitcl.runtime.family import Family
from jitcl.runtime.resized import Resized
from jitcl.runtime.source import Tensor
from jitcl.runtime.specialise import opening, reopen
from jitcl.runtime.symbols import expression, symbolic
from tests.devices import present

DEVICES = [s for s in present() if s != "reference"]
LEAST = {"parts": 4, "conv": 3, "pixels": 7}    # below, half of it is 1, or a tile is larger
RAGGED = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 70, 1, 6)

SOFTMAX = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[4, n] x, float[n] b) => (float[4, n] y, float[n, 4] z) {
    s = Add(x, b)
    y = Softmax<axis = -1>(s)
    z = Transpose<perm = [1, 0]>(y)
}
"""
MATMUL = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[n, 8] a, float[8, m] b) => (float[n, m] y, float[n] total) {
    p = MatMul(a, b)
    y = Relu(p)
    axes = Constant<value_ints = [1]>()
    total = ReduceSum<keepdims = 0>(y, axes)
}
"""
PARTS = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[n, 6] x, float[m, 6] y) => (float[k, 6] joined, float[n, 3, 2] split, float[j, 6] cut,
                                     float[l] flat, int64[n] counted, float[q, 6] halved) {
    joined = Concat<axis = 0>(x, y)
    three = Constant<value_ints = [0, 3, 2]>()
    split = Reshape(x, three)
    one = Constant<value_ints = [1]>()
    end = Constant<value_ints = [9223372036854775807]>()
    cut = Slice(joined, one, end)
    all = Constant<value_ints = [-1]>()
    flat = Reshape(joined, all)
    shape = Shape(x)
    zero = Constant<value_int = 0>()
    step = Constant<value_int = 1>()
    rows = Gather(shape, zero)
    counted = Range(zero, rows, step)
    two = Constant<value_int = 2>()
    half = Div(rows, two)
    begin = Constant<value_ints = [0]>()
    axes = Constant<value_ints = [0]>()
    until = Unsqueeze(half, axes)
    halved = Slice(x, begin, until)
}
"""
CONV = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[1, 3, n] x, float[5, 3, 3] w) => (float[1, 5, m] y, float[1, 5, k] pooled) {
    c = Conv<kernel_shape = [3], strides = [2], pads = [1, 1]>(x, w)
    y = Relu(c)
    pooled = MaxPool<kernel_shape = [2], strides = [1], pads = [1, 0]>(y)
}
"""
ATTENTION = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[1, 2, t, 8] q, float[1, 2, n, 8] past, float[1, 2, t, 8] k) => (
        float[1, t, 16] y, float[1, 2, m, 8] present) {
    present = Concat<axis = 2>(past, k)
    kt = Transpose<perm = [0, 1, 3, 2]>(present)
    scores = MatMul(q, kt)
    weights = Softmax<axis = -1>(scores)
    heads = MatMul(weights, present)
    back = Transpose<perm = [0, 2, 1, 3]>(heads)
    shape = Shape<start = 1, end = 2>(back)
    one = Constant<value_ints = [1]>()
    width = Constant<value_ints = [16]>()
    to = Concat<axis = 0>(one, shape, width)
    y = Reshape(back, to)
}
"""

PIXELS = """
<ir_version: 8, opset_import: ["" : 18]>
f (float[1, 3, n, 4] x) => (float[1, 4, n, 4] y) <
    float[3, 6] w = {-1.0, 0.4, -0.4, 1.0, 0.2, -0.6, 0.8, 0.0, -0.8,
                   0.6, -0.2, -1.0, 0.4, -0.4, 1.0, 0.2, -0.6, 0.8},
    float[4, 6, 1, 1] v = {-1.0, -0.17, 0.67, -0.67, 0.17, 1.0, -0.33, 0.5, -0.83, 0.0, 0.83, -0.5,
                         0.33, -1.0, -0.17, 0.67, -0.67, 0.17, 1.0, -0.33, 0.5, -0.83, 0.0, 0.83},
    int64[3] flat = {1, 3, -1}, int64[4] to = {1, 6, -1, 4}>
{
    tokens = Reshape(x, flat)
    rows = Transpose<perm = [0, 2, 1]>(tokens)
    p = MatMul(rows, w)
    back = Transpose<perm = [0, 2, 1]>(p)
    map = Reshape(back, to)
    y = Conv<kernel_shape = [1, 1]>(map, v)
}
"""


def shapes_of(name: str, n: int) -> dict[str, tuple[int, ...]]:
    """The inputs of a model for a size; every other of two sizes goes another way."""
    return {
        "softmax": {"x": (4, n), "b": (n,)},
        "matmul": {"a": (n, 8), "b": (8, 75 - n)},
        "parts": {"x": (n, 6), "y": (3 * n + 1, 6)},
        "conv": {"x": (1, 3, n), "w": (5, 3, 3)},
        "pixels": {"x": (1, 3, n, 4)},
        "attention": {"q": (1, 2, 1, 8), "past": (1, 2, n, 8), "k": (1, 2, 1, 8)}}[name]


MODELS = {"softmax": SOFTMAX, "matmul": MATMUL, "parts": PARTS, "conv": CONV,
          "pixels": PIXELS, "attention": ATTENTION}


def feeds(name: str, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    return {k: rng.uniform(-1, 1, s).astype(np.float32) for k, s in shapes_of(name, n).items()}


def counted(model: jitcl.Model) -> tuple[int, int]:
    """What stands still while nothing is compiled: entries looked for in vain, entries written."""
    stats = model.cache.stats
    return stats.misses, stats.writes


def check(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].shape == array.shape and got[name].dtype == array.dtype
        bound = 1e-6 * max(1.0, float(np.abs(array).max(initial=0)))
        np.testing.assert_allclose(got[name], array, rtol=0, atol=bound, err_msg=name)


def reference(name: str) -> jitcl.Model:
    return jitcl.compile(onnx.parser.parse_model(MODELS[name]), device="reference")


QUICK = {*(("cpu", name) for name in ("attention", "conv", "pixels")),
         *((device, "parts") for device in DEVICES)}
RAGGED_CASES = [
    pytest.param(device, name, marks=() if (device, name) in QUICK else (pytest.mark.slow,))
    for device in DEVICES for name in MODELS]
ONE_QUICK = [pytest.param(device, marks=() if device == "cpu" else (pytest.mark.slow,))
             for device in DEVICES]


@pytest.mark.sampled(quick=3, slow=5)
@pytest.mark.parametrize("device, name", RAGGED_CASES)
def test_ragged_sizes_share_one_plan(device: str, name: str, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(MODELS[name])
    model = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    wanted = reference(name)
    for n in (10, 11, 12):
        check(model.run(feeds(name, n)), wanted.run(feeds(name, n)))
    assert len(model._families.kept) == 1
    before = counted(model)
    for n in RAGGED:
        if n >= LEAST.get(name, 2):
            check(model.run(feeds(name, n)), wanted.run(feeds(name, n)))
    assert counted(model) == before
    check(model.run(feeds(name, 1)), wanted.run(feeds(name, 1)))       # which may take a plan more


@pytest.mark.parametrize("device", ONE_QUICK)
def test_members_repeat_bit_for_bit_and_equal_specialisations(
        device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = onnx.parser.parse_model(ATTENTION)
    model = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    for n in (20, 21, 22):
        model.run(feeds("attention", n))
    first = [model.run(feeds("attention", n)) for n in (30, 300, 31)]    # 300 outgrows its buffers
    again = [model.run(feeds("attention", n)) for n in (30, 300, 31)]
    for a, b in zip(first, again):
        assert all((a[k] == b[k]).all() for k in a)
    monkeypatch.setenv("JITCL_FAMILIES", "0")
    alone = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    for n, got in zip((30, 300, 31), first):
        check(got, alone.run(feeds("attention", n)))
    assert not alone._families.kept


@pytest.mark.parametrize("device", DEVICES)
def test_a_second_process_compiles_nothing(device: str, tmp_path: Path) -> None:
    """A fresh Model on the same cache, as in another process."""
    proto = onnx.parser.parse_model(PARTS)
    lengths = (10, 11, 12, 13, 60)
    model = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    wanted = [model.run(feeds("parts", n)) for n in lengths]
    later = jitcl.compile(proto, device=device, cache_dir=tmp_path)
    before = counted(later)[1]
    for n, w in zip(lengths, wanted):
        got = later.run(feeds("parts", n))
        assert all((got[k] == w[k]).all() for k in w)
    assert counted(later)[1] == before
    assert len(later._families.kept) == 1


def test_guards_make_families_of_their_own(tmp_path: Path) -> None:
    """A slice that a length reaches, and one that it does not."""
    text = """
        <ir_version: 8, opset_import: ["" : 18]>
        f (float[n] x) => (float[m] y) {
            begin = Constant<value_ints = [0]>()
            end = Constant<value_ints = [20]>()
            y = Slice(x, begin, end)
        }"""
    model = jitcl.compile(onnx.parser.parse_model(text), device="cpu", cache_dir=tmp_path)
    for n in (5, 6, 7, 8, 19, 21, 22, 90, 9, 23, 20):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(model.run({"x": x})["y"], x[:20])
        assert model.report().guards == ("n >= 20" if n >= 20 else "n <= 19",)
    assert "\n  right while n >= 20\n" in str(model.report())
    assert len(model._families.kept) == 2


def test_where_a_size_is_needed_shapes_have_plans_of_their_own(tmp_path: Path) -> None:
    """A Fourier transform's factors are constants of its operand's size."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        f (float[1, n, 1] x) => (float[1, n, 2] y) {
            y = DFT<axis = 1>(x)
        }"""
    model = jitcl.compile(onnx.parser.parse_model(text), device="cpu", cache_dir=tmp_path)
    for n in (3, 4, 5, 6, 7):
        x = np.arange(n, dtype=np.float32).reshape(1, n, 1)
        wanted = np.fft.fft(x[0, :, 0])
        found = model.run({"x": x})["y"][0]
        np.testing.assert_allclose(found[:, 0] + 1j * found[:, 1], wanted, atol=1e-4)
    assert not model._families.kept
    assert len(model._kept) == 5
    report = model.report()
    assert report.no_family == "'n' is needed as a number"
    assert "  a plan for each set of shapes: 'n' is needed as a number\n" in str(report)


def test_what_numpy_makes_of_a_pinned_size_is_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other exceptions are mistakes, and not caught, be they of the same class."""
    def pinned(specialiser: Any, space: Space, sized: Any) -> Any:
        return np.arange(9)[space.atom(0)]

    monkeypatch.setattr("jitcl.runtime.families.sized_plan", pinned)
    model = jitcl.compile(onnx.parser.parse_model(SOFTMAX), device="cpu", cache_dir=tmp_path)
    for n in (10, 11, 12):
        model.run(feeds("softmax", n))
    assert model.report().no_family.startswith("IndexError: only integers")



@pytest.mark.parametrize("error", [AttributeError, IndexError, TypeError, ValueError])
def test_mistakes_of_the_compiler_are_not_taken_for_pinned_sizes(
        error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def group_is_sized(group: Any) -> bool:
        raise error("no such thing")

    monkeypatch.setattr("jitcl.codegen.writer.group_is_sized", group_is_sized)
    model = jitcl.compile(onnx.parser.parse_model(SOFTMAX), device="cpu", cache_dir=tmp_path)
    with pytest.raises(error, match="no such thing"):
        for n in (10, 11, 12):
            model.run(feeds("softmax", n))


def test_an_error_is_a_pinned_size_only_where_the_line_that_failed_asked_for_it() -> None:
    """An earlier line that asked, and went on without an answer, says nothing."""
    space = Space()
    n: Any = space.symbol("n", 10)
    asked = ("def indexed(np, n):\n    return np.zeros(3)[n]\n"
             "def sliced(np, n):\n    return list(itertools.islice(np.zeros(3), n))\n")
    tried = ("def tried(np, n):\n    try:\n        np.zeros(3)[n]\n    except IndexError:\n"
             "        pass\n    return np.zeros(3)[3]\n")
    names: dict[str, Any] = {"__name__": "jitcl.made_up", "itertools": itertools}
    exec(asked + tried, names)
    for name, wanted in (("indexed", True), ("sliced", True), ("tried", False)):
        with pytest.raises((IndexError, ValueError)) as found:
            names[name](np, n)
        assert disguised(found.value, space) is wanted, name


def grown(tmp_path: Path) -> tuple[jitcl.Model, Family]:
    """A model whose shapes went on changing, and its family."""
    model = jitcl.compile(onnx.parser.parse_model(SOFTMAX), device="cpu", cache_dir=tmp_path)
    for n in (10, 11, 12):
        model.run(feeds("softmax", n))
    (family,) = model._families.kept.values()
    return model, family


def test_a_family_that_does_not_load_again_makes_room_for_another(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its device was lost, say."""
    model, lost = grown(tmp_path)
    reopen(model.device, opening(model.device))
    monkeypatch.setattr(type(model._specialiser), "reload", lambda *_: None)
    check(model.run(feeds("softmax", 13)), reference("softmax").run(feeds("softmax", 13)))
    (family,) = model._families.kept.values()
    assert family is not lost and model.report().sizes == (("n", 13, 256),)


@pytest.mark.parametrize("device", DEVICES)
def test_a_family_grows_where_it_is(
        device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither kernels nor constants are made ready again, for a shape that is larger in one way
    and then in the other; who holds a smaller member runs it in the room that it had."""
    model = jitcl.compile(onnx.parser.parse_model(MATMUL), device=device, cache_dir=tmp_path)
    rng = np.random.default_rng(6)
    exact = reference("matmul")

    def run(n: int, m: int, by: Any = model) -> None:
        fed = {"a": rng.uniform(-1, 1, (n, 8)).astype(np.float32),
               "b": rng.uniform(-1, 1, (8, m)).astype(np.float32)}
        check(by.run(fed), exact.run(fed))

    run(3, 300)
    (family,) = model._families.kept.values()
    assert family.loaded is not None
    executable, capacity = family.loaded.executable, family.capacity
    small = Resized(executable, family.at(family.values({"a": (3, 8), "b": (8, 300)}) or []))
    monkeypatch.setattr(cpu, "cached_kernels", None)
    monkeypatch.setattr(launches, "_prepare", None)
    monkeypatch.setattr(ResidentMemory, "_upload", None)
    for n, m in ((700, 5), (4, 900), (700, 900), (3, 300)):
        run(n, m)
        assert family.loaded.executable is executable and family.capacity != capacity
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((3, 8), (8, 300)))
    y, _ = small.run([a, b])
    np.testing.assert_allclose(y, np.maximum(a @ b, 0), rtol=0, atol=1e-5)
    run(700, 900)


@pytest.mark.parametrize("device", [d for d in DEVICES if d != "cpu"])
def test_what_stays_as_large_keeps_its_memory_where_a_family_grows(
        device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, room = list[str](), Memory.room

    def counted(memory: Memory, nbytes: int, what: str) -> Any:
        made.append(what)
        return room(memory, nbytes, what)

    model = jitcl.compile(onnx.parser.parse_model(MATMUL), device=device, cache_dir=tmp_path)
    rng, exact = np.random.default_rng(9), reference("matmul")
    monkeypatch.setattr(Memory, "room", counted)
    for n, m, grown in ((3, 3, {"a", "b"}), (700, 5, {"a"}), (4, 900, {"b"})):
        fed = {"a": rng.uniform(-1, 1, (n, 8)).astype(np.float32),
               "b": rng.uniform(-1, 1, (8, m)).astype(np.float32)}
        made.clear()
        check(model.run(fed), exact.run(fed))
        assert {name for name in "ab" if any(f"buffer '{name}'" in w for w in made)} == grown


@pytest.mark.parametrize("device", [d for d in DEVICES if d != "cpu"])
def test_a_device_of_little_memory_keeps_one_plan_for_many(
        device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for what is fed alone, where there is none to spare."""
    monkeypatch.setenv("JITCL_TARGET", "global_memory=100000")
    model = jitcl.compile(onnx.parser.parse_model(MATMUL), device=device, cache_dir=tmp_path)
    rng, exact = np.random.default_rng(7), reference("matmul")
    for n, rows in ((3, 3), (4, 4), (40, 40), (41, 41), (2, 41)):
        fed = {"a": rng.uniform(-1, 1, (n, 8)).astype(np.float32),
               "b": rng.uniform(-1, 1, (8, 300)).astype(np.float32)}
        check(model.run(fed), exact.run(fed))
        (family,) = model._families.kept.values()
        assert family.capacity[:2] == [rows, 300]
    assert model.cache.stats.builds == 1


@pytest.mark.parametrize("device", [d for d in DEVICES if d != "cpu"])
def test_a_shape_that_there_is_no_memory_for_leaves_the_plan_for_many_to_smaller_ones(
        device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a device says that it has more memory than it has, a run finds out: first the room
    beyond what is fed is given up. In a process that finds the plan in the cache, too."""
    room = Memory.room

    def short(memory: Memory, nbytes: int, what: str) -> Any:
        if nbytes > 3_000_000:
            raise OutOfMemoryError("no memory")
        return room(memory, nbytes, what)

    monkeypatch.setattr(Memory, "room", short)
    rng, exact = np.random.default_rng(8), reference("matmul")

    def run(model: jitcl.Model, n: int, m: int) -> list[int]:
        fed = {"a": rng.integers(-2, 3, (n, 8)).astype(np.float32),
               "b": rng.integers(-2, 3, (8, m)).astype(np.float32)}
        check(model.run(fed), exact.run(fed))
        (family,) = model._families.kept.values()
        return family.capacity[:2]

    for again in (False, True):
        model = jitcl.compile(onnx.parser.parse_model(MATMUL), device=device, cache_dir=tmp_path)
        if not again:
            assert run(model, 3, 3) == [256, 256] and run(model, 600, 700) == [600, 700]
            builds = model.cache.stats.builds
        assert run(model, 2000, 2000) == []             # a plan of its own
        before = model.cache.stats.builds
        assert run(model, 7, 7) == ([256, 256] if again else [7, 7])    # no run failed, again
        assert run(model, 600, 700) == [600, 700]
        assert model.cache.stats.builds == before
        assert "memory ran out" not in model.report().no_family
    assert builds == 1


def test_a_cpu_without_memory_for_a_shape_goes_on_with_smaller_ones(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing below it that could run this one."""
    empty = cpu.aligned_empty

    def short(nbytes: int) -> np.ndarray:
        if nbytes > 3_000_000:
            raise MemoryError
        return empty(nbytes)

    monkeypatch.setattr(cpu, "aligned_empty", short)
    model = jitcl.compile(onnx.parser.parse_model(MATMUL), device="cpu", cache_dir=tmp_path)
    rng, exact = np.random.default_rng(8), reference("matmul")
    for n, m, room in ((3, 3, [256, 256]), (600, 700, [600, 700]), (2000, 2000, []), (7, 7, [7, 7]),
                       (600, 700, [600, 700])):
        fed = {"a": rng.integers(-2, 3, (n, 8)).astype(np.float32),
               "b": rng.integers(-2, 3, (8, m)).astype(np.float32)}
        if room:
            check(model.run(fed), exact.run(fed))
            assert next(iter(model._families.kept.values())).capacity[:2] == room
        else:
            with pytest.raises(OutOfMemoryError, match="which the system refused"):
                model.run(fed)


@pytest.mark.parametrize("name", ["attention", "conv", "parts"])
def test_a_plan_at_a_shape_has_no_sizes_left(name: str, tmp_path: Path) -> None:
    model = jitcl.compile(onnx.parser.parse_model(MODELS[name]), device="cpu", cache_dir=tmp_path)
    model.run(feeds(name, 12))
    (family,) = model._families.kept.values()

    def sizes(plan: Plan) -> list[Size]:
        found = list[Size]()
        everywhere((plan.inputs, plan.outputs, plan.steps, plan.buffers, plan.checks), found.append)
        return found

    assert sizes(family.plan) and not sizes(family.plan.at(family.capacity))


def test_room_for_one_shape_is_kept_beside_that_for_another(tmp_path: Path) -> None:
    """Of two shapes, each larger in one way, in turns: the second turn loads nothing."""
    model = jitcl.compile(onnx.parser.parse_model(MATMUL), device="cpu", cache_dir=tmp_path)
    for n, m in ((3, 300), (700, 5)):
        model.run({"a": np.ones((n, 8), np.float32), "b": np.ones((8, m), np.float32)})
    (family,) = model._families.kept.values()
    assert family.capacity[:2] == [1024, 512]
    assert not family.outgrown(family.values({"a": (3, 8), "b": (8, 300)}) or [])


def test_shapes_that_come_again_build_nothing(tmp_path: Path) -> None:
    """A plan for one of them is made where it is asked for: no run waits for it."""
    model = jitcl.compile(onnx.parser.parse_model(SOFTMAX), device="cpu", cache_dir=tmp_path)
    for n in (10, *(20,) * 9):
        check(model.run(feeds("softmax", n)), reference("softmax").run(feeds("softmax", n)))
    assert not model._kept and model.report().sizes and model.cache.stats.builds == 1


def test_families_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITCL_SPECIALISATIONS", "1")
    model = jitcl.compile(onnx.parser.parse_model(PARTS), device="cpu", cache_dir=tmp_path)
    for n in (10, 11, 1, 12, 13):                       # no rows halved: another plan
        model.run(feeds("parts", n))
    assert len(model._families.kept) == 1


def test_threads_share_a_family(tmp_path: Path) -> None:
    model = jitcl.compile(onnx.parser.parse_model(SOFTMAX), device="cpu", cache_dir=tmp_path)
    lengths = list(range(2, 42))
    wanted = {n: reference("softmax").run(feeds("softmax", n)) for n in lengths[::5]}

    def work(mine: list[int]) -> None:
        for n in mine:
            got = model.run(feeds("softmax", n))
            assert got["y"].shape == (4, n)
            np.testing.assert_allclose(got["y"].sum(1), 1, atol=1e-5)
            if n in wanted:
                check(got, wanted[n])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [lengths[k::4] * 3 for k in range(4)]))
    assert len(model._families.kept) == 1


def test_the_report_shows_the_family(tmp_path: Path) -> None:
    model = jitcl.compile(onnx.parser.parse_model(SOFTMAX), device="cpu", cache_dir=tmp_path)
    for n in (10, 11, 12):
        model.run(feeds("softmax", n))
    report = model.report()
    assert report.sizes == (("n", 12, 256),)
    assert "  one plan for many shapes: n = 12 (room for 256)\n" in str(report)
    assert report.free == (("x", "[4, n]"), ("b", "[n]"))
    assert "  free dimensions: 'x' [4, n], 'b' [n]\n" in str(report)
    assert 0 < report.took < 1 and "\n  these shapes took " in str(report)
    model.run(feeds("softmax", 300))
    assert model.report().sizes == (("n", 300, 512),)
    own = jitcl.compile(model.source.data, device="cpu", cache_dir=tmp_path,
                        shapes={"x": (4, 10), "b": (10,)})
    own.run(feeds("softmax", 10))                       # compiled for it: a plan of its own
    assert not own.report().sizes
    model.run(feeds("softmax", 10))                     # work is that of the run, not of the room
    assert [s.flops for s in model.report().steps] == [s.flops for s in own.report().steps] != [0]


# ---- which dimensions become symbols

def tensor(name: str, *dims: str | int) -> Tensor:
    return Tensor(name, "f32", tuple(Sym(d) if isinstance(d, str) else d for d in dims))


def test_what_changes_becomes_a_symbol_and_sums_follow() -> None:
    inputs = [tensor("ids", "batch", "new"), tensor("mask", "batch", "past + new"),
              tensor("keys", "batch", 4, "past")]
    shapes = {"ids": (1, 1), "mask": (1, 8), "keys": (1, 4, 7)}
    space = Space()
    changed = {("ids", 1), ("mask", 1), ("keys", 2)}
    found = symbolic(space, inputs, shapes, changed)
    assert found["ids"] == (1, 1)                       # a 1 is never a symbol
    assert str(found["mask"][1]) == "(size0 + 1)" and str(found["keys"][2]) == "size0"
    assert [a.symbol for a in space.atoms] == ["past"]


def test_names_that_are_sums() -> None:
    known = {"past": 7, "new": 2}
    assert expression("past + new", known) == 9
    assert expression("past+2*new - 1", known) == 10
    assert expression("past", known) == 7
    assert expression("past / new", known) is None
    assert expression("other + new", known) is None
    assert expression("past new", known) is None


def test_a_name_that_does_not_add_up_is_a_symbol_of_its_own() -> None:
    inputs = [tensor("keys", "past"), tensor("mask", "past + 1")]
    space = Space()
    found = symbolic(space, inputs, {"keys": (7,), "mask": (9,)}, {("keys", 0), ("mask", 0)})
    assert type(found["mask"][0]) is Size and len(space.atoms) == 2


def test_names_that_are_multiples_have_the_factor_as_a_divisor() -> None:
    inputs = [tensor("past", "256 * rooms"), tensor("keys", "256 * rooms + 16")]
    changed = {("past", 0), ("keys", 0)}
    space = Space()
    found = symbolic(space, inputs, {"past": (512,), "keys": (528,)}, changed)
    assert [a.symbol for a in space.atoms] == ["rooms"] and space.now == {"rooms": 2}
    assert [str(found[n][0]) for n in ("past", "keys")] == ["(256 * size0)", "(256 * size0 + 16)"]
    assert divisor(found["keys"][0]) == 16 and at_least_always(found["keys"][0], 272)
    found = symbolic(space := Space(), inputs, {"past": (500,), "keys": (516,)}, changed)
    assert [a.symbol for a in space.atoms] == ["256 * rooms", "256 * rooms + 16"]
    assert divisor(found["past"][0]) == 1               # 500 is no such multiple
    twice = [tensor("a", "n"), tensor("b", "4 * n")]
    found = symbolic(space := Space(), twice, {"a": (7,), "b": (20,)}, {("a", 0), ("b", 0)})
    assert space.now == {"n": 7, "4 * n": 20} and divisor(found["b"][0]) == 1


def test_a_family_takes_only_shapes_that_fit_it(tmp_path: Path) -> None:
    model = jitcl.compile(onnx.parser.parse_model(SOFTMAX), device="cpu", cache_dir=tmp_path)
    for n in (10, 11, 12):
        model.run(feeds("softmax", n))
    families: Families = model._families
    family = next(iter(families.kept.values()))
    assert family.values({"x": (4, 9), "b": (9,)}) == [9]
    assert family.values({"x": (4, 9), "b": (8,)}) is None
    assert family.values({"x": (4, 1), "b": (1,)}) == [1]
    assert family.values({"x": (4, 0), "b": (0,)}) is None
    assert family.values({"x": (4, 9)}) is None
