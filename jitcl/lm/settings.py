"""What a configuration says, by the names of Hugging Face's config.json; errors name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jitcl.errors import ModelError, UnsupportedError

_NOTHING = object()


class Settings:
    """Values by key; a ModelError for one that is missing or of another kind."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def whole(self, key: str, default: Any = _NOTHING) -> int:
        """A whole number above 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{self.place}: '{key}' is {value!r}: wanted a whole number above 0")
        return value

    def number(self, key: str, default: Any = _NOTHING) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(f"{self.place}: '{key}' is {value!r}: wanted a number")
        return float(value)

    def positive(self, key: str, default: Any = _NOTHING) -> float:
        value = self.number(key, default)
        if not 0 < value < math.inf:
            raise ModelError(f"{self.place}: '{key}' is {value!r}: wanted a number above 0")
        return value

    def numbers(self, key: str, count: int) -> list[float]:
        value = self.get(key, _NOTHING)
        if not isinstance(value, list) or len(value) != count:
            got = f"{len(value)} of them" if isinstance(value, list) else repr(value)
            raise ModelError(f"{self.place}: '{key}' is {got}: wanted a list of {count} numbers")
        return [Settings({key: v}, self.place).positive(key) for v in value]

    def get(self, key: str, default: Any = None) -> Any:
        """A value; `default` where it is missing or null."""
        value = self.values.get(key)
        if value is None:
            if default is _NOTHING:
                raise ModelError(f"{self.place}: '{key}' is missing")
            return default
        return value

    def only(self, key: str, *allowed: Any) -> Any:
        """A value of those that are implemented, the first where it is missing."""
        value = self.get(key, allowed[0])
        if value not in allowed:
            raise UnsupportedError(f"{self.place}: '{key}' is {value!r}: jitcl has "
                                   + " or ".join(map(repr, allowed)))
        return value
