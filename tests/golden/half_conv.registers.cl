// conv_0_patches: arranges operands for conv_0: conv + relu
// from the graph
// x0 f16[1,16,14,14] -> add f16[16,1,1,16,16]
// 0 FLOP, 14.5 kB; template conv_opencl
// launch: 256 by 64; rows 256, height 14, width 14, pitch 14, oh 16, ow 16, kh 1, kw 1, sh 1, sw 1, dh 1, dw 1, top 1, left 1

__kernel void patches_a118188450(
    __global const ushort *restrict x,
    __global ushort *restrict p,
int rows, int height, int width, int pitch, int oh, int ow, int kh, int kw, int sh, int sw, int dh, int dw, int top, int left)
{
    int row = get_global_id(0);
    if (row >= rows) return;
    int h = row % oh, tap = row / oh;
    int kx = tap % kw, line = tap / kw;
    int ky = line % kh, plane = line / kh;
    int xh = h * sh + ky * dh - top, xw = kx * dw - left;
    int first = clamp((sw - 1 - xw) / sw, 0, ow);           // the first column inside
    int end = clamp((width - 1 - xw + sw) / sw, first, ow); // the first one behind
    if (xh < 0 || xh >= height) first = end = ow;
    int from = (plane * height + xh) * pitch + xw;
    int to = row * ow;
    for (int w = 0; w < first; ++w) p[to + w] = 0;
    if (sw == 1)
        for (int w = first; w < end; ++w) p[to + w] = x[from + w];
    else
        for (int w = first; w < end; ++w) p[to + w] = x[from + w * sw];
    for (int w = end; w < ow; ++w) p[to + w] = 0;
}

// conv_0: conv + relu
// from the graph
// add f16[16,1,1,16,16], x1 packed f16[1,16,48,8] -> y f16[1,32,14,14]
// 1.81 MFLOP, 33 kB; template conv_opencl
// launch: 4x16x16 by 4x16x1; m_tiles 16, m_count 32, c_count 16, kh 3, kw 3, oh 14, ow 14, h_step 16, ky_step 32, dw 1, plane 416, x_image 4096, groups 1, wt_group 6144, wt_tile 384

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

void conv_2x1x4_470469321a_store(float4 v, int image, int m, int h, int w, int at,
    __global half *restrict y)
{
    half4 stored = jitcl_to_halfx4(jitcl_max_f32x4(v, (float4)(0.0f))); *(__global half2 *)(y + at) = stored.s01; *(__global half2 *)(y + at + 2) = stored.s23;
}

__kernel void conv_2x1x4_470469321a(
    __global const half *restrict x,
    __global const half *restrict wt,
    __global half *restrict y,
int m_tiles, int m_count, int c_count, int kh, int kw, int oh, int ow, int h_step, int ky_step, int dw, int plane, int x_image, int groups, int wt_group, int wt_tile)
{
    int left = get_global_id(0) * 4, ht = get_global_id(1), image = (int)get_global_id(2) / m_tiles;
    if (left >= ow || ht * 1 >= oh) return;
    {
        int mt = (int)get_global_id(2) - image * m_tiles;
        int m0 = min(mt * 2, m_count - 2);
        int h0 = min(ht * 1 + 0, oh - 1), w0 = min(left, ow - 4);
        int o0 = h0 * h_step + w0 * 1;
        uintptr_t xy_at = (uintptr_t)(x + image * x_image + o0) - (uint)ky_step;
        int at = (image * m_count + m0) * oh * ow;
        int at0 = at + h0 * ow + w0;
        uintptr_t wk_at = (uintptr_t)(wt + (image % groups) * wt_group + mt * wt_tile) - 16;
        float4 c00 = (float4)(0.0f);
        float4 c10 = (float4)(0.0f);
        for (int c = 0; c < c_count; ++c) {
            half2 h00 = (half2)((half)0.0f), h10 = (half2)((half)0.0f), h20 = (half2)((half)0.0f), h30 = (half2)((half)0.0f);
            for (int ky = 0; ky < kh; ++ky) {
                xy_at += (uint)ky_step;
                __global const half *xy = (__global const half *)xy_at;
                half2 r0_0 = *(__global const half2 *)(xy + 0), r0_2 = *(__global const half2 *)(xy + 2), r0_4 = *(__global const half2 *)(xy + 4);
                {
                    wk_at += 16;
                    __global const half *wk = (__global const half *)wk_at;
                    half8 s = *(__global const half8 *)(wk + 0);
                    h00 += s.s01 * r0_0.s0;
                    h10 += s.s01 * r0_0.s1;
                    h20 += s.s01 * r0_2.s0;
                    h30 += s.s01 * r0_2.s1;
                    h00 += s.s23 * r0_0.s1;
                    h10 += s.s23 * r0_2.s0;
                    h20 += s.s23 * r0_2.s1;
                    h30 += s.s23 * r0_4.s0;
                    h00 += s.s45 * r0_2.s0;
                    h10 += s.s45 * r0_2.s1;
                    h20 += s.s45 * r0_4.s0;
                    h30 += s.s45 * r0_4.s1;
                }
            }
            xy_at += plane;
            c00 += jitcl_from_halfx4((half4)(h00.s0, h10.s0, h20.s0, h30.s0)); c10 += jitcl_from_halfx4((half4)(h00.s1, h10.s1, h20.s1, h30.s1));
        }
        conv_2x1x4_470469321a_store(c00, image, m0 + 0, h0, w0, at0 + 0 * oh * ow, y);
        conv_2x1x4_470469321a_store(c10, image, m0 + 1, h0, w0, at0 + 1 * oh * ow, y);
    }
}
