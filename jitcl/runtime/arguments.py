"""What callers pass to the API, checked where it comes in: an error says which argument, what was
got and what was wanted. Elements that are fed: `arrays`.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jitcl import config
from jitcl.devices.load_options import PRIORITIES
from jitcl.devices.progress import Tally
from jitcl.errors import DeviceError, InputError, OptionError
from jitcl.target import Target

if TYPE_CHECKING:
    from jitcl.devices.base import Device


def shown(value: Any) -> str:
    """A wrong value in a message: small plain ones as they are written, others by their type."""
    if isinstance(value, (str, bytes, int, float, type(None))) and len(repr(value)) <= 80:
        return repr(value)
    return kind_of(value)


def kind_of(value: Any) -> str:
    """A value in a message, by its type."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def device_of(given: Any, tally: Tally | None = None) -> Device:
    """The device of `device=`: text, a row of `jitcl.devices()`, an open device, a queue of
    pyopencl's, None for "auto".
    """
    from jitcl.devices.base import DeviceInfo
    from jitcl.devices.select import open_device

    if isinstance(given, DeviceInfo):
        given = given.spec
    if given is None or isinstance(given, str):
        return open_device("auto" if given is None else given, tally, shared=True)
    if isinstance(getattr(given, "target", None), Target) and hasattr(given, "load"):
        found: Device = given
        return found
    kind = type(given)                      # pyopencl is imported where it is used
    if kind.__module__.startswith("pyopencl") and kind.__name__ == "CommandQueue":
        from jitcl.devices.opencl.device import device_of_queue

        return device_of_queue(given, tally)
    raise DeviceError(
        f"device: got {shown(given)}, wanted text such as 'auto', 'cpu' or 'opencl:0', one of "
        "jitcl.devices(), or a queue of pyopencl's")


def isolation_of(given: Any) -> str | None:
    """OptionError unless it is one of config.ISOLATION, or None."""
    if given is None or (isinstance(given, str) and given in config.ISOLATION):
        return given
    raise OptionError(
        f"isolation: got {shown(given)}, wanted one of {', '.join(config.ISOLATION)}, or None "
        "for JITCL_ISOLATION")


def priority_of(given: Any) -> str:
    """OptionError unless it is one of PRIORITIES."""
    if isinstance(given, str) and given in PRIORITIES:
        return given
    raise OptionError(f"priority: got {shown(given)}, wanted one of {', '.join(PRIORITIES)}")


def is_whole(given: Any, least: int = 1) -> bool:
    """Whether it is a whole number from `least` up, Python's or NumPy's. True is none."""
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool) and bool(
        given >= least)


def is_number(given: Any) -> bool:
    """Whether it is a number, Python's or NumPy's. True is none."""
    return isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)


def strict_of(given: Any) -> bool:
    """OptionError unless it is True or False: "no" would count as true."""
    if type(given).__name__ in ("bool", "bool_"):
        return bool(given)
    raise OptionError(f"strict: got {shown(given)}, wanted True or False")


def timeout_of(given: Any) -> float | None:
    """Seconds that can be waited; OptionError unless it is a number from 0 up, or None."""
    if given is None:
        return None
    if is_number(given) and given >= 0:
        return min(float(given), threading.TIMEOUT_MAX)
    raise OptionError(f"timeout: got {shown(given)}, wanted seconds from 0 up, or None")


def tally_of(given: Any) -> Tally:
    """A count of what `progress=` is told; OptionError unless that can be called as
    progress(done, total, what), or is None.
    """
    if given is None or isinstance(given, Tally):
        return Tally.of(given)
    wanted = "wanted a function progress(done, total, what), or None"
    if not callable(given):
        raise OptionError(f"progress: got {shown(given)}, {wanted}")
    check_takes("progress", given, (0, 1, ""), wanted)
    return Tally(given)


def check_takes(name: str, given: Any, values: tuple[Any, ...], wanted: str) -> None:
    """OptionError where a function can't be called with these."""
    try:
        inspect.signature(given).bind(*values)
    except TypeError as error:
        raise OptionError(f"{name}: {error}; {wanted}") from error
    except ValueError:                       # some that are written in C do not say what they take
        pass


def folder_of(given: Any) -> Path:
    """A directory's path, which need not be there; OptionError for what is none."""
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        raise OptionError(f"cache_dir: got {shown(given)}, wanted the path of a directory")
    text = os.fspath(given)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:      # half a character
        raise OptionError(f"cache_dir: {text!r} is no path here: {error}") from error
    if "\0" in text or not text:
        raise OptionError(f"cache_dir: {text!r} is no path"
                          + (": it has a zero byte in it" if text else ""))
    return Path(text)


def shapes_of(given: Any) -> Mapping[str, Any]:
    """InputError unless it is a dict by input names; {} for None."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return given
    raise InputError(f"shapes: got {shown(given)}, wanted a dict of input name -> shape, such as "
                     "{'image': (1, 3, 224, 224)}")


def check_searchable(device: Device, tuning: str) -> None:
    """OptionError where there is nothing to choose between on a device."""
    if tuning != "none" and device.target.kind != "opencl":
        raise OptionError(f"tuning={tuning!r} on device '{device.name}': kernels are searched for "
                          "on OpenCL devices only; use tuning='none'")
