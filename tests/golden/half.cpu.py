# tanh_0: add + tanh
# from the graph
# x0 f16[4,33], x1 f16[33] -> y f16[4,33]
# 1.19 kFLOP, 594 B; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def add_tanh_3603119aad(args, tid, nthreads):
    x0 = ptr(args, 0, "f16")    # in f16[132]
    x1 = ptr(args, 1, "f16")    # in f16[33]
    y = ptr(args, 2, "f16")    # out f16[132]
    for i0 in range(share(4, tid, nthreads), share(4, tid + 1, nthreads)):
        for o2 in range(2):
            store(y, (i0 * 33) + (o2 * 16), tanh(to_f32(vload(x0, (i0 * 33) + (o2 * 16), 16)) + to_f32(vload(x1, o2 * 16, 16))))
        store(y, (i0 * 33) + 32, tanh(to_f32(load(x0, (i0 * 33) + 32)) + to_f32(load(x1, 32))))
