"""Hostile inputs and wrong calls (tests/hostile.py): each ends within 20 s with its JitclError, in
a process that may die of it; on the command line with a message, and no traceback.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests import hostile

ROOT = Path(__file__).resolve().parent.parent
SUPERRES = str(ROOT / "examples" / "superres-x3.onnx")
SECONDS = 20                    # that a row may take
STARTING = 60                   # that a process takes to import and to make its rows
BATCHES = 4
NAMES = {table: tuple(make()) for table, make in hostile.TABLES.items()}


def ran(table: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How each row ended. One that hangs or ends its process is told so; a new one goes on."""
    found: dict[str, dict[str, Any]] = {}
    left = list(names)
    while left:
        child = subprocess.Popen([sys.executable, "-m", "tests.hostile", table, *left], cwd=ROOT,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stderr is not None
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=passed_on, args=(child.stdout, lines), daemon=True).start()
        at, wait = left[0], STARTING
        why = "ended its process"
        try:
            while (line := lines.get(timeout=wait)) is not None:
                told = json.loads(line)
                at, wait = told.get("begun", at), SECONDS
                if "ended" in told:
                    found[told["ended"]] = told
        except queue.Empty:
            why = f"took more than {wait} s"
        child.kill()
        said = child.stderr.read()
        child.wait()
        if at not in found:
            found[at] = {"kind": f"it {why}: {said[-500:]}", "text": "", "seconds": 0}
        left = [n for n in left if n not in found]
    return found


def passed_on(out: TextIO, lines: queue.Queue[str | None]) -> None:
    """Lines from a pipe, and None at its end."""
    for line in out:
        lines.put(line)
    lines.put(None)


def wrong(table: str, names: Sequence[str]) -> list[str]:
    """What is wrong with how rows ended."""
    rows, problems = hostile.TABLES[table](), []
    for name, told in ran(table, names).items():
        row = rows[name]
        if told["kind"] != row.kind or row.text not in told["text"]:
            problems.append(f"{name}: {told['kind']}: {told['text'][:300]!r}; wanted {row.kind}: "
                            f"{row.text!r}")
    return problems


def test_there_are_many():
    assert len(NAMES["inputs"]) >= 60 and len(NAMES["misuses"]) >= 40


@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("table", NAMES)
def test_each_ends_with_its_error(table, batch):
    names = NAMES[table][batch::BATCHES]
    problems = wrong(table, names)
    assert not problems, "\n".join(problems)


def test_a_row_that_hangs_or_dies_is_noticed(monkeypatch, tmp_path):
    """The watch itself: what hangs or dies is known by its name, and the rows after it run."""
    script = tmp_path / "tests" / "hostile.py"
    script.parent.mkdir()
    script.write_text(
        "import json, os, sys, time\n"
        "for name in sys.argv[2:]:\n"
        "    print(json.dumps({'begun': name}), flush=True)\n"
        "    if name == 'hangs': time.sleep(600)\n"
        "    if name == 'dies': os._exit(3)\n"
        "    print(json.dumps({'ended': name, 'kind': 'fine', 'text': '', 'seconds': 0}))\n"
        "    sys.stdout.flush()\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "SECONDS", 1)
    found = ran("any", ["one", "hangs", "two", "dies", "three"])
    assert [found[n]["kind"] for n in ("one", "two", "three")] == ["fine"] * 3
    assert "took more than 1 s" in found["hangs"]["kind"]
    assert "ended its process" in found["dies"]["kind"]


# ---- the command line

RUN = f"run {SUPERRES} -d cpu --random --shape image=1,3,8,8"
COMMANDS = {
    "a pipe as a model": ("mkfifo p.onnx; JITCL run p.onnx", 1, "It is a named pipe"),
    "a device as a model": ("JITCL run /dev/zero", 1, "It is a device"),
    "a folder as a model": ("JITCL dump .", 1, "Is a directory"),
    "a pipe as an input": (f"mkfifo p.npy; JITCL {RUN} -i image=p.npy", 1, "It is a named pipe"),
    "a device as labels": (f"JITCL {RUN} --labels /dev/zero", 1, "It is a device"),
    "an archive that is none": (f"echo PK > a.npz; JITCL {RUN} -i a.npz", 1, "holds no arrays"),
    "texts as numbers": (f"JITCL {RUN} -i 'image=[[[[\"a\"]]]]'", 1, "wanted numbers of type"),
    "numbers 2000 deep": (f"JITCL {RUN} -i image=$(printf '[%.0s' $(seq 20000))", 1,
                          "or numbers such as"),
    "a shape of 10^18": (RUN.replace("8,8", "8," + "9" * 18).join(["JITCL ", ""]), 1,
                         "more than any machine holds"),
    "a shape of 30 digits": (RUN.replace("8,8", "8," + "9" * 30).join(["JITCL ", ""]), 2,
                             "is no shape"),
    "a seed below 0": (f"JITCL {RUN} --seed -1", 2, "-1 is not in the range"),
    "a full disk as output": (f"JITCL {RUN} > /dev/full", 1,
                              "cannot write to standard output: No space left on device"),
    "help to a full disk": ("JITCL --help > /dev/full", 1, "No space left on device"),
    "output that is closed": (f"JITCL {RUN} >&-", 0, ""),
    "output that nobody reads on": ("(JITCL --help; echo $? >status) | true; cat status >&2", 0,
                                    ""),
    "a terminal of few letters": (f"PYTHONIOENCODING=ascii JITCL {RUN}", 0, ""),
    "a wrong variable": (f"JITCL_THREADS=many JITCL {RUN}", 1, "JITCL_THREADS: got 'many'"),
}


@pytest.mark.sampled(quick=6)
@pytest.mark.parametrize("case", COMMANDS)
def test_commands_end_with_a_message(case, tmp_path):
    command, status, text = COMMANDS[case]
    ended = subprocess.run(
        ["bash", "-c", command.replace("JITCL ", f"{sys.executable} -m jitcl ", 1)
         if not command.startswith("JITCL_") else command.replace(
             " JITCL ", f" {sys.executable} -m jitcl ")],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
    assert ended.returncode == status and text in ended.stderr, ended.stderr
