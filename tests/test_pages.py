"""Each code block of the pages that users read is run: a page's blocks in order, in a folder that
has what the page speaks of. A command that is not run stands in NOT_RUN, with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.devices import needs
from tests.drivers import posing
from tests.real_models import MODELS, needs_models

ROOT = Path(__file__).resolve().parent.parent
PAGES = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8")
         for p in (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")),
                   *sorted(ROOT.glob("examples/*.md")))
         if p.name != "README.zh.md"}           # its code is README.md's: tests/test_docs.py
SIZE = (1, 3, 32, 32)

# Pages whose Python wants what other test files have at hand.
OWN = {"docs/language-models.md": "tests/test_lm.py", "docs/pytorch.md": "tests/test_torch.py",
       "docs/ray.md": "tests/test_ray.py", "docs/serving.md": "tests/test_serve.py"}
NOT_RUN = {
    "pip install '.[demo]' && python examples/upscale.py": "the stage `demo` of .ci/run",
    "pip install -e '.[test]' && pytest": "the stages `install_test` and `tests` of .ci/run",
    "python -m venv .venv && . .venv/bin/activate": "each stage of .ci/run has an environment",
    "pip install -e '.[dev]'": "the stage `install_lint` of .ci/run",
    "pytest": "the stage `tests` of .ci/run",
    'pytest -m "slow and not long"': "the stages `slow`, `conformance`, `faults` of .ci/run",
    "pytest -m long": "it takes an hour",
    "ruff check . && mypy && mypy --strict jitcl/ir jitcl/ops": "the stages `lint` and `types`",
    ".ci/run": "this is part of it",
    'eval "$(_JITCL_COMPLETE=bash_source jitcl)"': "tests/test_completion.py",
    "_JITCL_COMPLETE=fish_source jitcl | source": "tests/test_completion.py",
    "jitcl serve folder": "tests/test_serve.py",
    "jitcl serve models/smollm --device opencl": "tests/test_serve.py",
    "jitcl serve model.gguf --host 0.0.0.0 --port 80 --api-key-file keys.txt":
        "tests/test_serve.py",
    "export JITCL_POCL_CPU=znver3 JITCL_TARGET=max_vector_width=16,vector_width=16":
        "tests/test_real_abort.py; it hangs",
    "export JITCL_BUILD_SECONDS=10": "the same",
    "jitcl run small.jitcl --random -d opencl:pocl": "the same",
}
# What a page's blocks must have printed, and names with what they must be.
PRINTED = {
    "README.md": "none on the host", "docs/drop-in.md": "none on the host",
    "docs/precision.md": "precision: low;/head/Conv=high;/body.?/*=normal, tensors",
    "docs/profiling.md": "unexplained", "docs/check.md": "2 more runs gave the same bits",
    "docs/start.md": "unexplained", "docs/shapes.md": "one plan for many shapes",
}


def blocks(page: str, *languages: str) -> list[str]:
    return [text for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page],
                                                  re.MULTILINE | re.DOTALL)
            if language in languages]


def command(line: str) -> str:
    return re.split(r"\s+#", line)[0].rstrip()


def commands(page: str) -> list[str]:
    """Shell blocks without what is not run; a block of which nothing is left is none."""
    kept = [[line for line in block.splitlines() if command(line) not in NOT_RUN]
            for block in blocks(page, "sh")]
    return ["\n".join(lines) for lines in kept if lines]


@pytest.fixture
def reader(tmp_path, monkeypatch) -> Path:
    """The folder of somebody who reads: examples/ as in a clone, and a model.onnx of their own,
    which takes `image` f32[1,3,32,32].
    """
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "reader"
    folder.mkdir()
    for name in ("examples", "tests"):
        (folder / name).symlink_to(ROOT / name)
    model = onnx.load(ROOT / "examples" / "superres-x3.onnx")
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, SIZE):
        dim.dim_value = size
    onnx.save(model, folder / "model.onnx")
    monkeypatch.chdir(folder)
    return folder


SLOW = ("docs/check.md", "docs/drop-in.md", "docs/precision.md", "docs/profiling.md",
        "docs/quantisation.md", "docs/shapes.md", "docs/start.md")


@pytest.mark.sampled(quick=2, slow=1)
@pytest.mark.parametrize("page", [
    pytest.param(p, marks=[pytest.mark.slow] if p in SLOW else [])
    for p in PAGES if blocks(p, "python") and p not in OWN])
def test_python(page, reader, monkeypatch, capsys):
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    picture = np.random.default_rng(0).random(SIZE, dtype=np.float32)
    scope: dict[str, object] = {"__name__": "page", "array": picture, "picture": picture}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), scope)
    assert PRINTED.get(page, "") in capsys.readouterr().out
    for name in ("result", "upscaled"):
        found = scope.get(name)
        assert not isinstance(found, np.ndarray) or found.shape[1] == 3
    if page == "docs/async.md":
        assert "after" in scope


@pytest.mark.parametrize("page", OWN)
def test_other_tests_run_these(page):
    assert Path(page).name in (ROOT / OWN[page]).read_text() and blocks(page, "python")


@pytest.fixture
def shell(reader, tmp_path, monkeypatch) -> Path:
    """`reader` with more files, and programs as they are called after an installation."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in (("jitcl", "-m jitcl"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)
    for name, value in (("PATH", f"{programs}:{os.environ['PATH']}"), ("PYTHONPATH", str(ROOT)),
                        ("BROWSER", "true"), ("JITCL_TUNING_SECONDS", "2")):
        monkeypatch.setenv(name, value)
    picture = np.random.default_rng(0).random(SIZE, dtype=np.float32)
    np.save(reader / "x.npy", picture)
    (reader / "photos").mkdir()
    np.savez(reader / "photos" / "one.npz", image=picture)
    Image.open(ROOT / "examples" / "chelsea.png").resize((32, 32)).save(reader / "cat.png")
    for name in ("int8", "float"):
        shutil.copy("model.onnx", f"{name}.onnx")
    (reader / "held.txt").write_text("To be, or not to be, that is the question.")
    (reader / "folder").symlink_to(MODELS / "shakespeare-llama")
    return reader


