# max_pool_0: max_pool
# from the graph
# x0 f32[1,16,14,14] -> y f32[1,16,7,7]
# 3.14 kFLOP, 15.7 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def max_pool_9416af172b(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[3136]
    y = ptr(args, 1, "f32")    # out f32[784]
    for p2 in range(share(112, tid, nthreads), share(112, tid + 1, nthreads)):
        for i2 in range(7):
            acc0 = f32(-inf)
            for r0 in range(2):
                for r1 in range(2):
                    acc0 = sum_max(acc0, load(x0, (((p2 * 28) + (r0 * 14)) + (i2 * 2)) + r1))
            store(y, (p2 * 7) + i2, acc0)
