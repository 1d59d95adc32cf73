// concat_0: concat
// from the graph
// x0 f32[2,3,8], x1 f32[2,5,8] -> y f32[2,8,8]
// 0 FLOP, 1.02 kB; generated loops
// launch: 64x2 by 64x2

__kernel void concat_b40b129b95(
    __global const float *restrict x0,    // f32[48]
    __global const float *restrict x1,    // f32[80]
    __global float *restrict y)    // f32[128]
{
    int i0 = get_global_id(1);
    int p0 = get_global_id(0);
    bool t0 = p0 < 24;
    y[p0 + i0 * 64] = t0 ? (t0 ? x0[p0 + i0 * 24] : 0.0f) : p0 >= 24 ? x1[p0 + i0 * 40 + -24] : 0.0f;
}
