"""Recurrent networks: scans from the builder to drivers, and ONNX's ops in all their forms."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from jitcl.codegen.lower import lower
from jitcl.codegen.trial import trials
from jitcl.errors import JitclError, ModelError, ShapeError, UnsupportedError, VerifyError
from jitcl.ir.graph import Graph, Node, const, graph_input
from jitcl.ir.group import Group
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import Kernel, Store, carries, scanned, statements
from jitcl.ir.parser import parse_kernel
from jitcl.ir.printer import print_kernel
from jitcl.ir.sampling_scan import sample_scan
from jitcl.ir.types import TensorType
from jitcl.ir.verify_kernel import verify_kernel
from jitcl.ops import OPS
from jitcl.ops.builder import GraphBuilder, reference
from jitcl.ops.recurrent import ACTIVATIONS
from tests import devices
from tests.compiling import compile_graph
from tests.generated import clang, oclgrind
from tests.generated.kernels import TARGETS, plan_for
from tests.programs import by_onnxruntime
from tests.real_models import MODELS, needs_models
from tests.test_trials import check_all, opened, undetermined

G = GraphBuilder()
DEVICES = devices.present()
pytestmark = pytest.mark.in_turn
SCANS = ("rnn_states", "gru_states", "lstm_states", "linear_attention_states")
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def scan_graph(name: str, row: int, constant: bool = False) -> tuple[Graph, dict[str, np.ndarray]]:
    """A sample of the op table; with constant weights, as models have them, if asked."""
    op = OPS[name]
    rng = np.random.default_rng(row)
    nodes, feeds = [], {}
    for i, spec in enumerate(op.samples[row].args):
        array = spec.array(rng)
        if constant and i == 1:
            nodes.append(const(array))
            continue
        nodes.append(graph_input(f"x{i}", TensorType(spec.dtype, spec.shape)))
        feeds[f"x{i}"] = array
    node = G.op(name, *nodes, **op.samples[row].attrs)
    return Graph(name, tuple(n for n in nodes if n.op == "input"), (("y", node),)), feeds


def scan_kernel(name: str, row: int = 0) -> Kernel:
    graph, _ = scan_graph(name, row)
    return lower(Group(graph.outputs[0][1], frozenset()), name).kernel


# -- kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCANS)
def test_a_scan_reads_what_it_stored_in_a_sequential_loop(name: str) -> None:
    kernel = scan_kernel(name)
    verify_kernel(kernel)
    assert scanned(kernel) == {"y"}
    loops = [s for s in statements(kernel.body) if hasattr(s, "kind")]
    assert [f.kind for f in loops if carries(f)] == ["loop"]
    assert parse_kernel(print_kernel(kernel)) == kernel


def test_a_scan_must_store_before_it_reads() -> None:
    text = """kernel @k(in x: f32[4], scan y: f32[4]) {
  for i < 3 @loop {
    y[i + 1] = y[i] + x[i]
  }
}"""
    with pytest.raises(VerifyError, match="scan buffer 'y' is read before anything is stored"):
        verify_kernel(parse_kernel(text))


def test_the_interpreter_runs_steps_one_by_one() -> None:
    kernel = parse_kernel("""kernel @k(in x: f32[6], scan y: f32[7]) {
  y[0] = 1.0
  for i < 6 @loop {
    y[i + 1] = y[i] * x[i]
  }
}""")
    verify_kernel(kernel)
    x, y = np.arange(1, 7, dtype=np.float32), np.zeros(7, np.float32)
    run_kernel(kernel, {"x": x, "y": y})
    np.testing.assert_array_equal(y, np.cumprod(np.r_[1, x]))


def test_a_scan_is_never_fused() -> None:
    graph, _ = scan_graph("gru_states", 0)
    node = graph.outputs[0][1]
    readers = G.add(G.relu(node), G.mul(node, 2.0))
    doubled = G.op("gru_states", G.add(node.inputs[0], 1.0), *node.inputs[1:], **node.kwargs)
    whole = Graph("g", graph.inputs, (("y", readers), ("z", G.relu(doubled))))
    for target in TARGETS.values():
        groups = compile_graph(whole, target).groups
        alone = [g for g in groups if any(m.op == "gru_states" for m in g.members)]
        assert len(alone) == 2 and not any(g.inlined for g in alone)


# -- templates, bounds, drivers ----------------------------------------------------------------


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("name", SCANS[:3])
def test_the_template_gives_what_the_reference_gives(name: str) -> None:
    """Weights are constants here: in the op table's own tests they are inputs, for loops."""
    for row in range(3):
        graph, feeds = scan_graph(name, row, constant=True)
        node = graph.outputs[0][1]
        plan = plan_for(graph, opened("cpu").target)
        assert [k.template for k in plan.kernels] == ["recurrent_cpu"]
        got = devices.run_graph("cpu", graph, feeds)["y"]
        want = reference(node, *(feeds[i.attr("name")] if i.op == "input" else i.data
                                 for i in node.inputs))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(("batch", "hidden"), [
    (1, 7), (13, 37), *(pytest.param(b, h, marks=pytest.mark.slow)
                        for b in (1, 3, 13) for h in (2, 16, 37) if (b, h) != (13, 37))])
