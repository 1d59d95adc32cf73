// mul_0: reduce_max + sub + exp + reduce_sum + reciprocal + mul
// from the graph
// x0 f32[8,100] -> y f32[8,100]
// 17.6 kFLOP, 6.4 kB; generated loops
// launch: 1024 by 128

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

__kernel void reduce_max_sub_exp_reduce_sum_f65b8a4abb(
    __global const float *restrict x0,    // f32[8,100]
    __global float *restrict y)    // f32[8,100]
{
    __local float part_acc0[128];
    __local float part_acc1[128];
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    int p = get_group_id(0);
    int i0 = p;
    float acc0 = -INFINITY;
    for (int r0 = lane; r0 < 100; r0 += lanes) {
        acc0 = jitcl_max_f32(acc0, x0[i0 * 100 + r0]);
    }
    part_acc0[lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = lanes / 2; step > 0; step /= 2) {
        if (lane < step) part_acc0[lane] = jitcl_max_f32(part_acc0[lane], part_acc0[lane + step]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    acc0 = part_acc0[0];
    float acc1 = 0.0f;
    for (int r1 = lane; r1 < 100; r1 += lanes) {
        acc1 += exp(x0[i0 * 100 + r1] - acc0);
    }
    part_acc1[lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = lanes / 2; step > 0; step /= 2) {
        if (lane < step) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    acc1 = part_acc1[0];
    for (int i1 = lane; i1 < 100; i1 += lanes) {
        y[i0 * 100 + i1] = exp(x0[i0 * 100 + i1] - acc0) * (1.0f / acc1);
    }
}
