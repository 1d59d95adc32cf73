"""The text form of graphs and kernels: it round-trips, and its errors point at the place."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from jitcl.errors import JitclError, ParseError
from jitcl.ir import expr as E
from jitcl.ir.graph import Graph, Node, Origin, const, graph_input
from jitcl.ir.kernel import Buffer, Kernel, Store
from jitcl.ir.parser import load_graph, parse_graph, parse_kernel, parse_module
from jitcl.ir.printer import print_graph, print_kernel, save_graph, side_file
from jitcl.ir.types import Sym, TensorType
from tests import strategies

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

GRAPH = """\
graph @mlp(%x: f16[4,64], %w: f16[32,64]) {
  %0 = transpose(%w) {perm=[1, 0]} : f16[64,32]
  %1 = matmul(%x, %0) {acc='f32'} : f16[4,32]
  %probs = relu(%1) : f16[4,32]
  return %probs
}
"""
KERNEL = """\
kernel @mlp_0(in x: f16[4,64], in w: f16[32,64], out y: f16[4,32]) {
  for i < 4 @group {
    for j < 32 @lane {
      let acc0: f32 = 0.0
      for k < 64 @loop {
        acc0 add= f32(x[i, k - 1 if k >= 1 else 0.0]) * f32(w[j, k])
      }
      y[i, j] = f16(max(acc0, 0.0)) if i + j < 30
    }
  }
}
"""


# ---- round trips

@QUICK
@given(strategies.graphs())
def test_graph_round_trip(graph: Graph) -> None:
    constants: dict[str, np.ndarray] = {}
    text = print_graph(graph, constants=constants, inline=4)
    assert parse_graph(text, constants=constants) == graph
    assert parse_graph(print_graph(graph, inline=None)) == graph


@QUICK
@given(strategies.kernels())
def test_kernel_round_trip(kernel: Kernel) -> None:
    text = print_kernel(kernel)
    again = parse_kernel(text)
    assert again == kernel
    assert print_kernel(again) == text


def test_samples_print_as_they_were_written() -> None:
    assert print_graph(parse_graph(GRAPH)) == GRAPH
    assert print_kernel(parse_kernel(KERNEL)) == KERNEL


def test_module_holds_graphs_and_kernels() -> None:
    found = parse_module(f"// a comment\n{GRAPH}{KERNEL}{GRAPH}")
    assert [type(f) for f in found] == [Graph, Kernel, Graph] and found[0] == found[2]


@QUICK
@given(strategies.graphs())
def test_saved_graph_loads(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    path = tmp_path_factory.mktemp("saved") / "g.jitcl"
    save_graph(graph, path)
    assert load_graph(path) == graph


def test_large_constants_lie_beside_the_text(tmp_path: Path) -> None:
    big = const(np.arange(100, dtype=np.float32))
    half = const(np.linspace(0, 1, 64), "bf16")
    graph = Graph("g", (), (("a", big), ("b", half)))
    path = tmp_path / "g.jitcl"
    save_graph(graph, path)
    assert len(path.read_text()) < 400 and side_file(path).exists()
    assert load_graph(path) == graph
    with pytest.raises(ParseError, match="keep the .npz file"):
        parse_graph(path.read_text())


def test_damaged_side_file_is_noticed(tmp_path: Path) -> None:
    graph = Graph("g", (), (("a", const(np.arange(100, dtype=np.float32))),))
    path = tmp_path / "g.jitcl"
    save_graph(graph, path)
    digest = graph.outputs[0][1].attr("data").digest
    np.savez(side_file(path), **{digest: np.zeros(100, np.float32)})
    with pytest.raises(ParseError, match="damaged: wanted f32"):
        load_graph(path)
    side_file(path).write_bytes(b"PK no zip")
    with pytest.raises(ParseError, match="is damaged"):
        load_graph(path)


def test_outputs_may_share_a_node_or_be_inputs() -> None:
    x = graph_input("x", TensorType("f32", (Sym("batch size"), 3)))
    y = Node.make("relu", [x], type=x.type)
    graph = Graph("g", (x,), (("out0", x), ("x", y), ("b", y), ("c d", x)))
    assert parse_graph(print_graph(graph)) == graph
    assert 'f32["batch size",3]' in print_graph(graph)


def test_origins_are_comments() -> None:
    x = graph_input("x", TensorType("f32", (3,)))
    y = Node.make("relu", [x], type=x.type)
    graph = Graph("g", (x,), (("y", y),), {y: Origin("layer1\n/relu", "Relu")})
    text = print_graph(graph)
    assert text.splitlines()[1].endswith('// "layer1\\n/relu" (Relu)')
    assert "//" not in print_graph(graph, origins=False)


def test_literals_take_the_type_that_is_implied() -> None:
    kernel = parse_kernel("kernel @k(in x: i64[4], out y: f64[]) { let a = x[0] + 3; "
                          "let b: f16 = 1; y[] = f64(a) * select(true, 2, 3:f64) }")
    text = print_kernel(kernel)
    assert "x[0] + 3\n" in text and "let b: f16 = 1.0" in text
    assert "f64(a) * select(true, 2.0:f64, 3.0:f64)" in text
    assert parse_kernel(text) == kernel


def test_deep_expressions_and_long_graphs() -> None:
    x = E.load("x", [E.index(0)], "f32")
    for _ in range(3000):
        x = E.make("add", (x, E.const(1.0, "f32")), "f32")
    kernel = Kernel("k", (Buffer("x", "f32", (1,)), Buffer("y", "f32", (1,), "out")),
                    (Store("y", (E.index(0),), x),))
    assert parse_kernel(print_kernel(kernel)) == kernel
    lines = [f"  %{i} = conv(%{i - 1 if i else 'x'}, %x) {{group=1, pads=[1, 1, 1, 1]}} "
             ": f32[1,64,56,56; NCHW16c+1]" for i in range(3000)]
    text = "\n".join(["graph @g(%x: f32[1,64,56,56]) {", *lines, "  return %2999", "}", ""])
    assert print_graph(parse_graph(text)) == text


def test_500_nodes_parse_in_a_second() -> None:
    lines = [f"%{i} = conv(%x, %x) {{pads=[{i}, 1]}} : f32[1,64,56,56; NCHW16c+1]"
             for i in range(500)]
    text = "\n".join(["graph @g(%x: f32[1,64,56,56]) {", *lines, "return %499}"])
    parse_graph(text)                        # the grammar is read once a process
    start = time.process_time()
    parse_graph(text)
    assert time.process_time() - start < 1.0


# ---- types left out

def test_types_are_inferred_where_the_text_has_none() -> None:
    text = re.sub(r" : f16\S+", "", GRAPH)

    def infer(op: str, types: tuple[TensorType, ...], attrs: dict[str, object]) -> TensorType:
        if op == "relu":
            raise JitclError("relu dislikes this")
        return types[0].with_(shape=(64, 32) if op == "transpose" else (4, 32))
    with pytest.raises(ParseError, match="4:12: relu dislikes this"):
        parse_graph(text, infer=infer)
    graph = parse_graph(text.replace("relu", "gelu"), infer=infer)
    assert graph.outputs[0][1].type == TensorType("f16", (4, 32))
    with pytest.raises(ParseError, match="2:3: the type of %0 is missing"):
        parse_graph(text)
    graph = parse_graph("graph @g() {%a = const {data=f32[2](1.0, 2.0)} return %a}")
    assert graph.outputs == (("a", const([1.0, 2.0], "f32")),)


# ---- errors

@pytest.mark.parametrize("old, new, message", [
    ("x[i, k - 1 if", "x[i if", "6:23: 'x' has 2 axes (4, 64), indexed with 1\n"
     "  acc0 add= f32(x[i if k >= 1 else 0.0]) * f32(w[j, k])\n                ^"),
    ("add=", "sub=", "6:14: no combine 'sub': use one of add, mul, max, min, and, or"),
    ("for k < 64", "for k 64", "5:13: expected '<', got '64'"),
    ("@lane", "@lame", "3:16: no loop kind 'lame': use one of group, lane, loop, vec, "),
    ("max(acc0", "max(acc1", "8:25: 'acc1' is not declared here; did you mean 'acc0'?"),
    ("max(", "mox(", "8:21: no scalar operation 'mox'; did you mean 'mod'"),
    ("* f32(w[j, k])", "* w[j, k]", "6:55: operands of 'mul' have types f32 and f16: cast one"),
    ("f16(max(acc0, 0.0))", "acc0", "8:17: buffer 'y' is f16, got a value of type f32: cast "),
    ("if i + j < 30", "if i + j", "8:42: a guard is bool, got a value of type index"),
    ("let acc0: f32 = 0.0", "let i: f32 = 0.0", "4:11: 'i' is declared twice"),
    ("w[j, k]", "v[j, k]", "6:61: no buffer 'v'"),
    ("w[j, k]", "w[j, 0.5]", "6:66: literal 0.5 stands where a value of type index is wanted"),
    ("out y: f16", "out y: f17", "1:57: 'f17' is no element type"),
    ("max(acc0, 0.0)", "max(acc0)", "8:21: 'max' takes 2 operands, got 1"),
    ("let acc0: f32 = 0.0", "let acc0: f32 = ?", "4:23: expected a name, a number, a quoted "
     "string, true or false or '(', got '?'"),
])
def test_kernel_errors(old: str, new: str, message: str) -> None:
    assert old in KERNEL
    with pytest.raises(ParseError) as e:
        parse_kernel(KERNEL.replace(old, new))
    assert str(e.value).startswith(message)


@pytest.mark.parametrize("old, new, message", [
    ("relu(%1)", "relu(%3)", "4:17: %3 is not defined above this line"),
    ("relu(%1)", "rulu(%1)", "4:12: no op 'rulu'; did you mean 'relu'?\n  %probs = rulu(%1) :"),
    ("%1 =", "%0 =", "3:3: %0 is defined twice"),
    ("{perm=[1, 0]}", "{perm=1, perm=2}", "2:31: attribute 'perm' is given twice"),
    ("f16[4,32]\n  return", "f16[4,32; NCHW]\n  return", "4:33: unknown layout 'NCHW': use row, "),
    ("return %probs", "return %probs, %probs", "5:18: two outputs are named 'probs'"),
    ("[1, 0]", "[1, 0", "2:33: expected ',' or ']', got '}'"),
    ("transpose(%w)", "const", None),
    ("transpose(%w) {perm=[1, 0]}", "const {data=i8[2](1, 300)}",
     "2:29: 300 is no element of i8 (-128 to 127)"),
    ("transpose(%w) {perm=[1, 0]}", "const {data=i8[2](1)}",
     "2:20: a constant of i8[2] has 2 elements, got 1"),
    ("return %probs\n}", "return %probs", "5:16: expected ',' or '}', got the end of the text\n"
     "  return %probs\n               ^"),
    ("[1, 0]", "'\\x'", "2:28: this string is not well formed"),
])
def test_graph_errors(old: str, new: str, message: str | None) -> None:
    assert old in GRAPH
    text = GRAPH.replace(old, new)
    if message is None:
        parse_graph(text, known_ops=["matmul", "relu"])
        return
    with pytest.raises(ParseError) as e:
        parse_graph(text, known_ops=["transpose", "matmul", "relu"])
    assert str(e.value).startswith(message)


def test_errors_name_the_file_and_what_was_wanted(tmp_path: Path) -> None:
    path = tmp_path / "g.jitcl"
    path.write_text("graph")
    with pytest.raises(ParseError, match=r"g.jitcl:1:6: expected a name after '@', got the end"):
        load_graph(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ParseError, match="byte 0 is not UTF-8"):
        load_graph(path)
    with pytest.raises(ParseError, match="wanted one graph, the text holds kernel 'mlp_0'"):
        parse_graph(KERNEL)
    with pytest.raises(ParseError, match="wanted one kernel, the text holds nothing"):
        parse_kernel("")
