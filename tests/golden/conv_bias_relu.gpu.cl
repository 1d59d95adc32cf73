// conv_0: conv + add + relu
// from the graph
// x1 f32[32,16,3,3], x0 f32[1,16,14,14], x2 f32[32,1,1] -> y f32[1,32,14,14]
// 1.82 MFLOP, 56.2 kB; template gemm_tiled_opencl
// launch: 896 by 128

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

void gemm_tiled_32x32_88bb1e93a0_store(float v, int image, int m, int n, int at,
    __global const float *restrict x2,
    __global float *restrict y)
{
    y[at] = jitcl_max_f32(v + x2[m], 0.0f);
}

void gemm_tiled_32x32_88bb1e93a0_put(float v, int image, int m, int n, __global const float *restrict x2, __global float *restrict y)
{
    if (m < 32 && n < 196)
        gemm_tiled_32x32_88bb1e93a0_store(v, image, m, n, (image * 32 + m) * 196 + n, x2, y);
}
int gemm_tiled_32x32_88bb1e93a0_a(int image, int m, int k)
{
    return m * 144 + k;
}

float gemm_tiled_32x32_88bb1e93a0_b(int image, int n, int k, __global const float *restrict x0)
{
    int t0 = n % 14 + k % 3 + -1;
    int t1 = n / 14 % 14 + k / 3 % 3 + -1;
    return t1 >= 0 && t1 < 14 && t0 >= 0 && t0 < 14 && n < 196 && k < 144 ? x0[k / 9 % 16 * 196 + t1 * 14 + t0] : 0.0f;
}

