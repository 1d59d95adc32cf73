# conv_0_arranged: arranges operands for conv_0: conv
# from the graph
# x0 f32[1,640,4,4] -> blocked f32[1,80,4,4,8]
# 0 FLOP, 81.9 kB; template conv_cpu

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_3d8ecf7f76(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[10240]
    y = ptr(args, 1, "f32")    # out f32[10240]
    for i0 in range(share(80, tid, nthreads), share(80, tid + 1, nthreads)):
        for p1 in range(16):
            for i3 in range(8):
                store(y, ((p1 * 8) + (i0 * 128)) + i3, load(x0, (p1 + (i0 * 128)) + (i3 * 16)))

# conv_0: conv
# from the graph
# blocked f32[1,80,4,4,8], x1 packed f32[80,5120] -> y f32[1,640,4,4; NCHW8c]
# 13.1 MFLOP, 1.72 MB; template conv_cpu
# launch: n_count 1, channels 640, kbs 80, kgs 80, oh 1, ow 16, row_tiles 1, column_tiles 2, a_image 10240, a_first 0, a_row 0, cbs 80, cbs_at_once 64, tap_rows 1, taps 1, terms 8, last_terms 8, a_block 128, a_tap_row 32, a_tap 8, wt_group 5120, y_first 0, y_block 128, y_width 4, y_height 4, kgs_per_group 80, a_group 10240, y_top 0, y_left 0

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def conv_1x8x1_aa17a67878(args, tid, nthreads):
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
    sums = scratch(2048, "f32")

    tasks = n_count * kgs * row_tiles * column_tiles
    task = share(tasks, tid, nthreads)
    stop = share(tasks, tid + 1, nthreads)
    while task < stop:
        tiles = row_tiles * column_tiles
        which = div(task, tiles)
        begin = task - which * tiles
        some = min_(min_(stop - task, tiles - begin), 32)
        n = div(which, kgs)
        kg = which - n * kgs
        image = n * a_image + a_first
        for x in range(0, cbs, cbs_at_once):
            blocks = min_(cbs_at_once, cbs - x)
            full = x + blocks < cbs
            rt = div(begin, column_tiles)
            ct = begin - rt * column_tiles
            for t in range(some):
                top = min_(rt * 1, oh - 1)
                left = min_(ct * 8, ow - 8)
                acc = offset(sums, t * 64)
                source = image + x * a_block + top * a_row + left * 8
                stream = kg * wt_group + x * tap_rows * taps * terms * 8
                steps = blocks * tap_rows * taps * terms
                pace = div(8 + some - 1, some)
                ahead = place(wt, stream + steps * (8 + t * pace))
                corner = y_first + (n * kbs + kg * 1) * y_block + (top * y_width + left) * 8
                lines = (0, 0 if full else div(256 + steps - 1, steps),
                         (),
                         (place(y, corner), ))
                tile(acc, offset(a, source), offset(wt, stream), (blocks, tap_rows, taps, terms, terms if full else last_terms),
                          (a_block, a_tap_row, a_tap, a_row), 1, 8, 1, 1, 8, 8, x == 0,
                          ((0, 4 * pace, (ahead,), ()), lines,))
                if not full:
                    for j in range(1):
                        kb = kg * 1 + j
                        if True:
                            block = y_first + (n * kbs + kb) * y_block
                            for r in range(1):
                                h = top + r
                                for c in range(8):
                                    w = left + c
                                    yo = block + (h * y_width + w) * 8
                                    v = vload(acc, ((j * 1 + r) * 8 + c) * 8, 8)
                                    store(y, yo, v)
                ct += 1
                if ct == column_tiles:
                    ct = 0
                    rt += 1
        task += some

# relu_1: relu
# from the graph
# x0 f32[1,640,4,4; NCHW8c] -> y f32[1,640,4,4; NCHW8c]
# 10.2 kFLOP, 81.9 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def relu_9956bb8ad7(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[10240]
    y = ptr(args, 1, "f32")    # out f32[10240]
    for o0 in range(share(64, tid, nthreads), share(64, tid + 1, nthreads)):
        for v0 in range(160):
            store(y, (o0 * 160) + v0, max_(load(x0, (o0 * 160) + v0), f32(0.0)))

# conv_2: conv + add + relu
# from the graph
# x0 f32[1,640,4,4; NCHW8c], x1 packed f32[80,5120], x2 f32[1,640,4,4; NCHW8c] -> y f32[1,640,4,4; NCHW8c]
# 13.1 MFLOP, 1.76 MB; template conv_cpu
# launch: n_count 1, channels 640, kbs 80, kgs 80, oh 1, ow 16, row_tiles 1, column_tiles 2, a_image 10240, a_first 0, a_row 0, cbs 80, cbs_at_once 64, tap_rows 1, taps 1, terms 8, last_terms 8, a_block 128, a_tap_row 32, a_tap 8, wt_group 5120, y_first 0, y_block 128, y_width 4, y_height 4, kgs_per_group 80, a_group 10240, y_top 0, y_left 0

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def conv_1x8x1_d2d6b578f2(args, tid, nthreads):
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
    sums = scratch(2048, "f32")

    tasks = n_count * kgs * row_tiles * column_tiles
    task = share(tasks, tid, nthreads)
    stop = share(tasks, tid + 1, nthreads)
    while task < stop:
        tiles = row_tiles * column_tiles
        which = div(task, tiles)
        begin = task - which * tiles
        some = min_(min_(stop - task, tiles - begin), 32)
        n = div(which, kgs)
        kg = which - n * kgs
        image = n * a_image + a_first
        for x in range(0, cbs, cbs_at_once):
            blocks = min_(cbs_at_once, cbs - x)
            full = x + blocks < cbs
            rt = div(begin, column_tiles)
            ct = begin - rt * column_tiles
            for t in range(some):
                top = min_(rt * 1, oh - 1)
                left = min_(ct * 8, ow - 8)
                acc = offset(sums, t * 64)
                source = image + x * a_block + top * a_row + left * 8
                stream = kg * wt_group + x * tap_rows * taps * terms * 8
                steps = blocks * tap_rows * taps * terms
                pace = div(8 + some - 1, some)
                ahead = place(wt, stream + steps * (8 + t * pace))
                corner = y_first + (n * kbs + kg * 1) * y_block + (top * y_width + left) * 8
                lines = (0, 0 if full else div(256 + steps - 1, steps),
                         (place(x2, corner), ),
                         (place(y, corner), ))
                tile(acc, offset(a, source), offset(wt, stream), (blocks, tap_rows, taps, terms, terms if full else last_terms),
                          (a_block, a_tap_row, a_tap, a_row), 1, 8, 1, 1, 8, 8, x == 0,
                          ((0, 4 * pace, (ahead,), ()), lines,))
                if not full:
                    for j in range(1):
                        kb = kg * 1 + j
                        if True:
                            block = y_first + (n * kbs + kb) * y_block
                            for r in range(1):
                                h = top + r
                                for c in range(8):
                                    w = left + c
                                    yo = block + (h * y_width + w) * 8
                                    v = vload(acc, ((j * 1 + r) * 8 + c) * 8, 8)
                                    store(y, yo, max_(v + vload(x2, yo, 8), f32(0.0)))
                ct += 1
                if ct == column_tiles:
                    ct = 0
                    rt += 1
        task += some

# reduce_mean_3: reduce_mean
# from the graph
# x0 f32[1,640,4,4; NCHW8c] -> y f32[1,640,1,1]
# 10.9 kFLOP, 43.5 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def reduce_mean_da88d0aa3c(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[10240]
    y = ptr(args, 1, "f32")    # out f32[640]
    row2 = scratch(8, "f32")
    for o1 in range(share(80, tid, nthreads), share(80, tid + 1, nthreads)):
        store(row2, 0, splat(f32(0.0), 8))
        for p0 in range(16):
            store(row2, 0, vload(row2, 0, 8) + vload(x0, (p0 * 8) + (o1 * 128), 8))
        store(y, o1 * 8, vload(row2, 0, 8) / f32(16.0))
