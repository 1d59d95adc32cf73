# mul_0: reduce_max + sub + exp + reduce_sum + reciprocal + mul
# from the graph
# x0 f32[8,100] -> y f32[8,100]
# 17.6 kFLOP, 6.4 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def reduce_max_sub_exp_reduce_sum_994f2e8725(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[800]
    y = ptr(args, 1, "f32")    # out f32[800]
    row0 = scratch(100, "f32")
    for i0 in range(share(8, tid, nthreads), share(8, tid + 1, nthreads)):
        acc0 = f32(-inf)
        for r0 in range(100):
            acc0 = sum_max(acc0, load(x0, (i0 * 100) + r0))
        acc1 = f32(0.0)
        for r1 in range(100):
            t0 = exp(load(x0, (i0 * 100) + r1) - acc0)
            store(row0, r1, t0)
            acc1 = sum_add(acc1, t0)
        for i1 in range(100):
            store(y, (i0 * 100) + i1, load(row0, i1) * (f32(1.0) / acc1))
