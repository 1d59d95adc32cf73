// concat_0: concat
// from the graph
// x0 f32[2,3,8], x1 f32[2,5,8] -> y f32[2,8,8]
// 0 FLOP, 1.02 kB; generated loops
// launch: 64x2 by 64x2; size0 2, size1 64, size2 24, size3 64, size4 24, size5 24, size6 40, size7 24

__kernel void concat_c6e467a632(
    __global const float *restrict x0,    // f32
    __global const float *restrict x1,    // f32
    __global float *restrict y,    // f32
    const int size0,
    const int size1,
    const int size2,
    const int size3,
    const int size4,
    const int size5,
    const int size6,
    const int size7)
{
    int i0 = get_global_id(1);
    int i1 = get_global_id(0);
    if (i0 >= size0 || i1 >= size1) return;
    bool t0 = i1 < size2;
    y[i0 * size3 + i1] = t0 ? (t0 ? x0[i0 * size4 + i1] : 0.0f) : i1 >= size5 ? x1[i0 * size6 + i1 + (-size7)] : 0.0f;
}
