# mul_0: mul
# from the graph
# x0 f32[1,2,40,24] -> y f32[1,2,40,24]
# 1.92 kFLOP, 15.4 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def mul_923977f8c6(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[1920]
    y = ptr(args, 1, "f32")    # out f32[1920]
    for o0 in range(share(64, tid, nthreads), share(64, tid + 1, nthreads)):
        store(y, o0 * 30, vload(x0, o0 * 30, 16) * f32(0.25))
        store(y, (o0 * 30) + 16, vload(x0, (o0 * 30) + 16, 8) * f32(0.25))
        store(y, (o0 * 30) + 24, vload(x0, (o0 * 30) + 24, 4) * f32(0.25))
        for v4 in range(2):
            store(y, ((o0 * 30) + v4) + 28, load(x0, ((o0 * 30) + v4) + 28) * f32(0.25))

# matmul_1_arranged: arranges operands for matmul_1: transpose + matmul + add + reduce_max + sub + exp + reduce_sum + reciprocal + mul + matmul
# from the graph
# x0 f32[1,2,52,24], x1 f32[1,2,40,24], x2 f32[52], x3 f32[1,2,52,16] -> y f32[1,2,40,16]
# 0 FLOP, 20.7 kB; template attention_cpu

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_8afdf41339(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[2496]
    y = ptr(args, 1, "f32")    # out f32[2688]
    for p in range(share(14, tid, nthreads), share(14, tid + 1, nthreads)):
        i0 = p // 7
        i1 = (p) % 7
        for i2 in range(24):
            for i3 in range(8):
                store(y, (((i0 * 1344) + (i1 * 192)) + (i2 * 8)) + i3, (load(x0, (((i0 * 1248) + (i1 * 192)) + (i3 * 24)) + i2) if ((i1 * 8) + i3) < 52 else f32(0.0)))

# matmul_1_arranged_1: arranges operands for matmul_1: transpose + matmul + add + reduce_max + sub + exp + reduce_sum + reciprocal + mul + matmul
# from the graph
# x0 f32[1,2,52,24], x1 f32[1,2,40,24], x2 f32[52], x3 f32[1,2,52,16] -> y f32[1,2,40,16]
# 0 FLOP, 13.3 kB; template attention_cpu

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_0092746842(args, tid, nthreads):
    x1 = ptr(args, 0, "f32")    # in f32[1664]
    y = ptr(args, 1, "f32")    # out f32[1664]
    for p in range(share(208, tid, nthreads), share(208, tid + 1, nthreads)):
        i0 = p // 104
        i1 = (p // 52) % 2
        i2 = (p) % 52
        store(y, ((i0 * 832) + (i1 * 416)) + (i2 * 8), vload(x1, ((i0 * 832) + (i2 * 16)) + (i1 * 8), 8))

# matmul_1: transpose + matmul + add + reduce_max + sub + exp + reduce_sum + reciprocal + mul + matmul
# from the graph
# x0 f32[1,2,52,24], x1 f32[1,2,40,24], x2 f32[52], x3 f32[1,2,52,16] -> y f32[1,2,40,16]
# 387 kFLOP, 30.4 kB; template attention_cpu
# launch: params 2, 40, 24, 4, 7, 1344, 192, 16, 2, 2, 832, 416, 1, 24, 960

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def attention_10x1x1_f943c01bf8(args, tid, nthreads):
    q = ptr(args, 0, "f32")
    keys = ptr(args, 1, "f32")
    values = ptr(args, 2, "f32")
    x2 = ptr(args, 3, "f32")
    y = ptr(args, 4, "f32")
    batch = param(args, 5)
    m_count = param(args, 6)
    depth = param(args, 7)
    m_tiles = param(args, 8)
    k_panels = param(args, 9)
    k_image = param(args, 10)
    k_panel = param(args, 11)
    v_count = param(args, 12)
    v_blocks = param(args, 13)
    v_panels = param(args, 14)
    v_image = param(args, 15)
    v_panel = param(args, 16)
    q_heads = param(args, 17)
    q_head = param(args, 18)
    q_image = param(args, 19)
    scores = scratch(560, "f32")
    sums = scratch(10, "f32")
    acc = scratch(80, "f32")
    for task in range(share(batch * m_tiles, tid, nthreads), share(batch * m_tiles, tid + 1, nthreads)):
        i = div(task, m_tiles)
        mt = task - i * m_tiles
        first = min_(mt * 10, m_count - 10)
        for c in range(10):
            store(scores, c * 56 + 48, splat(f32(-inf), 8))
        queries = div(i, q_heads) * q_image + fmod(i, q_heads) * q_head + first * 24
        for panel in range(k_panels):
            tile(acc, offset(q, queries), offset(keys, i * k_image + panel * k_panel),
                 (1, 1, 1, depth, depth), (0, 0, 0, 0), 1, 10, 1, 1, 24, 8, True, ())
            for j in range(1):
                nb = panel * 1 + j
                if nb < 7:
                    for c in range(10):
                        row = i * m_count + first + c
                        yo = row * 52 + nb * 8
                        at = c * 56 + nb * 8
                        v = vload(acc, (j * 10 + c) * 8, 8)
                        vstore_part(scores, at, v + vload_part(x2, nb * 8, 52 - nb * 8, 8), 52 - nb * 8)
        for c in range(10):
            top = vload(scores, c * 56, 8)
            for nb in range(1, 7):
                top = max_(top, vload(scores, c * 56 + nb * 8, 8))
            most = splat(lanes_max(top), 8)
            total = splat(f32(0), 8)
            for nb in range(7):
                e = exp(vload(scores, c * 56 + nb * 8, 8) - most)
                store(scores, c * 56 + nb * 8, e)
                total = total + e
            sum_ = lanes_add(total)
            store(sums, c, f32(1) / sum_)
        for panel in range(v_panels):
            tile(acc, scores, offset(values, i * v_image + panel * v_panel),
                 (1, 1, 1, 52, 52), (0, 0, 0, 56), 10, 1, 1, 1, 1, 8, True, ())
            for j in range(1):
                nb = panel * 1 + j
                if nb < v_blocks:
                    for c in range(10):
                        row = i * m_count + first + c
                        yo = row * v_count + nb * 8
                        v = vload(acc, (j * 10 + c) * 8, 8) * splat(load(sums, c), 8)
                        store(y, yo, v)
