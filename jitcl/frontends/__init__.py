"""Frontends turn model files into graphs. Importing this package imports no model library."""

from __future__ import annotations

import hashlib


def model_digest(data: bytes | memoryview) -> str:
    """What a model is known by in caches: the digest of its file's bytes (external data not
    included)."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


__all__ = ["model_digest"]
