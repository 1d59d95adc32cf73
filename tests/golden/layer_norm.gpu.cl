// add_0: reduce_mean + sub + mul + reduce_mean + add + sqrt + reciprocal + mul + mul + add
// from the graph
// x0 f32[8,96], x1 f32[96], x2 f32[96] -> y f32[8,96]
// 10.8 kFLOP, 6.91 kB; generated loops
// launch: 1024 by 128

__kernel void reduce_mean_sub_mul_add_sqrt_reciprocal_04ac0a97f3(
    __global const float *restrict x0,    // f32[8,96]
    __global const float *restrict x1,    // f32[96]
    __global const float *restrict x2,    // f32[96]
    __global float *restrict y)    // f32[8,96]
{
    __local float part_acc0[128];
    __local float part_acc1[128];
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    int p = get_group_id(0);
    int i0 = p;
    float acc0 = 0.0f;
    for (int r0 = lane; r0 < 96; r0 += lanes) {
        acc0 += x0[i0 * 96 + r0];
    }
    part_acc0[lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = lanes / 2; step > 0; step /= 2) {
        if (lane < step) part_acc0[lane] = part_acc0[lane] + part_acc0[lane + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    acc0 = part_acc0[0];
    float acc1 = 0.0f;
    for (int r1 = lane; r1 < 96; r1 += lanes) {
        float t0 = x0[i0 * 96 + r1] - acc0 / 96.0f;
        acc1 += t0 * t0;
    }
    part_acc1[lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = lanes / 2; step > 0; step /= 2) {
        if (lane < step) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    acc1 = part_acc1[0];
    for (int i1 = lane; i1 < 96; i1 += lanes) {
        y[i0 * 96 + i1] = (x0[i0 * 96 + i1] - acc0 / 96.0f) * (1.0f / sqrt(acc1 / 96.0f + 1e-05f)) * x1[i1] + x2[i1];
    }
}
