"""Where a model was measured to be fastest (`jitcl bench --where`), for `device="auto"`.

An entry a model, precision, number of threads and set of drivers: with another driver, or another
version of one, nothing is known. It is of no device in particular, and lies with the reference's.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from jitcl import __version__, config
from jitcl.passes.options import Options
from jitcl.runtime.cache import DeviceCache, Key, kernel_cache
from jitcl.runtime.source import Source

log = logging.getLogger("jitcl.devices")


def remember(source: Source, options: Options, cache_dir: str | Path | None, spec: str,
             why: str) -> None:
    """The device, and in a line how that was found out."""
    _cache(cache_dir).put("model", _key(source, options), json.dumps([spec, why]).encode())


def known(source: Source, options: Options, cache_dir: str | Path | None) -> str | None:
    """The device for `device="auto"`; None where nothing was measured, or JITCL_DEVICE says which.
    """
    if config.get("device") != "auto":
        return None
    stored = _cache(cache_dir).get("model", _key(source, options))
    if stored is None:
        return None
    spec, why = json.loads(bytes(stored))
    log.info("device 'auto' is '%s' for model %s: %s", spec, source.name, why)
    config.say(1, f"device 'auto' is '{spec}' for model {source.name}: {why}")
    return str(spec)


def _cache(cache_dir: str | Path | None) -> DeviceCache:
    from jitcl.devices.reference import TARGET

    return kernel_cache(cache_dir).for_target(TARGET)


def _key(source: Source, options: Options) -> Key:
    from jitcl.devices.opencl import list_devices

    asked = replace(options, promoted=(), guard="off").key_parts()
    return Key({"model": source.digest, "of": "place", "threads": str(config.get("threads")),
                "devices": json.dumps([found.identity for found in list_devices()]),
                "jitcl": __version__, **asked}, f"place of {source.name}")


__all__ = ["known", "remember"]
