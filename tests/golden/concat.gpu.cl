// concat_0: concat
// from the graph
// x0 f32[2,3,8], x1 f32[2,5,8] -> y f32[2,8,8]
// 0 FLOP, 1.02 kB; generated loops
// launch: 8x8x2 by 8x8x2

__kernel void concat_6a503410a0(
    __global const float *restrict x0,    // f32[2,3,8]
    __global const float *restrict x1,    // f32[2,5,8]
    __global float *restrict y)    // f32[2,8,8]
{
    int i0 = get_global_id(2);
    int i1 = get_global_id(1);
    int i2 = get_global_id(0);
    int t0 = i1 + -3;
    bool t1 = i1 < 3;
    y[i0 * 64 + i1 * 8 + i2] = t1 ? (t1 ? x0[i0 * 24 + i1 * 8 + i2] : 0.0f) : t0 >= 0 ? x1[i0 * 40 + t0 * 8 + i2] : 0.0f;
}
