# conv_0_arranged: arranges operands for conv_0: conv
# from the graph
# x0 f32[1,16,28,28] -> blocked f32[1,2,28,28,8]
# 0 FLOP, 100 kB; template conv_cpu

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_a2b9dd76bd(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[12544]
    y = ptr(args, 1, "f32")    # out f32[12544]
    for i0 in range(2):
        for p1 in range(share(784, tid, nthreads), share(784, tid + 1, nthreads)):
            for i3 in range(8):
                store(y, ((p1 * 8) + (i0 * 6272)) + i3, load(x0, (p1 + (i0 * 6272)) + (i3 * 784)))

# conv_0: conv
# from the graph
# blocked f32[1,2,28,28,8], x1 packed f32[1,256] -> y f32[1,16,28,28; NCHW8c]
# 401 kFLOP, 101 kB; template conv_cpu
# launch: n_count 1, channels 16, kbs 2, kgs 1, oh 1, ow 784, row_tiles 1, column_tiles 157, a_image 12544, a_first 0, a_row 0, cbs 2, cbs_at_once 32, tap_rows 1, taps 1, terms 8, last_terms 8, a_block 6272, a_tap_row 224, a_tap 8, wt_group 256, y_first 0, y_block 6272, y_width 28, y_height 28, kgs_per_group 1, a_group 12544, y_top 0, y_left 0

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def conv_1x5x2_699c2f8e4e(args, tid, nthreads):
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
                        store(y, yo, v)
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

# relu_1: relu
# from the graph
# x0 f32[1,16,28,28; NCHW8c] -> y f32[1,16,28,28; NCHW8c]
# 12.5 kFLOP, 100 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def relu_0649baff1f(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[12544]
    y = ptr(args, 1, "f32")    # out f32[12544]
    for o0 in range(share(64, tid, nthreads), share(64, tid + 1, nthreads)):
        for v0 in range(196):
            store(y, (o0 * 196) + v0, max_(load(x0, (o0 * 196) + v0), f32(0.0)))

# conv_2: conv + add + relu
# from the graph
# x0 f32[1,16,28,28; NCHW8c], x1 packed f32[1,256], x2 f32[1,16,28,28; NCHW8c] -> y f32[1,16,28,28; NCHW8c]
# 426 kFLOP, 152 kB; template conv_cpu
# launch: n_count 1, channels 16, kbs 2, kgs 1, oh 1, ow 784, row_tiles 1, column_tiles 157, a_image 12544, a_first 0, a_row 0, cbs 2, cbs_at_once 32, tap_rows 1, taps 1, terms 8, last_terms 8, a_block 6272, a_tap_row 224, a_tap 8, wt_group 256, y_first 0, y_block 6272, y_width 28, y_height 28, kgs_per_group 1, a_group 12544, y_top 0, y_left 0

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def conv_1x5x2_d6cfd60c93(args, tid, nthreads):
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
                 (place(x2, corner), place(x2, corner + y_block), ),
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
                        store(y, yo, max_(v + vload(x2, yo, 8), f32(0.0)))
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

# reduce_mean_3: reduce_mean
# from the graph
# x0 f32[1,16,28,28; NCHW8c] -> y f32[1,16,1,1]
# 12.6 kFLOP, 50.2 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def reduce_mean_9b52596ad5(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[12544]
    y = ptr(args, 1, "f32")    # out f32[16]
    row2 = scratch(8, "f32")
    for o1 in range(share(2, tid, nthreads), share(2, tid + 1, nthreads)):
        store(row2, 0, splat(f32(0.0), 8))
        for p0 in range(784):
            store(row2, 0, vload(row2, 0, 8) + vload(x0, (p0 * 8) + (o1 * 6272), 8))
        store(y, o1 * 8, vload(row2, 0, 8) / f32(784.0))
