"""The posing driver itself, with plain pyopencl: every fault that it injects really happens."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitcl.devices.opencl import pocl
from tests.devices import needs_a_real_crash, opened
from tests.drivers import posing
from tests.drivers.posing import (
    ACTIONS,
    LIVES,
    MAGIC,
    PLAIN,
    POSES,
    SLOTS,
    TOTALS,
    Outcome,
    read_stats,
    run_python,
)

pytestmark = [posing.needed(),
              pytest.mark.in_turn]
PAIR = ("mali-g78:intel", "mali-g78:pocl")

# One kernel doubles ten numbers; what happened is printed as JSON.
DOUBLE = PLAIN + """
SOURCE = '''
__kernel void double_it(__global const float *x, __global float *y)
{
    y[get_global_id(0)] = x[get_global_id(0)] + x[get_global_id(0)];
}
'''
mali = device("Mali")
context = cl.Context([mali])
queue = cl.CommandQueue(context)

def tried(action):
    try:
        return action()
    except cl.Error as error:
        return error.code

def buffer(n=10):
    return cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * n)

def doubled(program, name="double_it", local=None, n=10):
    x = np.arange(n, dtype=np.float32)
    out = np.full(n, -1, np.float32)
    a, b = buffer(n), buffer(n)
    cl.enqueue_copy(queue, a, x)
    cl.enqueue_copy(queue, b, out)
    kernel = cl.Kernel(program, name)
    kernel.set_args(a, b)
    cl.enqueue_nd_range_kernel(queue, kernel, (n,), local)
    cl.enqueue_copy(queue, out, b)
    queue.finish()
    return out.tolist()
"""
RIGHT = [2.0 * i for i in range(10)]
UNTOUCHED = [-1.0] * 10
OUT_OF_RESOURCES, INVALID_BINARY, INVALID_WORK_GROUP_SIZE = -5, -42, -54
BUILD_FAILURE, INVALID_QUEUE, NO_MEMORY = -11, -36, -4
RUN = DOUBLE + "print(json.dumps(tried(lambda: doubled(build(context, SOURCE)))))"


@pytest.fixture(params=PAIR)
def pose(request):
    return POSES[request.param]


@pytest.mark.parametrize("name", [n for n in POSES if ":" in n])
def test_answers_as_the_device(name, tmp_path):
    code = PLAIN + """
found = {d.name: [d.vendor, p.version, d.max_work_group_size, d.type, d.extensions, p.name]
         for p in cl.get_platforms() for d in p.get_devices()}
print(json.dumps(found))
"""
    posed = POSES[name]
    found = run_python(code, cache=tmp_path, pose=posed).value
    info = posed.info
    vendor, version, group, kind, extensions, platform = found.pop(info["CL_DEVICE_NAME"])
    assert (vendor, version, kind) == (info["CL_DEVICE_VENDOR"], info["CL_PLATFORM_VERSION"], 4)
    assert (group, platform) == (info["CL_DEVICE_MAX_WORK_GROUP_SIZE"], info["CL_PLATFORM_NAME"])
    assert set(posed.add.split()) <= set(extensions.split())
    assert "cl_intel" not in extensions and "cl_khr_spir " not in extensions
    # the other driver stays as it is
    assert all(("Portable" in row[5]) == (posed.platform == posing.INTEL) for row in found.values())


def test_without_rules_it_computes(pose, tmp_path):
    done = run_python(RUN, cache=tmp_path, pose=pose)
    assert done.value == RIGHT
    assert done.stats.fired == 0 and done.stats.totals["launches"] == 1


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("rule, signal", [
    ("abort /double_it/", "SIGABRT"), ("segv /double_it/", "SIGSEGV"),
    ("abort at=launch /double_it/", "SIGABRT"), ("hang:600 /double_it/", "hung")])
def test_takes_the_process_down(pose, rule, signal, tmp_path):
    limit = 60.0
    if signal == "hung":                            # it must get as far as the hang
        limit = 5 + 5 * run_python(RUN, cache=tmp_path / "healthy", pose=pose).seconds
    done = run_python(RUN, cache=tmp_path, pose=pose, rules=[rule], timeout=limit)
    assert done.died == signal
    assert done.stats.crashes == done.stats.faults[rule.split()[0].split(":")[0]] == 1
    if signal == "SIGABRT":
        assert "LLVM ERROR: Cannot select: intrinsic %llvm.bifrost.2586" in done.stderr


def test_a_rule_holds_only_for_what_it_names(pose, tmp_path):
    rules = ["abort /no such text/", "segv where=NOT_SET", "abort where=!PATH",
             "abort nth=2 /double_it/"]
    assert run_python(RUN, cache=tmp_path, pose=pose, rules=rules).value == RIGHT
    assert run_python(RUN, cache=tmp_path, pose=pose, rules=["segv where=SET"],
                      variables={"SET": "1"}).died == "SIGSEGV"
    code = DOUBLE + """
