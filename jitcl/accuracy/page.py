"""What `check` found as one page that needs nothing else: errors along the model, and of each layer
its measures and a histogram.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jinja2

from jitcl.accuracy.measures import BINS
from jitcl.accuracy.report import Check, Layer

LOW, HIGH = -9.0, 1.0           # powers of ten: the least and the largest error that are told apart
WIDTH, HEIGHT = 1100, 240       # of the chart


def page(found: Check) -> str:
    """The text of an HTML file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
        autoescape=True, trim_blocks=True, lstrip_blocks=True)
    step = WIDTH / max(len(found.layers), 1)
    layers = [_row(found, layer, k * step, step) for k, layer in enumerate(found.layers)]
    return environment.get_template("page.html.j2").render(
        found=found, layers=layers, step=step, width=WIDTH, height=HEIGHT,
        limit=_height(found.tolerance), bins=[f"1e{b}" for b in BINS[:-1]],
        ticks=[(f"1e{b}", _height(10.0 ** b)) for b in range(int(LOW), int(HIGH) + 1, 2)])


def _row(found: Check, layer: Layer, at: float, step: float) -> dict[str, Any]:
    own = None if layer.own is None else layer.own.relative
    most = max(layer.total.histogram) or 1
    return {
        "layer": layer, "at": at, "middle": at + step / 2, "own": own,
        "total_y": _height(layer.total.relative), "own_y": None if own is None else _height(own),
        "hue": _hue(layer.total.relative, found.tolerance),
        "own_hue": None if own is None else _hue(own, found.tolerance),
        "mark": " ".join(name for name, row in (("first", found.first), ("most", found.most))
                         if row is layer),
        "bars": [n and max(1.0, 20 * n / most) for n in layer.total.histogram]}


def _height(error: float) -> float:
    """Where an error stands on the chart, from its top; infinite ones at the top."""
    power = HIGH if math.isinf(error) else math.log10(error) if error > 0 else LOW
    return HEIGHT * (HIGH - min(max(power, LOW), HIGH)) / (HIGH - LOW)


def _hue(error: float, tolerance: float) -> int:
    """Green where there is none, yellow at the tolerance, red from ten times it on."""
    if error <= 0:
        return 130
    beyond = 1.0 if math.isinf(error) or tolerance == 0 else math.log10(error / tolerance)
    return round(60 - 60 * min(beyond, 1)) if beyond > 0 else round(60 + 70 * min(-beyond / 4, 1))


__all__ = ["page"]
