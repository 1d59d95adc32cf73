# transpose_0: transpose
# from the graph
# x0 f32[2,24,40] -> y f32[2,40,24]
# 0 FLOP, 15.4 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def transpose_a249248f57(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[1920]
    y = ptr(args, 1, "f32")    # out f32[1920]
    row6 = scratch(256, "f32")
    row7 = scratch(256, "f32")
    for i0 in range(share(2, tid, nthreads), share(2, tid + 1, nthreads)):
        for o4 in range(2):
            for o5 in range(1):
                for v5 in range(16):
                    store(row6, v5 * 16, vload(x0, (((i0 * 960) + (o5 * 640)) + (v5 * 40)) + (o4 * 16), 16))
                transpose(row7, row6, 16)
                for v4 in range(16):
                    store(y, (((i0 * 960) + (o4 * 384)) + (v4 * 24)) + (o5 * 16), vload(row7, v4 * 16, 16))
    for i0 in range(2):
        for v9 in range(share(32, tid, nthreads), share(32, tid + 1, nthreads)):
            for v8 in range(8):
                store(y, (((i0 * 960) + (v9 * 24)) + v8) + 16, load(x0, (((i0 * 960) + (v8 * 40)) + v9) + 640))
    for p in range(share(16, tid, nthreads), share(16, tid + 1, nthreads)):
        i0 = p // 8
        v11 = (p) % 8
        for v10 in range(24):
            store(y, (((i0 * 960) + (v11 * 24)) + v10) + 768, load(x0, (((i0 * 960) + (v10 * 40)) + v11) + 32))