program = build(context, SOURCE)
print(json.dumps([tried(lambda: doubled(program)) for _ in range(3)]))
"""
    twice = ["oor nth=2 times=2 /double_it/", "segv where=@no.such.argument"]
    got = run_python(code, cache=tmp_path, pose=pose, rules=twice)
    assert got.value == [RIGHT, OUT_OF_RESOURCES, RIGHT]    # pyopencl tries each launch twice


# Each kernel meets the rule that names it; the others in the same program don't.
LAUNCH_FAULTS = DOUBLE + """
NAMES = ["fine", "refused", "dropped", "late_finish", "late_wait", "late_read", "late_any",
         "small", "hidden"]
source = "".join(SOURCE.replace("double_it", n) for n in NAMES)
program = build(context, source)
got = {n: tried(lambda: doubled(program, n)) for n in NAMES}

def launch(name):
    kernel = cl.Kernel(program, name)
    kernel.set_args(buffer(), buffer())
    return cl.enqueue_nd_range_kernel(queue, kernel, (10,), None)

got["waited"] = tried(lambda: launch("late_wait").wait())
launch("late_finish")
got["finished"] = tried(queue.finish)
got["finished again"] = tried(queue.finish)
info = cl.kernel_work_group_info.WORK_GROUP_SIZE
got["limits"] = [cl.Kernel(program, n).get_work_group_info(info, mali)
                 for n in ("fine", "small", "hidden")]
got["groups"] = [tried(lambda: doubled(program, n, (size,), 64))
                 for n, size in (("small", 32), ("small", 16), ("hidden", 32), ("hidden", 16))]
print(json.dumps(got))
"""


def test_faults_at_launch(pose, tmp_path):
    rules = ["oor /refused/", "drop /dropped/", "late at=finish /late_finish/",
             "late at=wait /late_wait/", "late at=read /late_read/", "late /late_any/",
             "group:16 /small/", "hidden_group:16 /hidden/"]
    done = run_python(LAUNCH_FAULTS, cache=tmp_path, pose=pose, rules=rules)
    got = done.value
    assert got["fine"] == got["small"] == got["hidden"] == RIGHT
    assert got["refused"] == OUT_OF_RESOURCES and got["dropped"] == UNTOUCHED
    for name in ("late_read", "late_any", "late_finish", "waited", "finished"):
        assert got[name] == OUT_OF_RESOURCES, name
    assert got["late_wait"] == UNTOUCHED            # nobody waited for its event
    assert got["finished again"] is None
    assert got["limits"][1:] == [16, 512] and got["limits"][0] == 512
    right = [2.0 * i for i in range(64)]
    assert got["groups"] == [INVALID_WORK_GROUP_SIZE, right, OUT_OF_RESOURCES, right]
    assert done.stats.faults["late"] >= 5 and done.stats.faults["drop"] == 1


def test_faults_at_build(pose, tmp_path):
    rules = ["fail /refused/ kernel uses too many registers", "prelude /exp\\(/ #define exp(x) (x)"]
    code = DOUBLE + """
def log():
    program = cl._cl._Program(context, SOURCE.replace("double_it", "refused"))
    try:
        program._build(b"", [mali])
    except cl.Error as error:
        return [error.code, program.get_build_info(mali, cl.program_build_info.LOG)]
wrong = build(context, SOURCE.replace("+ x[get_global_id(0)]", "+ exp(x[get_global_id(0)])"))
print(json.dumps([log(), doubled(wrong), doubled(build(context, SOURCE))]))
"""
    done = run_python(code, cache=tmp_path, pose=pose, rules=rules)
    assert done.value == [[BUILD_FAILURE, "kernel uses too many registers"], RIGHT, RIGHT]
    assert done.stats.faults["prelude"] == 1        # x + exp(x) came out as x + x


BINARY = DOUBLE + """
binary = build(context, SOURCE).get_info(cl.program_info.BINARIES)[0]
open(PATH, "wb").write(binary or b"")
print(json.dumps(len(binary or b"")))
"""
RELOAD = DOUBLE + """
def reload():
    program = cl._cl._Program(context, [mali], [open(PATH, "rb").read()])
    program._build(b"", [mali])
    return doubled(program)
