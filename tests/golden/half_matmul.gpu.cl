// matmul_0: matmul + relu
// from the graph
// x0 f16[64,96], x1 f16[96,40] -> y f16[64,40]
// 494 kFLOP, 25.1 kB; template gemm_tiled_opencl
// launch: 512 by 128; size0 96, size1 64, size2 40, size3 40, size4 64, size5 40, size6 96, size7 96, size8 2, size9 2

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
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

void gemm_tiled_32x32_0b3633a04e_store(float4 v, int image, int m, int n, int at,
    __global half *restrict y)
{
    *(__global half4 *)(y + at) = jitcl_to_halfx4(jitcl_max_f32x4(v, (float4)(0.0f)));
}

void gemm_tiled_32x32_0b3633a04e_put(float4 v, int image, int m, int n, __global half *restrict y, int size0, int size1, int size2, int size3, int size4, int size5, int size6, int size7, int size8, int size9)
{
    if (m < size4 && n < size5)
        gemm_tiled_32x32_0b3633a04e_store(v, image, m, n, (image * size4 + m) * size5 + n, y);
}
int gemm_tiled_32x32_0b3633a04e_a(int image, int m, int k, int size0)
{
    return m * size0 + k;
}

int gemm_tiled_32x32_0b3633a04e_b(int image, int n, int k, int size2)
{
    return k * size2 + n;
}

