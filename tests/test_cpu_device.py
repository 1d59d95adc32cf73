"""The CPU path below code generation: object code, executor, device."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_cpu_scalars import CASES, HEAD, elementwise

from jitcl import config
from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.devices.base import Repeat
from jitcl.devices.cpu import CpuDevice, executor, host, objects, probe_target
from jitcl.devices.cpu.executor import ALONE, MEET
from jitcl.devices.cpu.objects import compile_kernels, load_kernels
from jitcl.devices.cpu.sharing import is_short, step_flags
from jitcl.errors import BuildError, InputError
from tests.caches import Memory


@pytest.fixture(scope="module")
def cache():
    return Memory()


@pytest.fixture(scope="module")
def device():
    return CpuDevice()


# ------------------------------------------------------------------------------------------ objects
def test_a_kernel_that_python_rejects_is_a_build_error():
    bad = KernelSource(
        "broken", HEAD + "def broken(args, tid, nthreads):\n    nothing_such(args)\n", "numba"
    )
    with pytest.raises(BuildError, match="kernel 'broken'.*rejected"):
        compile_kernels([bad])
    allocating = (
        HEAD + "import numpy as np\ndef greedy(args, tid, nthreads):\n    np.zeros(args)[tid] = 1\n"
    )
    with pytest.raises(BuildError, match="kernel 'greedy'"):
        compile_kernels([KernelSource("greedy", allocating, "numba")])


class PosedWorker:
    """Builds at once; what it was asked for, in order."""

    asked: list[str] = []
    closed = 0
    ended = False

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def build(self, source: KernelSource, absent: str) -> bytes:
        self.asked.append(source.entry)
        return source.body.encode()

    def close(self) -> None:
        PosedWorker.closed += 1


@pytest.fixture
def posed(monkeypatch):
    """Build processes of this test alone, which end after 0.1 s."""
    pool = objects._Workers()
    monkeypatch.setattr(objects, "_workers", pool)
    monkeypatch.setattr(objects, "_Worker", PosedWorker)
    monkeypatch.setattr(objects, "_Loaded", lambda: SimpleNamespace(
        ended=False, forks=True, close=lambda: None, kill=lambda: None))
    monkeypatch.setattr(objects, "_IDLE_SECONDS", 0.1)
    PosedWorker.asked, PosedWorker.closed = [], 0
    yield pool
    pool.close()


def test_what_is_built_ahead_is_not_built_again(posed, device):
    ahead, other = (KernelSource(name, f"text of {name}", "numba") for name in "ab")
    take = objects.Ahead(None, device.target)
    take(ahead)
    take(KernelSource("c", "__kernel", "opencl"))       # another path's
    blobs = compile_kernels([other, ahead], lanes=device.target.vector_width)
    assert sorted(PosedWorker.asked) == ["a", "b"]
    assert blobs["a"].endswith(b"a\ntext of a") and blobs["b"].endswith(b"b\ntext of b")
    assert posed.known == {} and posed.waiting == 0


def test_build_processes_end_after_a_pause_and_drop_what_nobody_asked_for(posed, device):
    objects.Ahead(None, device.target)(KernelSource("a", "text", "numba"))
    deadline = time.monotonic() + 20
    while posed.threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (posed.threads, posed.processes, posed.known, PosedWorker.closed) == (0, [], {}, 1)
    compile_kernels([KernelSource("b", "text", "numba")])       # they start again
    assert PosedWorker.asked == ["a", "b"]


def test_builds_import_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "numba.py").write_text("raise ImportError('not the library')\n")
    monkeypatch.chdir(tmp_path)
    objects._workers.close()                # the next ones start here
    compile_kernels([KernelSource("t_abs", elementwise("t_abs", *CASES["sign"]), "numba")])


@pytest.mark.parametrize("step, ended", [(1, False), (0, True)])
def test_a_kernel_whose_loop_has_a_step_of_0_ends_the_process(tmp_path, step, ended):
    """It would leave its outputs as they were, which look like results."""
    text = HEAD + "def stuck(args, tid, nthreads):\n    for k in range(0, 4, tid):\n        pass\n"
    blobs = compile_kernels([KernelSource("stuck", text, "numba")])
    (tmp_path / "blob").write_bytes(blobs["stuck"])
    code = (
        "import ctypes\nfrom jitcl.devices.cpu.objects import load_kernels\n"
        f"k = load_kernels({{'stuck': open({str(tmp_path / 'blob')!r}, 'rb').read()}})\n"
        f"ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(k['stuck'])(0, {step}, 1)\n"
    )
    status = subprocess.run([sys.executable, "-c", code], timeout=60).returncode
    assert status < 0 if ended else status == 0


def test_loading_needs_no_numba(tmp_path):
    blobs = compile_kernels(
        [KernelSource("t_relu", elementwise("t_relu", *CASES["relu"]), "numba")]
    )
    (tmp_path / "blob").write_bytes(blobs["t_relu"])
    code = (
        "import sys\nfrom jitcl.devices.cpu.objects import load_kernels\n"
        f"k = load_kernels({{'t_relu': open({str(tmp_path / 'blob')!r}, 'rb').read()}})\n"
        "assert k['t_relu'] and 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_damaged_blob_is_refused():
    with pytest.raises(BuildError, match="not a CPU kernel object"):
        load_kernels({"k": b"something else"})


# ------------------------------------------------------------------------------------------- device
def chain(count, n=4096, flops=10**6):
    """y = x + count, one addition a step, through two temporaries."""
    text = elementwise("inc", "add(A, f32(1))", ("f32",), "f32")

    def spec(name, kind, slot=-1):
        return BufferSpec(name, "f32", (n,), 4 * n, kind, slot)

    buffers = (
        spec("x", "input"),
        spec("y", "output"),
        spec("t0", "temp", 0),
        spec("t1", "temp", 1),
    )
    ends = [0, *(2 + i % 2 for i in range(count - 1)), 1]
    steps = tuple(
        Step(
            f"inc_{i}",
            "inc",
            (ends[i], ends[i + 1]),
            (n,),
            flops=flops,
            bytes=8 * n,
            writes=(ends[i + 1],),
        )
        for i in range(count)
    )
    return Plan(
        (TensorSpec("x", "f32", (n,), 0),),
        (TensorSpec("y", "f32", (n,), 1),),
        (KernelSource("inc", text, "numba"),),
        steps,
        buffers,
        (4 * n, 4 * n),
    )


def loaded(device, plan, cache=None):
    return device.load(plan, cache)


def test_a_plan_runs_alike_on_any_thread_count(device):
    executable = loaded(device, chain(50))
    x = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    results = []
    for n in (1, 2, 3, 5):
        with config.override(threads=n):
            results += [executable.run([x])[0].tobytes() for _ in range(20)]
    assert len(set(results)) == 1
    np.testing.assert_allclose(np.frombuffer(results[0], np.float32), x + 50, rtol=1e-5)


def test_outputs_are_fresh_and_inputs_are_copied(device):
    executable = loaded(device, chain(3))
    x = np.zeros(4096, np.float32)
    first = executable.run([x])[0]
    x[:] = 5
    assert (first == 3).all() and (executable.run([x])[0] == 8).all() and (first == 3).all()


def test_an_input_may_be_an_output_and_lie_anywhere(device):
    plan = chain(2, n=64)
    both = replace(plan, outputs=(*plan.outputs, TensorSpec("same", "f32", (64,), 0)))
    executable = loaded(device, both)
    x = np.arange(128, dtype=np.float32)[::2]
    for array in (x, x.copy(), x + 1):
        y, same = executable.run([array])
        assert (same == array).all() and (y == array + 2).all() and same.base is not array
    odd = np.frombuffer(b"x" + x.tobytes(), np.float32, 64, 1) if x.size else x
    assert (executable.run([odd])[0] == x + 2).all()


def test_large_inputs_are_read_where_they_lie(device):
    """Those that are contiguous and aligned; copied are others, and rows of runs in a row."""
    n = 1 << 18
    executable = loaded(device, chain(2, n=n))
    x = np.random.default_rng(0).normal(size=2 * n).astype(np.float32)
    odd = np.frombuffer(b"x" + x[:n].tobytes(), np.float32, n, 1)
    for array in (x[:n], odd, x[::2], x[n:]):
        np.testing.assert_array_equal(executable.run([array])[0], array + 1 + 1)
    assert (executable._inputs[0] == x[::2]).all()          # as the copy before left it
    rows = x.reshape(2, n)
    stacked = executable.repeat([rows], Repeat(2, (0,), (), (0,)))[-1]
    np.testing.assert_array_equal(stacked, rows + 1 + 1)


def test_models_in_several_python_threads(device):
    executables = [loaded(device, chain(20)) for _ in range(3)]
    wrong: list[int] = []

    def work(k):
        for i in range(30):
            if not (executables[k].run([np.full(4096, k + i, np.float32)])[0] == k + i + 20).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_its_own_pool(device):
    executable = loaded(device, chain(5))
    x = np.zeros(4096, np.float32)
    with config.override(threads=2):
        executable.run([x])
        child = os.fork()
        if child == 0:
            os._exit(0 if (executable.run([x])[0] == 5).all() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_wrong_array_is_named(device):
    executable = loaded(device, chain(1))
    with pytest.raises(InputError, match=r"input 'x': got float64\[4096\], wanted float32\[4096\]"):
        executable.run([np.zeros(4096)])


def test_the_cache_serves_kernels_again(cache, device):
    plan = chain(2)
    told: list[tuple[int, int, str]] = []
    device.load(plan, cache, lambda *now: told.append(now))
    device.load(plan, cache, lambda *now: told.append(now))
    assert told == [(0, 1, "building kernels"), (1, 1, "building kernels"),
                    (1, 1, "loading the model")]


def test_threads_meet_only_where_data_depends():
    plan = chain(3)
    assert step_flags(plan) == [MEET, MEET, 0]
    assert step_flags(chain(3, n=16, flops=1)) == [ALONE, ALONE, ALONE]


def test_a_short_plan_takes_threads_only_while_they_are_awake(device, monkeypatch):
    assert not is_short(chain(3)) and is_short(chain(3, flops=4 * 10**5))
    executable = loaded(device, chain(3, flops=4 * 10**5))
    pool = executable._executor
    x, joined = np.zeros(4096, np.float32), []
    monkeypatch.setattr(pool, "_run_parallel", lambda job, n: joined.append(n))
    monkeypatch.setattr(executor, "_AWAKE", 10**15)
    with config.override(threads=3):
        pool._ended = -(10**15)                         # the last run was long ago
        assert (executable.run([x])[0] == 3).all() and joined == []
        executable.run([x])
        assert joined == [3]
        pool._ended = -(10**15)
        loaded(device, chain(3)).run([x])               # a longer one wakes them
        assert joined == [3, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells where threads may run")
def test_sleeping_threads_keep_off_the_callers_cpu(device):
    allowed = os.sched_getaffinity(0)
    executable = loaded(device, chain(3))
    x = np.zeros(4096, np.float32)

    def others():
        """Where the pool's thread may run, after a run from a pause."""
        time.sleep(0.01)
        executable.run([x])
        return os.sched_getaffinity(executable._executor._pools[2].threads[0].native_id)

    with config.override(threads=2):
        if len(allowed) == 1:
            assert others() == allowed                  # nowhere else to go
            return
        try:
            for _ in range(3):                          # wherever the caller happens to be
                assert others() in [allowed - {cpu} for cpu in allowed]
            for cpu in sorted(allowed):                 # one with a single CPU does not crowd them
                os.sched_setaffinity(0, {cpu})
                assert others() == allowed - {cpu}
        finally:
            os.sched_setaffinity(0, allowed)


def test_the_target_knows_its_vectors():
    target = probe_target()
    assert target.kind == "cpu" and target.vector_width in (4, 8, 16) and target.registers >= 16
    with config.override(cpu_width=4):
        assert probe_target().vector_width == 4


def test_the_target_knows_cpus_with_one_unit_for_wide_fmas(monkeypatch):
    """By its name, unless it has what none of that name has."""
    monkeypatch.setattr(host, "_widest", lambda: 16)
    for name, more, fmas in (("znver4", (), 1), ("icelake-client", (), 1),
                             ("sapphirerapids", ("avx512fp16",), 2),
                             ("rocketlake", (), 1), ("rocketlake", ("avx512fp16",), 2)):
        monkeypatch.setattr(host.llvm, "get_host_cpu_name", lambda name=name: name)
        monkeypatch.setattr(host, "_native", lambda more=more: frozenset({"avx512f", *more}))
        with config.override(cpu_width=16):
            assert probe_target().fmas == fmas
        with config.override(cpu_width=8):
            assert probe_target().fmas == 2
