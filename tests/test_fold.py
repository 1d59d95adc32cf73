"""Loops that carry values (`s.fold`): their text, their rules, and one meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitcl import dtypes
from jitcl.codegen.loops import drop_unused, inline_lets
from jitcl.codegen.lower import lower
from jitcl.codegen.schedule_cpu import schedule_cpu
from jitcl.codegen.schedule_opencl import schedule
from jitcl.codegen.share import share
from jitcl.errors import JitclError, ParseError, VerifyError
from jitcl.ir import expr as E
from jitcl.ir.builder import KernelBuilder
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.group import Group
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import Assign, Kernel, statements
from jitcl.ir.parser import parse_kernel
from jitcl.ir.printer import print_kernel
from jitcl.ir.sampling import sample_kernel
from jitcl.ir.types import TensorType
from jitcl.ir.verify_kernel import verify_kernel
from jitcl.ops import OPS
from jitcl.ops.core import Index, Loader, Op
from tests import devices, strategies
from tests.test_codegen_cpu import native, scheduled
from tests.test_ir_interpreter import plain
from tests.test_ops import case

Body = Callable[..., Expr]
ROWS, FEATURES, DEPTH = 37, 5, 4


# ---- ops that fold, each with its meaning in NumPy

def fibonacci(s: KernelBuilder, ix: Index, x: Loader) -> Expr:
    """Two values that swap: assigned at once, or wrong."""
    first = x(ix[0], 0)
    _, b = s.fold(6, (first, x(ix[0], 1)), lambda k, a, b: (b, a + b))
    return b + x(*ix)


def fibonacci_ref(x: np.ndarray) -> np.ndarray:
    a, b = x[:, :1], x[:, 1:2]
    for _ in range(6):
        a, b = b, a + b
    return b + x


def best(s: KernelBuilder, ix: Index, x: Loader) -> Expr:
    """The greatest of a row and its place; the last component is never read."""
    def step(k: Expr, value: Expr, place: Expr, unread: Expr) -> tuple[Expr, ...]:
        better = x(ix[0], k) > value
        return s.select(better, x(ix[0], k), value), s.select(better, k, place), value
    start = E.const(-1e30, "f32")
    value, place, _ = s.fold(FEATURES, (start, E.index(0), start), step)
    return s.select(E.call("eq", ix[1], place), value, s.cast(place, "f32"))


def best_ref(x: np.ndarray) -> np.ndarray:
    y = np.repeat(x.argmax(1)[:, None], FEATURES, 1).astype(np.float32)
    y[np.arange(len(x)), x.argmax(1)] = x.max(1)
    return y


def horner(s: KernelBuilder, ix: Index, x: Loader) -> Expr:
    """A sum inside each step, a step inside each term of a sum, and a choice by the iteration."""
    def step(k: Expr, total: Expr) -> tuple[Expr]:
        row = s.reduce("add", [FEATURES], lambda r: x(ix[0], r) * total)
        return (s.select(k < 2, row * 0.25, total + x(ix[0], k)),)

    def term(r: Expr) -> Expr:
        return s.fold(3, (x(ix[0], r),), lambda k, t: (t * x(*ix) + 1.0,))[0]
    (total,) = s.fold(FEATURES, (E.const(1.0, "f32"),), step)
    return total + s.reduce("add", [FEATURES], term)


def horner_ref(x: np.ndarray) -> np.ndarray:
    total = np.ones((len(x), 1))
    for k in range(FEATURES):
        total = 0.25 * (x * total).sum(1, keepdims=True) if k < 2 else total + x[:, k:k + 1]
    t = np.repeat(x[:, None, :].astype(float), FEATURES, 1)
    for _ in range(3):
        t = t * x[:, :, None] + 1
    return (total + t.sum(2)).astype(np.float32)


def nothing(s: KernelBuilder, ix: Index, x: Loader) -> Expr:
    """No iterations, and one, which is no loop."""
    (a,) = s.fold(0, (x(*ix),), lambda k, a: (a * 2.0,))
    (b,) = s.fold(1, (a,), lambda k, a: (a + s.cast(k, "f32") + 1.0,))
    return b


def nothing_ref(x: np.ndarray) -> np.ndarray:
    return x + np.float32(1)


def walk(s: KernelBuilder, ix: Index, x: Loader, feature: Loader, threshold: Loader) -> Expr:
    """Down a complete tree whose nodes are numbered by level: where each row ends."""
    def step(k: Expr, at: Expr) -> tuple[Expr]:
        goes_left = x(ix[0], s.index(feature(at))) <= threshold(at)
        return (at * 2 + s.select(goes_left, E.index(1), E.index(2)),)
    (leaf,) = s.fold(DEPTH, (E.index(0),), step)
    return s.cast(leaf, "f32") + s.cast(ix[1], "f32")


def walk_ref(x: np.ndarray, feature: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    for row, out in zip(x, y):
        at = 0
        for _ in range(DEPTH):
            at = 2 * at + (1 if row[feature[at]] <= threshold[at] else 2)
        out[:] = at + np.arange(FEATURES)
    return y


FOLDS: dict[str, tuple[Body, Callable[..., np.ndarray]]] = {
    "fibonacci": (fibonacci, fibonacci_ref), "best": (best, best_ref),
    "horner": (horner, horner_ref), "nothing": (nothing, nothing_ref), "walk": (walk, walk_ref)}


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    """The ops above, for as long as a test runs."""
    for name, (body, ref) in FOLDS.items():
        OPS[f"fold_{name}"] = Op(f"fold_{name}", "indexed", lambda x, *_: x, ref, body)
    yield
    for name in FOLDS:
        del OPS[f"fold_{name}"]


def made(name: str) -> tuple[Node, dict[str, np.ndarray]]:
    """A node over graph inputs, and what to feed them."""
    rng = np.random.default_rng(5)
    feeds = {"x": rng.uniform(-2, 2, (ROWS, FEATURES)).astype(np.float32)}
    if name == "walk":
        nodes = 2 ** DEPTH - 1
        feeds["feature"] = rng.integers(0, FEATURES, nodes)
        feeds["threshold"] = rng.uniform(-1, 1, nodes).astype(np.float32)
    inputs = [graph_input(k, TensorType("i64" if v.dtype == np.int64 else "f32", v.shape))
              for k, v in feeds.items()]
    return Node.make(f"fold_{name}", inputs, type=inputs[0].type), feeds


def kernel_of(name: str) -> tuple[Kernel, list[np.ndarray], np.ndarray]:
    node, feeds = made(name)
    lowered = lower(Group(node, frozenset()), "k")
    arrays = [feeds[n.attr("name")] for n in lowered.operands]
    return lowered.kernel, arrays, FOLDS[name][1](**feeds)


# ---- one meaning

@pytest.mark.parametrize("name", FOLDS)
def test_the_kernel_reads_back_and_verifies(name: str) -> None:
    kernel, _, _ = kernel_of(name)
    verify_kernel(kernel)
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel
    folds = [s for s in statements(kernel.body) if isinstance(s, Assign)]
    assert len(folds) == {"nothing": 0, "horner": 2}.get(name, 1)


@pytest.mark.parametrize("name", FOLDS)
def test_schedules_and_native_code_keep_the_meaning(name: str) -> None:
    kernel, arrays, want = kernel_of(name)
    y = np.zeros_like(want)
    inputs = [b.name for b in kernel.buffers if b.role == "in"]
    run_kernel(kernel, {**dict(zip(inputs, arrays)), "y": y})
    np.testing.assert_allclose(y, want, rtol=1e-5)
    np.testing.assert_allclose(scheduled(kernel, arrays), want, rtol=1e-5)
    alone = native(kernel, arrays, 1)
    np.testing.assert_allclose(alone, want, rtol=1e-5)
    assert native(kernel, arrays, 3).tobytes() == alone.tobytes()


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("device", devices.present())
def test_every_device_folds(device: str, name: str) -> None:
    node, feeds = made(name)
    graph = Graph("g", node.inputs, (("y", node),))
    got = devices.run_graph(device, graph, feeds)["y"]
    np.testing.assert_allclose(got, FOLDS[name][1](**feeds), rtol=1e-5)


@pytest.mark.parametrize("name", FOLDS)
def test_bounds_hold_what_is_computed(name: str) -> None:
    """The enclosure of sampled elements holds the result in float32; where it says a number is
    exact or known to a few units, so it is."""
    kernel, arrays, want = kernel_of(name)
    inputs = [b.name for b in kernel.buffers if b.role == "in"]
    sample = sample_kernel(kernel, dict(zip(inputs, arrays)), 1)
    got = want.reshape(-1)[sample.positions]
    assert np.all(np.abs(got - sample.mid) <= sample.radius + 1e-9)
    assert np.all(sample.radius <= 1e-3 * (1 + np.abs(sample.mid)))
    assert len(sample.positions) > 50


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.kernels(), st.integers(0, 2**32 - 1))
def test_inlining_and_sharing_keep_the_meaning(kernel: Kernel, seed: int) -> None:
    """Random kernels, half of them with folds: without their lets, and with those of `share`."""
    rng = np.random.default_rng(seed)
    arrays = {b.name: (rng.uniform(-9, 9, b.shape) > 0) if b.dtype == "bool" else
              np.abs(rng.uniform(-9, 9, b.shape)).astype(dtypes.to_numpy(b.dtype))
              for b in kernel.buffers}
    found = []
    inlined = Kernel("k", kernel.buffers, drop_unused(inline_lets(kernel.body)))
    for form in (kernel, inlined, share(inlined), share(kernel, addresses=False)):
        found.append({k: v.copy() for k, v in arrays.items()})
        plain(form, found[-1])
    want = found[0]["y"]
    for other in found[1:]:
        got = other["y"]
        assert ((got == want) | ((got != got) & (want != want))).all(), (got, want)


def test_an_undecided_branch_is_unknown() -> None:
    """A comparison that rounding may turn leads to nodes that are not known, nor what they hold."""
    kernel = parse_kernel("""
        kernel @k(in x: f32[4], in t: f32[3], out y: f32[4]) { for i < 4 @parallel {
          let at: index = 0
          for r < 1 @loop {
            let now: index = at
            set at = now + select(x[i] * x[i] <= 2.0, 1, 2)
          }
          y[i] = t[at]
        } }""")
    root = np.float32(np.sqrt(2))                # its square in float32 is undecidedly 2
    x = np.array([0, root, 3, np.nextafter(root, np.float32(0))], np.float32)
    sample = sample_kernel(kernel, {"x": x, "t": np.array([7, 8, 9], np.float32)}, 0)
    known = np.isfinite(sample.radius)
    assert dict(zip(sample.positions.tolist(), known.tolist()))[1] is False
    assert known[sample.positions == 0].all() and known[sample.positions == 2].all()


def test_what_does_not_depend_on_the_state_leaves_the_loop() -> None:
    """A row's fold stands outside its columns; a sum in a step that reads no state, outside it."""
    kernel, _, _ = kernel_of("fibonacci")
    text = print_kernel(kernel)
    assert text.index("set state0") < text.index("for i1 <")


