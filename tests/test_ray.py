"""Predictors for batches; Ray Data with workers that are killed; Dask and Spark."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def workers_find_this(monkeypatch):
    """Worker processes import this file and jitcl."""
    root = Path(__file__).resolve().parent.parent
    for folder in (root, root / "tests"):
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(tmp_path, workers_find_this):
    """All rows, each once, to the last bit as in a single process; again, nothing is compiled."""
    ray = pytest.importorskip("ray", reason="ray is what is tried")
    pytest.importorskip("ray.data", reason="ray[data] is what is tried")
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
            if turn == "again":         # before, this process may have had kernels of other tests
                assert sorted(p.name for p in cache.rglob("*.jitcl")) == before
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_the_page_runs(tmp_path):
    pytest.importorskip("ray.data", reason="ray[data] is what is tried")
    root = Path(__file__).resolve().parent.parent
    page = (root / "docs" / "ray.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0 and "(3, 48, 48)" in done.stdout, done.stderr
    assert "(6912,)" in done.stdout


@functools.cache
def predictor() -> Predictor:
    """One in each worker process."""
    return Predictor(perceptron(), columns={"x": "features"}, rows=64, device="cpu", threads=1)


def predicted(frames: Iterator[Any]) -> Iterator[Any]:
    """For pandas' frames, as docs/ray.md has it."""
    for frame in frames:
        done = predictor()({name: frame[name].to_numpy() for name in frame})
        yield type(frame)({name: list(column) for name, column in done.items()})


def table() -> tuple[Any, np.ndarray]:
    """A frame of 1,000 rows, and what they are in one run."""
    pandas = pytest.importorskip("pandas", reason="frames are pandas'")
    x = features(np.arange(1000))
    return pandas.DataFrame({"id": np.arange(1000), "features": list(x)}), predictor()(
        {"features": x})["y"]


def assert_equal(found: Any, wanted: np.ndarray) -> None:
    found = found.sort_values("id")
    assert list(found["id"]) == list(range(1000))
    np.testing.assert_array_equal(np.stack(found["y"].to_numpy()).astype(np.float32), wanted)


@pytest.mark.slow
def test_dask(workers_find_this):
    dask = pytest.importorskip("dask.dataframe", reason="Dask is what is tried")
    config = pytest.importorskip("dask").config
    frame, wanted = table()
    with config.set({"dataframe.convert-string": False}):       # cells are arrays, not texts
        parts = dask.from_pandas(frame, npartitions=4, sort=False)
    found = parts.map_partitions(lambda part: next(predicted([part])),
                                 meta={"id": int, "features": object, "y": object})
    assert_equal(found.compute(scheduler="processes", num_workers=2), wanted)


@pytest.mark.slow
def test_spark(workers_find_this):
    sql = pytest.importorskip("pyspark.sql", reason="Spark is what is tried")
    if shutil.which("java") is None:
        pytest.skip("no Java, which Spark runs in")
    frame, wanted = table()
    spark = (sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.driver.host", "127.0.0.1").getOrCreate())
    try:
        parts = spark.createDataFrame(frame.assign(features=[list(map(float, row))
                                                             for row in frame["features"]]),
                                      "id long, features array<float>").repartition(4)
        found = parts.mapInPandas(predicted, "id long, features array<float>, y array<float>")
        assert_equal(found.toPandas(), wanted)
    finally:
        spark.stop()


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
