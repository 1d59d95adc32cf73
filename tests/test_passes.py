"""Passes, text in, text out: the cases of tests/passes/*.jitcl, and what all passes must keep.

    // PASS: canonicalise             passes by name, in order; a new case begins here
    // OPTIONS: precision=normal      // TARGET: fp64=False
    graph @f(%x: f32[2]) { ... }
    // CHECK: text                    in the result, behind what the check before it found
    // CHECK-NOT: text                nowhere in the result
    // CHECK-COUNT: 2 text            so many times
    // ERROR: text                    instead: the pass raises a JitclError that says so

Of `assign-precision`, which comes after fusion, the text also has a line for each group: what it
makes of what, and what it computes in.

Every case is also evaluated by the ops' references before and after, on random inputs.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.lower import lower
from jitcl.errors import JitclError, OptionError, ShapeError, VerifyError
from jitcl.ir.graph import Graph, Node, Origin, const, graph_input
from jitcl.ir.parser import load_graph, parse_graph
from jitcl.ir.printer import print_graph, print_kernel, save_graph, value_names
from jitcl.ir.sizes import Space
from jitcl.ir.types import Sym, TensorType
from jitcl.ops.builder import GraphBuilder, evaluate, infer
from jitcl.passes.base import Pass, RewritePass, Rewriter, run_passes
from jitcl.passes.fold import FoldConstants
from jitcl.passes.fuse import fuse
from jitcl.passes.options import Options
from jitcl.passes.pipeline import pipeline
from jitcl.passes.precision import assign_precision
from jitcl.passes.specialise import specialise
from jitcl.passes.verify import check
from jitcl.passes.weight_rows import WeightRows
from jitcl.target import Target
from tests.groups import check_groups

CASES = Path(__file__).parent / "passes"
TARGET = Target("cpu", "test", bf16_storage=True)


@dataclass
class Case:
    """One graph of a .jitcl file and what is expected of it."""

    place: str
    passes: list[str]
    options: dict[str, str] = field(default_factory=dict)
    target: dict[str, object] = field(default_factory=dict)
    text: str = ""
    checks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        return [t for what, t in self.checks if what == "ERROR"]


def read_cases() -> list[Case]:
    found: list[Case] = []
    for path in sorted(CASES.glob("*.jitcl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            mark = re.fullmatch(r"// ([A-Z-]+): (.*)", line)
            if mark is None:
                if found and not line.startswith("//"):
                    found[-1].text += line + "\n"
            elif mark[1] == "PASS":
                names = [n.strip() for n in mark[2].split(",")]
                found.append(Case(f"{path.stem}:{number}", names))
            elif mark[1] in ("OPTIONS", "TARGET"):
                pairs = dict(p.split("=") for p in mark[2].split())
                if mark[1] == "OPTIONS":
                    found[-1].options = pairs
                else:
                    found[-1].target = {k: ast.literal_eval(v) for k, v in pairs.items()}
            elif mark[1] != "RUN":
                found[-1].checks.append((mark[1], mark[2]))
    return found


def passes_of(case: Case) -> list[Pass]:
    """The passes by name, as the pipeline of the case's target and options has them."""
    target = dataclasses.replace(TARGET, **case.target)
    known = {p.name: p for p in pipeline(target, Options(**case.options))}
    return [known[name] for name in case.passes]


def assigned(case: Case, graph: Graph) -> tuple[Graph, str]:
    """The graph after fusion and `assign-precision`, and its text with its groups."""
    target = dataclasses.replace(TARGET, **case.target)
    groups = fuse(graph, target)
    result, after = assign_precision(graph, groups, target, case.options["precision"])
    assert [[n.op for n in g.members] for g in after] == [[n.op for n in g.members] for g in groups]
    check_groups(result, after)
    names = value_names(result)
    lines = [f"// {names[g.root]} = {' + '.join(n.op for n in g.members)} in {g.compute}\n"
             for g in after]
    return result, print_graph(result) + "".join(lines)


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in graph.inputs:
        values = rng.uniform(-2, 2, node.type.dims)
        if dtypes.is_int(node.type.dtype):
            values = np.abs(np.floor(values))
        feeds[node.attr("name")] = values.astype(dtypes.to_numpy(node.type.dtype))
    return feeds