print(json.dumps(tried(reload)))
"""


def test_binaries(pose, tmp_path):
    path = repr(str(tmp_path / "binary"))
    make, load = BINARY.replace("PATH", path), RELOAD.replace("PATH", path)
    assert run_python(make, cache=tmp_path, pose=pose).value > 0
    assert run_python(load, cache=tmp_path, pose=pose).value == RIGHT
    updated = {"CL_PLATFORM_VERSION": "OpenCL 3.0 v1.r38p0-01eac0.0000"}
    assert run_python(load, cache=tmp_path, pose=pose, settings=updated).value == INVALID_BINARY
    refused = run_python(load, cache=tmp_path, pose=pose, rules=["fail at=reload /double_it/"])
    assert refused.value == INVALID_BINARY
    crashed = run_python(load, cache=tmp_path, pose=pose, rules=["segv at=reload /double_it/"])
    assert crashed.died == "SIGSEGV" and crashed.stats.totals["reloads"] == 4
    launched = run_python(load, cache=tmp_path, pose=pose, rules=["drop /double_it/"])
    assert launched.value == UNTOUCHED              # the rules know a binary's source
    assert run_python(make, cache=tmp_path, pose=pose, settings={"binaries": "none"}).value == 0


def test_memory_limit(pose, tmp_path):
    code = DOUBLE + """
held = [buffer(200_000)]
got = [tried(lambda: held.append(buffer(100_000)))]
del held
print(json.dumps([*got, tried(lambda: buffer(100_000) and None), tried(lambda: buffer(1 << 27))]))
"""
    settings = {"memory_limit": 1_000_000, "memory_error": NO_MEMORY}
    done = run_python(code, cache=tmp_path, pose=pose, settings=settings)
    assert done.value == [NO_MEMORY, None, -61]     # the last: larger than an allocation may be
    assert done.stats.faults["memory"] >= 2         # pyopencl tries again where memory is short


def test_lost_context(pose, tmp_path):
    code = DOUBLE + """
program = build(context, SOURCE)
got = [tried(lambda: doubled(program)) for _ in range(4)]
got += [tried(queue.finish), tried(lambda: buffer() and 0),
        tried(lambda: build(context, SOURCE) and 0)]
context = cl.Context([mali])
queue = cl.CommandQueue(context)
got += [tried(lambda: doubled(build(context, SOURCE))) for _ in range(4)]
print(json.dumps(got))
"""
    done = run_python(code, cache=tmp_path, pose=pose, settings={"lost_after": 3})
    assert done.value == [RIGHT] * 2 + [INVALID_QUEUE] * 5 + [RIGHT] * 4
    assert done.stats.faults["lost"] == 1


def test_half_hidden_or_only_claimed(pose, tmp_path):
    code = DOUBLE + """
source = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\\n" + SOURCE.replace(
    "= x[get_global_id(0)]", "= (half)x[get_global_id(0)]")
listed = "cl_khr_fp16" in mali.extensions
print(json.dumps([listed, tried(lambda: doubled(build(context, source)))]))
"""
    if pose.platform == posing.INTEL:
        posed = posing.Pose(pose.name, pose.platform, pose.info, remove="cl_khr_fp16")
        assert run_python(code, cache=tmp_path, pose=posed).value == [False, RIGHT]
    else:
        posed = posing.Pose(pose.name, pose.platform, pose.info, add="cl_khr_fp16")
        assert run_python(code, cache=tmp_path, pose=posed).value == [True, BUILD_FAILURE]


def chaos(pose, folder: Path, seed: int) -> Outcome:
    code = DOUBLE + """
got = [tried(lambda: doubled(build(context, SOURCE))) for _ in range(16)]
print(json.dumps(got))
"""
    return run_python(code, cache=folder, pose=pose, settings={
        "chaos": f"seed={seed} percent=20 most=5 at=build,launch,read,finish,allocate "
                 "crash_where=NEVER"})


@pytest.mark.slow
def test_chaos_is_seeded_and_bounded(pose, tmp_path):
    first, same, other = (chaos(pose, tmp_path / str(i), seed) for i, seed in enumerate((1, 1, 2)))
    assert first.value == same.value != other.value
    assert first.stats.fired == other.stats.fired == 5
    failed = [v for v in first.value if v != RIGHT]
    assert {-4, -5, BUILD_FAILURE} >= set(failed) and 1 <= len(failed) <= 5


def test_chaos_may_crash_where_the_environment_says_so(pose, tmp_path):
    done = run_python(RUN, cache=tmp_path, pose=pose, variables={"WORKER": "1"}, settings={
        "chaos": "seed=3 percent=100 most=1 at=build crash_where=WORKER"})
    assert done.died in ("SIGABRT", "SIGSEGV") or done.value == BUILD_FAILURE
    assert done.stats.fired == 1


def test_counts_what_is_held(pose, tmp_path):
    code = DOUBLE + """
import gc, os
from tests.drivers.posing import read_stats
from pathlib import Path

def held():
    return read_stats(Path(os.environ["POSE_STATS"])).live[os.getpid()]

a, b = buffer(100), buffer(200)
image = cl.Image(context, cl.mem_flags.READ_ONLY, cl.ImageFormat(
    cl.channel_order.RGBA, cl.channel_type.FLOAT), shape=(8, 4))
