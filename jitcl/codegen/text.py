"""Numbers and tables as people read them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def amount(n: float, unit: str) -> str:
    """1_500_000, "B" -> "1.5 MB"."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if n < 1000 or prefix == "E":
            return f"{n:.3g} {prefix}{unit}"
        n /= 1000
    return ""


def table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """A table with plain headings; the columns named in `right` hold numbers."""
    from rich import box
    from rich.table import Table

    made = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left",
                 title_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for notebooks, whose own styles it takes: texts are escaped, numbers to the right."""
    def cells(kind: str, row: Sequence[object]) -> str:
        return "".join(f'<{kind} style="text-align:{_side(x)}">{html.escape(str(x))}</{kind}>'
                       for x in row)
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (f'<table><caption style="text-align:left">{html.escape(caption)}</caption>'
            f"<thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>")


def _side(x: object) -> str:
    return "left" if isinstance(x, str) else "right"
