// conv_0: conv
// from the graph
// x0 f32[1,16,14,14], x1 packed f32[16,1,12] -> y f32[1,16,14,14]
// 56.4 kFLOP, 25.9 kB; template depthwise_opencl
// launch: 448 by 64; size0 16, size1 16, size2 14, size3 14, size4 14, size5 14, size6 2

void depthwise_3x3x7_eedd2a64f4_store(float v, int image, int m, int h, int w, int at,
    __global float *restrict y)
{
    y[at] = v;
}

__kernel void depthwise_3x3x7_eedd2a64f4(
    __global const float *restrict x,
    __global const float *restrict wt,
    __global float *restrict y, int size0, int size1, int size2, int size3, int size4, int size5, int size6)
{
    int column = get_global_id(0), rest = column / size5, w = column - rest * size5;
    int plane = rest / size6, first = (rest - plane * size6) * 7;
    if (plane >= size0) return;
    int image = plane / size1, m = plane - image * size1;
    __global const float *wk = wt + m * 12;
    float4 s0 = *(__global const float4 *)(wk + 0);
    float4 s1 = *(__global const float4 *)(wk + 4);
    float4 s2 = *(__global const float4 *)(wk + 8);
    int top = first * 1 - 1, left = w * 1 - 1;
    int from = (plane / 1 * size2 + top) * size3 + left;
    bool in0 = (uint)(left + 0) < (uint)size3, in1 = (uint)(left + 1) < (uint)size3, in2 = (uint)(left + 2) < (uint)size3;
    float v0 = 0.0f, v1 = 0.0f, v2 = 0.0f, v3 = 0.0f, v4 = 0.0f, v5 = 0.0f, v6 = 0.0f;
    {
        bool inside = (uint)(top + 0) < (uint)size2;
        float p0 = inside && in0 ? x[from + 0 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 0 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 0 * size3 + 2] : 0.0f;
        v0 += s0.s0 * p0;
        v0 += s0.s1 * p1;
        v0 += s0.s2 * p2;
    }
    {
        bool inside = (uint)(top + 1) < (uint)size2;
        float p0 = inside && in0 ? x[from + 1 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 1 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 1 * size3 + 2] : 0.0f;
        v0 += s0.s3 * p0;
        v0 += s1.s0 * p1;
        v0 += s1.s1 * p2;
        v1 += s0.s0 * p0;
        v1 += s0.s1 * p1;
        v1 += s0.s2 * p2;
    }
    {
        bool inside = (uint)(top + 2) < (uint)size2;
        float p0 = inside && in0 ? x[from + 2 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 2 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 2 * size3 + 2] : 0.0f;
        v0 += s1.s2 * p0;
        v0 += s1.s3 * p1;
        v0 += s2.s0 * p2;
        v1 += s0.s3 * p0;
        v1 += s1.s0 * p1;
        v1 += s1.s1 * p2;
        v2 += s0.s0 * p0;
        v2 += s0.s1 * p1;
        v2 += s0.s2 * p2;
    }
    {
        bool inside = (uint)(top + 3) < (uint)size2;
        float p0 = inside && in0 ? x[from + 3 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 3 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 3 * size3 + 2] : 0.0f;
        v1 += s1.s2 * p0;
        v1 += s1.s3 * p1;
        v1 += s2.s0 * p2;
        v2 += s0.s3 * p0;
        v2 += s1.s0 * p1;
        v2 += s1.s1 * p2;
        v3 += s0.s0 * p0;
        v3 += s0.s1 * p1;
        v3 += s0.s2 * p2;
    }
    {
        bool inside = (uint)(top + 4) < (uint)size2;
        float p0 = inside && in0 ? x[from + 4 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 4 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 4 * size3 + 2] : 0.0f;
        v2 += s1.s2 * p0;
        v2 += s1.s3 * p1;
        v2 += s2.s0 * p2;
        v3 += s0.s3 * p0;
        v3 += s1.s0 * p1;
        v3 += s1.s1 * p2;
        v4 += s0.s0 * p0;
        v4 += s0.s1 * p1;
        v4 += s0.s2 * p2;
    }
    {
        bool inside = (uint)(top + 5) < (uint)size2;
        float p0 = inside && in0 ? x[from + 5 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 5 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 5 * size3 + 2] : 0.0f;
        v3 += s1.s2 * p0;
        v3 += s1.s3 * p1;
        v3 += s2.s0 * p2;
        v4 += s0.s3 * p0;
        v4 += s1.s0 * p1;
        v4 += s1.s1 * p2;
        v5 += s0.s0 * p0;
        v5 += s0.s1 * p1;
        v5 += s0.s2 * p2;
    }
    {
        bool inside = (uint)(top + 6) < (uint)size2;
        float p0 = inside && in0 ? x[from + 6 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 6 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 6 * size3 + 2] : 0.0f;
        v4 += s1.s2 * p0;
        v4 += s1.s3 * p1;
        v4 += s2.s0 * p2;
        v5 += s0.s3 * p0;
        v5 += s1.s0 * p1;
        v5 += s1.s1 * p2;
        v6 += s0.s0 * p0;
        v6 += s0.s1 * p1;
        v6 += s0.s2 * p2;
    }
    {
        bool inside = (uint)(top + 7) < (uint)size2;
        float p0 = inside && in0 ? x[from + 7 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 7 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 7 * size3 + 2] : 0.0f;
        v5 += s1.s2 * p0;
        v5 += s1.s3 * p1;
        v5 += s2.s0 * p2;
        v6 += s0.s3 * p0;
        v6 += s1.s0 * p1;
        v6 += s1.s1 * p2;
    }
    {
        bool inside = (uint)(top + 8) < (uint)size2;
        float p0 = inside && in0 ? x[from + 8 * size3 + 0] : 0.0f;
        float p1 = inside && in1 ? x[from + 8 * size3 + 1] : 0.0f;
        float p2 = inside && in2 ? x[from + 8 * size3 + 2] : 0.0f;
        v6 += s1.s2 * p0;
        v6 += s1.s3 * p1;
        v6 += s2.s0 * p2;
    }
    int at = (plane * size4 + first) * size5 + w;
    depthwise_3x3x7_eedd2a64f4_store(v0, image, m, first + 0, w, at + 0 * size5, y);
    if (first + 1 < size4) depthwise_3x3x7_eedd2a64f4_store(v1, image, m, first + 1, w, at + 1 * size5, y);
    if (first + 2 < size4) depthwise_3x3x7_eedd2a64f4_store(v2, image, m, first + 2, w, at + 2 * size5, y);
    if (first + 3 < size4) depthwise_3x3x7_eedd2a64f4_store(v3, image, m, first + 3, w, at + 3 * size5, y);
    if (first + 4 < size4) depthwise_3x3x7_eedd2a64f4_store(v4, image, m, first + 4, w, at + 4 * size5, y);
    if (first + 5 < size4) depthwise_3x3x7_eedd2a64f4_store(v5, image, m, first + 5, w, at + 5 * size5, y);
    if (first + 6 < size4) depthwise_3x3x7_eedd2a64f4_store(v6, image, m, first + 6, w, at + 6 * size5, y);
}
