# concat_0: concat
# from the graph
# x0 f32[2,3,8], x1 f32[2,5,8] -> y f32[2,8,8]
# 0 FLOP, 1.02 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def concat_25840d89d5(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[2,3,8]
    x1 = ptr(args, 1, "f32")    # in f32[2,5,8]
    y = ptr(args, 2, "f32")    # out f32[2,8,8]
    for p in range(share(16, tid, nthreads), share(16, tid + 1, nthreads)):
        i0 = p // 8
        i1 = (p) % 8
        t0 = i1 + -3
        t1 = i1 < 3
        store(y, (i0 * 64) + (i1 * 8), select(t1, (vload(x0, (i0 * 24) + (i1 * 8), 8) if (t1) else splat(f32(0.0), 8)), (vload(x1, (i0 * 40) + (t0 * 8), 8) if ((t0 >= 0)) else splat(f32(0.0), 8))))
