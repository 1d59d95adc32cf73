"""What the documents say is still there: rooms, files, links, commands, the page of use."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import numpy as np
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


def test_the_readmes_page_of_use_runs(monkeypatch, tmp_path, capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    text = code[1].replace("model.onnx", str(ROOT / "examples" / "superres-x3.onnx"))
    scope = {"array": np.zeros((1, 3, 8, 8), np.float32)}
    exec(compile(text, "README.md", "exec"), scope)
    assert scope["result"]["upscaled"].shape == (1, 3, 24, 24)
    assert "none on the host" in capsys.readouterr().out


def test_the_page_on_drop_in_interfaces_runs(monkeypatch, capsys):
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "drop-in.md").read_text(),
                           re.DOTALL):
        text = code.replace("model.onnx", str(ROOT / "examples" / "superres-x3.onnx"))
        scope = {"array": np.zeros((1, 3, 8, 8), np.float32)}
        exec(compile(text, "drop-in.md", "exec"), scope)
        assert scope["upscaled"].shape == (1, 3, 24, 24)
        assert "none on the host" in capsys.readouterr().out


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


def test_the_page_of_submitted_runs_runs():
    """All blocks, in order, in one scope."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "async.md").read_text(), re.DOTALL)
    scope: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "async.md", "exec"), scope)
    assert len(blocks) > 5 and "after" in scope


def test_the_page_on_precision_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "precision.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "precision.md", "exec"), {})
    assert "precision: low;/head/Conv=high;/body.?/*=normal, tensors" in capsys.readouterr().out


def test_the_page_on_profiles_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "profiling.md").read_text()
    scope: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "profiling.md", "exec"), scope)
    told = capsys.readouterr().out
    assert "unexplained" in told and (tmp_path / "frames.html").stat().st_size > 1000


def test_the_page_on_checks_runs(monkeypatch, capsys):
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "check.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    scope = {"picture": np.random.default_rng(0).random((1, 3, 16, 16)).astype(np.float32)}
    for block in blocks:
        exec(compile(block, "check.md", "exec"), scope)
    assert "2 more runs gave the same bits" in capsys.readouterr().out
    assert scope["result"].keys() == {"upscaled", "/head/Conv_output_0", "/Relu_output_0"}


def test_the_readme_tells_all_options_of_compile():
    names = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    parameters = inspect.signature(jitcl.compile).parameters
    assert set(parameters) - {"model", "strict"} <= set(names)


def test_variables_are_in_the_help():
    text = cli.get_help(Context(cli, info_name="jitcl"))
    assert [v.name for v in config.VARIABLES if v.name not in text] == []
