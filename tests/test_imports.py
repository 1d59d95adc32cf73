"""Memory, queues and contexts that are the caller's: a cl_mem, a dma-buf, DLPack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import jitcl
from tests.devices import opened, present
from tests.drivers import posing

OPENCL = [s for s in present() if s.startswith("opencl")]
X = np.random.default_rng(3).standard_normal((8, 16)).astype(np.float32)
TEXT = "graph @a(%x: f32[n,16]) {\n  %1 = relu(%x)\n  %y = tanh(%1)\n  return %y\n}"
WANT = np.tanh(np.maximum(X, 0))
DOUBLE = "__kernel void f(__global float* x) { x[get_global_id(0)] *= 2; }"


@pytest.fixture(params=OPENCL)
def queue(request):
    import pyopencl as cl

    handle = opened(request.param).session.handle
    context = cl.Context([handle])                      # Intel's queues don't keep theirs
    yield cl.CommandQueue(context)
    context.int_ptr                                     # noqa: B018


def buffer(queue, array):
    import pyopencl as cl

    return cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR,
                     hostbuf=array)


def test_a_model_between_the_callers_own_kernels_without_a_copy_or_a_wait(queue):
    """All commands stand in one queue; models of that queue have its context."""
    import pyopencl as cl

    twice = cl.Kernel(cl.Program(queue.context, DOUBLE).build(), "f")
    with jitcl.compile(jitcl.parse(TEXT), device=queue) as model:
        other = jitcl.compile(jitcl.parse(TEXT.replace("@a", "@b")), device=queue)
        model.run({"x": X})
        memory = buffer(queue, X)
        x = jitcl.DeviceTensor.from_cl_mem(memory, np.float32, X.shape, model)
        twice(queue, (X.size,), None, memory)
        with jitcl.profile() as p:
            y = model.run({"x": x}, keep_on_device=True)["y"]
        assert not [s for r in p.runs for s in r.spans if s.kind == "copy" and s.nbytes]
        twice(queue, (X.size,), None, y.cl_mem)
        assert y.cl_mem.context == queue.context
        assert np.allclose(y.numpy(), 2 * np.tanh(np.maximum(2 * X, 0)), atol=1e-6)
        assert other.run({"x": y})["y"].shape == X.shape and not y.copies and not x.copies
        with x.map() as array:
            array[...] = 0
        twice(queue, (X.size,), None, memory)
        assert not model.run({"x": x})["y"].any()
    found = np.empty_like(X)                            # the caller's memory outlives all of it
    cl.enqueue_copy(queue, found, memory)
    assert not found.any()


def test_what_cannot_be_imported(queue):
    import pyopencl as cl

    model = jitcl.compile(jitcl.parse(TEXT), device=queue)
    of = jitcl.DeviceTensor.from_cl_mem
    foreign = cl.Context([queue.device])
    other = cl.CommandQueue(foreign)
    with pytest.raises(jitcl.InputError, match=r"is of another context than (.|\n)*device=queue"):
        of(buffer(other, X), np.float32, X.shape, model)
    with pytest.raises(jitcl.InputError, match=r"float32\[9, 16\] takes 576 bytes, the memory has"):
        of(buffer(queue, X), np.float32, (9, 16), model)
    with pytest.raises(jitcl.InputError, match=r"got ndarray, wanted a pyopencl\.Buffer"):
        of(X, np.float32, X.shape, model)
    with pytest.raises(jitcl.InputError, match="no elements of type complex64"):
        of(buffer(queue, X), np.complex64, X.shape, model)
    with pytest.raises(jitcl.InputError, match="wanted a model on an OpenCL device"):
        of(buffer(queue, X), np.float32, X.shape, jitcl.compile(jitcl.parse(TEXT), device="cpu"))
    with pytest.raises(jitcl.InputError, match="got dtype int32|wanted float32"):
        model.run({"x": of(buffer(queue, X), np.int32, X.shape, model)})
    with pytest.raises(jitcl.DeviceError, match=r"imports no dma-buf: it has neither cl_arm"):
        jitcl.DeviceTensor.from_dma_buf(1, np.float32, X.shape, model)
    with pytest.raises(jitcl.InputError, match="is no open file handle"):
        jitcl.DeviceTensor.from_dma_buf(-1, np.float32, X.shape, model)
    tensor = of(buffer(queue, X), np.float32, X.shape, model)
    tensor.close()
    with pytest.raises(jitcl.ClosedError, match="'imported' of the caller was closed"):
        model.run({"x": tensor})


def test_queues_that_will_not_do(queue):
    import pyopencl as cl

    unordered = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    with pytest.raises(jitcl.OptionError, match="runs commands out of order"):
        jitcl.compile(jitcl.parse(TEXT), device=cl.CommandQueue(queue.context, None, unordered))
    with pytest.raises(jitcl.DeviceError, match="got a Context, wanted text .* or a queue"):
        jitcl.compile(jitcl.parse(TEXT), device=queue.context)


IMPORT = """
import mmap, os
import numpy as np
import jitcl

