"""Schedules for GPUs: kernels in, kernels out, and the whole op table run in the interpreter."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from jitcl import dtypes
from jitcl.codegen.axes import group_of_items
from jitcl.codegen.generate import generate
from jitcl.codegen.schedule_gpu import schedule_gpu
from jitcl.codegen.schedule_opencl import scheduled_kernel
from jitcl.errors import JitclError, VerifyError
from jitcl.ir.interpreter import run_kernel
from jitcl.ir.kernel import Kernel, scanned
from jitcl.ir.parser import parse_kernel
from jitcl.ir.printer import print_kernel
from jitcl.ir.sampling import sample_places
from jitcl.ir.sampling_scan import sample_scan_places
from jitcl.ir.verify_schedule import verify_schedule
from jitcl.ops import OPS
from jitcl.passes.decompose import Decompose
from jitcl.passes.fuse import fuse
from jitcl.passes.watch import flag
from jitcl.target import Target
from jitcl.target.profiles import find_profile
from tests.compiling import compile_graph
from tests.generated.kernels import GPU, op_graphs
from tests.variants import OPENCL

H200 = dataclasses.replace(GPU, name="NVIDIA H200", vendor="NVIDIA", compute_units=132, fp64=True,
                           local_memory=48 << 10, max_work_group=1024,
                           max_work_item_sizes=(1024, 1024, 64))
CPU_DEVICE = dataclasses.replace(GPU, name="a CPU", device_type="cpu", vector_width=8, fp64=True,
                                 local_is_real=False)
TARGETS = {"mali-g52": find_profile("mali-g52").target,
           "mali-g610": find_profile("mali-g610").target,
           "adreno-740": find_profile("adreno-740").target, "h200": H200, "pocl": CPU_DEVICE,
           "vectors": dataclasses.replace(H200, compute_units=0, fp16_arithmetic=True)}


SCALARS = dataclasses.replace(H200, max_vector_width=1)


def scheduled(text: str, target: Target = H200) -> str:
    """The body of a kernel for a GPU."""
    kernel = schedule_gpu(parse_kernel(text), target)
    verify_schedule(kernel, target.local_memory)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    return "\n".join(print_kernel(kernel).splitlines()[1:-1])


# ---- text in, text out

def test_values_named_between_a_rows_loops_move_into_the_innermost() -> None:
    text = scheduled("""
kernel @k(in x: f32[4,9,17], out y: f32[4,8,16]) {
  for i < 4 @parallel {
    let acc: f32 = 0.0
    for r < 100 @loop { acc add= x[i, r % 9, r % 17] }
    for j < 8 @parallel {
      let t: index = j + 1
      for k < 16 @parallel {
        y[i, j, k] = x[i, t, k + t % 2] * acc
      }
    }
  }
}""")
    assert """\
      for p_j < 128 @loop from lane by 64 {
        let j: index = floordiv(p_j, 16)
        let k: index = p_j % 16
        let t0: index = j + 1
        y[i, j, k] = x[i, t0, k + t0 % 2] * acc_all
      }""" in text, text


def test_an_element_a_work_item() -> None:
    assert scheduled("""
kernel @k(in x: f32[4,33], in b: f32[33], out y: f32[4,33]) {
  for i < 4 @parallel { for j < 33 @parallel { y[i, j] = x[i, j] + b[j] } }
}""") == """\
  for i < 4 @item {
    for j < 33 @item {
      y[i, j] = x[i, j] + b[j]
    }
  }"""


def test_a_concatenation_of_planes_has_one_axis() -> None:
    """And the vectors whose lanes all come from one of what is joined."""
    text = """
