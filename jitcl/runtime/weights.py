"""Weights by content: once in the cache and once in memory, however many plans use them.

    plan for 3 rows    {"constants": [[1, "<f4", [64, 64], "5d41..."]]}  ─┐
    plan for 5 rows    {"constants": [[1, "<f4", [64, 64], "5d41..."]]}  ─┴─►  weights/5d41....jitcl

Constants of some size leave their plan, packed ones as they are packed. A plan names them by the
digest of their bytes; entries of the cache are called after it. In a process, plans use the same
mapped bytes, and a device uploads them once (devices/opencl/memory.py).

A plan whose weights are damaged or gone is no plan any more: it is compiled anew. So is one whose
weights are larger than the cache may be; its process shares them all the same.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitcl import forking
from jitcl.codegen.arranged import moved
from jitcl.codegen.plan import Keep, Plan
from jitcl.cores import usable_cores
from jitcl.errors import CacheError
from jitcl.ir.graph import Graph
from jitcl.runtime.cache import DeviceCache
from jitcl.runtime.serial import ALIGN, little_endian

KIND = "weights"
LEAST = 16 << 10                # bytes below which a constant is not worth a file of its own

_THREADS = 4                    # that write at once
_PENDING = 64 << 20             # bytes that wait for them

Bytes = np.ndarray[Any, Any]    # of u8, read-only

_alive: weakref.WeakValueDictionary[str, Bytes] = weakref.WeakValueDictionary()
_lock = forking.lock()


def needs(plan: Plan) -> list[str]:
    """What a plan's entry of the cache uses of others: its weights, and its kernels by name."""
    return [f"{KIND}/{digest}" for digest in dict.fromkeys(plan.weights.values())] + [
        k.entry for k in plan.kernels]


@dataclass(frozen=True)
class Weights:
    """Those of a device's cache."""

    cache: DeviceCache

    def held(self, plan: Plan) -> bool:
        """Whether the cache holds a plan with its large constants."""
        return self.cache.holds(_size(plan))

    def shared(self, plan: Plan) -> Plan:
        """The plan with its large constants in the cache, and read from there. Where they don't fit
        it has them as they are, if the cache holds it in memory, else shared with other plans.
        """
        fit = self.cache.has_room(_size(plan))
        if not fit and self.held(plan):
            return plan
        from concurrent.futures import ThreadPoolExecutor  # a warm start does without it

        constants, weights, large = dict(plan.constants), dict(plan.weights), _large(plan)
        with ThreadPoolExecutor(min(usable_cores(), _THREADS), "jitcl-weights") as threads:
            found = threads.map(lambda b: self._shared(large[b], b, fit), large)
            for buffer, one in zip(large, found):
                weights[buffer], constants[buffer] = one
        return replace(plan, constants=constants, weights=weights)

    @contextmanager
    def taken(self, graph: Graph) -> Iterator[Keep]:
        """Takes constants of a plan that is being written, which `shared` finds in the cache then:
        threads put them there meanwhile, and their memory serves those that are made next. Where
        those of the graph don't fit there, none is put."""
        from concurrent.futures import ThreadPoolExecutor

        pending: dict[Future[np.ndarray], int] = {}
        model = sum(n.type.nbytes for n in graph.nodes if n.op == "const")
        total = 0

        def take(array: np.ndarray) -> np.ndarray | Future[np.ndarray]:
            nonlocal total
            total += array.nbytes
            if array.nbytes < LEAST or not self.cache.has_room(max(model, total)):
                return array
            while sum(pending.values()) > _PENDING:
                for done in wait(pending, return_when=FIRST_COMPLETED).done:
                    del pending[done]
            future = threads.submit(lambda: self._shared(array, 0, True)[1])
            pending[future] = array.nbytes
            return future

        with ThreadPoolExecutor(min(usable_cores(), _THREADS), "jitcl-weights") as threads:
            yield take

    def _shared(self, array: np.ndarray, buffer: int, fit: bool) -> tuple[str, np.ndarray]:
        """The digest of an array, and its elements where all plans have them."""
        digest = _digest_of(array)
        if digest is None:
            data = little_endian(array, buffer).reshape(-1).view(np.uint8)
            digest = hashlib.sha256(data.data).hexdigest()[:40]
        else:
            data = array.reshape(-1).view(np.uint8)
        one = self._kept(digest, data) if fit else _one(digest, data.data)
        found = one.view(array.dtype).reshape(array.shape)
        moved({id(array): found})
        return digest, found

    def find(self, digest: str) -> Bytes:
        """Bytes of this digest; CacheError where they are damaged or gone."""
        with _lock:
            found = _alive.get(digest)
        if found is not None:
            self.cache.touch(KIND, digest)
            return found
        view = self.cache.get_mmap(KIND, digest)
        if view is None:
            raise CacheError(f"weights {digest} are not in the cache any more")
        return _one(digest, view)

    def _kept(self, digest: str, data: Bytes) -> Bytes:
        """The bytes as the cache has them from now on."""
        with _lock:
            found = _alive.get(digest)
        if found is not None and self.cache.touch(KIND, digest):
            return found
        view = self.cache.get_mmap(KIND, digest)
        if view is None:
            view = self.cache.put_mmap(KIND, digest, data.data)
        return _one(digest, data.data if view is None else view)


def _large(plan: Plan) -> dict[int, np.ndarray]:
    return {b: a for b, a in plan.constants.items() if a.nbytes >= LEAST}


def _size(plan: Plan) -> int:
    return sum(a.nbytes for a in _large(plan).values())


def _digest_of(array: np.ndarray) -> str | None:
    """Where it is one of the process's arrays."""
    with _lock:
        return next((digest for digest, one in _alive.items() if one is array.base
                     and one.nbytes == array.nbytes and array.flags.c_contiguous), None)


def _one(digest: str, view: memoryview) -> Bytes:
    """The process's array of these bytes: this one, unless there is one already. Arrays of a plan
    are views of it and keep it alive.
    """
    array = np.frombuffer(view, np.uint8)
    if array.ctypes.data % ALIGN:                   # not mapped: not in the cache's directory
        raw = np.empty(array.size + ALIGN, np.uint8)
        skip = -raw.ctypes.data % ALIGN
        raw[skip:skip + array.size] = array
        array = np.frombuffer(raw[skip:skip + array.size].data, np.uint8)
    array.flags.writeable = False
    with _lock:
        return _alive.setdefault(digest, array)


__all__ = ["KIND", "Weights", "needs"]
