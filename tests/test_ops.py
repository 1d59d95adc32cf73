"""The op table: every declared op, on its samples, gives what its NumPy reference gives."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.lower import lower
from jitcl.errors import JitclError, ShapeError, TypeError_, UnsupportedError
from jitcl.frontends.onnx.rules import ONNX
from jitcl.ir.graph import Graph, Node, graph_input
from jitcl.ir.group import Group
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.types import TensorType
from jitcl.ops import MODULES, OPS
from jitcl.ops.builder import GraphBuilder, evaluate, reference
from jitcl.ops.core import Op, Sample, onnx_dtype
from jitcl.ops.scatter import _scatter_known
from jitcl.passes.decompose import Decompose
from tests import devices
from tests.conftest import DRIVER

OPS_DIR = Path(__file__).resolve().parent.parent / "jitcl" / "ops"
G = GraphBuilder()

# "kernels": each node alone, unscheduled, by the interpreter; the others: the whole way through
DEVICES = ("kernels", *(s for s in devices.present() if s != "reference"))


def run_graph(device: str, graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The graph's outputs by name."""
    if device != "kernels":
        return devices.run_graph(device, graph, feeds)
    graph = Decompose().run(graph)
    values: dict[Node, np.ndarray] = {}
    for node in graph.nodes:
        if node.op in ("input", "const"):
            values[node] = feeds[node.attr("name")] if node.op == "input" else node.data
            continue
        lowered = lower(Group(node, frozenset()), node.op)
        out = lowered.kernel.buffer("y")
        buffers = {b.name: values[operand].reshape(b.shape)
                   for b, operand in zip(lowered.kernel.buffers, lowered.operands)}
        buffers["y"] = np.zeros(out.shape, dtypes.to_numpy(out.dtype))
        run_kernel(lowered.kernel, buffers)
        values[node] = buffers["y"].reshape(node.type.dims)
    return {name: values[node] for name, node in graph.outputs}


def computes(device: str, sample: Sample) -> bool:
    """Whether the device has the element types that a sample needs."""
    used = {spec.dtype for spec in sample.args} | {sample.attrs.get(a) for a in ("to", "dtype")}
    place = devices.device(device) if device != "kernels" else None
    return place is None or (("bf16" not in used or place.target.bf16_storage)
                             and ("f64" not in used or place.target.fp64))


def case(op: Op, sample: Sample, number: int) -> tuple[Node, dict[str, np.ndarray]]:
    """One row of the table as a node over graph inputs, and what to feed them."""
    rng = np.random.default_rng(number)
    inputs, feeds = [], {}
    for i, spec in enumerate(sample.args):
        name = f"x{number}_{i}"
        inputs.append(graph_input(name, TensorType(spec.dtype, spec.shape)))
        feeds[name] = spec.array(rng)
    return G.op(op.name, *inputs, **sample.attrs), feeds


