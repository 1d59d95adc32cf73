"""What a release says of itself, and what it must hold: `.ci/run` builds wheel and sdist, and calls
`packed` on them.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import jitcl

ROOT = Path(__file__).resolve().parent.parent


def sources() -> set[str]:
    """Files of the package: modules, templates, the grammar, py.typed."""
    return {p.relative_to(ROOT).as_posix() for p in (ROOT / "jitcl").rglob("*")
            if p.is_file() and "__pycache__" not in p.parts}


def packed(folder: Path) -> None:
    """AssertionError unless the folder holds a wheel and an sdist with all of the package."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as found:
        inside = {n for n in found.namelist() if not n.split("/")[0].endswith(".dist-info")}
        assert inside == sources(), inside ^ sources()
        for text in ("LICENSE", "explorer/LICENSE"):
            assert any(n.endswith(f"licenses/{text}") for n in found.namelist()), text
    with tarfile.open(sdist) as found_there:
        names = {n.partition("/")[2] for n in found_there.getnames()}
    assert sources() - names == set()
    assert {"LICENSE", "README.md", "pyproject.toml", "CHANGELOG.md"} <= names


def test_the_version_is_one():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^version = "(.*)"$', text, re.MULTILINE)[1] == jitcl.__version__
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", h) for h in headings[1:])
    released = [tuple(map(int, h.split(" ")[0].split("."))) for h in headings[1:]]
    assert released == sorted(released, reverse=True)


def test_licences_of_bundled_parts_are_named():
    """Each package that esbuild bundles stands in explorer/LICENSE, each kind of licence in the
    wheel's expression.
    """
    locked = json.loads((ROOT / "explorer" / "package-lock.json").read_text())["packages"]
    text = (ROOT / "explorer" / "LICENSE").read_text()
    said = re.search(r'^license = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    bundled = {name.removeprefix("node_modules/"): about["license"] for name, about in
               locked.items() if name and "esbuild" not in name}
    assert len(bundled) > 9
    for name, licence in bundled.items():
        assert name in text and f"SPDX: {licence})" in text and licence in said.split(" AND "), name


def test_issue_templates_ask_for_doctor():
    pages = [p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
             if p.name != "config.yml"]
    assert len(pages) == 3
    for page in pages:
        assert "jitcl doctor" in page.read_text(), page.name


@pytest.mark.parametrize("lost", ["jitcl/py.typed", "jitcl/ir/grammar.lark"])
def test_what_a_wheel_lacks_is_seen(lost, tmp_path):
    for name, skip in (("a.whl", lost), ("a.tar.gz", "")):
        files = [*sources(), "a.dist-info/licenses/LICENSE",
                 "a.dist-info/licenses/explorer/LICENSE"]
        if name.endswith("whl"):
            with zipfile.ZipFile(tmp_path / name, "w") as out:
                for file in files:
                    if file != skip:
                        out.writestr(file, "")
        else:
            with tarfile.open(tmp_path / name, "w:gz") as archive:
                for file in (*sources(), "LICENSE", "README.md", "pyproject.toml", "CHANGELOG.md"):
                    archive.add(ROOT / file, f"a/{file}")
    with pytest.raises(AssertionError, match=re.escape(lost)):
        packed(tmp_path)
    with zipfile.ZipFile(tmp_path / "a.whl", "a") as out:
        out.writestr(lost, "")
    packed(tmp_path)


if __name__ == "__main__":
    packed(Path(sys.argv[1]))
