// add_0: reduce_mean + sub + mul + reduce_mean + add + sqrt + reciprocal + mul + mul + add
// from the graph
// x0 f32[8,96], x1 f32[96], x2 f32[96] -> y f32[8,96]
// 10.8 kFLOP, 6.91 kB; generated loops
// launch: 512 by 64; size0 96, size1 96, size2 1, size3 96, size4 1, size5 96, size6 96, size7 96, size8 1, size9 1

__kernel void reduce_mean_sub_mul_add_sqrt_reciprocal_807933d838(
    __global const float *restrict x0,    // f32
    __global const float *restrict x1,    // f32
    __global const float *restrict x2,    // f32
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
    const int size9)
{
    __local float part_acc0[64];
    __local float part_acc1[64];
    int i0 = get_group_id(0);
    int lane = get_local_id(0);
    float acc0 = 0.0f;
    for (int r0 = lane; r0 < size0; r0 += 64) {
        acc0 += x0[i0 * size1 + r0 * size2];
    }
    part_acc0[lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 16) part_acc0[lane] = part_acc0[lane] + part_acc0[lane + 16] + (part_acc0[lane + 32] + part_acc0[lane + 48]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 4) part_acc0[lane] = part_acc0[lane] + part_acc0[lane + 4] + (part_acc0[lane + 8] + part_acc0[lane + 12]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc0_all = part_acc0[0] + part_acc0[1] + (part_acc0[2] + part_acc0[3]);
    float acc1 = 0.0f;
    for (int r3 = lane; r3 < size3; r3 += 64) {
        float t0 = x0[i0 * size1 + r3 * size4] - acc0_all / convert_float(size5);
        acc1 += t0 * t0;
    }
    part_acc1[lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 16) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 16] + (part_acc1[lane + 32] + part_acc1[lane + 48]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 4) part_acc1[lane] = part_acc1[lane] + part_acc1[lane + 4] + (part_acc1[lane + 8] + part_acc1[lane + 12]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc1_all = part_acc1[0] + part_acc1[1] + (part_acc1[2] + part_acc1[3]);
    for (int r6 = lane; r6 < size6; r6 += 64) {
        y[i0 * size7 + r6 * size8] = (x0[i0 * size1 + r6 * size9] - acc0_all / convert_float(size5)) * (1.0f / sqrt(acc1_all / convert_float(size5) + 1e-05f)) * x1[r6] + x2[r6];
    }
}
