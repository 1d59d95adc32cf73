"""What the host's CPU is found to be: on machines that this one is not, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jitcl import config
from jitcl.devices import core_cache
from jitcl.devices.cpu import host, probe_target
from jitcl.devices.cpu.compiler import _Codegen
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.target import Target
from tests.compiling import compile_graph

g = GraphBuilder()


# -- the second-level cache --------------------------------------------------------------------


def cpu_of(folder: Path, siblings: str, *caches: tuple[str, str, str, str]) -> Path:
    """A CPU as sysfs shows it. caches: level, type, size, CPUs that share it."""
    (folder / "topology").mkdir()
    (folder / "topology/thread_siblings_list").write_text(siblings + "\n")
    for number, texts in enumerate(caches):
        index = folder / f"cache/index{number}"
        index.mkdir(parents=True)
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), texts):
            (index / name).write_text(text + "\n")
    return folder


L1 = ("1", "Data", "32K", "0"), ("1", "Instruction", "64K", "0")


@pytest.mark.parametrize("siblings, caches, nbytes", [
    ("0", [*L1, ("2", "Unified", "512K", "0"), ("3", "Unified", "4096K", "0-7")], 512 << 10),
    ("0", [*L1, ("2", "Unified", "512K", "0-3")], 128 << 10),            # Cortex-A53
    ("0,4", [*L1, ("2", "Unified", "2048K", "0,4")], 2048 << 10),        # two threads of a core
    ("0-1", [*L1, ("2", "Unified", "4M", "0-7")], 1 << 20),
    ("0", [("2", "Instruction", "1024K", "0"), ("2", "Data", "256K", "0")], 256 << 10),
    ("0", [*L1], 0),
    ("0", [], 0),
    ("0", [("2", "Unified", "much", "0")], 0),
    ("?", [("2", "Unified", "512K", "0")], 0),
])
def test_a_core_has_its_share_of_the_second_level_cache(tmp_path, siblings, caches, nbytes):
    assert core_cache._share(cpu_of(tmp_path, siblings, *caches)) == nbytes


def test_sysfs_is_read_where_the_system_call_has_no_answer(tmp_path, monkeypatch):
    cpu = cpu_of(tmp_path, "0", *L1, ("2", "Unified", "384K", "0"))
    monkeypatch.setattr(core_cache, "_CPU0", cpu)

    def unknown(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    for answer in (unknown, lambda name: 0, lambda name: -1):
        monkeypatch.setattr(core_cache.os, "sysconf", answer)
        assert core_cache.second_level_cache() == 384 << 10
    monkeypatch.setattr(core_cache.os, "sysconf", lambda name: 1 << 21)
    assert core_cache.second_level_cache() == 1 << 21


def test_without_sysfs_it_is_as_a_target_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(core_cache, "_CPU0", tmp_path / "none")
    monkeypatch.setattr(core_cache.os, "sysconf", lambda name: 0)
    assert probe_target().cache_bytes == Target.cache_bytes


# -- cores -------------------------------------------------------------------------------------


def test_cores_that_the_process_may_not_use_do_not_count(monkeypatch):
    """A container of four cores sees all of its host's: with those, Winograd's weights would seem
    to come too late for every layer of ResNet-50."""
    monkeypatch.setattr(core_cache.os, "cpu_count", lambda: 192)
    monkeypatch.setattr(core_cache.os, "sched_getaffinity", lambda pid: {3, 5, 8, 9}, raising=False)
    assert probe_target().compute_units == 4
    with config.override(threads=1):
        assert probe_target().compute_units == 4


# -- features of aarch64 -----------------------------------------------------------------------

FPHP, ASIMDHP, ASIMDDP, I8MM = 1 << 9, 1 << 10, 1 << 20, 1 << 13


@pytest.fixture
def arm(monkeypatch):
    """Makes this an aarch64 of some entries of the auxiliary vector, of which LLVM knows nothing.
    """
    def clear() -> None:
        host._native.cache_clear()
        host.unreported.cache_clear()

    def pose(hwcap: int, hwcap2: int = 0) -> None:
        monkeypatch.setattr(host.platform, "machine", lambda: "aarch64")
        monkeypatch.setattr(host.llvm, "get_host_cpu_features", dict)
        monkeypatch.setattr(host, "_auxiliary", {16: hwcap, 26: hwcap2}.__getitem__)
        clear()

    yield pose
    monkeypatch.undo()
    clear()


def test_every_aarch64_has_neon(arm):
    arm(0)
    target = probe_target()
    assert (target.vector_width, target.registers, target.multiply_add) == (4, 32, "fma")
    assert target.isa == ("neon", "fp-armv8") and not target.byte_dot


@pytest.mark.parametrize("hwcap, hwcap2, byte_dot, more", [
    (ASIMDDP, 0, "signed", {"dotprod"}),
    (ASIMDDP, I8MM, "bytes", {"dotprod", "i8mm"}),
    (FPHP | ASIMDHP, 0, "", {"fullfp16"}),
    (FPHP, 0, "", set()),
])
def test_features_are_what_the_system_says(arm, hwcap, hwcap2, byte_dot, more):
    arm(hwcap, hwcap2)
    target = probe_target()
    assert set(target.isa) == {"neon", "fp-armv8"} | more
    assert target.byte_dot == byte_dot
    told = _Codegen._customize_tm_features(_Silent()).split(",")
    assert set(told) == {f"+{name}" for name in target.isa}


@pytest.mark.parametrize("have, width, byte_dot", [
    ({"avx2"}, 8, "pairs"),
    ({"avx2", "avxvnni"}, 8, "bytes"),
    ({"avx2", "avx512f"}, 16, ""),
    ({"avx2", "avx512f", "avx512vnni"}, 16, "bytes"),
    ({"avx"}, 4, ""),
])
def test_what_adds_products_of_bytes(monkeypatch, have, width, byte_dot):
    monkeypatch.setattr(host, "_native", lambda: frozenset(have))
    target = probe_target()
    assert target.vector_width == width
    assert target.byte_dot == byte_dot


class _Silent:
    """Numba's code generator where LLVM finds no feature."""

    def _get_host_cpu_features(self) -> str:
        return ""


