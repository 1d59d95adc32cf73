// conv_0: conv + add + relu
// from the graph
// x1 f32[32,16,3,3], x0 f32[1,16,14,14], x2 f32[32,1,1] -> y f32[1,32,14,14]
// 1.82 MFLOP, 56.2 kB; template gemm_tiled_opencl
// launch: 448 by 64

#ifndef JITCL_MAX_F32
#define JITCL_MAX_F32
float jitcl_max_f32(float a, float b)
{
    return (a > b || a != a) ? a : b;
}
#endif

void gemm_tiled_32x32_a14361e9c5_store(float v, int image, int m, int n, int at,
    __global const float *restrict x2,
    __global float *restrict y)
{
    y[at] = jitcl_max_f32(v + x2[m], 0.0f);
}

void gemm_tiled_32x32_a14361e9c5_put(float v, int image, int m, int n, __global const float *restrict x2, __global float *restrict y)
{
    if (m < 32 && n < 196)
        gemm_tiled_32x32_a14361e9c5_store(v, image, m, n, (image * 32 + m) * 196 + n, x2, y);
}
float gemm_tiled_32x32_a14361e9c5_a(int image, int m, int k, __global const float *restrict x1)
{
    return k < 144 ? x1[m * 144 + k] : 0.0f;
}

