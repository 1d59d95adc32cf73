// matmul_0: mul + reduce_mean + add + sqrt + reciprocal + mul + mul + unpack_uint4 + dequantize + reshape + transpose + matmul + swish + unpack_uint4 + dequantize + reshape + transpose + matmul + mul
// from the graph
// x0 f32[2,2048], x1 f32[2048], x4 u8[40960], x3 f32[40,64,1], x2 u8[40960] -> y f32[2,40]
// 1 MFLOP, 117 kB; template gemv_opencl
// launch: 1280 by 64

#ifndef JITCL_UINT4_CODE
#define JITCL_UINT4_CODE
float jitcl_uint4_code(uint masked, float factor, float bias)
{
    return as_float(masked | 0x4b000000u) * factor - bias;
}
#endif
void norm_gemv_2_2x2_ff8fb61911_store(float v, float v1, int m, int n, int at,
    __global float *restrict y)
{
    y[at] = v1 / (exp(v1 * -1.0f) + 1.0f) * v;
}

float4 norm_gemv_2_2x2_ff8fb61911_a(int m, int k, __global const float *restrict x0, __global const float *restrict x1)
{
    return *(__global const float4 *)(x0 + (m * 2048 + k)) * *(__global const float4 *)(x1 + k);
}
float4 norm_gemv_2_2x2_ff8fb61911_terms(int m, int k, __global const float *restrict x0)
{
    float4 t0 = *(__global const float4 *)(x0 + (m * 2048 + k));
    return t0 * t0;
}
float norm_gemv_2_2x2_ff8fb61911_factor(float v, int m)
{
    return 1.0f / sqrt(v + 1e-06f);
}
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void norm_gemv_2_2x2_ff8fb61911(
    __global const float *restrict x0,
    __global const float *restrict x1,
    __global const uchar *restrict x4,
    __global const float *restrict x3,
    __global const uchar *restrict x2,
    __global float *restrict y)
{
    __local float parts[640];
    int lid = get_local_id(0), lane = lid % 1, slice = lid / 1;
    int n0 = get_group_id(0) * 2, n = n0 + lane * 2;
    int column0 = (n + 0) * 2048;
    int column1 = (n + 1) * 2048;
    float c0_0 = 0.0f, c0_1 = 0.0f, c0_2 = 0.0f, c0_3 = 0.0f;
    float norm0 = 0.0f;
    float c1_0 = 0.0f, c1_1 = 0.0f, c1_2 = 0.0f, c1_3 = 0.0f;
    float norm1 = 0.0f;
    if (n < 40) {
        int k = slice * 32;
        for (; k + 0 < 2048; k += 2048) {
            uint4 b0_0 = *(__global const uint4 *)((__global const uchar *)x4 + (column0 + k + 0) / 2);
            float scale0_0 = x3[(column0 + k + 0) / 32];
            uint4 b0_1 = *(__global const uint4 *)((__global const uchar *)x4 + (column1 + k + 0) / 2);
            float scale0_1 = x3[(column1 + k + 0) / 32];
            uint4 b0_2 = *(__global const uint4 *)((__global const uchar *)x2 + (column0 + k + 0) / 2);
            float scale0_2 = x3[(column0 + k + 0) / 32];
            uint4 b0_3 = *(__global const uint4 *)((__global const uchar *)x2 + (column1 + k + 0) / 2);
            float scale0_3 = x3[(column1 + k + 0) / 32];
            {
                float s0_0 = 0.0f, s0_1 = 0.0f, s0_2 = 0.0f, s0_3 = 0.0f, s1_0 = 0.0f, s1_1 = 0.0f, s1_2 = 0.0f, s1_3 = 0.0f;
                {
                float4 a0_0 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 0, x0, x1);
                float4 a0_1 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 4, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 0, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 4, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                float4 a1_0 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 0, x0, x1);
                float4 a1_1 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 4, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 0, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 4, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
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
                s1_0 += a1_0.s0 * w0;
                s1_0 += a1_0.s1 * w1;
                s1_0 += a1_0.s2 * w2;
                s1_0 += a1_0.s3 * w3;
                s1_0 += a1_1.s0 * w4;
                s1_0 += a1_1.s1 * w5;
                s1_0 += a1_1.s2 * w6;
                s1_0 += a1_1.s3 * w7;
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
                s1_1 += a1_0.s0 * w0;
                s1_1 += a1_0.s1 * w1;
                s1_1 += a1_0.s2 * w2;
                s1_1 += a1_0.s3 * w3;
                s1_1 += a1_1.s0 * w4;
                s1_1 += a1_1.s1 * w5;
                s1_1 += a1_1.s2 * w6;
                s1_1 += a1_1.s3 * w7;
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
                s1_2 += a1_0.s0 * w0;
                s1_2 += a1_0.s1 * w1;
                s1_2 += a1_0.s2 * w2;
                s1_2 += a1_0.s3 * w3;
                s1_2 += a1_1.s0 * w4;
                s1_2 += a1_1.s1 * w5;
                s1_2 += a1_1.s2 * w6;
                s1_2 += a1_1.s3 * w7;
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
                s1_3 += a1_0.s0 * w0;
                s1_3 += a1_0.s1 * w1;
                s1_3 += a1_0.s2 * w2;
                s1_3 += a1_0.s3 * w3;
                s1_3 += a1_1.s0 * w4;
                s1_3 += a1_1.s1 * w5;
                s1_3 += a1_1.s2 * w6;
                s1_3 += a1_1.s3 * w7;
                }
                }
                {
                float4 a0_0 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 8, x0, x1);
                float4 a0_1 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 12, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 8, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 12, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                float4 a1_0 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 8, x0, x1);
                float4 a1_1 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 12, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 8, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 12, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
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
                s1_0 += a1_0.s0 * w0;
                s1_0 += a1_0.s1 * w1;
                s1_0 += a1_0.s2 * w2;
                s1_0 += a1_0.s3 * w3;
                s1_0 += a1_1.s0 * w4;
                s1_0 += a1_1.s1 * w5;
                s1_0 += a1_1.s2 * w6;
                s1_0 += a1_1.s3 * w7;
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
                s1_1 += a1_0.s0 * w0;
                s1_1 += a1_0.s1 * w1;
                s1_1 += a1_0.s2 * w2;
                s1_1 += a1_0.s3 * w3;
                s1_1 += a1_1.s0 * w4;
                s1_1 += a1_1.s1 * w5;
                s1_1 += a1_1.s2 * w6;
                s1_1 += a1_1.s3 * w7;
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
                s1_2 += a1_0.s0 * w0;
                s1_2 += a1_0.s1 * w1;
                s1_2 += a1_0.s2 * w2;
                s1_2 += a1_0.s3 * w3;
                s1_2 += a1_1.s0 * w4;
                s1_2 += a1_1.s1 * w5;
                s1_2 += a1_1.s2 * w6;
                s1_2 += a1_1.s3 * w7;
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
                s1_3 += a1_0.s0 * w0;
                s1_3 += a1_0.s1 * w1;
                s1_3 += a1_0.s2 * w2;
                s1_3 += a1_0.s3 * w3;
                s1_3 += a1_1.s0 * w4;
                s1_3 += a1_1.s1 * w5;
                s1_3 += a1_1.s2 * w6;
                s1_3 += a1_1.s3 * w7;
                }
                }
                {
                float4 a0_0 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 16, x0, x1);
                float4 a0_1 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 20, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 16, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 20, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                float4 a1_0 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 16, x0, x1);
                float4 a1_1 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 20, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 16, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 20, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
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
                s1_0 += a1_0.s0 * w0;
                s1_0 += a1_0.s1 * w1;
                s1_0 += a1_0.s2 * w2;
                s1_0 += a1_0.s3 * w3;
                s1_0 += a1_1.s0 * w4;
                s1_0 += a1_1.s1 * w5;
                s1_0 += a1_1.s2 * w6;
                s1_0 += a1_1.s3 * w7;
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
                s1_1 += a1_0.s0 * w0;
                s1_1 += a1_0.s1 * w1;
                s1_1 += a1_0.s2 * w2;
                s1_1 += a1_0.s3 * w3;
                s1_1 += a1_1.s0 * w4;
                s1_1 += a1_1.s1 * w5;
                s1_1 += a1_1.s2 * w6;
                s1_1 += a1_1.s3 * w7;
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
                s1_2 += a1_0.s0 * w0;
                s1_2 += a1_0.s1 * w1;
                s1_2 += a1_0.s2 * w2;
                s1_2 += a1_0.s3 * w3;
                s1_2 += a1_1.s0 * w4;
                s1_2 += a1_1.s1 * w5;
                s1_2 += a1_1.s2 * w6;
                s1_2 += a1_1.s3 * w7;
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
                s1_3 += a1_0.s0 * w0;
                s1_3 += a1_0.s1 * w1;
                s1_3 += a1_0.s2 * w2;
                s1_3 += a1_0.s3 * w3;
                s1_3 += a1_1.s0 * w4;
                s1_3 += a1_1.s1 * w5;
                s1_3 += a1_1.s2 * w6;
                s1_3 += a1_1.s3 * w7;
                }
                }
                {
                float4 a0_0 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 24, x0, x1);
                float4 a0_1 = norm_gemv_2_2x2_ff8fb61911_a(0, k + 0 + 28, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 24, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(0, k + 0 + 28, x0);
                norm0 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                float4 a1_0 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 24, x0, x1);
                float4 a1_1 = norm_gemv_2_2x2_ff8fb61911_a(1, k + 0 + 28, x0, x1);
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 24, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
                {
                float4 term = norm_gemv_2_2x2_ff8fb61911_terms(1, k + 0 + 28, x0);
                norm1 += term.s0 + term.s1 + (term.s2 + term.s3);
                }
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
                s1_0 += a1_0.s0 * w0;
                s1_0 += a1_0.s1 * w1;
                s1_0 += a1_0.s2 * w2;
                s1_0 += a1_0.s3 * w3;
                s1_0 += a1_1.s0 * w4;
                s1_0 += a1_1.s1 * w5;
                s1_0 += a1_1.s2 * w6;
                s1_0 += a1_1.s3 * w7;
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
                s1_1 += a1_0.s0 * w0;
                s1_1 += a1_0.s1 * w1;
                s1_1 += a1_0.s2 * w2;
                s1_1 += a1_0.s3 * w3;
                s1_1 += a1_1.s0 * w4;
                s1_1 += a1_1.s1 * w5;
                s1_1 += a1_1.s2 * w6;
                s1_1 += a1_1.s3 * w7;
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
                s1_2 += a1_0.s0 * w0;
                s1_2 += a1_0.s1 * w1;
                s1_2 += a1_0.s2 * w2;
                s1_2 += a1_0.s3 * w3;
                s1_2 += a1_1.s0 * w4;
                s1_2 += a1_1.s1 * w5;
                s1_2 += a1_1.s2 * w6;
                s1_2 += a1_1.s3 * w7;
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
                s1_3 += a1_0.s0 * w0;
                s1_3 += a1_0.s1 * w1;
                s1_3 += a1_0.s2 * w2;
                s1_3 += a1_0.s3 * w3;
                s1_3 += a1_1.s0 * w4;
                s1_3 += a1_1.s1 * w5;
                s1_3 += a1_1.s2 * w6;
                s1_3 += a1_1.s3 * w7;
                }
                }
                c0_0 += s0_0 * scale0_0;
                c0_1 += s0_1 * scale0_1;
                c0_2 += s0_2 * scale0_2;
                c0_3 += s0_3 * scale0_3;
                c1_0 += s1_0 * scale0_0;
                c1_1 += s1_1 * scale0_1;
                c1_2 += s1_2 * scale0_2;
                c1_3 += s1_3 * scale0_3;
            }
        }
    }
    parts[(slice * 2 + 0) * 5 + lane * 2 + 0] = c0_0;
    parts[(slice * 2 + 0) * 5 + lane * 2 + 1] = c0_1;
    parts[(slice * 2 + 0) * 5 + lane * 2 + 2] = c0_2;
    parts[(slice * 2 + 0) * 5 + lane * 2 + 3] = c0_3;
    parts[(slice * 2 + 0) * 5 + 4] = norm0;
    parts[(slice * 2 + 1) * 5 + lane * 2 + 0] = c1_0;
    parts[(slice * 2 + 1) * 5 + lane * 2 + 1] = c1_1;
    parts[(slice * 2 + 1) * 5 + lane * 2 + 2] = c1_2;
    parts[(slice * 2 + 1) * 5 + lane * 2 + 3] = c1_3;
    parts[(slice * 2 + 1) * 5 + 4] = norm1;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < 80; i += 64) {
        float total = parts[i];
        for (int s = 1; s < 8; ++s) total += parts[s * 80 + i];
        parts[i] = total;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < 4; i += 64) {
        int m = i / 2;
        n = n0 + i % 2;
        if (n < 40) {
            float total0 = 0.0f, total1 = 0.0f, factor = 0.0f;
            for (int s = 0; s < 8; ++s) {
                int at = (s * 2 + m) * 5;
                total0 += parts[at + i % 2 + 0];
                total1 += parts[at + i % 2 + 2];
                factor += parts[at + 4];
            }
            factor = norm_gemv_2_2x2_ff8fb61911_factor(factor / 2048.0f, m);
            norm_gemv_2_2x2_ff8fb61911_store(total0 * factor, total1 * factor, m, n, m * 40 + n, y);
        }
    }
}
