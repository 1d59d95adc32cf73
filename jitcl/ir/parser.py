"""Text to graphs and kernels: lark parses grammar.lark, symbol tables give names their meaning.

Errors are `ParseError`s that point at the place:

    3:14: 'x' has 2 axes (4, 64), indexed with 1
      acc0 add= f32(x[i])
                    ^
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar

import lark
import numpy as np
from lark.exceptions import VisitError

from jitcl.errors import ParseError
from jitcl.ir.files import check_regular, read_regular
from jitcl.ir.graph import Graph
from jitcl.ir.kernel import Kernel
from jitcl.ir.kernel_reader import KernelReader
from jitcl.ir.printer import side_file
from jitcl.ir.reader import GraphReader, Infer, Where, grammar

_G = TypeVar("_G", Graph, Kernel)


def parse_module(text: str, *, constants: Mapping[str, np.ndarray] | None = None,
                 known_ops: Collection[str] | None = None, infer: Infer | None = None,
                 source: str = "") -> tuple[Graph | Kernel, ...]:
    """All graphs and kernels of a text, in order; ParseError with line, column and caret else.

    `constants`: large constants by digest, as `print_graph` collected them. `known_ops`: names
    that ops may have (None: any). `infer(op, operand types, attrs)` gives types that the text
    leaves out. `source`: the file's name, for messages.
    """
    where = Where(text, source)
    try:
        tree = grammar().parse(text)
    except lark.UnexpectedInput as e:
        where.unexpected(e)
    reader = _Reader(where, constants or {}, known_ops, infer)
    try:
        return tuple(reader.transform(tree).children)
    except VisitError as e:
        raise e.orig_exc from None


def parse_graph(text: str, *, constants: Mapping[str, np.ndarray] | None = None,
                known_ops: Collection[str] | None = None, infer: Infer | None = None,
                source: str = "") -> Graph:
    """The one graph of a text; arguments and errors as for `parse_module`."""
    found = parse_module(text, constants=constants, known_ops=known_ops, infer=infer, source=source)
    return _only(found, Graph, source)


def parse_kernel(text: str, *, source: str = "") -> Kernel:
    """The one kernel of a text; ParseError as for `parse_module`."""
    return _only(parse_module(text, source=source), Kernel, source)


def load_graph(path: str | os.PathLike[str], *, known_ops: Collection[str] | None = None,
               infer: Infer | None = None) -> Graph:
    """Read what `save_graph` wrote, or a text written by hand; ParseError for a damaged one."""
    path = Path(path)
    constants: dict[str, np.ndarray] = {}
    side = side_file(path)
    if side.exists():
        try:
            with np.load(check_regular(side), allow_pickle=False) as arrays:
                constants = dict(arrays.items())
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as e:
            raise ParseError(f"'{side}' holds the constants of '{path}' and is damaged ({e}): "
                             "write the graph again") from e
    try:
        text = read_regular(path).decode("utf-8")
    except UnicodeDecodeError as e:
        raise ParseError(f"'{path}' is no text: byte {e.start} is not UTF-8") from e
    return parse_graph(text, constants=constants, known_ops=known_ops, infer=infer,
                       source=str(path))


def _only(found: tuple[Graph | Kernel, ...], kind: type[_G], source: str) -> _G:
    if len(found) == 1 and isinstance(found[0], kind):
        return found[0]
    got = ", ".join(f"{type(f).__name__.lower()} '{f.name}'" for f in found) or "nothing"
    prefix = f"{source}: " if source else ""
    raise ParseError(f"{prefix}wanted one {kind.__name__.lower()}, the text holds {got}")


class _Reader(GraphReader, KernelReader):
    """Both levels in one walk."""
