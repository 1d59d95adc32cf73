// transpose_0: transpose
// from the graph
// x0 f32[2,24,40] -> y f32[2,40,24]
// 0 FLOP, 15.4 kB; generated loops
// launch: 1920 by 128

__kernel void transpose_a9e99d9ae1(
    __global const float *restrict x0,    // f32[2,24,40]
    __global float *restrict y)    // f32[2,40,24]
{
    int p = get_global_id(0);
    if (p >= 1920) return;
    int i0 = p / 960;
    int i1 = p / 24 % 40;
    int i2 = p % 24;
    y[i0 * 960 + i1 * 24 + i2] = x0[i0 * 960 + i2 * 40 + i1];
}