def test_the_template_at_ragged_sizes(batch: int, hidden: int) -> None:
    rng = np.random.default_rng(hidden * batch)
    r = const(rng.uniform(-0.5, 0.5, (2, 4 * hidden, hidden)).astype(np.float32))
    x = graph_input("x", TensorType("f32", (3, batch, 2, 4 * hidden)))
    h, c = (graph_input(n, TensorType("f32", (2, batch, hidden))) for n in "hc")
    cell = (("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0), ("Tanh", 0.0, 0.0))
    node = G.lstm_states(x, r, h, c, direction="bidirectional", activations=(cell, cell))
    feeds = {n.attr("name"): rng.uniform(-1, 1, n.type.dims).astype(np.float32)
             for n in (x, h, c)}
    got = devices.run_graph("cpu", Graph("g", (x, h, c), (("y", node),)), feeds)["y"]
    want = reference(node, feeds["x"], r.data, feeds["h"], feeds["c"])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spec", DEVICES)
@pytest.mark.parametrize("name", SCANS)
def test_trials_pass_scans(name: str, spec: str) -> None:
    """The CPU's templates; loops elsewhere. All rows of the table are tried by test_trials.py."""
    place = opened(spec)
    for row, sample in enumerate(OPS[name].samples[:3 if spec == "reference" else 2]):
        if sample.args[0].dtype == "f64" and not place.target.fp64:
            continue
        graph, _ = scan_graph(name, row, constant=name != SCANS[3])
        found = compile_graph(graph, place.target)
        tried = check_all(found, place)
        assert np.mean([undetermined(t) for t in tried]) < 0.2


@pytest.mark.parametrize("name", SCANS)
def test_a_wrong_scan_is_found(name: str) -> None:
    """Each element of the first steps is judged: one that is off in the fourth digit, too."""
    place = opened("reference")
    graph, _ = scan_graph(name, 0)
    (trial,) = trials(found := compile_graph(graph, place.target), found.plan)
    executable = place.load(trial.plan)
    (y,) = executable.run(trial.inputs())
    assert trial.wrong([y]) == ""
    kernel = trial._lowered.kernel
    sample = sample_scan(kernel, trial._arrays("origin"), trial.seed)
    assert len(sample.positions) > 30
    for position in sample.positions[:: max(1, len(sample.positions) // 7)]:
        bad = y.copy()
        bad.reshape(-1)[position] += 1e-3
        assert "differ" in trial.wrong([bad])


@functools.cache
def scan_kernels(target: str) -> tuple[Any, ...]:
    found = {}
    for name in SCANS:
        for row, sample in enumerate(OPS[name].samples):
            if sample.args[0].dtype != "f64" or TARGETS[target].fp64:
                plan = plan_for(scan_graph(name, row)[0], TARGETS[target])
                found |= {k.entry: k for k in plan.kernels}
    return tuple(found.values())


@pytest.mark.sampled(quick=3)
@clang.needed
@pytest.mark.parametrize("target", TARGETS)
def test_scans_pass_clang(target: str) -> None:
    kernels = scan_kernels(target)
    assert len(kernels) > 15
    assert clang.objections(kernels, fp16=TARGETS[target].fp16_arithmetic) == ""


def test_lanes_of_a_group_meet_behind_each_part() -> None:
    (kernel,) = plan_for(scan_graph("lstm_states", 0)[0], TARGETS["gpu"]).kernels
    meeting = "mem_fence(CLK_GLOBAL_MEM_FENCE); barrier(CLK_GLOBAL_MEM_FENCE);"
    assert kernel.body.count(meeting) == 4                               # two starts, two parts
    parts = [s for s in statements(scan_kernel("lstm_states").body) if isinstance(s, Store)]
    assert len(parts) == 4


@pytest.mark.sampled(slow=3)
@pytest.mark.slow
@oclgrind.needed
@pytest.mark.parametrize("name", SCANS)
def test_oclgrind_finds_no_race_in_scans(name: str) -> None:
    assert oclgrind.objections(["scans", "gpu", name]) == {name: ""}


# -- ONNX --------------------------------------------------------------------------------------


def model(op: str, *, steps: int = 5, batch: int = 3, size: int = 4, hidden: int = 6,
          direction: str = "forward", layout: int = 0, lengths: list[int] | None = None,
          initial: bool = False, peepholes: bool = False, bias: bool = True, opset: int = 22,
          dtype: str = "f32", outputs: int = 3, **attrs: Any
          ) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it."""
    rng, gates = np.random.default_rng(0), GATES[op]
    n = 2 if direction == "bidirectional" else 1
    kind = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype]

    def values(*shape: int) -> np.ndarray:
        return (rng.uniform(-0.7, 0.7, shape)).astype(kind)
    weights = {"W": values(n, gates * hidden, size), "R": values(n, gates * hidden, hidden)}
    feeds = {"X": values(*((batch, steps) if layout else (steps, batch)), size)}
    state = (batch, n, hidden) if layout else (n, batch, hidden)
    names = ["X", "W", "R", "B" if bias else "", "L" if lengths is not None else ""]
    if bias:
        weights["B"] = values(n, 2 * gates * hidden)
    if lengths is not None:
        feeds["L"] = np.array(lengths, np.int32)
    for name in ("h0", "c0")[:1 + (op == "LSTM")]:
        names.append(name if initial else "")
        if initial:
            feeds[name] = values(*state)
    if peepholes:
        names.append("P")
        weights["P"] = values(n, 3 * hidden)
    made = ["Y", "Y_h", "Y_c"][:min(outputs, 2 + (op == "LSTM"))]
    if layout:
        attrs["layout"] = layout
    node = helper.make_node(op, names, made, name="cell", hidden_size=hidden, direction=direction,
                            **attrs)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(
            k, TensorProto.INT32 if k == "L" else element, v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(k, element, None) for k in made],
        [numpy_helper.from_array(v, k) for k, v in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)],
                             ir_version=9), feeds


def check_against_onnxruntime(device: str, op: str, **form: Any) -> None:
    proto, feeds = model(op, **form)
    wanted = by_onnxruntime(proto, feeds)
    got = list(jitcl.compile(proto, device=device).run(feeds).values())
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {"bias": False}, "initial": {"initial": True}, "clip": {"clip": 0.3},
    "lengths": {"initial": True, "lengths": [5, 2, 3]}}
EXTRA: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"peepholes": True, "initial": True}),
    ("LSTM", {"peepholes": True, "clip": 0.2, "direction": "bidirectional"}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"direction": "bidirectional", "activation_alpha": [0.9, 0.2, 0.3, 0.7],
              "activations": ["Sigmoid", "ScaledTanh", "LeakyRelu", "HardSigmoid", "Elu", "Tanh"],
              "activation_beta": [0.8, 0.6]}),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional", "initial": True}),
    ("GRU", {"linear_before_reset": 1, "clip": 0.2, "lengths": [2, 5, 1], "direction": "reverse"}),
    ("GRU", {"opset": 7}), ("LSTM", {"opset": 7, "outputs": 1}), ("RNN", {"opset": 14})]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", GATES)
def test_forms_equal_onnxruntime(op: str, form: str, direction: str) -> None:
    check_against_onnxruntime("reference", op, direction=direction, **FORMS[form])


@pytest.mark.parametrize(("op", "form"), EXTRA, ids=str)
def test_more_forms_equal_onnxruntime(op: str, form: dict[str, Any]) -> None:
    check_against_onnxruntime("reference", op, **form)


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS
                                  if n not in ("Affine", "ThresholdedRelu", "ScaledTanh")])
def test_activations_equal_onnxruntime(name: str) -> None:
    check_against_onnxruntime("reference", "RNN", activations=[name])
    check_against_onnxruntime("reference", "RNN", activations=[name], activation_alpha=[0.6],
                              activation_beta=[0.2])


def test_activations_in_lower_case() -> None:
    proto, feeds = model("RNN", activations=["softsign"])
    other, _ = model("RNN", activations=["Softsign"])
    (y, _), (z, _) = (jitcl.compile(p, device="reference").run(feeds).values()
                      for p in (proto, other))
    np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("name", ["Affine", "ThresholdedRelu", "ScaledTanh"])
def test_activations_with_alpha_equal_onnxruntime(name: str) -> None:
    """Left out, their alpha is that of ONNX's op of this name; onnxruntime takes 0."""
    check_against_onnxruntime("reference", "RNN", activations=[name], activation_alpha=[0.6],
                              activation_beta=[0.2])


@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("device", [d for d in DEVICES if d != "reference"])
@pytest.mark.parametrize("op", GATES)
def test_devices_equal_onnxruntime(op: str, device: str) -> None:
    check_against_onnxruntime(device, op, direction="bidirectional", **FORMS["lengths"])


@pytest.mark.slow
@pytest.mark.sampled(slow=3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", [d for d in DEVICES if d != "reference"])
@pytest.mark.parametrize("op", GATES)
def test_all_forms_on_devices_equal_onnxruntime(op: str, device: str) -> None:
    for form in (*FORMS.values(), *(f for o, f in EXTRA if o == op)):
        check_against_onnxruntime(device, op, **{"direction": "reverse"} | form)


@pytest.mark.parametrize("op", GATES)
def test_batches_first(op: str) -> None:
    """onnxruntime has no layout 1: it is layout 0 with its axes exchanged."""
    one, feeds = model(op, direction="bidirectional", layout=1, initial=True, lengths=[5, 2, 3])
    zero, _ = model(op, direction="bidirectional", initial=True, lengths=[5, 2, 3])
    turned = {k: v if k == "L" else v.swapaxes(0, 1) for k, v in feeds.items()}
    got = list(jitcl.compile(one, device="reference").run(feeds).values())
    y, *last = jitcl.compile(zero, device="reference").run(turned).values()
    np.testing.assert_allclose(got[0], y.transpose(2, 0, 1, 3), atol=1e-6)
    for ours, theirs in zip(got[1:], last, strict=True):
        np.testing.assert_allclose(ours, theirs.swapaxes(0, 1), atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 2e-3), ("f64", 1e-6)])
@pytest.mark.parametrize("op", GATES)
def test_other_types(op: str, dtype: str, tolerance: float) -> None:
    proto, feeds = model(op, dtype=dtype, direction="bidirectional", initial=True)
    single, other = model(op, direction="bidirectional", initial=True)
    got = jitcl.compile(proto, device="reference").run(feeds).values()
    want = jitcl.compile(single, device="reference").run(other).values()
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == feeds["X"].dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def test_an_empty_sequence_keeps_its_state() -> None:
    """What onnxruntime gives for it is 0; nothing that was said changes the state."""
    proto, feeds = model("GRU", initial=True, lengths=[5, 0, 3])
    y, last = jitcl.compile(proto, device="reference").run(feeds).values()
    assert not y[:, :, 1].any()
    np.testing.assert_array_equal(last[0, 1], feeds["h0"][0, 1])


@pytest.mark.parametrize(("form", "error", "text"), [
    ({"direction": "sideways"}, ModelError,
     "direction 'sideways': wanted one of forward, reverse, bidirectional"),
    ({"activations": ["Swish"]}, UnsupportedError, "activation 'Swish': wanted one of Relu, Tanh"),
    ({"activations": ["Tanh", "Tanh"]}, ModelError,
     "2 activations for 1 directions of 1 each: Tanh, Tanh"),
])
def test_what_a_wrong_node_gets(form: dict[str, Any], error: type[JitclError], text: str) -> None:
    proto, feeds = model("RNN", **form)
    with pytest.raises(error, match=text) as caught:
        jitcl.compile(proto, device="reference", strict=True).run(feeds)
    assert "cell" in str(caught.value)


def test_what_wrong_shapes_get() -> None:
    proto, feeds = model("LSTM")
    proto.graph.node[0].attribute.append(helper.make_attribute("clip", 0.0))
    next(a for a in proto.graph.node[0].attribute if a.name == "hidden_size").i = 7
    with pytest.raises(ShapeError, match="hidden_size is 7, but R f32.1,24,6. has 6 hidden units"):
        jitcl.compile(proto, device="reference", strict=True).run(feeds)


# -- linear attention --------------------------------------------------------------------------


def attention(steps: int, rule: str, heads: tuple[int, int] = (4, 2)) -> tuple[Graph, list[Node]]:
    q, kv = heads
    gates = {"linear": [], "gated": [kv * 8], "delta": [kv], "gated_delta": [kv, 1]}[rule]
    inputs = [graph_input(n, TensorType("f32", s)) for n, s in zip("qkvsgb", [
        (2, steps, q * 8), (2, steps, kv * 8), (2, steps, kv * 6), (2, kv, 8, 6),
        *((2, steps, g) for g in gates)])]
    node = G.linear_attention_states(*inputs, gated="gated" in rule, delta="delta" in rule,
                                     scale=0.3)
    return Graph("attention", tuple(inputs), (("y", node),)), inputs


@pytest.mark.parametrize(("rule", "spec"), [
    *((rule, "reference") for rule in ("linear", "gated", "delta", "gated_delta")),
    *(("gated_delta", spec) for spec in DEVICES if spec != "reference")])
def test_linear_attention_step_by_step(rule: str, spec: str) -> None:
    """A sequence at once, and in two halves with the state carried over."""
    rng = np.random.default_rng(3)
    graph, inputs = attention(6, rule)
    feeds = {n.attr("name"): rng.uniform(0, 0.4, n.type.dims).astype(np.float32) for n in inputs}
    whole = devices.run_graph(spec, graph, feeds)["y"]
    np.testing.assert_allclose(
        whole, reference(graph.outputs[0][1], *feeds.values()), atol=1e-5)
    half, _ = attention(3, rule)
    cut = {k: v if k == "s" else v[:, :3] for k, v in feeds.items()}
    first = devices.run_graph(spec, half, cut)["y"]
    state = first[..., 3 * 2 + 8:].swapaxes(2, 3)            # after 3 steps it is number 1
    rest = {k: np.ascontiguousarray(state if k == "s" else v[:, 3:]) for k, v in feeds.items()}
    second = devices.run_graph(spec, half, rest)["y"]
    joined = np.concatenate([first[..., :6], second[..., :6]], axis=-1)
    np.testing.assert_allclose(joined, whole[..., :12], atol=1e-5)


# -- models that listen ------------------------------------------------------------------------

RATE, CHUNK = 16000, 512


def speech_like(seconds: int) -> np.ndarray:
    """Voiced sounds with gliding pitch and formants, in syllables with pauses, over soft noise."""
    rng = np.random.default_rng(0)
    t = np.arange(seconds * RATE) / RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.4 * t) + 15 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formant = 600 + 250 * np.sin(2 * np.pi * 1.7 * t)
    harmonics = np.arange(1, 25)[:, None]
    weight = np.exp(-((harmonics * pitch - formant) / 400) ** 2) + 0.3 / harmonics
    voiced = (weight * np.sin(harmonics * phase)).sum(axis=0)
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * t), 0, 1) * (np.sin(2 * np.pi * 0.11 * t) > -0.3)
    sound = 0.12 * voiced * syllables + 0.003 * rng.standard_normal(t.size)
    return sound.astype(np.float32)


