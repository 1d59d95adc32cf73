// add_0: reduce_mean + sub + mul + reduce_mean + add + sqrt + reciprocal + mul + mul + add
// from the graph
// x0 f32[8,96], x1 f32[96], x2 f32[96] -> y f32[8,96]
// 10.8 kFLOP, 6.91 kB; generated loops
// launch: 1024 by 128; size0 96, size1 96

__kernel void reduce_mean_sub_mul_add_sqrt_reciprocal_d1ad935727(
    __global const float *restrict x0,    // f32
    __global const float *restrict x1,    // f32
    __global const float *restrict x2,    // f32
    __global float *restrict y,    // f32
    const int size0,
    const int size1)
{
    __local float part_acc0[128];
    __local float part_acc1[128];
    int i0 = get_group_id(0);
    int lane = get_local_id(0);
    float acc0 = 0.0f;
    if (lane < 96) acc0 += x0[i0 * size0 + lane];
    part_acc0[lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 32) part_acc0[lane] = part_acc0[lane] + part_acc0[lane + 32] + (part_acc0[lane + 64] + part_acc0[lane + 96]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc0[lane] = part_acc0[lane] + part_acc0[lane + 8] + (part_acc0[lane + 16] + part_acc0[lane + 24]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc0[lane] = part_acc0[lane] + part_acc0[lane + 2] + (part_acc0[lane + 4] + part_acc0[lane + 6]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc0_all = part_acc0[0] + part_acc0[1];
    float acc1 = 0.0f;
    if (lane < 96) {
        float t0 = x0[i0 * size0 + lane] - acc0_all / convert_float(size1);
        acc1 += t0 * t0;
    }
    part_acc1[lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 32) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 32] + (part_acc1[lane + 64] + part_acc1[lane + 96]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 8] + (part_acc1[lane + 16] + part_acc1[lane + 24]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 2] + (part_acc1[lane + 4] + part_acc1[lane + 6]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc1_all = part_acc1[0] + part_acc1[1];
    if (lane < 96) y[i0 * size0 + lane] = (x0[i0 * size0 + lane] - acc0_all / convert_float(size1)) * (1.0f / sqrt(acc1_all / convert_float(size1) + 1e-05f)) * x1[lane] + x2[lane];
}
