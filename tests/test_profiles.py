"""Devices that aren't there: their code passes clang, `jitcl dump` shows it, nothing runs it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import jitcl
from jitcl import config
from jitcl.cli.main import cli
from jitcl.codegen.plan import KernelSource
from jitcl.devices.select import open_device
from jitcl.errors import DeviceError
from jitcl.ir.graph import Node, graph_input
from jitcl.ir.parser import parse_kernel
from jitcl.ir.types import TensorType
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.ops.builder import GraphBuilder
from jitcl.target.profiles import PROFILES, find_profile
from tests.generated import clang
from tests.generated.kernels import op_graphs
from tests.test_golden import GRAPHS
from tests.test_quirks import plan

g = GraphBuilder()


def kernels(name: str, precision: str) -> list[KernelSource]:
    """The kernels of the golden graphs, and of one that the quirks split, on a profile."""
    target = PROFILES[name].target
    inputs = [graph_input(f"x{n}", TensorType("f16", (3, 5))) for n in range(20)]
    many: Node = g.tanh(g.concat(*inputs, axis=1))
    plans = [plan(make(), target, precision) for make in (*GRAPHS.values(), lambda: many)]
    return list({k.entry: k for p in plans for k in p.kernels}.values())


def objections(name: str, found: list[KernelSource], monkeypatch: pytest.MonkeyPatch) -> str:
    """What clang has against kernels, in the language that they are built as."""
    target = PROFILES[name].target
    flags = tuple(f"-cl-std={target.cl_std}" if f.startswith("-cl-std") else f
                  for f in clang.FLAGS)
    monkeypatch.setattr(clang, "FLAGS", flags)
    return clang.objections(found, fp16=target.fp16_arithmetic)


@clang.needed
@pytest.mark.sampled(quick=4)
@pytest.mark.parametrize("name", PROFILES)
def test_kernels_of_a_profile_pass_clang(name, monkeypatch):
    for precision in ("high", "low"):
        found = kernels(name, precision)
        assert len(found) >= 10 and objections(name, found, monkeypatch) == ""


@clang.needed
def test_the_oldest_language_is_enough(monkeypatch):
    """Row mali-t760-language: generated code is OpenCL C 1.1 as well."""
    with config.override(quirks="+mali-t760-language"):
        assert PROFILES["mali-t860"].target.cl_std == "CL1.1"
        assert objections("mali-t860", kernels("mali-t860", "high"), monkeypatch) == ""
    assert clang.FLAGS[2] == "-cl-std=CL1.1"


@pytest.mark.sampled(slow=4)
@clang.needed
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mali-t860", "mali-g610", "adreno-530", "videocore-vi"])
def test_the_op_table_on_a_profile_passes_clang(name, monkeypatch):
    target = PROFILES[name].target
    plans = [plan(y, target) for graph, _ in op_graphs(target).values() for _, y in graph.outputs]
    found = list({k.entry: k for p in plans for k in p.kernels}.values())
    assert len(found) > 200 and objections(name, found, monkeypatch) == ""


@pytest.mark.parametrize("name", PROFILES)
def test_limits_are_kept(name):
    """No launch is over the device's work-group, no local memory is where there is none."""
    profile = PROFILES[name]
    target = profile.target
    generation = profile.driver.generation
    assert generation.architecture and profile.chip
    assert target.max_allocation <= target.global_memory
    for make in GRAPHS.values():
        made = plan(make(), target)
        for step in made.steps:
            assert 0 < np.prod(step.local_size) <= target.max_work_group
        if not target.stages_tiles:
            assert not any(k.template == "gemm_tiled_opencl" for k in made.kernels)


def test_gpus_that_stage_no_tiles_have_few_programs():
    """Local memory is none, a part of the cache, or too small; an Adreno reads images."""
    for name, profile in PROFILES.items():
        target = profile.target
        assert target.few_programs and not target.stages_tiles, name
    staging = dataclasses.replace(PROFILES["powervr-ge8320"].target, local_memory=16 << 10)
    assert staging.stages_tiles and not staging.few_programs
    assert not dataclasses.replace(staging, device_type="cpu").few_programs


