// conv_0: conv + add + relu
// from the graph
// x1 f32[32,16,3,3], x0 f32[1,16,14,14], x2 f32[32,1,1] -> y f32[1,32,14,14]
// 1.82 MFLOP, 56.2 kB; template gemm_tiled_opencl
// launch: 896 by 128; size0 144, size1 32, size2 1227133514, size3 2, size4 14, size5 14, size6 14, size7 196, size8 144, size9 1908874354, size10 2, size11 196, size12 14, size13 196, size14 32, size15 196, size16 144, size17 160, size18 1, size19 7

#ifndef JITCL_QUOTIENT_I32
#define JITCL_QUOTIENT_I32
int jitcl_quotient_i32(int a, int factor, int shift)
{
    return (int)(mul_hi((uint)a, (uint)factor) >> shift);
}
#endif

#ifndef JITCL_MAX_F32X4
#define JITCL_MAX_F32X4
float4 jitcl_max_f32x4(float4 a, float4 b)
{
    return select(b, a, isgreater(a, b) | isnan(a));
}
#endif

void gemm_tiled_32x32_9e043ae82c_store(float4 v, int image, int m, int n, int at,
    __global const float *restrict x2,
    __global float *restrict y)
{
    *(__global float4 *)(y + at) = jitcl_max_f32x4(v + x2[m], (float4)(0.0f));
}

void gemm_tiled_32x32_9e043ae82c_put(float4 v, int image, int m, int n, __global const float *restrict x2, __global float *restrict y, int size0, int size1, int size2, int size3, int size4, int size5, int size6, int size7, int size8, int size9, int size10, int size11, int size12, int size13, int size14, int size15, int size16, int size17, int size18, int size19)
{
    if (m < size14 && n < size15)
        gemm_tiled_32x32_9e043ae82c_store(v, image, m, n, (image * size14 + m) * size15 + n, x2, y);
}
int gemm_tiled_32x32_9e043ae82c_a(int image, int m, int k, int size0)
{
    return m * size0 + k;
}

float gemm_tiled_32x32_9e043ae82c_b(int image, int n, int k, __global const float *restrict x1, int size2, int size3, int size4, int size5, int size6, int size7, int size8, int size9, int size10, int size11, int size12)
{
    int j0 = n - jitcl_quotient_i32(n, size2, size3) * size4 + k % 3 + -1;
    int j1 = jitcl_quotient_i32(n, size2, size3) + k / 3 % 3 + -1;
    return j1 >= 0 && j1 < size5 && j0 >= 0 && j0 < size6 && n < size7 && k < size8 ? x1[jitcl_quotient_i32(k, size9, size10) * size11 + j0 + j1 * size12] : 0.0f;
}

__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void gemm_tiled_32x32_9e043ae82c(
    __global const float *restrict x0,
    __global const float *restrict x1,
    __global const float *restrict x2,
    __global float *restrict y, int size0, int size1, int size2, int size3, int size4, int size5, int size6, int size7, int size8, int size9, int size10, int size11, int size12, int size13, int size14, int size15, int size16, int size17, int size18, int size19)
{
    __local float4 a_quads[576], b_quads[576];
    __local float *a_tile = (__local float *)a_quads, *b_tile = (__local float *)b_quads;
    __local float sums[256];
    int lid = get_local_id(0), rest = get_group_id(0);
    int n0 = rest % size19 * 32;
    rest /= size19;
    int m0 = rest % size18 * 32;
    rest /= size18;
    int image = rest % 1, split = rest / 1;
    int place = lid % 64, slice = lid / 64;
    int tn = place % 8, tm = place / 8;       // in quads
    float c00 = 0.0f, c01 = 0.0f, c02 = 0.0f, c03 = 0.0f;
    float c10 = 0.0f, c11 = 0.0f, c12 = 0.0f, c13 = 0.0f;
    float c20 = 0.0f, c21 = 0.0f, c22 = 0.0f, c23 = 0.0f;
    float c30 = 0.0f, c31 = 0.0f, c32 = 0.0f, c33 = 0.0f;
    int a_step = 0, b_step = 0;      // where the step begins that is in use
    int end = min((split + 1) * size17, size16);
    int k0 = split * size17;
    float4 a0, a1;
    float b0, b1, b2, b3, b4, b5, b6, b7;
        a0 = m0 + (lid + 0) / 8 < size1 && k0 + (lid + 0) % 8 * 4 < size16 ? *(__global const float4 *)(x0 + gemm_tiled_32x32_9e043ae82c_a(image, m0 + (lid + 0) / 8, k0 + (lid + 0) % 8 * 4, size0)) : (float4)(0.0f);
        a1 = m0 + (lid + 128) / 8 < size1 && k0 + (lid + 128) % 8 * 4 < size16 ? *(__global const float4 *)(x0 + gemm_tiled_32x32_9e043ae82c_a(image, m0 + (lid + 128) / 8, k0 + (lid + 128) % 8 * 4, size0)) : (float4)(0.0f);
        b0 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 0) % 32, k0 + (lid + 0) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b1 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 128) % 32, k0 + (lid + 128) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b2 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 256) % 32, k0 + (lid + 256) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b3 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 384) % 32, k0 + (lid + 384) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b4 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 512) % 32, k0 + (lid + 512) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b5 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 640) % 32, k0 + (lid + 640) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b6 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 768) % 32, k0 + (lid + 768) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b7 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 896) % 32, k0 + (lid + 896) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
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
        a0 = m0 + (lid + 0) / 8 < size1 && k0 + (lid + 0) % 8 * 4 < size16 ? *(__global const float4 *)(x0 + gemm_tiled_32x32_9e043ae82c_a(image, m0 + (lid + 0) / 8, k0 + (lid + 0) % 8 * 4, size0)) : (float4)(0.0f);
        a1 = m0 + (lid + 128) / 8 < size1 && k0 + (lid + 128) % 8 * 4 < size16 ? *(__global const float4 *)(x0 + gemm_tiled_32x32_9e043ae82c_a(image, m0 + (lid + 128) / 8, k0 + (lid + 128) % 8 * 4, size0)) : (float4)(0.0f);
        b0 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 0) % 32, k0 + (lid + 0) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b1 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 128) % 32, k0 + (lid + 128) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b2 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 256) % 32, k0 + (lid + 256) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b3 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 384) % 32, k0 + (lid + 384) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b4 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 512) % 32, k0 + (lid + 512) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b5 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 640) % 32, k0 + (lid + 640) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b6 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 768) % 32, k0 + (lid + 768) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
        b7 = gemm_tiled_32x32_9e043ae82c_b(image, n0 + (lid + 896) % 32, k0 + (lid + 896) / 32, x1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12);
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
    gemm_tiled_32x32_9e043ae82c_put((float4)(c00, c01, c02, c03), image, m0 + 0, n0 + 0, x2, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12, size13, size14, size15, size16, size17, size18, size19);
    gemm_tiled_32x32_9e043ae82c_put((float4)(c10, c11, c12, c13), image, m0 + 1, n0 + 0, x2, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12, size13, size14, size15, size16, size17, size18, size19);
    gemm_tiled_32x32_9e043ae82c_put((float4)(c20, c21, c22, c23), image, m0 + 2, n0 + 0, x2, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12, size13, size14, size15, size16, size17, size18, size19);
    gemm_tiled_32x32_9e043ae82c_put((float4)(c30, c31, c32, c33), image, m0 + 3, n0 + 0, x2, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9, size10, size11, size12, size13, size14, size15, size16, size17, size18, size19);
}
