"""The OpenCL device on every driver present: selection, probes, building, caching, runs, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyopencl as cl
import pytest

import jitcl
from jitcl.codegen.plan import BufferSpec, KernelSource, Plan, Step, TensorSpec
from jitcl.devices.opencl import icd, list_devices, open_device, pocl
from jitcl.devices.opencl.launches import Launch
from jitcl.devices.opencl.programs import sealed
from jitcl.errors import BuildError, DeviceError, InputError, OutOfMemoryError
from jitcl.target import Target
from jitcl.target.quirks import QUIRKS, Driver, applying, version_key
from tests.caches import Memory
from tests.devices import needs

DEVICES = list_devices()
ROOT = Path(__file__).resolve().parent.parent

SCALE = KernelSource(
    "scale_add_1",
    """
__kernel void scale_add_1(__global const float *restrict x, __global const float *restrict c,
                          __global float *restrict y, int n)
{
    int i = get_global_id(0);
    if (i < n) y[i] = 2.0f * x[i] + c[i];
}
""",
    "opencl",
)
SQUARE = KernelSource(
    "square_1",
    """
__kernel void square_1(__global const float *restrict x, __global float *restrict y, int n)
{
    int i = get_global_id(0);
    if (i < n) y[i] = x[i] * x[i];
}
""",
    "opencl",
)


def plan_of(n: int = 1000, local: tuple[int, ...] = (64,)) -> Plan:
    """y = (2 x + c)^2, through a temporary that lies at an offset of its slot."""
    size = -(-n // 64) * 64
    buffers = (
        BufferSpec("x", "f32", (n,), 4 * n, "input"),
        BufferSpec("c", "f32", (n,), 4 * n, "const"),
        BufferSpec("t", "f32", (n,), 4 * n, "temp", slot=0, offset=4096),
        BufferSpec("y", "f32", (n,), 4 * n, "output"),
    )
    steps = (
        Step("scale_0", "scale_add_1", (0, 1, 2), (n,), (size,), local),
        Step("square_1", "square_1", (2, 3), (n,), (size,), local),
    )
    constants = {1: np.arange(n, dtype=np.float32)}
    return Plan(
        (TensorSpec("x", "f32", (n,), 0),),
        (TensorSpec("y", "f32", (n,), 3),),
        (SCALE, SQUARE),
        steps,
        buffers,
        (4096 + 4 * n,),
        constants,
    )


def expected(x: np.ndarray) -> np.ndarray:
    return np.square(np.float32(2) * x + np.arange(x.size, dtype=np.float32))


@pytest.fixture(
    scope="module", params=[d.spec for d in DEVICES], ids=[d.platform.split()[0] for d in DEVICES]
)
def device(request):
    return open_device(request.param)


def test_a_driver_is_present():
    assert DEVICES, "the test extra installs PoCL and Intel's runtime"


def test_runs_a_plan_again_and_again(device):
    executable = device.load(plan_of())
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
        (y,) = executable.run([x])
        np.testing.assert_allclose(y, expected(x), rtol=2e-7)
        before = y.copy()
        executable.run([x + 1])
        np.testing.assert_array_equal(y, before)  # results are fresh arrays


def test_reads_inputs_that_are_not_contiguous(device):
    x = np.arange(2000, dtype=np.float32)[::2]
    (y,) = device.load(plan_of()).run([x])
    np.testing.assert_allclose(y, expected(x), rtol=2e-7)


def test_profile_names_every_step(device):
    executable = device.load(plan_of())
    begin = time.perf_counter()
    times = executable.profile([np.ones(1000, np.float32)], runs=3)
    assert [t.name for t in times] == ["scale_0", "square_1"]
    assert all(0 < t.seconds < time.perf_counter() - begin for t in times)


def test_a_steady_pass_counts_what_launches_cost(device, monkeypatch):
    """Kernels' own times do not. A busy machine takes a few milliseconds from one of the two passes
    whose difference is told."""
    executable, start, wait = device.load(plan_of()), Launch.start, 0.02

    def late(launch, queue):
        time.sleep(wait)
        return start(launch, queue)

    monkeypatch.setattr(Launch, "start", late)
    x = [np.ones(1000, np.float32)]
    steps = len(executable.plan.steps)
    assert executable.steady(x, 3) > steps * wait / 2 > sum(
        t.seconds for t in executable.profile(x, 3))


def test_driver_may_choose_the_work_group(device):
    x = np.ones(1000, np.float32)
    (y,) = device.load(plan_of(local=())).run([x])
    np.testing.assert_allclose(y, expected(x), rtol=2e-7)


def test_work_group_larger_than_the_kernel_can_run_is_halved(device):
    size = 1 << 16
    plan = plan_of()
    steps = tuple(replace(s, global_size=(size,), local_size=(size,)) for s in plan.steps)
    x = np.ones(1000, np.float32)
    (y,) = device.load(replace(plan, steps=steps)).run([x])
    np.testing.assert_allclose(y, expected(x), rtol=2e-7)


def test_empty_steps_and_buffers(device):
    plan = plan_of(0)
    steps = tuple(replace(s, global_size=(0,)) for s in plan.steps)
    (y,) = device.load(replace(plan, steps=steps)).run([np.zeros(0, np.float32)])
    assert y.shape == (0,)


def test_scalars_and_small_types(device):
    source = KernelSource(
        "both_1",
        """
        __kernel void both_1(__global const uchar *a, __global const long *b,
                             __global uchar *c, __global half *h)
        { c[0] = a[0] && b[0] > 4294967296L; vstore_half_rte(1.0f / 3.0f, 0, h); }""",
        "opencl",
    )
    buffers = (
        BufferSpec("a", "bool", (), 1, "input"),
        BufferSpec("b", "i64", (), 8, "input"),
        BufferSpec("c", "bool", (), 1, "output"),
        BufferSpec("h", "f16", (), 2, "output"),
    )
    plan = Plan(
        (TensorSpec("a", "bool", (), 0), TensorSpec("b", "i64", (), 1)),
        (TensorSpec("c", "bool", (), 2), TensorSpec("h", "f16", (), 3)),
        (source,),
        (Step("both", "both_1", (0, 1, 2, 3), (), (1,), (1,)),),
        buffers,
        (),
    )
    c, h = device.load(plan).run([np.array(True), np.array(1 << 33)])
    assert c.dtype == bool and c.shape == () and c[()]
    assert h == np.float16(1 / 3)


def test_second_device_builds_nothing(device):
    cache = Memory()
    first = open_device(device.session.spec)
    first.load(plan_of(), cache)
    assert first.counters["programs_built_from_source"] == 1
    assert first.counters["kernels_built"] == 2
    second = open_device(device.session.spec)
    (y,) = second.load(plan_of(), cache).run([np.ones(1000, np.float32)])
    np.testing.assert_allclose(y, expected(np.ones(1000, np.float32)), rtol=2e-7)
    assert second.counters == {
        "programs_built_from_source": 0,
        "programs_loaded_from_binary": 1,
        "kernels_built": 0,
        "kernels_loaded": 2,
        "binaries_refused": 0,
    }


def test_a_kernel_is_shared_by_plans(device):
    cache = Memory()
    open_device(device.session.spec).load(plan_of(), cache)
    plan = plan_of()
    other = replace(
        plan,
        kernels=(
            *plan.kernels,
            replace(SQUARE, entry="third_1", body=SQUARE.body.replace("square_1", "third_1")),
        ),
    )
    second = open_device(device.session.spec)
    second.load(other, cache)
    assert second.counters["kernels_loaded"] == 2 and second.counters["kernels_built"] == 1


@pytest.mark.parametrize(
    "damage", ["refused", "truncated", "flipped", "foreign index", "missing program"]
)
def test_refused_binaries_are_built_anew(device, damage):
    cache = Memory()
    open_device(device.session.spec).load(plan_of(), cache)
    intact = dict(cache.data)
    for (kind, key), data in intact.items():
        if damage == "missing program" and kind == "opencl-program":
            del cache.data[kind, key]
        elif damage == "foreign index" and kind == "opencl-kernel":
            cache.data[kind, key] = b'["?"]'
        elif damage == "refused" and kind == "opencl-program":
            cache.data[kind, key] = sealed(b"another driver's format" * 100)
        elif damage == "truncated" and kind == "opencl-program":
            cache.data[kind, key] = data[:40]
        elif damage == "flipped" and kind == "opencl-program":
            cache.data[kind, key] = data[:-100] + bytes(255 - b for b in data[-100:])
    second = open_device(device.session.spec)
    (y,) = second.load(plan_of(), cache).run([np.ones(1000, np.float32)])
    np.testing.assert_allclose(y, expected(np.ones(1000, np.float32)), rtol=2e-7)
    assert second.counters["kernels_built"] == 2
    assert second.counters["binaries_refused"] == (damage == "refused")
    third = open_device(device.session.spec)
    third.load(plan_of(), cache)
    assert third.counters["kernels_built"] == 0  # the entries were written anew


def test_build_error_names_the_kernel_and_the_line(device):
    broken = KernelSource(
        "broken_1",
        "__kernel void broken_1(__global float *y)\n{\n    y[0] = nonsense;\n}\n",
        "opencl",
    )
    plan = replace(plan_of(), kernels=(SCALE, broken, SQUARE))
    with pytest.raises(BuildError) as caught:
        device.load(plan)
    text = str(caught.value)
    assert "'broken_1'" in text and "nonsense" in text and ">   3 |     y[0] = nonsense;" in text


def test_kernels_with_macros_of_their_own_are_built_apart(device):
    def source(name: str, value: int) -> KernelSource:
        return KernelSource(
            name,
            f"#define VALUE {value}\n__kernel void {name}(__global float *y) {{ y[0] = VALUE; }}",
            "opencl",
        )

    buffers = (BufferSpec("a", "f32", (1,), 4, "output"), BufferSpec("b", "f32", (1,), 4, "output"))
    plan = Plan(
        (),
        (TensorSpec("a", "f32", (1,), 0), TensorSpec("b", "f32", (1,), 1)),
        (source("one_1", 1), source("two_1", 2)),
        (Step("one", "one_1", (0,), (), (1,), (1,)), Step("two", "two_1", (1,), (), (1,), (1,))),
        buffers,
        (),
    )
    a, b = device.load(plan).run([])
    assert (a[0], b[0]) == (1, 2)


def test_memory_is_checked_before_it_is_allocated(device):
    huge = 1 << 50
    plan = plan_of()
    with pytest.raises(OutOfMemoryError, match="the model needs"):
        device.load(replace(plan, slots=(huge,)))
    largest = device.target.max_allocation + 4
    if largest < device.target.global_memory - (1 << 20):
        with pytest.raises(OutOfMemoryError, match="temporary memory 0 needs"):
            device.load(replace(plan, slots=(largest,)))


def test_wrong_inputs_and_arguments(device):
    executable = device.load(plan_of())
    with pytest.raises(InputError, match="input 'x': got float64"):
        executable.run([np.ones(1000)])
    with pytest.raises(InputError, match="got 0 inputs, wanted 1: x"):
        executable.run([])
    plan = plan_of()
    with pytest.raises(DeviceError, match="takes 4 arguments, the plan gives 3"):
        device.load(replace(plan, steps=(replace(plan.steps[0], params=()), plan.steps[1])))
    with pytest.raises(DeviceError, match="in another language"):
        device.load(replace(plan, kernels=(replace(SCALE, language="jitcl"), SQUARE)))


def test_target_holds_what_was_probed(device):
    target = device.target
    assert target.kind == "opencl" and target.compute_units >= 1
    assert target.fp16_storage and target.fp64
    if "PoCL" in target.driver:
        assert not target.fp16_arithmetic
    if target.vendor.startswith("Intel"):
        assert target.fp16_arithmetic and target.multiply_add == "fma"
    if target.device_type == "cpu":
        assert not target.local_is_real and target.vector_width >= 4


def test_quotients_are_rounded_correctly(device):
    """Else a tie of a quantisation falls on the wrong side."""
    exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    if device.target.device_type == "gpu" and not device.session.handle.single_fp_config & exact:
        pytest.skip("the driver says that it has no correct quotients")
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0.1, 9, (2, 10_000)).astype(np.float32)
    graph = jitcl.parse("graph @g(%a: f32[10000], %b: f32[10000]) { %y = div(%a, %b) return %y }")
    with jitcl.compile(graph, device=device) as model:
        assert np.array_equal(model.run({"a": x, "b": y})["y"], x / y)


def test_widest_vectors_of_the_target_build(device):
    """`max_vector_width` is a promise: PoCL 3.0 aborts the process on wider ones."""
    n = device.target.max_vector_width
    source = KernelSource(
        "wide_1",
        f"""
        __kernel void wide_1(__global const float *x, __global float *y)
        {{ float{n} a = vload{n}(0, x); vstore{n}(fma(a, a, exp(a) * a), 0, y); }}""",
        "opencl",
    )
    buffers = (
        BufferSpec("x", "f32", (n,), 4 * n, "input"),
        BufferSpec("y", "f32", (n,), 4 * n, "output"),
    )
    plan = Plan(
        (TensorSpec("x", "f32", (n,), 0),),
        (TensorSpec("y", "f32", (n,), 1),),
        (source,),
        (Step("wide", "wide_1", (0, 1), (), (1,), (1,)),),
        buffers,
        (),
    )
    x = np.linspace(-2, 2, n, dtype=np.float32)
    (y,) = device.load(plan).run([x])
    np.testing.assert_allclose(y, x * x + np.exp(x) * x, rtol=2e-6, atol=1e-6)


# ---- selection


def test_select_by_index_and_name():
    for found in DEVICES:
        assert open_device(found.spec).session.found is found


@needs("opencl:pocl")
def test_select_by_part_of_a_name():
    pocl = open_device("opencl:pocl").session.found
    assert "PoCL" in pocl.platform_version
    assert open_device("opencl:PORTABLE:0").session.found is pocl


@pytest.mark.parametrize(
    "spec", ["opencl:nosuch", "opencl:99", "opencl:0:99", "opencl:", "opencl:0:0:0", "cuda"]
)
def test_unknown_devices_are_refused_with_the_list(spec):
    with pytest.raises(DeviceError) as caught:
        open_device(spec)
    assert spec in str(caught.value) and DEVICES[0].name in str(caught.value)


def test_ambiguous_name():
    if len({d.platform_index for d in DEVICES}) > 1:
        with pytest.raises(DeviceError, match="more than one platform"):
            open_device("opencl:open")


# ---- quirks and PoCL's CPU name


def test_quirks_are_rows_with_reasons():
    assert len({q.id for q in QUIRKS}) == len(QUIRKS)
    for quirk in QUIRKS:
        assert quirk.why and quirk.seen_on
        assert set(quirk.fields) <= set(Target.__dataclass_fields__)


@pytest.mark.parametrize("cpu, width", [("znver3", 8), ("generic", 8), ("skylake-avx512", 16)])
def test_pocl_row(cpu, width):
    target = Target("opencl", "cpu", isa=("avx512f",), multiply_add="fma")
    driver = Driver("Portable Computing Language", "3.0-rc2", "pthread-AMD EPYC", cpu)
    place = target
    for quirk in applying(driver, target):
        place = quirk.apply(place)
    assert place.max_vector_width == width
    for other, on in ((replace(driver, version="5.0"), target),
                      (replace(driver, platform="NVIDIA CUDA"), target),
                      (driver, replace(target, isa=("avx2",)))):
        assert "pocl-3.0-library-cpu-mismatch" not in [q.id for q in applying(other, on)]


def test_versions_compare_by_number():
    assert version_key("3.0-rc2") < version_key("3.1") < version_key("3.10") < version_key("4")
    assert version_key("unknown") == ()


AVX512 = frozenset(
    ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "sse4_2", "popcnt")
)
AVX2 = frozenset(("avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm", "sse4_2", "popcnt"))


@pytest.mark.parametrize(
    "current, features, wanted",
    [
        ("generic", AVX512, "skylake-avx512"),
        ("znver3", AVX512, "skylake-avx512"),
        ("generic", AVX2, "haswell"),
        ("znver2", AVX2, "haswell"),
        ("skylake", AVX2, "skylake"),
        ("icelake-server", AVX512, "icelake-server"),
        ("icelake-client", AVX512, "skylake-avx512"),
        ("generic", frozenset(), "x86-64"),
    ],
)
def test_cpu_that_pocl_compiles_for(current, features, wanted):
    assert pocl.wanted_cpu(current, features) == wanted


# ---- processes and the environment


def run_python(code: str, cache: Path, **environment: str) -> dict:
    """What a fresh process prints as JSON on its last line."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OCL_ICD", "POCL_", "JITCL_"))}
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**kept, "JITCL_CACHE_DIR": str(cache), "PYTHONPATH": path, **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PLATFORMS = """
    import json, os
    from jitcl.devices.opencl import list_devices
    names = [d.platform for d in list_devices()]
    print(json.dumps({"names": names, "vendors": os.environ.get("OCL_ICD_VENDORS"),
                      "scratch": os.environ["POCL_CACHE_DIR"]}))
"""


