"""Kernel texts -> LLVM: each statement does what Python does, and what a kernel can't say is
refused with its line."""

from __future__ import annotations

import ast
import ctypes
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cpu_scalars import HEAD

from jitcl.codegen.plan import KernelSource
from jitcl.devices.cpu import host, objects
from jitcl.devices.cpu.objects import compile_kernels, load_kernels
from jitcl.errors import BuildError

ROOM = 64
OPENING = "    y = ptr(args, 0, 'i64')\n    n = param(args, 1)\n"
BODIES = {                      # of n = 7; what they store at 0, 1, ...
    "arithmetic": """
store(y, 0, n + 3 * n - 1)
store(y, 1, -n // 2)
store(y, 2, -n % 4)
store(y, 3, n << 2 | n & 5 ^ 1)
store(y, 4, ~n >> 1)
store(y, 5, +n)""",
    "ranges": """
k = 0
for i in range(n):
    store(y, k, i)
    k += 1
for i in range(2, n):
    store(y, k, i)
    k += 1
for i in range(1, n, 3):
    store(y, k, i)
    k += 1
for i in range(n, 0, -2):
    store(y, k, i)
    k += 1
for step in range(-3, 4, 6):
    for i in range(n * step, -n * step, -step):
        store(y, k, i)
        k += 1
for i in range(n, n):
    store(y, 60, i)
for i in range(n, 0):
    store(y, 61, i)
for i in range(0, n, -1):
    store(y, 62, i)
store(y, 63, k)""",
    "what a loop's body does to its variable and its bound is not asked": """
stop = n
k = 0
for i in range(stop):
    stop = 2
    store(y, k, i)
    i = i + 100
    store(y, k + 8, i)
    k += 1
store(y, 40, i)
store(y, 41, stop)""",
    "while, break, continue, return": """
k = 0
while True:
    k += 1
    if k % 2 == 0:
        continue
    if k > n:
        break
    store(y, k, k)
while k < 20:
    k = k + n
store(y, 30, k)
for i in range(10):
    if i == 3:
        break
    for j in range(10):
        if j == i:
            continue
        if j > 4:
            break
        store(y, 40 + i, j)
if k > n:
    store(y, 50, 1)
    return
store(y, 51, 1)""",
    "conditions that are settled evaluate nothing more": """
k = 0
for i in range(n):
    if i > 2 and div(100, i - 2) > 30 or i == 0:
        k += 1
    if not (i == 1 or i == 2 or i == 5):
        k += 100
store(y, 0, k)
store(y, 1, 1 if 2 < n < 8 else 0)
store(y, 2, 1 if 2 < n < 7 else 0)
store(y, 3, n if n < 3 else 5 if n > 100 else 2 * n)
if True:
    store(y, 4, 1)
else:
    store(y, 4, 2)
if n > 100:
    store(y, 5, 1)
elif n > 5:
    store(y, 5, 2)
else:
    store(y, 5, 3)""",
    "tuples": """
pair = (n, (n + 1, 2))
a, (b, c) = pair
store(y, 0, a + b * c)
for i in range(3):
    pair = (i, (n - i, 4))
    a, (b, c) = pair
    store(y, 1 + i, a + b * c)
a, b = b, a
store(y, 5, a)
store(y, 6, b)""",
    "a variable lives on behind the block that gave it its value": """
for i in range(n):
    last = i * i
    if i == 4:
        early = last + 1
store(y, 0, last)
store(y, 1, early)
store(y, 2, i)
if n > 3:
    other = n
store(y, 3, other)""",
    "one name of two types, one after the other": """
for i in range(3):
    t = i + 1
    store(y, i, t)
for i in range(3):
    t = i < 2
    store(y, 4 + i, 5 if t else 6)
t = i
store(y, 8, t)""",
    "constants, comments and docstrings": """
'a text that stands for itself'
store(y, 0, 3)              # of a line
pass
store(y, 1, to_i64(inf > 1e30))
store(y, 2, -3)""",
}


class Returned(Exception):
    pass


def text_of(body: str) -> str:
    lines = [f"    {line}\n" for line in body.strip("\n").splitlines()]
    return HEAD + "from math import inf\n\ndef k(args, tid, nthreads):\n" + OPENING + "".join(lines)