def assert_close(got: np.ndarray, want: np.ndarray, rtol: float) -> None:
    """Equal but for rounding; NaN and infinities where the reference has them."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if not dtypes.is_float(dtypes.from_numpy(want.dtype)):
        np.testing.assert_array_equal(got, want)
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    largest = np.abs(want[finite]).max(initial=1e-30)
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=rtol * largest)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.sampled(quick=16)) if DRIVER.fullmatch(d) else d
    for d in DEVICES])
def test_op(device: str, name: str) -> None:
    op = OPS[name]
    rows = [(*case(op, sample, k), sample) for k, sample in enumerate(op.samples)
            if computes(device, sample)]
    feeds = {key: array for _, fed, _ in rows for key, array in fed.items()}
    inputs = {n.attr("name"): n for node, _, _ in rows for n in node.inputs}
    outputs = tuple((f"y{k}", node) for k, (node, _, _) in enumerate(rows))
    got = run_graph(device, Graph(name, tuple(inputs.values()), outputs), feeds)
    for k, (node, fed, sample) in enumerate(rows):
        want = reference(node, *(fed[n.attr("name")] for n in node.inputs))
        assert_close(got[f"y{k}"], want, sample.rtol)


# -- declarations ------------------------------------------------------------------------------


def declarations(module: str) -> list[str]:
    """Names of the functions of a module in ops/ under a declaring decorator."""
    kinds = ("elementwise", "indexed", "movement", "reduction", "composite", "recurrence")
    tree = ast.parse((OPS_DIR / f"{module}.py").read_text())
    return [node.name.rstrip("_") for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            for d in node.decorator_list
            if isinstance(d, ast.Call) and getattr(d.func, "id", "") in kinds]


def test_each_op_is_declared_in_one_place() -> None:
    found = Counter(name for path in OPS_DIR.glob("*.py") for name in declarations(path.stem))
    assert {name: n for name, n in found.items() if n != 1} == {}
    assert set(found) <= set(OPS)


def test_each_op_has_samples_and_one_meaning() -> None:
    assert [op.name for op in OPS.values() if not op.samples] == []
    meanings = {op.name: (op.body, op.expand, op.scan) for op in OPS.values()}
    assert [name for name, each in meanings.items() if len([m for m in each if m]) != 1] == []


def test_import_rules_stand_beside_an_op_or_in_the_frontend() -> None:
    """In ops/ a module declares ops; rules of what others express are the ONNX frontend's."""
    places = {rule.__module__.rpartition(".")[::2] for rule in ONNX.values()}
    assert {package for package, _ in places} == {"jitcl.ops", "jitcl.frontends.onnx.rules"}
    assert [name for package, name in places if package == "jitcl.ops"
            and name != "core" and not declarations(name)] == []    # core: of a declaration's onnx=
    assert [name for name in MODULES if not declarations(name)] == []


# -- errors of inference -----------------------------------------------------------------------


def x(*shape: int, dtype: str = "f32") -> Node:
    return graph_input(f"x{len(shape)}", TensorType(dtype, shape))


@pytest.mark.parametrize(("make", "error", "text"), [
    (lambda: G.add(x(2, 3), x(4)), ShapeError,
     "add(f32[2,3], f32[4]): shapes [2, 3] and [4] do not broadcast: axis 1 is 3 and 4"),
    (lambda: G.add(x(2), x(2, dtype="i32")), TypeError_,
     "add(f32[2], i32[2]): operands have different element types: f32[2], i32[2]; "
     "cast one of them"),
    (lambda: G.where(x(2), x(2), x(2)), TypeError_,
     "where(f32[2], f32[2], f32[2]): the condition is f32[2], wanted bool: compare or cast it"),
    (lambda: G.reshape(x(2, 3), shape=(4, 2)), ShapeError,
     "reshape(f32[2,3]): cannot reshape f32[2,3] (6 elements) to [4, 2] (8 elements)"),
    (lambda: G.transpose(x(2, 3), perm=(0, 0)), ShapeError,
     "transpose(f32[2,3]): perm [0, 0] is no order of the 2 axes of f32[2,3]"),
    (lambda: G.slice(x(4), starts=(0,), ends=(4,), steps=(0,)), ShapeError,
     "slice(f32[4]): axis 0 has step 0"),
    (lambda: G.concat(x(2, 3), x(3, 3), axis=1), ShapeError,
     "concat(f32[2,3], f32[3,3]): f32[3,3] and f32[2,3] differ in more than axis 1, along which "
     "they are joined"),
    (lambda: G.pad(x(2), pads=(-2, -1)), ShapeError,
     "pad(f32[2]): pads [-2, -1] (mode constant) leave -1 of the 2 elements of axis 0 of f32[2]"),
    (lambda: G.reduce_sum(x(2, 3), axes=(2,)), ShapeError,
     "reduce_sum(f32[2,3]): axis 2 is outside a tensor of rank 2: use -2 to 1"),
    (lambda: G.reduce_sum(x(2, 3), axes=(1, -1)), ShapeError,
     "reduce_sum(f32[2,3]): axes (1, -1) name an axis of rank 2 twice"),
    (lambda: G.argmax(x(2, 0), axis=1), ShapeError,
     "argmax(f32[2,0]): axis 1 of f32[2,0] is empty: nothing is greatest or least"),
    (lambda: G.gather(x(2), x(2)), TypeError_,
     "gather(f32[2], f32[2]): indices are f32[2], wanted integers"),
    (lambda: G.gather(x(0, 2), x(1, dtype="i64")), ShapeError,
     "gather(f32[0,2], i64[1]): axis 0 of f32[0,2] is empty: there is nothing to index"),
    (lambda: G.topk_indices(x(3), k=4), ShapeError,
     "topk_indices(f32[3]): rank_indices(i32[3]): k is 4, but axis 0 of i32[3] has 3 elements"),
    (lambda: G.depth_to_space(x(1, 3, 2, 2), blocksize=2), ShapeError,
     "depth_to_space(f32[1,3,2,2]): wanted [N,C,H,W] with C a multiple of 2*2, got f32[1,3,2,2]"),
    (lambda: G.softmaks(x(2)), JitclError,
     "no op 'softmaks': did you mean softmax or log_softmax or softsign?"),
    (lambda: onnx_dtype(14), UnsupportedError,
     "element type complex64 is not supported: use f32, u8, i8, u16, i16, i32, i64, bool, f16, "
     "f64, u32, u64, bf16, f8e4m3, f8e4m3z, f8e5m2, f8e5m2z, u4, i4, f4e2m1, f8e8m0, u2, i2"),
])
def test_what_inference_says(make, error, text) -> None:
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == text


