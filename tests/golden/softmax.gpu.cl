// mul_0: reduce_max + sub + exp + reduce_sum + reciprocal + mul
// from the graph
// x0 f32[8,100] -> y f32[8,100]
// 17.6 kFLOP, 6.4 kB; generated loops
// launch: 1024 by 128; size0 100

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void reduce_max_sub_exp_reduce_sum_37c4c9599d(
    __global const float *restrict x0,    // f32
    __global float *restrict y,    // f32
    const int size0)
{
    __local float part_acc0[128];
    __local float part_acc1[128];
    int i0 = get_group_id(0);
    int lane = get_local_id(0);
    float acc0 = -INFINITY;
    if (lane < 100) acc0 = jitcl_max_f32(acc0, x0[i0 * size0 + lane]);
    part_acc0[lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 32) part_acc0[lane] = jitcl_max_f32(jitcl_max_f32(part_acc0[lane], part_acc0[lane + 32]), jitcl_max_f32(part_acc0[lane + 64], part_acc0[lane + 96]));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc0[lane] = jitcl_max_f32(jitcl_max_f32(part_acc0[lane], part_acc0[lane + 8]), jitcl_max_f32(part_acc0[lane + 16], part_acc0[lane + 24]));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc0[lane] = jitcl_max_f32(jitcl_max_f32(part_acc0[lane], part_acc0[lane + 2]), jitcl_max_f32(part_acc0[lane + 4], part_acc0[lane + 6]));
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc0_all = jitcl_max_f32(part_acc0[0], part_acc0[1]);
    float acc1 = 0.0f;
    if (lane < 100) acc1 += exp(x0[i0 * size0 + lane] - acc0_all);
    part_acc1[lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 32) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 32] + (part_acc1[lane + 64] + part_acc1[lane + 96]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 8] + (part_acc1[lane + 16] + part_acc1[lane + 24]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 2] + (part_acc1[lane + 4] + part_acc1[lane + 6]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc1_all = part_acc1[0] + part_acc1[1];
    if (lane < 100) y[i0 * size0 + lane] = exp(x0[i0 * size0 + lane] - acc0_all) * (1.0f / acc1_all);
}
