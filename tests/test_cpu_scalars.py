"""The scalar operations of generated CPU kernels: values, limits and casts, against NumPy."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from jitcl import config
from jitcl.codegen.plan import KernelSource
from jitcl.devices.cpu import host
from jitcl.devices.cpu.executor import _NATIVE
from jitcl.devices.cpu.host import probe_target
from jitcl.devices.cpu.objects import compile_kernels, load_kernels
from jitcl.dtypes import to_numpy

HEAD = "from jitcl.devices.cpu.vector import *\n"


def elementwise(entry, expression, inputs, output):
    """Text of a kernel `output[i] = expression(a, b)` over flat buffers."""
    names = "ab"[: len(inputs)]
    lines = [
        f"    {n} = ptr(args, {k}, {dtype!r})" for k, (n, dtype) in enumerate(zip(names, inputs))
    ]
    loads = [f"        v{n} = load({n}, i)" for n in names]
    call = expression.replace("A", "va").replace("B", "vb")
    return (
        HEAD
        + "\n".join(
            [
                f"def {entry}(args, tid, nthreads):",
                *lines,
                f"    y = ptr(args, {len(inputs)}, {output!r})",
                f"    n = param(args, {len(inputs) + 1})",
                "    for i in range(share(n, tid, nthreads), share(n, tid + 1, nthreads)):",
                *loads,
                f"        store(y, i, {call})",
            ]
        )
        + "\n"
    )


CASES: dict[str, tuple[str, tuple[str, ...], str]] = {}


def case(name, expression, inputs, output=None):
    CASES[name] = (expression, inputs, output or inputs[-1])
    return name


for _f in ("exp", "log", "tanh", "erf", "sigmoid", "relu", "sign", "sin"):
    case(_f, f"{_f}(A)", ("f32",))
for _f in ("exp", "tanh", "erf"):
    case(f"{_f}_f64", f"{_f}(A)", ("f64",))
for _f in ("pow_", "max_", "min_", "mod", "fmod"):
    case(_f, f"{_f}(A, B)", ("f32", "f32"))
for _t in ("i8", "i32", "u16", "i64"):
    for _f in ("div", "floordiv", "mod", "fmod", "add", "mul"):
        case(f"{_f}_{_t}", f"{_f}(A, B)", (_t, _t))
case("shl", "shl(A, B)", ("i32", "i32"))
case("shr", "shr(A, B)", ("i32", "i32"))
for _t in ("i8", "u8", "i16", "i32", "u32", "i64", "u64", "f16", "bf16", "f64", "bool"):
    case(f"f32_to_{_t}", f"to_{_t}(A)", ("f32",), _t)
    case(f"{_t}_to_f32", "to_f32(A)", (_t,), "f32")
case("round", "round_(A)", ("f32",))
case("select", "select(lt(A, B), A, B)", ("f32", "f32"))


@pytest.fixture(scope="module")
def functions():
    """All element kernels of this file, built at once by build processes."""
    blobs = compile_kernels(
        [KernelSource(f"t_{n}", elementwise(f"t_{n}", *spec), "numba") for n, spec in CASES.items()]
    )
    return load_kernels(blobs)


def apply(functions, name, *arrays, nthreads=1):
    _, inputs, output = CASES[name]
    arrays = [np.ascontiguousarray(a, to_numpy(t)) for a, t in zip(arrays, inputs)]
    y = np.empty(arrays[0].shape, to_numpy(output))
    table = np.array([*(a.ctypes.data for a in arrays), y.ctypes.data, y.size], np.int64)
    for tid in range(nthreads):
        _NATIVE(functions[f"t_{name}"])(table.ctypes.data, tid, nthreads)
    return y


def ulps(got, want):
    """Largest distance to a float64 reference in units of the last place of f32."""
    want = np.asarray(want, np.float64)
    finite = np.isfinite(want) & (np.abs(want) < 3e38)
    spacing = np.spacing(np.maximum(np.abs(want[finite]), 1e-45).astype(np.float32)).astype(
        np.float64
    )
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    return float(np.max(np.abs(got[finite].astype(np.float64) - want[finite]) / spacing))


def floats(low, high, n=200_003):
    rng = np.random.default_rng(0)
    return np.concatenate([np.linspace(low, high, n), rng.normal(size=1000) * 1e-6]).astype(
        np.float32
    )


EDGES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.4e38, -3.4e38, 1.0, -1.0], np.float32
)
erf64 = np.vectorize(math.erf, otypes=[np.float64])


ELEMENTARY = {
    "exp": (np.exp, floats(-104, 89), 1.0),
    "log": (np.log, np.exp(floats(-100, 88).astype(np.float64)).astype(np.float32), 1.0),
    "tanh": (np.tanh, floats(-11, 11), 2.0),
    "erf": (erf64, floats(-5, 5), 1.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), floats(-100, 100), 2.5),
}


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_are_within_their_stated_error(functions, name):
    reference, x, bound = ELEMENTARY[name]
    assert ulps(apply(functions, name, x), reference(x.astype(np.float64))) <= bound


@pytest.mark.parametrize(
    "name, reference",
    [
        ("exp", np.exp),
        ("log", np.log),
        ("tanh", np.tanh),
        ("erf", erf64),
        ("sign", np.sign),
        ("relu", lambda x: np.maximum(x, 0)),
    ],
)
def test_limits_and_nan(functions, name, reference):
    with np.errstate(all="ignore"):
        want = reference(EDGES.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(apply(functions, name, EDGES), want, rtol=1e-6)


def in_vectors(entry, name, lanes):
    """Text of `y[i] = name(a[i])`, `lanes` elements at a time, of a whole number of vectors."""
    return HEAD + f"""def {entry}(args, tid, nthreads):
    a = ptr(args, 0, 'f32')
    y = ptr(args, 1, 'f32')
    for i in range(param(args, 2) // {lanes}):
        store(y, {lanes} * i, {name}(vload(a, {lanes} * i, {lanes})))
"""


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_vectors_are_within_the_same_errors(lanes):
    """AVX-512 takes exp and erf from tables: everywhere, and beyond every limit."""
    texts = {n: f"t_{n}_{lanes}" for n in ELEMENTARY}
    made = load_kernels(compile_kernels(
        [KernelSource(e, in_vectors(e, n, lanes), "numba") for n, e in texts.items()]))
    far = np.geomspace(4, 3.4e38, 5001)
    for name, (reference, x, bound) in ELEMENTARY.items():
        x = np.concatenate([x, EDGES, far, -far]).astype(np.float32)
        x = np.resize(x, -(-len(x) // lanes) * lanes)
        y = np.full_like(x, -7)
        table = np.array([x.ctypes.data, y.ctypes.data, x.size], np.int64)
        _NATIVE(made[texts[name]])(table.ctypes.data, 0, 1)
        with np.errstate(all="ignore"):
            want = reference(x.astype(np.float64))
        assert ulps(y, want) <= bound, name
        endless = np.abs(want) > 3.41e38
        np.testing.assert_array_equal(y[endless], np.sign(want[endless]) * np.inf, err_msg=name)


def over_vectors(entry, lines, lanes, into=""):
    """Text that runs `lines`, from the vector `x` to `r`, over all of a; r goes to y, as a vector
    or one number for each."""
    return HEAD + f"""def {entry}(args, tid, nthreads):
    a = ptr(args, 0, 'f32')
    y = ptr(args, 1, 'f32')
    for i in range(param(args, 2) // {lanes}):
        x = vload(a, {lanes} * i, {lanes})
        {lines}
        store(y, {into or f"{lanes} * i"}, r)
"""


def ran(text, entry, x, y):
    """y, after the kernel."""
    made = load_kernels(compile_kernels([KernelSource(entry, text, "numba")]))
    _NATIVE(made[entry])(np.array([x.ctypes.data, y.ctypes.data, x.size], np.int64).ctypes.data,
                         0, 1)
    return y


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("base", [0.0, 3.7, -250.0, 1000.0])
def test_powers_less_a_base(lanes, base):
    x = floats(base - 80, base + 80)[:200_000]
    entry = f"t_less_{lanes}_{int(abs(base))}"
    lines = f"r = exp_less(x, splat(f32({base}), {lanes}))"
    got = ran(over_vectors(entry, lines, lanes), entry, x, np.zeros_like(x)).astype(np.float64)
    less = (x - np.float32(base)).astype(np.float64)
    ratio = got / np.exp(less)
    assert (np.abs(ratio - 1) <= 1.3e-7 + 7.5e-8 * np.abs(less)).all()


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("base", [-3.4028235e38, 3.4028235e38, -1e9, 65504.0, -65504.0, 2e9])
def test_powers_less_a_huge_base(lanes, base):
    """Of the base itself, its neighbours on either side, and of what lies far away."""
    entry = f"t_less_huge_{lanes}_{int(base)}".replace("-", "m")
    lines = f"r = exp_less(x, splat(f32({base}), {lanes}))"
    base = np.float32(base)
    x = np.resize(np.array([base, np.nextafter(base, np.float32(0)), base * np.float32(0.99),
                            -np.inf, 0, base], "f4"), 16)
    got = ran(over_vectors(entry, lines, lanes), entry, x, np.full_like(x, -7))
    with np.errstate(over="ignore"):
        want = np.exp((x - base).astype(np.float64)).astype("f4")
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_powers_less_a_base_have_their_limits(lanes):
    x = np.resize(np.array([-np.inf, np.inf, np.nan, -1e30, 1e30, 7, -3e38, -200], "f4"), 16)
    entry = f"t_less_limits_{lanes}"
    lines = f"r = exp_less(x, splat(f32(7), {lanes}))"
    got = ran(over_vectors(entry, lines, lanes), entry, x, np.full_like(x, -7))
    want = np.resize(np.array([0, np.inf, np.nan, 0, np.inf, 1, 0, 0], "f4"), 16)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_largest_and_the_smallest_lane(lanes):
    """Wherever they are; NaN wherever one is."""
    rows = [np.roll(np.arange(lanes) - lanes / 2, k) for k in range(lanes)]
    rows += [np.where(np.arange(lanes) == k, np.nan, 1) for k in range(lanes)]
    rows += [np.full(lanes, v) for v in (np.inf, -np.inf)]
    x = np.array(rows, np.float32)
    for name, want in ("max", x.max(1)), ("min", x.min(1)):
        entry = f"t_lanes_{name}_{lanes}"
        text = over_vectors(entry, f"r = lanes_{name}(x)", lanes, "i")
        got = ran(text, entry, x, np.full(len(x), -7, np.float32))
        np.testing.assert_array_equal(got, want)


def test_pow_matches_c99(functions):
    rng = np.random.default_rng(1)
    x, y = (
        np.exp(rng.uniform(-20, 20, 50_000)).astype(np.float32),
        rng.uniform(-4, 4, 50_000).astype(np.float32),
    )
    assert (
        ulps(apply(functions, "pow_", x, y), np.power(x.astype(np.float64), y.astype(np.float64)))
        <= 1.0
    )
    bases, exponents = (
        np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-40], np.float32),
        np.array([0, -0.0, 1, -1, 2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 2.5], np.float32),
    )
    a, b = (g.ravel() for g in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    got = apply(functions, "pow_", a, b)
    np.testing.assert_allclose(got, want, rtol=3e-7)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def test_min_and_max_propagate_nan(functions):
    a, b = (g.ravel() for g in np.meshgrid(EDGES, EDGES))
    np.testing.assert_array_equal(apply(functions, "max_", a, b), np.maximum(a, b))
    np.testing.assert_array_equal(apply(functions, "min_", a, b), np.minimum(a, b))


def test_float_remainders(functions):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 1000)).astype(np.float32) * 10
    np.testing.assert_allclose(apply(functions, "mod", a, b), np.mod(a, b), rtol=1e-5)
    np.testing.assert_array_equal(apply(functions, "fmod", a, b), np.fmod(a, b))


@pytest.mark.parametrize("dtype", ["i8", "i32", "u16", "i64"])
def test_integer_arithmetic_wraps_and_never_traps(functions, dtype):
    info = np.iinfo(to_numpy(dtype))
    rng = np.random.default_rng(3)
    special = np.array(
        [info.min, info.max, 0, 1, 2, 3, 7, info.max - 1] + ([-1, -2, -7] if info.min else [])
    )
    a, b = (g.ravel() for g in np.meshgrid(special, special))
    a = np.concatenate([a, rng.integers(info.min, info.max, 500, to_numpy(dtype))]).astype(
        to_numpy(dtype)
    )
    b = np.concatenate([b, rng.integers(info.min, info.max, 500, to_numpy(dtype))]).astype(
        to_numpy(dtype)
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply(functions, f"add_{dtype}", a, b), a + b)
        np.testing.assert_array_equal(apply(functions, f"mul_{dtype}", a, b), a * b)
        fine = (b != 0) & ~((a == info.min) & (b.astype(np.int64) == -1))
        np.testing.assert_array_equal(
            apply(functions, f"floordiv_{dtype}", a, b)[fine], (a[fine] // b[fine])
        )
        np.testing.assert_array_equal(
            apply(functions, f"mod_{dtype}", a, b)[fine], np.mod(a[fine], b[fine])
        )
        np.testing.assert_array_equal(
            apply(functions, f"fmod_{dtype}", a, b)[fine], np.fmod(a[fine], b[fine])
        )
        quotient = apply(functions, f"div_{dtype}", a, b)
        for p, q, r in zip(
            a[fine][:200].tolist(), b[fine][:200].tolist(), quotient[fine][:200].tolist()
        ):
            assert r == abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)
        assert (quotient[b == 0] == 0).all()


def test_shifts_beyond_the_width(functions):
    a, b = np.array([1, -8, -8, 5, 5], np.int32), np.array([31, 1, 40, 32, 2], np.int32)
    assert apply(functions, "shl", a, b).tolist() == [-(2**31), -16, 0, 0, 20]
    assert apply(functions, "shr", a, b).tolist() == [0, -4, -1, 0, 1]


@pytest.mark.parametrize(
    "dtype", ["i8", "u8", "i16", "i32", "u32", "i64", "u64", "f16", "bf16", "f64", "bool"]
)
def test_casts_are_numpys(functions, dtype):
    x = np.concatenate(
        [np.linspace(-100, 100, 2001), [0.0, -0.0, 1e-7, 65504, 65520, 1e-8, 3.1e-8]]
    )
    if dtype not in ("f16", "bf16", "f64", "bool"):
        info = np.iinfo(to_numpy(dtype))
        x = x[(x > info.min - 1) & (x < info.max)]
    else:
        x = np.concatenate([x, [np.inf, -np.inf, np.nan, 1e38]])
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(to_numpy(dtype))
    got = apply(functions, f"f32_to_{dtype}", x)
    if dtype == "bf16":
        np.testing.assert_array_equal(got.view(np.uint16)[x == x], want.view(np.uint16)[x == x])
        assert np.isnan(got[x != x].astype(np.float32)).all()
    else:
        np.testing.assert_array_equal(got, want)
    back = apply(functions, f"{dtype}_to_f32", want)
    np.testing.assert_array_equal(back, want.astype(np.float32))


def test_casts_out_of_range_are_defined(functions):
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 300.0, -1.0], np.float32)
    low32, low64 = -(2**31), -(2**63)
    assert apply(functions, "f32_to_i32", x).tolist() == [
        low32,
        low32,
        low32,
        low32,
        low32,
        300,
        -1,
    ]
    assert apply(functions, "f32_to_i64", x).tolist() == [
        low64,
        low64,
        low64,
        3000000000,
        -3000000000,
        300,
        -1,
    ]
    assert apply(functions, "f32_to_u8", x).tolist() == [0, 0, 0, 0, 0, 44, 255]


def test_results_do_not_depend_on_the_thread_count(functions):
    x = floats(-20, 20, 10_007)
    one = apply(functions, "exp", x)
    for n in (2, 3, 7):
        assert one.tobytes() == apply(functions, "exp", x, nthreads=n).tobytes()


# what works on several numbers at once, as assemblers write it: pow on two doubles
VECTORS = r"[yz]mm\d|\b(mul|add|max)p[sd]\b|v\d+\.(4s|2d)\b"


def test_loops_over_elementary_functions_vectorise():
    code = (
        "import re\nfrom jitcl.devices.cpu.compiler import assembly\n"
        "from tests.test_cpu_scalars import *\n"
        "for n in ('exp', 'tanh', 'erf', 'sigmoid', 'log', 'pow_', 'relu'):\n"
        "    assert re.search(VECTORS, assembly('k', elementwise('k', *CASES[n]))), n\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# vcvtps2phx (avx512fp16) makes 16 halves in a ymm register of 16 floats in memory
WIDER = {"avx512f": ("zmm", "ymm16", "vcvtps2phx"),
         "avx": ("zmm", "ymm", "vfmadd", "vcvtph2ps", "vmulps")}


@pytest.mark.parametrize("lanes", [8, 4])
def test_code_for_narrow_vectors_uses_no_wider_instructions(lanes):
    """As for a CPU that has none: neither in explicit vectors nor where LLVM makes them."""
    absent = host.absent_feature(lanes)
    if not absent:
        pytest.skip(f"this CPU has no vectors of more than {lanes} lanes")
    code = (
        "from jitcl.devices.cpu.compiler import assembly\nfrom tests.test_cpu_scalars import *\n"
        "for n in ('exp', 'tanh', 'f16_to_f32', 'f32_to_f16'):\n"
        "    text = elementwise('k', *CASES[n])\n"
        f"    assert not any(r in assembly('k', text, {absent!r}) for r in WIDER[{absent!r}]), n\n"
        f"    assert any(r in assembly('k', text) for r in WIDER[{absent!r}]), n\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_target_of_narrow_vectors_lacks_what_wider_ones_need():
    with config.override(cpu_width=4):
        narrow = probe_target()
    if not host.absent_feature(4):
        pytest.skip("this CPU has no wider vectors")
    assert not {"avx", "avx2", "avx512f", "fma", "f16c"} & set(narrow.isa)
    assert narrow.registers == 16 and narrow.multiply_add == "plain"
    with config.override(cpu_width=8):
        assert "avx512f" not in probe_target().isa and probe_target().registers == 16


def test_halves_convert_without_the_cpus_help():
    code = """
import numpy as np
import jitcl.devices.cpu.convert as convert
convert.soft_half = lambda: True
from jitcl.devices.cpu.compiler import compile_kernel
from jitcl.devices.cpu.executor import _NATIVE
from jitcl.devices.cpu.objects import _MAGIC, load_kernels
from tests.test_cpu_scalars import elementwise

def convert(x, source, target, out):
    text = elementwise("k", "A", (source,), target)
    kernels = load_kernels({"k": _MAGIC + b"k\\n" + compile_kernel("k", text)})
    y = np.empty(x.shape, out)
    table = np.array([x.ctypes.data, y.ctypes.data, x.size], np.int64)
    _NATIVE(kernels["k"])(table.ctypes.data, 0, 1)
    return y

halves = np.arange(65536, dtype=np.uint16).view(np.float16)
floats = halves.astype(np.float32)
np.testing.assert_array_equal(convert(halves, "f16", "f32", np.float32), floats)
with np.errstate(all="ignore"):
    x = np.concatenate([floats, floats * np.float32(1 + 2**-12), floats * np.float32(1 - 2**-13),
                        np.random.default_rng(0).normal(size=9999).astype("f4") * 1e-6])
    np.testing.assert_array_equal(convert(x, "f32", "f16", np.float16), x.astype(np.float16))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
