"""Probes of local memory with barriers, and of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from jitcl.devices.opencl.platform import Found
from jitcl.devices.opencl.probes.bench import Bench, Out, first_wrong
from jitcl.devices.opencl.probes.record import Probe, Verdict

GROUP = 64
ROUNDS = 8                          # of barriers in a loop
WINDOW = 64                         # elements that each work-item sums
WORTH_ITEMS = 1 << 16
TOO_SLOW = 0.002                    # seconds for one group, in a simulator
PIXELS = 1 << 14                    # that the image probe reads, or the driver's limit
SIDE = 16                           # of 2d images; rows of 64 pixels where they lie in a buffer
ROW = 64

LOCAL = """
__kernel void local_tile(__global const float *x, __global float *y, __global float *z)
{
    __local float tile[GROUP];
    int l = get_local_id(0), i = get_global_id(0);
    float s = 0.0f;
    for (int k = 0; k < ROUNDS; ++k) {
        tile[l] = x[i] + (float)k;
        barrier(CLK_LOCAL_MEM_FENCE);
        s += tile[GROUP - 1 - l] * tile[(l + k) % GROUP];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    y[i] = s;
    tile[l] = x[i];
    for (int part = GROUP / 2; part > 0; part /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (l < part)
            tile[l] += tile[l + part];
    }
    if (l == 0)
        z[get_group_id(0)] = tile[0];
}
""".replace("GROUP", str(GROUP)).replace("ROUNDS", str(ROUNDS))
WORTH = """
__kernel void worth_direct(__global const float *x, __global float *y)
{
    int i = get_global_id(0);
    float s = 0.0f;
    for (int k = 0; k < WINDOW; ++k)
        s += x[i + k];
    y[i] = s;
}
__kernel void worth_staged(__global const float *x, __global float *y)
{
    __local float tile[GROUP + WINDOW];
    int i = get_global_id(0), l = get_local_id(0);
    float s = 0.0f;
    tile[l] = x[i];
    tile[l + GROUP] = x[i + GROUP];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < WINDOW; ++k)
        s += tile[l + k];
    y[i] = s;
}
""".replace("GROUP", str(GROUP)).replace("WINDOW", str(WINDOW))
IMAGE = """
__kernel void image_row(__read_only image1d_buffer_t image, __global float *y)
{
    int i = get_global_id(0), n = get_global_size(0);
    vstore4(read_imagef(image, i) * 2.0f, n - 1 - i, y);
}
"""
PLANE = """
__constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
__kernel void plane(__read_only image2d_t image, __global float *y)
{
    int i = get_global_id(0);
    vstore4(read_imagef(image, nearest, (int2)(i % SIDE, i / SIDE)), i, y);
}
""".replace("SIDE", str(SIDE))


def _local(bench: Bench, program: Any) -> Verdict:
    group = min(GROUP, bench.max_group)
    if group < GROUP:
        return Verdict(False, f"work-groups hold {group} work-items at most")
    x = np.random.default_rng(1).integers(-4, 5, 8 * GROUP).astype(np.float32)
    y, z = bench.run(program, "local_tile", len(x), GROUP, x, Out(len(x)), Out(8))
    rows = x.reshape(-1, GROUP)
    wanted = sum((rows + k)[:, ::-1] * np.roll(rows + k, -k, axis=1) for k in range(ROUNDS))
    wrong = first_wrong(y, np.reshape(wanted, -1)) or first_wrong(z, rows.sum(axis=1))
    return Verdict(not wrong, wrong or f"tiles of {GROUP} work-items over {ROUNDS} rounds of "
                                       "barriers, and sums by halves, are exact")


def _worth(bench: Bench, program: Any) -> Verdict:
    x = bench.buffer(np.ones(WORTH_ITEMS + GROUP + WINDOW, np.float32))
    y = bench.buffer(np.zeros(WORTH_ITEMS, np.float32))
    slow = bench.seconds(program, "worth_direct", GROUP, GROUP, x, y, launches=1) > TOO_SLOW
    items = GROUP if slow else WORTH_ITEMS
    direct, staged = (bench.seconds(program, f"worth_{how}", items, GROUP, x, y, launches=3)
                      for how in ("direct", "staged"))
    return Verdict(staged < direct, f"a window of {WINDOW} read through local memory takes "
                                    f"{staged / max(direct, 1e-9):.2f} times as long as read "
                                    f"directly; the driver says {_local_kind(bench)}")


def _local_kind(bench: Bench) -> str:
    local = bench.device.local_mem_type == cl.device_local_mem_type.LOCAL
    return "LOCAL" if local else "GLOBAL: emulated"


def _no_images(found: Found) -> str:
    return "" if found.handle.image_support else "the device has no images"


def _image_row(bench: Bench, program: Any) -> Verdict:
    limit = int(bench.device.image_max_buffer_size)
    n = min(limit, PIXELS)
    x = np.random.default_rng(2).standard_normal((n, 4)).astype(np.float32)
    image = _create(bench, "image1d_buffer", cl.channel_type.FLOAT, (n,), bench.buffer(x))
    (y,) = bench.run(program, "image_row", n, 0, image, Out(4 * n))
    wrong = first_wrong(y, (2 * x[::-1]).reshape(-1))
    return Verdict(not wrong, wrong or f"{n} pixels of float4 are read right; at most {limit}",
                   {"image_pixels": limit})


def _plane(bench: Bench, program: Any) -> Verdict:
    x = _picture(np.float32)
    image = _create(bench, "image2d", cl.channel_type.FLOAT, (SIDE, SIDE), x)
    return _plane_verdict(bench, program, image, x, f"{SIDE} x {SIDE} pixels of float4")


def _half_plane(bench: Bench, program: Any) -> Verdict:
    x = _picture(np.float16)
    image = _create(bench, "image2d", cl.channel_type.HALF_FLOAT, (SIDE, SIDE), x)
    return _plane_verdict(bench, program, image, x, f"{SIDE} x {SIDE} pixels of half4")


def _plane_over_buffer(bench: Bench, program: Any) -> Verdict:
    """An image over a part of a buffer: what is broken where anything is."""
    align = _base_alignment(bench) * 16
    whole = np.zeros((align // 4 + SIDE * ROW * 4,), np.float32)
    x = _picture(np.float32)
    whole[align // 4:].reshape(SIDE, ROW, 4)[:, :SIDE] = x
    try:
        memory = bench.buffer(whole)
        part = memory.get_sub_region(align, SIDE * ROW * 16)
    except cl.Error as error:
        raise bench.refused(error) from error
    image = _create(bench, "image2d", cl.channel_type.FLOAT, (SIDE, SIDE), part, ROW * 16)
    return _plane_verdict(bench, program, image, x, f"{SIDE} rows over a part of a buffer")


def _base_alignment(bench: Bench) -> int:
    """Pixels of float4 that an image's place in a buffer is a multiple of: 256 is of any known."""
    return max(256, int(bench.device.mem_base_addr_align) // 128)


def _picture(dtype: Any) -> np.ndarray:
    return np.random.default_rng(3).integers(-99, 99, (SIDE, SIDE, 4)).astype(dtype)


def _plane_verdict(bench: Bench, program: Any, image: Any, x: np.ndarray, what: str) -> Verdict:
    (y,) = bench.run(program, "plane", SIDE * SIDE, 0, image, Out(x.size))
    wrong = first_wrong(y, x.reshape(-1))
    return Verdict(not wrong, wrong or f"{what} are read right")


def _create(bench: Bench, kind: str, channel: int, shape: tuple[int, ...], content: Any,
            pitch: int = 0) -> Any:
    """An RGBA image of `shape` pixels over a buffer, or with a copy of an array."""
    host = content if isinstance(content, np.ndarray) else None
    read, copied = cl.mem_flags.READ_ONLY, cl.mem_flags.COPY_HOST_PTR
    flags: Any = read if host is None else read | copied
    desc = cl.ImageDescriptor()
    desc.image_type = getattr(cl.mem_object_type, kind.upper())
    desc.shape = shape  # type: ignore[assignment]
    desc.pitches = (pitch, 0)
    desc.array_size = desc.num_mip_levels = desc.num_samples = 0
    desc.buffer = None if host is not None else content
    try:
        return cl.Image(bench.context, flags, cl.ImageFormat(cl.channel_order.RGBA, channel),
                        desc=desc, hostbuf=host)
    except (cl.Error, RuntimeError) as error:
        raise bench.refused(error) from error


MEMORY = (
    Probe("local", "local memory and barriers", _local, LOCAL, features=("local", "barrier"),
          present={"local_works": True}, absent={"local_works": False, "local_is_real": False}),
    Probe("local_worth", "local memory is faster than what lies behind it", _worth, WORTH,
          skip=lambda found: "a CPU's local memory is ordinary memory"
          if found.kind == "cpu" else ""),
    Probe("image", "image1d_buffer of float4", _image_row, IMAGE, features=("image",),
          absent={"images": False, "image_pixels": 0}, skip=_no_images),
    Probe("image2d", "image2d of float4", _plane, PLANE, skip=_no_images),
    Probe("half_images", "image2d of half4", _half_plane, PLANE,
          skip=_no_images),
    Probe("image_from_buffer", "image2d over a part of a buffer", _plane_over_buffer, PLANE,
          skip=_no_images),
)
