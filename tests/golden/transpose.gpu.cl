// transpose_0: transpose
// from the graph
// x0 f32[2,24,40] -> y f32[2,40,24]
// 0 FLOP, 15.4 kB; generated loops
// launch: 24x40x2 by 8x8x2; size0 2, size1 40, size2 24, size3 960, size4 24, size5 1, size6 960, size7 1, size8 40

__kernel void transpose_0f851fbc63(
    __global const float *restrict x0,    // f32
    __global float *restrict y,    // f32
    const int size0,
    const int size1,
    const int size2,
    const int size3,
    const int size4,
    const int size5,
    const int size6,
    const int size7,
    const int size8)
{
    int i0 = get_global_id(2);
    int i1 = get_global_id(1);
    int i2 = get_global_id(0);
    if (i0 >= size0 || i1 >= size1 || i2 >= size2) return;
    y[i0 * size3 + i1 * size4 + i2 * size5] = x0[i0 * size6 + i1 * size7 + i2 * size8];
}
