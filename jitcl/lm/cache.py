"""Keys and values of texts, which stay where they are, in the host's memory or on an OpenCL device,
and the runs that read them there.

A text has a slot: a row of each layer's array [slots, room, 2 * heads, size]. So a run of one text
reads a slot, one of several the first slots, both where they lie. Places without a token hold
finite numbers: they count for nothing, but 0 * NaN is NaN.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jitcl.errors import DeviceError
from jitcl.lm.decoder import ROOM, Decoder
from jitcl.lm.rows import DeviceRows, HostRows, Made, Rows
from jitcl.runtime.bound import Bound

BLOCKS = 4              # of layers, each one memory: to grow takes a block's memory once more
SPARE = 16              # times what a text of full length takes: with so much memory, one block

Bind = Callable[[Mapping[str, Any]], Bound]


class Slot:
    """Where the keys and values of a text's tokens `ids` are."""

    def __init__(self, cache: Cache, index: int) -> None:
        self.cache, self.index = cache, index
        self.ids: list[int] = []
        self.used = 0                       # when a text last asked for it

    def shared(self, ids: Sequence[int]) -> int:
        """How many of its first tokens are the first of `ids`, too."""
        if self.ids == ids[:len(self.ids)]:
            return len(self.ids)
        return next(k for k, (a, b) in enumerate(zip([*self.ids, -1], [*ids, -2])) if a != b)

    def shorten(self, kept: int) -> None:
        """Forget all but the first tokens."""
        for rows in self.cache.rows:
            rows.clear(self.index, kept, len(self.ids))
        self.cache.settle()
        del self.ids[kept:]