def test_profiles_are_devices_of_their_kind():
    target = find_profile("mali-g78").target
    assert not target.local_is_real and target.queue_depth == 96 and target.max_operands == 8
    assert target.suspects == ("half", "half_cast", "int4", "int8")
    assert find_profile("adreno-640").target.program_kernels == 1
    assert find_profile("adreno-740").target.program_kernels == 32
    assert find_profile("mali-t860").target.reduction_group == 32
    assert find_profile("powervr-ge8320").target.fp16_arithmetic is False
    assert len({p.target.key for p in PROFILES.values()}) == len(PROFILES)


def test_quirks_are_switched_on_profiles_too():
    with config.override(quirks="-mali-local-memory,+pocl-3-half"):
        target = open_device("profile:mali-g610").target
        assert target.local_is_real and not target.fp16_arithmetic


def test_a_profile_refuses_to_run():
    graph = jitcl.parse("graph @f(%x: f32[2,3]) {\n  %0 = relu(%x)\n  return y: %0\n}\n")
    with pytest.raises(DeviceError) as error:
        jitcl.compile(graph, device="profile:mali-g610").run({"x": np.ones((2, 3), np.float32)})
    assert "'profile:mali-g610' is a description of Mali-G610" in str(error.value)
    assert "jitcl dump" in str(error.value)


@pytest.mark.parametrize("wrong", ["profile:", "profile:mali-g6", "profile:mali-g610:0"])
def test_a_profile_that_there_is_not(wrong):
    with pytest.raises(DeviceError, match="There are: mali-t860, mali-g52"):
        open_device(wrong)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "scores.jitcl"
    path.write_text("graph @f(%x: f32[8,4096]) {\n  %0 = softmax(%x) {axis=-1}\n"
                    "  return y: %0\n}\n")
    return path


def test_dump_shows_the_code_of_a_profile(model, tmp_path):
    done = CliRunner().invoke(cli, ["dump", str(model), "-d", "profile:adreno-530", "--json", "-o",
                                    str(tmp_path / "out")], catch_exceptions=False)
    told = json.loads(done.stdout)
    assert told["device"] == "profile:adreno-530"
    assert told["steps"][0]["kernel"].startswith("jitcl_")
    (path,) = (tmp_path / "out" / "scheduled").iterdir()
    kernel = parse_kernel(path.read_text())
    verify_schedule(kernel)
    assert [b.role for b in kernel.arrays] == ["local", "local"]
    (path,) = (tmp_path / "out" / "kernels").iterdir()
    text = path.read_text()
    assert "int lane = get_local_id(0);" in text and "get_local_size" not in text


def test_run_tells_why_it_can_not(model):
    done = CliRunner().invoke(cli, ["run", str(model), "-d", "profile:mali-g610", "--random"])
    assert done.exit_code == 1
    assert "jitcl.DeviceError: 'profile:mali-g610' is a description" in done.output


def test_devices_names_the_profiles():
    told = json.loads(CliRunner().invoke(cli, ["devices", "--json"], catch_exceptions=False).stdout)
    assert [p["spec"] for p in told["profiles"]] == [f"profile:{name}" for name in PROFILES]
    assert "mali-operands" in told["profiles"][0]["quirks"]


@pytest.mark.parametrize(("name", "form"), [
    ("mali-g610", "fma("), ("mali-t860", "mad("), ("adreno-530", "mad("), ("adreno-740", "mad(")])
def test_products_multiply_and_add_in_the_devices_own_way(name, form):
    """fma() is a routine of some hundred instructions on Adreno and Midgard."""
    target = dataclasses.replace(find_profile(name).target, local_is_real=False)
    y = g.matmul(graph_input("x", TensorType("f32", (64, 64))),
                 graph_input("w", TensorType("f32", (64, 64))))
    *_, product = plan(y, target).kernels
    calls = set(re.findall(r"\b(?:fma|mad)\(", product.body))
    assert calls == {form}