part = a.get_sub_region(0, 128)
program = build(context, SOURCE)
full = held()
del a, b, part, image, program, queue, context
gc.collect()
print(json.dumps([full, held()]))
"""
    for runs in (1, 2):
        done = run_python(code, cache=tmp_path, pose=pose)
        full, empty = done.value
        assert full == {"contexts": 1, "queues": 1, "programs": 1, "buffers": 4,
                        "bytes": 1200 + 8 * 4 * 16}
        assert not any(empty.values())
        assert done.stats.totals["processes"] == done.stats.totals["builds"] == runs
        assert done.stats.live == {}                # the process is gone


def test_only_what_still_runs_is_counted_as_living(tmp_path):
    """Found in CI: a worker that had ended, and that init had not waited for, held zeros."""
    path = tmp_path / "stats"
    ended = subprocess.Popen([sys.executable, "-c", ""], env={"POSE_STATS": str(path)})
    waits = [sys.executable, "-c", "print(flush=True); input()"]
    other, runs = (subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    env={"POSE_STATS": s}) for s in ("another's", str(path)))
    for process in (other, runs):       # until it runs, its environment may not be readable yet
        assert process.stdout.readline()
    while " Z " not in Path(f"/proc/{ended.pid}/stat").read_text():
        time.sleep(0.01)
    slots = [[p.pid, 1, 1, 1, 2, 64] for p in (ended, other, runs)]
    slots += [[0] * (1 + len(LIVES))] * (SLOTS - len(slots))
    numbers = [MAGIC, *[0] * len(TOTALS + ACTIONS), *sum(slots, [])]
    path.write_bytes(struct.pack(f"={len(numbers)}q", *numbers))
    assert list(read_stats(path).live) == [runs.pid]
    assert read_stats(path).live[runs.pid]["bytes"] == 64
    for process in (ended, other, runs):
        process.communicate(b"\n" if process.stdin else None)
    assert read_stats(path).live == {}


def test_a_wrong_configuration_is_named(tmp_path):
    for rules, settings, said in ((["explode /x/"], {}, "explode"), (["abort /x"], {}, "no end"),
                                  ([], {"CL_DEVICE_COLOUR": 3}, "CL_DEVICE_COLOUR")):
        done = run_python(RUN, cache=tmp_path, pose=POSES[PAIR[0]], rules=rules, settings=settings)
        assert done.returncode == 99 and said in done.stderr


def test_processes_left_behind_are_found(tmp_path):
    code = f"""
import subprocess
subprocess.Popen([{sys.executable!r}, "-c", "import time; time.sleep(60)"],
                 start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(1)
"""
    done = run_python(code, cache=tmp_path)
    assert len(done.orphans) == 1 and done.value == 1
    cmdline = Path(f"/proc/{done.orphans[0]}/cmdline")
    for _ in range(100):                            # it was killed when it was found
        if not cmdline.exists() or not cmdline.read_bytes():
            return
        time.sleep(0.05)
    pytest.fail("it lives on")


# ---- the crash that needs no posing

WIDE = """
from jitcl.devices.opencl.platform import find_devices
import pyopencl as cl

found = next(f for f in find_devices() if f.compiler_cpu)
context = cl.Context([found.handle])
queue = cl.CommandQueue(context)
program = cl._cl._Program(context, '''
__kernel void wide(__global const float *x, __global float *y)
{
    float16 a = vload16(0, x);
    vstore16(fma(a, a, exp(a) * a), 0, y);
}''')
program._build(b"-cl-std=CL1.2", [found.handle])
x = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
kernel = cl.Kernel(program, "wide")
kernel.set_args(x, x)
cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,)).wait()
print('"' + found.compiler_cpu + '"')
"""


@pytest.mark.slow
@needs_a_real_crash()
def test_pocl_dies_of_wide_vectors_where_its_library_is_for_another_cpu(tmp_path):
    """It aborts ("Do not know how to scalarize this operator's operand!"), crashes or hangs."""
    healthy = run_python(WIDE, cache=tmp_path)
    assert pocl.INLINES_AVX512.search(healthy.value), healthy.value
    sick = run_python(WIDE, cache=tmp_path, variables={"JITCL_POCL_CPU": "znver3"},
                      timeout=8 + 4 * healthy.seconds)
    assert sick.died in ("SIGABRT", "SIGSEGV", "hung")


def test_pocl_is_repaired_under_another_name(tmp_path):
    pose = POSES["mali-g78:pocl"]
    plain, posed = run_python(WIDE, cache=tmp_path), run_python(WIDE, cache=tmp_path, pose=pose)
    if plain.returncode and "StopIteration" in plain.stderr:
        opened("opencl:pocl")
    assert posed.value == plain.value