__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void gemm_tiled_32x32_88bb1e93a0(
    __global const float *restrict x1,
    __global const float *restrict x0,
    __global const float *restrict x2,
    __global float *restrict y)
{
    __local float4 a_quads[576], b_quads[576];
    __local float *a_tile = (__local float *)a_quads, *b_tile = (__local float *)b_quads;
    __local float sums[256];
    int lid = get_local_id(0), rest = get_group_id(0);
    int n0 = rest % 7 * 32;
    rest /= 7;
    int m0 = rest % 1 * 32;
    rest /= 1;
    int image = rest % 1, split = rest / 1;
    int place = lid % 64, slice = lid / 64;
    int tn = place % 8, tm = place / 8;       // in quads
    float c00 = 0.0f, c01 = 0.0f, c02 = 0.0f, c03 = 0.0f;
    float c10 = 0.0f, c11 = 0.0f, c12 = 0.0f, c13 = 0.0f;
    float c20 = 0.0f, c21 = 0.0f, c22 = 0.0f, c23 = 0.0f;
    float c30 = 0.0f, c31 = 0.0f, c32 = 0.0f, c33 = 0.0f;
    int a_step = 0, b_step = 0;      // where the step begins that is in use
    int end = min((split + 1) * 160, 144);
    int k0 = split * 160;
    float4 a0, a1;
    float b0, b1, b2, b3, b4, b5, b6, b7;
        a0 = k0 + (lid + 0) % 8 * 4 < 144 ? *(__global const float4 *)(x1 + gemm_tiled_32x32_88bb1e93a0_a(image, m0 + (lid + 0) / 8, k0 + (lid + 0) % 8 * 4)) : (float4)(0.0f);
        a1 = k0 + (lid + 128) % 8 * 4 < 144 ? *(__global const float4 *)(x1 + gemm_tiled_32x32_88bb1e93a0_a(image, m0 + (lid + 128) / 8, k0 + (lid + 128) % 8 * 4)) : (float4)(0.0f);
        b0 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 0) % 32, k0 + (lid + 0) / 32, x0);
        b1 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 128) % 32, k0 + (lid + 128) / 32, x0);
        b2 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 256) % 32, k0 + (lid + 256) / 32, x0);
        b3 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 384) % 32, k0 + (lid + 384) / 32, x0);
        b4 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 512) % 32, k0 + (lid + 512) / 32, x0);
        b5 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 640) % 32, k0 + (lid + 640) / 32, x0);
        b6 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 768) % 32, k0 + (lid + 768) / 32, x0);
        b7 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 896) % 32, k0 + (lid + 896) / 32, x0);
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4) * 36 + (lid + 0) / 8] = a0.s0;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 1) * 36 + (lid + 0) / 8] = a0.s1;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 2) * 36 + (lid + 0) / 8] = a0.s2;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 3) * 36 + (lid + 0) / 8] = a0.s3;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4) * 36 + (lid + 128) / 8] = a1.s0;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 1) * 36 + (lid + 128) / 8] = a1.s1;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 2) * 36 + (lid + 128) / 8] = a1.s2;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 3) * 36 + (lid + 128) / 8] = a1.s3;
        b_tile[b_step * 4 + (lid + 0) / 32 * 36 + (lid + 0) % 32] = b0;
        b_tile[b_step * 4 + (lid + 128) / 32 * 36 + (lid + 128) % 32] = b1;
        b_tile[b_step * 4 + (lid + 256) / 32 * 36 + (lid + 256) % 32] = b2;
        b_tile[b_step * 4 + (lid + 384) / 32 * 36 + (lid + 384) % 32] = b3;
        b_tile[b_step * 4 + (lid + 512) / 32 * 36 + (lid + 512) % 32] = b4;
        b_tile[b_step * 4 + (lid + 640) / 32 * 36 + (lid + 640) % 32] = b5;
        b_tile[b_step * 4 + (lid + 768) / 32 * 36 + (lid + 768) % 32] = b6;
        b_tile[b_step * 4 + (lid + 896) / 32 * 36 + (lid + 896) % 32] = b7;

    barrier(CLK_LOCAL_MEM_FENCE);
    for (k0 += 32; k0 < end; k0 += 32) {
        a0 = k0 + (lid + 0) % 8 * 4 < 144 ? *(__global const float4 *)(x1 + gemm_tiled_32x32_88bb1e93a0_a(image, m0 + (lid + 0) / 8, k0 + (lid + 0) % 8 * 4)) : (float4)(0.0f);
        a1 = k0 + (lid + 128) % 8 * 4 < 144 ? *(__global const float4 *)(x1 + gemm_tiled_32x32_88bb1e93a0_a(image, m0 + (lid + 128) / 8, k0 + (lid + 128) % 8 * 4)) : (float4)(0.0f);
        b0 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 0) % 32, k0 + (lid + 0) / 32, x0);
        b1 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 128) % 32, k0 + (lid + 128) / 32, x0);
        b2 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 256) % 32, k0 + (lid + 256) / 32, x0);
        b3 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 384) % 32, k0 + (lid + 384) / 32, x0);
        b4 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 512) % 32, k0 + (lid + 512) / 32, x0);
        b5 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 640) % 32, k0 + (lid + 640) / 32, x0);
        b6 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 768) % 32, k0 + (lid + 768) / 32, x0);
        b7 = gemm_tiled_32x32_88bb1e93a0_b(image, n0 + (lid + 896) % 32, k0 + (lid + 896) / 32, x0);
#pragma unroll
        for (int kk = slice * 16; kk < slice * 16 + 16; ++kk) {
            float4 p0 = a_quads[a_step + kk * 9 + tm + 0];
            float4 q0 = b_quads[b_step + kk * 9 + tn + 0];
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

        a_step = 288 - a_step, b_step = 288 - b_step;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4) * 36 + (lid + 0) / 8] = a0.s0;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 1) * 36 + (lid + 0) / 8] = a0.s1;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 2) * 36 + (lid + 0) / 8] = a0.s2;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 3) * 36 + (lid + 0) / 8] = a0.s3;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4) * 36 + (lid + 128) / 8] = a1.s0;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 1) * 36 + (lid + 128) / 8] = a1.s1;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 2) * 36 + (lid + 128) / 8] = a1.s2;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 3) * 36 + (lid + 128) / 8] = a1.s3;
        b_tile[b_step * 4 + (lid + 0) / 32 * 36 + (lid + 0) % 32] = b0;
        b_tile[b_step * 4 + (lid + 128) / 32 * 36 + (lid + 128) % 32] = b1;
        b_tile[b_step * 4 + (lid + 256) / 32 * 36 + (lid + 256) % 32] = b2;
        b_tile[b_step * 4 + (lid + 384) / 32 * 36 + (lid + 384) % 32] = b3;
        b_tile[b_step * 4 + (lid + 512) / 32 * 36 + (lid + 512) % 32] = b4;
        b_tile[b_step * 4 + (lid + 640) / 32 * 36 + (lid + 640) % 32] = b5;
        b_tile[b_step * 4 + (lid + 768) / 32 * 36 + (lid + 768) % 32] = b6;
        b_tile[b_step * 4 + (lid + 896) / 32 * 36 + (lid + 896) % 32] = b7;

        barrier(CLK_LOCAL_MEM_FENCE);
    }
