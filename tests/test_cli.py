"""The command line, as its users call it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper
from PIL import Image

import jitcl
from jitcl.cli.main import cli
from jitcl.ir.parser import load_graph
from tests.devices import opened

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SUPERRES = str(EXAMPLES / "superres-x3.onnx")

TWO = """
graph @two(%a: f32[n,8], %b: f32[8]) {
  %sum = add(%a, %b)
  %best = softmax(%sum) {axis=-1}
  return %sum, %best
}
"""
PICTURE = """
graph @picture(%x: f32[1,3,16,24]) {
  %y = mul(%x, %x)
  return %y
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    """One kernel cache for the whole file; the CPU where a test names no device."""
    folder = tmp_path_factory.getbasetemp() / "cli-cache"
    monkeypatch.setenv("JITCL_CACHE_DIR", str(folder))
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    return folder


@pytest.fixture
def two(tmp_path) -> str:
    path = tmp_path / "two.jitcl"
    path.write_text(TWO)
    return str(path)


@pytest.fixture
def picture(tmp_path) -> str:
    path = tmp_path / "picture.jitcl"
    path.write_text(PICTURE)
    return str(path)


def jitcl_command(*args: object) -> Result:
    """A command that must succeed."""
    result = CliRunner().invoke(cli, [str(a) for a in args], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def said(*args: object) -> dict:
    return json.loads(jitcl_command(*args, "--json").stdout)


def refused(*args: object) -> str:
    """The message on stderr of a command that must fail with exit status 1."""
    result = CliRunner().invoke(cli, [str(a) for a in args], catch_exceptions=False)
    assert result.exit_code == 1
    assert result.stdout == ""
    return result.stderr


# -- run ---------------------------------------------------------------------------------------


def test_arrays_in_arrays_out(two, tmp_path):
    a = np.arange(16, dtype=np.float32).reshape(2, 8) / 7
    b = np.full(8, 2, np.float32)
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "rest.npz", b=b)
    result = jitcl_command("run", two, "-i", f"a={tmp_path}/a.npy", "-i", tmp_path / "rest.npz",
                           "-o", tmp_path / "out.npz")
    out = np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(out["sum"], a + b, rtol=1e-6)
    e = np.exp(a - a.max(-1, keepdims=True))
    np.testing.assert_allclose(out["best"], e / e.sum(-1, keepdims=True), rtol=1e-5)
    assert "float32[2,8]" in result.stdout and f"saved {tmp_path}/out.npz" in result.stdout
    assert "cpu: first result after" in result.stdout


def test_outputs_into_a_folder(two, tmp_path):
    jitcl_command("run", two, "--random", "--shape", "a=1,8", "-o", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["best.npy", "sum.npy"]
    best = np.load(tmp_path / "out" / "best.npy")
    assert best.sum() == pytest.approx(1, abs=1e-6)


def test_random_inputs_repeat_and_json(two):
    first, again, other = (said("run", two, "--random", "--seed", seed, "--shape", "a=3x8",
                                "--repeat", 2) for seed in (1, 1, 2))
    assert first["outputs"] == again["outputs"] != other["outputs"]
    assert first["inputs"][0]["shape"] == [3, 8]
    assert len(first["seconds"]["runs"]) == 2 and first["host"] == []
    assert again["from_cache"]


def test_numbers_as_an_input_and_the_best_classes(two, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join("zero one two three four five six seven".split()))
    result = jitcl_command("run", two, "-i", "a=[[0, 1, 2, 9, 4, 5, 6, 7]]",
                           "-i", "b=[0, 0, 0, 0, 0, 0, 0, 0]", "--labels", labels)
    best = result.stdout.split("best of 'best':")[1].splitlines()
    total = sum(np.exp(np.array([0, 1, 2, 9, 4, 5, 6, 7.0]) - 9))
    assert best[1].split()[::2] == ["3", "three"] and best[2].split()[2] == "seven"
    assert float(best[1].split()[1]) == pytest.approx(1 / total, abs=1e-5)


def test_a_picture_is_resized_and_scaled(picture, tmp_path):
    Image.new("RGB", (48, 32), (255, 51, 0)).save(tmp_path / "red.png")
    jitcl_command("run", picture, "-i", tmp_path / "red.png", "-o", tmp_path / "y.npy")
    y = np.load(tmp_path / "y.npy")
    assert y.shape == (1, 3, 16, 24)
    np.testing.assert_allclose(y[0, :, 3, 5], [1, 0.04, 0], atol=1e-6)
    jitcl_command("run", picture, "-i", f"x={tmp_path}/red.png", "--mean", "0.5", "--std",
                  "0.5,0.25,1", "--bgr", "-o", tmp_path / "y.npy")
    y = np.load(tmp_path / "y.npy")
    np.testing.assert_allclose(y[0, :, 3, 5], [1, 1.44, 0.25], atol=1e-6)


def test_a_picture_out(picture, tmp_path):
    x = np.zeros((1, 3, 16, 24), np.float32)
    x[:, 1] = 1
    np.save(tmp_path / "x.npy", x)
    result = jitcl_command("run", picture, "-i", tmp_path / "x.npy", "--save-pictures",
                           "-o", tmp_path / "out")
    image = Image.open(tmp_path / "out" / "y.png")
    assert image.size == (24, 16) and image.getpixel((3, 3)) == (0, 255, 0)
    assert "y.png (0..1)" in result.stdout


@pytest.mark.slow
def test_the_superres_example_from_picture_to_picture(tmp_path):
    jitcl_command("run", SUPERRES, "-i", EXAMPLES / "chelsea-small.png", "--shape", "1,3,20,30",
                  "-o", tmp_path, "--save-pictures")
    assert Image.open(tmp_path / "upscaled.png").size == (90, 60)


@pytest.mark.parametrize(("args", "message"), [
    ([], "input 'a' f32[n,8] was not given\n  Say where it is, -i a=FILE, or take --random"),
    (["--random"], "input 'a' f32[n,8] leaves n open\n  Say its shape: --shape a=1,8"),
    (["-i", "c=[1]"], "there is no input 'c'; the inputs are 'a' f32[n,8], 'b' f32[8]"),
    (["-i", "none.npy"], "the model has 2 inputs: name one, -i NAME=FILE"),
    (["-i", "a=none.npy"], "cannot read 'none.npy': No such file or directory"),
    (["-i", "a=none.png"], "'none.png' is a picture, but input 'a' f32[n,8] is not shaped like"),
    (["-i", "a=cat"], "-i a=cat: wanted a file (.npy, .npz, or a picture"),
    (["-i", f"a={EXAMPLES}/README.md"], "wanted a file"),
    (["-i", "b=[1,2]", "-i", "a=[[1]]"], "input 'a' f32[n,8]: axis 1 is 1, wanted 8"),
    (["--random", "--shape", "a=1,9"], "--shape a=1,9 does not fit input 'a' f32[n,8]"),
    (["--random", "--shape", "c=1,9"], "--shape: there is no input 'c'"),
    (["--random", "--shape", "1,9"], "the model has 2 inputs: name one, --shape NAME=DIMS"),
    (["--random", "--shape", "a=1,8", "-d", "npu"], "no device 'npu'"),
    (["--random", "--shape", "a=1,8", "-o", "x.npy"], "2 outputs do not fit into one x.npy"),
])
def test_what_cannot_be_run_is_one_message(two, args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = refused("run", two, *args)
    assert text.startswith("jitcl.") and "Error: " in text.splitlines()[0]
    assert message in text
    assert "Traceback" not in text


def test_wrong_usage_is_exit_status_2(two):
    assert CliRunner().invoke(cli, ["run", two, "--shape", "a=b"]).exit_code == 2
    assert CliRunner().invoke(cli, ["run", two, "--precision", "best"]).exit_code == 2
    assert CliRunner().invoke(cli, ["walk", two]).exit_code == 2


# -- dump --------------------------------------------------------------------------------------


def test_an_overview(two):
    text = jitcl_command("dump", two, "--shape", "a=2,8").stdout
    assert "import" in text and "decompose" in text and "fuse" in text
    assert "in  'a' f32[2,8]" in text and "out 'best' f32[2,8]" in text
    assert "launches of" in text and "at peak" in text


def test_an_overview_for_programs(two):
    told = said("dump", two, "--shape", "a=2,8")
    assert [p["name"] for p in told["passes"]][0] == "import"
    assert told["inputs"][0] == {"name": "a", "dtype": "f32", "shape": [2, 8]}
    written = [w for step in told["steps"] for w in step["writes"]]
    assert len(written) == len(set(written)) >= 2
    assert sum(s["flops"] for s in told["steps"]) > 0
    memory = told["memory"]
    assert memory["peak_bytes"] == sum(memory[k] for k in ("const", "input", "output", "temp"))


def test_dumped_files(tmp_path):
    folder = tmp_path / "dump"
    result = jitcl_command("dump", SUPERRES, "--shape", "1,3,8,8", "-o", folder)
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert {"00-import.jitcl", "00-import.jitcl.npz", "steps.txt", "memory.txt", "memory.svg",
            "groups.dot"} <= names
    assert f"wrote {len(names) - sum(n.endswith('.npz') for n in names)} files" in result.stdout
    kernels = sorted((folder / "kernels").iterdir())
    told = said("dump", SUPERRES, "--shape", "1,3,8,8")
    assert len(kernels) == len(told["steps"])
    sources = [k.read_text() for k in kernels]
    assert "(Conv)" in "".join(sources)                    # heads name the model's nodes
    for source in sources:
        assert "def " in source or "the same kernel as in" in source
    assert ElementTree.parse(folder / "memory.svg").getroot().tag.endswith("svg")
    assert "->" in (folder / "groups.dot").read_text()

@pytest.mark.parametrize("device", ["cpu", "profile:mali-g78"])
def test_heads_tell_what_each_launch_is_given(tmp_path, device):
    """As many operands as the kernel has buffers, and the types of these; the model's nodes."""
    command = ("dump", SUPERRES, "--shape", "1,3,8,8", "-d", device)
    jitcl_command(*command, "-o", tmp_path)
    told = said(*command)
    memory = [line.split() for line in (tmp_path / "memory.txt").read_text().splitlines()[4:]]
    elements = {row[0]: row[1].split("[")[0] for row in memory}
    arranging = 0
    for step, path in zip(told["steps"], sorted((tmp_path / "kernels").iterdir())):
        what, nodes, operands = (line[2:].strip() for line in path.read_text().splitlines()[:3])
        reads, _, writes = operands.partition(" -> ")
        wanted = [b for b in step["buffers"] if b not in step["writes"]]
        found = [] if reads == "no operands" else re.findall(r"(\w+)\[", reads)
        assert len(found) == len(wanted), (path.name, operands)
        assert len(re.findall(r"\w+\[", writes)) == len(step["writes"]), (path.name, operands)
        plain = [(f, elements[b]) for f, b in zip(found, wanted) if b in elements]
        assert all(f == e for f, e in plain) and plain
        assert all(f"'{n['name']}'" in nodes for n in step["nodes"])
        if "arranges operands" in what:
            arranging += 1
            assert "-> y " not in operands
    assert arranging


def test_launches_name_the_models_nodes():
    text = jitcl_command("dump", SUPERRES, "--shape", "1,3,8,8").stdout
    assert "/head/Conv" in re.sub(r"\s+", "", text) and "nodes" in text


def test_an_inner_tensor_is_returned_by_an_edited_dump(tmp_path):
    """As docs/cli.md says it."""
    jitcl_command("dump", SUPERRES, "--shape", "1,3,8,8", "-o", tmp_path)
    path = tmp_path / "00-import.jitcl"
    text = path.read_text()
    inner = re.search(r"^  (%\d+) = conv\(.*\"/head/Conv\"", text, re.MULTILINE)
    assert inner is not None
    path.write_text(text.replace("return %upscaled", f"return %upscaled, {inner[1]}"))
    jitcl_command("run", path, "--random", "-o", tmp_path / "tensors.npz")
    found = np.load(tmp_path / "tensors.npz")
    assert sorted(found) == ["out1", "upscaled"] and found["out1"].shape == (1, 48, 8, 8)


def test_a_dump_runs_like_its_model(tmp_path):
    jitcl_command("dump", SUPERRES, "--shape", "1,3,8,8", "-o", tmp_path)
    x = np.random.default_rng(0).random((1, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    want = jitcl.compile(SUPERRES, device="cpu")(x)["upscaled"]
    dumped = sorted(tmp_path.glob("*.jitcl"))
    assert len(dumped) >= 3
    for path in (dumped[0], dumped[-1]):
        jitcl_command("run", path, "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npy")
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), want, atol=1e-5)


def test_the_graph_after_a_pass(two, tmp_path):
    imported = jitcl_command("dump", two, "--shape", "a=2,8", "--after", "import").stdout
    assert "softmax(%sum)" in imported
    expanded = jitcl_command("dump", two, "--shape", "a=2,8", "--after", "decompose").stdout
    assert "softmax" not in expanded and "reduce_max" in expanded
    fused = jitcl_command("dump", two, "--shape", "a=2,8", "--after", "fuse").stdout
    assert '(group)' in fused
    path = tmp_path / "fused.jitcl"
    path.write_text(fused)
    assert [name for name, _ in load_graph(path).outputs] == ["sum", "best"]
    text = refused("dump", two, "--shape", "a=2,8", "--after", "lunch")
    assert "--after lunch: there is no such pass" in text and "decompose" in text


@pytest.mark.parametrize("device", ["reference", "opencl:pocl"])
def test_dumps_for_other_devices(two, tmp_path, device):
    opened(device)
    jitcl_command("dump", two, "--shape", "a=2,8", "-d", device, "-o", tmp_path / "dump")
    text = "".join(p.read_text() for p in sorted((tmp_path / "dump" / "kernels").iterdir()))
    assert ("kernel @" if device == "reference" else "__kernel void") in text


def test_a_dump_builds_nothing(two, tmp_path):
    where = ("--cache-dir", tmp_path / "cache")
    jitcl_command("dump", two, "--shape", "a=2,8", *where)
    assert [e["kind"] for e in said("cache", "ls", *where)] == ["model"]     # its signature


def test_a_dump_needs_its_shapes(two):
    assert "--shape a=1,8" in refused("dump", two)


# -- devices and cache -------------------------------------------------------------------------


def test_devices():
    told = said("devices")
    assert told["auto"] == "cpu" and told["why"] == "JITCL_DEVICE says so"
    specs = [d["spec"] for d in told["devices"]]
    assert "cpu" in specs and "reference" in specs
    assert all(d["name"] for d in told["devices"])
    text = jitcl_command("devices").stdout
    assert "cpu *" in text and "auto takes cpu" in text


def test_the_cache_from_empty_to_empty(two, tmp_path):
    where = ("--cache-dir", tmp_path / "cache")
    shape = ("--shape", "a=2,8")
    assert said("cache", "size", *where)["bytes"] == 0
    assert "never built" in jitcl_command("cache", "why", two, *shape, *where).stdout

    jitcl_command("run", two, "--random", *shape, *where)
    assert said("cache", "why", two, *shape, *where)["hit"]
    other = said("cache", "why", two, "--shape", "a=3,8", "--memory", "low", *where)
    assert not other["hit"]
    assert [d["part"] for d in other["differs"]] == ["memory"]
    assert other["differs"][0]["now"] == "low" and other["differs"][0]["stored"] == "normal"

    entries = said("cache", "ls", *where)
    assert {"plan", "model"} <= {e["kind"] for e in entries}
    assert said("cache", "size", *where)["bytes"] == sum(e["bytes"] for e in entries)
    assert "model two" in jitcl_command("cache", "ls", *where).stdout
    plans = {f"{e['kind']}/{e['digest']}" for e in entries if e["kind"] == "plan"}
    for e in entries:                               # who uses what
        made_for_plans = e["kind"] == "cpu-object" and "jitcl_" not in str(e["provides"])
        assert (set(e["used_by"]) == plans) == made_for_plans
    listed = jitcl_command("cache", "ls", *where).stdout
    assert "used by 1 plan of model two" in " ".join(listed.split())
    assert said("cache", "ls", "--device", "cpu", *where) == entries
    assert "no device matches 'mali'" in refused("cache", "ls", "--device", "mali", *where)
    assert said("cache", "clear", *where)["removed"] == len(entries)
    assert said("cache", "ls", *where) == []


def test_an_input_whose_value_decides_shapes(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
         helper.make_tensor_value_info("shape", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    path = tmp_path / "reshape.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                                       ir_version=8).SerializeToString())
    fed = (path, "--shape", "x=1,4", "-i", "shape=[2, -1]", "--cache-dir", tmp_path / "cache")
    assert "-i shape='[...]'" in refused("dump", *fed[:3])
    assert said("dump", *fed)["outputs"][0]["shape"] == [2, 2]
    assert said("run", *fed, "--random")["outputs"][0]["shape"] == [2, 2]
    assert said("cache", "why", *fed)["hit"]
    (differs,) = said("cache", "why", *fed[:4], "shape=[4, 1]", *fed[5:])["differs"]
    assert differs["part"] == "shapes" and '["4", "1"]' in differs["now"]


# -- the program -------------------------------------------------------------------------------


def test_every_help_has_an_example():
    for command in ((), ("run",), ("bench",), ("dump",), ("devices",), ("cache",)):
        text = jitcl_command(*command, "--help").stdout
        assert "Examples:" in text and "  jitcl " in text
    assert "JITCL_CACHE_DIR" in jitcl_command("--help").stdout


def test_debug_keeps_the_traceback(two, monkeypatch):
    monkeypatch.setenv("JITCL_DEBUG", "1")
    with pytest.raises(jitcl.InputError):
        CliRunner().invoke(cli, ["run", two], catch_exceptions=False)


def test_variables_that_mean_nothing_are_told(monkeypatch):
    monkeypatch.setenv("JITCL_CASHE_DIR", "/nowhere")
    result = jitcl_command("cache", "size")
    assert "JITCL_CASHE_DIR means nothing to jitcl" in result.stderr


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "jitcl", "--version"], capture_output=True,
                          text=True, check=True)
    assert done.stdout == f"jitcl {jitcl.__version__}\n"


@pytest.mark.parametrize("args", [["--help"], ["cache", "size"]])
def test_starting_loads_nothing_heavy(args):
    code = ("import sys\nfrom jitcl.cli.main import cli\n"
            f"cli({args!r}, standalone_mode=False)\n"
            "heavy = {'numba', 'llvmlite', 'onnx', 'pyopencl', 'lark', 'jinja2', 'PIL'}\n"
            "print('loaded', sorted(heavy & sys.modules.keys()))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


# -- programs ----------------------------------------------------------------------------------


def test_programs_are_run_and_dumped(tmp_path):
    import onnx

    from tests.test_program import picked
    path = tmp_path / "picked.onnx"
    onnx.save(picked(), path)
    out = jitcl_command("run", path, "-d", "cpu", "-i", "x=[[0, 1, 0, 2]]").stdout
    assert "a program of 2 parts and 0 host steps" in out and "cut at 'find' (NonZero)" in out
    shown = jitcl_command("dump", path, "-d", "profile:mali-g610", "-i", "x=[[0, 1, 0, 2]]",
                   "-o", tmp_path / "out").stdout
    assert "a program of 2 parts" in shown and "part 2" in shown
    assert (tmp_path / "out" / "part-2" / "steps.txt").exists()
    assert "cut at 'find'" in (tmp_path / "out" / "program.txt").read_text()
    why = jitcl_command("cache", "why", path, "-d", "cpu", "-i", "x=[[0, 1, 0, 2]]").stdout
    assert "in the cache" in why, why


def test_strings_and_sequences_on_the_command_line(tmp_path):
    import onnx

    from tests.programs import STRING, info, model, node, sequence
    path = tmp_path / "words.onnx"
    onnx.save(model([node("StringConcat", ["s", "s"], ["y"]), node("Identity", ["q"], ["r"])],
                    [info("s", [2], STRING), sequence("q")],
                    [info("y", [2], STRING), sequence("r")]), path)
    out = jitcl_command("run", path, "-d", "cpu", "-i", 's=["a","b"]', "-i", "q=[[1, 2], [3.5]]",
                 "-o", tmp_path / "out.npz").stdout
    assert "'y': 'aa', 'bb'" in out and "r[1]" in out and "string[2]" in out
    with np.load(tmp_path / "out.npz") as saved:
        assert saved["y"].tolist() == ["aa", "bb"] and saved["r[1]"].tolist() == [3.5]
    failed = refused("run", path, "-d", "cpu", "-i", "q=[]", "--random")
    assert "Say what it is as JSON: -i s=" in failed
