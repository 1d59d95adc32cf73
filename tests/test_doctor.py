"""`jitcl doctor`: what it finds on this machine and on others that files pose as, and that its
bundle tells nobody who wrote it.
"""

from __future__ import annotations

import json
import socket
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import jitcl
from jitcl.cli import advice, bundle, doctor
from jitcl.cli.main import cli
from jitcl.devices.base import DeviceInfo
from jitcl.devices.opencl import platform as opencl_platform
from jitcl.devices.reference import TARGET


def jitcl_(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the reference device, so that nothing is built."""
    rows = [DeviceInfo("reference", TARGET, "for checking")]
    monkeypatch.setattr("jitcl.devices.select.devices", lambda progress=None: rows)
    monkeypatch.setattr("jitcl.devices.opencl.list_devices", lambda: ())
    monkeypatch.setenv("JITCL_DEVICE", "reference")


# ---- this machine


def test_every_device_computes_and_is_told_of():
    result = jitcl_("doctor", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    specs = {d["spec"] for d in found["devices"]}
    assert specs == {d.spec for d in jitcl.devices()} and "cpu" in specs
    assert [d["error"] for d in found["devices"] if d["error"]] == []
    assert found["packages"]["numpy"] and found["jitcl"] == jitcl.__version__
    assert found["machine"] and found["kind"] in ("debian", "linux", "android", "darwin", "windows")


def test_it_is_read_by_people(quick):
    result = jitcl_("doctor")
    assert result.exit_code == 0
    assert f"jitcl {jitcl.__version__}, Python {sys.version.split()[0]}" in result.stdout
    assert "NumPy interpreter" in result.stdout and "auto takes reference" in result.stdout
    assert "! there is no OpenCL driver at all" in result.stdout


def test_a_device_that_computes_wrongly_is_seen(quick, monkeypatch):
    class Wrong:
        def run(self, feeds: Any) -> dict[str, Any]:
            return {"z": feeds["x"][:, :32] * 0 + 2}

    monkeypatch.setattr(jitcl, "compile", lambda *args, **options: Wrong(), raising=False)
    result = jitcl_("doctor")
    assert result.exit_code == 1 and "wrong result: off by" in result.stdout


def test_a_device_that_fails_is_seen(quick, monkeypatch):
    def fail(*args: Any, **options: Any) -> None:
        raise jitcl.BuildError("the compiler said no\nat length")

    monkeypatch.setattr(jitcl, "compile", fail, raising=False)
    result = jitcl_("doctor", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["devices"][0]["error"] == "BuildError: the compiler said no\nat length"
    assert any("fails: BuildError" in f["what"] for f in found["findings"])


def test_wrong_variables_are_told_and_stop_nothing(quick, monkeypatch, tmp_path):
    monkeypatch.setenv("JITCL_THREADS", "many")
    monkeypatch.setenv("JITCL_TREADS", "2")
    found = json.loads(jitcl_("doctor", "--json").stdout)
    said = [f["what"] for f in found["findings"]]
    assert "environment variable JITCL_THREADS: got 'many', wanted a whole number from 1 up" in said
    assert "JITCL_TREADS means nothing to jitcl" in said
    assert found["devices"][0]["error"] == ""


def test_a_device_that_is_not_there_is_told(quick, monkeypatch):
    monkeypatch.setenv("JITCL_DEVICE", "nonsense")
    result = jitcl_("doctor", "--json")
    said = [f["what"] for f in json.loads(result.stdout)["findings"]]
    assert "JITCL_DEVICE: no device 'nonsense'" in said and result.exit_code == 0


def test_a_loader_that_is_missing_is_no_opencl_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)          # `import pyopencl` raises
    monkeypatch.setattr(opencl_platform, "_found", None)
    monkeypatch.setattr(opencl_platform, "_loader_error", "")
    assert opencl_platform.find_devices() == ()
    assert "pyopencl" in opencl_platform.loader_error()
    monkeypatch.setenv("JITCL_DEVICE", "reference")
    said = [f["what"] for f in doctor.examined()["findings"]]
    assert any("pyopencl can't be loaded" in what for what in said)


# ---- other machines


def machine(root: Path, files: dict[str, str], drivers: dict[str, str] | None = None) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for card, driver in (drivers or {}).items():
        device = root / "sys/class/drm" / card / "device"
        device.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(f"/sys/bus/platform/drivers/{driver}")
    return root


DEBIAN = {"etc/debian_version": "12.5\n"}
ROCK = {**DEBIAN, "proc/device-tree/compatible": "radxa,rock-5b\0rockchip,rk3588\0"}
PC = "sys/class/drm/renderD128/device/vendor"
MACHINES: dict[str, tuple[dict[str, str], dict[str, str], list[str], list[str]]] = {
    # files, kernel drivers of cards, OpenCL names, what advice must say ([]: nothing)
    "nvidia": ({**DEBIAN, PC: "0x10de\n"}, {}, [], ["GPU of NVIDIA", "nvidia-opencl-icd"]),
    "nvidia, driver there": ({**DEBIAN, PC: "0x10de\n"}, {}, ["NVIDIA CUDA", "NVIDIA H200"], []),
    "amd": ({**DEBIAN, PC: "0x1002\n"}, {}, ["PoCL"], ["GPU of AMD", "RUSTICL_ENABLE=radeonsi"]),
    "intel": ({**DEBIAN, PC: "0x8086\n"}, {}, ["PoCL"], ["intel-opencl-icd"]),
    "intel on fedora": ({"etc/os-release": "ID=fedora\n", PC: "0x8086\n"}, {}, ["PoCL"],
                        ["intel-compute-runtime"]),
    "rock 5": ({**ROCK, "dev/mali0": ""}, {}, [], ["GPU of Mali", "libmali-valhall-g610",
                                                   "/etc/OpenCL/vendors/mali.icd", "panthor"]),
    "rock 5, libmali there": ({**ROCK, "dev/mali0": ""}, {}, ["ARM Platform", "Mali-G610 r0p0"],
                              []),
    "rock 5, mainline": (ROCK, {"renderD128": "panthor"}, ["PoCL"], ["RUSTICL_ENABLE=panfrost"]),
    "odroid": (DEBIAN, {"renderD128": "panfrost"}, ["PoCL"], ["libmali", "mesa-opencl-icd"]),
    "raspberry": (DEBIAN, {"renderD128": "v3d"}, ["PoCL"], ["RUSTICL_ENABLE=v3d"]),
    "termux, adreno": ({"system/build.prop": "", "dev/kgsl-3d0": ""}, {}, [],
                       ["GPU of Adreno", "pkg install ocl-icd opencl-vendor-driver",
                        "LD_LIBRARY_PATH=/vendor/lib64"]),
    "termux, mali": ({"system/build.prop": "", "dev/mali0": ""}, {}, [], ["libGLES_mali.so"]),
    "no gpu": (DEBIAN, {}, [], ["no OpenCL driver at all", "pocl-opencl-icd"]),
    "no gpu, pocl": (DEBIAN, {}, ["Portable Computing Language", "pthread-znver4"], []),
}


@pytest.mark.skipif(sys.platform != "linux", reason="files of Linux")
@pytest.mark.parametrize("name", MACHINES)
def test_advice_is_for_the_machine(name, tmp_path):
    files, drivers, offered, wanted = MACHINES[name]
    found = advice.missing_drivers(advice.look(machine(tmp_path, files, drivers)), offered)
    text = "\n".join([f.what + "\n" + "\n".join(f.do) for f in found])
    assert [w for w in wanted if w not in text] == []
    assert wanted or text == ""
    if "termux" in name:
        assert "apt install" not in text
    if "fedora" in name:
        assert "apt" not in text


def test_a_device_file_that_is_closed_is_told(tmp_path, monkeypatch):
    root = machine(tmp_path, {**DEBIAN, PC: "0x1002\n", "dev/dri/renderD128": ""})
    monkeypatch.setattr(advice.os, "access", lambda path, mode: "renderD128" not in str(path))
    found = advice.missing_drivers(advice.look(root), ["AMD Accelerated Parallel Processing"])
    assert [f.what for f in found] == ["this user may not open /dev/dri/renderD128"]
    assert "usermod -aG render" in found[0].do[0]


def test_driver_files_that_name_nothing_are_told(tmp_path):
    (tmp_path / "gone.icd").write_text("/opt/none/libgone.so\n")
    (tmp_path / "loader.icd").write_text("libknown.so.1\n")
    (tmp_path / "there.icd").write_text(sys.executable)
    (tmp_path / "zero.icd").write_text("")
    said = [f.what.removeprefix(f"{tmp_path}/") for f in advice.broken_icds(tmp_path)]
    assert said == ["gone.icd names /opt/none/libgone.so, which is not there",
                    "zero.icd is empty or can't be read"]


# ---- the bundle


PRIVATE = ("wanda", "Wanda", "secret-box", "top-secret-token", "otherperson")


def test_a_bundle_says_nothing_of_who_wrote_it(quick, monkeypatch, tmp_path):
    home = tmp_path / "home" / "wanda"
    home.mkdir(parents=True)
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "wanda")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HOSTNAME", "secret-box.example.org")
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-box")
    monkeypatch.setenv("API_TOKEN", "top-secret-token")
    monkeypatch.setenv("JITCL_CACHE_DIR", str(home / "kernels"))
    monkeypatch.setenv("OCL_ICD_VENDORS", "/home/otherperson/icds")
    monkeypatch.setenv("PYOPENCL_CTX", "secret-box:0")
    monkeypatch.setattr(doctor, "_trial", lambda spec: (    # as long as to be broken into lines
        "BuildError: " + " ".join(["/home/wanda/kernels/secret-box/x.cl"] * 9), 0.1))
    monkeypatch.setattr(doctor, "_probes", lambda: [
        {"evidence": "/home/wanda/x.cl:3: error by wanda@secret-box in C:\\Users\\Wanda\\a"}])
    path = tmp_path / "report.zip"
    result = jitcl_("doctor", "--bundle", str(path))
    assert result.exit_code == 1, result.output                 # that trial failed
    with zipfile.ZipFile(path) as found:
        assert set(found.namelist()) == {"doctor.txt", "doctor.json", "devices.json", "probes.json"}
        texts = {name: found.read(name).decode() for name in found.namelist()}
        assert [(n, w) for n, text in texts.items() for w in PRIVATE
                if w in "".join(text.split())] == []
        assert {i.date_time for i in found.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    variables = json.loads(texts["doctor.json"])["environment"]
    assert variables["JITCL_CACHE_DIR"] == "<home>/kernels"
    assert variables["OCL_ICD_VENDORS"] == "/home/<user>/icds"
    assert variables["PYOPENCL_CTX"] == "<host>:0"
    assert all(n.startswith(bundle.SETTINGS) for n in variables) and "API_TOKEN" not in variables
    assert json.loads(texts["probes.json"]) == [{"evidence": (
        "/home/<user>/x.cl:3: error by <user>@<host> in C:\\Users\\<user>\\a")}]
    assert json.loads(texts["devices.json"])[0]["spec"] == "reference"


@pytest.mark.parametrize(("text", "wanted"), [
    ("/home/ann/x", "/home/<user>/x"), ("ann's annual plan", "<user>'s annual plan"),
    ("ann_1 ANN joann", "<user>_1 ANN joann"), ("C:\\Users\\ann\\x", "C:\\Users\\<user>\\x"),
    ("/Users/bob/y.icd", "/Users/<user>/y.icd"), ("node7.lab: up", "<host>: up"),
    ("on node7", "on <host>"), ("nothing here", "nothing here")])
def test_words_are_hidden_where_they_stand_alone(text, wanted):
    hide = {"node7.lab": "<host>", "node7": "<host>", "ann": "<user>"}
    assert bundle.scrubbed(text, hide) == wanted


def test_a_bundle_that_can_t_be_written_is_an_error(quick, tmp_path):
    result = CliRunner().invoke(cli, ["doctor", "--bundle", str(tmp_path / "no" / "x.zip")])
    assert result.exit_code != 0
    assert isinstance(result.exception, OSError)                # `main` tells it in a line
