"""Generated kernels in Oclgrind, a simulator that looks at every access: races, accesses out of
bounds, values that nobody wrote. It runs in a child process through jitcl's own OpenCL device:

    objections(["ops", "gpu", "softmax"])     {case: what Oclgrind said of it}
    python -m tests.generated.oclgrind ops gpu softmax matmul
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lacking import unless

LIBRARY = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
needed = unless(LIBRARY.exists(), "oclgrind is not installed")
ROOT = Path(__file__).resolve().parents[2]


def objections(arguments: list[str], timeout: float = 250) -> dict[str, str]:
    """Case -> Oclgrind's complaints, for the cases that `main` runs on these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "oclgrind.icd").write_text(f"{LIBRARY}\n")
        log = Path(folder, "log")
        env = {**os.environ, "OCL_ICD_VENDORS": folder, "JITCL_CACHE_DIR": f"{folder}/cache",
               "CI": "",                       # the other drivers are not there
               "JITCL_ISOLATION": "never",     # all is written into one log
               "OCLGRIND_LOG": str(log), "OCLGRIND_DATA_RACES": "1", "OCLGRIND_CHECK_API": "1",
               "OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_NUM_THREADS": "1",
               "OCLGRIND_MAX_ERRORS": "1000000",
               # optimised, LLVM inserts freeze, which the check of values does not know
               "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable"}
        done = subprocess.run([sys.executable, "-m", __name__, *arguments], env=env, cwd=ROOT,
                              capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert found, "no case was run"
    return found


def main(kind: str, target: str, *names: str) -> None:
    """Runs cases one after the other; prints what each added to Oclgrind's log as JSON."""
    from tests.generated.simulated import CASES, run_case, simulator

    simulator()                         # what its probes do is not asked here
    log = Path(os.environ["OCLGRIND_LOG"])
    found = {}
    for name, make in CASES[kind](target):
        if names and name not in names:
            continue
        before = log.stat().st_size if log.exists() else 0
        wrong = run_case(make())
        with log.open() as file:
            file.seek(before)
            found[name] = wrong + file.read()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