#pragma unroll
        for (int kk = slice * 16; kk < slice * 16 + 16; ++kk) {
            float4 p0 = a_quads[a_step + kk * 9 + tm + 0];
            float4 q0 = b_quads[b_step + kk * 9 + tn + 0];
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

    if (slice > 0) {
        sums[((slice - 1) * 4 + 0) * 64 + place] = c00;
        sums[((slice - 1) * 4 + 1) * 64 + place] = c10;
        sums[((slice - 1) * 4 + 2) * 64 + place] = c20;
        sums[((slice - 1) * 4 + 3) * 64 + place] = c30;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0) {
        c00 += sums[0 + place];
        c10 += sums[64 + place];
        c20 += sums[128 + place];
        c30 += sums[192 + place];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) {
        sums[((slice - 1) * 4 + 0) * 64 + place] = c01;
        sums[((slice - 1) * 4 + 1) * 64 + place] = c11;
        sums[((slice - 1) * 4 + 2) * 64 + place] = c21;
        sums[((slice - 1) * 4 + 3) * 64 + place] = c31;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0) {
        c01 += sums[0 + place];
        c11 += sums[64 + place];
        c21 += sums[128 + place];
        c31 += sums[192 + place];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) {
        sums[((slice - 1) * 4 + 0) * 64 + place] = c02;
        sums[((slice - 1) * 4 + 1) * 64 + place] = c12;
        sums[((slice - 1) * 4 + 2) * 64 + place] = c22;
        sums[((slice - 1) * 4 + 3) * 64 + place] = c32;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0) {
        c02 += sums[0 + place];
        c12 += sums[64 + place];
        c22 += sums[128 + place];
        c32 += sums[192 + place];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) {
        sums[((slice - 1) * 4 + 0) * 64 + place] = c03;
        sums[((slice - 1) * 4 + 1) * 64 + place] = c13;
        sums[((slice - 1) * 4 + 2) * 64 + place] = c23;
        sums[((slice - 1) * 4 + 3) * 64 + place] = c33;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0) {
        c03 += sums[0 + place];
        c13 += sums[64 + place];
        c23 += sums[128 + place];
        c33 += sums[192 + place];
    }
    if (slice > 0) return;
    m0 += tm * 4;
    n0 += tn * 4;
    gemm_tiled_32x32_88bb1e93a0_put(c00, image, m0 + 0, n0 + 0, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c01, image, m0 + 0, n0 + 1, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c02, image, m0 + 0, n0 + 2, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c03, image, m0 + 0, n0 + 3, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c10, image, m0 + 1, n0 + 0, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c11, image, m0 + 1, n0 + 1, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c12, image, m0 + 1, n0 + 2, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c13, image, m0 + 1, n0 + 3, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c20, image, m0 + 2, n0 + 0, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c21, image, m0 + 2, n0 + 1, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c22, image, m0 + 2, n0 + 2, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c23, image, m0 + 2, n0 + 3, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c30, image, m0 + 3, n0 + 0, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c31, image, m0 + 3, n0 + 1, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c32, image, m0 + 3, n0 + 2, x2, y);
    gemm_tiled_32x32_88bb1e93a0_put(c33, image, m0 + 3, n0 + 3, x2, y);
}
