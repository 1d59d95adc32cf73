"""A bundle to attach to a report: what `jitcl doctor` found, without what is private."""

from __future__ import annotations

import getpass
import os
import re
import socket
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# Variables that say how OpenCL drivers behave; every other one is left out.
OPENCL = ("CL_", "CUDA_VISIBLE_DEVICES", "ICD_", "MALI_", "NEO", "OCL_", "OPENCL_", "PAN_",
          "POCL_", "PYOPENCL_", "RUSTICL_")
SETTINGS = ("JITCL_", *OPENCL)
HOMES = re.compile(r"(/(?:home|Users|var/home)/)[^/\s\"':;,]+|([A-Za-z]:\\+Users\\+)[^\\\s\"':;,]+")


def environment() -> dict[str, str]:
    """The variables that matter to jitcl and to OpenCL drivers."""
    return {n: v for n, v in sorted(os.environ.items()) if n.startswith(SETTINGS)}


def secrets() -> dict[str, str]:
    """What no bundle may hold, and what stands in its place; the longest first."""
    found: dict[str, str] = {}
    for folder in (os.environ.get("HOME", ""), os.environ.get("USERPROFILE", ""),
                   os.path.expanduser("~")):
        if len(folder.rstrip("/\\")) > 1 and not folder.startswith("~"):
            found[folder.rstrip("/\\")] = "<home>"
    host = {socket.gethostname(), os.environ.get("HOSTNAME", ""), os.uname().nodename
            if hasattr(os, "uname") else ""}
    for name in host | {h.split(".")[0] for h in host}:
        if name and name != "localhost":
            found[name] = "<host>"
    users = {os.environ.get(n, "") for n in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    with suppress(KeyError, OSError, ImportError):          # no entry for this user's number
        users.add(getpass.getuser())
    for name in users - {"", "root"}:               # root is everyone's
        found[name] = "<user>"
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def scrubbed(text: str, hide: Mapping[str, str]) -> str:
    """The text with private words replaced where they stand as words of their own."""
    for word, instead in hide.items():
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])",
                      lambda _, instead=instead: instead, text)  # type: ignore[misc]
    return HOMES.sub(lambda m: f"{m[1] or m[2]}<user>", text)


def hidden(value: Any, hide: Mapping[str, str]) -> Any:
    """JSON values with every text scrubbed: before it is laid out, which may break a word."""
    if isinstance(value, str):
        return scrubbed(value, hide)
    if isinstance(value, dict):
        return {key: hidden(v, hide) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [hidden(v, hide) for v in value]
    return value


def write(path: Path, texts: Mapping[str, str]) -> None:
    """A zip file of these texts. Raises OSError."""
    with zipfile.ZipFile(path, "w") as bundle:
        for name, text in texts.items():
            bundle.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)    # no time of day


__all__ = ["environment", "hidden", "scrubbed", "secrets", "write"]
