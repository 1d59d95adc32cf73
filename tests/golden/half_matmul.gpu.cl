// matmul_0: matmul + relu
// from the graph
// x0 f16[64,96], x1 f16[96,40] -> y f16[64,40]
// 494 kFLOP, 25.1 kB; template gemm_tiled_opencl
// launch: 256 by 256

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

void gemm_tiled_64x64_7d75eae03c_store(float v, int image, int m, int n, int at,
    __global half *restrict y)
{
    vstore_half_rte(jitcl_max_f32(v, 0.0f), at, y);
}

void gemm_tiled_64x64_7d75eae03c_put(float v, int image, int m, int n, __global half *restrict y)
{
    if (m < 64 && n < 40)
        gemm_tiled_64x64_7d75eae03c_store(v, image, m, n, (image * 64 + m) * 40 + n, y);
}
half gemm_tiled_64x64_7d75eae03c_a(int image, int m, int k, __global const half *restrict x0)
{
    return x0[m * 96 + k];
}

half gemm_tiled_64x64_7d75eae03c_b(int image, int n, int k, __global const half *restrict x1)
{
    return n < 40 ? x1[k * 40 + n] : (half)0.0f;
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void gemm_tiled_64x64_7d75eae03c(
    __global const half *restrict x0,
    __global const half *restrict x1,
    __global half *restrict y)
{
    __local half4 a_quads[544], b_quads[544];
    __local half *a_tile = (__local half *)a_quads, *b_tile = (__local half *)b_quads;
    int lid = get_local_id(0), rest = get_group_id(0);
    int n0 = rest % 1 * 64;
    rest /= 1;
    int m0 = rest % 1 * 64;
    rest /= 1;
    int image = rest % 1, split = rest / 1;
    int tn = lid % 16 * 4, tm = lid / 16 * 4;
    float c00 = 0.0f, c01 = 0.0f, c02 = 0.0f, c03 = 0.0f;
    float c10 = 0.0f, c11 = 0.0f, c12 = 0.0f, c13 = 0.0f;
    float c20 = 0.0f, c21 = 0.0f, c22 = 0.0f, c23 = 0.0f;
    float c30 = 0.0f, c31 = 0.0f, c32 = 0.0f, c33 = 0.0f;
    int end = min((split + 1) * 96, 96);
    int k0 = split * 96;
    half a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7;
        a0 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 0) / 32, k0 + (lid + 0) % 32, x0);
        a1 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 256) / 32, k0 + (lid + 256) % 32, x0);
        a2 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 512) / 32, k0 + (lid + 512) % 32, x0);
        a3 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 768) / 32, k0 + (lid + 768) % 32, x0);
        a4 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1024) / 32, k0 + (lid + 1024) % 32, x0);
        a5 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1280) / 32, k0 + (lid + 1280) % 32, x0);
        a6 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1536) / 32, k0 + (lid + 1536) % 32, x0);
        a7 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1792) / 32, k0 + (lid + 1792) % 32, x0);
        b0 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 0) % 64, k0 + (lid + 0) / 64, x1);
        b1 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 256) % 64, k0 + (lid + 256) / 64, x1);
        b2 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 512) % 64, k0 + (lid + 512) / 64, x1);
        b3 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 768) % 64, k0 + (lid + 768) / 64, x1);
        b4 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1024) % 64, k0 + (lid + 1024) / 64, x1);
        b5 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1280) % 64, k0 + (lid + 1280) / 64, x1);
        b6 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1536) % 64, k0 + (lid + 1536) / 64, x1);
        b7 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1792) % 64, k0 + (lid + 1792) / 64, x1);

    while (k0 < end) {
        a_tile[(lid + 0) % 32 * 68 + (lid + 0) / 32] = a0;
        a_tile[(lid + 256) % 32 * 68 + (lid + 256) / 32] = a1;
        a_tile[(lid + 512) % 32 * 68 + (lid + 512) / 32] = a2;
        a_tile[(lid + 768) % 32 * 68 + (lid + 768) / 32] = a3;
        a_tile[(lid + 1024) % 32 * 68 + (lid + 1024) / 32] = a4;
        a_tile[(lid + 1280) % 32 * 68 + (lid + 1280) / 32] = a5;
        a_tile[(lid + 1536) % 32 * 68 + (lid + 1536) / 32] = a6;
        a_tile[(lid + 1792) % 32 * 68 + (lid + 1792) / 32] = a7;
        b_tile[(lid + 0) / 64 * 68 + (lid + 0) % 64] = b0;
        b_tile[(lid + 256) / 64 * 68 + (lid + 256) % 64] = b1;
        b_tile[(lid + 512) / 64 * 68 + (lid + 512) % 64] = b2;
        b_tile[(lid + 768) / 64 * 68 + (lid + 768) % 64] = b3;
        b_tile[(lid + 1024) / 64 * 68 + (lid + 1024) % 64] = b4;
        b_tile[(lid + 1280) / 64 * 68 + (lid + 1280) % 64] = b5;
        b_tile[(lid + 1536) / 64 * 68 + (lid + 1536) % 64] = b6;
        b_tile[(lid + 1792) / 64 * 68 + (lid + 1792) % 64] = b7;

        barrier(CLK_LOCAL_MEM_FENCE);
        k0 += 32;
        if (k0 < end) {
        a0 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 0) / 32, k0 + (lid + 0) % 32, x0);
        a1 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 256) / 32, k0 + (lid + 256) % 32, x0);
        a2 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 512) / 32, k0 + (lid + 512) % 32, x0);
        a3 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 768) / 32, k0 + (lid + 768) % 32, x0);
        a4 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1024) / 32, k0 + (lid + 1024) % 32, x0);
        a5 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1280) / 32, k0 + (lid + 1280) % 32, x0);
        a6 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1536) / 32, k0 + (lid + 1536) % 32, x0);
        a7 = gemm_tiled_64x64_7d75eae03c_a(image, m0 + (lid + 1792) / 32, k0 + (lid + 1792) % 32, x0);
        b0 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 0) % 64, k0 + (lid + 0) / 64, x1);
        b1 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 256) % 64, k0 + (lid + 256) / 64, x1);
        b2 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 512) % 64, k0 + (lid + 512) / 64, x1);
        b3 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 768) % 64, k0 + (lid + 768) / 64, x1);
        b4 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1024) % 64, k0 + (lid + 1024) / 64, x1);
        b5 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1280) % 64, k0 + (lid + 1280) / 64, x1);
        b6 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1536) % 64, k0 + (lid + 1536) / 64, x1);
        b7 = gemm_tiled_64x64_7d75eae03c_b(image, n0 + (lid + 1792) % 64, k0 + (lid + 1792) / 64, x1);

        }
        for (int kk = 0; kk < 32; kk += 16) {
            half4 h00 = (half4)((half)0.0f);
            half4 h10 = (half4)((half)0.0f);
            half4 h20 = (half4)((half)0.0f);
            half4 h30 = (half4)((half)0.0f);
            for (int ks = kk; ks < kk + 16; ++ks) {
                half4 p0 = a_quads[(ks * 68 + tm) / 4 + 0];
                half4 q0 = b_quads[(ks * 68 + tn) / 4 + 0];
                h00 += p0.s0 * q0;
                h10 += p0.s1 * q0;
                h20 += p0.s2 * q0;
                h30 += p0.s3 * q0;
            }
            c00 += (float)h00.s0;
            c01 += (float)h00.s1;
            c02 += (float)h00.s2;
            c03 += (float)h00.s3;
            c10 += (float)h10.s0;
            c11 += (float)h10.s1;
            c12 += (float)h10.s2;
            c13 += (float)h10.s3;
            c20 += (float)h20.s0;
            c21 += (float)h20.s1;
            c22 += (float)h20.s2;
            c23 += (float)h20.s3;
            c30 += (float)h30.s0;
            c31 += (float)h30.s1;
            c32 += (float)h30.s2;
            c33 += (float)h30.s3;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    m0 += tm;
    n0 += tn;
    gemm_tiled_64x64_7d75eae03c_put(c00, image, m0 + 0, n0 + 0, y);
    gemm_tiled_64x64_7d75eae03c_put(c01, image, m0 + 0, n0 + 1, y);
    gemm_tiled_64x64_7d75eae03c_put(c02, image, m0 + 0, n0 + 2, y);
    gemm_tiled_64x64_7d75eae03c_put(c03, image, m0 + 0, n0 + 3, y);
    gemm_tiled_64x64_7d75eae03c_put(c10, image, m0 + 1, n0 + 0, y);
    gemm_tiled_64x64_7d75eae03c_put(c11, image, m0 + 1, n0 + 1, y);
    gemm_tiled_64x64_7d75eae03c_put(c12, image, m0 + 1, n0 + 2, y);
    gemm_tiled_64x64_7d75eae03c_put(c13, image, m0 + 1, n0 + 3, y);
    gemm_tiled_64x64_7d75eae03c_put(c20, image, m0 + 2, n0 + 0, y);
    gemm_tiled_64x64_7d75eae03c_put(c21, image, m0 + 2, n0 + 1, y);
    gemm_tiled_64x64_7d75eae03c_put(c22, image, m0 + 2, n0 + 2, y);
    gemm_tiled_64x64_7d75eae03c_put(c23, image, m0 + 2, n0 + 3, y);
    gemm_tiled_64x64_7d75eae03c_put(c30, image, m0 + 3, n0 + 0, y);
    gemm_tiled_64x64_7d75eae03c_put(c31, image, m0 + 3, n0 + 1, y);
    gemm_tiled_64x64_7d75eae03c_put(c32, image, m0 + 3, n0 + 2, y);
    gemm_tiled_64x64_7d75eae03c_put(c33, image, m0 + 3, n0 + 3, y);
}
