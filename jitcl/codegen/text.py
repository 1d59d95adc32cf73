"""Numbers as people read them."""

from __future__ import annotations


def amount(n: float, unit: str) -> str:
    """1_500_000, "B" -> "1.5 MB"."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if n < 1000 or prefix == "E":
            return f"{n:.3g} {prefix}{unit}"
        n /= 1000
    return ""
