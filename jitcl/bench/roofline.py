"""Kernels under their device's roof (Williams, Waterman and Patterson, 2009, "Roofline: an
insightful visual performance model"): FLOP a second over FLOP a byte, both axes logarithmic.

    roof(intensity) = min(peak FLOP/s, intensity * peak bytes/s)

Of bandwidths there are several: a kernel is placed under that of the smallest set which holds what
it touches, since operands that a kernel before wrote may lie in caches still.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2

from jitcl.bench.drawing import INK, PAPER, fitted, width_of
from jitcl.bench.peaks import Bandwidth, Peaks
from jitcl.bench.steps import StepTime, StepTimes
from jitcl.codegen.text import amount

WIDTH, PANEL = 960, 560                     # pixels
LEFT, TOP, RIGHT, BOTTOM = 104, 62, 190, 58  # margins of a panel
LABELLED = 8                                # of a panel's kernels, the slowest
FONT, _LINE = 11, 13                        # pixels of a label's letters and line
_TITLE, _NOTE = 15, 12                      # of a panel's title, and of the line below it
_ABOVE = 4                                  # a slope, its label
_FILLS = {"template": "#3b6ea8", "loops": "#b9722d"}
_RADIUS = (3.5, 15.0)                       # of points: none and all of the time


@dataclass(frozen=True)
class Placed:
    """A step beside its roof. bound: "compute", "memory" or "cache", what limits it at most."""

    step: StepTime
    roof_seconds: float                     # what it would take at the roof
    bound: str
    share: float                            # of the time of all steps

    @property
    def flops(self) -> float:
        return self.step.flops / self.step.seconds

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.step.bytes / self.step.seconds

    @property
    def intensity(self) -> float:
        """FLOP a byte."""
        return self.step.flops / max(self.step.bytes, 1)

    @property
    def of_roof(self) -> float:
        """1 where nothing can be gained on this device."""
        return self.roof_seconds / self.step.seconds


@dataclass(frozen=True)
class Roofline:
    """All steps of a model on a device, the slowest first, and the device's peaks."""

    title: str
    peaks: Peaks
    placed: tuple[Placed, ...]


def roofline(title: str, times: StepTimes, peaks: Peaks) -> Roofline:
    """The steps placed. Those that took no time that a clock could see are left out."""
    total = times.seconds or 1.0
    found = [placed(s, peaks, s.seconds / total) for s in times.steps if s.seconds > 0]
    return Roofline(title, peaks, tuple(sorted(found, key=lambda p: -p.step.seconds)))


def placed(step: StepTime, peaks: Peaks, share: float) -> Placed:
    """One of them: `share` of the time of all."""
    bandwidth = peaks.bandwidth(step.bytes)
    compute, traffic = step.flops / peaks.flops, step.bytes / bandwidth.rate
    memory = "memory" if bandwidth is peaks.bandwidths[-1] else "cache"
    return Placed(step, max(compute, traffic), "compute" if compute >= traffic else memory, share)


@dataclass(frozen=True)
class Axes:
    """A panel's logarithmic axes: from values to pixels of its own."""

    x_low: float                            # powers of ten
    x_high: float
    y_low: float
    y_high: float
    left: float = LEFT
    top: float = TOP
    width: float = WIDTH - LEFT - RIGHT
    height: float = PANEL - TOP - BOTTOM

    def x(self, value: float) -> float:
        return self.left + self.width * _part(value, self.x_low, self.x_high)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - _part(value, self.y_low, self.y_high))

    def ticks(self, low: float, high: float) -> list[float]:
        return [10.0**k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _part(value: float, low: float, high: float) -> float:
    return (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))


def axes_of(line: Roofline) -> Axes:
    """Whole decades around all points with arithmetic, and around the roofs' corners."""
    points = [p for p in line.placed if p.step.flops]
    corners = [line.peaks.flops / b.rate for b in line.peaks.bandwidths]
    x_low, x_high = _decades([p.intensity for p in points] + corners)
    levels = [line.peaks.flops, line.peaks.flops_alone or line.peaks.flops]
    return Axes(x_low, x_high, *_decades([p.flops for p in points] + levels))


