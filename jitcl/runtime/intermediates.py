"""`run(feeds, intermediates=[..])`: inner tensors are outputs of a model that is made of the model.

A model that is run without them keeps its plan: which tensors are stored is decided by what is
asked for. Values may differ in the last bits, as other ops are fused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitcl import config, forking
from jitcl.errors import InputError, UnsupportedError, closed_error
from jitcl.runtime.arguments import shown
from jitcl.runtime.source import OnnxSource, Source

if TYPE_CHECKING:
    from jitcl.runtime.model import Model


class Intermediates:
    """Models that give inner tensors, too, by what was asked for; the last used at the end."""

    def __init__(self, source: Source, open: Callable[[Source], Model]) -> None:
        self.source, self.open = source, open
        self._lock, self._closed = forking.lock(), False
        self._kept: OrderedDict[tuple[str, ...], Model] = OrderedDict()

    def model(self, names: tuple[str, ...]) -> Model:
        """The model for what `names_of` gave. Raises InputError for an unknown one."""
        with self._lock:
            if self._closed:
                raise closed_error(f"model {self.source.name}")
            found = self._kept.pop(names, None)
            if found is None:
                found = self.open(self._giving(names))
            self._kept[names] = found
            while len(self._kept) > config.get("specialisations"):
                self._kept.popitem(last=False)
            return found

    def close(self) -> None:
        """Close these models."""
        with self._lock:
            self._closed, kept = True, list(self._kept.values())
            self._kept.clear()
        for model in kept:
            model.close()

    def _giving(self, names: tuple[str, ...]) -> Source:
        if isinstance(self.source, OnnxSource):
            return self.source.inner(names)
        raise UnsupportedError(
            f"intermediates: graph '{self.source.name}' keeps no names of inner tensors\n"
            "  They are known of ONNX models; of a graph, make them outputs.")


def names_of(asked: Any) -> tuple[str, ...]:
    """Sorted, each once. InputError unless it is a list of names; a text alone would be taken
    letter by letter.
    """
    if isinstance(asked, str) or not isinstance(asked, (list, tuple, set, frozenset)):
        raise InputError(f"intermediates: got {shown(asked)}, wanted a list of names of tensors or "
                         "nodes, such as ['conv1']")
    odd = [name for name in asked if not isinstance(name, str)]
    if odd:
        raise InputError(f"intermediates: got {shown(odd[0])} in the list, wanted names of tensors "
                         "or nodes")
    return tuple(sorted(set(asked)))


__all__ = ["Intermediates", "names_of"]
