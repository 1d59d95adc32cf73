"""The parts of Numba that kernels use: typing and target contexts that know nothing else, and
functions that kernels call.

Numba's own contexts load its arrays, lists, sets, random numbers and linear algebra, and try
NumPy's ufuncs first wherever two numbers are added. Without these a build process starts in half of
the time and takes a quarter less memory, and a kernel becomes LLVM in three quarters of the time.
The objects are the same to the byte.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from llvmlite import ir
from numba.core import callconv, cpu, types
from numba.core.imputils import lower_builtin
from numba.core.typing import context, mathdecl
from numba.core.typing.templates import AbstractTemplate, RegistryLoader, infer_global

from jitcl.forking import cached_property

Codegen = Callable[[Any, Any, Any, Any], Any]       # (context, builder, signature, values)


class _Function:
    """What stands for an intrinsic in kernel text."""

    def __init__(self, definition: Callable[..., Any]) -> None:
        self.__name__ = definition.__name__
        update_wrapper(self, definition)

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError(f"{self.__name__} can be called in kernels only")


def intrinsic(definition: Callable[..., tuple[Any, Codegen]] | None = None, *,
              prefer_literal: bool = False) -> Any:
    """A function that kernels may call: `definition(typing context, *types)` gives its signature
    and what emits LLVM for it, once for each list of types. Literals come as their values' types
    where `prefer_literal` says so. (`numba.extending.intrinsic` does the same for any target.)"""
    if definition is None:
        return lambda definition: intrinsic(definition, prefer_literal=prefer_literal)
    function = _Function(definition)
    typed: dict[Any, Any] = {}

    def generic(self: Any, args: Any, kws: Any) -> Any:
        if args not in typed:
            typed[args], emit = definition(self.context, *args)
            lower_builtin(function, *typed[args].args)(emit)
        return typed[args]

    members = {"key": function, "generic": generic, "prefer_literal": prefer_literal}
    template = type(function.__name__, (AbstractTemplate,), members)
    infer_global(function, types.Function(template))
    return function


class Typing(context.BaseContext):
    """Numbers, `range`, tuples; `math` for its constants and scalar functions."""

    def init(self) -> None:
        super().init()
        self._resolved: dict[Any, Any] = {}

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """As Numba's, once for each list of types: kernels ask for the same few thousands of times.
        """
        if kws:
            return super().resolve_function_type(func, args, kws)
        key = func, tuple(args)
        if (found := self._resolved.get(key)) is None:
            found = super().resolve_function_type(func, args, kws)
            if found is not None:
                self._resolved[key] = found
        return found

    def load_additional_registries(self) -> None:
        self.install_registry(mathdecl.registry)

    def install_registry(self, registry: Any) -> None:
        """As Numba's, without overloaded attributes: kernels have none, and what registers these
        loads all of Numba's own target."""
        loader = self._registries.setdefault(registry, RegistryLoader(registry))
        for template in loader.new_registrations("attributes"):     # each comes once
            if not hasattr(template, "_overload_func"):
                self.insert_attributes(template(self))
        super().install_registry(registry)


class _Plain(callconv.CPUCallConv):
    """C's: a kernel gives nothing. Numba's own returns a status, and to call it takes a second
    function, which LLVM would optimise as well."""

    def get_function_type(self, restype: Any, argtypes: Any) -> ir.FunctionType:
        return ir.FunctionType(ir.VoidType(), self._get_arg_packer(argtypes).argument_types)

    def decorate_function(self, fn: Any, args: Any, fe_argtypes: Any,
                          noalias: bool = False) -> None:
        self._get_arg_packer(fe_argtypes).assign_names(fn.args, [f"arg.{a}" for a in args])
        set.add(fn.attributes, '"prefer-vector-width"="512"')       # llvmlite knows no such pairs

    def get_arguments(self, func: Any) -> Any:
        return func.args

    def return_value(self, builder: Any, retval: Any) -> None:
        builder.ret_void()

    def return_user_exc(self, builder: Any, *args: Any, **kwargs: Any) -> None:
        """Ends the process: what a `range` whose step is not a literal does if the step is 0, which
        no template gives it. What the kernel would leave behind is no result."""
        nothing = ir.FunctionType(ir.VoidType(), ())
        builder.call(builder.module.declare_intrinsic("llvm.trap", (), nothing), ())
        builder.unreachable()


class Lowering(cpu.CPUContext):
    """The same, lowered to LLVM; no reference counting, no runtime of Numba's beneath."""

    def init(self) -> None:
        self.is32bit = False

    @cached_property
    def call_conv(self) -> _Plain:
        return _Plain(self)

    def get_abi_sizeof(self, ty: Any) -> int:
        """Nobody asks but for what debuggers are told of each variable, which is nothing here; LLVM
        would have to read a module to answer."""
        return 0

    def load_additional_registries(self) -> None:
        from numba.cpython import (  # noqa: F401  (imported for what they register)
            builtins,
            iterators,
            mathimpl,
            numbers,
            rangeobj,
            tupleobj,
        )

        self.install_registry(mathimpl.registry)

    def post_lowering(self, module: Any, library: Any) -> None:
        """Numba links its runtime here."""
