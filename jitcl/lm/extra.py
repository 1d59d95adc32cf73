"""Libraries of optional extras, such as `lm`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from jitcl.errors import JitclError


def library(name: str, why: str, extra: str = "lm") -> Any:
    """The module, or a JitclError that says which extra brings it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise JitclError(f"{why} needs the library '{error.name}', which is not installed\n"
                         f"  pip install 'jitcl[{extra}]'") from None
