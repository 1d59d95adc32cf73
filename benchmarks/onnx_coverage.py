#!/usr/bin/env python3
"""Writes docs/onnx-coverage.md: every ONNX op, and how each device runs it.

    onnx_coverage.py --results DIR [--write docs/onnx-coverage.md] [--run] [--jobs N]

What is compiled and what runs on the host is counted from the results of onnx_node_tests.py, which
lie in DIR as <device>.json (`opencl:pocl` as opencl_pocl.json); `--run` makes them first. Ops
without a test among onnx's say what is there to run them: an import rule (which compiles), ONNX's
function body, or an implementation for the host.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import onnx
import onnx_node_tests

from jitcl.frontends.onnx import functions, host, importer, opsets
from jitcl.frontends.onnx.rules import ONNX

DEVICES = {"cpu": "cpu", "opencl:pocl": "PoCL", "opencl:intel": "Intel", "opencl:nvidia": "NVIDIA"}
DOMAINS = {"": "the default domain (ai.onnx)", "ai.onnx.ml": "ai.onnx.ml",
           "ai.onnx.preview.training": "ai.onnx.preview.training",
           "com.microsoft": "com.microsoft (onnxruntime's contrib ops)"}
# Ops of onnxruntime that training or its own optimiser makes: no exporter writes them.
INTERNAL = ("Grad", "Optimizer", "Recv", "Send", "Nccl", "Yield", "Fusion", "Memcpy", "Shape",
            "Trilu", "PythonOp")
_SHORT = {"tensor(float)": "f32", "tensor(float16)": "f16", "tensor(double)": "f64",
          "tensor(bfloat16)": "bf16", "tensor(bool)": "bool", "tensor(string)": "string",
          **{f"tensor({u}int{n})": f"{u or 'i'}{n}"
             for u in ("", "u") for n in (2, 4, 8, 16, 32, 64)}}


@dataclass
class Row:
    """An op: versions that changed it, element types of its newest version, ways to run it."""

    name: str
    versions: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    way: str = "missing"


def rows(domain: str) -> list[Row]:
    """The ops of a domain, by name."""
    found: dict[str, Row] = {}
    schemas = sorted((s for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain),
                     key=lambda s: s.since_version)
    for schema in schemas:
        row = found.setdefault(schema.name, Row(schema.name))
        row.versions.append(schema.since_version)
        row.dtypes = element_types(schema)
    if domain == "com.microsoft":
        for name in (*(op for where, op in ONNX if where == domain), *contrib()):
            found.setdefault(name, Row(name))
    for row in found.values():
        row.way = way(row.name, domain, row.versions[-1] if row.versions else 1)
    return [found[name] for name in sorted(found)]


def contrib() -> list[str]:
    """Names of onnxruntime's contrib ops, where it is installed."""
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError:
        return []
    return [s.name for s in state.get_all_operator_schema() if s.domain == "com.microsoft"]


def element_types(schema: Any) -> list[str]:
    """Element types that the op's first input (else its first output) takes."""
    formal = next(iter((*schema.inputs, *schema.outputs)), None)
    types = sorted(formal.types) if formal is not None else []
    short = [_SHORT.get(t, t.replace("tensor(", "").replace(")", "") if t.startswith("tensor(")
                        else t) for t in types]
    order = ["f32", "f16", "bf16", "f64", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8",
             "bool"]
    return sorted(short, key=lambda t: (order.index(t) if t in order else 99, t))


def way(op: str, domain: str, opset: int) -> str:
    """What there is to run an op: never found from its name alone."""
    if opsets.has_rule(op, domain):
        return "rule"
    if op == "Constant" or (op, domain) == ("Gradient", "ai.onnx.preview.training"):
        return "rule"                       # the importer itself
    if op in {*importer.CONTROL, *importer.SEQUENCES, "SequenceMap"} and not domain:
        return "control"
    if functions.has_body(op, domain, opset):
        return "body"
    node = onnx.helper.make_node(op, [], ["y"], domain=domain)
    versions = {"": onnx.defs.onnx_opset_version(), domain: opset}
    return "host" if host.has_implementation(node, versions) else "missing"


