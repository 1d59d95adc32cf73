"""What the system lacked when something failed: that is no fault of a driver or a kernel, and says
nothing of the next time.

A driver's compiler on a full disk says "failed to build", or ends its process. So what fails is
followed by a look at what a compiler needs: room for files, files that may be opened, memory. What
was said of a failure tells, too, and so does a signal that a program does not die of by itself.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import re
import tempfile
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from jitcl.errors import DeviceError, JitclError, OutOfMemoryError

ROOM = 1 << 20                      # bytes that a compiler writes
FILES = 24                          # that it opens at once
MEMORY = 64 << 20                   # bytes that it allocates
TELLING = re.compile(
    r"no space left on device|disk quota exceeded|too many open files|cannot allocate memory"
    r"|read-only file system|no usable temporary directory|file too large|input/output error"
    r"|std::bad_alloc|llvm error: out of memory|memoryerror|can't start new thread"
    r"|resource temporarily unavailable|failed to map segment", re.I)
# no program dies of these by its own mistake: the system lacks memory, a limit was reached (CPU
# time, size of files), or somebody ended it
OUTSIDE = re.compile(r"(SIGKILL|SIGTERM|SIGINT|SIGHUP|SIGXCPU|SIGXFSZ|SIGPWR)\b")


CODES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
                   errno.EAGAIN, errno.EROFS))
P = ParamSpec("P")
T = TypeVar("T")


def telling(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with a JitclError for what Python raises where the system lacks something."""
    @functools.wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (ImportError, MemoryError, OSError, RuntimeError) as error:
            clear = system_error(error)
            if clear is None:
                raise
            raise clear from error
    return told


def system_error(error: Exception) -> JitclError | None:
    """What to raise for an error that says what the system lacks; None for any other."""
    said = str(error)
    if isinstance(error, MemoryError):
        return OutOfMemoryError(f"this system has no memory left{f': {said}' if said else ''}\n"
                                "  Use smaller inputs or batches, or end other programs.")
    known = getattr(error, "errno", None) in CODES
    why = said if known else shortage(said)
    if not why:
        return None
    return DeviceError(f"the system lacks something: {why}{'' if why in said else f' ({said})'}\n"
                       "  Free disk, memory, processes or open files (`df`, `free`, `ulimit -a`), "
                       "and run it again: nothing of this is remembered.")


def killed(signature: str) -> bool:
    """Whether a process that ended thus was ended by somebody else."""
    return OUTSIDE.match(signature) is not None


def shortage(*said: str) -> str:
    """What the system lacks now, or lacked by what was said of a failure; "" if nothing."""
    for text in said:
        told = OUTSIDE.match(text) or TELLING.search(text)
        if told is not None:
            return f"{told[0]}{', as without memory' if told[0] == 'SIGKILL' else ''}"
    try:
        return _files() or _room() or _memory() or (
            _limit() if any(text.startswith("SIG") for text in said) else "")
    except MemoryError:
        return "no memory is left"


def _room() -> str:
    """Where compilers write: PoCL's folder, and the one for temporary files."""
    usual = "/tmp" if os.name == "posix" else os.environ.get("TEMP", ".")
    for folder in (os.environ.get("POCL_CACHE_DIR"), os.environ.get("TMPDIR") or usual):
        try:
            with tempfile.TemporaryFile(dir=folder or usual) as file:
                file.write(bytes(ROOM))
        except (FileNotFoundError, NotADirectoryError):
            continue                        # it is made, or another one is taken
        except OSError as error:
            return f"{error.strerror or error}, in {folder or usual}"
    return ""


def _files() -> str:
    handles: list[int] = []
    try:
        for _ in range(FILES):
            handles.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return f"{error.strerror}: fewer than {FILES} may still be opened"
    finally:
        for handle in handles:
            os.close(handle)
    return ""


def _memory() -> str:
    try:
        mmap.mmap(-1, MEMORY).close()
    except OSError as error:
        return f"{error.strerror}: {MEMORY >> 20} MiB"
    return ""


def _limit() -> str:
    """A limit of memory that a process which crashed may have met: few programs take that well."""
    try:
        import resource
    except ImportError:                      # Windows
        return ""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if most == resource.RLIM_INFINITY else f"memory is limited to {most >> 20} MiB"
