"""Whom the files belong to that jitcl executes or believes: docs/security.md says against whom.

    usable(root)              the folder, or a private temporary one where others could have written
    below(root, "faults")     a folder in it, made where it is missing; never one behind a link
    opened(path)              a file in it, for reading; only what this user or root has written
    key(root)                 what entries are authenticated with, where the folder is not at home

A folder is trusted where it, and each folder on the way to it from the user's home or from the
system's root, belongs to this user or root, and nobody else may write there. A folder with the
sticky bit, such as /tmp, may be on the way, as nobody can rename in it what isn't theirs.
"""

from __future__ import annotations

import errno
import functools
import hmac
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from jitcl import config, forking
from jitcl.errors import OptionError

PRIVATE = 0o700
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40                     # on the way to one file, as Linux has it
KEY_BYTES = 32
KEY_FILE = Path("jitcl") / "cache-key"
NOWHERE = Path(os.devnull) / "jitcl"    # nothing can be read or written there
POSIX = hasattr(os, "geteuid")      # elsewhere a user's folders are closed to others as it is

log = logging.getLogger("jitcl.cache")

class Untrusted(PermissionError):
    """A file or folder that others may have written, or that a link stands in place of."""


_decided: dict[Path, Path] = {}


# ---- which folder is used


def cache_root() -> Path:
    """What `usable` makes of JITCL_CACHE_DIR, or of the user's cache directory."""
    return usable(config.cache_root())


def usable(root: Path) -> Path:
    """The folder itself, absolute, where it can be trusted; else a temporary one of this process,
    after a warning that says why. It need not exist.
    """
    if str(root).startswith("~") and home() is not None:
        try:
            root = root.expanduser()
        except RuntimeError as error:
            raise OptionError(f"cache folder '{root}': there is no such user") from error
    if root == NOWHERE:
        return root
    if root not in _decided:
        _decided[root] = _decide(root)
    return _decided[root]


def _decide(root: Path) -> Path:
    if str(root).startswith("~"):
        log.warning("there is no home folder to keep the kernel cache in: HOME is not set, and the "
                    "system knows none. Kernels are kept for this process only. JITCL_CACHE_DIR "
                    "names a folder.")
        return _temporary()
    why = distrusted(root.absolute())
    if not why:
        return root.absolute()
    log.warning("the kernel cache %s is not used: %s Kernels are kept for this process only. "
                "JITCL_CACHE_DIR names another folder.", root, why)
    return _temporary()


@functools.cache
def _temporary() -> Path:
    """A private folder that goes with this process; NOWHERE where there can be none."""
    try:
        made = Path(tempfile.mkdtemp(prefix="jitcl-cache-"))
    except OSError as error:
        log.debug("no temporary folder: %s", error)
        return NOWHERE
    remove_at_exit(made)
    return NOWHERE if distrusted(made) else made


def remove_at_exit(path: Path) -> None:
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:    # a forked child must not take its parent's folder
            shutil.rmtree(path, ignore_errors=True)

    forking.at_end(remove)


# ---- what is trusted


def distrusted(folder: Path) -> str:
    """Why others could have written into a folder, and what to do; "" where none could. What does
    not exist is trusted.
    """
    if not POSIX:
        return ""
    above = home()
    for place, found in _way(folder):
        if above is not None and place != above and above.is_relative_to(place):
            continue                # whoever may change this has the user's home anyway
        last = place == folder or stat.S_ISDIR(found.st_mode) and _same(place, folder)
        why = _fault(found, place, last)
        if why:
            what = "" if place == folder else f"{place}, on the way to it, "
            return f"{what or 'it '}{why}"
    return ""