@pytest.mark.sampled(slow=7)
@pytest.mark.slow
@needs("opencl:pocl")
@needs("opencl:intel")
@needs_models
@posing.needed()
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)])
def test_shell(page, shell):
    for block in commands(page):
        run(block)


def run(block: str) -> None:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=590)
    assert done.returncode == 0, block + done.stdout[-2000:] + done.stderr[-2000:]


def test_blocks_are_marked_as_what_they_are():
    """What is not run by its language is no code: a drawing, or what was printed."""
    for page in PAGES:
        for block in blocks(page, ""):
            assert not re.search(r"^(jitcl|pip|python|export|import|from) ", block,
                                 re.MULTILINE), f"{page}: {block}"
        assert set(re.findall(r"^```(\w+)$", PAGES[page], re.MULTILINE)) <= {"python", "sh"}


def test_what_is_not_run_is_still_there():
    lines = {command(line) for page in PAGES for block in blocks(page, "sh")
             for line in block.splitlines()}
    assert NOT_RUN.keys() <= lines
    named = {word for reason in NOT_RUN.values() for word in re.findall(r"tests/\w+\.py", reason)}
    assert all((ROOT / name).exists() for name in named)
    stages = (ROOT / ".ci" / "run").read_text()
    for stage in re.findall(r"`(\w+)`", " ".join(NOT_RUN.values())):
        assert f"\n{stage}()" in stages, stage


@pytest.mark.slow
@needs_models
def test_a_command_that_fails_is_seen(shell):
    with pytest.raises(AssertionError, match="No such option"):
        run("jitcl run model.onnx --no-such-option | cat\njitcl --help")