def test_neighbours_run_side_by_side() -> None:
    """Eight rows at a time on CPUs, and the rest one by one."""
    leaves = OPS["tree_leaves"].samples[-2]                # 33 rows
    node, _ = case(OPS["tree_leaves"], leaves, 0)
    kernel = lower(Group(node, frozenset()), "k").kernel
    sets = [s for s in statements(schedule_cpu(kernel).kernel.body) if isinstance(s, Assign)]
    assert sorted(len(s.vars) for s in sets) == [1, 8]


def test_c_assigns_at_once() -> None:
    """Variables that a later value reads change last; one alone needs no second name."""
    place = devices.opened("opencl:pocl")
    lines = schedule(kernel_of("fibonacci")[0], place.target).body.splitlines()
    stripped = [line.strip() for line in lines]
    first = stripped.index("float next_state0 = state1;")
    assert stripped[first + 1:first + 3] == ["state1 = state0 + state1;", "state0 = next_state0;"]
    assert "next_" not in schedule(kernel_of("walk")[0], place.target).body


# ---- rules

FOLD = """kernel @k(in x: f32[4], out y: f32[4]) {
  for i < 4 @parallel {
    let a: f32 = 0.0
    let b: index = 0
    for r < 4 @loop {
      let was: f32 = a
      set a, b = was + x[r], b + 1
    }
    y[i] = a + f32(b)
  }
}
"""