float gemm_tiled_32x32_a14361e9c5_b(int image, int n, int k, __global const float *restrict x0)
{
    int t0 = n % 14 + k % 3 + -1;
    int t1 = n / 14 % 14 + k / 3 % 3 + -1;
    return t1 >= 0 && t1 < 14 && t0 >= 0 && t0 < 14 && n < 196 && k < 144 ? x0[k / 9 % 16 * 196 + t1 * 14 + t0] : 0.0f;
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void gemm_tiled_32x32_a14361e9c5(
    __global const float *restrict x1,
    __global const float *restrict x0,
    __global const float *restrict x2,
    __global float *restrict y)
{
    __local float4 a_quads[288], b_quads[288];
    __local float *a_tile = (__local float *)a_quads, *b_tile = (__local float *)b_quads;
    int lid = get_local_id(0), rest = get_group_id(0);
    int n0 = rest % 7 * 32;
    rest /= 7;
    int m0 = rest % 1 * 32;
    rest /= 1;
    int image = rest % 1, split = rest / 1;
    int tn = lid % 8 * 4, tm = lid / 8 * 4;
    float c00 = 0.0f, c01 = 0.0f, c02 = 0.0f, c03 = 0.0f;
    float c10 = 0.0f, c11 = 0.0f, c12 = 0.0f, c13 = 0.0f;
    float c20 = 0.0f, c21 = 0.0f, c22 = 0.0f, c23 = 0.0f;
    float c30 = 0.0f, c31 = 0.0f, c32 = 0.0f, c33 = 0.0f;
    int end = min((split + 1) * 160, 144);
    int k0 = split * 160;
    float a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15;
        a0 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 0) / 32, k0 + (lid + 0) % 32, x1);
        a1 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 64) / 32, k0 + (lid + 64) % 32, x1);
        a2 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 128) / 32, k0 + (lid + 128) % 32, x1);
        a3 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 192) / 32, k0 + (lid + 192) % 32, x1);
        a4 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 256) / 32, k0 + (lid + 256) % 32, x1);
        a5 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 320) / 32, k0 + (lid + 320) % 32, x1);
        a6 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 384) / 32, k0 + (lid + 384) % 32, x1);
        a7 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 448) / 32, k0 + (lid + 448) % 32, x1);
        a8 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 512) / 32, k0 + (lid + 512) % 32, x1);
        a9 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 576) / 32, k0 + (lid + 576) % 32, x1);
        a10 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 640) / 32, k0 + (lid + 640) % 32, x1);
        a11 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 704) / 32, k0 + (lid + 704) % 32, x1);
        a12 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 768) / 32, k0 + (lid + 768) % 32, x1);
        a13 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 832) / 32, k0 + (lid + 832) % 32, x1);
        a14 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 896) / 32, k0 + (lid + 896) % 32, x1);
        a15 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 960) / 32, k0 + (lid + 960) % 32, x1);
        b0 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 0) % 32, k0 + (lid + 0) / 32, x0);
        b1 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 64) % 32, k0 + (lid + 64) / 32, x0);
        b2 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 128) % 32, k0 + (lid + 128) / 32, x0);
        b3 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 192) % 32, k0 + (lid + 192) / 32, x0);
        b4 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 256) % 32, k0 + (lid + 256) / 32, x0);
        b5 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 320) % 32, k0 + (lid + 320) / 32, x0);
        b6 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 384) % 32, k0 + (lid + 384) / 32, x0);
        b7 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 448) % 32, k0 + (lid + 448) / 32, x0);
        b8 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 512) % 32, k0 + (lid + 512) / 32, x0);
        b9 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 576) % 32, k0 + (lid + 576) / 32, x0);
        b10 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 640) % 32, k0 + (lid + 640) / 32, x0);
        b11 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 704) % 32, k0 + (lid + 704) / 32, x0);
        b12 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 768) % 32, k0 + (lid + 768) / 32, x0);
        b13 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 832) % 32, k0 + (lid + 832) / 32, x0);
        b14 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 896) % 32, k0 + (lid + 896) / 32, x0);
        b15 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 960) % 32, k0 + (lid + 960) / 32, x0);

    while (k0 < end) {
        a_tile[(lid + 0) % 32 * 36 + (lid + 0) / 32] = a0;
        a_tile[(lid + 64) % 32 * 36 + (lid + 64) / 32] = a1;
        a_tile[(lid + 128) % 32 * 36 + (lid + 128) / 32] = a2;
        a_tile[(lid + 192) % 32 * 36 + (lid + 192) / 32] = a3;
        a_tile[(lid + 256) % 32 * 36 + (lid + 256) / 32] = a4;
        a_tile[(lid + 320) % 32 * 36 + (lid + 320) / 32] = a5;
        a_tile[(lid + 384) % 32 * 36 + (lid + 384) / 32] = a6;
        a_tile[(lid + 448) % 32 * 36 + (lid + 448) / 32] = a7;
        a_tile[(lid + 512) % 32 * 36 + (lid + 512) / 32] = a8;
        a_tile[(lid + 576) % 32 * 36 + (lid + 576) / 32] = a9;
        a_tile[(lid + 640) % 32 * 36 + (lid + 640) / 32] = a10;
        a_tile[(lid + 704) % 32 * 36 + (lid + 704) / 32] = a11;
        a_tile[(lid + 768) % 32 * 36 + (lid + 768) / 32] = a12;
        a_tile[(lid + 832) % 32 * 36 + (lid + 832) / 32] = a13;
        a_tile[(lid + 896) % 32 * 36 + (lid + 896) / 32] = a14;
        a_tile[(lid + 960) % 32 * 36 + (lid + 960) / 32] = a15;
        b_tile[(lid + 0) / 32 * 36 + (lid + 0) % 32] = b0;
        b_tile[(lid + 64) / 32 * 36 + (lid + 64) % 32] = b1;
        b_tile[(lid + 128) / 32 * 36 + (lid + 128) % 32] = b2;
        b_tile[(lid + 192) / 32 * 36 + (lid + 192) % 32] = b3;
        b_tile[(lid + 256) / 32 * 36 + (lid + 256) % 32] = b4;
        b_tile[(lid + 320) / 32 * 36 + (lid + 320) % 32] = b5;
        b_tile[(lid + 384) / 32 * 36 + (lid + 384) % 32] = b6;
        b_tile[(lid + 448) / 32 * 36 + (lid + 448) % 32] = b7;
        b_tile[(lid + 512) / 32 * 36 + (lid + 512) % 32] = b8;
        b_tile[(lid + 576) / 32 * 36 + (lid + 576) % 32] = b9;
        b_tile[(lid + 640) / 32 * 36 + (lid + 640) % 32] = b10;
        b_tile[(lid + 704) / 32 * 36 + (lid + 704) % 32] = b11;
        b_tile[(lid + 768) / 32 * 36 + (lid + 768) % 32] = b12;
        b_tile[(lid + 832) / 32 * 36 + (lid + 832) % 32] = b13;
        b_tile[(lid + 896) / 32 * 36 + (lid + 896) % 32] = b14;
        b_tile[(lid + 960) / 32 * 36 + (lid + 960) % 32] = b15;

        barrier(CLK_LOCAL_MEM_FENCE);
        k0 += 32;
        if (k0 < end) {
        a0 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 0) / 32, k0 + (lid + 0) % 32, x1);
        a1 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 64) / 32, k0 + (lid + 64) % 32, x1);
        a2 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 128) / 32, k0 + (lid + 128) % 32, x1);
        a3 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 192) / 32, k0 + (lid + 192) % 32, x1);
        a4 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 256) / 32, k0 + (lid + 256) % 32, x1);
        a5 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 320) / 32, k0 + (lid + 320) % 32, x1);
        a6 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 384) / 32, k0 + (lid + 384) % 32, x1);
        a7 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 448) / 32, k0 + (lid + 448) % 32, x1);
        a8 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 512) / 32, k0 + (lid + 512) % 32, x1);
        a9 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 576) / 32, k0 + (lid + 576) % 32, x1);
        a10 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 640) / 32, k0 + (lid + 640) % 32, x1);
        a11 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 704) / 32, k0 + (lid + 704) % 32, x1);
        a12 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 768) / 32, k0 + (lid + 768) % 32, x1);
        a13 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 832) / 32, k0 + (lid + 832) % 32, x1);
        a14 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 896) / 32, k0 + (lid + 896) % 32, x1);
        a15 = gemm_tiled_32x32_a14361e9c5_a(image, m0 + (lid + 960) / 32, k0 + (lid + 960) % 32, x1);
        b0 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 0) % 32, k0 + (lid + 0) / 32, x0);
        b1 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 64) % 32, k0 + (lid + 64) / 32, x0);
        b2 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 128) % 32, k0 + (lid + 128) / 32, x0);
        b3 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 192) % 32, k0 + (lid + 192) / 32, x0);
        b4 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 256) % 32, k0 + (lid + 256) / 32, x0);
        b5 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 320) % 32, k0 + (lid + 320) / 32, x0);
        b6 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 384) % 32, k0 + (lid + 384) / 32, x0);
        b7 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 448) % 32, k0 + (lid + 448) / 32, x0);
        b8 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 512) % 32, k0 + (lid + 512) / 32, x0);
        b9 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 576) % 32, k0 + (lid + 576) / 32, x0);
        b10 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 640) % 32, k0 + (lid + 640) / 32, x0);
        b11 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 704) % 32, k0 + (lid + 704) / 32, x0);
        b12 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 768) % 32, k0 + (lid + 768) / 32, x0);
        b13 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 832) % 32, k0 + (lid + 832) / 32, x0);
        b14 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 896) % 32, k0 + (lid + 896) / 32, x0);
        b15 = gemm_tiled_32x32_a14361e9c5_b(image, n0 + (lid + 960) % 32, k0 + (lid + 960) / 32, x0);

        }
        for (int kk = 0; kk < 32; ++kk) {
            float4 p0 = a_quads[(kk * 36 + tm) / 4 + 0];
            float4 q0 = b_quads[(kk * 36 + tn) / 4 + 0];
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
    gemm_tiled_32x32_a14361e9c5_put(c00, image, m0 + 0, n0 + 0, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c01, image, m0 + 0, n0 + 1, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c02, image, m0 + 0, n0 + 2, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c03, image, m0 + 0, n0 + 3, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c10, image, m0 + 1, n0 + 0, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c11, image, m0 + 1, n0 + 1, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c12, image, m0 + 1, n0 + 2, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c13, image, m0 + 1, n0 + 3, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c20, image, m0 + 2, n0 + 0, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c21, image, m0 + 2, n0 + 1, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c22, image, m0 + 2, n0 + 2, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c23, image, m0 + 2, n0 + 3, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c30, image, m0 + 3, n0 + 0, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c31, image, m0 + 3, n0 + 1, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c32, image, m0 + 3, n0 + 2, x2, y);
    gemm_tiled_32x32_a14361e9c5_put(c33, image, m0 + 3, n0 + 3, x2, y);
}
