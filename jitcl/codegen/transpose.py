"""Transposes in tiles: what is read along one axis and written along another turns in registers.

    for i < 1024 { for j < 1024 { y[1024 i + j] = x[1024 j + i] } }
    =>
    for io < 64 { for jo < 64 {
      for jj < 16 { for ii < 16 { tile[16 jj + ii] = x[1024 (16 jo + jj) + 16 io + ii] } }
      for ii < 16 { for jj < 16 { turned[16 ii + jj] = tile[16 jj + ii] } }
      for ii < 16 { for jj < 16 { y[1024 (16 io + ii) + 16 jo + jj] = turned[16 ii + jj] } } } }

Both passes over memory are vectors, and the renderer writes the middle one as shuffles of
registers. What is left over at the ends of the two axes keeps its loops.
"""

from __future__ import annotations

from jitcl.codegen.interchange import Rows
from jitcl.codegen.loops import (
    Body,
    linear_in,
    nest_of,
    piece,
    renest,
    rewrite,
    strip,
    subexpressions,
)
from jitcl.ir import expr as E
from jitcl.ir.expr import Expr
from jitcl.ir.kernel import Buffer, For, Stmt, Store, is_parallel

TILE = 16                      # elements a side
NEAR = 8                       # elements; loads closer together than this share cache lines
MOST = 4                       # tiles of one loop nest


def tile_transposes(body: Body, rows: Rows) -> Body:
    """Parallel loop nests in tiles, where they transpose."""
    out: list[Stmt] = []
    for stmt in body:
        nest = nest_of(stmt) if is_parallel(stmt) else None
        if nest is None:
            out.append(stmt)
        elif any(isinstance(s, For) for s in nest[-1].body):
            out.append(renest(nest, tile_transposes(nest[-1].body, rows)))
        else:
            out.extend(_tiled(nest, rows))
    return tuple(out)


def _tiled(nest: list[For], rows: Rows) -> Body:
    whole = (nest[0],)
    leaf = nest[-1]
    store = leaf.body[0]
    if len(nest) < 2 or any(f.kind != "parallel" for f in nest) or leaf.extent < TILE:
        return whole
    if len(leaf.body) != 1 or not isinstance(store, Store) or store.guard is not None:
        return whole
    if _stride(store.indices[0], leaf.var) != 1:
        return whole
    found = _transposed(nest, store)
    if found is None:
        return whole
    return _pieces(nest, found, rows)


def _stride(index: Expr, var: Expr) -> int | None:
    form = linear_in(index, var)
    return None if form is None else form[0]


def _transposed(nest: list[For], store: Store) -> int | None:
    """The loop of the nest along which most of the far-apart loads are contiguous."""
    loads = [e for e in subexpressions((store,)) if e.op == "load"]
    far = [e for e in loads if abs(_stride(e.indices[0], nest[-1].var) or 0) >= NEAR]
    if not 0 < len(far) <= MOST:
        return None
    for k in reversed(range(len(nest) - 1)):
        if nest[k].extent >= TILE and all(_stride(e.indices[0], nest[k].var) == 1 for e in far):
            return k
    return None


def _pieces(nest: list[For], k: int, rows: Rows) -> Body:
    """The nest over whole tiles, then what is left of the last axis, then of axis k."""
    across, along = nest[k].extent, nest[-1].extent
    main_i, main_j = across - across % TILE, along - along % TILE
    out = [_tile(_cut(nest, k, 0, main_i, len(nest) - 1, 0, main_j, rows), k, rows)]
    if main_j < along:
        out.append(_cut(nest, k, 0, main_i, len(nest) - 1, main_j, along, rows))
    if main_i < across:
        out.append(_cut(nest, k, main_i, across, len(nest) - 1, 0, along, rows))
    return tuple(out)


def _cut(nest: list[For], k: int, low: int, high: int, last: int, start: int, end: int,
         rows: Rows) -> Stmt:
    """The nest with loop k from low to high and the last from start to end."""
    inner = piece(nest[last], start, end, rows.names)
    middle = renest(nest[k + 1:last], inner) if last > k + 1 else inner[0]
    outer = piece(For(nest[k].var, nest[k].kind, (middle,)), low, high, rows.names)
    return renest(nest[:k], outer) if k else outer[0]


def _tile(nested: Stmt, k: int, rows: Rows) -> Stmt:
    """The tiles of a nest whose loop k and last loop are multiples of TILE."""
    assert isinstance(nested, For)
    nest = nest_of(nested)
    outer = strip(nest[k], TILE, next(rows.names))
    inside = nest_of(outer)                              # io, ii, what lies between, j
    io, ii, between = inside[0], inside[1], inside[2:-1]
    jo = strip(inside[-1], TILE, next(rows.names))
    jj = jo.body[0]
    assert isinstance(jj, For) and isinstance(jj.body[0], Store)
    body = _through(ii.var, jj.var, jj.body[0], rows)
    return renest([*nest[:k], io, *between, jo], body)


def _through(i: Expr, j: Expr, store: Store, rows: Rows) -> Body:
    """The statements of one tile: rows read, turned, and stored."""
    read: list[Stmt] = []
    turn: list[Stmt] = []
    turned: dict[Expr, Expr] = {}
    for e in subexpressions((store,)):
        if e.op != "load" or abs(_stride(e.indices[0], j) or 0) < NEAR:
            continue
        tile, back = (rows.new(e.dtype, TILE * TILE) for _ in range(2))
        read.append(_square(j, i, Store(tile.name, (j * TILE + i,), e)))
        turn.append(_square(i, j, Store(back.name, (i * TILE + j,), _element(tile, j * TILE + i))))
        turned[e] = _element(back, i * TILE + j)
    last = rewrite(store, lambda x: E.exchanged(x, turned))
    return (*read, *turn, _square(i, j, last))


def _square(outer: Expr, inner: Expr, stmt: Stmt) -> For:
    return For(outer, "loop", (For(inner, "loop", (stmt,)),))


def _element(buffer: Buffer, at: Expr) -> Expr:
    return E.load(buffer.name, (at,), buffer.dtype)


def turned(loop: For) -> tuple[str, str] | None:
    """(target, source) where a loop is the turning of a tile as `tile_transposes` writes it."""
    nest = nest_of(loop)
    store = nest[-1].body[0]
    if len(nest) != 2 or not isinstance(store, Store) or store.value.op != "load":
        return None
    i, j = (f.var for f in nest)
    same = store.indices == (i * TILE + j,) and store.value.indices == (j * TILE + i,)
    return (store.buffer, str(store.value.value)) if same and i.extent == j.extent == TILE else None
