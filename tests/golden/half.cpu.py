# tanh_0: add + tanh
# from the graph
# x0 f16[4,33], x1 f16[33] -> y f16[4,33]
# 1.19 kFLOP, 594 B; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def add_tanh_9f66d482aa(args, tid, nthreads):
    x0 = ptr(args, 0, "f16")    # in f16[132]
    x1 = ptr(args, 1, "f16")    # in f16[33]
    y = ptr(args, 2, "f16")    # out f16[132]
    for i0 in range(4):
        for i1 in range(share(33, tid, nthreads), share(33, tid + 1, nthreads)):
            store(y, (i0 * 33) + i1, tanh(to_f32(load(x0, (i0 * 33) + i1)) + to_f32(load(x1, i1))))
