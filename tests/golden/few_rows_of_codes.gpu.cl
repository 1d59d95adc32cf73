// matmul_0: unpack_uint4 + dequantize + reshape + transpose + matmul
// from the graph
// x2 f32[1,2048], x0 u8[40960], x1 f32[40,64,1] -> y f32[1,40]
// 328 kFLOP, 59.6 kB; template gemv_opencl
// launch: 640 by 64

#ifndef JITCL_UINT4_CODE
#define JITCL_UINT4_CODE
float jitcl_uint4_code(uint masked, float factor, float bias)
{
    return as_float(masked | 0x4b000000u) * factor - bias;
}
#endif
void gemv_1x4_8ae1ec706e_store(float v, int m, int n, int at,
    __global float *restrict y)
{
    y[at] = v;
}

int gemv_1x4_8ae1ec706e_a(int m, int k)
{
    return k;
}
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void gemv_1x4_8ae1ec706e(
    __global const float *restrict x2,
    __global const uchar *restrict x0,
    __global const float *restrict x1,
    __global float *restrict y)
{
    __local float parts[256];
    int lid = get_local_id(0), lane = lid % 1, slice = lid / 1;
    int n0 = get_group_id(0) * 4, n = n0 + lane * 4;
    int column0 = (n + 0) * 2048;
    int column1 = (n + 1) * 2048;
    int column2 = (n + 2) * 2048;
    int column3 = (n + 3) * 2048;
    float c0_0 = 0.0f, c0_1 = 0.0f, c0_2 = 0.0f, c0_3 = 0.0f;
    if (n < 40) {
        int k = slice * 32;
        for (; k + 0 < 2048; k += 2048) {
            uint4 b0_0 = *(__global const uint4 *)((__global const uchar *)x0 + (column0 + k + 0) / 2);
            float scale0_0 = x1[(column0 + k + 0) / 32];
            uint4 b0_1 = *(__global const uint4 *)((__global const uchar *)x0 + (column1 + k + 0) / 2);
            float scale0_1 = x1[(column1 + k + 0) / 32];
            uint4 b0_2 = *(__global const uint4 *)((__global const uchar *)x0 + (column2 + k + 0) / 2);
            float scale0_2 = x1[(column2 + k + 0) / 32];
            uint4 b0_3 = *(__global const uint4 *)((__global const uchar *)x0 + (column3 + k + 0) / 2);
            float scale0_3 = x1[(column3 + k + 0) / 32];
            {
                float s0_0 = 0.0f, s0_1 = 0.0f, s0_2 = 0.0f, s0_3 = 0.0f;
                {
                float4 a0_0 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 0));
                float4 a0_1 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 4));
                {
                uint word = b0_0.s0;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_0 += a0_0.s0 * w0;
                s0_0 += a0_0.s1 * w1;
                s0_0 += a0_0.s2 * w2;
                s0_0 += a0_0.s3 * w3;
                s0_0 += a0_1.s0 * w4;
                s0_0 += a0_1.s1 * w5;
                s0_0 += a0_1.s2 * w6;
                s0_0 += a0_1.s3 * w7;
                }
                {
                uint word = b0_1.s0;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_1 += a0_0.s0 * w0;
                s0_1 += a0_0.s1 * w1;
                s0_1 += a0_0.s2 * w2;
                s0_1 += a0_0.s3 * w3;
                s0_1 += a0_1.s0 * w4;
                s0_1 += a0_1.s1 * w5;
                s0_1 += a0_1.s2 * w6;
                s0_1 += a0_1.s3 * w7;
                }
                {
                uint word = b0_2.s0;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_2 += a0_0.s0 * w0;
                s0_2 += a0_0.s1 * w1;
                s0_2 += a0_0.s2 * w2;
                s0_2 += a0_0.s3 * w3;
                s0_2 += a0_1.s0 * w4;
                s0_2 += a0_1.s1 * w5;
                s0_2 += a0_1.s2 * w6;
                s0_2 += a0_1.s3 * w7;
                }
                {
                uint word = b0_3.s0;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_3 += a0_0.s0 * w0;
                s0_3 += a0_0.s1 * w1;
                s0_3 += a0_0.s2 * w2;
                s0_3 += a0_0.s3 * w3;
                s0_3 += a0_1.s0 * w4;
                s0_3 += a0_1.s1 * w5;
                s0_3 += a0_1.s2 * w6;
                s0_3 += a0_1.s3 * w7;
                }
                }
                {
                float4 a0_0 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 8));
                float4 a0_1 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 12));
                {
                uint word = b0_0.s1;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_0 += a0_0.s0 * w0;
                s0_0 += a0_0.s1 * w1;
                s0_0 += a0_0.s2 * w2;
                s0_0 += a0_0.s3 * w3;
                s0_0 += a0_1.s0 * w4;
                s0_0 += a0_1.s1 * w5;
                s0_0 += a0_1.s2 * w6;
                s0_0 += a0_1.s3 * w7;
                }
                {
                uint word = b0_1.s1;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_1 += a0_0.s0 * w0;
                s0_1 += a0_0.s1 * w1;
                s0_1 += a0_0.s2 * w2;
                s0_1 += a0_0.s3 * w3;
                s0_1 += a0_1.s0 * w4;
                s0_1 += a0_1.s1 * w5;
                s0_1 += a0_1.s2 * w6;
                s0_1 += a0_1.s3 * w7;
                }
                {
                uint word = b0_2.s1;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_2 += a0_0.s0 * w0;
                s0_2 += a0_0.s1 * w1;
                s0_2 += a0_0.s2 * w2;
                s0_2 += a0_0.s3 * w3;
                s0_2 += a0_1.s0 * w4;
                s0_2 += a0_1.s1 * w5;
                s0_2 += a0_1.s2 * w6;
                s0_2 += a0_1.s3 * w7;
                }
                {
                uint word = b0_3.s1;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_3 += a0_0.s0 * w0;
                s0_3 += a0_0.s1 * w1;
                s0_3 += a0_0.s2 * w2;
                s0_3 += a0_0.s3 * w3;
                s0_3 += a0_1.s0 * w4;
                s0_3 += a0_1.s1 * w5;
                s0_3 += a0_1.s2 * w6;
                s0_3 += a0_1.s3 * w7;
                }
                }
                {
                float4 a0_0 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 16));
                float4 a0_1 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 20));
                {
                uint word = b0_0.s2;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_0 += a0_0.s0 * w0;
                s0_0 += a0_0.s1 * w1;
                s0_0 += a0_0.s2 * w2;
                s0_0 += a0_0.s3 * w3;
                s0_0 += a0_1.s0 * w4;
                s0_0 += a0_1.s1 * w5;
                s0_0 += a0_1.s2 * w6;
                s0_0 += a0_1.s3 * w7;
                }
                {
                uint word = b0_1.s2;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_1 += a0_0.s0 * w0;
                s0_1 += a0_0.s1 * w1;
                s0_1 += a0_0.s2 * w2;
                s0_1 += a0_0.s3 * w3;
                s0_1 += a0_1.s0 * w4;
                s0_1 += a0_1.s1 * w5;
                s0_1 += a0_1.s2 * w6;
                s0_1 += a0_1.s3 * w7;
                }
                {
                uint word = b0_2.s2;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_2 += a0_0.s0 * w0;
                s0_2 += a0_0.s1 * w1;
                s0_2 += a0_0.s2 * w2;
                s0_2 += a0_0.s3 * w3;
                s0_2 += a0_1.s0 * w4;
                s0_2 += a0_1.s1 * w5;
                s0_2 += a0_1.s2 * w6;
                s0_2 += a0_1.s3 * w7;
                }
                {
                uint word = b0_3.s2;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_3 += a0_0.s0 * w0;
                s0_3 += a0_0.s1 * w1;
                s0_3 += a0_0.s2 * w2;
                s0_3 += a0_0.s3 * w3;
                s0_3 += a0_1.s0 * w4;
                s0_3 += a0_1.s1 * w5;
                s0_3 += a0_1.s2 * w6;
                s0_3 += a0_1.s3 * w7;
                }
                }
                {
                float4 a0_0 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 24));
                float4 a0_1 = *(__global const float4 *)(x2 + gemv_1x4_8ae1ec706e_a(0, k + 0 + 28));
                {
                uint word = b0_0.s3;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_0 += a0_0.s0 * w0;
                s0_0 += a0_0.s1 * w1;
                s0_0 += a0_0.s2 * w2;
                s0_0 += a0_0.s3 * w3;
                s0_0 += a0_1.s0 * w4;
                s0_0 += a0_1.s1 * w5;
                s0_0 += a0_1.s2 * w6;
                s0_0 += a0_1.s3 * w7;
                }
                {
                uint word = b0_1.s3;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_1 += a0_0.s0 * w0;
                s0_1 += a0_0.s1 * w1;
                s0_1 += a0_0.s2 * w2;
                s0_1 += a0_0.s3 * w3;
                s0_1 += a0_1.s0 * w4;
                s0_1 += a0_1.s1 * w5;
                s0_1 += a0_1.s2 * w6;
                s0_1 += a0_1.s3 * w7;
                }
                {
                uint word = b0_2.s3;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_2 += a0_0.s0 * w0;
                s0_2 += a0_0.s1 * w1;
                s0_2 += a0_0.s2 * w2;
                s0_2 += a0_0.s3 * w3;
                s0_2 += a0_1.s0 * w4;
                s0_2 += a0_1.s1 * w5;
                s0_2 += a0_1.s2 * w6;
                s0_2 += a0_1.s3 * w7;
                }
                {
                uint word = b0_3.s3;
                float w0 = jitcl_uint4_code(word & 0xfu, 1.0f, 8388616.0f), w1 = jitcl_uint4_code(word & 0xf0u, 0.0625f, 524296.0f), w2 = jitcl_uint4_code(word & 0xf00u, 0.00390625f, 32776.0f), w3 = jitcl_uint4_code(word & 0xf000u, 0.000244140625f, 2056.0f), w4 = jitcl_uint4_code(word & 0xf0000u, 1.52587890625e-05f, 136.0f), w5 = jitcl_uint4_code((word >> 20) & 0xfu, 1.0f, 8388616.0f), w6 = jitcl_uint4_code((word >> 20) & 0xf0u, 0.0625f, 524296.0f), w7 = jitcl_uint4_code((word >> 20) & 0xf00u, 0.00390625f, 32776.0f);
                s0_3 += a0_0.s0 * w0;
                s0_3 += a0_0.s1 * w1;
                s0_3 += a0_0.s2 * w2;
                s0_3 += a0_0.s3 * w3;
                s0_3 += a0_1.s0 * w4;
                s0_3 += a0_1.s1 * w5;
                s0_3 += a0_1.s2 * w6;
                s0_3 += a0_1.s3 * w7;
                }
                }
                c0_0 += s0_0 * scale0_0;
                c0_1 += s0_1 * scale0_1;
                c0_2 += s0_2 * scale0_2;
                c0_3 += s0_3 * scale0_3;
            }
        }
    }
    parts[(slice * 1 + 0) * 4 + lane * 4 + 0] = c0_0;
    parts[(slice * 1 + 0) * 4 + lane * 4 + 1] = c0_1;
    parts[(slice * 1 + 0) * 4 + lane * 4 + 2] = c0_2;
    parts[(slice * 1 + 0) * 4 + lane * 4 + 3] = c0_3;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < 32; i += 64) {
        float total = parts[i];
        for (int s = 1; s < 8; ++s) total += parts[s * 32 + i];
        parts[i] = total;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < 4; i += 64) {
        int m = i / 4;
        n = n0 + i % 4;
        if (n < 40) {
            float total = 0.0f;
            for (int s = 0; s < 8; ++s) total += parts[s * 4 + i];
            gemv_1x4_8ae1ec706e_store(total, m, n, m * 40 + n, y);
        }
    }
}
