# matmul_0: matmul + add + relu
# from the graph
# x0 f32[300,384], x1 f32[384,512], x2 f32[512] -> y f32[300,512]
# 118 MFLOP, 1.86 MB; template strassen_cpu
# launch: params 300, 512, 384, 64, 30, 16, 12288, 5, 6

from math import inf, nan
from jitcl.devices.cpu.tiles import spread_tile
from jitcl.devices.cpu.vector import *


def strassen_5x2_3f444e5a94(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    b = ptr(args, 1, "f32")
    x2 = ptr(args, 2, "f32")
    y = ptr(args, 3, "f32")
    m_count = param(args, 4)
    n_count = param(args, 5)
    k_count = param(args, 6)
    nbs = param(args, 7)
    m_tiles = param(args, 8)
    panels = param(args, 9)
    b_panel = param(args, 10)
    row_steps = param(args, 11)
    sum_steps = param(args, 12)
    left = scratch(131040, "f32")
    rows_alike = scratch(14, "i32")
    sums = scratch(320, "f32")
    # Threads share rows where these come out even, since each makes first factors of what it has.
    parts = nthreads
    while fmod(nthreads, parts) > 0 or parts - 1 - fmod(m_tiles + parts - 1, parts) > m_tiles >> 4:
        parts -= 1
    sides = div(nthreads, parts)
    part = div(tid, sides)
    side = tid - part * sides
    stop = share(m_tiles, part + 1, parts)
    for block in range(share(m_tiles, part, parts), stop, 14):
        tiles = min_(14, stop - block)
        for k in range(0, k_count, 384):
            terms = min_(192, (k_count - k) >> 1)
            for mt in range(tiles):
                first = min_((block + mt) * 10, m_count - 10)
                alike = True
                for c in range(5):
                    upper = (first + c) * 384
                    to = (mt * 45 + c) * 208
                    high = splat(f32(0), 8)
                    low = splat(f32(0), 8)
                    for e in range(0, terms, 8):
                        near = upper + (k + e)
                        far = upper + (k + terms + e)
                        a0 = vload(a, near, 8)
                        a1 = vload(a, near + 1920, 8)
                        a2 = vload(a, far, 8)
                        a3 = vload(a, far + 1920, 8)
                        high = max_(high, max_(abs_(a0), abs_(a2)))
                        low = max_(low, max_(abs_(a1), abs_(a3)))
                        store(left, to + e, a3)
                        store(left, to + 1040 + e, a0 + a3)
                        store(left, to + 2080 + e, a2 - a3)
                        store(left, to + 3120 + e, a0 + a2)
                        store(left, to + 4160 + e, a0)
                        store(left, to + 5200 + e, a1 + a3)
                        store(left, to + 6240 + e, a0 - a1)
                    highest = lanes_max(high)
                    lowest = lanes_max(low)
                    alike = alike and highest <= f32(16) * lowest and lowest <= f32(16) * highest and highest <= f32(1e+37)
                store(rows_alike, mt, 1 if alike else 0)
                for c in range(0 if alike else 5):
                    upper = (first + c) * 384
                    to = (mt * 45 + c) * 208
                    for e in range(0, terms, 8):
                        store(left, to + 7280 + e, vload(a, upper + (k + terms + e), 8))
                        store(left, to + 8320 + e, vload(a, upper + 1920 + (k + e), 8))
            for panel in range(share(panels, side, sides), share(panels, side + 1, sides)):
                stream = panel * b_panel + k * 32
                pace = div(128 + 7 * tiles - 1, 7 * tiles)
                for mt in range(tiles):
                    first = min_((block + mt) * 10, m_count - 10)
                    seven = load(rows_alike, mt) != 0
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
                            fresh = 1 if turn == 0 else 0
                            fresh_too = (0x0001011 >> digit) & 15
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
                            fresh = 1 - (turn & 1)
                            fresh_too = 0
                        ahead = place(b, stream + b_panel) + (mt * 7 + turn) * pace * terms
                        panels_lines = (0, pace, (ahead, ahead + 128 * terms), ())
                        spread_tile(
                            offset(sums, to * 80), offset(sums, to_too * 80),
                            offset(left, (mt * 9 + factor) * 1040),
                            offset(b, stream + (minuend & 1) * terms * 32 + (minuend >> 1) * 16),
                            offset(b, stream + (subtrahend & 1) * terms * 32 + (subtrahend >> 1) * 16),
                            terms, 5, 2, 208, 32, 8, (differs, sign, sign_too, fresh, fresh_too),
                            (panels_lines,))
                        if quarter < 4:
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
                                        store(y, yo, max_(v + vload(x2, nb * 8, 8), f32(0.0)))