__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void gemm_tiled_32x32_0b3633a04e(
    __global const half *restrict x0,
    __global const half *restrict x1,
    __global half *restrict y, int size0, int size1, int size2, int size3, int size4, int size5, int size6, int size7, int size8, int size9)
{
    __local half4 a_quads[576], b_quads[576];
    __local half *a_tile = (__local half *)a_quads, *b_tile = (__local half *)b_quads;
    __local float sums[256];
    int lid = get_local_id(0), rest = get_group_id(0);
    int n0 = rest % size9 * 32;
    rest /= size9;
    int m0 = rest % size8 * 32;
    rest /= size8;
    int image = rest % 1, split = rest / 1;
    int place = lid % 64, slice = lid / 64;
    int tn = place % 8, tm = place / 8;       // in quads
    float c00 = 0.0f, c01 = 0.0f, c02 = 0.0f, c03 = 0.0f;
    float c10 = 0.0f, c11 = 0.0f, c12 = 0.0f, c13 = 0.0f;
    float c20 = 0.0f, c21 = 0.0f, c22 = 0.0f, c23 = 0.0f;
    float c30 = 0.0f, c31 = 0.0f, c32 = 0.0f, c33 = 0.0f;
    int a_step = 0, b_step = 0;      // where the step begins that is in use
    int end = min((split + 1) * size7, size6);
    int k0 = split * size7;
    half4 a0, a1;
    half4 b0, b1;
        a0 = m0 + (lid + 0) / 8 < size1 && k0 + (lid + 0) % 8 * 4 < size6 ? *(__global const half4 *)(x0 + gemm_tiled_32x32_0b3633a04e_a(image, m0 + (lid + 0) / 8, k0 + (lid + 0) % 8 * 4, size0)) : (half4)(0.0f);
        a1 = m0 + (lid + 128) / 8 < size1 && k0 + (lid + 128) % 8 * 4 < size6 ? *(__global const half4 *)(x0 + gemm_tiled_32x32_0b3633a04e_a(image, m0 + (lid + 128) / 8, k0 + (lid + 128) % 8 * 4, size0)) : (half4)(0.0f);
        b0 = n0 + (lid + 0) % 8 * 4 < size3 && k0 + (lid + 0) / 8 < size6 ? *(__global const half4 *)(x1 + gemm_tiled_32x32_0b3633a04e_b(image, n0 + (lid + 0) % 8 * 4, k0 + (lid + 0) / 8, size2)) : (half4)(0.0f);
        b1 = n0 + (lid + 128) % 8 * 4 < size3 && k0 + (lid + 128) / 8 < size6 ? *(__global const half4 *)(x1 + gemm_tiled_32x32_0b3633a04e_b(image, n0 + (lid + 128) % 8 * 4, k0 + (lid + 128) / 8, size2)) : (half4)(0.0f);
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4) * 36 + (lid + 0) / 8] = a0.s0;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 1) * 36 + (lid + 0) / 8] = a0.s1;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 2) * 36 + (lid + 0) / 8] = a0.s2;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 3) * 36 + (lid + 0) / 8] = a0.s3;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4) * 36 + (lid + 128) / 8] = a1.s0;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 1) * 36 + (lid + 128) / 8] = a1.s1;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 2) * 36 + (lid + 128) / 8] = a1.s2;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 3) * 36 + (lid + 128) / 8] = a1.s3;
        *(__local half4 *)(b_tile + b_step * 4 + (lid + 0) / 8 * 36 + (lid + 0) % 8 * 4) = b0;
        *(__local half4 *)(b_tile + b_step * 4 + (lid + 128) / 8 * 36 + (lid + 128) % 8 * 4) = b1;

    barrier(CLK_LOCAL_MEM_FENCE);
    for (k0 += 32; k0 < end; k0 += 32) {
        a0 = m0 + (lid + 0) / 8 < size1 && k0 + (lid + 0) % 8 * 4 < size6 ? *(__global const half4 *)(x0 + gemm_tiled_32x32_0b3633a04e_a(image, m0 + (lid + 0) / 8, k0 + (lid + 0) % 8 * 4, size0)) : (half4)(0.0f);
        a1 = m0 + (lid + 128) / 8 < size1 && k0 + (lid + 128) % 8 * 4 < size6 ? *(__global const half4 *)(x0 + gemm_tiled_32x32_0b3633a04e_a(image, m0 + (lid + 128) / 8, k0 + (lid + 128) % 8 * 4, size0)) : (half4)(0.0f);
        b0 = n0 + (lid + 0) % 8 * 4 < size3 && k0 + (lid + 0) / 8 < size6 ? *(__global const half4 *)(x1 + gemm_tiled_32x32_0b3633a04e_b(image, n0 + (lid + 0) % 8 * 4, k0 + (lid + 0) / 8, size2)) : (half4)(0.0f);
        b1 = n0 + (lid + 128) % 8 * 4 < size3 && k0 + (lid + 128) / 8 < size6 ? *(__global const half4 *)(x1 + gemm_tiled_32x32_0b3633a04e_b(image, n0 + (lid + 128) % 8 * 4, k0 + (lid + 128) / 8, size2)) : (half4)(0.0f);
        for (int kk = slice * 16; kk < slice * 16 + 16; kk += 16) {
            half4 h00 = (half4)((half)0.0f);
            half4 h10 = (half4)((half)0.0f);
            half4 h20 = (half4)((half)0.0f);
            half4 h30 = (half4)((half)0.0f);
            for (int ks = kk; ks < kk + 16; ++ks) {
                half4 p0 = a_quads[a_step + ks * 9 + tm + 0];
                half4 q0 = b_quads[b_step + ks * 9 + tn + 0];
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

        a_step = 288 - a_step, b_step = 288 - b_step;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4) * 36 + (lid + 0) / 8] = a0.s0;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 1) * 36 + (lid + 0) / 8] = a0.s1;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 2) * 36 + (lid + 0) / 8] = a0.s2;
        a_tile[a_step * 4 + ((lid + 0) % 8 * 4 + 3) * 36 + (lid + 0) / 8] = a0.s3;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4) * 36 + (lid + 128) / 8] = a1.s0;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 1) * 36 + (lid + 128) / 8] = a1.s1;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 2) * 36 + (lid + 128) / 8] = a1.s2;
        a_tile[a_step * 4 + ((lid + 128) % 8 * 4 + 3) * 36 + (lid + 128) / 8] = a1.s3;
        *(__local half4 *)(b_tile + b_step * 4 + (lid + 0) / 8 * 36 + (lid + 0) % 8 * 4) = b0;
        *(__local half4 *)(b_tile + b_step * 4 + (lid + 128) / 8 * 36 + (lid + 128) % 8 * 4) = b1;

        barrier(CLK_LOCAL_MEM_FENCE);
    }
        for (int kk = slice * 16; kk < slice * 16 + 16; kk += 16) {
            half4 h00 = (half4)((half)0.0f);
            half4 h10 = (half4)((half)0.0f);
            half4 h20 = (half4)((half)0.0f);
            half4 h30 = (half4)((half)0.0f);
            for (int ks = kk; ks < kk + 16; ++ks) {
                half4 p0 = a_quads[a_step + ks * 9 + tm + 0];
                half4 q0 = b_quads[b_step + ks * 9 + tn + 0];
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
    gemm_tiled_32x32_0b3633a04e_put((float4)(c00, c01, c02, c03), image, m0 + 0, n0 + 0, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9);
    gemm_tiled_32x32_0b3633a04e_put((float4)(c10, c11, c12, c13), image, m0 + 1, n0 + 0, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9);
    gemm_tiled_32x32_0b3633a04e_put((float4)(c20, c21, c22, c23), image, m0 + 2, n0 + 0, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9);
    gemm_tiled_32x32_0b3633a04e_put((float4)(c30, c31, c32, c33), image, m0 + 3, n0 + 0, y, size0, size1, size2, size3, size4, size5, size6, size7, size8, size9);
}
