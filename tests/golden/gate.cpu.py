# conv_0_arranged: arranges operands for conv_0: conv + relu
# from the graph
# x0 f32[1,32,14,14] -> blocked f32[1,4,14,14,8]
# 0 FLOP, 50.2 kB; template conv_cpu

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_07a38c811f(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[6272]
    y = ptr(args, 1, "f32")    # out f32[6272]
    for i0 in range(4):
        for p1 in range(share(196, tid, nthreads), share(196, tid + 1, nthreads)):
            for i3 in range(8):
                store(y, ((p1 * 8) + (i0 * 1568)) + i3, load(x0, (p1 + (i0 * 1568)) + (i3 * 196)))

# conv_0: conv + relu
# from the graph
# blocked f32[1,4,14,14,8], x1 packed f32[2,512] -> y f32[1,32,14,14; NCHW8c]
# 408 kFLOP, 54.3 kB; template conv_cpu
# launch: n_count 1, channels 32, kbs 4, kgs 2, oh 1, ow 196, row_tiles 1, column_tiles 40, a_image 6272, a_first 0, a_row 0, cbs 4, cbs_at_once 32, tap_rows 1, taps 1, terms 8, last_terms 8, a_block 1568, a_tap_row 112, a_tap 8, wt_group 512, y_first 0, y_block 1568, y_width 14, y_height 14, kgs_per_group 2, a_group 6272, y_top 0, y_left 0

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def conv_1x5x2_5a8ae01a90(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    wt = ptr(args, 1, "f32")
    y = ptr(args, 2, "f32")
    n_count = param(args, 3)
    channels = param(args, 4)
    kbs = param(args, 5)
    kgs = param(args, 6)
    oh = param(args, 7)
    ow = param(args, 8)
    row_tiles = param(args, 9)
    column_tiles = param(args, 10)
    a_image = param(args, 11)
    a_first = param(args, 12)
    a_row = param(args, 13)
    cbs = param(args, 14)
    cbs_at_once = param(args, 15)
    tap_rows = param(args, 16)
    taps = param(args, 17)
    terms = param(args, 18)
    last_terms = param(args, 19)
    a_block = param(args, 20)
    a_tap_row = param(args, 21)
    a_tap = param(args, 22)
    wt_group = param(args, 23)
    y_first = param(args, 24)
    y_block = param(args, 25)
    y_width = param(args, 26)
    y_height = param(args, 27)
    kgs_per_group = param(args, 28)
    a_group = param(args, 29)
    y_top = param(args, 30)
    y_left = param(args, 31)
    acc = scratch(80, "f32")

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
        steps = cbs * tap_rows * taps * terms
        corner = y_first + (n * kbs + kg * 2) * y_block + (top * y_width + left) * 8
        lines = (0, div(160 + steps - 1, steps),
                 (),
                 (place(y, corner), place(y, corner + y_block), ))
        tile(acc, offset(a, source), offset(wt, kg * wt_group), (cbs, tap_rows, taps, terms, last_terms), (a_block, a_tap_row, a_tap, a_row),
             1, 5, 2, 1, 8, 8, True, (lines,))
        for j in range(2):
            kb = kg * 2 + j
            if True:
                block = y_first + (n * kbs + kb) * y_block
                for r in range(1):
                    h = top + r
                    for c in range(5):
                        w = left + c
                        yo = block + (h * y_width + w) * 8
                        v = vload(acc, ((j * 1 + r) * 5 + c) * 8, 8)
                        store(y, yo, max_(v, f32(0.0)))
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

# reduce_mean_1: reduce_mean
# from the graph
# x0 f32[1,32,14,14; NCHW8c] -> y f32[1,32,1,1; NCHW8c]
# 6.3 kFLOP, 25.2 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def reduce_mean_5355aefde7(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[1,4,14,14,8]
    y = ptr(args, 1, "f32")    # out f32[1,4,1,1,8]
    for i0 in range(share(4, tid, nthreads), share(4, tid + 1, nthreads)):
        acc0 = splat(f32(0.0), 8)
        for r0 in range(14):
            for r1 in range(14):
                acc0 = sum_add(acc0, vload(x0, ((i0 * 1568) + (r0 * 112)) + (r1 * 8), 8))
        store(y, i0 * 8, acc0 / f32(196.0))

# conv_2: conv + sigmoid
# from the graph
# x0 f32[1,32,1,1; NCHW8c], x1 packed f32[4,256] -> y f32[1,32,1,1; NCHW8c]
# 2.4 kFLOP, 4.35 kB; template conv_cpu
# launch: n_count 1, channels 32, kbs 4, kgs 4, oh 1, ow 1, row_tiles 1, column_tiles 1, a_image 32, a_first 0, a_row 8, cbs 4, cbs_at_once 64, tap_rows 1, taps 1, terms 8, last_terms 8, a_block 8, a_tap_row 8, a_tap 8, wt_group 256, y_first 0, y_block 8, y_width 1, y_height 1, kgs_per_group 4, a_group 32, y_top 0, y_left 0

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def conv_1x1x1_eaad3033c3(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    wt = ptr(args, 1, "f32")
    y = ptr(args, 2, "f32")
    n_count = param(args, 3)
    channels = param(args, 4)
    kbs = param(args, 5)
    kgs = param(args, 6)
    oh = param(args, 7)
    ow = param(args, 8)
    row_tiles = param(args, 9)
    column_tiles = param(args, 10)
    a_image = param(args, 11)
    a_first = param(args, 12)
    a_row = param(args, 13)
    cbs = param(args, 14)
    cbs_at_once = param(args, 15)
    tap_rows = param(args, 16)
    taps = param(args, 17)
    terms = param(args, 18)
    last_terms = param(args, 19)
    a_block = param(args, 20)
    a_tap_row = param(args, 21)
    a_tap = param(args, 22)
    wt_group = param(args, 23)
    y_first = param(args, 24)
    y_block = param(args, 25)
    y_width = param(args, 26)
    y_height = param(args, 27)
    kgs_per_group = param(args, 28)
    a_group = param(args, 29)
    y_top = param(args, 30)
    y_left = param(args, 31)
    acc = scratch(8, "f32")

    tasks = n_count * kgs * row_tiles * column_tiles
    first = share(tasks, tid, nthreads)
    rest = first
    ct = fmod(rest, column_tiles)
    rest = div(rest, column_tiles)
    rt = fmod(rest, row_tiles)
    rest = div(rest, row_tiles)
    kg = fmod(rest, kgs)
    rest = div(rest, kgs)
    n = fmod(rest, n_count)
    rest = div(rest, n_count)
    for task in range(first, share(tasks, tid + 1, nthreads)):
        top = min_(rt * 1, oh - 1)
        left = min_(ct * 1, ow - 1)
        source = n * a_image + a_first + top * a_row + left * 8
        steps = cbs * tap_rows * taps * terms
        corner = y_first + (n * kbs + kg * 1) * y_block + (top * y_width + left) * 8
        lines = (0, div(32 + steps - 1, steps),
                 (),
                 (place(y, corner), ))
        tile(acc, offset(a, source), offset(wt, kg * wt_group), (cbs, tap_rows, taps, terms, last_terms), (a_block, a_tap_row, a_tap, a_row),
             1, 1, 1, 1, 8, 8, True, (lines,))
        for j in range(1):
            kb = kg * 1 + j
            if True:
                block = y_first + (n * kbs + kb) * y_block
                for r in range(1):
                    h = top + r
                    for c in range(1):
                        w = left + c
                        yo = block + (h * y_width + w) * 8
                        v = vload(acc, ((j * 1 + r) * 1 + c) * 8, 8)
                        store(y, yo, f32(1.0) / (exp(neg(v)) + f32(1.0)))
        ct += 1
        if ct == column_tiles:
            ct = 0
            rt += 1
            if rt == row_tiles:
                rt = 0
                kg += 1
                if kg == kgs:
                    kg = 0
                    n += 1

# conv_3: mul + conv + relu
# from the graph
# x0 f32[1,32,14,14; NCHW8c], x2 packed f32[3,256], x1 f32[1,32,1,1; NCHW8c] -> y f32[1,24,14,14]
# 312 kFLOP, 47.1 kB; template conv_cpu
# launch: n_count 1, channels 24, kbs 3, kgs 3, oh 1, ow 196, row_tiles 1, column_tiles 18, a_image 6272, a_first 0, a_row 0, cbs 4, cbs_at_once 64, tap_rows 1, taps 1, terms 8, last_terms 8, a_block 1568, a_tap_row 112, a_tap 8, wt_group 256, y_first 0, y_block 1568, y_width 14, y_height 14, kgs_per_group 3, a_group 6272, y_top 0, y_left 0, gate_image 32

from math import inf, nan
from jitcl.devices.cpu.tiles import gated_tile
from jitcl.devices.cpu.vector import *


def conv_gated_1x11x1_5ab989b1e1(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    wt = ptr(args, 1, "f32")
    x1 = ptr(args, 2, "f32")
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
    gate_image = param(args, 33)
    acc = scratch(152, "f32")
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
        left = min_(ct * 11, ow - 11)
        source = n * a_image + a_first + top * a_row + left * 8
        gated_tile(acc, offset(a, source), offset(wt, kg * wt_group), (cbs, tap_rows, taps, terms, last_terms), (a_block, a_tap_row, a_tap, a_row),
             1, 11, 1, 1, 8, 8, True, (), offset(x1, n * gate_image))
        for j in range(1):
            kb = kg * 1 + j
            if True:
                block = y_first + (n * kbs + kb) * y_block
                for r in range(1):
                    h = top + r
                    for c in range(0, 11, 8):
                        transpose(turned, offset(acc, ((j * 1 + r) * 11 + c) * 8), 8)
                        count = min_(11 - c, 8)
                        w = left + c
                        for lane in range(min_(channels - kb * 8, 8)):
                            ch = kb * 8 + lane
                            yo = ((n * channels + ch) * y_height + h) * y_width + w
                            v = vload(turned, lane * 8, 8)
                            vstore_part(y, yo, max_(v, f32(0.0)), count)
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
