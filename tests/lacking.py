"""Skips for what a machine may lack. Devices: tests/devices.py, models: tests/real_models.py."""

from __future__ import annotations

import os

import pytest


def missing(what: str, hint: str = "pip install -e '.[test]'") -> str:
    """Why tests that want something are skipped where it is missing. Where CI=true it may not be:
    FileNotFoundError, since nobody reads what a green run skipped.
    """
    if os.environ.get("CI") == "true":
        raise FileNotFoundError(f"{what} is missing: tests want it wherever CI=true. Have it "
                                f"({hint}), or unset CI to skip these tests")
    return f"{what} is missing"


def unless(there: object, why: str) -> pytest.MarkDecorator:
    """The mark that skips tests for this reason, unless what they want is there."""
    return pytest.mark.skipif(not there, reason=why or "it is there")