def tested(results: Mapping[str, Mapping[str, Any]], known: Mapping[str, Any]
           ) -> dict[tuple[str, str], collections.Counter[str]]:
    """Outcomes of the tests of each (domain, op). A test of an op's expanded body is one of the op
    itself; one of several nodes counts for each of their ops."""
    found: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter)
    for name, result in results.items():
        base = known.get(name.split("_expanded")[0], known.get(name))
        if base is None:
            continue
        for key in {(n.domain, n.op_type) for n in base.model.graph.node}:
            found[key][result["outcome"]] += 1
    return found


def cell(counts: collections.Counter[str] | None, way: str) -> str:
    """One device's column: outcomes with their number of tests."""
    if not counts:
        return {"rule": "compiled (rule)", "body": "compiled (body)", "control": "program",
                "host": "host", "missing": "missing"}[way]
    names = {"kernel": "compiled", "folded": "folded", "host": "host"}
    good = [f"{names[o]} {counts[o]}" for o in onnx_node_tests.PASSED if counts[o]]
    bad = [f"**{o} {n}**" for o, n in counts.items() if o not in onnx_node_tests.PASSED]
    return ", ".join([*good, *bad])


def table(domain: str, counts: Mapping[str, dict[tuple[str, str], collections.Counter[str]]]
          ) -> Iterable[str]:
    yield f"\n## {DOMAINS[domain]}\n"
    yield "| op | since | types of its first operand | tests | "+" | ".join(
        DEVICES[d] for d in counts) + " |"
    yield "|---" * (4 + len(counts)) + "|"
    for row in rows(domain):
        if row.way == "missing" and domain == "com.microsoft" and internal(row.name):
            continue
        mine = {d: c.get((domain, row.name)) for d, c in counts.items()}
        tests = max((sum(c.values()) for c in mine.values() if c), default=0)
        cells = " | ".join(cell(c, row.way) for c in mine.values())
        yield (f"| {row.name} | {', '.join(map(str, row.versions))} | {' '.join(row.dtypes)} | "
               f"{tests or ''} | {cells} |")


def internal(name: str) -> bool:
    return any(part in name for part in INTERNAL)


def document(results: Mapping[str, Mapping[str, Any]]) -> str:
    known = onnx_node_tests.cases()
    counts = {d: tested(r, known) for d, r in results.items()}
    lines = [
        "# ONNX coverage", "",
        f"Written by `python benchmarks/onnx_coverage.py --run --results DIR --write "
        f"docs/onnx-coverage.md` with onnx {onnx.__version__}; not to be edited by hand.", "",
        "*compiled* n: n of onnx's node tests of the op pass and ran it in generated kernels; "
        "*host*: they pass, and something of the model ran on the host, as `model.report()` says; "
        "*folded*: they pass, computed when the model was compiled; anything else failed. "
        "(rule), (body): onnx has no test of the op; an import rule, or the function body that "
        "ONNX defines it by, compiles it. *program*: control flow over compiled bodies, "
        "or sequences resolved at import. "
        "*missing*: a clear error.", "",
        "```"]
    for device, result in results.items():
        lines.append(onnx_node_tests.summary(dict(result), DEVICES[device]))
    lines.append("```")
    for domain in DOMAINS:
        lines += table(domain, counts)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, metavar="DIR")
    parser.add_argument("--write", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument("--run", action="store_true", help="run the node tests first")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    results = {}
    for device in DEVICES:
        path = args.results / f"{device.replace(':', '_')}.json"
        if args.run:
            args.results.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, onnx_node_tests.__file__, "--engine", device, "--jobs",
                            str(args.jobs), "--json", str(path)], check=False)
        if path.exists():
            results[device] = json.loads(path.read_text())
    text = document(results)
    if args.write:
        args.write.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
