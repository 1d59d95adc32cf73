"""What the SVG pictures share: colours and text that every renderer draws alike.

Colours are `#rrggbb` in attributes of their own: CairoSVG draws what it can't read (hsl(), nested
style sheets) black. How wide letters are depends on the reader's font, so texts are cut to what the
widest of the usual fonts (DejaVu Sans) takes.
"""

from __future__ import annotations

import colorsys
import zlib

PAPER, INK = "#fbfbfa", "#2b2b2b"
WIDE, NARROW = frozenset("mwMWOQ@%…"), frozenset("fijlrtI ./:;,'|()[]-")


def colour(word: str) -> str:
    """A light colour that depends on a word alone."""
    hue = zlib.crc32(word.encode()) % 360 / 360
    return "#" + "".join(f"{round(255 * c):02x}" for c in colorsys.hls_to_rgb(hue, 0.78, 0.55))


def width_of(text: str, size: float) -> float:
    """Pixels that a text takes, at most: wide letters are as wide as the font is high."""
    return size * sum(1.0 if c in WIDE else 0.42 if c in NARROW else 0.75 if c.isupper() else 0.65
                      for c in text)


def fitted(text: str, width: float, size: float) -> str:
    """The text, or as much of it as fits, with a dot for the rest; "" where two letters don't."""
    if width_of(text, size) <= width:
        return text
    while text and width_of(text + "…", size) > width:
        text = text[:-1]
    return text + "…" if len(text) > 1 else ""
