# relu_0: mul + add + relu
# from the graph
# x0 f32[4,33], x1 f32[33] -> y f32[4,33]
# 396 FLOP, 1.19 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def mul_add_relu_21e7ed8230(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[132]
    x1 = ptr(args, 1, "f32")    # in f32[33]
    y = ptr(args, 2, "f32")    # out f32[132]
    for i0 in range(share(4, tid, nthreads), share(4, tid + 1, nthreads)):
        for o2 in range(2):
            store(y, (i0 * 33) + (o2 * 16), max_(fma(vload(x0, (i0 * 33) + (o2 * 16), 16), vload(x1, o2 * 16, 16), f32(1.0)), f32(0.0)))
        store(y, (i0 * 33) + 32, max_(fma(load(x0, (i0 * 33) + 32), load(x1, 32), f32(1.0)), f32(0.0)))
