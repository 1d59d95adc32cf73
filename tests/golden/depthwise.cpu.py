# conv_0_arranged: arranges operands for conv_0: conv
# from the graph
# x0 f32[1,16,14,14] -> blocked f32[1,2,16,16,8]
# 0 FLOP, 28.9 kB; template depthwise_cpu

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

# conv_0: conv
# from the graph
# blocked f32[1,2,16,16,8], x1 packed f32[2,9,8] -> y f32[1,16,14,14]
# 56.4 kFLOP, 29.5 kB; template depthwise_cpu
# launch: n_count 1, channels 16, kbs 2, oh 14, ow 14, column_tiles 1, a_block 2048, a_first 0, a_row 128, taps 3, tap_row 128, y_first 0, y_block 1568, y_width 14, y_height 14

from math import inf, nan
from jitcl.devices.cpu.tiles import lane_tile
from jitcl.devices.cpu.vector import *


def depthwise_14_caed6bf6ac(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    wt = ptr(args, 1, "f32")
    y = ptr(args, 2, "f32")
    n_count = param(args, 3)
    channels = param(args, 4)
    kbs = param(args, 5)
    oh = param(args, 6)
    ow = param(args, 7)
    column_tiles = param(args, 8)
    a_block = param(args, 9)
    a_first = param(args, 10)
    a_row = param(args, 11)
    taps = param(args, 12)
    tap_row = param(args, 13)
    y_first = param(args, 14)
    y_block = param(args, 15)
    y_width = param(args, 16)
    y_height = param(args, 17)
    acc = scratch(176, "f32")
    turned = scratch(64, "f32")

    top = share(oh, tid, nthreads)
    bottom = share(oh, tid + 1, nthreads)
    image = 0
    h = top
    for task in range(n_count * kbs * (bottom - top)):
        n = div(image, kbs)
        kb = image - n * kbs
        source = image * a_block + a_first + h * a_row
        for tile in range(column_tiles):
            left = min_(tile * 14, ow - 14)
            lane_tile(acc, offset(a, source + left * 8),
                      offset(wt, kb * taps * 24), taps, tap_row, 14, 3, 1, 1, 8)
            row = y_first + image * y_block + (h * y_width + left) * 8
            for c in range(0, 14, 8):
                transpose(turned, offset(acc, c * 8), 8)
                count = min_(14 - c, 8)
                w = left + c
                for lane in range(min_(channels - kb * 8, 8)):
                    ch = kb * 8 + lane
                    yo = ((n * channels + ch) * y_height + h) * y_width + w
                    v = vload(turned, lane * 8, 8)
                    vstore_part(y, yo, v, count)
        h += 1
        if h == bottom:
            h = top
            image += 1
