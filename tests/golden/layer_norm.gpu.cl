// add_0: reduce_mean + sub + mul + reduce_mean + add + sqrt + reciprocal + mul + mul + add
// from the graph
// x0 f32[8,96], x1 f32[96], x2 f32[96] -> y f32[8,96]
// 10.8 kFLOP, 6.91 kB; generated loops
// launch: 64x8 by 32x8; size0 96, size1 7, size2 96, size3 1, size4 96, size5 96, size6 96, size7 96, size8 7, size9 7, size10 96, size11 1

#ifndef JITCL_MIN_I32
#define JITCL_MIN_I32
int jitcl_min_i32(int a, int b)
{
    return a < b ? a : b;
}
#endif

__kernel void reduce_mean_sub_mul_add_sqrt_reciprocal_94e06d30f2(
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
    const int size9,
    const int size10,
    const int size11)
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
    float acc0 = 0.0f;
    for (int r1 = lane; r1 < size4; r1 += 32) {
        acc0 += tile0[row * 388 + r1];
    }
    part_acc0[row * 32 + lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc0[row * 32 + lane] = part_acc0[row * 32 + lane] + part_acc0[row * 32 + lane + 8] + (part_acc0[row * 32 + lane + 16] + part_acc0[row * 32 + lane + 24]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc0[row * 32 + lane] = part_acc0[row * 32 + lane] + part_acc0[row * 32 + lane + 2] + (part_acc0[row * 32 + lane + 4] + part_acc0[row * 32 + lane + 6]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc0_all = part_acc0[row * 32] + part_acc0[row * 32 + 1];
    float acc1 = 0.0f;
    for (int r4 = lane; r4 < size5; r4 += 32) {
        float t0 = tile0[row * 388 + r4] - acc0_all / convert_float(size6);
        acc1 += t0 * t0;
    }
    part_acc1[row * 32 + lane] = acc1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 8) part_acc1[row * 32 + lane] = part_acc1[row * 32 + lane] + part_acc1[row * 32 + lane + 8] + (part_acc1[row * 32 + lane + 16] + part_acc1[row * 32 + lane + 24]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < 2) part_acc1[row * 32 + lane] = part_acc1[row * 32 + lane] + part_acc1[row * 32 + lane + 2] + (part_acc1[row * 32 + lane + 4] + part_acc1[row * 32 + lane + 6]);
    barrier(CLK_LOCAL_MEM_FENCE);
    float acc1_all = part_acc1[row * 32] + part_acc1[row * 32 + 1];
    for (int r7 = lane; r7 < size7; r7 += 32) {
        if (i0 * 8 + row <= size8)
            y[jitcl_min_i32(i0 * 8 + row, size9) * size10 + r7 * size11] = (tile0[row * 388 + r7] - acc0_all / convert_float(size6)) * (1.0f / sqrt(acc1_all / convert_float(size6) + 1e-05f)) * x1[r7] + x2[r7];
    }
}
