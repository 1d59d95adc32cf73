"""Which precision each node of the model has, by what options say of names and patterns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from jitcl.errors import OptionError
from jitcl.ir.graph import ModelNode
from jitcl.passes.options import Options, strictest
from jitcl.passes.packing import NAMES, Packing

NEAREST = 3                     # names that an error proposes
SUMS = ("MatMul", "Gemm", "Conv")
# What may be folded into the weights of a sum before it, which then have its name; and views.
FOLDED = ("Add", "Sub", "Mul", "Div", "BatchNormalization", "Reshape", "Transpose", "Squeeze",
          "Unsqueeze", "Flatten", "Identity", "Cast", "Dropout")


def check_layers(model: str, names: Mapping[str, ModelNode], options: Options) -> None:
    """OptionError for a name that no node has, and for a pattern that matches none."""
    asked = [("precision", name) for name, _ in options.layers]
    asked += [(f"memory: {option}", name) for option in (NAMES if options.weights else ())
              for name in getattr(options.weights, option)]
    for option, given in asked:
        if given in names or any(fnmatchcase(name, given) for name in names):
            continue
        lower = {name.lower(): name for name in names}          # a capital is a slip like others
        near = [lower[n] for n in difflib.get_close_matches(given.lower(), lower, NEAREST, 0.0)]
        pattern = any(c in given for c in "*?[")
        what = f"no node of {model} matches" if pattern else f"{model} has no node"
        raise OptionError(f"{option}: {what} '{given}'\n  The nearest names are: "
                          f"{', '.join(map(repr, near)) or 'none'}.")


def weight_bits(names: Mapping[str, ModelNode], packing: Packing) -> dict[str, int]:
    """Bits of nodes' weights that take others than the rest, 0 for those that stay as they are: by
    their own name, or that of a node which has them in a body. What may have been folded into
    weights has their bits, where it has none by its own name."""
    def said(name: str) -> int | None:
        while name in names:
            if (bits := packing.bits_of(name)) is not None:
                return bits
            name = names[name].inside
        return None

    found = {name: bits for name in names if (bits := said(name)) is not None}
    folded = {reader: bits for name, bits in found.items() for reader in may_fold(names, name)}
    return {**folded, **found}


def may_fold(names: Mapping[str, ModelNode], name: str) -> list[str]:
    """The nodes behind a sum whose scales and shifts may go into its weights."""
    found: list[str] = []
    stack = [name] if names[name].op_type in SUMS else []
    while stack:
        for reader in names[stack.pop()].readers:
            if reader in names and names[reader].op_type in FOLDED and reader not in found:
                found.append(reader)
                stack.append(reader)
    return found


def layer_precisions(names: Mapping[str, ModelNode], options: Options, kept: Iterable[str],
                     gone: Iterable[str]) -> dict[str, str]:
    """The precision of each node that is in the graph by its name (`kept`): its own, that of the
    node in whose body it is, or the option's; and of those that passes put into it, the strictest.
    What a pass left no trace of (`gone`) is put into those that read it.
    """
    present = set(kept)
    said = {name: _said(names, name, options) for name in names}
    found = {name: said.get(name, options.precision) for name in present}
    for name in sorted((names.keys() & gone) - present):
        for reader in _followers(names, name, present):
            found[reader] = strictest(found[reader], said[name])
    return found


def _said(names: Mapping[str, ModelNode], name: str, options: Options) -> str:
    at = name
    while at in names:
        own = options.of_layer(at)
        if own is not None:
            return own
        at = names[at].inside
    return str(options.precision)


def _followers(names: Mapping[str, ModelNode], name: str, present: set[str]) -> set[str]:
    """The nearest nodes downstream that are present."""
    found, seen, stack = set[str](), {name}, [name]
    while stack:
        for reader in names[stack.pop()].readers:
            if reader in present:
                found.add(reader)
            elif reader not in seen:
                seen.add(reader)
                stack.append(reader)
    return found


__all__ = ["check_layers", "layer_precisions", "may_fold", "weight_bits"]
