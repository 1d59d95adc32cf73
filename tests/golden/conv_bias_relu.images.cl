// conv_0_patches: arranges operands for conv_0: conv + add + relu
// from the graph
// x0 f32[1,16,14,14] -> add f32[16,1,1,16,16]
// 0 FLOP, 28.9 kB; template conv_opencl
// launch: 256 by 64; rows 256, height 14, width 14, pitch 14, oh 16, ow 16, kh 1, kw 1, sh 1, sw 1, dh 1, dw 1, top 1, left 1

__kernel void patches_656fcaab5e(
    __global const float *restrict x,
    __global float *restrict p,
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
    for (int w = 0; w < first; ++w) p[to + w] = 0.0f;
    if (sw == 1)
        for (int w = first; w < end; ++w) p[to + w] = x[from + w];
    else
        for (int w = first; w < end; ++w) p[to + w] = x[from + w * sw];
    for (int w = end; w < ow; ++w) p[to + w] = 0.0f;
}

// conv_0: conv + add + relu
// from the graph
// add f32[16,1,1,16,16], x1 packed f32[1,8,144,4], x2 f32[32,1,1] -> y f32[1,32,14,14]
// 1.82 MFLOP, 60 kB; template conv_opencl
// launch: 4x8x8 by 4x8x1; m_tiles 8, m_count 32, c_count 16, kh 3, kw 3, oh 14, ow 14, h_step 16, ky_step 16, dw 1, plane 256, x_image 4096, groups 1, wt_group 4608, wt_tile 576

#ifndef JITCL_MAX_F32X4
#define JITCL_MAX_F32X4
float4 jitcl_max_f32x4(float4 a, float4 b)
{
    return select(b, a, isgreater(a, b) | isnan(a));
}
#endif

void conv_4x2x4_00161c908e_store(float4 v, int image, int m, int h, int w, int at,
    __global const float *restrict x2,
    __global float *restrict y)
{
    float4 stored = jitcl_max_f32x4(v + x2[m], (float4)(0.0f)); *(__global float2 *)(y + at) = stored.s01; *(__global float2 *)(y + at + 2) = stored.s23;
}

__kernel void conv_4x2x4_00161c908e(
    __global const float *restrict x,
    __read_only image1d_buffer_t wt,
    __global const float *restrict x2,
    __global float *restrict y,
int m_tiles, int m_count, int c_count, int kh, int kw, int oh, int ow, int h_step, int ky_step, int dw, int plane, int x_image, int groups, int wt_group, int wt_tile)
{
    int left = get_global_id(0) * 4, ht = get_global_id(1), image = (int)get_global_id(2) / m_tiles;
    if (left >= ow || ht * 2 >= oh) return;
    {
        int mt = (int)get_global_id(2) - image * m_tiles;
        int m0 = min(mt * 4, m_count - 4);
        int h0 = min(ht * 2 + 0, oh - 1), w0 = min(left, ow - 4);
        int h1 = min(ht * 2 + 1, oh - 1), w1 = min(left, ow - 4);
        int o0 = h0 * h_step + w0 * 1;
        int o1 = h1 * h_step + w1 * 1;
        __global const float *xy = x + image * x_image;
        int at = (image * m_count + m0) * oh * ow;
        int at0 = at + h0 * ow + w0;
        int at1 = at + h1 * ow + w1;
        int wk = ((image % groups) * wt_group + mt * wt_tile) / 4;
        float4 c00 = (float4)(0.0f), c01 = (float4)(0.0f);
        float4 c10 = (float4)(0.0f), c11 = (float4)(0.0f);
        float4 c20 = (float4)(0.0f), c21 = (float4)(0.0f);
        float4 c30 = (float4)(0.0f), c31 = (float4)(0.0f);
        for (int c = 0; c < c_count; ++c) {
            for (int ky = 0; ky < kh; ++ky) {
                float2 r0_0 = *(__global const float2 *)((xy + o0) + 0), r0_2 = *(__global const float2 *)((xy + o0) + 2), r0_4 = *(__global const float2 *)((xy + o0) + 4);
                float2 r1_0 = *(__global const float2 *)((xy + o1) + 0), r1_2 = *(__global const float2 *)((xy + o1) + 2), r1_4 = *(__global const float2 *)((xy + o1) + 4);
                {
                    float4 b0 = (float4)(r0_0.s0, r0_0.s1, r0_2.s0, r0_2.s1);
                    float4 b1 = (float4)(r1_0.s0, r1_0.s1, r1_2.s0, r1_2.s1);
                    float4 wk0 = read_imagef(wt, wk + 0);
                    c00 += wk0.s0 * b0;
                    c01 += wk0.s0 * b1;
                    c10 += wk0.s1 * b0;
                    c11 += wk0.s1 * b1;
                    c20 += wk0.s2 * b0;
                    c21 += wk0.s2 * b1;
                    c30 += wk0.s3 * b0;
                    c31 += wk0.s3 * b1;
                    wk += 1;
                }
                {
                    float4 b0 = (float4)(r0_0.s1, r0_2.s0, r0_2.s1, r0_4.s0);
                    float4 b1 = (float4)(r1_0.s1, r1_2.s0, r1_2.s1, r1_4.s0);
                    float4 wk0 = read_imagef(wt, wk + 0);
                    c00 += wk0.s0 * b0;
                    c01 += wk0.s0 * b1;
                    c10 += wk0.s1 * b0;
                    c11 += wk0.s1 * b1;
                    c20 += wk0.s2 * b0;
                    c21 += wk0.s2 * b1;
                    c30 += wk0.s3 * b0;
                    c31 += wk0.s3 * b1;
                    wk += 1;
                }
                {
                    float4 b0 = (float4)(r0_2.s0, r0_2.s1, r0_4.s0, r0_4.s1);
                    float4 b1 = (float4)(r1_2.s0, r1_2.s1, r1_4.s0, r1_4.s1);
                    float4 wk0 = read_imagef(wt, wk + 0);
                    c00 += wk0.s0 * b0;
                    c01 += wk0.s0 * b1;
                    c10 += wk0.s1 * b0;
                    c11 += wk0.s1 * b1;
                    c20 += wk0.s2 * b0;
                    c21 += wk0.s2 * b1;
                    c30 += wk0.s3 * b0;
                    c31 += wk0.s3 * b1;
                    wk += 1;
                }
                xy += ky_step;
            }
            xy += plane - kh * ky_step;
        }
        conv_4x2x4_00161c908e_store(c00, image, m0 + 0, h0, w0, at0 + 0 * oh * ow, x2, y);
        conv_4x2x4_00161c908e_store(c01, image, m0 + 0, h1, w1, at1 + 0 * oh * ow, x2, y);
        conv_4x2x4_00161c908e_store(c10, image, m0 + 1, h0, w0, at0 + 1 * oh * ow, x2, y);
        conv_4x2x4_00161c908e_store(c11, image, m0 + 1, h1, w1, at1 + 1 * oh * ow, x2, y);
        conv_4x2x4_00161c908e_store(c20, image, m0 + 2, h0, w0, at0 + 2 * oh * ow, x2, y);
        conv_4x2x4_00161c908e_store(c21, image, m0 + 2, h1, w1, at1 + 2 * oh * ow, x2, y);
        conv_4x2x4_00161c908e_store(c30, image, m0 + 3, h0, w0, at0 + 3 * oh * ow, x2, y);
        conv_4x2x4_00161c908e_store(c31, image, m0 + 3, h1, w1, at1 + 3 * oh * ow, x2, y);
    }
}
