# conv_0_arranged: arranges operands for conv_0: conv + add + relu
# from the graph
# x0 f32[1,32,28,28] -> blocked f32[1,4,30,30,8]
# 0 FLOP, 216 kB; template winograd_cpu

from math import inf, nan
from jitcl.devices.cpu.vector import *


def arranged_3f4898e90d(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[25088]
    y = ptr(args, 1, "f32")    # out f32[28800]
    for p in range(share(120, tid, nthreads), share(120, tid + 1, nthreads)):
        i0 = p // 30
        i1 = (p) % 30
        for i2 in range(30):
            for i3 in range(8):
                store(y, (((i0 * 7200) + (i1 * 240)) + (i2 * 8)) + i3, (load(x0, ((((i0 * 6272) + (i3 * 784)) + (i1 * 28)) + i2) + -29) if and_(and_(and_((i1 + -1) >= 0, (i1 + -1) < 28), (i2 + -1) >= 0), (i2 + -1) < 28) else f32(0.0)))

# conv_0_transformed_1: arranges operands for conv_0: conv + add + relu
# from the graph
# blocked f32[1,4,30,30,8] -> winograd f32[5,36,336]
# 0 FLOP, 357 kB; template winograd_cpu
# launch: tiles 49, tile_columns 7, total 49, blocks 5, oh 28, ow 28, cbs 4, position 336, a_image 28800, a_block 7200, a_first 0, a_row 240

from math import inf, nan
from jitcl.devices.cpu.vector import *


def transformed_cd8d8ddf09(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    data = ptr(args, 1, "f32")
    tiles = param(args, 2)
    tile_columns = param(args, 3)
    total = param(args, 4)
    blocks = param(args, 5)
    oh = param(args, 6)
    ow = param(args, 7)
    cbs = param(args, 8)
    position = param(args, 9)
    a_image = param(args, 10)
    a_block = param(args, 11)
    a_first = param(args, 12)
    a_row = param(args, 13)
    turned = scratch(288, "f32")
    for task in range(share(blocks * 10, tid, nthreads), share(blocks * 10, tid + 1, nthreads)):
        block = div(task, 10)
        t = task - block * 10
        number = min_(task, total - 1)
        n = div(number, tiles)
        at = number - n * tiles
        row = div(at, tile_columns)
        column = at - row * tile_columns
        top = min_(row * 4, oh - 4)
        left = min_(column * 4, ow - 4)
        for cb in range(cbs):
            source = n * a_image + cb * a_block + a_first + top * a_row + left * 8
            for c in range(6):
                d0 = vload(a, source + 0 * a_row + c * 8, 8)
                d1 = vload(a, source + 1 * a_row + c * 8, 8)
                d2 = vload(a, source + 2 * a_row + c * 8, 8)
                d3 = vload(a, source + 3 * a_row + c * 8, 8)
                d4 = vload(a, source + 4 * a_row + c * 8, 8)
                d5 = vload(a, source + 5 * a_row + c * 8, 8)
                even = fma(d2, f32(-2.8125), d4)
                o0 = fma(d0, f32(1.265625), even)
                even = fma(d2, f32(-2.25), d4)
                odd = fma(d1, f32(-2.25), d3)
                o1 = fma(odd, f32(0.75), even)
                o2 = fma(odd, f32(-0.75), even)
                even = fma(d2, f32(-0.5625), d4)
                odd = fma(d1, f32(-0.5625), d3)
                o3 = fma(odd, f32(1.5), even)
                o4 = fma(odd, f32(-1.5), even)
                even = fma(d3, f32(-2.8125), d5)
                o5 = fma(d1, f32(1.265625), even)
                store(turned, (0 + c) * 8, o0)
                store(turned, (6 + c) * 8, o1)
                store(turned, (12 + c) * 8, o2)
                store(turned, (18 + c) * 8, o3)
                store(turned, (24 + c) * 8, o4)
                store(turned, (30 + c) * 8, o5)
            target = block * 36 * position + (cb * 10 + t) * 8
            for r in range(6):
                d0 = vload(turned, (r * 6 + 0) * 8, 8)
                d1 = vload(turned, (r * 6 + 1) * 8, 8)
                d2 = vload(turned, (r * 6 + 2) * 8, 8)
                d3 = vload(turned, (r * 6 + 3) * 8, 8)
                d4 = vload(turned, (r * 6 + 4) * 8, 8)
                d5 = vload(turned, (r * 6 + 5) * 8, 8)
                even = fma(d2, f32(-2.8125), d4)
                o0 = fma(d0, f32(1.265625), even)
                even = fma(d2, f32(-2.25), d4)
                odd = fma(d1, f32(-2.25), d3)
                o1 = fma(odd, f32(0.75), even)
                o2 = fma(odd, f32(-0.75), even)
                even = fma(d2, f32(-0.5625), d4)
                odd = fma(d1, f32(-0.5625), d3)
                o3 = fma(odd, f32(1.5), even)
                o4 = fma(odd, f32(-1.5), even)
                even = fma(d3, f32(-2.8125), d5)
                o5 = fma(d1, f32(1.265625), even)
                store(data, target + (r * 6 + 0) * position, o0)
                store(data, target + (r * 6 + 1) * position, o1)
                store(data, target + (r * 6 + 2) * position, o2)
                store(data, target + (r * 6 + 3) * position, o3)
                store(data, target + (r * 6 + 4) * position, o4)
                store(data, target + (r * 6 + 5) * position, o5)

# conv_0: conv + add + relu
# from the graph
# winograd f32[5,36,336], x1 packed f32[5,36,32,1,8], x2 f32[40,1,1] -> y f32[1,40,28,28; NCHW8c]
# 18.1 MFLOP, 552 kB; template winograd_cpu
# launch: tiles 49, tile_columns 7, total 49, blocks 5, oh 28, ow 28, cbs 4, position 336, n_count 1, channels 40, kbs 5, kgs 5, last 8, wt_position 256, y_first 0, y_block 6272, y_width 28, y_height 28

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def winograd_4x4_10x1_41cfca60e7(args, tid, nthreads):
    data = ptr(args, 0, "f32")
    wt = ptr(args, 1, "f32")
    x2 = ptr(args, 2, "f32")
    y = ptr(args, 3, "f32")
    tiles = param(args, 4)
    tile_columns = param(args, 5)
    total = param(args, 6)
    blocks = param(args, 7)
    oh = param(args, 8)
    ow = param(args, 9)
    cbs = param(args, 10)
    position = param(args, 11)
    n_count = param(args, 12)
    channels = param(args, 13)
    kbs = param(args, 14)
    kgs = param(args, 15)
    last = param(args, 16)
    wt_position = param(args, 17)
    y_first = param(args, 18)
    y_block = param(args, 19)
    y_width = param(args, 20)
    y_height = param(args, 21)
    sums = scratch(3456, "f32")
    turned = scratch(288, "f32")
    acc = scratch(128, "f32")

    for task in range(share(kgs * blocks, tid, nthreads), share(kgs * blocks, tid + 1, nthreads)):
        kg = div(task, blocks)
        number = task - kg * blocks
        first = number * 10
        count = min_(10, total - first)
        source = number * 36 * position
        groups = div(count + 9, 10)
        for p in range(36):
            for s in range(groups):
                tile(offset(sums, p * 96 + s * 80), offset(data, source + p * position + s * 80),
                     offset(wt, (kg * 36 + p) * wt_position), (cbs, 1, 1, 8, last), (80, 0, 0, 0),
                     1, 10, 1, 1, 8, 8, True, ())
        for s in range(groups):
            for t in range(min_(10, count - s * 10)):
                number = first + s * 10 + t
                n = div(number, tiles)
                at = number - n * tiles
                row = div(at, tile_columns)
                column = at - row * tile_columns
                top = min_(row * 4, oh - 4)
                left = min_(column * 4, ow - 4)
                mine_h = row * 4 - top
                mine_w = column * 4 - left
                for j in range(1):
                    kb = kg * 1 + j
                    if True:
                        block = y_first + (n * kbs + kb) * y_block
                        sum_at = ((s * 1 + j) * 10 + t) * 8
                        for c in range(6):
                            d0 = vload(sums, sum_at + (0 + c) * 96, 8)
                            d1 = vload(sums, sum_at + (6 + c) * 96, 8)
                            d2 = vload(sums, sum_at + (12 + c) * 96, 8)
                            d3 = vload(sums, sum_at + (18 + c) * 96, 8)
                            d4 = vload(sums, sum_at + (24 + c) * 96, 8)
                            d5 = vload(sums, sum_at + (30 + c) * 96, 8)
                            sum_a = d1 + d2
                            dif_a = d1 - d2
                            sum_b = d3 + d4
                            dif_b = d3 - d4
                            o0 = sum_a + sum_b
                            o0 = d0 + o0
                            o1 = dif_a * f32(0.75)
                            o1 = fma(dif_b, f32(1.5), o1)
                            o2 = sum_a * f32(0.5625)
                            o2 = fma(sum_b, f32(2.25), o2)
                            o3 = fma(dif_a, f32(0.421875), d5)
                            o3 = fma(dif_b, f32(3.375), o3)
                            store(turned, (0 + c) * 8, o0)
                            store(turned, (6 + c) * 8, o1)
                            store(turned, (12 + c) * 8, o2)
                            store(turned, (18 + c) * 8, o3)
                        for r in range(4):
                            d0 = vload(turned, (r * 6 + 0) * 8, 8)
                            d1 = vload(turned, (r * 6 + 1) * 8, 8)
                            d2 = vload(turned, (r * 6 + 2) * 8, 8)
                            d3 = vload(turned, (r * 6 + 3) * 8, 8)
                            d4 = vload(turned, (r * 6 + 4) * 8, 8)
                            d5 = vload(turned, (r * 6 + 5) * 8, 8)
                            sum_a = d1 + d2
                            dif_a = d1 - d2
                            sum_b = d3 + d4
                            dif_b = d3 - d4
                            o0 = sum_a + sum_b
                            o0 = d0 + o0
                            o1 = dif_a * f32(0.75)
                            o1 = fma(dif_b, f32(1.5), o1)
                            o2 = sum_a * f32(0.5625)
                            o2 = fma(sum_b, f32(2.25), o2)
                            o3 = fma(dif_a, f32(0.421875), d5)
                            o3 = fma(dif_b, f32(3.375), o3)
                            store(acc, (r * 4 + 0) * 8, o0)
                            store(acc, (r * 4 + 1) * 8, o1)
                            store(acc, (r * 4 + 2) * 8, o2)
                            store(acc, (r * 4 + 3) * 8, o3)
                        for r in range(mine_h, 4):
                            h = top + r
                            for c in range(mine_w, 4):
                                w = left + c
                                yo = block + (h * y_width + w) * 8
                                v = vload(acc, (r * 4 + c) * 8, 8)
                                store(y, yo, max_(v + vload(x2, kb * 8, 8), f32(0.0)))

# reduce_mean_1: reduce_mean
# from the graph
# x0 f32[1,40,28,28; NCHW8c] -> y f32[1,40,1,1]
# 31.4 kFLOP, 126 kB; generated loops

from math import inf, nan
from jitcl.devices.cpu.vector import *


def reduce_mean_13df132508(args, tid, nthreads):
    x0 = ptr(args, 0, "f32")    # in f32[31360]
    y = ptr(args, 1, "f32")    # out f32[40]
    row2 = scratch(8, "f32")
    for o1 in range(share(5, tid, nthreads), share(5, tid + 1, nthreads)):
        store(row2, 0, splat(f32(0.0), 8))
        for p0 in range(784):
            store(row2, 0, vload(row2, 0, 8) + vload(x0, (p0 * 8) + (o1 * 6272), 8))
        store(y, o1 * 8, vload(row2, 0, 8) / f32(784.0))