class Cache:
    """Slots, one at first. device: where they lie; None, or no OpenCL device: on the host."""

    def __init__(self, decoder: Decoder, dtype: Any, device: Any = None) -> None:
        self._row, self._dtype = (2 * decoder.shared, decoder.head_size), dtype
        self._device = device
        each = -(-decoder.layers // self._count(decoder))
        self._blocks = [range(k, min(k + each, decoder.layers))
                        for k in range(0, decoder.layers, each)]
        self.rows = [self._made(block, 1, ROOM) for block in self._blocks]
        self.slots, self.room, self._uses = [Slot(self, 0)], ROOM, 0
        self._bound: dict[Any, tuple[Any, Bound]] = {}      # kernels -> (first slot, reads), run

    def _count(self, decoder: Decoder) -> int:
        """Of blocks: a copy of all layers' new rows takes as many commands."""
        nbytes = (decoder.layers * decoder.context * math.prod(self._row)
                  * np.dtype(self._dtype).itemsize)
        target = getattr(self._device, "target", None)
        one = target is not None and (
            SPARE * nbytes <= target.global_memory and nbytes <= target.max_allocation)
        return 1 if one else BLOCKS

    def _made(self, block: range, slots: int, room: int) -> Rows:
        shape = (len(block), slots, room, *self._row)
        if getattr(self._device, "session", None) is None:
            return HostRows(shape, self._dtype)
        return DeviceRows(shape, self._dtype, self._device)

    @property
    def lost(self) -> bool:
        """Whether it lay on a device that was."""
        return any(rows.lost for rows in self.rows)

    def renew(self) -> list[list[int]]:
        """As many slots, of no tokens; those that they had."""
        self.unbind()
        self.rows = [self._made(block, len(self.slots), self.room) for block in self._blocks]
        had = [slot.ids for slot in self.slots]
        for slot in self.slots:
            slot.ids = []
        return had

    def settle(self) -> None:
        """Wait for what was copied."""
        for rows in self.rows[:1]:
            rows.settle()

    def slot(self, ids: Sequence[int], taken: Collection[Slot], most: int = 1) -> Slot:
        """The one that shares most tokens with a text, of those that are not taken; of several the
        one that was not used for longest. A new one where all are taken, or where there are fewer
        than `most` and that one holds another text, more than half of it: its tokens are kept for
        whoever asks next, and those that both share are copied."""
        free = [s for s in self.slots if s not in taken]
        found = max(free, key=lambda s: (s.shared(ids), -s.used), default=None)
        shared = found.shared(ids) if found else 0
        if found is None or (len(self.slots) < most and 2 * shared < len(found.ids)):
            self.grow(len(self.slots) + 1)
            found, old = self.slots[-1], found
            if old is not None:
                for rows in self.rows:
                    rows.copied(found.index, rows, old.index, shared)
                self.settle()
                found.ids = old.ids[:shared]
        self._uses += 1
        found.used = self._uses
        return found

    def grow(self, slots: int = 0, tokens: int = 0) -> None:
        """For so many slots, and tokens in each."""
        slots, held = max(slots, len(self.slots)), len(self.slots)
        room = max(self.room, -(-tokens // ROOM) * ROOM)
        if (slots, room) == (held, self.room):
            return
        self.unbind()
        for k, (block, rows) in enumerate(zip(self._blocks, self.rows)):
            self.rows[k] = self._made(block, slots, room)
            for slot in self.slots:
                self.rows[k].copied(slot.index, rows, slot.index, len(slot.ids))
            self.settle()
        self.slots += [Slot(self, k) for k in range(held, slots)]
        self.room = room

    def first(self, texts: Sequence[Slot], count: int) -> list[Slot]:
        """The first `count` slots, among which these texts' are: what is in their way changes
        places with them."""
        self.grow(count)
        away = [s for s in texts if s.index >= count]
        free = [s for s in self.slots[:count] if s not in texts]
        for a, b in zip(away, free):
            most = max(len(a.ids), len(b.ids))
            for rows in self.rows:
                rows.swap(a.index, b.index, most)
            self.settle()
            a.index, b.index = b.index, a.index
            self.slots[a.index], self.slots[b.index] = a, b
        return self.slots[:count]

    def bound(self, kernels: Any, slots: Sequence[Slot], bind: Bind) -> Bound:
        """A run of these kernels on neighbouring slots; each has one, for the slots it last had."""
        place = slots[0].index, self.reads(slots)
        at, found = self._bound.get(kernels, (None, None))
        if found is None or at != place:
            if found is not None:
                found.close()
            first, read = place
            found = bind({f"past.{k}": layer if read == self.room else layer[:, :read]
                          for block, rows in zip(self._blocks, self.rows)
                          for k, layer in zip(block, rows.slots(first, len(slots)))})
            self._bound[kernels] = place, found
        return found

    def reads(self, slots: Sequence[Slot]) -> int:
        """How many places of neighbouring slots a run reads: where one lies on the host, no more
        than its text has, in steps of ROOM; what a longer one left there takes no time."""
        if len(slots) > 1 or not isinstance(self.rows[0], HostRows):
            return self.room
        return max(ROOM, -(-len(slots[0].ids) // ROOM) * ROOM)

    def run(self, bound: Bound, slots: Sequence[Slot], parts: Sequence[Sequence[int]],
            meanwhile: Callable[[], None]) -> Mapping[str, Any]:
        """A run of `bound`, which adds tokens to slots, and their keys and values: behind its
        kernels, before the host waits for these, where a run has a queue. meanwhile: is called
        then."""
        kept, behind = bound.kept, bound.behind if bound.kept else None

        def copied(queue: Any) -> list[Any]:
            events = self._put(slots, parts, kept, queue)
            queue.flush()                   # the device goes on meanwhile
            meanwhile()
            return events

        if behind is not None:
            behind[:] = [copied]
        try:
            outputs = bound.run()
        except BaseException:               # what it put there may be no finite numbers
            with contextlib.suppress(DeviceError):
                for rows in self.rows if behind is not None else ():
                    for slot, part in zip(slots, parts):
                        rows.clear(slot.index, len(slot.ids), len(slot.ids) + len(part))
                self.settle()
            raise
        finally:
            if behind is not None:
                behind.clear()
        if behind is None or any(outputs[name] is not made for name, made in kept.items()):
            self.extend(slots, parts, outputs)
        else:
            for slot, part in zip(slots, parts):
                slot.ids += part
        return outputs

    def extend(self, slots: Sequence[Slot], parts: Sequence[Sequence[int]],
               made: Mapping[str, Made]) -> None:
        """New tokens of each slot, and their keys and values [slots, rows, heads, size]."""
        self._put(slots, parts, made)
        self.settle()
        for slot, part in zip(slots, parts):
            slot.ids += part

    def _put(self, slots: Sequence[Slot], parts: Sequence[Sequence[int]], made: Mapping[str, Made],
             queue: Any = None) -> list[Any]:
        """Behind a run that gives its queue; gives events."""
        events: list[Any] = []
        for block, rows in zip(self._blocks, self.rows):
            found = [made[f"new.{k}"] for k in block]
            for k, (slot, part) in enumerate(zip(slots, parts)):
                if part:
                    begin = len(slot.ids)
                    events += rows.put(slot.index, begin, begin + len(part), found, k, queue)
        return events

    def unbind(self) -> None:
        for _, bound in self._bound.values():
            bound.close()
        self._bound.clear()

    def close(self) -> None:
        """Give memory back; no text is known any more."""
        self.unbind()
        for rows in self.rows:
            rows.close()
        self.rows.clear()
        for slot in self.slots:
            slot.ids = []

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows)
