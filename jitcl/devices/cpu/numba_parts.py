"""The parts of Numba that kernels use: typing and target contexts that know nothing else, and
functions that kernels call.

Numba's own contexts load its arrays, lists, sets, random numbers and linear algebra, and try
NumPy's ufuncs first wherever two numbers are added. Without these a build process starts in half of
the time and takes a quarter less memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from numba.core import cpu, types
from numba.core.imputils import lower_builtin
from numba.core.typing import context
from numba.core.typing.templates import AbstractTemplate, RegistryLoader, infer_global

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
    """Numbers."""

    def install_registry(self, registry: Any) -> None:
        """As Numba's, without overloaded attributes: kernels have none, and what registers these
        loads all of Numba's own target."""
        loader = self._registries.setdefault(registry, RegistryLoader(registry))
        for template in loader.new_registrations("attributes"):     # each comes once
            if not hasattr(template, "_overload_func"):
                self.insert_attributes(template(self))
        super().install_registry(registry)


class Lowering(cpu.CPUContext):
    """The same, lowered to LLVM; no reference counting, no runtime of Numba's beneath."""

    def init(self) -> None:
        self.is32bit = False

    def load_additional_registries(self) -> None:
        from numba.cpython import builtins, numbers  # noqa: F401  (for what they register)

    def add_linking_libs(self, libs: Any) -> None:
        """What kernels call is emitted in place."""
        assert not libs