def _same(place: Path, folder: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(place, folder)
    return False


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Each folder and symbolic link on the way to a path, as far as there are any, itself last."""
    at, left, links = Path(path.anchor), list(path.parts[1:]), 0
    with suppress(OSError):
        yield at, at.lstat()
        while left:
            name = left.pop(0)
            if name == "..":
                at = at.parent
                continue
            found = (at / name).lstat()
            yield at / name, found
            if not stat.S_ISLNK(found.st_mode):
                at = at / name
                continue
            links += 1
            if links > MOST_LINKS:
                return
            target = Path(os.readlink(at / name))
            if target.is_absolute():
                at = Path(target.anchor)
                left = [*target.parts[1:], *left]
            else:
                left = [*target.parts, *left]


def _fault(found: os.stat_result, place: Path, last: bool) -> str:
    """What is wrong with a file, folder or link, "" if nothing. `last`: nobody else may write there
    at all; else the sticky bit suffices.
    """
    if found.st_uid not in _owners() and (last or found.st_uid not in _unmapped()):
        return (f"belongs to {_user(found.st_uid)}, who could put code there that would be run as "
                f"{_user(os.geteuid())}. " + ("`sudo -H` takes root's own." if os.geteuid() == 0
                                              else f"`ls -ld '{place}'` shows it."))
    if stat.S_ISLNK(found.st_mode) or not found.st_mode & WRITABLE_BY_OTHERS:
        return ""
    if not last and found.st_mode & stat.S_ISVTX:
        return ""
    if not found.st_mode & stat.S_IWOTH and _private_group(found.st_gid, place):
        return ""
    who = "all users" if found.st_mode & stat.S_IWOTH else f"group {_group(found.st_gid)}"
    return (f"may be written by {who} (mode {stat.S_IMODE(found.st_mode):04o}), who could put code "
            f"there that would be run as {_user(os.geteuid())}. `chmod go-w '{place}'` ends that; "
            "delete what it holds, as others may have made it.")


@functools.cache
def _owners_of(user: int) -> frozenset[int]:
    return frozenset((0, user))


def _owners() -> frozenset[int]:
    """User ids whose files are trusted: this user's and root's."""
    return _owners_of(os.geteuid())


@functools.cache
def _unmapped() -> frozenset[int]:
    """The id that the system's own folders have in a user namespace without root; empty elsewhere.
    """
    with suppress(OSError, ValueError):
        rows = [tuple(map(int, line.split()))
                for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if rows and (0, 0, 0xFFFFFFFF) not in rows:
            return frozenset((int(Path("/proc/sys/kernel/overflowuid").read_text()),))
    return frozenset()


def _private_group(group: int, place: Path) -> bool:
    """Whether a group has no other members: root's, or the one named as the user, whom many systems
    give one and umask 002. With an access control list, the group's bits stand for others, too.
    """
    with suppress(OSError, AttributeError):
        os.getxattr(place, "system.posix_acl_access", follow_symlinks=False)
        return False
    if group == 0:
        return True
    import grp
    import pwd

    try:
        user, of = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except (KeyError, OSError):
        return False
    return (user.pw_gid == group and of.gr_name == user.pw_name
            and set(of.gr_mem) <= {user.pw_name})


def _user(number: int) -> str:
    import pwd

    with suppress(KeyError):
        return f"user '{pwd.getpwuid(number).pw_name}'"
    return f"user {number}"


def _group(number: int) -> str:
    import grp

    with suppress(KeyError):
        return f"'{grp.getgrgid(number).gr_name}'"
    return str(number)


def home() -> Path | None:
    """The user's home without symbolic links, None where there is none."""
    text = os.path.expanduser("~")
    return None if not os.path.isabs(text) else Path(os.path.realpath(text))


# ---- folders and files below a root


def below(root: Path, *names: str, make: bool = True) -> Path:
    """A folder of a trusted root, made where it is missing (with `make`), readable by the user
    alone. OSError where one of them is a symbolic link, or others may write there.
    """
    folder = root
    if make:
        _make(root)
    for name in names:
        folder = folder / name
        if make:
            with suppress(FileExistsError):
                os.mkdir(folder, PRIVATE)
        _check(folder, stat.S_ISDIR, "folder")
    return folder


def _make(root: Path) -> None:
    """Make a root, and what is missing on the way to it."""
    if root.is_dir():
        return
    missing = [root]
    while not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder, PRIVATE)
    why = distrusted(root)          # in /tmp another could have been quicker
    if why:
        raise Untrusted(errno.EPERM, why, str(root))


