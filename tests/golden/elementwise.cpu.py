# relu_0: mul + add + relu
# from the graph
# x0 f32[4,33], x1 f32[33] -> y f32[4,33]
# 396 FLOP, 1.19 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def mul_add_relu_074ef761d0(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[132]
    x1 = ptr(args, 1, "f32")    # in f32[33]
    y = ptr(args, 2, "f32")    # out f32[132]
    for i0 in range(4):
        for i1 in range(share(33, tid, nthreads), share(33, tid + 1, nthreads)):
            store(y, (i0 * 33) + i1, max_(fma(load(x0, (i0 * 33) + i1), load(x1, i1), f32(1.0)), f32(0.0)))
