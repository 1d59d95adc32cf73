"""Types of the graph level: dimensions, layouts, tensors.

A `TensorType` has a *logical* shape, in the order that the model speaks of (N, C, H, W). Its
`Layout` says how the elements lie in memory. Ops index logically; only loaders and stores know
layouts, so layouts can't be mixed up.

    f32[1,64,56,56]              row-major
    f32[1,64,56,56; NCHW16c]     [N, C/16, H, W, 16]: channels in blocks of 16, the last one padded
    f32[1,64,56,56; NCHW16c+1]   the same, with a halo of 1 zero around every spatial axis
    f32[1,64,13,13; rows4]       row-major, each row padded to a multiple of 4 elements
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jitcl import dtypes
from jitcl.errors import JitclError

MOST_AXES = 32                  # of a tensor: NumPy before 2.0 has no more
MOST_BYTES = 1 << 47            # of a tensor: what a process can address at most


@dataclass(frozen=True)
class Sym:
    """A dimension that is not known yet, by name (`batch`)."""

    name: str

    def __str__(self) -> str:
        return self.name


Dim = int | Sym


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory; the same words serve for 1, 2 and 3 spatial axes.

    kind "row": row-major. "rows": row-major, each row padded to a multiple of `block` elements
    by anything: no reader looks at it. "NCHWc": axis 1 split into blocks of `block` channels, a
    block's channels innermost, the last block padded with zeros; `halo` zeros surround each axis
    from 2 on.
    """

    kind: str = "row"
    block: int = 1
    halo: int = 0

    def __str__(self) -> str:
        if self.kind == "rows":
            return f"rows{self.block}"
        if self.kind != "NCHWc":
            return self.kind
        return f"NCHW{self.block}c" + (f"+{self.halo}" if self.halo else "")

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout that `str` writes so; JitclError for an unknown one."""
        if text == "row":
            return Layout(text)
        padded = re.fullmatch(r"rows(\d+)", text)
        if padded:
            return Layout("rows", int(padded[1]))
        found = re.fullmatch(r"NCHW(\d+)c(?:\+(\d+))?", text)
        if not found:
            raise JitclError(f"unknown layout '{text}': use row, rows<multiple>, NCHW<block>c or "
                             "NCHW<block>c+<halo>")
        return Layout("NCHWc", int(found[1]), int(found[2] or 0))

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the buffer, padding and halo included, in elements."""
        if self.kind == "rows":
            return (*shape[:-1], -(-shape[-1] // self.block) * self.block)
        if self.kind == "row" or len(shape) < 3:
            return shape
        n, c, *spatial = shape
        return (n, -(-c // self.block), *(d + 2 * self.halo for d in spatial), self.block)


ROW = Layout()


@dataclass(frozen=True)
class TensorType:
    """Element type, logical shape and layout of one tensor."""

    dtype: str
    shape: tuple[Dim, ...]
    layout: Layout = ROW

    def __str__(self) -> str:
        dims = ",".join(str(d) for d in self.shape)
        return f"{self.dtype}[{dims}{'' if self.layout == ROW else f'; {self.layout}'}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as ints; JitclError where a dimension is still symbolic."""
        for d in self.shape:
            if not isinstance(d, int):
                raise JitclError(f"dimension '{d}' of {self} is not known yet: bind it with "
                                 "specialise()")
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """Logical elements."""
        n = 1
        for d in self.dims:
            n *= d
        return n

    @property
    def physical(self) -> tuple[int, ...]:
        """The buffer's shape in elements, padding and halo included."""
        return self.layout.physical_shape(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer, padding and halo included."""
        n = dtypes.itemsize(self.dtype)
        for d in self.physical:
            n *= d
        return n

    def with_(self, *, dtype: str | None = None, shape: tuple[Dim, ...] | None = None,
              layout: Layout | None = None) -> TensorType:
        return TensorType(dtype or self.dtype, self.shape if shape is None else shape,
                          self.layout if layout is None else layout)