def _decades(values: Iterable[float]) -> tuple[float, float]:
    found = [math.log10(v) for v in values]
    low, high = math.floor(min(found)), math.floor(max(found)) + 1
    return 10.0**low, 10.0**high


@dataclass(frozen=True)
class Line:
    """A part of a roof, in pixels, with its label: where it begins, and degrees as SVG turns it.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    kind: str                               # "peak", "alone" or "bandwidth"
    label_x: float = 0.0
    label_y: float = 0.0
    label_angle: float = 0.0

    @property
    def angle(self) -> float:
        """Degrees, as SVG turns text."""
        return math.degrees(math.atan2(self.y2 - self.y1, self.x2 - self.x1))


def roof_lines(peaks: Peaks, axes: Axes) -> list[Line]:
    """Horizontal peaks, and slopes that end where they meet the highest."""
    whose = f"{peaks.threads} thread{'s' * (peaks.threads > 1)}" if peaks.threads else "f32"
    rate = max(b.rate for b in peaks.bandwidths)
    peak = _level(axes, peaks.flops, rate, whose, "peak")
    lines = [peak]
    if peaks.flops_alone:
        alone = _level(axes, peaks.flops_alone, rate, "1 thread", "alone")
        lines.append(replace(alone, label_y=max(alone.label_y, peak.label_y + _LINE)))
    return lines + _labelled([_slope(axes, peaks.flops, b) for b in peaks.bandwidths], axes)


def _level(axes: Axes, flops: float, rate: float, whose: str, kind: str) -> Line:
    """From where the steepest slope reaches it to the right edge."""
    start, y = max(flops / rate, axes.x_low), axes.y(flops)
    return Line(axes.x(start), y, axes.x(axes.x_high), y,
                fitted(f"{amount(flops, 'FLOP/s')}, {whose}", RIGHT - 12, FONT), kind,
                axes.x(axes.x_high) + 6, y + 4)


def _slope(axes: Axes, flops: float, bandwidth: Bandwidth) -> Line:
    """From the left or lower edge to its corner under the peak."""
    start = max(axes.x_low, axes.y_low / bandwidth.rate)
    end = flops / bandwidth.rate
    label = f"{amount(bandwidth.rate, 'B/s')} ({_binary(bandwidth.set_bytes)})"
    return Line(axes.x(start), axes.y(start * bandwidth.rate), axes.x(end), axes.y(flops), label,
                "bandwidth")


def _labelled(slopes: Sequence[Line], axes: Axes) -> list[Line]:
    """Labels along their slopes, inside of the frame and clear of each other; where a slope is too
    short for its label, that lies level, in the frame's upper left corner.
    """
    done: list[Line] = []
    taken: list[tuple[float, float, float]] = []            # along slopes: from, to, which
    level = axes.top + _LINE
    for slope in slopes:
        angle = math.radians(slope.angle)
        length, wide = math.hypot(slope.x2 - slope.x1, slope.y2 - slope.y1), width_of(
            slope.label, FONT)
        across = slope.x1 * math.sin(angle) - slope.y1 * math.cos(angle)
        begin = slope.x1 * math.cos(angle) + slope.y1 * math.sin(angle)
        places = [begin + 8 + k * _LINE for k in range(int((length - wide - 16) // _LINE) + 1)]
        free = [a for a in places if not any(
            abs(other - across) < _LINE and a < end and start < a + wide
            for start, end, other in taken)]
        if not free or abs(slope.angle) > 89:
            done.append(replace(slope, label_x=axes.left + 6, label_y=level))
            level += _LINE
            continue
        at = free[0] - begin
        taken.append((at + begin, at + begin + wide, across))
        done.append(replace(
            slope, label_angle=slope.angle,
            label_x=slope.x1 + at * math.cos(angle) + _ABOVE * math.sin(angle),
            label_y=slope.y1 + at * math.sin(angle) - _ABOVE * math.cos(angle)))
    return done


def _binary(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


@dataclass(frozen=True)
class Point:
    """A kernel in the picture. text: "" for those without a label."""

    x: float
    y: float
    radius: float
    kind: str                               # "template" or "loops"
    title: str
    text: str = ""
    text_x: float = 0.0
    text_y: float = 0.0
    text_width: float = 0.0

    @property
    def led_to(self) -> float:
        """The end of the label that is nearer."""
        right = self.text_x > self.x
        return self.text_x - 2 if right else self.text_x + self.text_width + 2

    @property
    def led(self) -> bool:
        """Whether a line must say whose label it is."""
        return bool(self.text) and abs(self.text_y - 4 - self.y) > _LINE


def points(line: Roofline, axes: Axes) -> list[Point]:
    """Steps with arithmetic, the slowest last, on top; labels of the slowest don't overlap."""
    made: list[Point] = []
    taken: list[tuple[float, float, float]] = []
    shown = [p for p in line.placed if p.step.flops]
    for number, p in enumerate(shown):
        x, y = axes.x(p.intensity), axes.y(p.flops)
        radius = _RADIUS[0] + (_RADIUS[1] - _RADIUS[0]) * math.sqrt(p.share)
        kind = "template" if p.step.template else "loops"
        if number < LABELLED:
            name = fitted(p.step.name, axes.width / 2, FONT)
            wide, beside = width_of(name, FONT), x + radius + 3
            if beside + wide > axes.left + axes.width:
                beside = x - radius - 3 - wide
            text_x, text_y = _free(taken, beside, y + 4, wide, axes)
            made.append(Point(x, y, radius, kind, _title(p), name, text_x, text_y, wide))
        else:
            made.append(Point(x, y, radius, kind, _title(p)))
    return made[::-1]


