"""Compiled models and the cache: specialisation, damage, refusal, sharing between processes and
devices.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jitcl
from tests.devices import present

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DEVICES = [s for s in present() if s != "reference"]
# two devices are enough where the device makes no difference to what is tested
TWO = [s for s in ("cpu", "opencl:intel", "opencl:pocl") if s in DEVICES][:2]

WEIGHT = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


def model_of(nodes, inputs, outputs, **constants: np.ndarray) -> bytes:
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(v, n) for n, v in constants.items()])
    opset = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return model.SerializeToString()


def layer() -> bytes:
    """y[n, 5] = softmax(relu(x[n, 8] @ w)): a few kernels, for any n."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["r"]),
             helper.make_node("Softmax", ["r"], ["y"])]
    return model_of(nodes, [("x", TensorProto.FLOAT, ["n", 8])],
                    [("y", TensorProto.FLOAT, ["n", 5])], w=WEIGHT)


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 8)).astype(np.float32)


def layer_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(np.maximum(x @ WEIGHT, 0))
    return e / e.sum(-1, keepdims=True)


def check_layer(model: jitcl.Model, x: np.ndarray) -> None:
    np.testing.assert_allclose(model(x)["y"], layer_of(x), rtol=0, atol=1e-5)


# -- specialisation ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", TWO)
def test_the_same_shapes_again_compile_nothing(device: str, tmp_path: Path) -> None:
    model = jitcl.compile(layer(), device=device, cache_dir=tmp_path)
    check_layer(model, rows(3))
    before = model.cache.stats.as_dict()
    assert before["builds"] == 1
    check_layer(model, rows(3, seed=1))
    assert model.cache.stats.as_dict() == before
    check_layer(model, rows(4))
    assert model.cache.stats.builds == 1                    # a plan for many shapes
    check_layer(model, rows(3))
    assert model.cache.stats.builds == 1


def test_specialisations_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITCL_SPECIALISATIONS", "2")
    monkeypatch.setenv("JITCL_FAMILIES", "0")
    model = jitcl.compile(layer(), device=TWO[0], cache_dir=tmp_path)
    for n in (1, 2, 3):
        check_layer(model, rows(n))
    assert len(model._kept) == 2
    check_layer(model, rows(1))                     # compiled before: its plan is in the cache
    assert len(model._kept) == 2
    assert model.cache.stats.builds == 3


