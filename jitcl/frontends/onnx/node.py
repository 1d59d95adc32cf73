"""`OnnxNode`: what import rules see of a node. No ONNX types, so that rules can stand beside the
ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jitcl.ir.graph import Node


@dataclass(frozen=True)
class OnnxNode:
    """A node in the newest opset's form.

    `inputs` holds None where an optional input is left out, up to the most that the op takes.
    `attrs` are plain values: int, float, str, ndarray and tuples. `opset` is the one that the
    model was written for.
    """

    op_type: str
    domain: str
    name: str
    inputs: tuple[Node | None, ...]
    attrs: dict[str, Any]
    opset: int
    n_outputs: int
    evaluate: Callable[[Node], np.ndarray[Any, Any]]

    def input(self, i: int) -> Node | None:
        """Input i, or None where it is left out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def static(self, i: int) -> np.ndarray[Any, Any] | None:
        """The value of input i, None where it is left out; NeedsValue if a graph input decides
        it."""
        source = self.input(i)
        return None if source is None else self.evaluate(source)

    def with_(self, **changes: Any) -> OnnxNode:
        return replace(self, **changes)
