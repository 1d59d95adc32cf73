"""Kernel text -> native object code: Numba's front end, LLVM's optimiser, one symbol out.

Only build workers import this (it imports Numba). The object holds one external function

    void entry(int64 args, int64 tid, int64 nthreads)

and refers to nothing but the C library's math functions, so that any process can load it with
llvmlite alone.
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm
from numba.core import codegen, compiler, compiler_machinery, cpu, types
from numba.core.compiler_machinery import PassManager
from numba.core.ir_utils import build_definitions
from numba.core.typed_passes import (
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, ReconstructSSA, TranslateByteCode

from jitcl.devices.cpu import host, vector  # noqa: F401  (registers the types that kernels use)
from jitcl.devices.cpu.numba_parts import Lowering, Typing
from jitcl.errors import BuildError
from jitcl.ir.scalar import SCALARS

SIGNATURE = (types.int64, types.int64, types.int64)
#: what an object may leave undefined (the C math library, and memset/memcpy that LLVM puts in for
#: loops)
LIBC = frozenset(
    name + suffix
    for name in (*(s.name for s in SCALARS.values() if s.libm), "exp", "log", "tanh", "erf", "pow",
                 "fmod", "floor", "ceil", "rint", "trunc", "fma")
    for suffix in ("", "f")
) | {"memset", "memcpy", "memmove"}


class _Library(codegen.CPUCodeLibrary):
    """Collects a kernel's LLVM IR and leaves the optimisation to `_optimise`, which runs once for
    the whole."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_specific(self) -> None:
        pass


class _Codegen(codegen.CPUCodegen):
    """A target machine for this host, without the feature that `host.without` names. On x86 the
    large code model: wherever the loader puts code, constants and libm, every relocation reaches
    (the loader aborts the process on one that does not)."""

    _library_class = _Library

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
        pass


class _Context(Lowering):
    def init(self) -> None:
        super().init()
        self._internal_codegen = _Codegen("jitcl")

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> None:
        """Nothing runs in this process."""


@functools.cache
def _context(absent: str = "") -> tuple[Any, Any]:
    """(typing context, target context) with all implementations loaded, for a machine without a
    feature; to be called within `host.without(absent)`.
    """
    assert absent == host.absent()
    typing = Typing()
    typing.refresh()
    context = _Context(typing)
    context.refresh()
    return typing, context


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _StripPhis(PreLowerStripPhis):
    """As Numba's, but for lifetimes of variables and generators."""

    _name = "jitcl_strip_phis"

    def run_pass(self, state: Any) -> bool:
        strip = getattr(self, "_strip_phi_nodes", None)
        if strip is None:                   # private: a Numba without it does more, for the same
            return bool(super().run_pass(state))
        state.func_ir = strip(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


class _Pipeline(compiler.CompilerBase):
    """Of Numba's passes those that kernels need, a quarter. The others look for closures, `with`,
    `raise`, branches on None and literal loops, which generated text does not have, and for the
    ends of variables' lives, where references would be counted: the objects are the same to the
    byte, sooner.
    """

    def define_pipelines(self) -> list[PassManager]:
        manager = PassManager("kernel")
        for each in (TranslateByteCode, FixupArgs, ReconstructSSA, NopythonTypeInference,
                     _StripPhis, NativeLowering, NoPythonBackend):
            manager.add_pass(each, each.__name__)
        manager.finalize()
        return [manager]


def _flags() -> Any:
    flags: Any = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.fastmath = cpu.FastMathOptions(False)
    flags.nrt = False
    flags.enable_ssa = True
    return flags


def _front_end(entry: str, text: str) -> Any:
    """Runs the kernel's module text and lowers its entry function to LLVM IR."""
    names: dict[str, Any] = {"__name__": f"jitcl_kernel_{entry}"}
    try:
        exec(compile(text, f"<kernel {entry}>", "exec"), names)
        typing, context = _context(host.absent())
        return compiler.compile_extra(
            typing, context, names[entry], SIGNATURE, types.void, _flags(), {},
            pipeline_class=_Pipeline)
    except Exception as error:  # whatever Numba raises becomes one BuildError with its message
        raise BuildError(
            f"kernel '{entry}': the CPU compiler rejected the generated text\n  {error}\n"
            f"  This is a defect of jitcl; please report it with the output of `jitcl dump`."
        ) from error


def _optimise(module: Any, symbol: str, machine: Any) -> None:
    """Everything but `symbol` becomes private; then LLVM's -O3 with loop vectorisation."""
    for fn in module.functions:
        if not fn.is_declaration and fn.name != symbol:
            fn.linkage = "private"
    for variable in module.global_variables:
        if variable.linkage not in (llvm.Linkage.private, llvm.Linkage.internal):
            variable.linkage = "private" if not variable.is_declaration else variable.linkage
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)


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
        machine = _context(absent)[1].codegen()._tm
        module = lower(entry, text)
    _optimise(module, entry, machine)
    return module, machine


def lower(entry: str, text: str) -> Any:
    """Unoptimised LLVM of the kernel, which has a plain C signature."""
    result = _front_end(entry, text)
    module = result.library._final_module
    module.get_function(result.fndesc.llvm_func_name).name = entry
    return module
