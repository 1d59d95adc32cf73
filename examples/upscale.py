"""Upscale a picture of a cat threefold, on OpenCL and on the CPU.

    pip install '.[demo]' && python examples/upscale.py
    python examples/upscale.py --device opencl:nvidia --output cat.png

A small residual network (superres-x3.onnx) turns 150x100 pixels into 450x300. The original picture
says how well: PSNR in dB, higher is better. The result is written beside what bicubic interpolation
makes of the same pixels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import jitcl

try:
    from PIL import Image, ImageDraw
except ImportError:
    sys.exit("This example needs Pillow: pip install '.[demo]'")

HERE = Path(__file__).resolve().parent
DEVICES = ("opencl:pocl", "cpu")
BORDER = 6                   # pixels at the edges that are no part of the figure


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--device", action="append", help="repeatable; default: " +
                         " and ".join(DEVICES))
    options.add_argument("--output", default="upscaled.png", help="picture to write")
    options.add_argument("--runs", type=int, default=5, help="of which the median time is told")
    chosen = options.parse_args()

    small = Image.open(HERE / "chelsea-small.png").convert("RGB")
    bicubic = small.resize((3 * small.width, 3 * small.height), Image.Resampling.BICUBIC)
    full = Image.open(HERE / "chelsea.png").convert("RGB")
    original = pixels(full.crop((0, 0, *bicubic.size)))      # a third of its width is no whole
    print(f"upscaling {small.width}x{small.height} to {bicubic.width}x{bicubic.height}")
    print(f"  bicubic        PSNR {psnr(pixels(bicubic), original):.2f} dB")

    results = {}
    for device in chosen.device or DEVICES:
        try:
            results[device] = upscale(device, pixels(small), original, chosen.runs)
        except jitcl.JitclError as error:
            print(f"  {device:<14} not run: {error}")
    if not results:
        return 1
    if len(results) > 1:
        first, *others = results.values()
        apart = max(float(np.abs(first - other).max()) for other in others)
        print(f"largest difference between {' and '.join(results)}: {apart:.1e}")
    network = Image.fromarray(np.rint(next(iter(results.values())).clip(0, 1) * 255)
                              .astype(np.uint8))
    side_by_side({"bicubic": bicubic, "jitcl": network}).save(chosen.output)
    print(f"wrote {chosen.output}: bicubic on the left, the network on the right")
    return 0


def upscale(device: str, small: np.ndarray, original: np.ndarray, runs: int) -> np.ndarray:
    """The network's picture [height, width, 3] on a device; prints quality and times."""
    image = np.ascontiguousarray(small.transpose(2, 0, 1)[None])
    start = time.perf_counter()
    model = jitcl.compile(HERE / "superres-x3.onnx", device=device, shapes={"image": image.shape})
    result = model(image)["upscaled"][0].transpose(1, 2, 0)
    first = time.perf_counter() - start
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        model(image)
        times.append(time.perf_counter() - start)
    print(f"  {device:<14} PSNR {psnr(result, original):.2f} dB   "
          f"{statistics.median(times) * 1e3:.1f} ms a run, {first:.1f} s to the first result")
    return result


def pixels(image: Image.Image) -> np.ndarray:
    """A picture as [height, width, 3] in 0..1."""
    return np.asarray(image, np.float32) / 255


def psnr(picture: np.ndarray, original: np.ndarray) -> float:
    """Peak signal to noise ratio in dB, of pictures in 0..1, without the border."""
    inner = np.s_[BORDER:-BORDER, BORDER:-BORDER]
    error = picture.clip(0, 1)[inner].astype(np.float64) - original[inner]
    return float(-10 * np.log10(np.mean(error ** 2)))


def side_by_side(pictures: dict[str, Image.Image]) -> Image.Image:
    """Pictures of one size in a row, each with its name on it."""
    width, height = next(iter(pictures.values())).size
    row = Image.new("RGB", (width * len(pictures), height))
    for k, (name, picture) in enumerate(pictures.items()):
        row.paste(picture, (k * width, 0))
        draw = ImageDraw.Draw(row)
        left, top = k * width + 8, 6
        draw.text((left + 1, top + 1), name, fill="black")
        draw.text((left, top), name, fill="white")
    return row


if __name__ == "__main__":
    sys.exit(main())
