"""The house's rules, read from the sources: who imports whom, how long modules and lines are."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jitcl.target import Target
from tests.lacking import missing

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jitcl"

# A room imports only from rooms above it. "jitcl" is the public face, jitcl/__init__.py and
# its helpers beside it; it may use all above it, and is used by the bench and the command line.
ROOMS = ("errors", "forking", "cores", "config", "ownership", "dtypes", "target", "ir", "ops",
         "frontends", "passes", "templates", "codegen", "devices", "tuning", "runtime",
         "lm", "accuracy", "profiling", "onnxruntime", "jitcl", "bench", "cli")

# Libraries that only one place may touch, wherever in a module the import stands.
CONFINED = {
    "pyopencl": ("jitcl.devices.opencl",),
    "numba": ("jitcl.devices.cpu",),
    "llvmlite": ("jitcl.devices.cpu",),
    "onnx": ("jitcl.frontends.onnx", "jitcl.onnx_backend"),
    "pickle": ("jitcl.devices.messages",),         # a pipe to a child, never a file
    "onnxruntime": ("jitcl.bench.peers",         # what jitcl is compared with, in its own process
                    "jitcl.accuracy.engines"),   # and layer by layer, where no time is measured
    "openvino": ("jitcl.bench.peers",),
    "safetensors": ("jitcl.lm.weights",),
    "gguf": ("jitcl.lm.gguf",),
    "starlette": ("jitcl.lm.server",),
    "uvicorn": ("jitcl.lm.server",),
    "torch": ("jitcl.torch",),
    "tokenizers": ("jitcl.lm.tokens", "jitcl.lm.gguf_tokens"),
}
FORBIDDEN = ("tensorflow",)

# Code generation asks the IR, or its renderers, and never reads facts back from what it wrote.
# What searches other strings there, by module and source, with what those are:
WRITERS = ("jitcl.codegen", "jitcl.templates")
SEARCHES = {"find", "rfind", "replace", "startswith", "endswith", "removeprefix", "removesuffix",
            "split", "rsplit", "splitlines", "partition", "rpartition", "translate"}
TEXTS = {"text", "body", "source", "code", "line", "lines", "rendered"}
NO_CODE = {
    ("jitcl.codegen.generate", "spec.name.partition(' ')"): "a buffer's name",
    ("jitcl.codegen.hooks", "copy.key.startswith(('blocked', 'panels'))"): "a copy's key",
    ("jitcl.codegen.opencl_expressions", "c in text"): "digits of a literal",
    ("jitcl.codegen.opencl_expressions", "name.endswith('f64')"): "a helper's name",
    ("jitcl.codegen.opencl_helpers", "'x' in dtype"): "a helper's type",
    ("jitcl.codegen.opencl_helpers", "dtype.partition('x')"): "a helper's type",
    ("jitcl.codegen.opencl_helpers", "name.rpartition('_')"): "a helper's name",
    ("jitcl.codegen.opencl_helpers", "op.endswith('_from')"): "a helper's name",
    ("jitcl.codegen.opencl_helpers", "op.removesuffix('_from')"): "a helper's name",
    ("jitcl.codegen.render_numba", "self.split(s)"): "splits a loop",
    ("jitcl.codegen.schedule", "stem[:40].rsplit('_', 1)"): "a kernel's name",
    ("jitcl.codegen.schedule_gpu", "'index' not in {v.dtype for v in accumulators(loop)}"): "types",
    ("jitcl.codegen.trial", "dtype.endswith('z')"): "a type",
    ("jitcl.codegen.trial", "'half' in k.features"): "a kernel's features, by name",
    ("jitcl.codegen.variants", "'max_work_group' in variant.caps"): "fields of a Target",
    ("jitcl.codegen.variants", "import re"): "a driver's messages",
    ("jitcl.codegen.variants", "text.split()"): "a driver's message",
    ("jitcl.codegen.writer", "emitted.body.replace(GROUP, declaration(emitted.local_size)"
     " if self.exact else '')"): "fills a placeholder that templates were rendered with",
    ("jitcl.codegen.writer", "text.replace(ENTRY, entry)"): "fills the other one",
    ("jitcl.templates.recurrent_cpu.template", "self.root.op.removesuffix('_states')"): "an op",
}
MAX_LINES = 500
MAX_COLUMNS = 100


@dataclass(frozen=True)
class Import:
    """One import: where it stands, and the module it names."""

    module: str
    line: int
    target: str
    at_start: bool          # runs when the module is imported

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path: Path, root: Path = PACKAGE) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool, modules: frozenset[str]) -> list[Import]:
    """All imports of a source text; `from a import b` names a.b where that is a module."""
    found: list[Import] = []

    def visit(node: ast.AST, at_start: bool) -> None:
        for target in _targets(node, module, is_package, modules):
            found.append(Import(module, node.lineno, target, at_start))
        for child in ast.iter_child_nodes(node):
            lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
            visit(child, at_start and not lazy)

    visit(ast.parse(source), True)
    return found


def _targets(node: ast.AST, module: str, is_package: bool,
             modules: frozenset[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = module.split(".")
            above = parents[:len(parents) - node.level + is_package]
            base = ".".join([*above, *([base] if base else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if inner == "jitcl.__version__":     # there before any module of the package is
                continue
            yield inner if inner in modules else base
    elif isinstance(node, ast.Call):
        # importlib.import_module("x"), __import__("x")
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("import_module", "__import__") and node.args and isinstance(
                node.args[0], ast.Constant):
            yield str(node.args[0].value)


FILES = {module_name(p): p for p in sorted(PACKAGE.rglob("*.py"))}
MODULES = frozenset(FILES)


@functools.cache                             # read when a test asks, not at collection
def all_imports() -> list[Import]:
    return [i for name, path in FILES.items()
            for i in imports(path.read_text(), name, path.name == "__init__.py", MODULES)]


def room(module: str) -> str:
    """'ir' of 'jitcl.ir.graph'; 'jitcl' of the package itself and of modules beside it."""
    parts = module.split(".")
    if module == "jitcl.__main__":           # `python -m jitcl` is the command line
        return "cli"
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "jitcl"


def breaks_layering(i: Import) -> bool:
    if i.target.split(".")[0] != "jitcl":
        return False
    here, there = room(i.module), room(i.target)
    return here != there and ROOMS.index(there) > ROOMS.index(here)


def leaves_confinement(i: Import) -> bool:
    places = CONFINED.get(i.target.split(".")[0], ())
    return bool(places) and not any(
        i.module == p or i.module.startswith((p + ".", p + "_")) for p in places)


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """One cycle of a graph as a list of its nodes, or [] (depth first, without recursion)."""
    done: set[str] = set()
    for start in edges:
        path, stack = [start], [iter(sorted(edges.get(start, ())))]
        while stack and path[-1] not in done:
            following = next(stack[-1], None)
            if following is None:
                done.add(path.pop())
                stack.pop()
            elif following in path:
                return [*path[path.index(following):], following]
            elif following not in done:
                path.append(following)
                stack.append(iter(sorted(edges.get(following, ()))))
    return []


# -- the rules ---------------------------------------------------------------------------------


def test_every_room_is_known():
    unknown = [p.name for p in PACKAGE.iterdir()
               if p.is_dir() and any(p.rglob("*.py")) and p.name not in ROOMS]
    assert unknown == [], "a new package: give it its place in ROOMS and in ARCHITECTURE.md"


def test_rooms_import_only_from_rooms_above():
    assert [str(i) for i in all_imports() if breaks_layering(i)] == []


def test_frontends_and_passes_do_not_know_each_other():
    pairs = {(room(i.module), room(i.target)) for i in all_imports()
             if i.target.split(".")[0] == "jitcl"}
    assert ("passes", "frontends") not in pairs
    assert ("frontends", "passes") not in pairs


def family(module: str) -> str:
    """"opencl" or "cpu" of a template's module, "" of what all share."""
    parts = module.split(".")
    folder = parts[2] if parts[:2] == ["jitcl", "templates"] and len(parts) > 2 else ""
    return next((f for f in ("opencl", "cpu") if folder == f or folder.endswith(f"_{f}")), "")


