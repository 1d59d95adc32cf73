"""The shell's completion, as docs/cli.md sets it up."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from jitcl.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent


def offered(*words: str) -> list[str]:
    """What completing the last of these words offers, as `main` sets it up."""
    complete = BashComplete(cli, {}, "jitcl", "_JITCL_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


def test_commands_and_options_are_offered():
    assert offered("d") == ["devices", "doctor", "dump"]
    assert offered("cache", "r") == ["retry"]
    assert offered("doctor", "--b") == ["--bundle"]
    assert offered("run", "model.onnx", "--isolation", "u") == ["untrusted"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documents_lines_work(shell, monkeypatch):
    """The program answers under the variable that docs/cli.md names, with the shell's script."""
    page = (ROOT / "docs" / "cli.md").read_text()
    (variable,) = set(re.findall(r"(_JITCL_\w+)=", page))
    assert f"{shell}_source" in page
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("no bash")              # click asks it for its version
    monkeypatch.setenv(variable, f"{shell}_source")
    code = "import sys; sys.argv[:] = ['jitcl']; from jitcl.cli.main import main; main()"
    told = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert "_JITCL_COMPLETE" in told.stdout and f"{shell}_complete" in told.stdout
    assert told.stderr == ""                # such as a remark on a variable that jitcl lacks
