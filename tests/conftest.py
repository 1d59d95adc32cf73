"""Options of the test run."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Times of examples say how busy the machine is: `timeout` of pytest's options bounds a whole test.
settings.register_profile("jitcl", deadline=None)
settings.load_profile("jitcl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true",
                     help="write tests/golden/ anew instead of comparing with it")
