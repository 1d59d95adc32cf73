// conv_0: conv
// from the graph
// x0 f32[1,16,14,14], x1 f32[16,1,3,3] -> y f32[1,16,14,14]
// 56.4 kFLOP, 25.7 kB; generated loops
// launch: 16x14x16 by 16x1x8; size0 16, size1 14, size2 14, size3 14, size4 14, size5 196, size6 14, size7 9, size8 14

__kernel void conv_2c88eeb52d(
    __global const float *restrict x0,    // f32
    __global const float *restrict x1,    // f32
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
    float acc0 = 0.0f;
    for (int r0 = 0; r0 < 3; ++r0) {
        int j0 = i1 + r0 + -1;
        for (int r1 = 0; r1 < 3; ++r1) {
            int j1 = i2 + r1 + -1;
            acc0 += (j0 >= 0 && j0 < size3 && j1 >= 0 && j1 < size4 ? x0[i0 * size5 + j0 * size6 + j1] : 0.0f) * x1[i0 * size7 + r0 * 3 + r1];
        }
    }
    y[i0 * size5 + i1 * size8 + i2] = acc0;
}
