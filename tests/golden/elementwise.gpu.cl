// relu_0: mul + add + relu
// from the graph
// x0 f32[4,33], x1 f32[33] -> y f32[4,33]
// 396 FLOP, 1.19 kB; generated loops
// launch: 33x4 by 33x2; size0 4, size1 33, size2 33

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void mul_add_relu_3f638fdca4(
    __global const float *restrict x0,    // f32
    __global const float *restrict x1,    // f32
    __global float *restrict y,    // f32
    const int size0,
    const int size1,
    const int size2)
{
    int i0 = get_global_id(1);
    int i1 = get_global_id(0);
    if (i0 >= size0 || i1 >= size1) return;
    y[i0 * size2 + i1] = jitcl_max_f32(x0[i0 * size2 + i1] * x1[i1] + 1.0f, 0.0f);
}