@needs("opencl:intel")
def test_intel_runtime_is_found_without_any_variable(tmp_path):
    got = run_python(PLATFORMS, tmp_path)
    assert any("Intel" in n for n in got["names"]) and any("Portable" in n for n in got["names"])
    assert Path(got["vendors"]).parent == tmp_path
    assert Path(got["scratch"]).is_relative_to(tmp_path) and not Path(got["scratch"]).exists()


def test_a_users_setting_is_respected(tmp_path):
    (tmp_path / "vendors").mkdir()
    got = run_python(PLATFORMS, tmp_path, OCL_ICD_VENDORS=str(tmp_path / "vendors"))
    assert got["vendors"] == str(tmp_path / "vendors")
    assert not any("Intel" in n for n in got["names"])


def test_a_child_process_is_not_bound_to_its_parents_folders(tmp_path):
    gone = {
        "OCL_ICD_VENDORS": str(tmp_path / "gone" / icd.OURS),
        "POCL_CACHE_DIR": str(tmp_path / "gone" / icd.SCRATCH / "1-x"),
    }
    got = run_python(PLATFORMS, tmp_path / "new", **gone)
    assert any("Portable" in n for n in got["names"])
    assert Path(got["scratch"]).is_relative_to(tmp_path / "new")


def test_a_cache_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    got = run_python(PLATFORMS, tmp_path / "file" / "below")
    assert any("Portable" in n for n in got["names"])
    assert not Path(got["scratch"]).exists()


def test_importing_makes_no_opencl_call(tmp_path):
    got = run_python(
        """
        import json, sys
        import jitcl.devices.opencl
        print(json.dumps({"loaded": "pyopencl" in sys.modules}))
    """,
        tmp_path,
    )
    assert got == {"loaded": False}