kernel @k(in x: f32[16,13,13], in z: f32[8,13,13], out y: f32[24,13,13]) {
  for i < 24 @parallel { for j < 13 @parallel { for k < 13 @parallel {
    y[i, j, k] = select(i < 16, x[i, j, k if i < 16 else 0.0], z[i - 16, j, k if i >= 16 else 0.0])
  } } }
}"""
    assert scheduled(text, SCALARS) == """\
  for p1 < 4056 @item {
    let t0: bool = p1 < 2704
    y[p1] = select(t0, x[p1 if t0 else 0.0], z[p1 + -2704 if p1 >= 2704 else 0.0])
  }"""
    assert scheduled(text, TARGETS["vectors"]) == """\
  for p1 < 1014 @item {
    for lane < 4 @vec {
      y[p1 * 4 + lane] = select(p1 * 4 < 2704, x[p1 * 4 + lane if p1 * 4 < 2704 else 0.0], \
z[p1 * 4 + lane + -2704 if p1 * 4 >= 2704 else 0.0])
    }
  }"""
    apart = text.replace("16", "15").replace("f32[8", "f32[9")      # a vector of both
    assert "@vec" not in scheduled(apart, TARGETS["vectors"])


def test_neighbours_of_a_group_lie_side_by_side() -> None:
    assert group_of_items((13, 13, 384), H200)[0] >= 13
    assert group_of_items((4, 100, 1000), H200)[0] == 4
    assert group_of_items((1000, 3, 5), H200)[0] >= 32


def test_more_loops_than_axes_are_merged() -> None:
    assert scheduled("""
kernel @k(in x: f32[5,4,3,2], out y: f32[2,3,4,5]) {
  for a < 2 @parallel { for b < 3 @parallel { for c < 4 @parallel { for d < 5 @parallel {
    y[a, b, c, d] = x[d, c, b, a]
  } } } }
}""") == """\
  for a < 2 @item {
    for b < 3 @item {
      for p_c < 20 @item {
        let c: index = floordiv(p_c, 5)
        let d: index = p_c % 5
        y[a, b, c, d] = x[d, c, b, a]
      }
    }
  }""".replace("p_a / 3", "floordiv(p_a, 3)")


def test_axes_are_no_longer_than_drivers_take() -> None:
    assert "for p_a < 700000 @item" in scheduled("""
kernel @k(in x: f32[10,70000], out y: f32[70000,10]) {
  for a < 70000 @parallel { for b < 10 @parallel { y[a, b] = x[b, a] } }
}""", SCALARS)


def test_of_very_many_elements_a_work_item_takes_several() -> None:
    assert scheduled("""
kernel @k(in x: f32[64000000], out y: f32[64000000]) {
  for i < 64000000 @parallel { y[i] = x[i] * 2.0 }
}""") == """\
  for first_i < 2000000 @item {
    for i < 16000000 @loop from first_i by 2000000 {
      for lane < 4 @vec {
        y[i * 4 + lane] = x[i * 4 + lane] * 2.0
      }
    }
  }"""


def test_what_lies_side_by_side_are_vectors() -> None:
    assert scheduled("""
kernel @k(in x: f32[300,1200], in b: f32[1200], in c: f32[300], out y: f16[300,1200]) {
  for i < 300 @parallel { for j < 1200 @parallel { y[i, j] = f16(x[i, j] + b[j] * c[i]) } }
}""") == """\
  for i < 300 @item {
    for j < 300 @item {
      for lane < 4 @vec {
        y[i * 1200 + j * 4 + lane] = f16(x[i * 1200 + j * 4 + lane] + b[j * 4 + lane] * c[i])
      }
    }
  }"""


HALVES = """
kernel @k(in x: f16[N,1204], out y: f16[N,1204]) {
  for i < N @parallel { for j < 1204 @parallel { y[i, j] = f16(f32(x[i, j]) * 2.0) } }
}"""


@pytest.mark.parametrize(("rows", "lanes"), [(4096, 8), (4093, 4)])
def test_halves_alone_are_vectors_of_16_bytes(rows: int, lanes: int) -> None:
    """Where they can be: they are moved, and hardly computed with."""
    text = HALVES.replace("N", str(rows))
    assert f"for lane < {lanes} @vec" in scheduled(text)
    assert "for lane < 4 @vec" in scheduled(text.replace("out y: f16", "out y: f32").replace(
        "f16(f32(x[i, j]) * 2.0)", "f32(x[i, j]) * 2.0"))
    assert "for lane < 4 @vec" in scheduled(text, TARGETS["mali-g610"])


@pytest.mark.parametrize(("why", "statement"), {
    "unaligned": "y[i, j] = x[i, j + 1]",
    "backwards": "y[i, j] = x[i, 1199 - j]",
    "a column of few": "y[i, j] = x[j, i % 8]",
    "a guard that differs": "y[i, j] = x[i, j] if j < 1199",
    "integers": "z[i, j] = 1",
}.items())
def test_what_is_no_vector(why: str, statement: str) -> None:
    out = "out z: i32" if why == "integers" else "out y: f32"
    text = scheduled(f"""