def _free(taken: list[tuple[float, float, float]], x: float, y: float, width: float,
          axes: Axes) -> tuple[float, float]:
    """The nearest free line for a label at or around its place; it is taken then."""
    low, high = axes.top + _LINE, axes.top + axes.height - 4
    for k in range(64):
        place = min(max(y + (k + 1) // 2 * _LINE * (-1 if k % 2 else 1), low), high)
        if not any(abs(place - other) < _LINE and x < end and start < x + width
                   for start, end, other in taken):
            break
    taken.append((x, x + width, place))
    return x, place


def _title(p: Placed) -> str:
    ops = "+".join(p.step.ops) or "no node of its own"
    nodes = "".join(f", '{name}'" for name in p.step.nodes[:3])
    return (f"{p.step.name} ({ops}{nodes}): {p.share:.0%} of the time, "
            f"{amount(p.flops, 'FLOP/s')}, {amount(p.rate, 'B/s')}, {p.of_roof:.0%} of the roof "
            f"({p.bound})")


def draw(lines: Sequence[Roofline]) -> str:
    """One SVG that stands alone, a panel a device."""
    panels = []
    for number, line in enumerate(lines):
        axes = axes_of(line)
        idle = [p for p in line.placed if not p.step.flops]
        panels.append({
            "top": number * PANEL, "title": fitted(line.title, WIDTH - LEFT - 8, _TITLE),
            "device": fitted(line.peaks.device, WIDTH - LEFT - 8, _NOTE), "axes": axes,
            "x_ticks": [(axes.x(v), f"{v:g}") for v in axes.ticks(axes.x_low, axes.x_high)],
            "y_ticks": [(axes.y(v), amount(v, "FLOP/s"))
                        for v in axes.ticks(axes.y_low, axes.y_high)],
            "roofs": roof_lines(line.peaks, axes), "points": points(line, axes),
            "idle": len(idle), "idle_share": sum(p.share for p in idle)})
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
        autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("roofline.svg.j2").render(
        panels=panels, width=WIDTH, height=PANEL * len(lines), ink=INK, paper=PAPER, font=FONT,
        fills=_FILLS)
