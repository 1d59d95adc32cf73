"""The verifier accepts what is well formed, and says what is wrong with what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from jitcl.errors import JitclError, VerifyError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.graph import Data, Graph, Node, Origin, const, graph_input
from jitcl.ir.kernel import Accum, Buffer, For, Kernel, Let, Stmt, Store
from jitcl.ir.parser import parse_graph, parse_kernel
from jitcl.ir.types import Layout, Sym, TensorType
from jitcl.ir.verify import verify_graph
from jitcl.ir.verify_kernel import verify_kernel
from tests import strategies

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
F4 = TensorType("f32", (4,))
X = graph_input("x", F4)


# ---- what is well formed

@QUICK
@given(strategies.kernels())
def test_random_kernels_are_accepted(kernel: Kernel) -> None:
    verify_kernel(kernel)


@QUICK
@given(strategies.graphs())
def test_random_graphs_are_accepted(graph: Graph) -> None:
    verify_graph(graph)


# ---- graphs

def relu(x: Node, type: TensorType = F4, **attrs: object) -> Node:
    return Node.make("relu", [x], attrs, type=type)


@pytest.mark.parametrize("node, message", [
    (relu(X, TensorType("f33", (4,))), "node %y = relu: its element type is 'f33', wanted one of"),
    (relu(X, TensorType("f32", (-1,))), "its shape f32[-1] has dimension -1, wanted an int >= 0"),
    (relu(X, TensorType("f32", (4,), Layout("row", 4))), "its layout row has block 4 and halo 0"),
    (relu(X, TensorType("f32", (), Layout("rows", 4))), "is rows4, but a scalar has no rows"),
    (relu(X, TensorType("f32", (4,), Layout("NCHWc", 0))), "its layout is Layout(kind='NCHWc',"),
    (relu(X, a=(1, np.int64(2))), "of type int64, wanted int, float, bool, str, None, Data"),
    (relu(graph_input("z", F4)), "node %0 = input: the graph does not declare its input 'z'"),
    (Node.make("const", [], {"data": 3}, type=F4), "a constant has attribute data and no operands"),
    (Node.make("const", [], {"data": Data(np.zeros(3))}, type=F4),
     "node %y = const: its data is float64[3], wanted f32[4]"),
])
def test_graph_errors(node: Node, message: str) -> None:
    with pytest.raises(VerifyError) as e:
        verify_graph(Graph("g", (X,), (("y", node),)))
    assert message in str(e.value) and str(e.value).startswith("graph 'g': node %")


def test_names_of_inputs_and_outputs_must_differ() -> None:
    other = graph_input("x", TensorType("f32", (5,)))
    with pytest.raises(VerifyError, match="is a second input named 'x'"):
        verify_graph(Graph("g", (X, other), ()))
    with pytest.raises(VerifyError, match="is output 'y': outputs need names that differ"):
        verify_graph(Graph("g", (X,), (("y", X), ("y", relu(X)))))
    with pytest.raises(VerifyError, match="wanted op 'input', a name; got None"):
        verify_graph(Graph("g", (relu(X),), ()))


def test_types_are_checked_by_inference() -> None:
    def infer(op: str, types: tuple[TensorType, ...], attrs: dict[str, object]) -> TensorType:
        if op == "bad":
            raise JitclError("bad is never right")
        if attrs:
            raise TypeError("unexpected keyword argument 'a'")
        return types[0]
    verify_graph(Graph("g", (X,), (("y", relu(X, F4.with_(layout=Layout("NCHWc", 4)))),)), infer)
    symbolic = graph_input("x", TensorType("f32", (Sym("n"),)))
    verify_graph(Graph("g", (symbolic,), (("y", relu(symbolic)),)), infer)
    wrong = relu(X, TensorType("f32", (5,)))
    graph = Graph("g", (X,), (("y", wrong),), {wrong: Origin("fc1/act", "Relu")})
    with pytest.raises(VerifyError, match=r"node %y = relu, from 'fc1/act' \(Relu\): its type is "
                                          r"f32\[5\], wanted f32\[4\] for operands f32\[4\]"):
        verify_graph(graph, infer)
    with pytest.raises(VerifyError, match="bad is never right"):
        verify_graph(Graph("g", (X,), (("y", Node.make("bad", [X], type=F4)),)), infer)
    with pytest.raises(VerifyError, match="does not take these operands and attributes"):
        verify_graph(Graph("g", (X,), (("y", relu(X, a=1)),)), infer)


def test_packed_constants_have_the_physical_shape() -> None:
    packed = Node.make("const", [], {"data": Data(np.zeros((1, 1, 4, 4), np.float32))},
                       type=TensorType("f32", (1, 3, 4), Layout("NCHWc", 4)))
    verify_graph(Graph("g", (), (("y", packed), ("z", const([1.0])))))


def test_ops_verify_as_they_were_parsed() -> None:
    from jitcl.ops.builder import infer
    graph = parse_graph("graph @g(%x: f32[2,3]) { %0 = relu(%x) %y = add(%0, %x) return %y }",
                        infer=infer)
    verify_graph(graph, infer)


# ---- kernels

def kernel(body: str, head: str = "in x: f32[4], in h: f16[4], out y: f32[4]") -> Kernel:
    return parse_kernel(f"kernel @k({head}) {{ {body} }}")


@pytest.mark.parametrize("body, message", [
    ("for i < 5 @loop { y[i] = 0.0 }",
     "kernel 'k': 'y[i] = 0.0': index 0 of 'y', 'i', is 4 at i = 4, outside 0..3: guard"),
    ("for i < 4 @loop { y[i] = x[i - 1] }", "index 0 of 'x', 'i - 1', is -1 at i = 0, outside"),
    ("let a: index = 3; let b: index = a + 1; y[0] = x[b]", "index 0 of 'x', 'b', is 4, outside"),
    ("for i < 100000 @loop { y[i % 4] = x[floordiv(i, 20000)] }", "is 4 at i = 99998"),
    ("let a: f32 = 0.0; for i < 4 @lane { a add= x[i] } y[0] = a",
     "'a' is shared by the iterations of 'for i @lane', which run at once"),
    ("let a: f32 = y[0]; y[0] = a", "out buffer 'y' is read"),
    ("x[0] = 1.0; y[0] = 1.0", "'x' is not an out buffer"),
    ("let a: f32 = 1.0", "out buffer 'y' is never stored to"),
    ("let a: index = sqrt(3); y[0] = 0.0", "'sqrt(3)': sqrt of index, wanted floats: cast first"),
    ("let a: bool = true + false; y[0] = 0.0", "'true + false': add of bool, wanted numbers"),
    ("let a: f32 = bitand(1.0, 2.0); y[0] = a", "bitand of f32, wanted integers"),
    ("let a: index = 1; a and= 2; y[0] = 0.0", "combine 'and' on index: wanted and, or for bool"),
    ("let a: bool = true; a add= false; y[0] = 0.0", "combine 'add' on bool: wanted and, or"),
    ("for i < 4 @loop { i add= 1 } y[0] = 0.0", "'i' counts a loop, wanted a variable"),
    ("let x: f32 = 0.0; y[0] = 0.0", "'x' is declared already"),
])
def test_kernel_errors(body: str, message: str) -> None:
    parsed = kernel(body)                    # the parser leaves these to the verifier
    with pytest.raises(VerifyError) as e:
        verify_kernel(parsed)
    assert message in str(e.value) and str(e.value).startswith("kernel 'k': ")


@pytest.mark.parametrize("body", [
    "for i < 8 @loop { y[i] = 0.0 if i < 4 }",
    "for i < 4 @loop { y[i] = x[i - 1 if i >= 1 else 0.0] }",
    "for i < 4 @loop { y[i] = x[select(i < 2, i + 2, i - 2)] }",         # bounds() alone says -2..5
    "for i < 4 @loop { y[i] = x[index(x[i])] }",                        # data: left to the run
    "for i < 4 @loop { for j < 0 @loop { y[i + 9] = 0.0 } y[i] = 0.0 }",
    "let a: f32 = 0.0; for i < 4 @loop { a add= x[i] } y[0] = a",
    "for i < 4 @group { let a: f32 = 0.0; for j < 4 @vec { a max= x[j] } y[i] = a }",
    "for i < 2 @loop { y[i] = 0.0 } for i < 2 @loop { y[i + 2] = 0.0 }",
])
def test_good_kernels(body: str) -> None:
    verify_kernel(kernel(body))


I4 = E.var("i", extent=4)
OUT = Buffer("y", "f32", (4,), "out")


def stored(value: Expr) -> Stmt:
    return For(I4, "loop", (Store("y", (I4,), value),))


@pytest.mark.parametrize("buffers, body, message", [
    ((OUT, OUT), (), "two buffers are named 'y'"),
    ((Buffer("y", "index", (4,), "out"),), (), "buffer 'y' is out index, wanted in, out or scan"),
    ((OUT,), (Store("y", (I4,), E.const(0.0, "f32")),), "'y[i] = 0.0': 'i' is not declared here"),
    ((OUT,), (stored(E.const(0.0, "f16")),), "a value of type f16 is stored, wanted f32"),
    ((OUT,), (stored(E.make("const", (), "f32", 1)),), "the literal 1 of type f32 is a Python int"),
    ((OUT,), (stored(E.make("cast", (E.make("const", (), "i8", 300),), "f32")),),
     "the literal 300 does not fit i8 (-128 to 127)"),
    ((OUT,), (stored(E.make("bogus", (), "f32")),), "no scalar operation 'bogus'"),
    ((OUT,), (stored(E.make("neg", (), "f32")),), "'neg' takes 1 operands, got 0"),
    ((OUT,), (stored(E.make("neg", (I4,), "f32")),), "'neg(i)' has type f32, wanted index"),
    ((OUT,), (stored(E.make("load", (), "f32", "z")),), "'z' is no buffer"),
    ((OUT,), (Let(E.var("a", "f16"), E.const(0.0, "f32")),), "type f32 is given, wanted f16"),
    ((OUT,), (Accum(E.var("a", "f32"), "add", E.const(0.0, "f32")),), "'a' is not declared here"),
    ((OUT,), (For(I4, "lame", ()),), "loop kind 'lame', wanted one of group"),  # type: ignore
    ((OUT,), (For(I4, "loop", (stored(E.const(0.0, "f32")),)),), "'i' is declared already"),
    ((OUT,), (stored(E.cast(E.make("var", (), "index", "i", 9), "f32")),),
     "'i' is read as index with extent 9, declared as index with extent 4"),
    ((OUT,), (Store("y", (E.const(0.0, "f32"),), E.const(0.0, "f32")),),
     "index 0 of 'y', '0.0', is f32: wanted index, cast it"),
    ((OUT,), (Store("y", (), E.const(0.0, "f32")),), "'y' has 1 axes (4,), indexed with 0"),
])
def test_built_kernel_errors(buffers: tuple[Buffer, ...], body: tuple[Stmt, ...],
                             message: str) -> None:
    with pytest.raises(VerifyError) as e:
        verify_kernel(Kernel("k", buffers, body))
    assert message in str(e.value)
