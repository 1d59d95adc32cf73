// mul_0: reduce_max + sub + exp + reduce_sum + reciprocal + mul
// from the graph
// x0 f32[8,100] -> y f32[8,100]
// 17.6 kFLOP, 6.4 kB; generated loops
// launch: 512 by 64; size0 100, size1 100, size2 1, size3 100, size4 1, size5 100, size6 100, size7 1, size8 1

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void reduce_max_sub_exp_reduce_sum_7968fbe592(
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
    const int size8)
{
    __local float part_acc0[64];
    __local float part_acc1[64];
    int i0 = get_group_id(0);
    int lane = get_local_id(0);
    float acc0 = -INFINITY;
    for (int r0 = lane; r0 < size0; r0 += 64) {
        acc0 = jitcl_max_f32(acc0, x0[i0 * size1 + r0 * size2]);
    }
    part_acc0[lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 16) part_acc0[lane] = jitcl_max_f32(jitcl_max_f32(part_acc0[lane], part_acc0[lane + 16]), jitcl_max_f32(part_acc0[lane + 32], part_acc0[lane + 48]));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 4) part_acc0[lane] = jitcl_max_f32(jitcl_max_f32(part_acc0[lane], part_acc0[lane + 4]), jitcl_max_f32(part_acc0[lane + 8], part_acc0[lane + 12]));
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc0_all = jitcl_max_f32(jitcl_max_f32(part_acc0[0], part_acc0[1]), jitcl_max_f32(part_acc0[2], part_acc0[3]));
    float acc1 = 0.0f;
    for (int r3 = lane; r3 < size3; r3 += 64) {
        acc1 += exp(x0[i0 * size1 + r3 * size4] - acc0_all);
    }
    part_acc1[lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 16) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 16] + (part_acc1[lane + 32] + part_acc1[lane + 48]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 4) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 4] + (part_acc1[lane + 8] + part_acc1[lane + 12]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc1_all = part_acc1[0] + part_acc1[1] + (part_acc1[2] + part_acc1[3]);
    for (int r6 = lane; r6 < size5; r6 += 64) {
        y[i0 * size6 + r6 * size7] = exp(x0[i0 * size1 + r6 * size8] - acc0_all) * (1.0f / acc1_all);
    }
}
