# add_0: reduce_mean + sub + mul + reduce_mean + add + sqrt + reciprocal + mul + mul + add
# from the graph
# x0 f32[8,96], x1 f32[96], x2 f32[96] -> y f32[8,96]
# 10.8 kFLOP, 6.91 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def reduce_mean_sub_mul_add_sqrt_reciprocal_85336fbf49(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[768]
    x1 = ptr(args, 1, "f32")    # in f32[96]
    x2 = ptr(args, 2, "f32")    # in f32[96]
    y = ptr(args, 3, "f32")    # out f32[768]
    for i0 in range(share(8, tid, nthreads), share(8, tid + 1, nthreads)):
        acc0 = f32(0.0)
        for r0 in range(96):
            acc0 = sum_add(acc0, load(x0, (i0 * 96) + r0))
        acc1 = f32(0.0)
        for r1 in range(96):
            t0 = load(x0, (i0 * 96) + r1) - (acc0 / f32(96.0))
            acc1 = sum_fma(t0, t0, acc1)
        for o1 in range(6):
            store(y, (i0 * 96) + (o1 * 16), fma((vload(x0, (i0 * 96) + (o1 * 16), 16) - (acc0 / f32(96.0))) * (f32(1.0) / sqrt((acc1 / f32(96.0)) + f32(9.999999747378752e-06))), vload(x1, o1 * 16, 16), vload(x2, o1 * 16, 16)))
