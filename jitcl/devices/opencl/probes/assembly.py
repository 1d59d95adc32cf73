"""Probes of inline assembly: tensor cores by PTX.

A warp computes D = A * B + C of 16 x 8 x K halves, with sums in f32. Every work-item holds a part
of each matrix in registers (PTX ISA, "Matrix Fragments for mma.m16n8k16"): of lane l, g = l / 4
names rows of A, C and columns of B, t = l % 4 pairs along the other side. Four warps compute 64 x
128 x 16 from local memory; of their part of D each warp has 16 rows as above, 8 columns at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.probes.bench import Bench, Out, Refused, extensions, first_wrong
from jitcl.devices.opencl.probes.record import Probe, Verdict
from jitcl.target import ptx

WARP = 32
M, N = 16, 8
# A is row-major, B column-major: pairs of halves along K are one uint of either
MMA = """
__kernel void tensor_k8(__global const uint *a, __global const uint *b, __global float *d)
{
    int l = get_local_id(0), g = l >> 2, t = l & 3;
    uint a0 = a[g * 4 + t], a1 = a[(g + 8) * 4 + t], b0 = b[g * 4 + t];
    float d0 = 1.0f, d1 = 1.0f, d2 = 1.0f, d3 = 1.0f;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(b0));
    d[g * 8 + 2 * t] = d0;
    d[g * 8 + 2 * t + 1] = d1;
    d[(g + 8) * 8 + 2 * t] = d2;
    d[(g + 8) * 8 + 2 * t + 1] = d3;
}
"""
_SUMS = """\
    float d0 = 1.0f, d1 = 1.0f, d2 = 1.0f, d3 = 1.0f;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    d[g * 8 + 2 * t] = d0;
    d[g * 8 + 2 * t + 1] = d1;
    d[(g + 8) * 8 + 2 * t] = d2;
    d[(g + 8) * 8 + 2 * t + 1] = d3;
}
"""
MMA16 = """
__kernel void tensor_k16(__global const uint *a, __global const uint *b, __global float *d)
{
    int l = get_local_id(0), g = l >> 2, t = l & 3;
    uint a0 = a[g * 8 + t], a1 = a[(g + 8) * 8 + t];
    uint a2 = a[g * 8 + t + 4], a3 = a[(g + 8) * 8 + t + 4];
    uint b0 = b[g * 8 + t], b1 = b[g * 8 + t + 4];
""" + _SUMS
# A by asynchronous copies into local memory, B [k, 16 columns] too; both read as matrices of 8 x 8
TILE = """
__kernel void tensor_tile(__global const uint4 *a, __global const uint4 *b, __global float *d)
{
    __local uint4 tiles[64] __attribute__((aligned(128)));
    uint base = (uint)(size_t)tiles;
    int l = get_local_id(0), g = l >> 2, t = l & 3;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(base + l * 16), "l"((ulong)(a + l)), "r"(16) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"(base + 512 + l * 16), "l"((ulong)(b + l)), "r"(8) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"(base + 520 + l * 16), "l"((ulong)(b + l) + 8), "r"(8) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    uint a0, a1, a2, a3, b0, b1, b2, b3;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3)
                 : "r"(base + (l & 15) * 32 + (l >> 4) * 16) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b0), "=r"(b1), "=r"(b2), "=r"(b3)
                 : "r"(base + 512 + (l & 15) * 32 + (l >> 4) * 16) : "memory");
""" + _SUMS

# A and B are rows of 128 bytes, whose pieces of 16 bytes are exchanged so that no two of 8 rows
# have the same in one bank. TERMS: rows are those of A or columns of B, 64 terms each; else rows
# are terms, and 64 rows of A or columns of B lie in each, B's others behind them (PTX ISA, "Matrix
# Descriptor Format"). B is at the end of all the local memory that kernels take.
GROUP_M, GROUP_N, GROUP_K = 64, 128, 64
GROUP_MEMORY = 192 << 10
GROUP_LANES = 4 * WARP
_RIGHT = GROUP_MEMORY - 2 * GROUP_N * GROUP_K
_RESULTS = range(GROUP_M * GROUP_N // GROUP_LANES)
_DESCRIBED = (1 << 62) + (1024 >> 4 << 32) + (128 * GROUP_K >> 4 << 16)


def _warpgroup(terms: bool) -> str:
    """A kernel of one form."""
    step, across = (32, 0) if terms else (128 * 16, 1)

    def described(first: int) -> str:
        return f'"l"((ulong)((base + {first}) >> 4) | {_DESCRIBED:#x}UL)'
    lines = [f"""