@pytest.mark.timeout(300)
@needs_models
@pytest.mark.parametrize("device", [
    pytest.param(d, marks=pytest.mark.slow if d == "cpu" else pytest.mark.long)
    for d in DEVICES if d in ("cpu", "opencl:pocl")])
def test_a_minute_of_audio_equals_onnxruntime(device: str) -> None:
    """Chunk by chunk with the state carried over; nothing is compiled after the first."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(MODELS / "silero_vad.onnx",
                                       providers=["CPUExecutionProvider"])
    vad = jitcl.compile(MODELS / "silero_vad.onnx", device=device)
    sound, rate = speech_like(60), np.array(RATE, np.int64)
    context = np.zeros((1, 64), np.float32)              # as the model's authors feed it
    ours = theirs = np.zeros((2, 1, 128), np.float32)
    found, misses = [], 0
    for number, start in enumerate(range(0, sound.size - CHUNK + 1, CHUNK)):
        chunk = np.concatenate([context, sound[None, start:start + CHUNK]], axis=1)
        context = chunk[:, -64:]
        p, ours = vad.run({"input": chunk, "state": ours, "sr": rate}).values()
        q, theirs = session.run(None, {"input": chunk, "state": theirs, "sr": rate})
        np.testing.assert_allclose(p, q, rtol=0, atol=1e-3)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3)
        found.append(float(p[0, 0]))
        misses = vad.cache.stats.misses if number == 0 else misses
    assert len(found) == 60 * RATE // CHUNK
    assert vad.cache.stats.misses == misses
    assert max(found) > 0.5 > min(found)                 # it hears both speech and silence
