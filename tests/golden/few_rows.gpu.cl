// matmul_0: transpose + matmul + relu
// from the graph
// x1 f32[2,2048], x0 f32[40,2048] -> y f32[2,40]
// 328 kFLOP, 344 kB; template gemv_opencl
// launch: 2560 by 128

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

void gemv_2x2_06143610b4_store(float v, int m, int n, int at,
    __global float *restrict y)
{
    y[at] = jitcl_max_f32(v, 0.0f);
}

int gemv_2x2_06143610b4_a(int m, int k)
{
    return m * 2048 + k;
}
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void gemv_2x2_06143610b4(
    __global const float *restrict x1,
    __global const float *restrict x0,
    __global float *restrict y)
{
    __local float parts[512];
    int lid = get_local_id(0), lane = lid % 1, slice = lid / 1;
    int n0 = get_group_id(0) * 2, n = n0 + lane * 2;
    int column0 = (n + 0) * 2048;
    int column1 = (n + 1) * 2048;
    float c0_0 = 0.0f, c0_1 = 0.0f;
    float c1_0 = 0.0f, c1_1 = 0.0f;
    if (n < 40) {
        int k = slice * 4;
        for (; k + 0 < 2048; k += 512) {
            float4 b0_0 = *(__global const float4 *)(x0 + column0 + k + 0);
            float4 b0_1 = *(__global const float4 *)(x0 + column1 + k + 0);
            {
                float4 a0_0 = *(__global const float4 *)(x1 + gemv_2x2_06143610b4_a(0, k + 0 + 0));
                float4 a1_0 = *(__global const float4 *)(x1 + gemv_2x2_06143610b4_a(1, k + 0 + 0));
                {
                c0_0 += a0_0.s0 * b0_0.s0;
                c0_0 += a0_0.s1 * b0_0.s1;
                c0_0 += a0_0.s2 * b0_0.s2;
                c0_0 += a0_0.s3 * b0_0.s3;
                c1_0 += a1_0.s0 * b0_0.s0;
                c1_0 += a1_0.s1 * b0_0.s1;
                c1_0 += a1_0.s2 * b0_0.s2;
                c1_0 += a1_0.s3 * b0_0.s3;
                }
                {
                c0_1 += a0_0.s0 * b0_1.s0;
                c0_1 += a0_0.s1 * b0_1.s1;
                c0_1 += a0_0.s2 * b0_1.s2;
                c0_1 += a0_0.s3 * b0_1.s3;
                c1_1 += a1_0.s0 * b0_1.s0;
                c1_1 += a1_0.s1 * b0_1.s1;
                c1_1 += a1_0.s2 * b0_1.s2;
                c1_1 += a1_0.s3 * b0_1.s3;
                }
            }
        }
    }
    parts[(slice * 2 + 0) * 2 + lane * 2 + 0] = c0_0;
    parts[(slice * 2 + 0) * 2 + lane * 2 + 1] = c0_1;
    parts[(slice * 2 + 1) * 2 + lane * 2 + 0] = c1_0;
    parts[(slice * 2 + 1) * 2 + lane * 2 + 1] = c1_1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < 64; i += 128) {
        float total = parts[i];
        for (int s = 1; s < 8; ++s) total += parts[s * 64 + i];
        parts[i] = total;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < 4; i += 128) {
        int m = i / 2;
        n = n0 + i % 2;
        if (n < 40) {
            float total = 0.0f;
            for (int s = 0; s < 16; ++s) total += parts[s * 4 + i];
            gemv_2x2_06143610b4_store(total, m, n, m * 40 + n, y);
        }
    }
}
