# matmul_0: matmul + add
# from the graph
# x0 f32[64,96], x1 packed f32[1,5,96,8], x2 f32[40] -> y f32[64,40]
# 494 kFLOP, 50.3 kB; template gemm_cpu
# launch: batch 1, m_count 64, n_count 40, k_count 96, nbs 5, m_tiles 6, m_block 1, k_block 96, panels 5, a_image 6144, a_tile 1056, b_image 0, b_panel 768, row_steps 3

from math import inf, nan
from jitcl.devices.cpu.tiles import tile
from jitcl.devices.cpu.vector import *


def gemm_11x1_b354462d2c(args, tid, nthreads):
    a = ptr(args, 0, "f32")
    b = ptr(args, 1, "f32")
    x2 = ptr(args, 2, "f32")
    y = ptr(args, 3, "f32")
    batch = param(args, 4)
    m_count = param(args, 5)
    n_count = param(args, 6)
    k_count = param(args, 7)
    nbs = param(args, 8)
    m_tiles = param(args, 9)
    m_block = param(args, 10)
    k_block = param(args, 11)
    panels = param(args, 12)
    a_image = param(args, 13)
    a_tile = param(args, 14)
    b_image = param(args, 15)
    b_panel = param(args, 16)
    row_steps = param(args, 17)
    acc = scratch(88, "f32")
    task = share(batch * m_tiles * panels, tid, nthreads)
    stop = share(batch * m_tiles * panels, tid + 1, nthreads)
    while task < stop:
        i = div(task, m_tiles * panels)
        at = task - i * m_tiles * panels
        begin = div(at, m_block * panels) * m_block
        tiles = min_(m_block, m_tiles - begin)
        at -= begin * panels
        count = min_(stop - task, tiles * panels - at)
        for k in range(0, k_count, k_block):
            terms = min_(k_block, k_count - k)
            panel = div(at, tiles)
            mt = at - panel * tiles
            for _ in range(count):
                first = min_((begin + mt) * 11, m_count - 11)
                stream = i * b_image + panel * b_panel + k * 8
                pace = div(8 + tiles - 1, tiles)
                ahead = stream + b_panel + mt * pace * terms
                corner = (i * m_count + first) * n_count + panel * 8
                lines = (row_steps, 4 * n_count,
                         (place(y, corner), ), ())
                source = i * a_image + first * k_count + k
                counts = (1, 1, 1, terms, terms)
                strides = (0, 0, 0, k_count)
                tile(acc, offset(a, source), offset(b, stream), counts, strides, 1, 11, 1,
                     1, 96, 8, True, ((0, 4 * pace, (place(b, ahead), ), ()), lines,))
                if True:
                    for j in range(1):
                        nb = panel * 1 + j
                        if nb < nbs:
                            for c in range(11):
                                row = i * m_count + first + c
                                yo = row * n_count + nb * 8
                                v = vload(acc, (j * 11 + c) * 8, 8)
                                store(y, yo, v + vload(x2, nb * 8, 8))
                mt += 1
                if mt == tiles:
                    mt = 0
                    panel += 1
        task += count
