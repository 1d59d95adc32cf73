# matmul_0_arranged: arranges operands for matmul_0: matmul
# from the graph
# x0 f32[256,2048], x1 f32[2048,512] -> y f32[256,512]
# 0 FLOP, 8.39 MB; template strassen_cpu
# launch: params 512, 2048, 16

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_455fa306fe(args, tid, nthreads):
    b = ptr(args, 0, "f32")
    arranged = ptr(args, 1, "f32")
    alike = ptr(args, 2, "i32")
    n_count = param(args, 3)
    k_count = param(args, 4)
    panels = param(args, 5)
    for panel in range(share(panels, tid, nthreads), share(panels, tid + 1, nthreads)):
        first = panel * 32
        to = first * k_count
        most0 = splat(f32(0), 8)
        most1 = splat(f32(0), 8)
        most2 = splat(f32(0), 8)
        most3 = splat(f32(0), 8)
        if first + 32 <= n_count:
            for k in range(k_count):
                v = vload(b, k * n_count + first + 0, 8)
                store(arranged, to + k * 32 + 0, v)
                most0 = max_(most0, abs_(v))
                v = vload(b, k * n_count + first + 8, 8)
                store(arranged, to + k * 32 + 8, v)
                most1 = max_(most1, abs_(v))
                v = vload(b, k * n_count + first + 16, 8)
                store(arranged, to + k * 32 + 16, v)
                most2 = max_(most2, abs_(v))
                v = vload(b, k * n_count + first + 24, 8)
                store(arranged, to + k * 32 + 24, v)
                most3 = max_(most3, abs_(v))
        else:
            for k in range(k_count):
                v = vload_part(b, k * n_count + first + 0, min_(max_(n_count - first - 0, 0), 8), 8)
                store(arranged, to + k * 32 + 0, v)
                most0 = max_(most0, abs_(v))
                v = vload_part(b, k * n_count + first + 8, min_(max_(n_count - first - 8, 0), 8), 8)
                store(arranged, to + k * 32 + 8, v)
                most1 = max_(most1, abs_(v))
                v = vload_part(b, k * n_count + first + 16, min_(max_(n_count - first - 16, 0), 8), 8)
                store(arranged, to + k * 32 + 16, v)
                most2 = max_(most2, abs_(v))
                v = vload_part(b, k * n_count + first + 24, min_(max_(n_count - first - 24, 0), 8), 8)
                store(arranged, to + k * 32 + 24, v)
                most3 = max_(most3, abs_(v))
        wrong = splat(f32(0), 8)
        largest = splat(f32(0), 8)
        wrong = max_(wrong, max_(most0 - f32(16) * most2, most2 - f32(16) * most0))
        largest = max_(largest, max_(most0, most2))
        wrong = max_(wrong, max_(most1 - f32(16) * most3, most3 - f32(16) * most1))
        largest = max_(largest, max_(most1, most3))
        store(alike, panel, 1 if lanes_max(wrong) <= 0 and lanes_max(largest) <= f32(1e+37) else 0)

# matmul_0: matmul
# from the graph
# x0 f32[256,2048], x1 f32[2048,512] -> y f32[256,512]
# 537 MFLOP, 7.35 MB; template strassen_cpu
# launch: params 256, 512, 2048, 64, 26, 16, 65536, 6, 7

from math import inf, nan
from jitcl.devices.cpu.tiles import spread_tile
from jitcl.devices.cpu.vector import *


