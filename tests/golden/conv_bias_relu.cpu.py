# conv_0_arranged: arranges operands for conv_0: conv + add + relu
# from the graph
# x0 f32[1,16,14,14] -> blocked f32[1,2,16,16,8]
# 0 FLOP, 28.9 kB; template conv_cpu

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_5fe3d391d1(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[3136]
    y = ptr(args, 1, "f32")    # out f32[4096]
    for p in range(share(32, tid, nthreads), share(32, tid + 1, nthreads)):
        i0 = p // 16
        i1 = (p) % 16
        for i2 in range(16):
            for i3 in range(8):
                store(y, (((i0 * 2048) + (i1 * 128)) + (i2 * 8)) + i3, (load(x0, ((((i0 * 1568) + (i3 * 196)) + (i1 * 14)) + i2) + -15) if and_(and_(and_((i1 + -1) >= 0, (i1 + -1) < 14), (i2 + -1) >= 0), (i2 + -1) < 14) else f32(0.0)))

# conv_0: conv + add + relu
# from the graph
# blocked f32[1,2,16,16,8], x1 packed f32[2,2304], x2 f32[32,1,1] -> y f32[1,32,14,14]
# 1.82 MFLOP, 60 kB; template conv_cpu
# launch: n_count 1, channels 32, kbs 4, kgs 2, oh 14, ow 14, row_tiles 14, column_tiles 3, a_image 4096, a_first 0, a_row 128, cbs 2, cbs_at_once 4, tap_rows 3, taps 1, terms 24, last_terms 24, a_block 2048, a_tap_row 128, a_tap 8, wt_group 2304, y_first 0, y_block 1568, y_width 14, y_height 14, kgs_per_group 2, a_group 4096, y_top 0, y_left 0

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def conv_1x5x2_b4a5154180(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    wt = ptr(args, 1, "f32")
    x2 = ptr(args, 2, "f32")
    y = ptr(args, 3, "f32")
    n_count = param(args, 4)
    channels = param(args, 5)
    kbs = param(args, 6)
    kgs = param(args, 7)
    oh = param(args, 8)
    ow = param(args, 9)
    row_tiles = param(args, 10)
    column_tiles = param(args, 11)
    a_image = param(args, 12)
    a_first = param(args, 13)
    a_row = param(args, 14)
    cbs = param(args, 15)
    cbs_at_once = param(args, 16)
    tap_rows = param(args, 17)
    taps = param(args, 18)
    terms = param(args, 19)
    last_terms = param(args, 20)
    a_block = param(args, 21)
    a_tap_row = param(args, 22)
    a_tap = param(args, 23)
    wt_group = param(args, 24)
    y_first = param(args, 25)
    y_block = param(args, 26)
    y_width = param(args, 27)
    y_height = param(args, 28)
    kgs_per_group = param(args, 29)
    a_group = param(args, 30)
    y_top = param(args, 31)
    y_left = param(args, 32)
    acc = scratch(144, "f32")
    turned = scratch(64, "f32")

    tasks = n_count * kgs * row_tiles * column_tiles
    first = share(tasks, tid, nthreads)
    rest = first
    kg = fmod(rest, kgs)
    rest = div(rest, kgs)
    ct = fmod(rest, column_tiles)
    rest = div(rest, column_tiles)
    rt = fmod(rest, row_tiles)
    rest = div(rest, row_tiles)
    n = fmod(rest, n_count)
    rest = div(rest, n_count)
    for task in range(first, share(tasks, tid + 1, nthreads)):
        top = min_(rt * 1, oh - 1)
        left = min_(ct * 5, ow - 5)
        source = n * a_image + a_first + top * a_row + left * 8
        tile(acc, offset(a, source), offset(wt, kg * wt_group), (cbs, tap_rows, taps, terms, last_terms), (a_block, a_tap_row, a_tap, a_row),
             1, 5, 2, 1, 8, 8, True, ())
        for j in range(2):
            kb = kg * 2 + j
            if True:
                block = y_first + (n * kbs + kb) * y_block
                for r in range(1):
                    h = top + r
                    for c in range(0, 5, 8):
                        transpose(turned, offset(acc, ((j * 1 + r) * 5 + c) * 8), 8)
                        count = min_(5 - c, 8)
                        w = left + c
                        for lane in range(min_(channels - kb * 8, 8)):
                            ch = kb * 8 + lane
                            yo = ((n * channels + ch) * y_height + h) * y_width + w
                            v = vload(turned, lane * 8, 8)
                            vstore_part(y, yo, max_(v + load(x2, ch), f32(0.0)), count)
        kg += 1
        if kg == kgs:
            kg = 0
            ct += 1
            if ct == column_tiles:
                ct = 0
                rt += 1
                if rt == row_tiles:
                    rt = 0
                    n += 1