def test_what_rules_say_of_gathers_out_of_range() -> None:
    """No index value reads outside: it is clamped."""
    data, at = x(3), graph_input("at", TensorType("i64", (4,)))
    graph = Graph("g", (data, at), (("y", G.gather(data, at)),))
    feeds = {"x1": np.arange(3, dtype=np.float32), "at": np.array([-9, -1, 2, 9])}
    np.testing.assert_array_equal(run_graph("kernels", graph, feeds)["y"], [0, 2, 2, 2])


@pytest.mark.parametrize(("shape", "lead", "depth"), [
    ((4, 3), (6,), 1), ((3, 4, 2), (2, 3), 2), ((2, 3, 4), (5,), 3), ((5,), (1,), 1)])
def test_a_scatter_to_known_places_is_a_gather(shape: tuple[int, ...], lead: tuple[int, ...],
                                               depth: int) -> None:
    """The same as the scatter that looks through all updates; of several the last one counts."""
    rng = np.random.default_rng(0)
    data = rng.random(shape, dtype=np.float32)
    at = np.stack([rng.integers(-d, d, lead) for d in shape[:depth]], axis=-1)
    updates = rng.random(lead + shape[depth:], dtype=np.float32)
    slow = G.scatter_nd(G.const(data), G.const(at), G.const(updates))
    known = _scatter_known(G, G.const(data), at, G.const(updates))
    np.testing.assert_array_equal(evaluate(known), evaluate(slow))


@pytest.mark.parametrize("form", ["elements_sought", "elements_written", "slices_sought",
                                  "slices_written"])
def test_updates_to_places_outside_count_for_nothing(form: str) -> None:
    x, updates = G.const(np.zeros(3, np.float32)), G.const(np.arange(1, 5, dtype=np.float32))
    places = np.array([-4, 3, 1, -1])
    y = G.op(form, x, G.const(places[:, None] if "slices" in form else places), updates)
    got = run_graph("kernels", Graph("g", (), (("y", y),)), {})["y"]
    np.testing.assert_array_equal(got, [0, 3, 4])