def test_templates_of_one_language_do_not_know_those_of_another():
    assert family("jitcl.templates.conv_cpu.template") == "cpu"
    assert family("jitcl.templates.opencl.tiling") == "opencl"
    assert [str(i) for i in all_imports() if family(i.module) and family(i.target)
            and family(i.module) != family(i.target)] == []


def test_each_library_is_imported_in_its_place_only():
    assert [str(i) for i in all_imports() if leaves_confinement(i)] == []


def test_peers_are_imported_when_they_are_run():
    found = {i.target.split(".")[0]: i.at_start for i in all_imports()
             if i.target.split(".")[0] in ("onnxruntime", "openvino")}
    assert found == {"onnxruntime": False, "openvino": False}


def test_nothing_imports_what_the_project_does_without():
    assert [str(i) for i in all_imports() if i.target.split(".")[0] in FORBIDDEN] == []


def test_there_are_no_cycles_between_rooms_or_modules():
    inner = [i for i in all_imports() if i.target in MODULES]
    rooms: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    for i in inner:
        if room(i.module) != room(i.target):
            rooms.setdefault(room(i.module), set()).add(room(i.target))
        if i.at_start and i.module != i.target:
            modules.setdefault(i.module, set()).add(i.target)
    assert cycle(rooms) == []
    assert cycle(modules) == []


