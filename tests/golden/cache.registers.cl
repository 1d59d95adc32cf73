// mul_0: mul
// from the graph
// x0 f32[1,2,1,64] -> y f32[1,2,1,64]
// 128 FLOP, 1.02 kB; generated loops
// launch: 128 by 128; size0 128

__kernel void mul_679efeafd1(
    __global const float *restrict x0,    // f32
    __global float *restrict y,    // f32
    const int size0)
{
    int i0 = get_global_id(0);
    if (i0 >= size0) return;
    y[i0] = x0[i0] * 0.25f;
}

// matmul_1: concat + cast + transpose + matmul + add + reduce_max + sub + exp + reduce_sum + reciprocal + mul + concat + cast + transpose + matmul
// from the graph
// x2 f32[1,2,1,64], x0 f16[1,256,2,64], x1 f16[1,1,2,64], x3 f32[257], x4 f16[1,256,2,64], x5 f16[1,1,2,64] -> totals f32[68], parts f32[2176]
// 138 kFLOP, 142 kB; template attention_opencl
// launch: 32x1x2 by 32x1x1; head 64, width 64, k_row 256, v_row 256, block 8

#ifndef JITCL_LOAD_F16X4
#define JITCL_LOAD_F16X4
float4 jitcl_load_f16x4(__global const half *p)
{
    ushort4 bits = *(__global const ushort4 *)p;
    return vload_half4(0, (const half *)&bits);
}
#endif
float attention_1x8_f969f50a04_score(float v, int image, int m, int n, __global const float *restrict x3)
{
    return v + x3[n];
}
__kernel void attention_1x8_f969f50a04(
    __global const float *restrict x2,
    __global const half *restrict x0,
    __global const half *restrict x1,
    __global const float *restrict x3,
    __global const half *restrict z0,
    __global const half *restrict z1,
    __global float *restrict totals,
    __global float *restrict y, int head, int width, int k_row, int v_row, int block)
{
    int split = get_global_id(0), m = get_global_id(1), image = get_global_id(2);
    if (split >= 17 || m >= 1) return;
    for (int n0 = split * 16; n0 < min((split + 1) * 16, 257);) {
        uint k_step = n0 < 256 ? k_row : 0;
        float4 p00 = (float4)(0.0f), p01 = (float4)(0.0f);
        {
            uintptr_t q0_at = (uintptr_t)(x2 + ((image * 64) + m * 64)) - 16;
            uintptr_t k0_at = (uintptr_t)(n0 < 256 ? x0 + ((image * 64) + n0 * 128) : x1 + ((image * 64) + (n0 - 256) * 128)) - 8;
            for (int d = 0; d < head; d += 4) {
                q0_at += 16;
                __global const float *q0 = (__global const float *)q0_at;
                float4 a0 = *(__global const float4 *)(q0 + 0);
                k0_at += 8;
                __global const half *k0 = (__global const half *)k0_at;
                {
                    float4 b = jitcl_load_f16x4(k0 + 0);
                    p00.s0 += a0.s0 * b.s0; p00.s0 += a0.s1 * b.s1; p00.s0 += a0.s2 * b.s2; p00.s0 += a0.s3 * b.s3;
                }
                uintptr_t k1_at = k0_at + k_step;
                __global const half *k1 = (__global const half *)k1_at;
                {
                    float4 b = jitcl_load_f16x4(k1 + 0);
                    p00.s1 += a0.s0 * b.s0; p00.s1 += a0.s1 * b.s1; p00.s1 += a0.s2 * b.s2; p00.s1 += a0.s3 * b.s3;
                }
                uintptr_t k2_at = k1_at + k_step;
                __global const half *k2 = (__global const half *)k2_at;
                {
                    float4 b = jitcl_load_f16x4(k2 + 0);
                    p00.s2 += a0.s0 * b.s0; p00.s2 += a0.s1 * b.s1; p00.s2 += a0.s2 * b.s2; p00.s2 += a0.s3 * b.s3;
                }
                uintptr_t k3_at = k2_at + k_step;
                __global const half *k3 = (__global const half *)k3_at;
                {
                    float4 b = jitcl_load_f16x4(k3 + 0);
                    p00.s3 += a0.s0 * b.s0; p00.s3 += a0.s1 * b.s1; p00.s3 += a0.s2 * b.s2; p00.s3 += a0.s3 * b.s3;
                }
                uintptr_t k4_at = k3_at + k_step;
                __global const half *k4 = (__global const half *)k4_at;
                {
                    float4 b = jitcl_load_f16x4(k4 + 0);
                    p01.s0 += a0.s0 * b.s0; p01.s0 += a0.s1 * b.s1; p01.s0 += a0.s2 * b.s2; p01.s0 += a0.s3 * b.s3;
                }
                uintptr_t k5_at = k4_at + k_step;
                __global const half *k5 = (__global const half *)k5_at;
                {
                    float4 b = jitcl_load_f16x4(k5 + 0);
                    p01.s1 += a0.s0 * b.s0; p01.s1 += a0.s1 * b.s1; p01.s1 += a0.s2 * b.s2; p01.s1 += a0.s3 * b.s3;
                }
                uintptr_t k6_at = k5_at + k_step;
                __global const half *k6 = (__global const half *)k6_at;
                {
                    float4 b = jitcl_load_f16x4(k6 + 0);
                    p01.s2 += a0.s0 * b.s0; p01.s2 += a0.s1 * b.s1; p01.s2 += a0.s2 * b.s2; p01.s2 += a0.s3 * b.s3;
                }
                uintptr_t k7_at = k6_at + k_step;
                __global const half *k7 = (__global const half *)k7_at;
                {
                    float4 b = jitcl_load_f16x4(k7 + 0);
                    p01.s3 += a0.s0 * b.s0; p01.s3 += a0.s1 * b.s1; p01.s3 += a0.s2 * b.s2; p01.s3 += a0.s3 * b.s3;
                }
            }
        }
        int row0 = (split * 2 + image) * 1 + m;
        float less0 = -INFINITY, total0 = 0.0f;
        if (n0 > split * 16) {
            float2 said0 = *(__global const float2 *)(totals + row0 * 2);
            less0 = said0.s0, total0 = said0.s1;
        }
        float high0 = less0;
        for (int end = n0 + block; n0 < end; ++n0) {
            float s0 = n0 < 257 ? attention_1x8_f969f50a04_score(p00.s0, image, m, n0, x3) : -INFINITY;
            p00 = (float4)(p00.s1, p00.s2, p00.s3, p01.s0);
            p01 = (float4)(p01.s1, p01.s2, p01.s3, s0);
            high0 = fmax(high0, s0);
        }
        float zero0 = high0 == -INFINITY ? 0.0f : high0, scale0 = exp(less0 - zero0);
        total0 *= scale0;
        for (int b = 0; b < block; ++b) {
            float s0 = exp(p00.s0 - zero0);
            p00 = (float4)(p00.s1, p00.s2, p00.s3, p01.s0);
            p01 = (float4)(p01.s1, p01.s2, p01.s3, s0);
            total0 += s0;
        }
        *(__global float2 *)(totals + row0 * 2) = (float2)(high0, total0);
        uint v_step = n0 - 8 < 256 ? v_row : 0;
        uintptr_t v0_at = (uintptr_t)((n0 - 8) < 256 ? z0 + ((image * 64) + (n0 - 8) * 128) : z1 + ((image * 64) + ((n0 - 8) - 256) * 128)) - 8;
        uintptr_t y0_at = (uintptr_t)(y + row0 * 64) - 16;
        for (int n = 0; n < width; n += 4) {
            v0_at += 8;
            __global const half *v0 = (__global const half *)v0_at;
            y0_at += 16;
            float4 sum0 = (float4)(0.0f);
            if (n0 > split * 16 + 8) sum0 = *(__global float4 *)y0_at * scale0;
            {
                float4 b = jitcl_load_f16x4(v0 + 0);
                sum0 += p00.s0 * b;
            }
            uintptr_t v1_at = v0_at + v_step;
            __global const half *v1 = (__global const half *)v1_at;
            {
                float4 b = jitcl_load_f16x4(v1 + 0);
                sum0 += p00.s1 * b;
            }
            uintptr_t v2_at = v1_at + v_step;
            __global const half *v2 = (__global const half *)v2_at;
            {
                float4 b = jitcl_load_f16x4(v2 + 0);
                sum0 += p00.s2 * b;
            }
            uintptr_t v3_at = v2_at + v_step;
            __global const half *v3 = (__global const half *)v3_at;
            {
                float4 b = jitcl_load_f16x4(v3 + 0);
                sum0 += p00.s3 * b;
            }
            uintptr_t v4_at = v3_at + v_step;
            __global const half *v4 = (__global const half *)v4_at;
            {
                float4 b = jitcl_load_f16x4(v4 + 0);
                sum0 += p01.s0 * b;
            }
            uintptr_t v5_at = v4_at + v_step;
            __global const half *v5 = (__global const half *)v5_at;
            {
                float4 b = jitcl_load_f16x4(v5 + 0);
                sum0 += p01.s1 * b;
            }
            uintptr_t v6_at = v5_at + v_step;
            __global const half *v6 = (__global const half *)v6_at;
            {
                float4 b = jitcl_load_f16x4(v6 + 0);
                sum0 += p01.s2 * b;
            }
            uintptr_t v7_at = v6_at + v_step;
            __global const half *v7 = (__global const half *)v7_at;
            {
                float4 b = jitcl_load_f16x4(v7 + 0);
                sum0 += p01.s3 * b;
            }
            *(__global float4 *)y0_at = sum0;
        }
    }
}

