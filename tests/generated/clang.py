"""OpenCL C through clang's front end: an independent reader, as strict as a driver may be."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from itertools import groupby

from jitcl.codegen.plan import KernelSource
from tests.lacking import unless

CLANG = shutil.which("clang")
needed = unless(CLANG, "clang is not installed")
BASE = ("cl_khr_byte_addressable_store", "cl_khr_global_int32_base_atomics",
        "cl_khr_local_int32_base_atomics")
FLAGS = ("-x", "cl", "-cl-std=CL1.2", "-target", "spir64", "-fsyntax-only", "-Wall", "-Wextra",
         "-Werror", "-ferror-limit=0")

STORED = [f"float{n}" for n in ("", 2, 3, 4, 8, 16)] + ["double"]


def half_storage(fp64: bool) -> str:
    """Declarations of what OpenCL C 1.2 has without cl_khr_fp16 (6.12.7), and clang's own built-in
    table (seen in 14) only with it.
    """
    lines = []
    for space in ("__global", "__local", "__private"):
        for type in STORED if fp64 else STORED[:-1]:
            n = type.removeprefix("float").removeprefix("double")
            if type != "double":
                lines.append(f"{type} __attribute__((overloadable, pure)) "
                             f"vload_half{n}(size_t at, const {space} half *from);")
            lines += [f"void __attribute__((overloadable)) "
                      f"vstore_half{n}{mode}({type} value, size_t at, {space} half *to);"
                      for mode in ("", "_rte", "_rtz", "_rtp", "_rtn")]
    return "\n".join(lines) + "\n#line 1\n"


def diagnose(source: str, *, fp16: bool = False, fp64: bool = False,
             extra: tuple[str, ...] = ()) -> str:
    """What clang has against a source for a device with these extensions; '' if nothing."""
    assert CLANG is not None
    extensions = [*BASE, *["cl_khr_fp16"] * fp16, *["cl_khr_fp64"] * fp64]
    allowed = "-Xclang", "-cl-ext=-all," + ",".join(f"+{e}" for e in extensions)
    # an implicit conversion to half is a fallback that forgot to be explicit
    strict = ("-Werror=implicit-float-conversion",) if fp16 else ()
    done = subprocess.run([CLANG, *FLAGS, *extra, *strict, *allowed, "-"], text=True,
                          input=source if fp16 else half_storage(fp64) + source,
                          capture_output=True, timeout=120)
    assert done.returncode == 0 or done.stderr, f"clang ended with {done.returncode}"
    return done.stderr if done.returncode else ""


def objections(kernels: Iterable[KernelSource], *, fp16: bool = False) -> str:
    """Clang's diagnostics on many kernels, in one run for those of equal options; double
    arithmetic is there only for the kernels that use it."""

    def kind(k: KernelSource) -> tuple[tuple[str, ...], bool, bool, bool]:
        return k.options, "cl_khr_fp64" in k.body, own_macros(k.body), bool(k.template)

    found = []
    for (_, fp64, alone, template), group in groupby(sorted(kernels, key=kind), kind):
        bodies = [f"// {k.entry}\n{k.body}" for k in group]
        for source in bodies if alone else ["\n".join(bodies)]:
            # a template's variants take the same sizes and indices, needed or not
            extra = ("-Wno-unused-parameter",) if template else ()
            found.append(diagnose(source, fp16=fp16, fp64=fp64, extra=extra))
    return "".join(found)


def own_macros(body: str) -> bool:
    """Whether a kernel defines macros that another might define otherwise."""
    guards = set(re.findall(r"#ifndef (\w+)\n#define \1\b", body))
    return bool(set(re.findall(r"#define (\w+)", body)) - guards)
