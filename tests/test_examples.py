"""The examples, run as their readers run them: as programs, in a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.devices import needs, present
from tests.drivers import posing

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
POCL = needs("opencl:pocl")


def run(folder: Path, name: str, *args: str) -> str:
    """What an example prints."""
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *args], cwd=folder,
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@POCL
@pytest.mark.slow
def test_upscale_on_both_devices(tmp_path):
    text = run(tmp_path, "upscale.py", "--runs", "1")
    figures = re.findall(r"(\S+) +PSNR ([\d.]+) dB", text)
    assert figures == [("bicubic", "31.36"), ("opencl:pocl", "32.05"), ("cpu", "32.05")]
    apart = re.search(r"largest difference between opencl:pocl and cpu: (\S+)", text)
    assert apart is not None and float(apart[1]) < 1e-4      # none where the same templates write
    image = Image.open(tmp_path / "upscaled.png")
    assert image.size == (900, 300)
    left, right = image.crop((0, 0, 450, 300)), image.crop((450, 0, 900, 300))
    assert left.tobytes() != right.tobytes()


@pytest.mark.slow
def test_upscale_without_opencl_says_so_and_goes_on(tmp_path):
    text = run(tmp_path, "upscale.py", "--runs", "1", "--device", "opencl:nobody", "--device",
               "cpu")
    assert re.search(r"opencl:nobody +not run: .*\n", text)
    assert "cpu            PSNR 32.05 dB" in text
    assert "largest difference" not in text


def test_text_ir(tmp_path):
    text = run(tmp_path, "text_ir.py")
    for spec in ("cpu", "reference"):
        assert re.search(rf"^{spec} .* largest error \d", text, re.MULTILINE)
    assert "every op runs in a generated kernel" in text
    assert "def " in text                                   # the kernel itself


def test_custom_op(tmp_path):
    text = run(tmp_path, "custom_op.py")
    assert re.search(r"cpu: largest error \S+e-0[78], 1 kernel", text)
    assert "mul + symmetric_log + add" in text
    if "opencl:pocl" in present():
        assert re.search(r"opencl: largest error \S+e-0[78], 1 kernel", text)
        assert "__kernel" in text or "kernel void" in text


# ---- what goes wrong elsewhere


@pytest.mark.slow
def test_host_pointer(tmp_path):
    text = run(tmp_path, "host_pointer.py")
    devices = [spec for spec in present() if spec != "reference"]
    assert text.count("its `with` block has ended") == text.count("mapped for writing") == len(
        devices) == len(re.findall(r"models hold [\d,]+, then ([\d,]+), then \1 bytes", text))


@pytest.mark.slow
@POCL
@posing.needed()
def test_mali_compiler(tmp_path):
    text = run(tmp_path, "mali_compiler.py")
    died = re.findall(r"(\d+) worker processes have died so far", text)
    assert "the process ends, SIGABRT: LLVM ERROR: Cannot select" in text
    assert len(died) == 2 and int(died[0]) == int(died[1]) > 1
    first, second = text.split("second start")
    assert "tensors stay f32" in first and "its weights unpacked; remembered" in first
    assert "remembered" not in second and "stepped down: matmul_1" in second


@POCL
@pytest.mark.slow
def test_two_models(tmp_path):
    text = run(tmp_path, "two_models.py", "opencl:pocl")
    assert len(re.findall(r"^(?:detector|tracker) on .*: 12 runs", text, re.MULTILINE)) == 2
    assert re.search(r"^(detector|tracker) waited .* while (detector|tracker) ran", text,
                     re.MULTILINE)
    assert (tmp_path / "two_models.html").stat().st_size > 10_000


@pytest.mark.slow
def test_hostile_arrays(tmp_path):
    text = run(tmp_path, "hostile_arrays.py")
    assert text.count("the same bits from 7 kinds") == len(present()) - 1
    assert text.count("got dtype >f4, wanted float32") == len(present()) - 1


@pytest.mark.slow
def test_low_precision(tmp_path):
    text = run(tmp_path, "low_precision.py", "cpu")
    assert "guard=off: 0 of 4,096" in text and "guard=outputs: 4,096 of 4,096" in text
    assert "in f32 since f16 could not hold them: '/energy/MatMul'" in text
