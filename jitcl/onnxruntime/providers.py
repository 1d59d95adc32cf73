"""Execution providers: onnxruntime's word for devices."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitcl.errors import OptionError
from jitcl.onnxruntime.errors import InvalidArgument, made

OPENCL, CPU = "OpenCLExecutionProvider", "CPUExecutionProvider"
# what a provider's options may say: options of jitcl.compile
OPTIONS = ("device", "precision", "memory", "guard", "isolation", "priority", "cache_dir",
           "strict")


@dataclass(frozen=True)
class Choice:
    """What a session runs on: jitcl's device, and options of `jitcl.compile`."""

    device: str
    options: dict[str, Any] = field(default_factory=dict)


def get_available_providers() -> list[str]:
    """OpenCL's where this machine has a driver for it, and the CPU's."""
    from jitcl.devices.opencl import list_devices
    return [OPENCL, CPU] if list_devices() else [CPU]


def get_all_providers() -> list[str]:
    """All that jitcl has, whether they are here or not."""
    return [OPENCL, CPU]


def get_device() -> str:
    """"GPU" or "CPU": what a session without providers runs on."""
    from jitcl.devices.select import resolve_auto
    return "GPU" if resolve_auto()[0].startswith("opencl") else "CPU"


def choose(providers: Any, options: Any = None) -> Choice:
    """The first provider that is here; others are warned of, as onnxruntime does. None: the device
    "auto".
    """
    if providers is None or (isinstance(providers, Sequence) and not len(providers)):
        return Choice("auto")
    if isinstance(providers, (str, bytes)) or not isinstance(providers, Sequence):
        raise made(OptionError, InvalidArgument,
                   f"providers: got {providers!r}, wanted a list such as ['{CPU}']")
    given = [_pair(p) for p in providers]
    if options is not None:
        if len(options) != len(given):
            raise made(OptionError, InvalidArgument, f"provider_options has {len(options)} entries "
                                                     f"for {len(given)} providers")
        if any(o for _, o in given):
            raise made(OptionError, InvalidArgument,
                       "options are given both in providers and as provider_options")
        given = [(name, o) for (name, _), o in zip(given, options)]
    plain = all(name == CPU for name, _ in given)   # then no driver is looked for, or loaded
    here = [CPU] if plain else get_available_providers()
    for name, _ in given:
        if name not in here:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. Available "
                f"providers: '{', '.join(here)}'", stacklevel=4)
    for name, own in given:
        if name in here:
            return _choice(name, own)
    return _choice(CPU, {})


def _pair(provider: Any) -> tuple[str, Any]:
    if isinstance(provider, str):
        return provider, {}
    if isinstance(provider, tuple) and len(provider) == 2 and isinstance(provider[0], str):
        return provider
    raise made(OptionError, InvalidArgument,
               f"providers: got {provider!r}, wanted a name, or a pair of name and options")


def _choice(name: str, options: Any) -> Choice:
    if not isinstance(options, Mapping):
        raise made(OptionError, InvalidArgument,
                   f"options of {name}: got {options!r}, wanted a dict")
    unknown = [o for o in options if o not in OPTIONS]
    if unknown:
        raise made(OptionError, InvalidArgument, f"{name} has no option '{unknown[0]}'; there are "
                                                 f"{', '.join(OPTIONS)}, as in jitcl.compile")
    rest = dict(options)
    device = rest.pop("device", None)
    if device is None:
        device = "cpu" if name == CPU else _opencl()
    if str(device).startswith("opencl") != (name == OPENCL):
        raise made(OptionError, InvalidArgument, f"{name}: '{device}' is no device of it")
    return Choice(device, rest)


def _opencl() -> str:
    """The GPU that "auto" takes, else the first OpenCL device."""
    from jitcl.devices.select import resolve_auto
    auto = resolve_auto()[0]
    return auto if auto.startswith("opencl") else "opencl"


__all__ = ["CPU", "OPENCL", "Choice", "choose", "get_all_providers", "get_available_providers",
           "get_device"]