__kernel __attribute__((reqd_work_group_size({GROUP_LANES}, 1, 1)))
void warpgroup(__global const uint4 *a, __global const uint4 *b, __global float *d)
{{
    __local uint4 memory[{GROUP_MEMORY // 16}] __attribute__((aligned(1024)));
    uint base = (uint)(size_t)memory;
    int l = get_local_id(0), row = (l >> 5) * 16 + ((l & 31) >> 2), column = (l & 3) * 2;
    for (int p = l; p < {GROUP_M * 8}; p += {GROUP_LANES})
        memory[p ^ (p >> 3 & 7)] = a[p];
    for (int p = l; p < {GROUP_N * 8}; p += {GROUP_LANES})
        memory[{_RIGHT // 16} + (p ^ (p >> 3 & 7))] = b[p];
    float {", ".join(f"c{i} = 1.0f" for i in _RESULTS)};
    asm volatile("fence.proxy.async;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    asm volatile("{ptx.COMMENT}wgmma.fence.sync.aligned;" ::: "memory");"""]
    for k in range(GROUP_K // 16):
        lines.append(f"""\
    asm volatile("{ptx.COMMENT}wgmma.mma_async.sync.aligned.m64n{GROUP_N}k16.f32.f16.f16 "
                 "{{{", ".join(f"%{i}" for i in _RESULTS)}}}, "
                 "%{len(_RESULTS)}, %{len(_RESULTS) + 1}, 1, 1, 1, {across}, {across};"
                 : {", ".join(f'"+f"(c{i})' for i in _RESULTS)}
                 : {described(k * step)}, {described(_RIGHT + k * step)} : "memory");""")
    lines.append(f"""\
    asm volatile("{ptx.COMMENT}wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("{ptx.COMMENT}wgmma.wait_group.sync.aligned 0;" ::: "memory");""")
    lines += [f"    d[(row + {(i >> 1 & 1) * 8}) * {GROUP_N} + column + {(i >> 2) * 8 + (i & 1)}] "
              f"= c{i};" for i in _RESULTS]
    return "\n".join((*lines, "}"))


LIMIT_OPTION = "-cl-nv-maxrregcount={}"
LIMITED = """
__kernel void limited(__global const float *x, __global float *y)
{
    y[get_global_id(0)] = x[get_global_id(0)] * 3.0f + 1.0f;
}
"""


def _tensor_cores(bench: Bench, _: Any) -> Verdict:
    """The wider form (compute capability 8.0) is what fast kernels use; the other is told."""
    told = []
    for k, source in ((8, MMA), (16, MMA16)):
        try:
            wrong = _product(bench, k, source)
        except Refused as error:
            wrong = str(error)
        told.append(f"mma.sync m16n8k{k}: {wrong or 'exact'}")
    try:
        staged = _staged(bench)
    except Refused as error:
        staged = str(error)
    told.append(f"cp.async and ldmatrix: {staged or 'exact'}")
    return Verdict(not wrong and not staged, "; ".join(told))


def _staged(bench: Bench) -> str:
    """What is wrong with a product whose operands go through local memory; of B's 16 columns the
    first 8 are used."""
    random = np.random.default_rng(2)
    a, b = (random.integers(-8, 9, (16, 16)).astype(np.float16) for _ in range(2))
    (d,) = bench.run(bench.build(TILE), "tensor_tile", WARP, WARP, a.view(np.uint32),
                     b.view(np.uint32), Out(M * N))
    return first_wrong(d, (a.astype(np.float64) @ b + 1)[:, :N].reshape(-1))


def _product(bench: Bench, k: int, source: str) -> str:
    """What is wrong with a product of small integers; "" if it is exact."""
    random = np.random.default_rng(k)
    a = random.integers(-8, 9, (M, k)).astype(np.float16)
    b = random.integers(-8, 9, (k, N)).astype(np.float16)
    program = bench.build(source)
    columns = np.ascontiguousarray(b.T)
    (d,) = bench.run(program, f"tensor_k{k}", WARP, WARP, a.view(np.uint32),
                     columns.view(np.uint32), Out(M * N))
    return first_wrong(d, (a.astype(np.float64) @ b + 1).reshape(-1))


def _warpgroups(bench: Bench, _: Any) -> Verdict:
    """Both operands by terms, and both by columns."""
    random = np.random.default_rng(3)
    a, b = (random.integers(-8, 9, size).astype(np.float16)
            for size in ((GROUP_M, GROUP_K), (GROUP_K, GROUP_N)))
    wanted = (a.astype(np.float64) @ b + 1).reshape(-1)
    blocks = b.reshape(GROUP_K, GROUP_N // 64, 64).transpose(1, 0, 2)
    wrong = []
    for terms, sides in ((True, (a, b.T)), (False, (a.T, blocks))):
        program = bench.build(_warpgroup(terms), f"-cl-std=CL1.2 {ptx.OPTION}")
        words = (np.ascontiguousarray(x).view(np.uint32) for x in sides)
        (d,) = bench.run(program, "warpgroup", GROUP_LANES, GROUP_LANES, *words,
                         Out(GROUP_M * GROUP_N))
        wrong.append(first_wrong(d, wanted))
    return Verdict(not any(wrong), "; ".join(
        f"wgmma m64n{GROUP_N}k16 of operands by {name}: {said or 'exact'}"
        for name, said in zip(("terms", "columns"), wrong)))


def _no_ptx(found: Found) -> str:
    listed = any(e.startswith("cl_nv_") for e in extensions(found))
    return "" if listed else "no extension of a driver that takes PTX is listed"


def _register_limit(bench: Bench, _: Any) -> Verdict:
    """Whether the compiler takes the option, and computes the same with it."""
    program = bench.build(LIMITED, f"-cl-std=CL1.2 {LIMIT_OPTION.format(128)}")
    x = np.arange(WARP, dtype=np.float32)
    (y,) = bench.run(program, "limited", WARP, WARP, x, Out(WARP))
    wrong = first_wrong(y, x * 3 + 1)
    return Verdict(not wrong, wrong or "a kernel of at most 128 registers is right")


def _no_nv_options(found: Found) -> str:
    listed = "cl_nv_compiler_options" in extensions(found)
    return "" if listed else "no options of NVIDIA's compiler are listed"


ASSEMBLY = (
    Probe("register_limit", "kernels of at most 128 registers", _register_limit,
          present={"register_limit": LIMIT_OPTION}, skip=_no_nv_options),
    Probe("tensor_cores", "products of halves by mma.sync in inline assembly", _tensor_cores,
          features=("assembly",), present={"tensor_cores": True}, skip=_no_ptx),
    Probe("warpgroups", "products of halves by wgmma, from 192 KiB of local memory", _warpgroups,
          features=("warpgroups",), present={"warpgroup_memory": GROUP_MEMORY}, skip=_no_ptx,
          needs=("tensor_cores",)),
)
