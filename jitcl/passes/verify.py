"""The check between passes: the graph verifier, told how ops infer their types."""

from __future__ import annotations

from jitcl.ir.graph import Graph
from jitcl.ir.verify import verify_graph
from jitcl.ops.builder import infer


def check(graph: Graph, after: str) -> None:
    """VerifyError, naming the pass, where the graph breaks a rule."""
    from jitcl.errors import VerifyError
    try:
        verify_graph(graph, infer)
    except VerifyError as e:
        raise VerifyError(f"after pass {after}: {e}") from e
