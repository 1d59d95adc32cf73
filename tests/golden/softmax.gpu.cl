// mul_0: reduce_max + sub + exp + reduce_sum + reciprocal + mul
// from the graph
// x0 f32[8,100] -> y f32[8,100]
// 17.6 kFLOP, 6.4 kB; generated loops
// launch: 64x8 by 32x8; size0 100, size1 7, size2 100, size3 1, size4 100, size5 100, size6 100, size7 7, size8 7, size9 100, size10 1

#ifndef JITCL_MIN_I32
#define JITCL_MIN_I32
int jitcl_min_i32(int a, int b)
{
    return a < b ? a : b;
}
#endif

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void reduce_max_sub_exp_reduce_sum_d437c3d20b(
    __global const float *restrict x0,    // f32
    __global float *restrict y,    // f32
    const int size0,
    const int size1,
    const int size2,
    const int size3,
    const int size4,
    const int size5,
    const int size6,
    const int size7,
    const int size8,
    const int size9,
    const int size10)
{
    __local float part_acc0[256];
    __local float part_acc1[256];
    __local float tile0[3104];
    int i0 = get_group_id(0);
    int row = get_local_id(1);
    int lane = get_local_id(0);
    for (int r0 = row * 4 + lane / 8; r0 < size0; r0 += 32) {
        tile0[lane % 8 * 388 + r0] = x0[jitcl_min_i32(i0 * 8 + lane % 8, size1) * size2 + r0 * size3];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc0 = -INFINITY;
    for (int r1 = lane; r1 < size4; r1 += 32) {
        acc0 = jitcl_max_f32(acc0, tile0[row * 388 + r1]);
    }
    part_acc0[row * 32 + lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc0[row * 32 + lane] = jitcl_max_f32(jitcl_max_f32(part_acc0[row * 32 + lane], part_acc0[row * 32 + lane + 8]), jitcl_max_f32(part_acc0[row * 32 + lane + 16], part_acc0[row * 32 + lane + 24]));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc0[row * 32 + lane] = jitcl_max_f32(jitcl_max_f32(part_acc0[row * 32 + lane], part_acc0[row * 32 + lane + 2]), jitcl_max_f32(part_acc0[row * 32 + lane + 4], part_acc0[row * 32 + lane + 6]));
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc0_all = jitcl_max_f32(part_acc0[row * 32], part_acc0[row * 32 + 1]);
    float acc1 = 0.0f;
    for (int r4 = lane; r4 < size5; r4 += 32) {
        acc1 += exp(tile0[row * 388 + r4] - acc0_all);
    }
    part_acc1[row * 32 + lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc1[row * 32 + lane] = part_acc1[row * 32 + lane] + part_acc1[row * 32 + lane + 8] + (part_acc1[row * 32 + lane + 16] + part_acc1[row * 32 + lane + 24]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc1[row * 32 + lane] = part_acc1[row * 32 + lane] + part_acc1[row * 32 + lane + 2] + (part_acc1[row * 32 + lane + 4] + part_acc1[row * 32 + lane + 6]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc1_all = part_acc1[row * 32] + part_acc1[row * 32 + 1];
    for (int r7 = lane; r7 < size6; r7 += 32) {
        if (i0 * 8 + row <= size7)
            y[jitcl_min_i32(i0 * 8 + row, size8) * size9 + r7 * size10] = exp(tile0[row * 388 + r7] - acc0_all) * (1.0f / acc1_all);
    }
}