def evaluate_graph(graph: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    memo = {n: feeds[n.attr("name")] for n in graph.inputs}
    return [evaluate(n, memo) for _, n in graph.outputs]


def assert_same_values(before: Graph, after: Graph, rtol: float) -> None:
    feeds = random_feeds(before)
    assert [n.attr("name") for n in before.inputs] == [n.attr("name") for n in after.inputs]
    for want, got in zip(evaluate_graph(before, feeds), evaluate_graph(after, feeds)):
        assert want.dtype == got.dtype and want.shape == got.shape
        if want.dtype == np.float16:
            rtol = max(rtol, 2.0**-10)     # one unit: a pass may move a rounding
        want, got = want.astype(np.float64), got.astype(np.float64)
        scale = np.abs(want[np.isfinite(want)]).max(initial=0.0)
        np.testing.assert_allclose(got, want, rtol=0, atol=rtol * float(scale))


def assert_checks(case: Case, text: str) -> None:
    at = 0
    for what, wanted in case.checks:
        if what == "CHECK":
            found = text.find(wanted, at)
            assert found >= 0, f"{case.place}: no '{wanted}' in the rest of\n{text}"
            at = found + len(wanted)
        elif what == "CHECK-NOT":
            assert wanted not in text, f"{case.place}: '{wanted}' in\n{text}"
        elif what == "CHECK-COUNT":
            count, wanted = wanted.split(" ", 1)
            assert text.count(wanted) == int(count), f"{case.place}: '{wanted}' in\n{text}"
        else:
            raise AssertionError(f"{case.place}: unknown check {what}")


@pytest.mark.parametrize("case", read_cases(), ids=lambda c: f"{c.place}-{'+'.join(c.passes)}")
def test_case(case: Case) -> None:
    graph = parse_graph(case.text, infer=infer)
    if case.errors:
        with pytest.raises(JitclError) as e:
            run_passes(graph, passes_of(case))
        assert all(t in str(e.value) for t in case.errors)
        return
    if case.passes == ["assign-precision"]:
        result, text = assigned(case, graph)
    else:
        result = run_passes(graph, passes_of(case), verify=check)
        text = print_graph(result)
    assert_checks(case, text.split("\n", 1)[1])         # without the head
    exact = case.passes == ["canonicalise"] or case.passes == ["fold-constants"]
    half = case.options.get("precision", "high") != "high"
    rounded = "projected-bytes" in case.passes              # to 16 bits of the largest in a row
    assert_same_values(graph, result,
                       0.0 if exact else 3e-3 if half else 2.0**-14 if rounded else 1e-5)


def test_every_rewrite_pass_has_a_case() -> None:
    covered = {name for case in read_cases() for name in case.passes}
    rewrites = {p.name for p in pipeline(TARGET, Options()) if p.name != "assign-layouts"}
    assert rewrites | {"assign-precision"} <= covered


# ---- what all passes keep

g = GraphBuilder()


def small_network() -> Graph:
    rng = np.random.default_rng(1)

    def weight(*shape: int) -> Node:
        return const(rng.normal(size=shape).astype(np.float32))
    x = graph_input("x", TensorType("f32", (2, 4, 9, 9)))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    y = g.conv(x, weight(8, 4, 3, 3), **window)
    y = g.batch_norm(y, weight(8), weight(8), weight(8), g.const(np.full(8, 0.7, np.float32)),
                     epsilon=1e-5)
    y = g.mul(y, g.sigmoid(y))
    y = g.add(y, g.conv(y, weight(8, 8, 3, 3), **window))
    y = g.reshape(g.transpose(y, perm=(0, 2, 3, 1)), shape=(2, 81, 8))
    y = g.layer_norm(y, weight(8), weight(8), axis=-1, epsilon=1e-5)
    y = g.softmax(g.matmul(y, weight(8, 5)), axis=-1)
    origins = {n: Origin(f"node/{k}", n.op) for k, n in enumerate([y])}
    return Graph("small", (x,), (("y", y),), origins)


@pytest.mark.parametrize("precision", ["high", "normal", "low"])
def test_the_pipeline_keeps_values(precision: str) -> None:
    graph = small_network()
    result = run_passes(graph, pipeline(TARGET, Options(precision=precision)), verify=check)
    assert_same_values(graph, result, 1e-5)
    again = run_passes(result, pipeline(TARGET, Options()))
    assert again == result, "the pipeline comes to rest"
    stored, groups = assign_precision(result, fuse(result), TARGET, precision)
    check_groups(stored, groups)
    assert_same_values(graph, stored, 1e-5 if precision == "high" else 5e-3)
    assert any(n.type.dtype == "f16" for n in stored.nodes) == (precision != "high")


def test_origins_are_carried_on() -> None:
    graph = small_network()
    result = run_passes(graph, pipeline(TARGET, Options()))
    (_, out), = result.outputs
    assert result.origins[out].name == "node/0"


def test_deep_graphs_need_no_stack() -> None:
    x = graph_input("x", TensorType("f32", (4,)))
    y = x
    for _ in range(3000):
        y = g.add(g.neg(g.neg(y)), x)
    result = run_passes(Graph("deep", (x,), (("y", y),)), pipeline(TARGET, Options()))
    assert not any(n.op == "neg" for n in result.nodes)


def test_run_passes_verifies_and_observes() -> None:
    seen: list[str] = []
    checked: list[str] = []
    graph = small_network()
    run_passes(graph, pipeline(TARGET, Options()), verify=lambda _, name: checked.append(name),
               observe=lambda name, *_: seen.append(name))
    assert seen == checked == [p.name for p in pipeline(TARGET, Options())]


class Broken(RewritePass):
    """Gives another type than the node's."""

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        return g.cast(node, to="f64") if node.op == "relu" else None


def test_a_rewrite_must_keep_the_type() -> None:
    x = graph_input("x", TensorType("f32", (4,)))
    with pytest.raises(VerifyError, match="pass broken made f64.4. of 'relu' f32.4."):
        Broken().run(Graph("f", (x,), (("y", g.relu(x)),)))


class Endless(RewritePass):
    """Finds something for ever."""

    def rewrite(self, node: Node, g: Rewriter) -> Node | None:
        return g.neg(g.neg(node)) if node.op != "neg" else None


def test_a_rewrite_must_come_to_an_end() -> None:
    x = graph_input("x", TensorType("f32", (4,)))
    with pytest.raises(VerifyError, match="does not come to an end"):
        Endless().run(Graph("f", (x,), (("y", g.relu(x)),)))


def test_unknown_options_name_the_choices() -> None:
    with pytest.raises(OptionError, match="precision='fast' is not known: use one of high"):
        Options(precision="fast")


# ---- precision

ABLE = Target("opencl", "test", fp16_arithmetic=True)


@pytest.mark.parametrize(("target", "precision", "computes"), [
    (ABLE, "low", True), (ABLE, "normal", False), (ABLE, "high", False),
    (dataclasses.replace(ABLE, soft_half=True), "low", False),
    (Target("opencl", "test"), "low", False), (TARGET, "low", False)])
def test_half_arithmetic_is_for_low_where_the_device_has_it(
        target: Target, precision: str, computes: bool) -> None:
    graph = run_passes(small_network(), pipeline(target, Options(precision=precision)))
    _, groups = assign_precision(graph, fuse(graph, target), target, precision)
    assert any(group.compute == "f16" for group in groups) == computes


# ---- specialise

SYMBOLIC = """graph @f(%x: f32[batch,seq,8], %m: f32[batch,seq,1]) {
  %0 = mul(%x, %m)
  %1 = reduce_sum(%0) {axes=[1], keepdims=true}
  %y = add(%1, %x)
  return %y
}"""


def test_specialise_binds_dimensions_by_name() -> None:
    graph = parse_graph(SYMBOLIC, infer=infer)
    bound = specialise(graph, {"batch": 2, "seq": 3})
    assert [n.type.shape for n in bound.inputs] == [(2, 3, 8), (2, 3, 1)]
    assert bound.outputs[0][1].type.shape == (2, 3, 8)
    part = specialise(graph, {"seq": 3})
    assert part.outputs[0][1].type.shape == (Sym("batch"), 3, 8)
    assert specialise(part, {"batch": 2}) == bound


def test_specialise_reports_what_does_not_fit() -> None:
    x, y = (graph_input(k, TensorType("f32", (Sym(s), 4))) for k, s in (("x", "n"), ("y", "n")))
    graph = Graph("f", (x, y), (("z", g.add(x, y)),))
    with pytest.raises(ShapeError, match="dimension 'k' is not one of this graph's: n"):
        specialise(graph, {"k": 2})
    with pytest.raises(ShapeError, match="dimension 'n' is bound to -1"):
        specialise(graph, {"n": -1})


def test_low_precision_multiplies_in_half_and_sums_in_f32() -> None:
    graph = run_passes(small_network(), pipeline(ABLE, Options(precision="low")))
    _, groups = assign_precision(graph, fuse(graph), ABLE, "low")
    text = "\n".join(print_kernel(lower(group, "k").kernel) for group in groups)
    assert re.search(r"f32\(x0\[.*\] \* x1\[.*\]\)", text), text
    assert "acc0: f16" not in text


def test_what_is_made_of_weights_in_a_file_is_computed_when_it_is_asked_for() -> None:
    """Halves of a file, widened and transposed, are read for nothing while they are folded and
    rounded again; then they are the file's, and no float was made of them."""
    g, reads, target = GraphBuilder(), [], Target("opencl", "a GPU")
    stored = np.random.default_rng(0).standard_normal((256, 160)).astype(np.float16)

    def read() -> np.ndarray:
        reads.append(1)
        return stored.copy()

    w = const(stored, reload=read)
    x = graph_input("x", TensorType("f32", (2, 160)))
    wide = g.transpose(g.cast(w, to="f32"), perm=(1, 0))
    y = g.matmul(x, wide)
    graph = run_passes(Graph("g", (x,), (("y", y),)), pipeline(target, Options()), verify=check)
    (folded,) = [n for n in graph.nodes if n.op == "const" and n.type.size > 1]
    assert reads == [] and folded.type.dtype == "f32" and folded.type.dims == (160, 256)
    rounded, _ = assign_precision(graph, fuse(graph, target), target, "normal")
    (half,) = [n for n in rounded.nodes if n.op == "const" and n.type.size > 1]
    assert len(reads) <= 1 and half.type.dtype == "f16"
    np.testing.assert_array_equal(half.data, stored.T)
    np.testing.assert_array_equal(folded.data, stored.T.astype(np.float32))
    same = g.transpose(g.cast(const(stored, reload=read), to="f32"), perm=(1, 0))
    again = run_passes(Graph("g", (x,), (("y", g.matmul(x, same)),)),
                       pipeline(target, Options()), verify=check)
    assert folded in again.nodes                # by what it is made of


def test_weights_that_a_file_has_by_columns_stay_so_for_any_number_of_rows() -> None:
    """Where columns are read: neither a prompt's plan nor a token's transposes them."""
    g = GraphBuilder()
    target = Target("opencl", "a GPU", device_type="gpu", vector_width=4, local_is_real=True,
                    local_works=True, local_memory=32 << 10, max_work_group=256)
    stored = np.random.default_rng(0).standard_normal((256, 160)).astype(np.float16)
    for rows in (2, 200):
        w = g.cast(const(stored, reload=stored.copy), to="f32")
        x = graph_input("x", TensorType("f32", (rows, 160)))
        y = g.matmul(x, g.transpose(w, perm=(1, 0)))
        graph = run_passes(Graph("g", (x,), (("y", y),)), pipeline(target, Options()),
                           verify=check)
        assert [n.op for n in graph.nodes] == ["input", "const", "transpose", "matmul"]
        np.testing.assert_array_equal(graph.nodes[1].data, stored)


@pytest.mark.parametrize("terms, turned", [(64, True), (66, False)])
def test_weights_for_a_number_of_rows_that_is_not_known(terms: int, turned: bool) -> None:
    """Lie by columns where these are whole vectors."""
    g = GraphBuilder()
    target = Target("opencl", "a GPU", device_type="gpu", vector_width=4, local_is_real=True,
                    local_works=True, local_memory=32 << 10, max_work_group=256)
    x = graph_input("x", TensorType("f32", (Space().symbol("rows", 9), terms)))
    w = np.random.default_rng(0).standard_normal((terms, 96)).astype(np.float32)
    graph = run_passes(Graph("g", (x,), (("y", g.matmul(x, const(w))),)), [WeightRows(target)],
                       verify=check)
    (product,) = [n for n in graph.nodes if n.op == "matmul"]
    assert (product.inputs[1].op == "transpose") is turned
    np.testing.assert_array_equal(evaluate(product.inputs[1], {}), w)


def test_constants_that_were_computed_later_are_saved_by_their_elements(tmp_path: Path) -> None:
    g = GraphBuilder()
    stored = np.random.default_rng(0).standard_normal((256, 160)).astype(np.float32)
    turned = FoldConstants().folded(g.transpose(const(stored, reload=stored.copy), perm=(1, 0)))
    x = graph_input("x", TensorType("f32", (200, 160)))
    save_graph(Graph("g", (x,), (("y", g.matmul(x, turned)),)), tmp_path / "g.jitcl")
    again = load_graph(tmp_path / "g.jitcl", infer=infer)
    np.testing.assert_array_equal(again.nodes[1].data, stored.T)
