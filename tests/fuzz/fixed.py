"""Draws that depend on nothing but the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def without_local_constants() -> Iterator[None]:
    """Hypothesis (from 6.131 on) mixes numbers that it reads in the project's sources into what it
    draws: other graphs come whenever a module changes, or another one is imported. It has no
    setting for that. Without them a selection is the same from run to run, and from change to
    change.
    """
    try:
        from hypothesis.internal.conjecture import providers
        empty = providers.Constants()
        provider, cache = providers.HypothesisProvider, providers.CONSTANTS_CACHE
        assert hasattr(provider, "_local_constants")
    except (ImportError, AttributeError, AssertionError):       # another version: nothing to undo
        yield
        return
    cache.cache.clear()
    with mock.patch.object(provider, "_local_constants", empty):
        yield
    cache.cache.clear()


__all__ = ["without_local_constants"]
