// max_pool_0: max_pool
// from the graph
// x0 f32[1,16,14,14] -> y f32[1,16,7,7]
// 3.14 kFLOP, 15.7 kB; generated loops
// launch: 8x112 by 8x16

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void max_pool_174f6b35d5(
    __global const float *restrict x0,    // f32[3136]
    __global float *restrict y)    // f32[784]
{
    int p2 = get_global_id(1);
    int i2 = get_global_id(0);
    if (i2 >= 7) return;
    float acc0 = -INFINITY;
    for (int r0 = 0; r0 < 2; ++r0) {
        for (int r1 = 0; r1 < 2; ++r1) {
            acc0 = jitcl_max_f32(acc0, x0[p2 * 28 + r0 * 14 + i2 * 2 + r1]);
        }
    }
    y[p2 * 7 + i2] = acc0;
}