def test_elsewhere_the_auxiliary_vector_is_not_asked(monkeypatch):
    monkeypatch.setattr(host.platform, "machine", lambda: "x86_64")
    host.unreported.cache_clear()
    assert host.unreported() == frozenset()
    monkeypatch.undo()
    host.unreported.cache_clear()


# -- what follows from them --------------------------------------------------------------------

def bytes_plan(zero: int, dot: str):
    """A product of bytes, and the same as a convolution."""
    target = Target("cpu", "x", vector_width=4, registers=32, byte_dot=dot)
    w = np.random.default_rng(0).integers(-128, 128, (24, 12)).astype(np.int8)
    a, x = (graph_input(n, TensorType("u8", s)) for n, s in (("a", (40, 24)), ("x", (1, 24, 5, 5))))
    zeros = const(zero, "u8"), const(0, "i8")
    y = g.op("matmul_integer", a, const(w, "i8"), *zeros)
    z = g.op("conv_integer", x, const(w.T.reshape(12, 24, 1, 1).copy(), "i8"), *zeros,
             strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1)
    graph = Graph("t", (a, x), (("y", y), ("z", z)))
    return compile_graph(graph, target, passes=False).plan, w.astype(np.int64).sum(0)


@pytest.mark.parametrize("zero", [0, 77, 128])
def test_what_signed_products_take_from_bytes_is_put_back(zero):
    for dot, name, taken in (("bytes", "dot_tile(", zero),
                             ("signed", "signed_dot_tile(", zero - 128)):
        plan, sums = bytes_plan(zero, dot)
        products = [k for k in plan.kernels if "dot_tile(" in k.body]
        assert {k.template for k in products} == {"gemm_integer_cpu", "conv_integer_cpu"}
        assert all(f" {name}" in k.body for k in products)
        vectors = [c.reshape(-1) for c in plan.constants.values() if c.size == 12]
        assert len(vectors) == (2 if taken else 0)
        for vector in vectors:
            np.testing.assert_array_equal(vector, taken * sums)