def in_python(body: str, n: int) -> list[int]:
    """What the text stores where Python itself runs it."""
    found = [-1] * ROOM
    names = {
        "ptr": lambda args, k, dtype: found, "param": lambda args, k: n, "to_i64": int,
        "store": lambda buffer, i, value: buffer.__setitem__(i, value),
        "div": lambda a, b: a // b, "inf": float("inf")}
    tree = ast.parse(text_of(body))
    tree.body = [s for s in tree.body if isinstance(s, ast.FunctionDef)]
    exec(compile(tree, "<kernel>", "exec"), names)
    names["k"](None, 0, 1)
    return found


@pytest.fixture(scope="module")
def built() -> Any:
    """The kernels' addresses: k0, k1, ..."""
    return load_kernels(compile_kernels([
        KernelSource(f"k{j}", text_of(body).replace("def k(", f"def k{j}("), "numba")
        for j, body in enumerate(BODIES.values())]))


@pytest.mark.parametrize("name", BODIES)
def test_a_kernel_does_what_python_does(name: str, built: Any) -> None:
    y = np.full(ROOM, -1, np.int64)
    table = np.array([y.ctypes.data, 7], np.int64)
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(built[f"k{[*BODIES].index(name)}"])
    kernel(table.ctypes.data, 0, 1)
    assert y.tolist() == in_python(BODIES[name], 7)


REFUSED = [
    ("store(y, 0, absent)", "line 7: `absent` is not given a value before"),
    ("store(y, 0, n)\n[n]", "line 8: a kernel can't say `[n]`"),
    ("for i in (1, 2):\n    pass", "line 7: a loop is over `range(...)`, of one variable"),
    ("for i in range(n):\n    pass\nelse:\n    pass", "line 7: a kernel can't say `for i in"),
    ("return n", "line 7: a kernel can't say `return n`"),
    ("a, b = (n, n, n)", "line 7: `(a, b)` can't be given"),
    ("t = n\nif n > 2:\n    t = (n, n)", "line 9: `t` is int64, and is given"),
    ("t = 0\nfor i in range(n):\n    t = f32(0.5)", "line 9: `t` is int64, and is given float32"),
    ("if n > 2:\n    t = n\nelse:\n    t = (n, n)\nstore(y, 0, t)",
     "line 11: `t` may be of one type or another here"),
    ("if n > 2:\n    t = n\n    t = f32(n)\n    t = (n, n)\nstore(y, 0, n)\nfor i in range(n):\n"
     "    a, b = t", "line 13: `t` may be of one type or another here"),
    ("with n:\n    pass", "line 7: a kernel can't say `with n:`"),
    ("store(y, 0, n.real)", "line 7: a kernel can't say `n.real`"),
    ("break", "line 7: a kernel can't say `break`"),
    ("store(y, 0)", "line 7: "),
    ("pass\n\ndef other(args, tid, nthreads):\n    pass", "line 9: a kernel can't say `def other"),
]


@pytest.mark.parametrize(("body", "says"), REFUSED)
def test_what_a_kernel_cannot_say_is_refused_with_its_line(body: str, says: str) -> None:
    with pytest.raises(BuildError) as error:
        compile_kernels([KernelSource("k", text_of(body), "numba")])
    assert "kernel 'k': the CPU compiler rejected the generated text" in str(error.value)
    assert says in str(error.value)


def test_a_text_without_the_kernel() -> None:
    with pytest.raises(BuildError, match=r"no function other\(args, tid, nthreads\)"):
        compile_kernels([KernelSource("other", text_of("pass"), "numba")])


def test_objects_depend_on_every_module_that_gives_texts_their_meaning() -> None:
    """Those that the compiler imports, but for what only looks at the machine."""
    folder, found = Path(host.__file__).parent, {"compiler"}
    while True:
        texts = [(folder / f"{name}.py").read_text() for name in sorted(found)]
        imports = [n for text in texts for n in ast.walk(ast.parse(text))
                   if isinstance(n, ast.ImportFrom) and n.module]
        more = {n.module.rpartition(".")[2] for n in imports
                if n.module.startswith("jitcl.devices.cpu.")}
        more |= {a.name for n in imports if n.module == "jitcl.devices.cpu" for a in n.names}
        if more <= found:
            break
        found |= more
    assert found - {"host"} == set(host._LANGUAGE)


def test_what_emits_knows_the_machine() -> None:
    """A thread that spins says so to its core, each by its own instruction."""
    text = "from jitcl.devices.cpu.native import *\n\ndef k(args, tid, nthreads):\n    pause()\n"
    code = ("from jitcl.devices.cpu.compiler import assembly\n"
            f"print(assembly('k', {text!r}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    told = {"x86_64": "pause", "amd64": "pause", "aarch64": "yield", "arm64": "yield"}
    assert told[platform.machine().lower()] in done.stdout, done.stdout + done.stderr


LOOPS = {                       # whether LLVM may make vectors of one
    "store(y, 0, n)": False,
    "for i in range(n):\n    store(y, i, load(y, i) + 1)": True,
    "for i in range(n):\n    store(y, i * 4, vload(y, i * 4, 4))": False,
    "for i in range(n):\n    store(y, i, lanes_max(vload(y, i * 4, 4)))": False,
    "for i in range(n):\n    x = load(y, i)\n    for j in range(n):\n"
    "        store(y, j * 4, splat(x, 4))\n    store(y, i, x)": False,
    "x = vload(y, 0, 4)\nfor i in range(n):\n    for j in range(n):\n        store(y, j, i)\n"
    "    store(y, 0, x)": True,
    "i = 0\nwhile i < n:\n    i += 1": True,
}


def test_loops_of_numbers_are_told_from_loops_of_vectors() -> None:
    texts = {text_of(body): want for body, want in LOOPS.items()}
    code = ("from jitcl.devices.cpu import compiler\n"
            "compiler.load()\nfront_end = compiler._front_end()\n"
            f"for text, want in {texts!r}.items():\n"
            "    assert compiler._read('k', text, front_end)[2] == want, text\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("forks", [True, False])
def test_build_processes_with_and_without_forks(forks: bool, monkeypatch) -> None:
    monkeypatch.setattr(objects._Loaded, "forks", forks)
    monkeypatch.setattr(objects, "_workers", objects._Workers())
    monkeypatch.setattr(objects, "usable_cores", lambda: 3)
    pool = objects._workers
    try:
        blobs = compile_kernels([
            KernelSource(f"k{j}", text_of(f"store(y, 0, {j})").replace("def k(", f"def k{j}("),
                         "numba") for j in range(6)])
        assert len(blobs) == 6
        assert len({worker.loaded for worker in pool.processes}) == (1 if forks else 3)
    finally:
        pool.close()
    assert pool.processes == [] and pool.threads == 0 and pool.loaded is None
