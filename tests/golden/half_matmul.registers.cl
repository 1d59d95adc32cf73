// matmul_0: matmul + relu
// from the graph
// x0 f16[64,96], x1 packed f16[1,10,96,4] -> y f16[64,40]
// 494 kFLOP, 25.1 kB; template gemm_opencl
// launch: 10x32x1 by 2x32x1; m_tiles 32, n_tiles 10, m_count 64, n_count 40, k_count 96, a_image 6144, a_tile 192, a_period 1, b_image 3840, b_panel 384

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#ifndef JITCL_FROM_HALFX4
#define JITCL_FROM_HALFX4
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
float4 jitcl_from_halfx4(half4 a)
{
    return (float4)((float)a.s0, (float)a.s1, (float)a.s2, (float)a.s3);
}
#endif
#ifndef JITCL_MAX_F32X4
#define JITCL_MAX_F32X4
float4 jitcl_max_f32x4(float4 a, float4 b)
{
    return select(b, a, isgreater(a, b) | isnan(a));
}
#endif

#ifndef JITCL_TO_HALFX4
#define JITCL_TO_HALFX4
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
half4 jitcl_to_halfx4(float4 a)
{
    return (half4)((half)a.s0, (half)a.s1, (half)a.s2, (half)a.s3);
}
#endif

void gemm_2x1x4_ebaa27f4c9_store(float4 v, int image, int m, int n, int at,
    __global half *restrict y)
{
    *(__global half4 *)(y + at) = jitcl_to_halfx4(jitcl_max_f32x4(v, (float4)(0.0f)));
}

__kernel void gemm_2x1x4_ebaa27f4c9(
    __global const half *restrict a,
    __global const half *restrict b,
    __global half *restrict y,
int m_tiles, int n_tiles, int m_count, int n_count, int k_count, int a_image, int a_tile, int a_period, int b_image, int b_panel)
{
    int nt = get_global_id(0), mt = get_global_id(1), image = get_global_id(2);
    if (nt >= n_tiles || mt >= m_tiles) return;
    {
        int m0 = min(mt * 2, m_count - 2);
        int n0 = min(nt * 4 + 0, n_count - 4);
        __global const half *bk = b + image * b_image + nt * b_panel;
        __global const half *a0 = a + (image % a_period) * a_image + (m0 + 0) * k_count;
        __global const half *a1 = a + (image % a_period) * a_image + (m0 + 1) * k_count;
        float4 c00 = (float4)(0.0f);
        float4 c10 = (float4)(0.0f);
        for (int k = 0; k < k_count;) {
            half4 h00 = (half4)((half)0.0f), h10 = (half4)((half)0.0f);
            for (int end = min(k + 16, k_count); k < end; k += 4) {
                half4 r0 = *(__global const half4 *)(a0 + k);
                half4 r1 = *(__global const half4 *)(a1 + k);
                half8 p0 = *(__global const half8 *)(bk + 0), p1 = *(__global const half8 *)(bk + 8);
                {
                    half4 b0 = p0.lo;
                    half s0 = r0.s0;
                    h00 += s0 * b0;
                    half s1 = r1.s0;
                    h10 += s1 * b0;
                }
                {
                    half4 b0 = p0.hi;
                    half s0 = r0.s1;
                    h00 += s0 * b0;
                    half s1 = r1.s1;
                    h10 += s1 * b0;
                }
                {
                    half4 b0 = p1.lo;
                    half s0 = r0.s2;
                    h00 += s0 * b0;
                    half s1 = r1.s2;
                    h10 += s1 * b0;
                }
                {
                    half4 b0 = p1.hi;
                    half s0 = r0.s3;
                    h00 += s0 * b0;
                    half s1 = r1.s3;
                    h10 += s1 * b0;
                }
                bk += 16;
            }
            c00 += jitcl_from_halfx4(h00); c10 += jitcl_from_halfx4(h10);
        }
        int at = (image * m_count + m0) * n_count + n0;
        gemm_2x1x4_ebaa27f4c9_store(c00, image, m0 + 0, n0, at, y);
        gemm_2x1x4_ebaa27f4c9_store(c10, image, m0 + 1, n0, at + 1 * n_count, y);
    }
}
