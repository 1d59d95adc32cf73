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
# x0 f32[1,2,52,24] -> panels f32[2,7,24,8]
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

# matmul_1: transpose + matmul + add + reduce_max + sub + exp + reduce_sum + reciprocal + mul + matmul
# from the graph
# x1 f32[1,2,40,24], panels f32[2,7,24,8], x3 f32[1,2,52,16], x2 f32[52] -> y f32[1,2,40,16]
# 387 kFLOP, 30.4 kB; template attention_cpu
# launch: batch 2, m_count 40, depth 24, m_tiles 4, k_image 1344, k_panel 192, v_image 832, q_heads 1, q_head 24, q_image 960

from math import inf, nan
from jitcl.devices.cpu.scheduling import in_memory, in_order
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def attention_10x1x1_3dc0ead5a7(args, tid, nthreads):
    q = ptr(args, 0, "f32")
    keys = ptr(args, 1, "f32")
    values = ptr(args, 2, "f32")
    x2 = ptr(args, 3, "f32")
    y = ptr(args, 4, "f32")
    batch = param(args, 5)
    m_count = param(args, 6)
    depth = param(args, 7)
    m_tiles = param(args, 8)
    k_image = param(args, 9)
    k_panel = param(args, 10)
    v_image = param(args, 11)
    q_heads = param(args, 12)
    q_head = param(args, 13)
    q_image = param(args, 14)
    powers = scratch(560, "f32")
    sums = scratch(160, "f32")
    acc = scratch(80, "f32")
    scores = scratch(80, "f32")
    bases = in_memory(scratch(80, "f32"))
    most = scratch(80, "f32")
    totals = in_memory(scratch(80, "f32"))
    whole = scratch(10, "f32")
    for task in range(share(batch * m_tiles, tid, nthreads), share(batch * m_tiles, tid + 1, nthreads)):
        i = div(task, m_tiles)
        mt = task - i * m_tiles
        first = min_(mt * 10, m_count - 10)
        queries = div(i, q_heads) * q_image + fmod(i, q_heads) * q_head + first * 24
        for c in range(10):
            store(most, c * 8, splat(f32(-inf), 8))
        for turn in range(3):
            for c in range(10):
                store(totals, c * 8, splat(f32(0), 8))
            for block in range(1):
                begin = block * 7
                end = min_(begin + 7, 7)
                panel = begin
                while panel < end:
                    if turn != 1 and 0 < panel + turn and panel < 6:
                        stop = min_(end, 6)
                        for p in range(panel, stop):
                            tile(acc, offset(q, queries), offset(keys, i * k_image + p * k_panel),
                                 (1, 1, 1, depth, depth), (0, 0, 0, 0), 1, 10, 1, 1, 24, 8, True, ())
                            at = (p - begin) * 8
                            row = i * m_count + first + 0
                            base = vload(bases, 0, 8)
                            total = vload(totals, 0, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 0, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 0 + at, e)
                            total = total + e
                            store(totals, 0, total)
                            row = i * m_count + first + 1
                            base = vload(bases, 8, 8)
                            total = vload(totals, 8, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 8, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 56 + at, e)
                            total = total + e
                            store(totals, 8, total)
                            row = i * m_count + first + 2
                            base = vload(bases, 16, 8)
                            total = vload(totals, 16, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 16, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 112 + at, e)
                            total = total + e
                            store(totals, 16, total)
                            row = i * m_count + first + 3
                            base = vload(bases, 24, 8)
                            total = vload(totals, 24, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 24, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 168 + at, e)
                            total = total + e
                            store(totals, 24, total)
                            row = i * m_count + first + 4
                            base = vload(bases, 32, 8)
                            total = vload(totals, 32, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 32, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 224 + at, e)
                            total = total + e
                            store(totals, 32, total)
                            row = i * m_count + first + 5
                            base = vload(bases, 40, 8)
                            total = vload(totals, 40, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 40, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 280 + at, e)
                            total = total + e
                            store(totals, 40, total)
                            row = i * m_count + first + 6
                            base = vload(bases, 48, 8)
                            total = vload(totals, 48, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 48, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 336 + at, e)
                            total = total + e
                            store(totals, 48, total)
                            row = i * m_count + first + 7
                            base = vload(bases, 56, 8)
                            total = vload(totals, 56, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 56, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 392 + at, e)
                            total = total + e
                            store(totals, 56, total)
                            row = i * m_count + first + 8
                            base = vload(bases, 64, 8)
                            total = vload(totals, 64, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 64, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 448 + at, e)
                            total = total + e
                            store(totals, 64, total)
                            row = i * m_count + first + 9
                            base = vload(bases, 72, 8)
                            total = vload(totals, 72, 8)
                            nb = p * 1 + 0
                            yo = row * 52 + nb * 8
                            v = in_order(vload(acc, 72, 8))
                            s = v + vload(x2, nb * 8, 8)
                            e = exp_less(s, base)
                            store(powers, 504 + at, e)
                            total = total + e
                            store(totals, 72, total)
                        panel = stop
                        continue
                    tile(scores, offset(q, queries), offset(keys, i * k_image + panel * k_panel),
                                 (1, 1, 1, depth, depth), (0, 0, 0, 0), 1, 10, 1, 1, 24, 8, True, ())
                    blocks = min_(1, 7 - panel * 1)
                    for j in range(blocks):
                        nb = panel * 1 + j
                        for c in range(10):
                            row = i * m_count + first + c
                            yo = row * 52 + nb * 8
                            v = vload(scores, (j * 10 + c) * 8, 8)
                            s = v + vload_part(x2, nb * 8, 52 - nb * 8, 8)
                            s = select(lt(lane_index(8), 52 - nb * 8), s, splat(f32(-inf), 8))
                            store(scores, (j * 10 + c) * 8, s)
                            store(most, c * 8, max_(vload(most, c * 8, 8), s))
                    if panel + turn == 0:
                        for c in range(10):
                            largest = lanes_max(vload(most, c * 8, 8))
                            base_ = largest if largest > f32(-1000) else f32(0)
                            store(bases, c * 8, splat(base_, 8))
                    if turn != 1:
                        at = (panel - begin) * 8
                        for j in range(blocks):
                            for c in range(10):
                                s = vload(scores, (j * 10 + c) * 8, 8)
                                e = exp_less(s, vload(bases, c * 8, 8))
                                store(powers, c * 56 + at + j * 8, e)
                                store(totals, c * 8, vload(totals, c * 8, 8) + e)
                    panel = panel + 1
                if turn != 1:
                    terms = min_(56, 52 - begin * 8)
                    for vp in range(2):
                        tile(offset(sums, vp * 80), powers, offset(values, i * v_image + begin * 128 + vp * 8),
                             (1, 1, 1, terms, terms), (0, 0, 0, 56, 16), 10, 1, 1, 1, 1, 8, True, ())
            if turn == 1:
                for c in range(10):
                    total_ = load(whole, c)
                    if not (total_ >= f32(9.094947017729282e-13) and total_ <= f32(1099511627776.0)):
                        largest = lanes_max(vload(most, c * 8, 8))
                        store(bases, c * 8, splat(largest, 8))
            else:
                fine = 1
                for c in range(10):
                    total_ = lanes_add(vload(totals, c * 8, 8))
                    store(whole, c, total_)
                    if not (total_ >= f32(9.094947017729282e-13) and total_ <= f32(1099511627776.0)):
                        fine = 0
                if fine == 1:
                    break
        for c in range(10):
            factor = f32(1) / load(whole, c)
            row = i * m_count + first + c
            for nb in range(2):
                yo = row * 16 + nb * 8
                v = vload(sums, (nb * 10 + c) * 8, 8) * splat(factor, 8)
                store(y, yo, v)
