"""docs/onnx-coverage.md names every op that there is; its counts come from runs of the tests."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from jitcl.frontends.onnx.rules import ONNX

DOC = Path(__file__).resolve().parents[1] / "docs" / "onnx-coverage.md"


def test_coverage_names_every_op() -> None:
    listed = set(re.findall(r"^\| (\w+) \|", DOC.read_text(), re.MULTILINE))
    known = {s.name for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.ml")}
    assert sorted(known - listed) == []
    assert sorted({op for domain, op in ONNX if domain == "com.microsoft"} - listed) == []
