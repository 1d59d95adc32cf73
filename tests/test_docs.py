"""What the documents say is still there: rooms, files, links, commands, the page of use."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
from pathlib import Path

import pytest
from click import Context, Group

import jitcl
from jitcl import config
from jitcl.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
ROOMS = re.findall(r"^\| `([a-z/]+)/` \|.*\| (.*) \|$", (ROOT / "ARCHITECTURE.md").read_text(),
                   re.MULTILINE)


def test_the_map_shows_every_room():
    named = {room.split("/")[0] for room, _ in ROOMS}
    there = {p.name for p in (ROOT / "jitcl").iterdir() if p.is_dir() and any(p.glob("**/*.py"))}
    assert there <= named


@pytest.mark.parametrize(("room", "begin"), ROOMS)
def test_where_to_begin_reading(room, begin):
    for name in re.findall(r"`([a-z_.]+)`", begin):
        assert (ROOT / "jitcl" / room / name).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


# what `jitcl dump` and `bench` write, and folders that are the reader's, beside the repository, or
# still to come
ELSEWHERE = re.compile(r"/tmp|\.\./shared/.*|~/.*|tuning/?|part-1|posed"
                       r"|(NN|\d\d)-[\w-]+\.jitcl(\.npz)?|(kernels|loops|scheduled)/[\w-]+\.\w+"
                       r"|\w*(config|tokenizer)\.json"
                       r"|(memory|steps|groups|program|roofline)\.(txt|svg|dot)|small\.jitcl")
SUFFIXES = "py|md|c|h|cl|j2|toml|yml|sh|json|svg|onnx|jitcl|txt|dot|npz|npy"


def paths(page):
    """What stands in backticks and is a path: with a slash, or a file's ending."""
    for name in re.findall(r"`([\w~][\w./~-]*|\.[\w]+/[\w./-]*|\.\./[\w./-]*)`", page.read_text()):
        if re.search(rf"[\w-]\.({SUFFIXES})$", name) or re.fullmatch(r"(\w[\w-]*/)+[\w.-]*", name):
            yield name


def test_paths_exist():
    """From the repository's root, or from a folder of it; the log of decisions speaks of files
    that are gone.
    """
    files = {p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if ".git" not in p.parts}
    ends = {"/".join(f.split("/")[k:]) for f in files for k in range(f.count("/") + 1)}
    missing = [f"{page.name}: {name}" for page in PAGES if page.name != "decisions.md"
               for name in paths(page) if not ELSEWHERE.fullmatch(name)
               and name.rstrip("/") not in ends]
    assert missing == []


@pytest.mark.parametrize("name", ["docs/no-such-page.md", "no_such_module.py", "no/such/folder/"])
def test_a_path_that_is_not_there_is_seen(name, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"see `{name}` and `x + y`")
    assert name in list(paths(page))


def examples(command: Group, context: Context) -> list[list[str]]:
    """The command lines of all help pages and documents."""
    pages = [p.read_text() for p in PAGES] + [command.get_help(context)] + [
        c.get_help(Context(c, parent=context)) for c in command.commands.values()]
    lines = [line.split("#")[0].split("  ")[0] for page in pages
             for line in re.findall(r"^ *(jitcl [a-z].*)$", page.replace("  jitcl", "\njitcl"),
                                    re.MULTILINE)]
    return [shlex.split(line.split("|")[0].split(">")[0])[1:] for line in lines]


def test_commands_in_help_and_documents_parse():
    """Every example uses options that exist; nothing is run."""
    context = Context(cli, info_name="jitcl")
    found = [words for words in examples(cli, context) if words[0] in cli.commands]
    assert len(found) > 20
    for words in found:
        command = cli.commands[words[0]]
        rest = words[1:]
        if isinstance(command, Group):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(words[0], rest)


def site():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


@pytest.mark.parametrize(("page", "text", "wanted"), [
    ("index.md", "[a](docs/cpu.md) [b](https://x.y/z.md)", "[a](cpu.md) [b](https://x.y/z.md)"),
    ("index.md", "[a](docs/cpu.md#threads), [c](#status)", "[a](cpu.md#threads), [c](#status)"),
    ("cpu.md", "[a](../ARCHITECTURE.md) ![b](x.svg)", "[a](architecture.md) ![b](x.svg)"),
    ("examples/two_models.md", "![a](../docs/b.png) [c](README.md)",
     "![a](../b.png) [c](index.md)"),
    ("security.md", "[a](../SECURITY.md) [b](nowhere.md)", "[a](reporting.md) [b](nowhere.md)")])
def test_links_of_the_site_follow_its_pages(page, text, wanted):
    assert site().moved(text, page) == wanted


def test_the_gallery_has_every_golden_kernel():
    page = site().gallery()
    for path in (ROOT / "tests" / "golden").iterdir():
        assert all(line in page for line in path.read_text().splitlines()), path.name
    assert "g.softmax(x('scores', 8, 100), axis=-1)" in page


def parts(readme):
    """What two languages must have in common: code, options, links to other pages, sections."""
    text = readme.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {"code": re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE),
            "rows": re.findall(r"^\| `(\w+)` \|", prose, re.MULTILINE),
            "words": sorted(set(re.findall(r"`[^`\n]+`", prose))),
            "links": sorted(set(re.findall(r"\]\(([^)#]+)\)", prose)) - {
                "README.md", "README.zh.md"}),
            "sections": len(re.findall(r"^## ", prose, re.MULTILINE))}


def test_the_readme_says_the_same_in_chinese():
    english, chinese = parts(ROOT / "README.md"), parts(ROOT / "README.zh.md")
    assert chinese == english, "change README.zh.md as README.md was changed"
    assert len(english["code"]) >= 4 and len(english["rows"]) >= 11
    assert "](README.zh.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](README.md)" in (ROOT / "README.zh.md").read_text(encoding="utf-8")


def test_a_readme_that_was_left_behind_is_seen(tmp_path):
    text = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    for old, new in (("import jitcl\n", "import jitcl \n"), ("| `memory` |", "| `room` |"),
                     ("docs/cpu.md", "docs/gpu.md"), ("`strict=True`", "`strict`")):
        page = tmp_path / "page.md"
        page.write_text(text.replace(old, new), encoding="utf-8")
        assert old in text and parts(page) != parts(ROOT / "README.md"), old


def test_the_readme_tells_all_options_of_compile():
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    parameters = inspect.signature(jitcl.compile).parameters
    assert set(parameters) - {"model", "strict"} <= set(names)


def test_variables_are_in_the_help():
    text = cli.get_help(Context(cli, info_name="jitcl"))
    assert [v.name for v in config.VARIABLES if v.name not in text] == []
