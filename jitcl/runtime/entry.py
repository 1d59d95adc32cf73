"""One file of the kernel cache: a header that says what it is, a payload, and digests of both.

    0   8s   magic "JITCLENT"            24  32s  sha256 of bytes 0..24 and from 64 on
    8   u32  format version              56  8s   zero
    12  u32  bytes of the header         64  32s  keyed sha256 of 0..24 and the header, or zeros
    16  u64  bytes of the payload        96       header: JSON
                                         ...      zeros up to the payload's alignment, payload

The payload of a large entry starts on a page, so that constants in it can be used where they are
mapped. Small payloads carry a SHA-256. Large ones carry a hash of 128 bits that is no cryptographic
one (XXH3): 100 MB take 6 ms (CRC-32: 15 to 50 ms, SHA-256: 50 to 250 ms). Neither guards against an
attacker: a cache that is not in the user's home has a key (jitcl/ownership.py), and SHA-256 for all
that is code.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from jitcl import ownership
from jitcl.errors import CacheError
from jitcl.runtime.mapping import mapped as map_file

MAGIC = b"JITCLENT"
VERSION = 3
SMALL = 1 << 20                      # bytes of payload up to which SHA-256 takes under 3 ms
PAGE = 4096
_FIXED = struct.Struct("<8sIIQ32s8s32s")
NO_CODE = frozenset(("weights",))    # kinds that hold numbers, by the hundred megabytes
_SIGNED = 24                         # bytes of _FIXED before its digest

Buffer = bytes | bytearray | memoryview


class DamagedEntry(CacheError):
    """An entry's file is not what it should be. Never leaves the cache: the entry is dropped."""


@dataclass(frozen=True)
class Entry:
    """An entry on disk. `nbytes` is the file's size, `used` the time of its last use (seconds);
    `uses` and `provides` are names, by which entries need one another.
    """

    device: str              # name of the device's directory
    kind: str
    digest: str
    nbytes: int
    used: float
    path: Path
    subject: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    damaged: str = ""        # what is wrong with the header
    uses: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return f"{self.kind}/{self.digest}", *self.provides

    def with_head(self) -> Entry:
        """With all that the file's header says."""
        try:
            head = read_head(self.path)
        except (OSError, DamagedEntry) as error:
            return replace(self, damaged=str(error))
        return replace(self, subject=head.get("subject", ""), parts=head.get("parts", {}),
                       uses=tuple(head.get("uses", ())), provides=tuple(head.get("provides", ())))


def _payload_offset(header_bytes: int, payload_bytes: int) -> int:
    align = 64 if payload_bytes <= SMALL else PAGE
    return -(-(_FIXED.size + header_bytes) // align) * align


def _checksum(chunks: Iterable[Buffer], nbytes: int, strong: bool) -> str:
    name, digest = (("sha256", hashlib.sha256()) if nbytes <= SMALL or strong else
                    ("xxh3", xxhash.xxh3_128()))
    for chunk in chunks:
        digest.update(chunk)
    return f"{name}:{digest.hexdigest()}"


def _strong(identity: dict[str, Any], key: bytes) -> bool:
    """Whether the payload's checksum must withstand an attacker."""
    return bool(key) and identity.get("kind") not in NO_CODE


def pack_head(identity: dict[str, Any], chunks: Sequence[Buffer], key: bytes = b"") -> bytes:
    """All that stands before the payload. `identity`: JSON values, read back by `parse_head`."""
    nbytes = sum(len(c) for c in chunks)
    header = dict(identity, checksum=_checksum(chunks, nbytes, _strong(identity, key)))
    text = json.dumps(header, separators=(",", ":")).encode()
    signed = _FIXED.pack(MAGIC, VERSION, len(text), nbytes, b"", b"", b"")[:_SIGNED]
    mac = ownership.mac(key, signed + text)
    head = signed + hashlib.sha256(signed + mac + text).digest() + bytes(8) + mac + text
    return head.ljust(_payload_offset(len(text), nbytes), b"\0")


def parse_head(view: Buffer, key: bytes = b"") -> tuple[dict[str, Any], int, int]:
    """(header, payload's offset, payload's bytes) of a file's beginning; raises DamagedEntry.
    `key`: what it must have been written with, b"" for any.
    """
    if len(view) < _FIXED.size:
        raise DamagedEntry(f"truncated: {len(view)} bytes")
    magic, version, header_bytes, nbytes, digest, zero, mac = _FIXED.unpack_from(view)
    if magic != MAGIC or zero != bytes(8):
        raise DamagedEntry("not an entry of jitcl's cache")
    if version != VERSION:
        raise DamagedEntry(f"format version {version}, wanted {VERSION}")
    text = bytes(view[_FIXED.size:_FIXED.size + header_bytes])
    signed = bytes(view[:_SIGNED])
    if hashlib.sha256(signed + mac + text).digest() != digest:
        raise DamagedEntry("header does not match its digest")
    if not ownership.authentic(key, signed + text, mac):
        raise DamagedEntry("not made with this user's key: by another user, or with another HOME")
    return json.loads(text), _payload_offset(header_bytes, nbytes), nbytes


def check(view: memoryview, identity: dict[str, str], key: bytes = b"", whole: bool = True
          ) -> memoryview:
    """The payload of a whole file; raises DamagedEntry if it is damaged, another identity's, or was
    not made with the key, where one is given. whole: whether the payload is looked at, too.
    """
    header, offset, nbytes = parse_head(view, key)
    for name, wanted in identity.items():
        if header.get(name) != wanted:
            raise DamagedEntry(f"foreign: {name} is {header.get(name)!r}, wanted {wanted!r}")
    if len(view) != offset + nbytes:
        raise DamagedEntry(f"{len(view)} bytes, wanted {offset + nbytes}")
    used = _FIXED.size + int.from_bytes(view[12:16], "little")
    if bytes(view[used:offset]).strip(b"\0"):
        raise DamagedEntry("padding is not zero")
    payload = view[offset:]
    if not whole:
        return payload
    strong = header["checksum"].startswith("sha256:")       # root's key may have asked for it
    if _strong(header, key) and not strong or (
            _checksum([payload], nbytes, strong) != header["checksum"]):
        raise DamagedEntry("payload does not match its digest")
    return payload


def read(path: Path, mapped: bool = False) -> memoryview:
    """A file's bytes, read-only; `mapped` maps instead of copying. Raises OSError."""
    with _trusted(path) as file:
        return map_file(file) if mapped else memoryview(file.read())


def read_head(path: Path) -> dict[str, Any]:
    """A file's header without its payload. Raises OSError, DamagedEntry."""
    with _trusted(path) as file:
        start = file.read(PAGE)
        if len(start) >= _FIXED.size:
            missing = _FIXED.size + _FIXED.unpack_from(start)[2] - len(start)
            if missing > 0:
                start += file.read(missing)
    return parse_head(start)[0]


def _trusted(path: Path) -> BinaryIO:
    try:
        return ownership.opened(path)
    except ownership.Untrusted as error:
        raise DamagedEntry(f"foreign: {error.strerror}") from error


def write(path: Path, identity: dict[str, Any], chunks: Sequence[Buffer], key: bytes = b"") -> int:
    """Write a file as `ownership.replace` does; returns its bytes. Raises OSError."""
    head = pack_head(identity, chunks, key)
    ownership.replace(path, head, *chunks)
    return len(head) + sum(len(c) for c in chunks)