def strassen_5x2_c37a8dfe18(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    b = ptr(args, 1, "f32")
    columns_alike = ptr(args, 2, "i32")
    waiting = ptr(args, 3, "f32")
    y = ptr(args, 4, "f32")
    m_count = param(args, 5)
    n_count = param(args, 6)
    k_count = param(args, 7)
    nbs = param(args, 8)
    m_tiles = param(args, 9)
    panels = param(args, 10)
    b_panel = param(args, 11)
    row_steps = param(args, 12)
    sum_steps = param(args, 13)
    left = scratch(118800, "f32")
    rows_alike = scratch(5, "i32")
    # Threads share rows where these come out even, since each makes first factors of what it has.
    parts = nthreads
    while fmod(nthreads, parts) > 0 or parts - 1 - fmod(m_tiles + parts - 1, parts) > m_tiles >> 4:
        parts -= 1
    sides = div(nthreads, parts)
    part = div(tid, sides)
    side = tid - part * sides
    stop = share(m_tiles, part + 1, parts)
    all_alike = True
    for panel in range(panels):
        all_alike = all_alike and load(columns_alike, panel) != 0
    for block in range(share(m_tiles, part, parts), stop, 5):
        tiles = min_(5, stop - block)
        for k in range(0, k_count, 1024):
            terms = min_(512, (k_count - k) >> 1)
            for mt in range(tiles):
                first = min_((block + mt) * 10, m_count - 10)
                alike = True
                for c in range(5):
                    upper = (first + c) * 2048
                    to = (mt * 45 + c) * 528
                    high = splat(f32(0), 8)
                    low = splat(f32(0), 8)
                    for e in range(0, terms, 8):
                        near = upper + (k + e)
                        far = upper + (k + terms + e)
                        a0 = vload(a, near, 8)
                        a1 = vload(a, near + 10240, 8)
                        a2 = vload(a, far, 8)
                        a3 = vload(a, far + 10240, 8)
                        high = max_(high, max_(abs_(a0), abs_(a2)))
                        low = max_(low, max_(abs_(a1), abs_(a3)))
                        store(left, to + e, a3)
                        store(left, to + 2640 + e, a0 + a3)
                        store(left, to + 5280 + e, a2 - a3)
                        store(left, to + 7920 + e, a0 + a2)
                        store(left, to + 10560 + e, a0)
                        store(left, to + 13200 + e, a1 + a3)
                        store(left, to + 15840 + e, a0 - a1)
                    highest = lanes_max(high)
                    lowest = lanes_max(low)
                    alike = alike and highest <= f32(16) * lowest and lowest <= f32(16) * highest and highest <= f32(1e+37)
                store(rows_alike, mt, 1 if alike else 0)
                for c in range(0 if alike and all_alike else 5):
                    upper = (first + c) * 2048
                    to = (mt * 45 + c) * 528
                    for e in range(0, terms, 8):
                        store(left, to + 18480 + e, vload(a, upper + (k + terms + e), 8))
                        store(left, to + 21120 + e, vload(a, upper + 10240 + (k + e), 8))
            for panel in range(share(panels, side, sides), share(panels, side + 1, sides)):
                stream = panel * b_panel + k * 32
                pace = div(128 + 7 * tiles - 1, 7 * tiles)
                for mt in range(tiles):
                    first = min_((block + mt) * 10, m_count - 10)
                    number = panel * m_tiles + block + mt
                    sums = offset(waiting, number * 320)
                    seven = load(rows_alike, mt) != 0 and load(columns_alike, panel) != 0
                    for turn in range(7 if seven else 8):
                        # Tables have a hexadecimal digit for each turn, the first one rightmost.
                        # quarter: of y, which this turn completes; 4: none.
                        digit = 4 * turn
                        if seven:
                            factor = turn
                            minuend = (0x0033131 >> digit) & 15
                            subtrahend = (0x2020300 >> digit) & 15
                            differs = 1 if turn != 3 and turn != 5 else 0
                            to = (0x3120000 >> digit) & 15
                            to_too = (0x3332031 >> digit) & 15
                            sign = ((0x2202202 >> digit) & 15) - 1
                            sign_too = ((0x1202122 >> digit) & 15) - 1
                            quarter = (0x3120444 >> digit) & 15
                            fresh = 1 if turn == 0 and k == 0 else 0
                            fresh_too = (0x0001011 >> digit) & 15 if k == 0 else 0
                        else:
                            factor = (0x08087474 >> digit) & 15
                            minuend = (0x32103210 >> digit) & 15
                            subtrahend = 0
                            differs = 0
                            to = (0x33112200 >> digit) & 15
                            to_too = to
                            sign = 1
                            sign_too = 0
                            quarter = (0x34142404 >> digit) & 15
                            fresh = 1 - (turn & 1) if k == 0 else 0
                            fresh_too = 0
                        ahead = place(b, stream + b_panel) + (mt * 7 + turn) * pace * terms
                        panels_lines = (0, pace, (ahead, ahead + 128 * terms), ())
                        sums_lines = (sum_steps, 64, (place(sums, 320 + turn * 48), ), ())
                        spread_tile(
                            offset(sums, to * 80), offset(sums, to_too * 80),
                            offset(left, (mt * 9 + factor) * 2640),
                            offset(b, stream + (minuend & 1) * terms * 32 + (minuend >> 1) * 16),
                            offset(b, stream + (subtrahend & 1) * terms * 32 + (subtrahend >> 1) * 16),
                            terms, 5, 2, 528, 32, 8, (differs, sign, sign_too, fresh, fresh_too),
                            (panels_lines, sums_lines,))
                        if quarter < 4 and k + 2 * terms == k_count:
                            others = (block + mt) * 10 - first
                            begin = (quarter & 1) * 5
                            for j in range(2):
                                nb = (2 * panel + (quarter >> 1)) * 2 + j
                                if nb < nbs:
                                    for c in range(max_(0, others - begin), 5):
                                        row = first + begin + c
                                        at = ((quarter * 2 + j) * 5 + c) * 8
                                        yo = row * n_count + nb * 8
                                        v = vload(sums, at, 8)
                                        store(y, yo, v)
