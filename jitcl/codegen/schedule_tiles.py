"""Transposes on GPUs in tiles of local memory: read along one axis, written along another.

    for i < 4096 @parallel { for j < 4096 @parallel { y[i, j] = x[j, i] } }
    =>  for i_tile < 64 @group { for j_tile < 64 @group { for lane < 256 @lane {
          let r = lane / 16  let c = lane % 16 * 4
          for t < 4 @loop { for quad < 4 @vec {
            tile[r + t * 16, c + quad] = x[j_tile * 64 + r + t * 16, i_tile * 64 + c + quad] } }
          barrier
          for t < 4 @loop { for quad < 4 @vec {
            y[i_tile * 64 + r + t * 16, j_tile * 64 + c + quad] = tile[c + quad, r + t * 16] } }
        } } }

Rows of a tile are one element longer than they need to be: a column's elements then lie in
different banks of local memory. Both statements are guarded by the axes' ends, also where tiles
fit, so that all are one program.
"""

from __future__ import annotations

from dataclasses import replace

from jitcl import dtypes
from jitcl.codegen.axes import spread
from jitcl.codegen.loops import Body, inline_lets, perfect_nest, renamed
from jitcl.codegen.vectorise import has_form, vectors_of
from jitcl.errors import VerifyError
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr, flat
from jitcl.ir.kernel import Barrier, Buffer, For, Kernel, Let, Store
from jitcl.ir.sizes import is_size
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.target import Target

TILE = 64                      # elements a side
LANES = 256                    # work-items of a group
QUAD = 4                       # elements of a vector
NEAR = 8                       # elements; loads closer together than this share cache lines


def turned(kernel: Kernel, target: Target) -> Kernel | None:
    """The kernel in tiles; None where it is no transpose, or local memory is not worth it."""
    if not target.stages_tiles:
        return None
    lanes = 1 << min(LANES, target.max_work_group).bit_length() - 1
    nest, body = perfect_nest(inline_lets(kernel.body))
    store = body[0] if len(body) == 1 else None
    if len(nest) < 2 or not isinstance(store, Store) or store.guard is not None or any(
            is_size(f.extent) for f in nest):
        return None
    last = nest[-1]
    load, row = across(kernel, nest, store)
    if load is None or row is None or min(row.extent, last.extent) < TILE // 2:
        return None
    tile = Buffer("tile", dtypes.compute(load.dtype), (TILE, TILE + 1), "local")
    others = [f for f in nest if f is not row and f is not last]
    tiles = [For(E.var(f"{f.var.value}_tile", extent=-(-f.extent // TILE)), "parallel", ())
             for f in (row, last)]
    if tile.size * dtypes.itemsize(tile.dtype) > target.local_memory:
        return None
    for quad in (QUAD, 1) if QUAD <= target.max_vector_width else (1,):
        if row.extent % quad or last.extent % quad:
            continue
        done = _tiled(kernel, store, load, (row, last), [*others, *tiles], tile, lanes, quad)
        if quad > 1 and not all(has_form(done, f, target, True) for f in vectors_of(done.body)):
            continue
        try:
            verify_schedule(done)
        except VerifyError:                  # some vector is not aligned, or lies apart
            continue
        return done
    return None


def across(kernel: Kernel, nest: list[For], store: Store) -> tuple[Expr | None, For | None]:
    """(the one load that lies along another loop than the store, that loop)"""
    shapes = {b.name: b.shape for b in kernel.buffers}
    last, found = nest[-1], []
    terms, _ = E.linear(flat(shapes[store.buffer], store.indices))
    if terms.get(last.var) != 1:
        return None, None
    for e in dict.fromkeys(e for e in E.walk(store.value) if e.op == "load"):
        terms, _ = E.linear(flat(shapes[e.value], e.indices))
        row = next((f for f in nest[:-1] if terms.get(f.var) == 1), None)
        if abs(terms.get(last.var, 0)) > NEAR and row is not None:
            found.append((e, row))
    return found[0] if len(found) == 1 and not found[0][0].guarded else (None, None)


def _tiled(kernel: Kernel, store: Store, load: Expr, axes: tuple[For, For], groups: list[For],
           tile: Buffer, lanes: int, quad: int) -> Kernel:
    lane = E.var("lane", extent=lanes)
    row, last = axes
    held = E.load(tile.name, (_at(last, groups[-1]), _at(row, groups[-2])), tile.dtype)
    computed = E.cast(load, tile.dtype)
    places = {load: E.cast(held, load.dtype), computed: held}
    brought = Store(tile.name, (last.var, row.var), computed)
    steps = TILE // quad
    body: Body = (
        Let(E.var("r"), lane // steps), Let(E.var("c"), lane % steps * quad),
        _pass(brought, (last, row), groups[::-1][:2], lanes, quad, True),
        Barrier(),
        _pass(replace(store, value=E.exchanged(store.value, places)), (row, last),
              groups[-2:], lanes, quad, False))
    return replace(kernel, body=spread(groups, "group", (For(lane, "lane", body),)), arrays=(tile,))


def _at(axis: For, group: For) -> Expr:
    """An axis' place in its tile."""
    return axis.var - group.var * TILE


def _pass(store: Store, axes: tuple[For, For], groups: list[For], lanes: int, quad: int,
          into: bool) -> For:
    """A statement for all elements of a tile, which lanes take in turn, along the second axis."""
    rows = lanes * quad // TILE
    t, v = E.var("t", extent=TILE // rows), E.var("quad", extent=quad)
    at = E.var("r") + t * rows, E.var("c")
    places = at[0], at[1] + v if quad > 1 else at[1]
    done = renamed(store, {axis.var.value: group.var * TILE + place
                           for axis, group, place in zip(axes, groups, places)})
    assert isinstance(done, Store)
    if into:
        done = replace(done, indices=places)
    guard = E.const(True, "bool")               # also where tiles fit: one program
    for axis, group, place in zip(axes, groups, at):
        guard = guard & E.call("lt", group.var * TILE + place, E.index(axis.extent))
    done = replace(done, guard=guard)
    return For(t, "loop", (For(v, "vec", (done,)),) if quad > 1 else (done,))
