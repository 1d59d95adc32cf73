"""Digests of model files: remembered while the file system says that nothing changed, and never
longer.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import jitcl
from jitcl.runtime import digests
from jitcl.runtime.cache import KernelCache
from jitcl.runtime.digests import begun, digest, file_digest


@pytest.fixture
def reads(monkeypatch):
    """Paths that were opened to be hashed."""
    opened: list[Path] = []
    real = open

    def counted(path, mode="r", *rest):
        opened.append(Path(path))
        return real(path, mode, *rest)

    monkeypatch.setattr(digests, "open", counted, raising=False)
    return opened


@pytest.fixture
def settled(monkeypatch):
    """Files count as settled at once: their last change, which nobody can set, is now."""
    monkeypatch.setattr(digests, "SETTLED_NS", -(10 ** 15))


def test_a_file_is_read_once(tmp_path, reads, settled):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"abc" * 10 ** 6)
    first = file_digest(path, tmp_path)
    assert first == digest(path.read_bytes()) == file_digest(path, tmp_path)
    assert reads == [path]


def test_only_a_large_file_is_digested_beside_the_rest(tmp_path, monkeypatch):
    """A small one's is there at once: what reads models is loaded for none that is cached."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"abc" * 10 ** 6)
    assert begun(path, tmp_path) == digest(path.read_bytes())
    monkeypatch.setattr(digests, "SMALL", 0)
    found = begun(path, None)
    assert not isinstance(found, str) and found.result() == digest(path.read_bytes())


@pytest.mark.parametrize("change", ["size", "same size", "replaced", "same times"])
def test_a_changed_file_is_read_again(tmp_path, settled, change):
    path, other = tmp_path / "model.onnx", tmp_path / "other"
    path.write_bytes(b"abc")
    before = path.stat()
    file_digest(path, tmp_path)
    time.sleep(0.05)                         # the times of a file come in steps
    new = b"abcd" if change == "size" else b"xyz"
    if change == "replaced":
        other.write_bytes(new)
        os.replace(other, path)
    else:
        path.write_bytes(new)
    if change == "same times":               # as a copying tool sets them: the change tells
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(path, tmp_path) == digest(new)


def test_a_file_that_was_just_written_is_not_remembered(tmp_path, reads):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"abc")
    for _ in range(2):
        file_digest(path, tmp_path)
    assert reads == [path, path]
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stat": 3}', '{"stat": null, "digest": "x"}'])
def test_a_damaged_note_is_written_anew(tmp_path, settled, text):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"abc")
    wanted = file_digest(path, tmp_path)
    (note,) = (tmp_path / "files").iterdir()
    note.write_text(text)
    assert file_digest(path, tmp_path) == wanted == file_digest(path, tmp_path)
    assert '"digest"' in note.read_text() and wanted in note.read_text()


def test_a_cache_that_cannot_be_written_costs_reading_only(tmp_path, reads, settled):
    path, root = tmp_path / "model.onnx", tmp_path / "a file"
    path.write_bytes(b"abc")
    root.write_text("no directory")
    assert file_digest(path, root) == file_digest(path, root) == digest(b"abc")
    assert len(reads) == 2


def test_clearing_the_cache_forgets(tmp_path, reads, settled):
    path, root = tmp_path / "model.onnx", tmp_path / "cache"
    path.write_bytes(b"abc")
    file_digest(path, root)
    KernelCache(root).clear()
    assert not (root / "files").exists()
    file_digest(path, root)
    assert len(reads) == 2


def test_a_model_that_is_written_over_is_compiled_again(tmp_path, settled):
    import onnx
    from onnx import TensorProto, helper

    def write(factor: float) -> None:
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
        c = helper.make_tensor("c", TensorProto.FLOAT, [], [factor])
        graph = helper.make_graph([helper.make_node("Mul", ["x", "c"], ["y"])], "g", [x], [y], [c])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)

    path = tmp_path / "model.onnx"
    for factor in (2.0, 3.0):
        write(factor)
        model = jitcl.compile(path, device="cpu", cache_dir=tmp_path / "cache")
        y = model.run({"x": np.ones(2, np.float32)})["y"]
        np.testing.assert_array_equal(y, np.full(2, factor, np.float32))
