// matmul_0: matmul + add
// from the graph
// x0 f32[64,96], x1 f32[96,40], x2 f32[40] -> y f32[64,40]
// 494 kFLOP, 50.3 kB; template gemm_tiled_opencl
// launch: 256 by 256

void gemm_tiled_64x64_8fa3ee4e22_store(float v, int image, int m, int n, int at,
    __global const float *restrict x2,
    __global float *restrict y)
{
    y[at] = v + x2[n];
}

void gemm_tiled_64x64_8fa3ee4e22_put(float v, int image, int m, int n, __global const float *restrict x2, __global float *restrict y)
{
    if (m < 64 && n < 40)
        gemm_tiled_64x64_8fa3ee4e22_store(v, image, m, n, (image * 64 + m) * 40 + n, x2, y);
}
float gemm_tiled_64x64_8fa3ee4e22_a(int image, int m, int k, __global const float *restrict x0)
{
    return x0[m * 96 + k];
}

float gemm_tiled_64x64_8fa3ee4e22_b(int image, int n, int k, __global const float *restrict x1)
{
    return n < 40 ? x1[k * 40 + n] : 0.0f;
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void gemm_tiled_64x64_8fa3ee4e22(
    __global const float *restrict x0,
    __global const float *restrict x1,
    __global const float *restrict x2,
    __global float *restrict y)
{
    __local float4 a_quads[544], b_quads[544];
    __local float *a_tile = (__local float *)a_quads, *b_tile = (__local float *)b_quads;
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
    float a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7;
        a0 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 0) / 32, k0 + (lid + 0) % 32, x0);
        a1 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 256) / 32, k0 + (lid + 256) % 32, x0);
        a2 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 512) / 32, k0 + (lid + 512) % 32, x0);
        a3 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 768) / 32, k0 + (lid + 768) % 32, x0);
        a4 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1024) / 32, k0 + (lid + 1024) % 32, x0);
        a5 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1280) / 32, k0 + (lid + 1280) % 32, x0);
        a6 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1536) / 32, k0 + (lid + 1536) % 32, x0);
        a7 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1792) / 32, k0 + (lid + 1792) % 32, x0);
        b0 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 0) % 64, k0 + (lid + 0) / 64, x1);
        b1 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 256) % 64, k0 + (lid + 256) / 64, x1);
        b2 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 512) % 64, k0 + (lid + 512) / 64, x1);
        b3 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 768) % 64, k0 + (lid + 768) / 64, x1);
        b4 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1024) % 64, k0 + (lid + 1024) / 64, x1);
        b5 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1280) % 64, k0 + (lid + 1280) / 64, x1);
        b6 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1536) % 64, k0 + (lid + 1536) / 64, x1);
        b7 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1792) % 64, k0 + (lid + 1792) / 64, x1);

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
        a0 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 0) / 32, k0 + (lid + 0) % 32, x0);
        a1 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 256) / 32, k0 + (lid + 256) % 32, x0);
        a2 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 512) / 32, k0 + (lid + 512) % 32, x0);
        a3 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 768) / 32, k0 + (lid + 768) % 32, x0);
        a4 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1024) / 32, k0 + (lid + 1024) % 32, x0);
        a5 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1280) / 32, k0 + (lid + 1280) % 32, x0);
        a6 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1536) / 32, k0 + (lid + 1536) % 32, x0);
        a7 = gemm_tiled_64x64_8fa3ee4e22_a(image, m0 + (lid + 1792) / 32, k0 + (lid + 1792) % 32, x0);
        b0 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 0) % 64, k0 + (lid + 0) / 64, x1);
        b1 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 256) % 64, k0 + (lid + 256) / 64, x1);
        b2 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 512) % 64, k0 + (lid + 512) / 64, x1);
        b3 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 768) % 64, k0 + (lid + 768) / 64, x1);
        b4 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1024) % 64, k0 + (lid + 1024) / 64, x1);
        b5 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1280) % 64, k0 + (lid + 1280) / 64, x1);
        b6 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1536) % 64, k0 + (lid + 1536) / 64, x1);
        b7 = gemm_tiled_64x64_8fa3ee4e22_b(image, n0 + (lid + 1792) % 64, k0 + (lid + 1792) / 64, x1);

        }
        for (int kk = 0; kk < 32; ++kk) {
            float4 p0 = a_quads[(kk * 68 + tm) / 4 + 0];
            float4 q0 = b_quads[(kk * 68 + tn) / 4 + 0];
            c00 += p0.s0 * q0.s0;
            c01 += p0.s0 * q0.s1;
            c02 += p0.s0 * q0.s2;
            c03 += p0.s0 * q0.s3;
            c10 += p0.s1 * q0.s0;
            c11 += p0.s1 * q0.s1;
            c12 += p0.s1 * q0.s2;
            c13 += p0.s1 * q0.s3;
            c20 += p0.s2 * q0.s0;
            c21 += p0.s2 * q0.s1;
            c22 += p0.s2 * q0.s2;
            c23 += p0.s2 * q0.s3;
            c30 += p0.s3 * q0.s0;
            c31 += p0.s3 * q0.s1;
            c32 += p0.s3 * q0.s2;
            c33 += p0.s3 * q0.s3;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    m0 += tm;
    n0 += tn;
    gemm_tiled_64x64_8fa3ee4e22_put(c00, image, m0 + 0, n0 + 0, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c01, image, m0 + 0, n0 + 1, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c02, image, m0 + 0, n0 + 2, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c03, image, m0 + 0, n0 + 3, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c10, image, m0 + 1, n0 + 0, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c11, image, m0 + 1, n0 + 1, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c12, image, m0 + 1, n0 + 2, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c13, image, m0 + 1, n0 + 3, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c20, image, m0 + 2, n0 + 0, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c21, image, m0 + 2, n0 + 1, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c22, image, m0 + 2, n0 + 2, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c23, image, m0 + 2, n0 + 3, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c30, image, m0 + 3, n0 + 0, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c31, image, m0 + 3, n0 + 1, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c32, image, m0 + 3, n0 + 2, x2, y);
    gemm_tiled_64x64_8fa3ee4e22_put(c33, image, m0 + 3, n0 + 3, x2, y);
}
