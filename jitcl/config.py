"""Every `JITCL_*` environment variable, as data: default, parser, help, part of cache keys or not.

    config.get("threads")                  an override, else the environment, else the default
    with config.override(threads=2): ...   for tests and examples; holds for all threads
    config.key_parts()                     what must be part of every cache key
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jitcl.cores import usable_cores
from jitcl.errors import OptionError

PREFIX = "JITCL_"
ISOLATION = ("always", "untrusted", "never")
DEBUG_LEVELS = (
    "0 nothing, 1 what was chosen and timings, 2 the graph after each pass, "
    "3 kernels' head comments, 4 full sources"
)


@dataclass(frozen=True)
class Variable:
    """One environment variable. `parse` gets non-empty text; ValueError says it is wrong."""

    name: str                              # "JITCL_THREADS"
    parse: Callable[[str], Any]
    default: Callable[[], Any]             # evaluated at each read: it may depend on the machine
    allowed: str                           # for error messages: "a whole number from 1 up"
    help: str
    shown_default: str                     # for people
    in_key: bool = False                   # generated kernels depend on it

    @property
    def short(self) -> str:
        return self.name.removeprefix(PREFIX).lower()


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            raise ValueError(text)
        return value
    return parse


def _one_of(*allowed: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value not in allowed:
            raise ValueError(text)
        return value
    return parse


def _word(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ValueError(text)
        return text.strip().lower()
    return parse


def parse_fields(text: str) -> str:
    """'name=value,name=value' without blanks; ValueError where an item is not of that form."""
    items = ["".join(item.split()) for item in text.split(",") if item.strip()]
    if not all(re.fullmatch(r"[a-z_0-9]+=[\w.+-]+", item) for item in items):
        raise ValueError(text)
    return ",".join(items)


def parse_switches(text: str) -> str:
    """'+id, -id' without blanks; ValueError where an item has no sign or no name."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not all(re.fullmatch(r"[+-][\w.-]+", item) for item in items):
        raise ValueError(text)
    return ",".join(items)


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """Bytes from '500', '64k', '1.5GB' or '2GiB'; ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2]])


def parse_switch(text: str) -> bool:
    """True or False from 1/0, on/off, yes/no, true/false; ValueError for anything else."""
    value = text.strip().lower()
    if value in ("1", "on", "yes", "true"):
        return True
    if value in ("0", "off", "no", "false"):
        return False
    raise ValueError(text)


def cache_root() -> Path:
    """JITCL_CACHE_DIR, else the user's cache directory as the system names it; "~" where there is
    no home. Whether it can be trusted is `ownership.cache_root`'s to say.
    """
    configured = get("cache_dir")
    if configured is not None:
        return Path(configured)
    import platformdirs  # here: a configured directory saves its import

    try:
        return Path(platformdirs.user_cache_dir("jitcl", appauthor=False))
    except RuntimeError:                            # of its newer versions; older ones say "~/.."
        return Path("~")


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "JITCL_CACHE_DIR", lambda text: Path(text).expanduser(), lambda: None, "a directory",
        "where kernels and plans are cached", "the user's cache directory"),
    Variable(
        "JITCL_CACHE_SIZE", parse_bytes, lambda: None, "bytes, such as 500MB or 2GiB",
        "bound of the cache on disk; least recently used entries go first; 0 keeps it in memory",
        "a twentieth of the disk, 2GB at least"),
    Variable(
        "JITCL_THREADS", _whole(1), usable_cores, "a whole number from 1 up",
        "worker threads of the CPU device; any number gives the same results", "all usable cores"),
    Variable(
        "JITCL_CPU_WIDTH", _one_of(4, 8, 16), lambda: None, "4, 8 or 16",
        "f32 lanes of the CPU's vectors; on x86, 8 stands for a CPU of AVX2 alone, 4 for one of "
        "SSE alone", "the widest the CPU has", in_key=True),
    Variable(
        "JITCL_WINOGRAD", _one_of(0, 2, 4), lambda: None, "0, 2 or 4",
        "outputs along a side of Winograd's tiles, in the CPU's 3x3 convolutions that allow it; 0 "
        "for direct convolutions only", "what is reckoned to be fastest", in_key=True),
    Variable(
        "JITCL_DEVICE", lambda text: text.strip(), lambda: "auto",
        "a device as `jitcl devices` lists them", "the device that device='auto' takes", "auto"),
    Variable(
        "JITCL_SPECIALISATIONS", _whole(1), lambda: 8, "a whole number from 1 up",
        "input shapes a model keeps compiled; the least recently used goes first", "8"),
    Variable(
        "JITCL_FAMILIES", parse_switch, lambda: True, "0 or 1",
        "one plan for shapes that change from run to run; 0 compiles for each anew", "1"),
    Variable(
        "JITCL_QUEUE", _whole(1), lambda: 64, "a whole number from 1 up",
        "runs of a model that wait for their turn; `submit` blocks while there are as many", "64"),
    Variable(
        "JITCL_VERIFY", parse_switch, lambda: True, "0 or 1",
        "check the IR after each pass", "1"),
    Variable(
        "JITCL_TEMPLATES", parse_switch, lambda: True, "0 or 1",
        "0 compiles with generated loops only: slow, for finding a template's bug", "1",
        in_key=True),
    Variable(
        "JITCL_QUIRKS", parse_switches, lambda: "", "+id to apply, -id to leave out, with commas",
        "rows of the table of driver faults, switched by hand: `jitcl devices` lists those that "
        "apply", "those that apply", in_key=True),
    Variable(
        "JITCL_TARGET", parse_fields, lambda: "", "field=value with commas, such as "
        "max_vector_width=16,local_is_real=1",
        "overrides what was found out about an OpenCL device, to force a schedule", "as probed"),
    Variable(
        "JITCL_ISOLATION", _word(*ISOLATION), lambda: "untrusted", "always, untrusted or never",
        "when OpenCL kernels are built and tried in a process of their own: untrusted means on "
        "drivers that are not known good, and for features that no probe has proven", "untrusted"),
    Variable(
        "JITCL_CHECKS", parse_switch, lambda: True, "0 or 1",
        "run each new OpenCL kernel once on random data and compare with the interpreter", "1"),
    Variable(
        "JITCL_CHECK_INDICES", parse_switch, lambda: False, "0 or 1",
        "check indices that the model computes, too: one out of range raises InputError, where "
        "otherwise the nearest one inside is read, and none outside is written", "0", in_key=True),
    Variable(
        "JITCL_TUNING_SECONDS", _whole(0), lambda: None, "a whole number from 0 up",
        "seconds that a search for faster kernels may take; where it is set, a search that was cut "
        "short goes on when the model is compiled again", "30 for fast, 300 for wide, no bound for "
        "heavy"),
    Variable(
        "JITCL_BUILD_SECONDS", _whole(1), lambda: 60, "a whole number from 1 up",
        "seconds that an isolated build or first launch may take before it counts as hung", "60"),
    Variable(
        "JITCL_POCL_CPU", lambda text: text.strip(), lambda: None, "a CPU as LLVM names it",
        "the CPU that PoCL 3.0 and 3.1 generate code for", "one that PoCL's library was built for"),
    Variable(
        "JITCL_DEBUG", _whole(0, 4), lambda: 0, "0 to 4", "tells more on stderr: " + DEBUG_LEVELS,
        "0"),
)
_BY_SHORT = {v.short: v for v in VARIABLES}
_overrides: dict[str, Any] = {}
_here: ContextVar[Mapping[str, Any]] = ContextVar(
    "_here", default=MappingProxyType({}))


def variable(name: str) -> Variable:
    """The variable called 'threads' or 'JITCL_THREADS'; OptionError lists what there is."""
    short = name.removeprefix(PREFIX).lower()
    if short not in _BY_SHORT:
        known = ", ".join(v.name for v in VARIABLES)
        raise OptionError(f"no configuration variable '{name}'\n  There are: {known}")
    return _BY_SHORT[short]


def _parse(var: Variable, text: str, origin: str) -> Any:
    try:
        return var.parse(text)
    except (ValueError, OverflowError, RuntimeError):   # of numbers; of the home of ~nobody
        raise OptionError(
            f"{origin}: got '{text}', wanted {var.allowed}\n"
            f"  It sets: {var.help}\n"
            f"  Unset it for the default ({var.shown_default})."
        ) from None


def get(name: str) -> Any:
    """The value of a variable now. An empty environment variable counts as unset.

    Raises OptionError where the environment holds a wrong value.
    """
    var = variable(name)
    local = _here.get()
    if var.short in local:
        return local[var.short]
    if var.short in _overrides:
        return _overrides[var.short]
    text = os.environ.get(var.name, "").strip()
    return _parse(var, text, f"environment variable {var.name}") if text else var.default()


def say(level: int, text: str) -> None:
    """Write a line to stderr where JITCL_DEBUG is at least `level`."""
    if get("debug") >= level:
        sys.stderr.write(f"jitcl: {text}\n")


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    parsed = {}
    for name, value in values.items():
        var = variable(name)
        text = str(int(value)) if isinstance(value, bool) else str(value)
        parsed[var.short] = (
            var.default() if value is None else _parse(var, text, f"override of {var.name}"))
    return parsed


@contextmanager
def here(**values: Any) -> Iterator[None]:
    """`override` for this thread (this context) alone, before all others; None leaves a variable
    as it is.
    """
    parsed = _checked({n: v for n, v in values.items() if v is not None})
    token = _here.set({**_here.get(), **parsed})
    try:
        yield
    finally:
        _here.reset(token)


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Within the block, variables have these values (None: the default), in every thread.

    Values are checked as if they came from the environment; not for use from two threads at once.
    """
    parsed = _checked(values)
    before = dict(_overrides)
    _overrides.update(parsed)
    try:
        yield
    finally:
        _overrides.clear()
        _overrides.update(before)


def key_parts() -> dict[str, str]:
    """Named parts of every cache key: the variables that generated kernels depend on."""
    return {v.name: str(get(v.name)) for v in VARIABLES if v.in_key}


def unknown() -> tuple[str, ...]:
    """JITCL_* variables of the environment that mean nothing to jitcl: most likely slips."""
    known = {v.name for v in VARIABLES}
    return tuple(sorted(n for n in os.environ if n.startswith(PREFIX) and n not in known))


def table(width: int = 88) -> str:
    """The variables as text for `jitcl --help`: name, help wrapped to `width` columns, default."""
    indent = max(len(v.name) for v in VARIABLES) + 2
    lines = []
    for var in VARIABLES:
        text = f"{var.help} (default: {var.shown_default})"
        wrapped = textwrap.wrap(text, max(width - indent, 20))
        lines.append(f"{var.name:<{indent}}{wrapped[0]}")
        lines.extend(" " * indent + line for line in wrapped[1:])
    return "\n".join(lines)