def _check(path: Path, wanted: object, what: str) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise Untrusted(errno.ELOOP, f"'{path.name}' is a symbolic link, which is not followed; "
                      "delete it", str(path))
    if not wanted(found.st_mode):                           # type: ignore[operator]
        raise NotADirectoryError(errno.ENOTDIR, f"'{path.name}' is no {what}", str(path))
    why = _fault(found, path, last=True) if POSIX else ""
    if why:
        raise Untrusted(errno.EPERM, f"'{path.name}' {why}", str(path))


def opened(path: Path) -> BinaryIO:
    """A file for reading. OSError where it is a symbolic link, no plain file, or one that others
    may have written; its path leads through what `below` has checked.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Untrusted(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Untrusted(errno.EPERM, "it is no plain file", str(path))
        why = _fault(found, path, last=True) if POSIX else ""
        if why:
            raise Untrusted(errno.EPERM, f"it {why}", str(path))
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read(path: Path) -> bytes:
    """What a file holds. Raises OSError, as `opened` does."""
    with opened(path) as file:
        return file.read()


def created(path: Path) -> BinaryIO:
    """A new file for writing, readable by the user alone; OSError where there is one, or a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    return os.fdopen(os.open(path, flags | getattr(os, "O_BINARY", 0), 0o600), "wb")


def replace(path: Path, *chunks: bytes | bytearray | memoryview) -> None:
    """Write a file beside `path` and rename it there, so that nobody ever reads half of it. Raises
    OSError.

    There is no fsync: who reads the file notices what a power cut leaves behind.
    """
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with created(temporary) as file:
            for chunk in chunks:
                file.write(chunk)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def no_link(path: Path) -> Path:
    """A path to lock, or to write anew, where no symbolic link stands: a link is removed."""
    if path.is_symlink():
        with suppress(FileNotFoundError):
            path.unlink()
    return path


# ---- entries that this user has made


def key(root: Path) -> bytes:
    """What entries of a cache are authenticated with: b"" for one in the user's home, and where
    no key can be kept. A cache elsewhere may have been copied from others, or unpacked, so that all
    of it belongs to this user and none of it was made by them.
    """
    own = home()
    if not POSIX or own is None or not own.is_dir():
        return b""
    if Path(os.path.realpath(root)).is_relative_to(own):
        return b""
    named = os.environ.get("XDG_DATA_HOME", "")
    data = Path(named) if os.path.isabs(named) else own / ".local" / "share"
    return _key_in(data / KEY_FILE)


@functools.cache
def _key_in(path: Path) -> bytes:
    try:
        if distrusted(path.parent):
            return b""
        for _ in range(2):
            before = _inode(path)
            with suppress(FileNotFoundError, PermissionError):
                with opened(path) as file:
                    secret = not os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO)
                    found = file.read(KEY_BYTES + 1)
                if secret and len(found) == KEY_BYTES:
                    return found
            _write_key(path, before)
    except OSError as error:
        log.debug("no key for the kernel cache can be kept in %s: %s", path, error)
    return b""


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def _write_key(path: Path, bad: int | None) -> None:
    """A new key; one that another process was quicker with stays. What was there before, the inode
    `bad`, goes: others may read it."""
    _make(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(KEY_BYTES))
        if bad is not None and _inode(path) == bad:
            os.replace(temporary, path)
        else:
            with suppress(FileExistsError):
                os.link(temporary, path)
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def is_mine(path: Path) -> bool:
    """Whether a file belongs to this user, not to root (if that is another)."""
    return path.lstat().st_uid == os.geteuid()


def mac(secret: bytes, data: bytes) -> bytes:
    """The keyed digest of an entry's head: 32 bytes, zeros without a key."""
    return hmac.digest(secret, data, "sha256") if secret else bytes(32)


def authentic(secret: bytes, data: bytes, said: bytes) -> bool:
    return not secret or hmac.compare_digest(mac(secret, data), said)
