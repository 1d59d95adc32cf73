// matmul_0: matmul + add
// from the graph
// x0 f32[64,96], x1 f32[96,40], x2 f32[40] -> y f32[64,40]
// 494 kFLOP, 50.3 kB; generated loops
// launch: 327680 by 128

__kernel void matmul_add_bab72fee5c(
    __global const float *restrict x0,    // f32[64,96]
    __global const float *restrict x1,    // f32[96,40]
    __global const float *restrict x2,    // f32[40]
    __global float *restrict y)    // f32[64,40]
{
    __local float part_acc0[128];
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    int p = get_group_id(0);
    int i0 = p / 40;
    int i1 = p % 40;
    float acc0 = 0.0f;
    for (int r0 = lane; r0 < 96; r0 += lanes) {
        acc0 += x0[i0 * 96 + r0] * x1[r0 * 40 + i1];
    }
    part_acc0[lane] = acc0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = lanes / 2; step > 0; step /= 2) {
        if (lane < step) part_acc0[lane] = part_acc0[lane] + part_acc0[lane + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    acc0 = part_acc0[0];
    if (lane == 0) {
        y[i0 * 40 + i1] = acc0 + x2[i1];
    }
}
