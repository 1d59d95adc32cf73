"""Options of the test run, and which of two like cases the quick run takes."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import drawn

# Times of examples say how busy the machine is: `timeout` of pytest's options bounds a whole test.
settings.register_profile("jitcl", deadline=None)
settings.load_profile("jitcl")


# how tests name OpenCL drivers: by device, by what one poses as, by platform
DRIVER = re.compile(r"(.*:)?(pocl|intel|Portable|Intel\(R\))")


@pytest.fixture(autouse=True)
def _random_data() -> Iterator[None]:
    """What a test draws through `tests.drawn` depends on no other test."""
    drawn.start()
    yield
    drawn.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true",
                     help="write tests/golden/ anew instead of comparing with it")
    parser.addoption("--every", type=int, default=1, metavar="N",
                     help="of the tests that are chosen, run every N-th: a sample")


@pytest.hookimpl(tryfirst=True)                 # before pytest's own, which leaves out slow ones
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of tests marked `in_turn` the quick run takes each case on one OpenCL driver, another from
    case to case: what is generated for it is much the same. Of those of other drivers every fourth
    is slow, the rest long.
    """
    cases: dict[tuple[str, str], dict[str, pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("in_turn") is None:
            continue
        test, _, given = item.nodeid.removesuffix("]").partition("[")
        parts = given.split("-")
        driver = next((part for part in parts if DRIVER.fullmatch(part)), None)
        if driver is not None:
            rest = "-".join(part for part in parts if part != driver)
            cases.setdefault((test, rest), {})[driver] = item
    for turn, found in enumerate(cases.values()):
        drivers = sorted(found)
        for driver in drivers[:turn % len(drivers)] + drivers[turn % len(drivers) + 1:]:
            found[driver].add_marker(pytest.mark.long if turn // len(drivers) % 4
                                     else pytest.mark.slow)
    _sample(items)


@pytest.hookimpl(wrapper=True)                  # behind -m and -k
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    session.items[:] = session.items[::session.config.getoption("--every")]
    return (yield)


def _sample(items: list[pytest.Item]) -> None:
    """Of a test marked `sampled(quick=n, slow=m)` the quick run takes every n-th of the cases that
    are left to it, the slow run every m-th of the others; the rest is long. A number that has no
    divisor in common with the length of a parameter's list meets all its values.
    """
    quick, slow = defaultdict(itertools.count), defaultdict(itertools.count)     # by test
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None or item.get_closest_marker("long"):
            continue
        test = item.nodeid.partition("[")[0]
        n, m = _every(**mark.kwargs)
        if not item.get_closest_marker("slow"):
            if next(quick[test]) % n == 0:
                continue
            item.add_marker(pytest.mark.slow)
        if next(slow[test]) % m:
            item.add_marker(pytest.mark.long)


def _every(quick: int = 1, slow: int = 8) -> tuple[int, int]:
    return quick, slow
