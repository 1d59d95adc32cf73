"""Pictures of a plan: memory over time as SVG, groups as a Graphviz graph."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from html import escape

from jitcl.bench.drawing import INK, PAPER, colour, fitted
from jitcl.cli.lowered import LoweredModel
from jitcl.codegen.plan import Plan
from jitcl.codegen.text import amount
from jitcl.ir.graph import Node
from jitcl.runtime.memory import lives

WIDTH, HEIGHT, MARGIN = 1200, 600, 60        # pixels
FONT, LINE = 10, 12                          # of labels: size, and least distance of two


def memory_svg(plan: Plan) -> str:
    """Temporaries as rectangles: steps from left to right, bytes from bottom to top."""
    steps, total = max(len(plan.steps), 1), max(sum(plan.slots), 1)
    starts = [sum(plan.slots[:k]) for k in range(len(plan.slots))]
    across, up = (WIDTH - 2 * MARGIN) / steps, (HEIGHT - 2 * MARGIN) / total
    shapes = []
    for k, life in lives(plan):
        b = plan.buffers[k]
        x = MARGIN + life.first * across
        w, h = (life.last - life.first + 1) * across, max(b.nbytes * up, 0.5)
        y = HEIGHT - MARGIN - (starts[b.slot] + b.offset) * up - h
        title = escape(f"{b.name} {b.dtype}{list(b.shape)} {amount(b.nbytes, 'B')}, "
                       f"steps {life.first}..{life.last}")
        stem = b.name.rsplit("_", 1)[0]
        shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
                      f'fill="{colour(stem)}" stroke="#555555" stroke-width="0.5">'
                      f'<title>{title}</title></rect>')
        label = fitted(b.name, w - 6, FONT) if h >= LINE else ""
        if label:
            shapes.append(_text(x + 3, y + FONT + 1, label))
    shapes += _tops(plan.slots, up)
    caption = (f"temporaries: {amount(sum(plan.slots), 'B')} in {len(plan.slots)} allocations "
               f"over {len(plan.steps)} steps; hover for names")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="{FONT}">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>\n'
            + "\n".join([_text(MARGIN, MARGIN / 2, caption, 14), *shapes]) + "\n</svg>\n")


def _text(x: float, y: float, text: str, size: int = FONT) -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{INK}">{escape(text)}</text>')


def _tops(slots: Sequence[int], up: float) -> list[str]:
    """The tops of allocations, and how many bytes lie below them where there is room to say it."""
    shapes, height, said = [], 0, float(HEIGHT)
    for size in slots:
        height += size
        y = HEIGHT - MARGIN - height * up
        shapes.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" '
                      f'stroke="{INK}" stroke-dasharray="4 3"/>')
        if said - y >= LINE:
            shapes.append(_text(4, y + 4, fitted(amount(height, "B"), MARGIN - 6, FONT)))
            said = y
    return shapes


def groups_dot(lowered: LoweredModel) -> str:
    """Kernels and what they read, in Graphviz's language."""
    lines = [f"digraph {_quoted(lowered.final.name)} {{",
             '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=10]']
    ids: dict[Node, str] = {}
    for k, node in enumerate(lowered.final.inputs):
        ids[node] = f"in{k}"
        lines.append(f"  in{k} [shape=ellipse, fillcolor=white, "
                     f"label={_quoted(str(node.attr('name')), str(node.type))}]")
    for g in lowered.groups:
        ids[g.group.root] = f"g{g.number}"
        ops = " ".join(dict.fromkeys(n.op for n in g.group.members))
        work = amount(sum(s.flops for s in g.steps), "FLOP") if g.steps else "a view: no kernel"
        lines.append(f"  g{g.number} [fillcolor=\"{_hex(g.name.rsplit('_', 1)[0])}\", "
                     f"label={_quoted(g.name, ops, str(g.group.root.type), work)}]")
    for g in lowered.groups:
        lines += [f"  {ids[node]} -> g{g.number}" for node in g.group.operands if node in ids]
    for k, (name, node) in enumerate(lowered.final.outputs):
        if node in ids:
            lines += [f"  out{k} [shape=ellipse, fillcolor=white, label={_quoted(name)}]",
                      f"  {ids[node]} -> out{k}"]
    return "\n".join([*lines, "}", ""])


def _quoted(*rows: str) -> str:
    return '"' + "\\n".join(r.replace("\\", "\\\\").replace('"', '\\"') for r in rows) + '"'


def _hex(word: str) -> str:
    """`colour` for Graphviz, which has no hsl(): hue, saturation, value."""
    return f"{zlib.crc32(word.encode()) % 360 / 360:.3f} 0.25 0.95"
