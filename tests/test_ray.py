"""Predictors for batches, and Ray Data with workers that are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jitcl
from jitcl.ray import Predictor

ROWS, WORKERS = 100_000, 4


def perceptron() -> bytes:
    """x [rows,8] -> y [rows,4]: two products and a softmax."""
    rng = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
               for name, shape in (("a", (8, 16)), ("b", (16, 4)))]
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "a"], ["p"]), helper.make_node("Relu", ["p"], ["r"]),
             helper.make_node("MatMul", ["r", "b"], ["q"]),
             helper.make_node("Softmax", ["q"], ["y"], axis=-1)]
    graph = helper.make_graph(nodes, "perceptron", [value("x", TensorProto.FLOAT, ("rows", 8))],
                              [value("y", TensorProto.FLOAT, ("rows", 4))], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)],
                             ir_version=9).SerializeToString()


def features(ids: np.ndarray) -> np.ndarray:
    return np.sin(ids[:, None] * np.arange(1, 9) * 0.01).astype(np.float32)


class Noting(Predictor):
    """A predictor that notes its process, and each batch that it began, in a folder."""

    def __init__(self, folder: str, **options: object) -> None:
        super().__init__(perceptron(), columns={"x": "features"}, threads=1, **options)
        self.folder = Path(folder)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (self.folder / f"{os.getpid()}-{batch['id'][0]}").touch()
        time.sleep(0.02)                    # so that all workers get some
        done = super().__call__({"features": features(batch["id"]), "id": batch["id"]})
        return {"id": done["id"], "y": done["y"]}


@pytest.mark.parametrize("count", [1, 5, 8, 11, 0])
def test_batches_of_any_size_are_runs_of_one(count):
    model = jitcl.compile(perceptron(), device="cpu")
    predictor = Predictor(perceptron(), rows=8, device="cpu")
    x = features(np.arange(count))
    found = predictor({"x": x, "more": np.arange(count)})
    assert list(found) == ["x", "more", "y"] and found["y"].shape == (count, 4)
    if count:
        np.testing.assert_allclose(found["y"], model(x)["y"], rtol=1e-5, atol=1e-6)
    assert predictor.model.plan.inputs[0].shape == (8, 8)


def test_misuse_is_told():
    with pytest.raises(jitcl.OptionError, match="rows=0"):
        Predictor(perceptron(), rows=0)
    with pytest.raises(jitcl.InputError, match="names z; the model's inputs are x"):
        Predictor(perceptron(), columns={"z": "a"}, device="cpu")
    predictor = Predictor(perceptron(), columns={"x": "features"}, rows=4, device="cpu")
    with pytest.raises(jitcl.InputError, match="no column features; it has x"):
        predictor({"x": np.zeros((2, 8), np.float32)})
    rows = np.empty(2, object)
    rows[:] = [np.zeros(8, np.float32), np.zeros(7, np.float32)]
    with pytest.raises(jitcl.InputError, match="rows of column 'features' have different shapes"):
        predictor({"features": rows})
    rows[1] = rows[0]
    assert predictor({"features": rows})["y"].shape == (2, 4)


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(tmp_path, monkeypatch):
    """All rows, each once, to the last bit as in a single process; again, nothing is compiled."""
    ray = pytest.importorskip("ray", reason="ray is what is tried")
    pytest.importorskip("ray.data", reason="ray[data] is what is tried")
    root = Path(__file__).resolve().parent.parent
    for folder in (root, root / "tests"):               # workers import this file
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    cache = tmp_path / "cache"
    options = {"device": "cpu", "cache_dir": str(cache), "rows": 256}
    alone = Predictor(perceptron(), threads=1, **options)
    wanted = np.concatenate([alone({"x": features(part)})["y"]
                             for part in np.split(np.arange(ROWS), 100)])
    ray.init(num_cpus=WORKERS + 2, include_dashboard=False, logging_level="error",
             object_store_memory=200 << 20)
    try:
        for turn in ("killed", "again"):
            folder = tmp_path / turn
            folder.mkdir()
            before = sorted(p.name for p in cache.rglob("*.jitcl"))
            killed: list[int] = []
            if turn == "killed":
                threading.Thread(target=kill_one, args=(folder, killed), daemon=True).start()
            found = ray.data.range(ROWS, override_num_blocks=40).map_batches(
                Noting, fn_constructor_kwargs={"folder": str(folder), **options},
                batch_size=500, concurrency=WORKERS).to_pandas()
            workers = {p.name.split("-")[0] for p in folder.iterdir()}
            assert len(workers) >= WORKERS and len(killed) == (turn == "killed")
            assert sorted(found["id"]) == list(range(ROWS))
            found = found.sort_values("id")
            np.testing.assert_array_equal(np.stack(found["y"]), wanted)
            assert sorted(p.name for p in cache.rglob("*.jitcl")) == before
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_the_page_runs(tmp_path):
    pytest.importorskip("ray.data", reason="ray[data] is what is tried")
    root = Path(__file__).resolve().parent.parent
    code = re.search(r"```python\n(.*?)```", (root / "docs" / "ray.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code[1]], cwd=root, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0 and "(3, 48, 48)" in done.stdout, done.stderr


def kill_one(folder: Path, killed: list[int]) -> None:
    """SIGKILL for the first worker that has begun three batches, once all have begun."""
    while not killed:
        begun = [int(p.name.split("-")[0]) for p in folder.iterdir()]
        if len(set(begun)) == WORKERS:
            for pid in set(begun):
                if begun.count(pid) >= 3:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    break
        time.sleep(0.01)