kernel @k(in x: f32[1200,1204], {out}[300,1200]) {{
  for i < 300 @parallel {{ for j < 1200 @parallel {{ {statement} }} }}
}}""")
    assert "@vec" not in text and "@item" in text


TURNED = """
kernel @k(in x: f32[B,N,M], out y: f32[B,M,N]) {
  for n < B @parallel { for i < M @parallel { for j < N @parallel {
    y[n, i, j] = x[n, j, i] * 2.0
  } } }
}"""


def turned(batch: int, m: int, n: int, dtype: str = "f32") -> str:
    text = TURNED.replace("B", str(batch)).replace("M", str(m)).replace("N", str(n))
    return text.replace("f32", dtype).replace(" * 2.0", "" if dtype != "f32" else " * 2.0")


def test_a_transpose_goes_through_a_tile() -> None:
    assert scheduled(turned(3, 128, 64), TARGETS["vectors"]) == """\
  for n < 3 @group {
    for i_tile < 2 @group {
      for j_tile < 1 @group {
        for lane < 256 @lane {
          let r: index = floordiv(lane, 16)
          let c: index = lane % 16 * 4
          for t < 4 @loop {
            for quad < 4 @vec {
              tile[r + t * 16, c + quad] = \
x[n * 8192 + j_tile * 8192 + r * 128 + t * 2048 + i_tile * 64 + c + quad] \
if j_tile * 64 + r + t * 16 < 64 and i_tile * 64 + c < 128
            }
          }
          barrier
          for t < 4 @loop {
            for quad < 4 @vec {
              y[n * 8192 + i_tile * 4096 + r * 64 + t * 1024 + j_tile * 64 + c + quad] = \
tile[c + quad, r + t * 16] * 2.0 if i_tile * 64 + r + t * 16 < 128 and j_tile * 64 + c < 64
            }
          }
        }
      }
    }
  }"""


def test_a_copy_is_loops_of_steps_where_programs_are_to_be_few() -> None:
    """Loops are cut where places are divided, joined where both sides go on, sorted as y lies."""
    text = """
kernel @k(in x: f32[2,8,64,32], out y: f32[2,64,256]) {
  for n < 2 @parallel { for c < 256 @parallel { for p < 64 @parallel {
    y[n, p, c] = x[n, floordiv(c, 32), p, c % 32]
  } } }
}"""
    assert scheduled(text, TARGETS["adreno-740"]) == """\
  for n < 2 @item {
    for p < 64 @item {
      for p_c_32 < 64 @item {
        let c_32: index = floordiv(p_c_32, 8)
        let c_of_32: index = p_c_32 % 8
        for lane < 4 @vec {
          y[n * 16384 + p * 256 + c_32 * 32 + c_of_32 * 4 + lane] = \
x[n * 16384 + p * 32 + c_32 * 2048 + c_of_32 * 4 + lane]
        }
      }
    }
  }"""
    plain = "kernel @k(in x: f32[4,64], out y: f32[4,64]) {\n" \
        "  for i < 4 @parallel { for j < 64 @parallel { y[i, j] = x[i, j] } }\n}"
    assert "floordiv" not in scheduled(plain, TARGETS["adreno-740"])


@pytest.mark.parametrize("dtype", ["f32", "f16", "i32", "u8"])
@pytest.mark.parametrize("shape", [(1, 128, 64), (2, 68, 100), (3, 33, 45)])
def test_tiles_of_any_shape_are_turned(shape: tuple[int, int, int], dtype: str) -> None:
    target = dataclasses.replace(TARGETS["vectors"], fp16_arithmetic=False)
    text = turned(*shape, dtype)
    assert "tile[" in scheduled(text, target)
    batch, m, n = shape
    x = np.random.default_rng(0).integers(0, 99, (batch, n, m)).astype(dtypes.to_numpy(dtype))
    compare(parse_kernel(text), {"x": x}, target)
    for small in (dataclasses.replace(target, local_memory=4096),
                  dataclasses.replace(target, local_works=False)):
        assert "tile[" not in scheduled(text, small)


def test_too_few_are_no_vectors() -> None:
    text = """
