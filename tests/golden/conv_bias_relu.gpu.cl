// conv_0: conv + add + relu
// from the graph
// x0 f32[1,16,14,14], x1 f32[32,16,3,3], x2 f32[32,1,1] -> y f32[1,32,14,14]
// 1.82 MFLOP, 56.2 kB; generated loops
// launch: 6272 by 128

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void conv_add_relu_f8360c40f1(
    __global const float *restrict x0,    // f32[1,16,14,14]
    __global const float *restrict x1,    // f32[32,16,3,3]
    __global const float *restrict x2,    // f32[32,1,1]
    __global float *restrict y)    // f32[1,32,14,14]
{
    int p = get_global_id(0);
    if (p >= 6272) return;
    int i0 = p / 196;
    int i1 = p / 14 % 14;
    int i2 = p % 14;
    float acc0 = 0.0f;
    for (int r0 = 0; r0 < 16; ++r0) {
        for (int r1 = 0; r1 < 3; ++r1) {
            int t0 = i1 + r1 + -1;
            for (int r2 = 0; r2 < 3; ++r2) {
                int t1 = i2 + r2 + -1;
                acc0 += (t0 >= 0 && t0 < 14 && t1 >= 0 && t1 < 14 ? x0[r0 * 196 + t0 * 14 + t1] : 0.0f) * x1[i0 * 144 + r0 * 9 + r1 * 3 + r2];
            }
        }
    }
    y[i0 * 196 + i1 * 14 + i2] = jitcl_max_f32(acc0 + x2[i0], 0.0f);
}
