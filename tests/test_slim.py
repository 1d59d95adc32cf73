"""Models' files are read without the elements of their large initialisers, which are read when they
are wanted and not kept.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, external_data_helper, helper, numpy_helper

import jitcl
from jitcl import dtypes
from jitcl.errors import ModelError
from jitcl.frontends.onnx import external, slim
from jitcl.frontends.onnx.model import load
from jitcl.ir.graph import Data, const
from jitcl.passes.simplify import times

LARGE = np.arange(50_000, dtype=np.float32)


def model(**stored: np.ndarray | TensorProto) -> ModelProto:
    """Each initialiser through Identity."""
    protos = [t if isinstance(t, TensorProto) else numpy_helper.from_array(t, n)
              for n, t in stored.items()]
    graph = helper.make_graph(
        [helper.make_node("Identity", [t.name], [f"y_{t.name}"]) for t in protos], "g", [],
        [helper.make_tensor_value_info(f"y_{t.name}", t.data_type, list(t.dims)) for t in protos],
        protos)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def saved(folder: Path, proto: ModelProto) -> Path:
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


def slimmed(path: Path) -> bytes:
    with path.open("rb") as file:
        return slim.read(path, file)


def int4(name: str, size: int) -> TensorProto:
    packed = (np.arange(-(-size // 2)) % 251).astype(np.uint8)
    return helper.make_tensor(name, TensorProto.INT4, [size], packed.tobytes(), raw=True)


# ---- reading

@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["raw", "float", "int4"]), st.integers(0, 40_000)),
                max_size=4), st.booleans())
def test_nothing_is_lost(tmp_path_factory, tensors, reverse):
    """A slim model with its external data read is the model that was saved."""
    protos = {}
    for n, (how, size) in enumerate(tensors):
        if how == "int4":
            t = int4(f"t{n}", 8 * size)
        elif how == "float":
            t = helper.make_tensor(f"t{n}", TensorProto.FLOAT, [size], range(size))
        else:
            t = numpy_helper.from_array(np.arange(size, dtype=np.float64), f"t{n}")
        protos[t.name] = t
    wanted = model(**dict(reversed(protos.items())) if reverse else protos)
    path = saved(tmp_path_factory.mktemp("slim"), wanted)
    got = ModelProto.FromString(slimmed(path))
    large = [t.name for t in wanted.graph.initializer if len(t.raw_data) > slim.LARGE]
    assert [t.name for t in got.graph.initializer if not t.raw_data
            and t.data_location == TensorProto.EXTERNAL] == large
    external_data_helper.load_external_data_for_model(got, str(path.parent))
    for t in got.graph.initializer:
        t.ClearField("data_location")
    for t in wanted.graph.initializer:
        t.ClearField("data_location")
    assert got == wanted


def test_what_is_large_is_left_in_the_file(tmp_path):
    path = saved(tmp_path, model(w=LARGE, small=np.ones(3, np.float32)))
    assert len(slimmed(path)) < 500 < LARGE.nbytes < path.stat().st_size


@pytest.mark.parametrize("bytes_", [b"", b"\xff" * 40, b"\x3a\xff\xff\xff\xff\x7f", b"\x3b\0\0"])
def test_no_protocol_buffer_is_read_as_it_is(tmp_path, bytes_):
    path = tmp_path / "m.onnx"
    path.write_bytes(bytes_)
    assert slimmed(path) == bytes_
    with pytest.raises(ModelError, match=r"m\.onnx: is not an ONNX model"):
        load(path)


# ---- elements

def test_elements_are_not_kept(tmp_path):
    """The proto and the constants of a loaded model hold none; each reading gives them anew."""
    found = load(saved(tmp_path, model(w=LARGE, small=np.ones(3, np.float32))))
    node = found.constant("w")
    first = node.data
    np.testing.assert_array_equal(first, LARGE)
    assert not first.flags.writeable and node.data is first     # one copy while it is wanted
    gone = weakref.ref(first)
    del first
    assert gone() is None
    np.testing.assert_array_equal(node.data, LARGE)
    assert found.external_files == ()
    assert all(not t.raw_data and not t.external_data for t in found.proto.graph.initializer
               if t.name == "w")
    assert found.constant("small").data is found.constant("small").data


def test_equal_elements_are_one_constant(tmp_path):
    found = load(saved(tmp_path, model(a=LARGE, b=LARGE.copy(), c=LARGE + 1)))
    assert found.constant("a") is found.constant("b")
    assert found.constant("a") is not found.constant("c")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8, np.bool_])
@pytest.mark.parametrize("size", [LARGE.size, 65_537 * 2])
def test_loading_reads_the_elements_that_tell_constants_apart(tmp_path, monkeypatch, dtype, size):
    array, read = np.random.default_rng(size).integers(0, 100, (2, size)).astype(dtype), []
    path = saved(tmp_path, model(w=array))
    monkeypatch.setattr(external.File, "_read", lambda *a, real=external.File._read: (
        read.append(real(*a)), read[-1])[1])
    node = load(path).constant("w")
    assert len(read) == 1 and read[0].nbytes <= 65 * array.itemsize
    assert node is const(array)
    assert read[-1].nbytes == array.nbytes


def test_int4_stays_in_the_proto(tmp_path):
    found = load(saved(tmp_path, model(w=int4("w", 200_000))))
    stored = found.initialisers["w"]
    assert len(stored.raw_data) == 100_000 and not stored.external_data
    assert found.constant("w").type.dtype == "i4"


def test_a_damaged_initialiser_is_told_of_where_it_is_read(tmp_path):
    proto = model(w=LARGE)
    proto.graph.initializer[0].dims[0] += 1
    found = load(saved(tmp_path, proto))
    with pytest.raises(ModelError, match="initialiser 'w' is malformed"):
        found.constant("w")


def test_constants_that_are_told_how_to_read_themselves():
    array, calls = np.arange(6, dtype=np.int32), []

    def reload() -> np.ndarray:
        calls.append(1)
        return array.copy()

    data = Data(array, reload)
    assert data == Data(array) and (data.dtype, data.shape) == (np.int32, (6,)) and not calls
    np.testing.assert_array_equal(data.array, array)
    assert calls == [1]


def test_large_constants_are_read_whole_only_where_a_few_elements_are_equal():
    array, calls = np.arange(9000, dtype=np.int32).reshape(90, 100), []

    def reload() -> np.ndarray:
        calls.append(1)
        return array.copy()

    data, other = Data(array, reload), array.copy()
    assert data != Data(array + 1) and data != Data(array.reshape(100, 90)) and not calls
    assert data == Data(array) and hash(data) == hash(Data(array)) and calls == [1]
    for place in range(0, 9000, 7):                     # looked at from the start or not
        other.flat[place] += 1
        assert data != Data(other)
        other.flat[place] -= 1
    assert data == Data(other) and data.digest == Data(other).digest


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_scaled_weights_are_kept_no_longer_than_the_weights(dtype):
    factor = np.linspace(-2, 3, 8).reshape(8, 1, 1)
    for seed, kept in enumerate((True, False)):
        array = np.random.default_rng(seed).standard_normal((8, 4, 3))
        array = array.astype(dtypes.to_numpy(dtype))
        weights = const(array, dtype, None if kept else array.copy)
        scaled = times(weights, factor)
        assert scaled is not None and scaled.type == weights.type
        gone = weakref.ref(scaled.data)
        assert (gone() is not None) == kept
        want = (array.astype(np.float64) * factor).astype(array.dtype)
        np.testing.assert_array_equal(scaled.data, want)
        assert times(weights, np.full((8, 1, 1), 1.7e308)) is None          # not finite


# ---- a file that is gone, or another

def test_a_file_may_be_deleted_or_replaced(tmp_path):
    path = saved(tmp_path, model(w=LARGE))
    found = load(path)
    other = tmp_path / "other.onnx"
    onnx.save(model(w=LARGE * 2), other)
    os.replace(other, path)
    np.testing.assert_array_equal(found.constant("w").data, LARGE)
    path.unlink()
    np.testing.assert_array_equal(found.constant("w").data, LARGE)


def test_a_file_that_was_written_to(tmp_path):
    path = saved(tmp_path, model(w=LARGE))
    found = load(path)
    with path.open("r+b") as file:
        file.truncate(1000)
    said = (r"initialiser 'w': '.*m\.onnx' holds its elements, and has changed since it was "
            r"opened\n  Load the model again")
    with pytest.raises(ModelError, match=said):
        _ = found.constant("w").data


def test_external_elements_that_have_changed(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model(w=LARGE), path, save_as_external_data=True, location="m.data")
    found = load(path)
    node = found.constant("w")
    np.testing.assert_array_equal(node.data, LARGE)
    (tmp_path / "m.data").write_bytes(b"\0" * (LARGE.nbytes + 1))
    with pytest.raises(ModelError, match=r"'.*m\.data' holds its elements, and has changed"):
        _ = node.data


def test_other_shapes_after_the_file_is_gone(tmp_path):
    """What is compiled later is made of the file that was opened."""
    w = np.linspace(-1, 1, 300 * 200, dtype=np.float32).reshape(300, 200)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 200])],
        [numpy_helper.from_array(w, "w")])
    path = saved(tmp_path, helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    compiled = jitcl.compile(path, device="cpu", cache_dir=tmp_path / "cache")
    path.unlink()
    for n in (3, 70):
        x = np.ones((n, 300), np.float32)
        np.testing.assert_allclose(compiled.run({"x": x})["y"], x @ w, atol=1e-4)