def test_the_text_form_reads_as_it_is_written() -> None:
    kernel = parse_kernel(FOLD)
    verify_kernel(kernel)
    assert print_kernel(kernel) == FOLD


@pytest.mark.parametrize(("old", "new", "message"), [
    ("set a, b = was + x[r], b + 1", "set a, b = b + 1, was", "7:20: 'a' is f32, got a value of"),
    ("set a, b =", "set a =", "7:11: 1 variables are set to 2 values"),
    ("set a, b", "set a, c", "7:14: 'c' is not declared here"),
])
def test_what_the_reader_says(old: str, new: str, message: str) -> None:
    with pytest.raises(ParseError) as e:
        parse_kernel(FOLD.replace(old, new))
    assert str(e.value).startswith(message)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("r < 4 @loop", "r < 4 @lane", "'a' is shared by the iterations of 'for r @lane', which run"),
    ("r < 4 @loop", "r < 4 @vec", "lanes can't carry values from one to the next"),
    ("b + 1\n", "b + 1\n    y[r] = was\n", "a loop's assignment is its last statement"),
    ("set a, b = was + x[r], b + 1", "set a, a = was, was", "2 values for a, a: wanted one for"),
    ("set a, b = was + x[r], b + 1", "for q < 2 @loop { set a, b = a, b }",
     "'a' is not declared by a let beside the loop that carries it"),
    ("set a, b = was + x[r], b + 1", "a add= was; set b = b + 1",
     "'a' is accumulated in 'for r', which carries values: declare it inside, or carry it, too"),
    ("set a, b = was + x[r], b + 1", "set r = 1", "'r' is not declared by a let beside the loop"),
])
def test_what_the_verifier_says(old: str, new: str, message: str) -> None:
    assert old in FOLD
    with pytest.raises(VerifyError) as e:
        verify_kernel(parse_kernel(FOLD.replace(old, new)))
    assert message in str(e.value)


def test_a_step_keeps_its_types() -> None:
    s = KernelBuilder()
    with pytest.raises(JitclError) as e:
        s.fold(3, (E.const(0.0, "f32"), E.index(0)), lambda k, a, b: (a, a))
    assert str(e.value) == ("a fold's step gives (f32, f32), its state is (f32, index): "
                            "cast the values")
