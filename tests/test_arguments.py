"""Numbers that callers pass: NumPy's are as good as Python's, and what is none is refused."""

import numpy as np
import pytest

import jitcl
from jitcl.lm.sampling import Sampling
from jitcl.runtime.arguments import is_number, is_whole, timeout_of


@pytest.mark.parametrize("given", [2, np.int64(2), np.uint8(2), *np.arange(2, 3)])
def test_whole_numbers(given):
    assert is_whole(given) and is_whole(given, 2) and not is_whole(given, 3) and is_number(given)


@pytest.mark.parametrize("given", [True, np.True_, 2.0, np.float32(2), "2", None, [2], np.ones(1)])
def test_what_is_no_whole_number(given):
    assert not is_whole(given, 0)


@pytest.mark.parametrize("given", [0.5, np.float16(0.5), np.float32(0.5), np.float64(0.5)])
def test_numbers(given):
    assert is_number(given) and timeout_of(given) == 0.5
    assert Sampling.of({"top_p": given}, {}).top_p == 0.5


@pytest.mark.parametrize("given", [True, np.False_, "0.5", 1j, np.zeros(1)])
def test_what_is_no_number(given):
    assert not is_number(given)
    with pytest.raises(jitcl.OptionError, match="timeout: got"):
        timeout_of(given)


def test_the_api_takes_them():
    assert len(jitcl.Pool(None, np.int32(3))._jobs) == 3
