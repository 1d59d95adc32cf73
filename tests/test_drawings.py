"""Pictures that every renderer draws alike: colours in attributes, texts where there is room."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
import pytest

from jitcl.bench.drawing import colour, fitted, width_of
from jitcl.bench.peaks import Bandwidth, Peaks
from jitcl.bench.roofline import PANEL, TOP, WIDTH, draw, roofline
from jitcl.bench.steps import StepTime, StepTimes
from jitcl.cli.drawings import memory_svg
from jitcl.codegen.plan import BufferSpec, Plan, Step, TensorSpec
from jitcl.runtime.memory import plan_memory

NAMES = ("conv_%d", "attention_%d_weights_packed_for_rows", "mul_%d", "layer_norm_%d", "W%d")
SVG = "{http://www.w3.org/2000/svg}"
COLOUR = re.compile("#[0-9a-f]{6}|none")


@dataclass(frozen=True)
class Box:
    """A text's, in the picture's pixels, with a corner at each end where it is turned."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    turned: bool

    def meets(self, other: Box) -> bool:
        return (self.left < other.right and other.left < self.right
                and self.top < other.bottom and other.top < self.bottom)


def elements(svg: str) -> Iterator[tuple[ElementTree.Element, dict[str, str], float, float]]:
    """Drawn elements with the attributes that hold for them, and where their group lies."""
    def walk(e: ElementTree.Element, held: dict[str, str], x: float, y: float
             ) -> Iterator[tuple[ElementTree.Element, dict[str, str], float, float]]:
        held = {**held, **e.attrib}
        if e.tag == f"{SVG}g":
            move = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", held.pop("transform"))
            assert move is not None
            x, y = x + float(move[1]), y + float(move[2])
        yield e, held, x, y
        for child in e:
            yield from walk(child, held, x, y)
    yield from walk(ElementTree.fromstring(svg), {}, 0.0, 0.0)


def boxes(svg: str) -> list[Box]:
    found = []
    for e, held, x, y in elements(svg):
        if e.tag != f"{SVG}text":
            continue
        text, size = e.text or "", float(held["font-size"])
        wide, angle = width_of(text, size), 0.0
        turn = re.fullmatch(r"translate\(([-\d.]+) ([-\d.]+)\) rotate\(([-\d.]+)\)",
                            e.get("transform", ""))
        if turn is not None:
            x, y, angle = x + float(turn[1]), y + float(turn[2]), math.radians(float(turn[3]))
        else:
            x, y = x + float(held["x"]), y + float(held["y"])
        x -= {"middle": wide / 2, "end": wide}.get(held.get("text-anchor", ""), 0.0)
        xs, ys = (x, x + wide * math.cos(angle)), (y, y + wide * math.sin(angle))
        found.append(Box(text, min(xs), min(ys) - size * 0.8, max(xs), max(ys), angle != 0))
    return found


def check(svg: str) -> None:
    """What renderers differ in isn't there, and no text leaves the picture."""
    assert not re.search(r"hsl|rgb\(|var\(|currentColor|style=", svg)
    root = ElementTree.fromstring(svg)
    width, height = (float(root.get(k, "0")) for k in ("width", "height"))
    for e, _, _, _ in elements(svg):
        kind = e.tag.removeprefix(SVG)
        if kind in ("rect", "circle", "text"):
            assert COLOUR.fullmatch(e.get("fill", "")), ElementTree.tostring(e)
        if kind == "line":
            assert COLOUR.fullmatch(e.get("stroke", "")), ElementTree.tostring(e)
    for box in boxes(svg):
        assert box.left >= 0 and box.right <= width, box
        assert box.top >= 0 and box.bottom <= height, box


