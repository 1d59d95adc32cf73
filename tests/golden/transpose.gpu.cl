// transpose_0: transpose
// from the graph
// x0 f32[2,24,40] -> y f32[2,40,24]
// 0 FLOP, 15.4 kB; generated loops
// launch: 24x40x2 by 8x8x2

__kernel void transpose_470f98e0f1(
    __global const float *restrict x0,    // f32[2,24,40]
    __global float *restrict y)    // f32[2,40,24]
{
    int i0 = get_global_id(2);
    int i1 = get_global_id(1);
    int i2 = get_global_id(0);
    y[i0 * 960 + i1 * 24 + i2] = x0[i0 * 960 + i2 * 40 + i1];
}
