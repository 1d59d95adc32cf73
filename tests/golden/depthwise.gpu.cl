// conv_0: conv
// from the graph
// x0 f32[1,16,14,14], x1 f32[16,1,3,3] -> y f32[1,16,14,14]
// 56.4 kFLOP, 25.7 kB; generated loops
// launch: 16x14x16 by 16x1x8

__kernel void conv_5eff4d3ee5(
    __global const float *restrict x0,    // f32[1,16,14,14]
    __global const float *restrict x1,    // f32[16,1,3,3]
    __global float *restrict y)    // f32[1,16,14,14]
{
    int i0 = get_global_id(2);
    int i1 = get_global_id(1);
    int i2 = get_global_id(0);
    if (i2 >= 14) return;
    float acc0 = 0.0f;
    for (int r0 = 0; r0 < 3; ++r0) {
        int t0 = i1 + r0 + -1;
        for (int r1 = 0; r1 < 3; ++r1) {
            int t1 = i2 + r1 + -1;
            acc0 += (t0 >= 0 && t0 < 14 && t1 >= 0 && t1 < 14 ? x0[i0 * 196 + t0 * 14 + t1] : 0.0f) * x1[i0 * 9 + r0 * 3 + r1];
        }
    }
    y[i0 * 196 + i1 * 14 + i2] = acc0;
}