kernel @k(in x: f32[4096], out y: f32[4096]) { for i < 4096 @parallel { y[i] = x[i] * 2.0 } }"""
    assert "@vec" not in scheduled(text)
    small = dataclasses.replace(H200, compute_units=2)
    assert "for p < 1024 @item" in scheduled(text, small).replace("for i <", "for p <")
    assert "@vec" not in scheduled(text, dataclasses.replace(small, max_vector_width=1))


ROW = """
kernel @k(in x: f32[8,100], out y: f32[8,100]) {
  for i < 8 @parallel {
    let acc: f32 = 1.0
    for r < 100 @loop { acc add= x[i, r] }
    for j < 100 @parallel { y[i, j] = x[i, j] / acc }
  }
}"""
SHARED = """\
  for i < 8 @group {
    for lane < 8 @lane {
      let acc: f32 = select(lane == 0, 1.0, 0.0)
      for r < 100 @loop from lane by 8 {
        acc add= x[i, r]
      }
      part_acc[lane] = acc
      barrier
      for some2_acc < 2 @loop from lane by 8 {
        part_acc[some2_acc] = part_acc[some2_acc] + part_acc[some2_acc + 2] + \
(part_acc[some2_acc + 4] + part_acc[some2_acc + 6])
      }
      barrier
      let acc_all: f32 = part_acc[0] + part_acc[1]
      for j < 100 @loop from lane by 8 {
        y[i, j] = x[i, j] / acc_all
      }
    }
  }"""
EIGHT = dataclasses.replace(H200, max_work_group=9)         # lanes are a power of two


def test_a_row_a_work_group() -> None:
    assert scheduled(ROW, EIGHT) == SHARED


def test_lanes_find_the_variables_of_merged_loops() -> None:
    """Four loops are more than an NDRange has axes: a group's loop holds its lanes' alone."""
    rows = ROW.replace("for i <", "for a < 3 @parallel { for b < 4 @parallel { for c < 5 @parallel "
                       "{ for i <").replace("  }\n}", "  } } } }\n}")
    rows = rows.replace("in x: f32[8,", "in x: f32[8,5,4,3,").replace("x[i,", "x[i, c, b, a,")
    rows = rows.replace("out y: f32[8,", "out y: f32[3,4,5,8,").replace("y[i,", "y[a, b, c, i,")
    assert scheduled(rows, EIGHT).startswith("""\
  for p_a < 12 @group {
    for c < 5 @group {
      for i < 8 @group {
        for lane < 8 @lane {
          let a: index = floordiv(p_a, 4)
          let b: index = p_a % 4
          let acc: f32 = select(lane == 0, 1.0, 0.0)
""")
    x = np.random.default_rng(3).random((8, 5, 4, 3, 100), np.float32)
    compare(parse_kernel(rows), {"x": x}, EIGHT)


def test_without_local_memory_a_row_is_a_work_items() -> None:
    target = dataclasses.replace(H200, local_works=False)
    assert scheduled(ROW, target).startswith("  for i < 8 @item {\n    let acc: f32 = 1.0\n")


def test_a_chain_a_work_group() -> None:
    assert scheduled("""
kernel @k(in x: f32[2,5,8], scan y: f32[2,5,8]) {
  for n < 2 @parallel {
    for j < 8 @parallel { y[n, 0, j] = x[n, 0, j] }
    for t < 4 @loop { for k < 8 @parallel { y[n, t + 1, k] = y[n, t, k] + x[n, t, k] } }
  }
}""") == """\
  for n < 2 @group {
    for lane < 32 @lane {
      for j < 8 @loop from lane by 32 {
        y[n, 0, j] = x[n, 0, j]
      }
      barrier
      for t < 4 @loop {
        for k < 8 @loop from lane by 32 {
          y[n, t + 1, k] = y[n, t, k] + x[n, t, k]
        }
        barrier
      }
    }
  }"""


# ---- faults that are planted

def kernel_of(body: str, head: str = "in x: f32[8,100], out y: f32[8,100], local part_acc: f32[8]"
              ) -> Kernel:
    return parse_kernel(f"kernel @k({head}) {{\n{body}\n}}")


PLANTED = {
    "a barrier is removed": (
        re.sub("barrier\n", "", SHARED, count=1), "a barrier is missing"),
    "the last barrier is removed": (
        "barrier\n".join(SHARED.split("barrier\n")[:-1]) + SHARED.split("barrier\n")[-1],
        "a barrier is missing"),
    "an index is swapped": (
        SHARED.replace("part_acc[some2_acc + 2]", "part_acc[some2_acc + 1]"),
        "a barrier is missing"),
    "all lanes store to one place": (
        SHARED.replace("part_acc[lane] = acc", "part_acc[0] = acc"), "lane 7 touches element 0"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_lanes_that_meet_without_a_barrier(name: str) -> None:
    """By the verifier, and by the interpreter of a kernel that was not verified."""
    text, message = PLANTED[name]
    kernel = kernel_of(text)
    assert text != SHARED
    with pytest.raises(VerifyError, match=message):
        verify_schedule(kernel)
    x = np.random.default_rng(0).random((8, 100), np.float32)
    with pytest.raises(JitclError, match="a barrier is missing"):
        run_kernel(kernel, {"x": x, "y": np.zeros_like(x)})


def test_what_is_not_planted_passes() -> None:
    kernel = kernel_of(SHARED)
    verify_schedule(kernel, 32)
    x = np.random.default_rng(0).random((8, 100), np.float32)
    y = np.zeros_like(x)
    run_kernel(kernel, {"x": x, "y": y})
    np.testing.assert_allclose(y, x / (1 + x.sum(-1, keepdims=True)), rtol=1e-5)


WRONG = [
    ("for i < 4 @group { for lane < 8 @lane { for r < 9 @loop from lane by 8 { barrier } "
     "y[i, lane] = 0.0 } }",
     "'barrier': stands in 'for r', which begins at 'lane' and so ends at another time in each "
     "lane: a barrier is for all lanes"),
    ("for i < 4 @group { for lane < 8 @lane { let a: index = lane + 1  "
     "for r < 9 @loop from a by 8 { barrier } y[i, lane] = 0.0 } }",
     "which begins at 'a' and so ends at another time in each lane"),
    ("for i < 8 @item { y[i, 0] = 0.0  barrier }", "'barrier': stands outside of all lanes"),
    ("for i < 4 @loop { for j < 8 @item { y[i, j] = 0.0 } }",
     "stands inside: loops of kind 'item' are the outermost"),
    ("for i < 4 @item { for j < 8 @lane { y[i, j] = 0.0 } }",
     "loops of kinds item, lane: wanted items alone, or groups around lanes"),
    ("for a < 1 @item { for b < 1 @item { for c < 1 @item { for d < 1 @item { y[a, d] = 0.0 } } } "
     "}", "4 loops over work-items: an NDRange has 3 axes"),
    ("for i < 8 @item { for v < 4 @vec { y[i, v + 2] = x[i, v + 2] } }",
     "'x' is touched 4 elements at a time at '100 * i + v + 2': that is no multiple of 4"),
    ("for i < 8 @item { for v < 8 @vec { y[i, v] = x[i, v] } }", "that is no multiple of 8"),
    ("for i < 8 @item { for v < 4 @vec { y[i, 2 * v] = 0.0 } }",
     "lanes of 'for v @vec' do not lie side by side in 'y'"),
]


@pytest.mark.parametrize(("body", "message"), WRONG)
def test_what_is_refused(body: str, message: str) -> None:
    kernel = kernel_of(body, "in x: f32[8,100], out y: f32[8,100]")
    with pytest.raises(VerifyError) as e:
        verify_schedule(kernel)
    text = str(e.value).replace("i * 100", "100 * i")
    assert message in text


def test_local_memory_is_what_the_device_has() -> None:
    with pytest.raises(VerifyError) as e:
        verify_schedule(kernel_of(SHARED), 31)
    assert str(e.value) == "kernel 'k': local arrays take 32 bytes, the device has 31"


def test_vectors_that_are_aligned() -> None:
    verify_schedule(kernel_of("for i < 8 @item { for j < 100 @loop from 4 * i by 32 { "
                              "for v < 4 @vec { y[i, v] = x[i, v] } } }",
                              "in x: f32[8,100], out y: f32[8,100]"))


# ---- the op table

MERGED = ("reduce_mean",)


@pytest.mark.sampled(quick=48, slow=16)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("device", TARGETS)
def test_scheduled_kernels_are_the_kernels(device: str, name: str) -> None:
    """Each kernel of each row, scheduled, against the kernel as it was lowered: bit for bit, or
    within the bounds of what order sums may have.
    """
    target = TARGETS[device]
    found = op_graphs(target).get(name)
    if found is None:
        pytest.skip("the device has none of these element types")
    graph, feeds = found
    graph = Decompose().run(graph)
    made = compile_graph(graph, target, passes=False, templates=False)
    plan = made.plan
    arrays = {k: dtypes.from_bits(a, plan.buffers[k].dtype) for k, a in plan.constants.items()}
    for spec in plan.inputs:
        arrays[spec.buffer] = feeds[spec.name].reshape(plan.buffers[spec.buffer].shape)
    for step in plan.steps:
        lowered = made.kernels[step.group]
        assert lowered is not None
        spec = plan.buffers[step.buffers[-1]]
        fed = {b.name: arrays[k].reshape(b.shape)
               for b, k in zip(lowered.kernel.buffers, step.buffers[:-1])}
        arrays[step.buffers[-1]] = compare(lowered.kernel, fed, target).reshape(spec.shape)


@pytest.mark.sampled(slow=31)
@pytest.mark.parametrize("name", [n if n in MERGED else pytest.param(n, marks=pytest.mark.slow)
                                  for n in OPS])
@pytest.mark.parametrize("device", ["mali-g52", "h200"])
def test_every_variant_has_one_axis(device: str, name: str, monkeypatch: pytest.MonkeyPatch
                                    ) -> None:
    """All kernels are well formed in each variant, with flags and without, where every nest of
    loops has to be merged, and lanes share however short a row.
    """
    monkeypatch.setattr("jitcl.codegen.axes.AXES", 1)
    monkeypatch.setattr("jitcl.codegen.schedule_gpu.LONG", 1)
    monkeypatch.setattr("jitcl.codegen.schedule_gpu.FEWEST", 1)
    target = TARGETS[device]
    found = op_graphs(target).get(name)
    if found is None:
        pytest.skip("the device has none of these element types")
    graph = Decompose().run(found[0])
    groups = fuse(graph, target)
    for lower in dict.fromkeys(v.apply(target) for v in OPENCL):
        generate(graph, groups, lower, templates=False)
        generate(*flag(graph, groups, range(len(groups)))[:2], lower, templates=False)


def compare(kernel: Kernel, fed: dict[str, np.ndarray], target: Target) -> np.ndarray:
    """What the unscheduled kernel gives, after the scheduled one gave the same."""
    done = scheduled_kernel(kernel, target)
    y = kernel.buffers[-1]
    want, got = (np.zeros(y.shape, dtypes.to_numpy(y.dtype)) for _ in range(2))
    run_kernel(kernel, {**fed, y.name: want})
    operands = {**fed, y.name: got}
    run_kernel(done, {b.name: operands[b.name].reshape(b.shape) for b in done.buffers})
    differs = np.flatnonzero(dtypes.as_bits(got) != dtypes.as_bits(want))
    if len(differs):
        sample = (sample_scan_places(kernel, fed, differs, 0) if scanned(kernel)
                  else sample_places(kernel, fed, differs))
        off = np.abs(got.reshape(-1)[sample.positions].astype(np.float64) - sample.mid)
        judged = len(sample.positions)       # of a recurrence, a few chains
        assert judged == len(differs) or scanned(kernel) and judged
        assert (off <= sample.radius).all() or np.isnan(off[~(off <= sample.radius)]).all()
    return want
