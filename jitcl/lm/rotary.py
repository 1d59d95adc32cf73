"""Angles of rotary positions, and the ways in which models stretch them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitcl.errors import ModelError, UnsupportedError
from jitcl.lm.settings import Settings


@dataclass(frozen=True, eq=False)
class Rotary:
    """Radians by which a position turns each pair, and what cosines and sines are scaled by."""

    frequencies: np.ndarray                 # [pairs], float32
    scale: float = 1.0
    holds: int | None = None                # up to so many tokens; None: of any length

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(cosines, sines) [..., pairs], float32, of positions [...]."""
        angles = positions.astype(np.float32)[..., None] * self.frequencies
        factor = np.float32(self.scale)
        return np.cos(angles) * factor, np.sin(angles) * factor


def rotary(c: Settings, head_size: int, layer_type: str = "") -> Rotary:
    """What a configuration asks for: `rope_parameters`, of a layer type where there are several, or
    `rope_theta` and `rope_scaling` as older files have them.
    """
    p: Mapping[str, Any] = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if isinstance(p, Mapping) and layer_type in p:
        p = p[layer_type]
    if not isinstance(p, Mapping):
        raise ModelError(f"{c.place}: 'rope_parameters' or 'rope_scaling' is {p!r}: wanted an "
                         "object")
    s = Settings({"rope_theta": c.get("rope_theta", 10000.0),
                  "partial_rotary_factor": c.get("partial_rotary_factor", 1.0), **p}, c.place)
    base = s.positive("rope_theta")
    size = c.whole("rotary_dim", int(head_size * s.positive("partial_rotary_factor")))
    plain = 1.0 / base ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    kind = s.get("rope_type") or s.get("type") or "default"
    if kind not in KINDS:
        raise UnsupportedError(f"{c.place}: rotary positions of type '{kind}' are not supported: "
                               f"jitcl has {', '.join(KINDS)}")
    found = KINDS[kind](s, c, plain.astype(np.float32), base)
    return replace(found, frequencies=found.frequencies.astype(np.float32))


def _default(s: Settings, c: Settings, plain: np.ndarray, base: float) -> Rotary:
    return Rotary(plain)


def _linear(s: Settings, c: Settings, plain: np.ndarray, base: float) -> Rotary:
    return Rotary(plain / np.float32(s.positive("factor")))


def _dynamic(s: Settings, c: Settings, plain: np.ndarray, base: float) -> Rotary:
    """The base grows with a text that is longer than the model was trained for ("NTK-aware"): what
    is cached of it would be turned otherwise. So a text is no longer.
    """
    return Rotary(plain, holds=int(c.positive("max_position_embeddings")))


def _llama3(s: Settings, c: Settings, plain: np.ndarray, base: float) -> Rotary:
    """Low frequencies are slowed down, high ones stay (Llama 3.1)."""
    factor, length = s.positive("factor"), s.positive("original_max_position_embeddings")
    low, high = s.number("low_freq_factor"), s.number("high_freq_factor")
    turns = length * plain / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return Rotary((1 - smooth) * plain / factor + smooth * plain)


def _yarn(s: Settings, c: Settings, plain: np.ndarray, base: float) -> Rotary:
    """Peng et al., 2023, "YaRN"."""
    pairs = len(plain)
    context = c.positive("max_position_embeddings")
    length = s.positive("original_max_position_embeddings", context)
    factor = s.positive("factor", context / length)
    fast, slow = s.positive("beta_fast", 32), s.positive("beta_slow", 1)

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(length / (times * 2 * math.pi)) / math.log(base)

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if s.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = np.clip((np.arange(pairs, dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
    scale = s.number("attention_factor", _mscale(s, factor))
    return Rotary(plain / factor * ramp + plain * (1 - ramp), scale)


def _mscale(s: Settings, factor: float) -> float:
    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

    part, whole = s.get("mscale"), s.get("mscale_all_dim")
    return grown(part) / grown(whole) if part and whole else grown(1.0)


def _longrope(s: Settings, c: Settings, plain: np.ndarray, base: float) -> Rotary:
    """Factors for each pair: those of short texts, which hold up to the length that the model was
    first trained for (Ding et al., 2024, "LongRoPE")."""
    context = c.positive("max_position_embeddings")
    length = c.positive("original_max_position_embeddings",
                        s.positive("original_max_position_embeddings", context))
    factor = s.positive("factor", context / length)
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
    short = s.numbers("short_factor", len(plain))
    holds = int(length) if s.get("long_factor", short) != short else None
    return Rotary(plain / np.array(short, np.float32), s.number("attention_factor", scale), holds)


KINDS = {"default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3,
         "yarn": _yarn, "longrope": _longrope, "su": _longrope}     # its old name