model = jitcl.compile(jitcl.parse({text!r}), device="opencl:arm", shapes={{"x": (8, 16)}})
handle = os.memfd_create("frame")
os.ftruncate(handle, 512)
frame = np.frombuffer(mmap.mmap(handle, 512), np.float32).reshape(8, 16)
tensor = jitcl.DeviceTensor.from_dma_buf(handle, np.float32, (8, 16), model)
os.close(handle)
found = []
for value in (0.5, -1.0, 0.25):                 # the camera's next frames
    frame[...] = value
    y = model.run({{"x": tensor}})["y"]
    found.append([float(y.min()), float(y.max())])
with tensor.map() as array:
    array[...] = 2
tensor.close()
import json
try:
    jitcl.DeviceTensor.from_dma_buf(os.open("/dev/null", os.O_RDWR), np.float32, (8, 16), model)
except jitcl.DeviceError as error:
    said = str(error).splitlines()[0]
print(json.dumps([found, float(frame.min()), said]))
"""


@posing.needed()
@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("extensions", [
    "cl_arm_import_memory",
    pytest.param("cl_khr_external_memory cl_khr_external_memory_dma_buf", marks=pytest.mark.long)])
def test_a_dma_buf(extensions, tmp_path):
    """Kernels read what was written last, and the host writes what others see."""
    pose = posing.POSES["mali-g78:pocl"]
    pose = replace(pose, add=pose.add.replace("cl_arm_import_memory", extensions))
    done = posing.run_python(IMPORT.format(text=TEXT), cache=tmp_path, pose=pose)
    found, written, said = done.value
    want = [[np.tanh(v)] * 2 for v in (0.5, 0, 0.25)]
    assert np.allclose(found, want, atol=1e-6) and written == 2
    assert "importing the dma-buf of 'imported' (512 bytes): INVALID_VALUE" in said


@pytest.mark.parametrize("device", ["cpu", *OPENCL[-1:]])
def test_dlpack(device):
    with jitcl.compile(jitcl.parse(TEXT), device=device) as model:
        tensor = model.run({"x": X}, keep_on_device=True)["y"]
        found = np.from_dlpack(tensor)
        assert np.allclose(found, WANT, atol=1e-6) and tensor.__dlpack_device__() == (1, 0)
        with tensor.map() as array:
            shared = np.shares_memory(found, np.from_dlpack(array))
            assert memoryview(array).nbytes == X.nbytes
            array[...] = 1
            with pytest.raises(jitcl.InputError, match="mapped for writing"):
                np.from_dlpack(tensor)
        assert shared == (device == "cpu") == bool((found == 1).all())
        if device != "cpu":
            with pytest.raises(BufferError, match="reading it is a copy"):
                tensor.__dlpack__(copy=False)
    assert found.shape == X.shape and np.isfinite(found).all()      # it outlives the model
    with pytest.raises(jitcl.ClosedError):
        np.from_dlpack(tensor)
