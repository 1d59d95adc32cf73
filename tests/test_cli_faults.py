"""What the command line says of drivers that failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jitcl.cli.main import cli
from jitcl.devices import select
from jitcl.devices.base import DeviceInfo
from jitcl.devices.faults import Fault, FaultDatabase, database_path, databases, fault_database
from jitcl.target import Target
from tests.posing import GRAPH, TARGET

ROOT = Path(__file__).parent.parent
CRASH = Fault("softmax_row_0f3a", "build", "crash", "SIGABRT: LLVM ERROR: Cannot select",
              ("half", "local", "call:exp"), "no-images", "the log\nof it", 1.7e9)
HANG = Fault("gemm_tiled_12ab", "launch", "hang", "no end after 60 s", (), "", "", 1.6e9)
OTHER = Target(kind="opencl", name="Adreno 640", vendor="Qualcomm", driver="E031")

# `jitcl` with a device whose compiler fails on local memory
COMMAND = """
import sys
from pathlib import Path
from jitcl.cli.main import main
from jitcl.devices import select
from tests.posing import PosingDevice, failing, softmax_of_relu
root = Path(sys.argv.pop(1))
select.open_device = lambda spec, tally=None, shared=False: PosingDevice(
    softmax_of_relu, root, on_load=failing(lambda f: "local" in f))
main()
"""


@pytest.fixture(autouse=True)
def remembered(tmp_path, monkeypatch) -> FaultDatabase:
    """Two faults of the posing device, one of another; both listed as this machine's."""
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path))
    known = fault_database(TARGET)
    known.record(CRASH, HANG)
    fault_database(OTHER).record(CRASH)
    monkeypatch.setattr(select, "_opencl", lambda _: [
        DeviceInfo(f"opencl:{i}", t, "", (), fault_database(t).faults)
        for i, t in enumerate((TARGET, OTHER))])
    monkeypatch.setenv("JITCL_DEVICE", "cpu")
    return known


def said(*args: str) -> str:
    result = CliRunner().invoke(cli, args, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_devices_shows_what_failed_on_them(remembered):
    remembered.found_good(["local"])
    text = said("devices")
    assert text.count("which are not tried again until `jitcl cache retry`") == 2
    (row,) = [r for r in text.splitlines() if r.strip().startswith("softmax_row") and "Can" in r
              and "local" not in r]
    for part in ("no-images", "build", "crash: SIGABRT: LLVM ERROR: Cannot select", " half "):
        assert part in row
    assert "half + local" in text                   # on the other device, nothing was good
    assert "this kernel only" in next(r for r in text.splitlines() if "gemm_tiled" in r)
    assert "as scheduled" in next(r for r in text.splitlines() if "gemm_tiled" in r)


def test_devices_tells_programs(remembered):
    remembered.found_good(["local"])
    mali = json.loads(said("devices", "--json"))["devices"][0]
    hang, crash = mali["faults"]
    assert hang["kernel"] == "gemm_tiled" and hang["blamed"] == []
    assert crash == {
        "kernel": "softmax_row", "entry": CRASH.entry, "stage": "build", "kind": "crash",
        "signature": CRASH.signature, "features": ["call:exp", "half", "local"],
        "blamed": ["half"], "variant": "no-images", "when": 1.7e9, "log": "the log\nof it"}
    assert all(not d["faults"] for d in json.loads(said("devices", "--json"))["devices"]
               if not d["spec"].startswith("opencl"))


def test_retry_forgets_one_device_or_all(remembered):
    assert "mali-g78-r0p1" in (text := said("cache", "retry", "--device", "mali"))
    assert text.endswith(": 2 faults are forgotten\n") and "adreno" not in text
    assert (remembered.epoch, remembered.faults) == (1, ())
    told = json.loads(said("cache", "retry", "--json"))
    assert told["forgotten"] == 1 and sorted(told["devices"].values()) == [0, 1]
    assert said("cache", "retry").count("0 faults are forgotten") == 2


def test_retry_of_nothing(tmp_path):
    assert said("cache", "retry", "--cache-dir", str(tmp_path / "empty")) == (
        "no faults of drivers are remembered\n")
    result = CliRunner().invoke(cli, ["cache", "retry", "--device", "powervr"])
    assert result.exit_code == 1
    assert "nothing is remembered of a device 'powervr'\n  There are: arm-" in result.stderr


def test_clear_keeps_faults_unless_told(remembered, tmp_path):
    assert "forgotten" not in said("cache", "clear")
    assert len(remembered.faults) == 2
    assert "; 3 faults are forgotten" in said("cache", "clear", "--faults")
    assert remembered.faults == ()
    assert len(databases(tmp_path)) == 2            # the epoch is still needed


def test_ls_mentions_faults_and_lists_no_file_of_theirs():
    text = said("cache", "ls")
    assert "adreno-640" in text and ": 1 faults" not in text
    assert "2 faults of its driver are remembered; `jitcl devices` shows them" in text
    assert json.loads(said("cache", "ls", "--json")) == []
    assert json.loads(said("cache", "size", "--json"))["bytes"] == 0


@pytest.mark.sampled(quick=2)
@pytest.mark.parametrize("json_too", [False, True])
def test_run_says_on_stderr_what_stepped_down_and_only_once(tmp_path, json_too):
    source = tmp_path / "small.jitcl"
    source.write_text(GRAPH)
    database_path(tmp_path, TARGET.vendor, TARGET.name, TARGET.driver).unlink()

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", COMMAND, str(tmp_path), "run", str(source), "--random",
             "--isolation", "never", *["--json"][:json_too]],
            capture_output=True, text=True, cwd=ROOT, check=True, timeout=120)
    first, second = run(), run()
    assert first.stderr.count("\n") == 1
    assert first.stderr.startswith("warning: Mali-G78 r0p1: its driver failed on 2 kernels (")
    assert second.stderr == ""
    if json_too:
        for done in (first, second):
            told = json.loads(done.stdout)
            assert (told["device"], told["asked"], told["memory"]) == (
                "Mali-G78 r0p1", "Mali-G78 r0p1", "")
            assert {s["variant"] for s in told["stepped_down"]} == {"no-local"}
        assert json.loads(second.stdout)["from_cache"]
    else:
        assert "failed" not in first.stdout
        assert ("the driver failed before: matmul_0, mul_1 run without local memory\n"
                in second.stdout)


def test_a_wrong_isolation():
    result = CliRunner().invoke(cli, ["run", "x.onnx", "--isolation", "sometimes"])
    assert result.exit_code == 2 and "'always', 'untrusted', 'never'" in result.stderr


def test_retry_forgets_probes_that_crashed_or_hung_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setenv("JITCL_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "opencl-probes"
    folder.mkdir()
    for name, kind in (("slow", "hang"), ("dead", "crash"), ("well", "refused")):
        record = {"device": f"opencl:0:0  {name}", "answers": [{"kind": "good"}, {"kind": kind}]}
        (folder / f"{name}.json").write_text(json.dumps(record))
    (folder / "odd.json").write_text("{")
    assert "devices that are probed again: 1" in said("cache", "retry", "--device", "slow")
    assert json.loads(said("cache", "retry", "--json"))["probed_again"] == 1
    assert sorted(p.stem for p in folder.iterdir()) == ["odd", "well"]
