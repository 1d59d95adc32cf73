// conv_0: conv + add + relu
// from the graph
// x1 packed f32[1,8,16,4], x0 f32[1,16,28,28], x2 f32[32,1,1] -> y f32[1,32,28,28]
// 853 kFLOP, 153 kB; template conv_opencl
// launch: 196x8x1 by 4x8x1; m_tiles 8, n_tiles 196, m_count 32, n_count 784, k_count 16, a_image 512, a_tile 64, a_period 1, b_image 12544, b_panel 64

#ifndef JITCL_MAX_F32X4
#define JITCL_MAX_F32X4
float4 jitcl_max_f32x4(float4 a, float4 b)
{
    return select(b, a, isgreater(a, b) | isnan(a));
}
#endif

void gemm_4x1x4_fa19de7a2e_store(float4 v, int image, int m, int n, int at,
    __global const float *restrict x2,
    __global float *restrict y)
{
    *(__global float4 *)(y + at) = jitcl_max_f32x4(v + x2[m], (float4)(0.0f));
}

__kernel void gemm_4x1x4_fa19de7a2e(
    __global const float *restrict a,
    __global const float *restrict b,
    __global const float *restrict x2,
    __global float *restrict y,
int m_tiles, int n_tiles, int m_count, int n_count, int k_count, int a_image, int a_tile, int a_period, int b_image, int b_panel)
{
    int nt = get_global_id(0), mt = get_global_id(1), image = get_global_id(2);
    if (nt >= n_tiles || mt >= m_tiles) return;
    {
        int m0 = min(mt * 4, m_count - 4);
        int n0 = min(nt * 4 + 0, n_count - 4);
        uint b_step = (uint)n_count * 4;
        uintptr_t bk0_at = (uintptr_t)(b + image * b_image + n0) - b_step;
        uintptr_t ak_at = (uintptr_t)(a + (image % a_period) * a_image + mt * a_tile) - 16;
        float4 c00 = (float4)(0.0f);
        float4 c10 = (float4)(0.0f);
        float4 c20 = (float4)(0.0f);
        float4 c30 = (float4)(0.0f);
        int at = (image * m_count + m0) * n_count + n0;
        for (int k = 0; k < k_count; ++k) {
            ak_at += 16;
            __global const float *ak = (__global const float *)ak_at;
            float4 ak0 = *(__global const float4 *)(ak + 0);
            bk0_at += b_step;
            __global const float *bk0 = (__global const float *)bk0_at;
            float4 b0 = *(__global const float4 *)(bk0 + 0);
            float s0 = ak0.s0;
            c00 += s0 * b0;
            float s1 = ak0.s1;
            c10 += s1 * b0;
            float s2 = ak0.s2;
            c20 += s2 * b0;
            float s3 = ak0.s3;
            c30 += s3 * b0;
        }
        if (0 < m_count) gemm_4x1x4_fa19de7a2e_store(c00, image, m0 + 0, n0, at, x2, y);
        if (1 < m_count) gemm_4x1x4_fa19de7a2e_store(c10, image, m0 + 1, n0, at + 1 * n_count, x2, y);
        if (2 < m_count) gemm_4x1x4_fa19de7a2e_store(c20, image, m0 + 2, n0, at + 2 * n_count, x2, y);
        if (3 < m_count) gemm_4x1x4_fa19de7a2e_store(c30, image, m0 + 3, n0, at + 3 * n_count, x2, y);
    }
}
