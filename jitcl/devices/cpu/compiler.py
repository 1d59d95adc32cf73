"""Kernel text -> native object code: the front end, LLVM's optimiser, one symbol out.

Only build workers import this (it imports Numba). The object holds one external function

    void entry(int64 args, int64 tid, int64 nthreads)

and refers to nothing but the C library's math functions, so that any process can load it with
llvmlite alone.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

import llvmlite.binding as llvm
from numba.core import callconv, codegen

from jitcl.devices.cpu import host, vector  # noqa: F401  (registers the types that kernels use)
from jitcl.devices.cpu.front_end import TILES, FrontEnd
from jitcl.devices.cpu.numba_parts import Lowering, Typing
from jitcl.errors import BuildError
from jitcl.ir.scalar import SCALARS

#: what an object may leave undefined (the C math library, and memset/memcpy that LLVM puts in for
#: loops)
LIBC = frozenset(
    name + suffix
    for name in (*(s.name for s in SCALARS.values() if s.libm), "exp", "log", "tanh", "erf", "pow",
                 "fmod", "floor", "ceil", "rint", "trunc", "fma")
    for suffix in ("", "f")
) | {"memset", "memcpy", "memmove"}


class _Codegen(codegen.CPUCodegen):
    """A target machine for this host, without the feature that `host.without` names. On x86 the
    large code model: wherever the loader puts code, constants and libm, every relocation reaches
    (the loader aborts the process on one that does not)."""

    _library_class = codegen.CPUCodeLibrary

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        x86 = llvm.get_process_triple().startswith(("x86", "i686"))
        options.update(
            cpu=self._get_host_cpu_name(), features=self._tm_features, opt=3,
            reloc="static" if x86 else "default", codemodel="large" if x86 else "jitdefault")

    def _customize_tm_features(self) -> str:
        absent = host.absent()
        more = [f"+{name}" for name in sorted(host.unreported())] + [f"-{absent}"] * bool(absent)
        return ",".join(filter(None, [self._get_host_cpu_features(), *more]))

    def _add_module(self, module: Any) -> None:
        """Nothing runs in this process."""


class _Context(Lowering):
    def init(self) -> None:
        super().init()
        self._internal_codegen = _Codegen("jitcl")


@functools.cache
def _front_end(absent: str = "") -> FrontEnd:
    """With all implementations loaded, for a machine without a feature; to be called within
    `host.without(absent)`.
    """
    assert absent == host.absent()
    typing = Typing()
    typing.refresh()
    context = _Context(typing)
    context.refresh()
    context.error_model = callconv.create_error_model("numpy", context)
    return FrontEnd(typing, context)


def load() -> None:
    """Have all ready that kernels need."""
    from jitcl.devices.cpu import (  # noqa: F401  (kernels import them)
        native,
        packed_tile,
        scheduling,
        tiles,
    )

    _front_end()


def _read(entry: str, text: str, front_end: FrontEnd) -> tuple[Any, bool, bool]:
    """(the kernel's module as LLVM reads it, unoptimised; whether its loops are tiles; whether
    there are loops of numbers)."""
    try:
        tree = ast.parse(text)
        module, scalar = front_end.module(entry, tree)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
    except Exception as error:  # whatever Numba or LLVM raises becomes one BuildError
        raise BuildError(
            f"kernel '{entry}': the CPU compiler rejected the generated text\n  {error}\n"
            f"  This is a defect of jitcl; please report it with the output of `jitcl dump`."
        ) from error
    tiled = any(isinstance(s, ast.ImportFrom) and s.module in TILES for s in tree.body)
    return parsed, tiled, scalar


def _optimise(module: Any, tiled: bool, scalar: bool, machine: Any) -> None:
    """LLVM's passes with loop vectorisation; of a kernel whose loops are vectors already, only
    those that simplify a function. -O3 differs by the conditions that it takes out of loops, which
    are many in generated loops, and none in tiles: these take it half as long again.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=2 if tiled else 3)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    functions = [f for f in module.functions if not f.is_declaration]
    if scalar or len(functions) > 1:            # what Numba calls is to be inlined
        builder.getModulePassManager().run(module, builder)
    else:
        builder.getFunctionPassManager().run(functions[0], builder)


def compile_kernel(entry: str, text: str, absent: str = "") -> bytes:
    """The object code of one kernel, which does without the CPU feature `absent`; its symbol is
    `entry`. Raises BuildError.
    """
    module, machine = _optimised(entry, text, absent)
    unknown = sorted(
        fn.name
        for fn in module.functions
        if fn.is_declaration and not fn.name.startswith("llvm.") and fn.name not in LIBC
    )
    if unknown:
        raise BuildError(
            f"kernel '{entry}': generated code calls {', '.join(unknown)}, which nothing provides\n"
            f"  Kernels must not allocate, raise or call Python."
        )
    return machine.emit_object(module)


def assembly(entry: str, text: str, absent: str = "") -> str:
    """What `compile_kernel` would emit, as assembler text: for tests and for people."""
    module, machine = _optimised(entry, text, absent)
    return machine.emit_assembly(module)


def _optimised(entry: str, text: str, absent: str) -> tuple[Any, Any]:
    """(the kernel's optimised module, the machine that it is for)."""
    with host.without(absent):
        front_end = _front_end(absent)
        machine = front_end.context.codegen()._tm
        module, tiled, scalar = _read(entry, text, front_end)
    _optimise(module, tiled, scalar, machine)
    return module, machine