// matmul_1_join_1: puts together matmul_1: concat + cast + transpose + matmul + add + reduce_max + sub + exp + reduce_sum + reciprocal + mul + concat + cast + transpose + matmul
// from the graph
// parts f32[2176], totals f32[68] -> y f32[1,2,1,64]
// 0 FLOP, 9.49 kB; template attention_opencl
// launch: 128 by 128

void join_915154e34d_store(float v, int image, int m, int n, int at,
    __global float *restrict y)
{
    y[at] = v;
}

__kernel void join_915154e34d(
    __global const float *restrict parts,
    __global const float *restrict totals,
    __global float *restrict y)
{
    int at = get_global_id(0);
    if (at >= 128) return;
    int row = at / 64, n = at % 64, image = row / 1, m = row % 1;
    float most = -INFINITY, sum = 0.0f, total = 0.0f;
    for (int s = 0; s < 17; ++s) most = fmax(most, totals[(s * 2 + row) * 2]);
    most = most == -INFINITY ? 0.0f : most;
    for (int s = 0; s < 17; ++s) {
        int part = s * 2 + row;
        float w = exp(totals[part * 2] - most);
        sum += w * parts[part * 64 + n];
        total += w * totals[part * 2 + 1];
    }
    float v = sum / total;
    join_915154e34d_store(v, image, m, n, at, y);
}
