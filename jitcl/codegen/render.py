"""What both renderers share: flat addresses, and the head comment that every kernel carries."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jinja2

from jitcl.errors import JitclError
from jitcl.ir.sizes import Size, is_size

TEMPLATES = Path(__file__).parent.parent / "templates"


class NotVectorisable(JitclError):
    """A value or a place depends on the lane in a way that a vector can't express."""


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja over jitcl/templates; a misspelt variable is an error, not an empty string."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)


def render(template: str, **values: Any) -> str:
    """The text of `jitcl/templates/<template>` with its variables filled in."""
    return environment().get_template(template).render(**values)


class SizesWritten:
    """Sizes (`ir/sizes.py`) as a renderer writes them, and the atoms that it wrote: the kernel's
    integer parameters."""

    def __init__(self) -> None:
        self.found: dict[int, int] = {}          # number of an atom -> the atom as a size

    def write(self, n: int | Size) -> str:
        """A count's text."""
        if is_size(n):
            self.found |= {k: n.space.atom(k) for monomial in n.terms for k in monomial}
        return str(n)

    def params(self) -> dict[str, int]:
        """The parameters in order, by name."""
        return {f"size{k}": self.found[k] for k in sorted(self.found)}
