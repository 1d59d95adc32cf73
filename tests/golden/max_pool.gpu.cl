// max_pool_0: max_pool
// from the graph
// x0 f32[1,16,14,14] -> y f32[1,16,7,7]
// 3.14 kFLOP, 15.7 kB; generated loops
// launch: 8x112 by 8x16; size0 112, size1 7, size2 28, size3 14, size4 7

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void max_pool_36353e1ac8(
    __global const float *restrict x0,    // f32
    __global float *restrict y,    // f32
    const int size0,
    const int size1,
    const int size2,
    const int size3,
    const int size4)
{
    int i0 = get_global_id(1);
    int i1 = get_global_id(0);
    if (i0 >= size0 || i1 >= size1) return;
    float acc0 = -INFINITY;
    for (int r0 = 0; r0 < 2; ++r0) {
        for (int r1 = 0; r1 < 2; ++r1) {
            acc0 = jitcl_max_f32(acc0, x0[i0 * size2 + i1 * 2 + r0 * size3 + r1]);
        }
    }
    y[i0 * size4 + i1] = acc0;
}
