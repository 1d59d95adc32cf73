"""What mkdocs.yml's site shows beside docs/: pages that lie elsewhere in the repository, and a
gallery of the kernels in tests/golden, which the tests hold to what is generated.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# where pages outside of docs/ appear in the site
PAGES = {"README.md": "index.md", "README.zh.md": "index.zh.md",
         "ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md",
         "CHANGELOG.md": "changelog.md",
         "SECURITY.md": "reporting.md", "examples/README.md": "examples/index.md",
         **{f"examples/{p.name}": f"examples/{p.name}" for p in ROOT.glob("examples/*.md")
            if p.name != "README.md"}}
SOURCES = {page: source for source, page in PAGES.items()}
KINDS = {"cpu.py": ("CPU (AVX2)", "python"), "gpu.cl": ("OpenCL GPU", "c"),
         "registers.cl": ("GPU without local memory (Mali)", "c"),
         "images.cl": ("GPU with images", "c")}


def moved(text: str, page: str) -> str:
    """The page with its links as they are in the site; `page` is its address there."""
    source = SOURCES.get(page, f"docs/{page}")

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        place = PAGES.get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(place, posixpath.dirname(page) or '.')}"

    return re.sub(r"\]\((?![a-z]+:|#)([^)#\s]+)", link, text)


def graphs() -> dict[str, str]:
    """Name -> the graph of tests/test_golden.py, as it is written there."""
    text = (ROOT / "tests" / "test_golden.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "GRAPHS":
            assert isinstance(node.value, ast.Dict)
            return {ast.literal_eval(key): ast.unparse(value.body)
                    for key, value in zip(node.value.keys, node.value.values)
                    if key is not None and isinstance(value, ast.Lambda)}
    raise LookupError("tests/test_golden.py has no GRAPHS")


def gallery() -> str:
    """The page of generated kernels."""
    parts = ["# Generated kernels\n\nWhat jitcl writes for small graphs: the same files that the "
             "tests compare with, `tests/golden/`. `jitcl dump MODEL -o FOLDER` writes those of a "
             "model of yours.\n"]
    for name, graph in graphs().items():
        parts.append(f"## {name.replace('_', ' ')}\n\n```python\n{graph}\n```\n")
        for suffix, (kind, language) in KINDS.items():
            path = ROOT / "tests" / "golden" / f"{name}.{suffix}"
            if path.exists():
                source = path.read_text(encoding="utf-8").rstrip()
                lines = "\n".join(f"    {line}".rstrip() for line in
                                  (f"```{language}", *source.splitlines(), "```"))
                parts.append(f'=== "{kind}"\n\n{lines}\n')
    return "\n".join(parts)


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "gallery.md", content=gallery()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return moved(markdown, page.file.src_uri)
