"""Recurrences on a GPU: one chain a work-group, whose lanes share each part of a step.

    for (int t = 0; t < 40; ++t) {
        for (int j = lane; j < 64; j += lanes) { ... y[...] = ...; }
        barrier(CLK_GLOBAL_MEM_FENCE);           all lanes see the part before the next one reads it
    }

What stands between the parts (a sum that all of a part's elements need) each lane computes.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitcl.codegen.render_opencl import OpenClRenderer
from jitcl.ir.kernel import For, Stmt, Store, statements

FEWEST = 32                    # lanes: less than a GPU runs in step anyway


def lanes_for(inner: tuple[Stmt, ...], most: int) -> int:
    """Work-items a group: enough for the widest part, a power of two."""
    widest = max((_width(s) for s, _ in statements(inner) if _is_part(s)), default=1)
    return max(1, min(most, max(FEWEST, 1 << (widest - 1).bit_length())))


def chain_lines(r: OpenClRenderer, body: Iterable[Stmt], indent: int) -> list[str]:
    """Statements of one chain: parts dealt out to the lanes, steps one after the other."""
    pad = "    " * indent
    lines: list[str] = []
    for s in body:
        if isinstance(s, For) and s.kind == "parallel":
            lines += _shared(r, s, indent)
            lines.append(f"{pad}barrier(CLK_GLOBAL_MEM_FENCE);")
        elif isinstance(s, Store):
            lines += [f"{pad}if (lane == 0) {{", *r.stmt(s, indent + 1), f"{pad}}}",
                      f"{pad}barrier(CLK_GLOBAL_MEM_FENCE);"]
        elif isinstance(s, For) and any(isinstance(x, Store) for x, _ in statements((s,))):
            name = s.var.value
            lines += [f"{pad}for ({r.index} {name} = 0; {name} < {s.extent}; ++{name}) {{",
                      *chain_lines(r, s.body, indent + 1), pad + "}"]
        else:
            lines += r.stmt(s, indent)
    return lines


def _shared(r: OpenClRenderer, s: For, indent: int) -> list[str]:
    """A part's innermost parallel loop, dealt out to the lanes in turn."""
    inner = s.body[0] if len(s.body) == 1 else None
    if not (isinstance(inner, For) and inner.kind == "parallel"):
        return r.loop(s, indent, "lane", "", "lanes")
    pad, name = "    " * indent, s.var.value
    return [f"{pad}for ({r.index} {name} = 0; {name} < {s.extent}; ++{name}) {{",
            *_shared(r, inner, indent + 1), pad + "}"]


def _is_part(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == "parallel"


def _width(s: Stmt) -> int:
    assert isinstance(s, For)
    return s.extent