@pytest.mark.slow
@pytest.mark.parametrize("device", TWO[:1])
def test_a_picture_of_another_size(device: str) -> None:
    """Far from the edges, a part of a picture is upscaled as the whole is."""
    model = jitcl.compile(EXAMPLES / "superres-x3.onnx", device=device)
    picture = np.random.default_rng(0).random((1, 3, 40, 51), dtype=np.float32)
    whole = model(picture)["upscaled"]
    assert whole.shape == (1, 3, 120, 153)
    part = model(picture[:, :, :31, :33])["upscaled"]
    assert part.shape == (1, 3, 93, 99)
    inner = np.s_[..., :3 * (31 - 14), :3 * (33 - 14)]
    np.testing.assert_allclose(part[inner], whole[inner], rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", TWO)
def test_values_that_decide_shapes_specialise(device: str, tmp_path: Path) -> None:
    """Reshape's shape fed as an input: part of the key, in later processes too."""
    source = model_of([helper.make_node("Reshape", ["x", "shape"], ["r"]),
                       helper.make_node("Neg", ["r"], ["y"])],
                      [("x", TensorProto.FLOAT, [2, 6]), ("shape", TensorProto.INT64, [2])],
                      [("y", TensorProto.FLOAT, ["a", "b"])])
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    model = jitcl.compile(source, device=device, cache_dir=tmp_path)
    for shape in ([3, 4], [4, 3], [3, 4], [-1, 2]):
        y = model.run({"x": x, "shape": np.array(shape)})["y"]
        np.testing.assert_array_equal(y, -x.reshape(shape))
    assert len(model._kept) + len(model._families.kept) == 3
    builds = model.cache.stats.builds
    again = jitcl.compile(source, device=device, cache_dir=tmp_path)
    y = again.run({"x": x, "shape": np.array([3, 4])})["y"]
    np.testing.assert_array_equal(y, -x.reshape(3, 4))
    assert again.cache.stats.builds == builds
    with pytest.raises(jitcl.JitclError):
        model.run({"x": x, "shape": np.array([5, 2])})
    np.testing.assert_array_equal(model.run({"x": x, "shape": np.array([3, 4])})["y"],
                                  -x.reshape(3, 4))


# -- threads and forks -------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_threads_share_a_model(device: str, tmp_path: Path) -> None:
    """Runs at once, of several shapes: each gets its own result, of one plan for all shapes (but
    for the first, on devices without templates for such plans)."""
    model = jitcl.compile(layer(), device=device, cache_dir=tmp_path)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for turn in range(10):
            x = rows(2 + (seed + turn) % 3, seed=10 * seed + turn)
            if np.abs(model(x)["y"] - layer_of(x)).max() > 1e-5:
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert wrong == []
    assert model.cache.stats.builds == 1


FORK = """
import os, sys
import numpy as np
import jitcl
model = jitcl.compile(sys.argv[1], device="cpu")
x = np.random.default_rng(0).random((1, 3, 16, 24), dtype=np.float32)
want = model(x)["upscaled"]
children = []
for k in range(3):
    child = os.fork()
    if child == 0:
        other = jitcl.compile(sys.argv[1], device="cpu")       # what a forked worker may do
        same = np.array_equal(model(x)["upscaled"], want)
        os._exit(0 if same and np.array_equal(other(x)["upscaled"], want) else 1)
    children.append(child)
assert np.array_equal(model(x)["upscaled"], want)              # while they run
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_forked_children_run_models() -> None:
    done = subprocess.run([sys.executable, "-c", FORK, str(EXAMPLES / "superres-x3.onnx")],
                          env={**os.environ, "JITCL_THREADS": "2"}, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


# -- damage ------------------------------------------------------------------------------------


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 4
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.write_bytes(b"GIF89a" + bytes(5000))


@pytest.fixture(scope="module", params=TWO)
def warm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
         ) -> tuple[str, Path]:
    """A device and a cache directory that has all that `layer` needs."""
    root = tmp_path_factory.mktemp("warm")
    check_layer(jitcl.compile(layer(), device=request.param, cache_dir=root), rows(3))
    return request.param, root


def entries(root: Path) -> dict[str, list[Path]]:
    """Cache entries by kind."""
    found: dict[str, list[Path]] = {}
    for path in root.rglob("*.jitcl"):
        found.setdefault(path.parent.name, []).append(path)
    return found


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("damage", [truncated, flipped, foreign], ids=lambda f: f.__name__)
def test_damaged_entries_are_noticed_and_rebuilt(warm: tuple[str, Path], tmp_path: Path, damage
                                                 ) -> None:
    device, root = warm
    kinds = entries(root)
    assert len(kinds) >= 3                          # the model's signature, its plan, its kernels
    for number, (kind, paths) in enumerate(kinds.items()):
        copy, again = tmp_path / f"{number}", tmp_path / f"{number}-again"
        shutil.copytree(root, copy)
        damaged = [copy / path.relative_to(root) for path in paths]
        before = {path: path.read_bytes() for path in damaged}
        for path in damaged:
            damage(path)
        model = None                                # a device that is open has its programs
        model = jitcl.compile(layer(), device=device, cache_dir=copy)
        check_layer(model, rows(3))
        noticed = model.cache.stats.corrupt
        assert noticed and noticed == model.cache.stats.misses, kind
        # An entry is made anew when it is read; PoCL's and Intel's binaries may differ in bytes.
        assert sum(path.exists() for path in before) >= noticed
        shutil.copytree(copy, again)
        model = None
        model = jitcl.compile(layer(), device=device, cache_dir=again)
        check_layer(model, rows(3))
        stats = model.cache.stats
        assert (stats.corrupt, stats.builds, stats.misses) == (0, 0, 0), kind


# -- directories that refuse -------------------------------------------------------------------


@pytest.mark.parametrize("device", TWO)
def test_a_directory_that_cannot_be_made_costs_a_warning(
        device: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "jitcl"):
        model = jitcl.compile(layer(), device=device, cache_dir=tmp_path / "file" / "cache")
        check_layer(model, rows(3))
    assert caplog.text.count("cannot write to the kernel cache") == 1


RUN = """
import os, sys
import numpy as np
import jitcl
if sys.argv[3]:
    x = np.ones((2, 8), np.float32)                        # imports what lies where only root reads
    jitcl.compile(sys.argv[1], device=sys.argv[2], cache_dir=sys.argv[3])(x)
    if os.getuid() == 0:
        os.setuid(65534)                                   # permissions do not stop root
x = np.arange(24, dtype=np.float32).reshape(3, 8)
model = jitcl.compile(sys.argv[1], device=sys.argv[2])
print(model(x)["y"].tobytes().hex(), model.cache.stats.builds, model.cache.stats.misses)
"""


def start(source: Path, device: str, cache: Path, other: str = "") -> subprocess.Popen[str]:
    """A process that compiles and runs a model; prints result, builds and misses. With `other`, a
    cache directory for a run before it, as a user whom permissions stop.
    """
    return subprocess.Popen([sys.executable, "-c", RUN, str(source), device, other],
                            env={**os.environ, "JITCL_CACHE_DIR": str(cache)}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def others_can_run(workers: bool) -> bool:
    """Whether a user whom permissions stop can read the installed packages (root's own are often
    closed to others); and start this Python, as OpenCL's workers are.
    """
    if os.getuid() != 0:
        return True
    code = ("import importlib.metadata as m, os, sys; m.version('numba'); os.setuid(65534); "
            "m.version('numba')")            # the second time all modules are there
    if workers:
        code += "; os.execv(sys.executable, [sys.executable, '-c', 'pass'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd="/", check=False)
    return done.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="permissions as POSIX has them")
@pytest.mark.parametrize("device", TWO)
def test_a_read_only_directory_costs_a_warning(device: str, tmp_path: Path) -> None:
    """Without anything in it, a run builds for itself; with what it needs, it builds nothing."""
    if not others_can_run(workers=device != "cpu"):
        pytest.skip("this Python environment is closed to all users but root")
    folder = Path(tempfile.mkdtemp())                      # tmp_path is closed to other users
    root, source = folder / "cache", folder / "layer.onnx"
    try:
        root.mkdir()
        source.write_bytes(layer())
        results = []
        for fill in (False, True):
            if fill:
                out, err = start(source, device, root).communicate(timeout=120)
                assert out, err
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o555 if path.is_dir() else 0o444)
            out, err = start(source, device, root, str(tmp_path)).communicate(timeout=120)
            assert out, err
            assert ("cannot write to the kernel cache" in err) == (not fill), err
            assert "Traceback" not in err
            results.append(out.split())
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o700)
        assert results[0][0] == results[1][0]
        assert int(results[0][1]) == 1 and results[1][1:] == ["0", "0"]
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o700)
        shutil.rmtree(folder)


# -- sharing -----------------------------------------------------------------------------------


def test_two_devices_never_share_an_entry(tmp_path: Path) -> None:
    seen: set[Path] = set()
    for number, device in enumerate(DEVICES, 1):
        model = jitcl.compile(layer(), device=device, cache_dir=tmp_path)
        check_layer(model, rows(3))
        assert (model.cache.stats.hits, model.cache.stats.builds) == (0, number)
        mine = set(tmp_path.rglob("*.jitcl")) - seen
        assert {path.parent.parent for path in mine}.isdisjoint(p.parent.parent for p in seen)
        assert len({path.parent.parent for path in mine}) == 1
        seen |= mine


@pytest.mark.slow
@pytest.mark.parametrize("device", TWO)
def test_eight_processes_share_one_empty_cache(device: str, tmp_path: Path) -> None:
    """All succeed, with equal results, and the plan is made by one of them."""
    source = tmp_path / "layer.onnx"
    source.write_bytes(layer())
    running = [start(source, device, tmp_path / "cache") for _ in range(8)]
    answers = []
    for process in running:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-2000:]
        answers.append(out.split())
    assert len({result for result, _, _ in answers}) == 1
    assert sum(int(builds) for _, builds, _ in answers) == 1
    out, err = start(source, device, tmp_path / "cache").communicate(timeout=120)
    assert out.split() == [answers[0][0], "0", "0"], err
