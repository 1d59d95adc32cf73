"""Configuration variables: defaults, parsing, errors, overrides, and what is part of cache keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitcl import config
from jitcl.cores import usable_cores
from jitcl.errors import OptionError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for var in config.VARIABLES:
        monkeypatch.delenv(var.name, raising=False)


def test_defaults():
    assert config.get("cache_dir") is None
    assert config.get("cache_size") is None
    assert config.get("threads") == usable_cores() >= 1
    assert config.get("cpu_width") is None
    assert config.get("device") == "auto"
    assert config.get("specialisations") == 8
    assert config.get("verify") is True
    assert config.get("templates") is True
    assert config.get("debug") == 0


@pytest.mark.parametrize(("name", "text", "value"), [
    ("THREADS", "3", 3),
    ("THREADS", " 3 ", 3),
    ("THREADS", "", usable_cores()),
    ("CPU_WIDTH", "16", 16),
    ("DEBUG", "4", 4),
    ("VERIFY", "off", False),
    ("TEMPLATES", "0", False),
    ("CACHE_DIR", "/a/b", Path("/a/b")),
    ("CACHE_SIZE", "0", 0),
    ("CACHE_SIZE", "1.5GB", 1_500_000_000),
    ("CACHE_SIZE", "64 kib", 65536),
    ("CACHE_SIZE", "3m", 3_000_000),
    ("QUIRKS", " +mali-operands , -pocl-3-half,", "+mali-operands,-pocl-3-half"),
])
def test_environment(monkeypatch, name, text, value):
    monkeypatch.setenv(f"JITCL_{name}", text)
    assert config.get(name.lower()) == value
    assert config.get(f"JITCL_{name}") == value


@pytest.mark.parametrize(("name", "text", "wanted"), [
    ("THREADS", "0", "a whole number from 1 up"),
    ("THREADS", "many", "a whole number from 1 up"),
    ("CPU_WIDTH", "5", "4, 8 or 16"),
    ("DEBUG", "5", "0 to 4"),
    ("VERIFY", "maybe", "0 or 1"),
    ("CACHE_SIZE", "2 bananas", "bytes, such as 500MB or 2GiB"),
    ("CACHE_SIZE", "-1", "bytes, such as 500MB or 2GiB"),
    ("CACHE_SIZE", "2i", "bytes, such as 500MB or 2GiB"),
    ("SPECIALISATIONS", "0", "a whole number from 1 up"),
    ("QUIRKS", "mali-operands", "+id to apply, -id to leave out, with commas"),
    ("QUIRKS", "+", "+id to apply, -id to leave out, with commas"),
])
def test_a_wrong_value_names_the_variable_what_was_got_and_wanted(monkeypatch, name, text, wanted):
    monkeypatch.setenv(f"JITCL_{name}", text)
    with pytest.raises(OptionError) as error:
        config.get(name.lower())
    assert str(error.value).splitlines()[0] == (
        f"environment variable JITCL_{name}: got '{text}', wanted {wanted}")


def test_no_such_variable():
    with pytest.raises(OptionError, match="no configuration variable 'thread'"):
        config.get("thread")
    with pytest.raises(OptionError, match="JITCL_THREADS"), config.override(thread=1):
        pass


def test_override_nests_and_restores(monkeypatch):
    monkeypatch.setenv("JITCL_THREADS", "7")
    with config.override(threads=2, verify=False, cache_dir="/x"):
        assert config.get("threads") == 2
        assert config.get("verify") is False
        assert config.get("cache_dir") == Path("/x")
        with pytest.raises(ZeroDivisionError), config.override(threads=3):
            assert config.get("threads") == 3
            assert config.get("verify") is False
            raise ZeroDivisionError
        assert config.get("threads") == 2
        with config.override(cache_dir=None):
            assert config.get("cache_dir") is None
    assert config.get("threads") == 7
    assert config.get("verify") is True


def test_override_is_checked():
    wanted = "override of JITCL_CPU_WIDTH: got '3', wanted 4, 8 or 16"
    with pytest.raises(OptionError, match=wanted), config.override(threads=2, cpu_width=3):
        pass
    assert config.get("threads") == usable_cores()


def test_key_parts_change_with_what_kernels_depend_on():
    base = config.key_parts()
    assert set(base) == {
        "JITCL_CPU_WIDTH", "JITCL_WINOGRAD", "JITCL_TEMPLATES", "JITCL_QUIRKS",
        "JITCL_CHECK_INDICES"}
    with config.override(templates=False):
        assert config.key_parts() != base
    with config.override(threads=1, debug=3):
        assert config.key_parts() == base


def test_unknown_variables_are_found(monkeypatch):
    monkeypatch.setenv("JITCL_THREDS", "2")
    assert "JITCL_THREDS" in config.unknown()
    monkeypatch.setenv("JITCL_THREADS", "2")
    assert "JITCL_THREADS" not in config.unknown()


@pytest.mark.parametrize("width", [60, 88])
def test_the_table_names_every_variable_and_fits(width):
    lines = config.table(width).splitlines()
    assert max(map(len, lines)) <= width
    heads = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert heads == [v.name for v in config.VARIABLES]


def test_here_holds_in_one_thread_alone_and_before_overrides():
    import threading
    elsewhere = []
    with config.override(threads=3), config.here(threads=1, debug=None):
        other = threading.Thread(target=lambda: elsewhere.append(config.get("threads")))
        other.start()
        other.join()
        assert config.get("threads") == 1 and config.get("debug") == 0
    assert elsewhere == [3]
    with pytest.raises(OptionError, match="THREADS"), config.here(threads=0):
        pass
