"""Kernels for tensor cores: which groups get them, and each candidate's text through clang to PTX.

No driver here runs PTX: results are compared where a device has tensor cores, by the search that
picks a candidate (tests/test_tuning.py) and by the op table.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from jitcl.codegen.plan import KernelSource
from jitcl.ir.graph import Graph, const, graph_input
from jitcl.ir.sizes import Space
from jitcl.ir.types import TensorType
from jitcl.ops.builder import GraphBuilder
from jitcl.target import ptx
from jitcl.target.profiles import PROFILES
from jitcl.templates.gemm_tensor_opencl.template import GemmTensorOpenCl, Tiling
from tests.compiling import compile_graph
from tests.generated.clang import CLANG, needed
from tests.test_candidates import Take, group_of
from tests.variants import BY_NAME

b = GraphBuilder()
TARGET = dataclasses.replace(
    PROFILES["mali-g610"].target,
    vector_width=4, max_vector_width=4, local_is_real=True, local_works=True, images=False,
    local_memory=48 << 10, max_work_group=256, compute_units=132, fp16_arithmetic=True,
    soft_half=False, tensor_cores=True, cl_std="CL1.2")
FLAGS = ("-x", "cl", "-cl-std=CL1.2", "-target", "nvptx64-nvidia-cuda", "-Xclang", "-target-cpu",
         "-Xclang", "sm_80", "-Xclang", "-target-feature", "-Xclang", "+ptx70", "-Xclang",
         "-finclude-default-header", "-Xclang", "-cl-ext=+cl_khr_fp16", "-Dasm=__asm__", "-Wall",
         "-Wextra", "-Werror", "-Wno-unused-parameter", "-O1", "-S", "-o", "-", "-")


def halves(name, *dims):
    return graph_input(name, TensorType("f16", dims))


def product(m, k, n, batch=(), transposed=False):
    a = halves("a", *batch, m, k)
    w = halves("w", *batch, n, k) if transposed else halves("w", *batch, k, n)
    turned = b.transpose(w, perm=(*range(len(batch)), len(batch) + 1, len(batch)))
    y = b.relu(b.matmul(a, turned if transposed else w))
    return Graph("t", (a, w), (("y", y),))


def convolution(c, k, size, stride=1):
    x = halves("x", 1, c, size, size)
    w = const(np.random.default_rng(3).standard_normal((k, c, 3, 3)).astype("f2"))
    y = b.conv(x, w, strides=(stride, stride), pads=(1,) * 4, dilations=(1, 1), group=1)
    return Graph("t", (x,), (("y", b.relu(y)),))


CASES = {
    "even": lambda: product(128, 768, 3072), "odd": lambda: product(37, 299, 71),
    "batched": lambda: product(40, 64, 96, batch=(3,)),
    "transposed": lambda: product(37, 304, 70, transposed=True),
    "conv": lambda: convolution(64, 64, 14), "conv of stride 2": lambda: convolution(13, 70, 9, 2)}


@needed
@pytest.mark.sampled(quick=3)
@pytest.mark.parametrize("name", CASES)
def test_each_candidate_becomes_ptx(name):
    graph = CASES[name]()
    candidates = GemmTensorOpenCl().candidates(group_of(graph), TARGET)
    assert len(candidates) > 3 and all(t.local <= TARGET.local_memory for t in candidates)
    seen = set()
    for k, tiling in enumerate(candidates):
        kernels = compile_graph(graph, TARGET, passes=False, chooser=Take(k)).plan.kernels
        (kernel,) = (x for x in kernels if x.entry.startswith("gemm_tensor"))
        if kernel.entry in seen:
            continue
        seen.add(kernel.entry)
        text = ptx_of(kernel)
        # Each warp multiplies its share of the tile, 16 x 8 x 16 at a time.
        assert len(re.findall(r"mma\.sync", text)) == products(tiling)
        assert "ldmatrix" in text and "cp.async.commit_group" in text


GROUPS = dataclasses.replace(TARGET, warpgroup_memory=192 << 10)


@needed
@pytest.mark.parametrize("transposed", [False, True])
def test_groups_of_warps_multiply_in_what_a_compiler_takes_for_comments(transposed):
    """Of a large product, which comes first; without the signs there is one wgmma for 16 terms."""
    graph = product(1024, 2048, 5632, transposed=transposed)
    best = GemmTensorOpenCl().candidates(group_of(graph), GROUPS)[0]
    assert best.warpgroups and (best.bm, best.bn) == (128, 256)
    (kernel,) = compile_graph(graph, GROUPS, passes=False).plan.kernels
    assert ptx.OPTION in kernel.options
    written = ptx_of(kernel)
    assert not re.search(r"^\s*wgmma", written, re.M) and "mma.sync" not in written
    built = ptx.uncommented(written.encode()).decode()
    assert re.findall(r"^\.target (\w+)", built, re.M) == ["sm_90a"]
    products = re.findall(r"^\s*wgmma\.mma_async.*m64n256k16.* 1, 1, 1, 0, (\d);", built, re.M)
    assert products == ["0" if transposed else "1"] * 4
    assert ptx.COMMENT not in built
    reduced = BY_NAME["no-warpgroups"].apply(GROUPS)
    (other,) = compile_graph(graph, reduced, passes=False).plan.kernels
    assert kernel.features - other.features >= {"warpgroups"} and "assembly" in other.features


def test_columns_of_any_number_come_by_sixteen_bytes_where_they_lie_one_behind_the_other():
    """As weights of a vocabulary do: its rows would not be aligned."""
    graph = product(1024, 768, 50257, transposed=True)
    assert GemmTensorOpenCl().candidates(group_of(graph), GROUPS)[0].warpgroups
    (kernel,) = compile_graph(graph, GROUPS, passes=False).plan.kernels
    assert "wgmma" in kernel.body and kernel.body.count("cp.async.cg.shared.global") == (
        kernel.body.count("cp.async.c") - kernel.body.count("cp.async.commit"))


@pytest.mark.parametrize("graph", [
    lambda: product(1024, 2048, 5633), lambda: product(1024, 2045, 5632),
    lambda: product(1024, 2045, 5632, transposed=True),
    lambda: convolution(64, 512, 56)])
def test_operands_that_do_not_come_by_sixteen_bytes_are_none_for_groups_of_warps(graph):
    found = GemmTensorOpenCl().candidates(group_of(graph()), GROUPS)
    assert found and not any(t.warpgroups for t in found)


def test_products_of_few_tiles_are_left_to_single_warps():
    for graph in (product(64, 768, 768), product(128, 768, 3072), product(512, 768, 768)):
        assert not GemmTensorOpenCl().candidates(group_of(graph), GROUPS)[0].warpgroups


def test_what_is_left_over_takes_a_turn_of_its_own():
    """288 tiles of 128 x 128 on 132 cores that have two at once take as long as 528 do."""
    best = GemmTensorOpenCl().candidates(group_of(product(2048, 768, 2304)), TARGET)[0]
    assert (best.bm, best.bn) != (128, 128)
    best = GemmTensorOpenCl().candidates(group_of(product(2816, 768, 3072)), TARGET)[0]
    assert (best.bm, best.bn) == (128, 128)


def test_a_program_that_is_no_ptx_is_no_program_for_groups_of_warps():
    with pytest.raises(ValueError, match="no PTX"):
        ptx.uncommented(b"\x7fELF.target")


def ptx_of(kernel: KernelSource) -> str:
    done = subprocess.run([str(CLANG), *FLAGS], input=kernel.body, text=True, check=False,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needed
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_rows_of_any_number_have_a_kernel_each_for_one_for_few_and_for_many(dtype):
    """One of which is launched; one of some for many, which may split sums."""
    space = Space()
    rows = space.symbol("rows", 211)
    a, w = (graph_input(n, TensorType(dtype, d)) for n, d in (("a", (rows, 768)), ("w", (768, 96))))
    graph = Graph("t", (a, w), (("y", b.relu(b.matmul(a, w))),))
    plan = compile_graph(graph, TARGET, passes=False).plan
    for kernel in plan.kernels:
        ptx_of(kernel)
    stems = {s.kernel.rpartition("_")[0] for s in plan.steps} - {"join"}
    many = ({"gemm_tensor_32x64", "gemm_tensor_128x128"} if dtype == "f16" else
            {"gemm_tiled_32x32", "gemm_tiled_64x64", "gemm_tiled_128x128"})
    columns = 8 if dtype == "f16" else 4        # of a group: those of one vector
    assert stems == {f"gemv_1x{columns}", f"gemv_8x{columns}", *many}
    for n in (1, 2, 8, 9, 4000, 40000):
        at_n = replace(plan, space=space).at(space.values({"rows": n}))
        launched = [s for s in at_n.steps if 0 not in s.global_size]
        step = launched[0]
        assert step.kernel.startswith("gemv_1x" if n == 1 else "gemv_8x" if n < 9 else "gemm_t")
        assert step.global_size[0] % step.local_size[0] == 0
        assert [s.kernel.partition("_")[0] for s in launched[1:]] in ([], ["join"])


@needed
def test_many_rows_of_any_number_are_for_groups_of_warps():
    rows = Space().symbol("rows", 211)
    graph = Graph("t", (a := halves("a", rows, 768), w := halves("w", 768, 3072)),
                  (("y", b.relu(b.matmul(a, w))),))
    kernels = {k.entry.rpartition("_")[0]: k
               for k in compile_graph(graph, GROUPS, passes=False).plan.kernels}
    assert ptx.OPTION in kernels["gemm_tensor_128x256"].options
    assert "wgmma.mma_async" in ptx_of(kernels["gemm_tensor_128x256"])


@pytest.mark.parametrize("k, n", [(768, 96), (768, 3072), (3072, 768)])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_tiles_of_any_number_of_rows_hang_little_on_the_first(dtype, k, n):
    """Few rows are spread over the device where many came first, and many rows have large tiles
    where few came first, as in plans of their own."""
    def groups(rows, launched_for=None):
        a, w = (graph_input(name, TensorType(dtype, dims)) for name, dims in (
            ("a", (rows, k)), ("w", (k, n))))
        graph = Graph("t", (a, w), (("y", b.matmul(a, w)),))
        plan = compile_graph(graph, TARGET, passes=False).plan
        if launched_for is not None:
            space = rows.space
            plan = replace(plan, space=space).at(space.values({"rows": launched_for}))
        step = next(s for s in plan.steps if 0 not in s.global_size)
        return step.global_size[0] // step.local_size[0]
    for first in (12, 211, 20000):
        for rows in (9, 30, 89, 300, 1500):
            assert groups(Space().symbol("rows", first), rows) >= groups(rows) / 4, (first, rows)
        assert groups(Space().symbol("rows", first), 40000) <= 4 * groups(40000), first


@needed
def test_few_rows_of_weights_by_columns_become_ptx():
    """Which reads sixteen bytes at once."""
    a, w = halves("a", 1, 4096), halves("w", 96, 4096)
    by_columns = b.matmul(a, b.transpose(w, perm=(1, 0)))
    (kernel,) = compile_graph(Graph("t", (a, w), (("y", by_columns),)), TARGET,
                              passes=False).plan.kernels
    assert kernel.entry.startswith("gemv_1x2")
    assert ptx_of(kernel).count("ld.global.v4") + ptx_of(kernel).count("ld.global.nc.v4") >= 4


def products(t: Tiling) -> int:
    """mma.sync of a warp in one step."""
    return (t.bm // t.wm // 16) * (t.bn // t.wn // 8) * (t.bk // 16)


@pytest.mark.parametrize("changes", [
    {"tensor_cores": False}, {"local_works": False}, {"max_work_group": 64}])
def test_other_targets_get_none(changes):
    target = dataclasses.replace(TARGET, **changes)
    assert GemmTensorOpenCl().candidates(group_of(product(128, 256, 256)), target) == ()


def test_other_operands_get_none():
    a, w = (graph_input(n, TensorType("f32", (128, 128))) for n in "aw")
    f32 = Graph("t", (a, w), (("y", b.matmul(a, w)),))
    few = product(2, 256, 256)
    for graph in (f32, few):
        assert GemmTensorOpenCl().candidates(group_of(graph), TARGET) == ()


@pytest.mark.parametrize("along, width", [
    ((1, 64, 8, 7), 2), ((1, 64, 1, 1), 2), ((1, 1, 8, 1), 1)])
def test_pixels_are_stored_by_twos_where_nothing_tells_rows_apart(along, width):
    """Of rows of 7, some pairs lie in two rows."""
    x, m = halves("x", 1, 64, 8, 7), halves("m", *along)
    w = const(np.random.default_rng(3).standard_normal((64, 64, 1, 1)).astype("f2"))
    y = b.conv(x, w, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1)
    (kernel,) = compile_graph(Graph("t", (x, m), (("y", b.mul(y, m)),)), TARGET).plan.kernels
    assert kernel.entry.startswith("gemm_tensor")
    assert f"_store(float{width if width > 1 else ''} v" in kernel.body