@pytest.mark.parametrize("package", ["jitcl.cli", "jitcl.ops"])
def test_modules_of_a_package_know_each_other_in_one_direction(package):
    """Imports within functions count, too: what a reader must know first is a list."""
    modules: dict[str, set[str]] = {}
    for i in all_imports():
        if i.module.startswith(f"{package}.") and i.target.startswith(f"{package}."):
            modules.setdefault(i.module, set()).add(i.target)
    assert cycle(modules) == []


def test_modules_are_short():
    lengths = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    long = {name: n for name, n in lengths.items() if n >= MAX_LINES}
    assert long == {}, "split a module by what it is about"


def unread(names: Iterable[str], sources: Iterable[str]) -> list[str]:
    """Names that no source reads as an attribute."""
    read = {node.attr for source in sources for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    return sorted(set(names) - read)


def test_every_field_of_a_target_is_read():
    names = [field.name for field in dataclasses.fields(Target)]
    assert unread(names, [path.read_text() for path in sorted(PACKAGE.rglob("*.py"))]) == []
    assert unread(["a", "b", "c"], ["x = t.a", "t.b = f(c=1)"]) == ["b", "c"]


def any_in_annotations(source: str) -> list[int]:
    """Lines of arguments, results and fields that are typed with Any."""
    annotations: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            annotations.append(node.returns)
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            annotations.append(node.annotation)
    return sorted(name.lineno for a in annotations if a is not None for name in ast.walk(a)
                  if "Any" in (getattr(name, "id", ""), getattr(name, "attr", "")))


def test_templates_and_what_they_are_given_are_typed():
    """Hooks and matches above all: what a template calls exists in codegen, says mypy."""
    found = {n: any_in_annotations(path.read_text()) for n, path in FILES.items()
             if n.startswith("jitcl.templates")}
    assert {n: lines for n, lines in found.items() if lines} == {}
    assert "Any" not in re.findall(r"\w+", FILES["jitcl.templates.base"].read_text())
    assert any_in_annotations("def f(a: int, *b: Any) -> list[\n  t.Any]: ...\nx: Any = 1") == [
        1, 2, 3]
    assert any_in_annotations("from typing import Any\ndef f(a: int): Any") == []


ASKS_FOR_A_DEVICE = {"present", "device", "list_devices", "find_devices", "DEVICES", "DRIVERS"}


def own_skips(source: str) -> list[int]:
    """Lines of skips that give no reason, or ask for a device themselves, past tests/devices.py:
    where CI=true a missing one is an error.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "skipif":
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            silent = not any(k.arg == "reason" for k in node.keywords)
            if silent or names & ASKS_FOR_A_DEVICE:
                found.append(node.lineno)
        elif ast.unparse(node.func) == "pytest.skip" and not node.args:
            found.append(node.lineno)
    return found


def test_skips_say_why_and_devices_are_missed_in_one_place():
    found = {str(path.relative_to(ROOT)): own_skips(text)
             for path in sorted((ROOT / "tests").rglob("*.py"))
             if "skip" in (text := path.read_text())}
    assert {name: lines for name, lines in found.items() if lines} == {}
    planted = ("@pytest.mark.skipif(device('cpu') is None, reason='r')\ndef a(): pytest.skip()\n"
               "@pytest.mark.skipif(sys.platform == 'win32')\ndef b(): pytest.skip('why')")
    assert sorted(own_skips(planted)) == [1, 2, 3]


def test_what_is_missing_is_an_error_where_ci_is_true(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(FileNotFoundError, match="PoCL is missing: tests want it wherever CI=true"):
        missing("PoCL")
    monkeypatch.delenv("CI")
    assert missing("PoCL") == "PoCL is missing"


def test_lines_are_short():
    wide = [f"{path.relative_to(ROOT)}:{n} has {len(line)} columns"
            for path in [*FILES.values(), *sorted((ROOT / "tests").rglob("*.py"))]
            if "golden" not in path.parts          # generated kernels: a line is a statement
            for n, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > MAX_COLUMNS]
    assert wide == []


def test_a_module_begins_with_what_it_is_for():
    trees = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
    assert [n for n, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_annotations_are_not_evaluated():
    """`from __future__ import annotations`, so that hints cost nothing and may look ahead."""
    assert [name for name, path in FILES.items() if path.name != "__init__.py"
            and "from __future__ import annotations" not in path.read_text()] == []


def is_text(node: ast.AST) -> bool:
    """Whether an expression is a string that is written out, or made of such."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str))


def searches(source: str) -> list[str]:
    """Where a source uses regular expressions, or searches what may be text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
            found += ["import re" for name in names if name in ("re", "regex")]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, attr = node.func.value, node.func.attr
            library = isinstance(owner, ast.Name) and owner.id == "dataclasses"
            counts = attr in ("count", "index") and any(map(is_text, node.args))
            if counts or (attr in SEARCHES and not library):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            where = node.comparators[0]
            name = getattr(where, "attr", getattr(where, "id", ""))
            data = isinstance(where, (ast.Tuple, ast.Set, ast.Dict))
            if name in TEXTS or (is_text(node.left) and not data):
                found.append(ast.unparse(node))
    return found


def test_code_generation_does_not_read_its_own_text():
    found = {(name, what) for name, path in FILES.items() if name.startswith(WRITERS)
             for what in searches(path.read_text())}
    assert sorted(found - NO_CODE.keys()) == [], (
        "ask the IR or the renderer; if this string is no rendered code, say in NO_CODE what it is")
    assert sorted(NO_CODE.keys() - found) == [], "no longer there: take it out of NO_CODE"


def test_templates_do_not_read_their_own_text():
    pattern = re.compile(rf"\|\s*replace\b|\.({'|'.join(sorted(SEARCHES))})\(")
    assert [f"{path.relative_to(ROOT)}: {m.group()}"
            for path in sorted((PACKAGE / "templates").rglob("*.j2"))
            for m in pattern.finditer(path.read_text())] == []
    assert pattern.search("{{ line | replace('a', 'b') }}") and pattern.search("{{ x.split() }}")


# -- the checks themselves ---------------------------------------------------------------------


def of(source: str, module: str = "jitcl.passes.fuse", is_package: bool = False) -> list[Import]:
    modules = frozenset({"jitcl.ir.graph", "jitcl.frontends.onnx", "jitcl.passes.core", module})
    return imports(source, module, is_package, modules)


@pytest.mark.parametrize(("source", "target"), [
    ("import jitcl.ir.graph", "jitcl.ir.graph"),
    ("from jitcl.ir import graph", "jitcl.ir.graph"),
    ("from jitcl.ir.graph import Graph", "jitcl.ir.graph"),
    ("from . import core", "jitcl.passes.core"),
    ("from .core import Pass", "jitcl.passes.core"),
    ("from ..frontends import onnx", "jitcl.frontends.onnx"),
    ("def f():\n    import onnx.helper", "onnx.helper"),
    ("importlib.import_module('numba')", "numba"),
    ("try:\n    import pyopencl as cl\nexcept ImportError:\n    pass", "pyopencl"),
])
def test_imports_are_found_wherever_they_stand(source, target):
    assert [i.target for i in of(source)] == [target]


def test_imports_relative_to_a_package():
    (found,) = of("from .graph import Graph", "jitcl.ir", is_package=True)
    assert found.target == "jitcl.ir.graph"


def test_breaches_are_noticed():
    assert breaks_layering(*of("from jitcl.codegen.plan import Plan"))
    assert breaks_layering(*of("def f():\n    from jitcl import cli", "jitcl.runtime.x"))
    assert not breaks_layering(*of("from jitcl.ir.graph import Graph"))
    assert leaves_confinement(*of("def f():\n    import onnx"))
    assert leaves_confinement(*of("from numba import njit", "jitcl.devices.opencl"))
    assert not leaves_confinement(*of("from numba import njit", "jitcl.devices.cpu.compile"))
    assert not leaves_confinement(*of("import onnxscript_like", "jitcl.passes.x"))


@pytest.mark.parametrize(("source", "found"), [
    ("import re", ["import re"]),
    ("from re import compile", ["import re"]),
    ("def f():\n    import re as r", ["import re"]),
    ("if 'rint(' in body: pass", ["'rint(' in body"]),
    ("if f'{name}(' not in ''.join(a): pass", ["f'{name}(' not in ''.join(a)"]),
    ("if name in emitted.body: pass", ["name in emitted.body"]),
    ("at = body.find('x')", ["body.find('x')"]),
    ("n = src.count('exp(') + values.count(0)", ["src.count('exp(')"]),
    ("t = e.body.replace('__kernel void', s, 1)", ["e.body.replace('__kernel void', s, 1)"]),
    ("if text[0].startswith('jitcl_'): pass", ["text[0].startswith('jitcl_')"]),
    ("e = dataclasses.replace(e, body=b)\nif op in ('add', 'sub') or 'a' in {'a'}: pass", []),
])
def test_searches_of_text_are_noticed(source, found):
    assert searches(source) == found


def test_anybody_may_ask_for_the_version():
    assert [i.target for i in of("from jitcl import __version__, cli")] == ["jitcl"]


def test_cycles_are_noticed():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_lazy_imports_are_told_apart():
    source = ("import numpy\nif TYPE_CHECKING:\n    import lark\n"
              "class A:\n    import json\n    def f(self):\n        import rich\n")
    assert [(i.target, i.at_start) for i in of(source)] == [
        ("numpy", True), ("lark", False), ("json", True), ("rich", False)]