def plan_of(steps: int, mode: str) -> Plan:
    """A chain of steps with now and then a longer life, of buffers of very different sizes."""
    rng = np.random.default_rng(steps)
    sizes = np.exp(rng.uniform(3, 13, steps + 1)).astype(int) * 4
    buffers = [BufferSpec("x", "f32", (int(sizes[0]) // 4,), int(sizes[0]), "input")]
    buffers += [BufferSpec(NAMES[k % len(NAMES)] % k, "f32", (int(n) // 4,), int(n), "temp")
                for k, n in enumerate(sizes[1:])]
    buffers[-1] = BufferSpec("y", "f32", buffers[-1].shape, buffers[-1].nbytes, "output")
    made = []
    for k in range(steps):
        old = int(rng.integers(max(0, k - 9), k + 1))
        made.append(Step(f"s{k}", "k", tuple(dict.fromkeys((k, old, k + 1))), writes=(k + 1,)))
    last = buffers[-1]
    return plan_memory(Plan(
        (TensorSpec("x", "f32", buffers[0].shape, 0),),
        (TensorSpec("y", "f32", last.shape, len(buffers) - 1),), (), tuple(made), tuple(buffers),
        (), {}), mode)


@pytest.mark.parametrize("mode", ["arena", "slots"])
@pytest.mark.parametrize("steps", [1, 10, 40, 120, 300])
def test_labels_of_memory_lie_in_their_rectangles(steps: int, mode: str) -> None:
    svg = memory_svg(plan_of(steps, mode))
    check(svg)
    labels, area = 0, None
    for e, _, _, _ in elements(svg):
        if e.tag == f"{SVG}rect":
            area = [float(e.get(k, "0")) for k in ("x", "y", "width", "height")]
        elif e.tag == f"{SVG}text" and e.get("font-size") == "10" and float(e.get("x", "0")) > 59:
            assert area is not None
            x, y = float(e.get("x", "0")), float(e.get("y", "0"))
            assert area[0] <= x and x + width_of(e.text or "", 10) <= area[0] + area[2]
            assert area[1] <= y - 8 and y <= area[1] + area[3]
            labels += 1
    assert labels or steps in (1, 300)
    sides = sorted(b.bottom for b in boxes(svg) if b.left < 10)
    assert all(b - a >= 10 for a, b in zip(sides, sides[1:]))


def line_of(steps: int, bandwidths: tuple[float, ...], title: str = "a model") -> str:
    rng = np.random.default_rng(steps)
    times = StepTimes("d", tuple(
        StepTime(NAMES[k % len(NAMES)] % k, "k", "gemm" if k % 2 else "", ("Conv",), ("/c",),
                 int(10 ** rng.uniform(4, 9)), int(10 ** rng.uniform(4, 8)),
                 float(10 ** rng.uniform(-6, -2))) for k in range(steps)))
    peaks = Peaks("a device with a name", 16, 2.1e12, 1.4e11, tuple(
        Bandwidth(1 << 18 + 4 * k, rate) for k, rate in enumerate(bandwidths)))
    return draw([roofline(title, times, peaks), roofline(title, times, peaks)])


@pytest.mark.parametrize("bandwidths", [
    (1.2e12, 6.1e11, 1.9e11), (2.0e13, 1.9e13, 1.8e13), (3e11, 2.9e11, 2e10), (1e9,),
    (1e8, 9e7, 8e7), (1e15,)])
@pytest.mark.parametrize("steps", [10, 300])
def test_labels_of_roofs_cover_nothing(steps: int, bandwidths: tuple[float, ...]) -> None:
    """Neither the title nor each other, and they stay in the frame."""
    svg = line_of(steps, bandwidths, "a model with a name that has no end " * 6)
    check(svg)
    found = [b for b in boxes(svg) if "B/s (" in b.text and b.bottom <= PANEL]
    assert len(found) == len(bandwidths)
    for box in found:
        assert box.top >= TOP - 4 and box.right <= WIDTH - 190
    level = [b for b in found if not b.turned]
    assert not any(a.meets(b) for a in level for b in level if a is not b)
    titles = [b for b in boxes(svg) if b.bottom < TOP - 10]
    labels = [b for b in boxes(svg) if TOP - 10 <= b.bottom <= PANEL]
    assert len(titles) == 2 and not any(a.meets(b) for a in titles for b in labels)


def test_points_at_the_right_edge_have_their_labels_at_the_left() -> None:
    times = StepTimes("d", (
        StepTime("attention_of_many_heads_7", "k", "", ("MatMul",), ("/m",), 10**9, 10**4, 1e-3),))
    svg = draw([roofline("m", times, Peaks("d", 0, 1e12, 0.0, (Bandwidth(1 << 28, 1e12),)))])
    check(svg)
    (label,) = [b for b in boxes(svg) if b.text.startswith("attention_of")]
    assert label.right <= WIDTH - 190


def test_texts_are_cut_to_what_fits() -> None:
    assert fitted("conv_17", 100, 10) == "conv_17"
    for width in range(0, 200, 7):
        cut = fitted("attention_of_many_heads", width, 10)
        assert width_of(cut, 10) <= width and ("attention_of_many_heads".startswith(cut[:-1]))
    assert fitted("attention", 8, 10) == ""


def test_colours_are_light_and_plain() -> None:
    for word in ("conv", "mul", "x", ""):
        found = colour(word)
        assert COLOUR.fullmatch(found)
        assert sum(int(found[k:k + 2], 16) for k in (1, 3, 5)) / 3 > 140
