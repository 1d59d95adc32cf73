"""What both renderers share: flat addresses, and the head comment that every kernel carries."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from jitcl.ir import expr as E
from jitcl.ir.expr import Expr

SIZE = re.compile(r"\bsize(\d+)\b")
TEMPLATES = Path(__file__).parent.parent / "templates"


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja over jitcl/templates; a misspelt variable is an error, not an empty string."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **values: Any) -> str:
    """The text of `jitcl/templates/<template>` with its variables filled in."""
    return environment().get_template(template).render(**values)


def size_names(lines: Sequence[str]) -> list[str]:
    """The sizes that a kernel's statements name (`ir/sizes.py`): its integer parameters."""
    found = {int(n) for line in lines for n in SIZE.findall(line)}
    return [f"size{n}" for n in sorted(found)]


def flat(shape: tuple[int, ...], indices: tuple[Expr, ...]) -> Expr:
    """The element offset of an index in a row-major buffer of physical `shape`."""
    total = E.index(0)
    for extent, i in zip(shape, indices):
        total = E.call("add", E.call("mul", total, E.index(extent)), i)
    return total
