"""`JITCL_TARGET=field=value,...`: a Target as somebody wants it, to force a schedule."""

from __future__ import annotations

import dataclasses

from jitcl.errors import OptionError
from jitcl.target.target import Target

IDENTITY = ("kind", "name", "vendor", "driver", "key")   # what faults and caches are kept by


def overridden(target: Target, fields: str) -> Target:
    """The target with 'max_vector_width=16,local_is_real=1' put in; OptionError for a field that
    there isn't, or a value of another type. What is proven stays as it was probed.
    """
    changed: dict[str, object] = {}
    for item in filter(None, fields.split(",")):
        name, _, text = item.partition("=")
        changed[name] = _value(target, name, text)
    return dataclasses.replace(target, **changed)  # type: ignore[arg-type]


def _value(target: Target, name: str, text: str) -> object:
    old = getattr(target, name, None)
    if old is None or name in IDENTITY or isinstance(old, tuple):
        allowed = [f.name for f in dataclasses.fields(target)
                   if isinstance(getattr(target, f.name), (bool, int, str))
                   and f.name not in IDENTITY]
        raise OptionError(f"JITCL_TARGET: got the field '{name}', wanted one of "
                          f"{', '.join(allowed)}\n  Unset JITCL_TARGET for what was probed.")
    try:
        if isinstance(old, bool):
            return bool(("0", "1").index(text))
        return int(text) if isinstance(old, int) else text
    except ValueError:
        wanted = "0 or 1" if isinstance(old, bool) else "a whole number"
        raise OptionError(f"JITCL_TARGET: {name}: got '{text}', wanted {wanted}\n"
                          "  Unset JITCL_TARGET for what was probed.") from None
