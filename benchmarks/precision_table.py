#!/usr/bin/env python3
"""Models in `normal`, `low` and `auto` beside f32: errors, what they are used for, what is in f16.

    precision_table.py [--models FOLDER] [--device opencl:intel] [--budget SECONDS] [NAME ...]
    precision_table.py --print ROWS.json ...

FOLDER holds NAME.onnx and golden/NAME.CALL.npz, inputs as "in0:name", and language models in
folders with held tokens in an expected.json (no NAME: all of them); without one it is the model
of examples/. Errors are the largest of an output, in units of its largest element, over all
recorded inputs. Those are also what `auto` is calibrated on; of streams
it is steps that read their own states. What outputs are used for is compared, too: the class, boxes
behind NMS, masks, texts, streams. --json keeps rows, which --print makes a table of.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import jitcl
import jitcl.lm
from jitcl.accuracy.engines import tensors_in
from jitcl.accuracy.measures import difference
from jitcl.devices.select import open_device

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PRECISIONS = ("normal", "low", "auto")
STEPS = 30                  # of streams, and tokens of texts
SAME_BOX = 0.95             # overlap of two boxes that are one
Values = Mapping[str, Any]
Run = Callable[[Values], Values]
Boxes = tuple[np.ndarray, np.ndarray, np.ndarray]       # x0 y0 x1 y1, score, class of each


# ---- what models are used for: (run, recorded inputs) -> what is to be the same, and as text

def best(run: Run, feeds: list[Values]) -> list[int]:
    """The class of each."""
    return [int(np.argmax(next(iter(run(f).values())))) for f in feeds]


def suppressed(boxes: Boxes, least: float, overlap: float) -> Boxes:
    """Non-maximum suppression within each class, of scores above `least`."""
    at, score, kind = (x[boxes[1] > least] for x in boxes)
    order, kept = list(np.argsort(-score, kind="stable")), []
    while order:
        first = order.pop(0)
        kept.append(first)
        order = [k for k in order
                 if kind[k] != kind[first] or shared(at[k], at[first]) <= overlap]
    return at[kept], score[kept], kind[kept]


def shared(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union of two boxes."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    inside = float(np.prod(np.maximum(sides, 0)))
    return inside / float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - inside + 1e-12)


def ultraface(out: Values) -> Boxes:
    scores = out["scores"][0, :, 1]
    return suppressed((out["boxes"][0], scores, np.zeros(len(scores), int)), 0.7, 0.3)


def yolox(out: Values) -> Boxes:
    rows = out["output"][0].astype(np.float64)
    grids = [(np.stack(np.meshgrid(np.arange(416 // s), np.arange(416 // s)), -1).reshape(-1, 2), s)
             for s in (8, 16, 32)]
    corner = np.concatenate([g for g, _ in grids])
    stride = np.concatenate([np.full((len(g), 1), s) for g, s in grids])
    middle, size = (rows[:, :2] + corner) * stride, np.exp(rows[:, 2:4]) * stride
    scores = rows[:, 4:5] * rows[:, 5:]
    at = np.concatenate([middle - size / 2, middle + size / 2], -1)
    return suppressed((at, scores.max(-1), scores.argmax(-1)), 0.3, 0.45)


def plates(out: Values) -> Boxes:
    rows = out["output"][0]
    at = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], -1)
    scores = rows[:, 4:5] * rows[:, 13:]
    return suppressed((at, scores.max(-1), scores.argmax(-1)), 0.3, 0.5)


def detections(found: Callable[[Values], Boxes]) -> Callable[[Run, list[Values]], list[Boxes]]:
    return lambda run, feeds: [found(run(f)) for f in feeds]


def mask(run: Run, feeds: list[Values]) -> list[np.ndarray]:
    return [next(iter(run(f).values())) > 0.5 for f in feeds]


def picture(run: Run, feeds: list[Values]) -> list[np.ndarray]:
    """In 8 bits, of 0 to 1 or 0 to 255."""
    found = [next(iter(run(f).values())) for f in feeds]
    return [np.clip(p * (255 if p.max() < 2 else 1), 0, 255).round() for p in found]


def sentences(run: Run, feeds: list[Values]) -> list[np.ndarray]:
    """Cosines between pooled sentences."""
    found = []
    for f in feeds:
        seen = f["attention_mask"][..., None]
        pooled = (next(iter(run(f).values())) * seen).sum(1) / seen.sum(1)
        pooled /= np.linalg.norm(pooled, axis=-1, keepdims=True)
        found.append(pooled)
    return [found[0] @ np.concatenate(found).T]


def stream(run: Run, feeds: list[Values]) -> list[Values]:
    """Steps which read the states that they wrote; the recorded inputs in turns."""
    names = [n for n, x in feeds[0].items() if x.ndim][1:]     # of states, in the order of outputs
    found: list[Values] = []
    states = {n: feeds[0][n] for n in names}
    for k in range(STEPS):
        found.append(run({**feeds[k % len(feeds)], **states}))
        states = dict(zip(names, list(found[-1].values())[1:]))
    return found


def text(run: Run, feeds: list[Values]) -> list[int]:
    """Greedily, after the first recorded input, the prompt."""
    given, tokens = dict(feeds[0]), []
    for _ in range(STEPS):
        out = run(given)
        tokens.append(int(out["logits"][0, -1].argmax()))
        seen = given["attention_mask"].shape[1] + 1
        given = {n.replace("present", "past_key_values"): v for n, v in out.items()
                 if n.startswith("present")}
        given |= {"input_ids": np.array([tokens[-1:]]), "position_ids": np.array([[seen - 1]]),
                  "attention_mask": np.ones((1, seen), np.int64)}
    return tokens


# ---- whether that is the same

def equal(got: list[int], want: list[int]) -> tuple[bool, str]:
    return got == want, f"{sum(map(int.__eq__, got, want))} of {len(want)} equal"


def same_boxes(got: list[Boxes], want: list[Boxes]) -> tuple[bool, str]:
    """Each has its pair: of its class, and nearly all of its area."""
    worst, count, same = 1.0, 0, True
    for a, b in zip(got, want):
        same &= len(a[0]) == len(b[0])
        for at, kind in zip(b[0], b[2]):
            near = max((shared(x, at) for x, k in zip(a[0], a[2]) if k == kind), default=0.0)
            worst, count = min(worst, near), count + 1
    return bool(same and worst >= SAME_BOX), f"{count} boxes, overlap {worst:.3f}"


def same_mask(got: list[np.ndarray], want: list[np.ndarray]) -> tuple[bool, str]:
    part = min(float((a & b).sum() / (a | b).sum()) for a, b in zip(got, want))
    return part > 0.99, f"overlap {part:.4f}"


def same_picture(got: list[np.ndarray], want: list[np.ndarray]) -> tuple[bool, str]:
    noise = max(float(((a - b) ** 2).mean()) for a, b in zip(got, want))
    decibels = 10 * np.log10(255 ** 2 / max(noise, 1e-12))
    return bool(decibels > 40), f"{min(decibels, 99):.0f} dB"


def near(got: list[np.ndarray], want: list[np.ndarray]) -> tuple[bool, str]:
    off = max(float(np.abs(a - b).max()) for a, b in zip(got, want))
    return off < 2e-3, f"cosines off by {off:.1e}"


def same_stream(got: list[Values], want: list[Values]) -> tuple[bool, str]:
    """Its last step, after errors of all before it."""
    off = error(got[-1:], want[-1:])
    return off <= 1e-2, f"step {STEPS}: {off:.1e}"


def same_rows(got: list[np.ndarray], want: list[np.ndarray]) -> tuple[bool, str]:
    cosine = min(difference(a, b).cosine for a, b in zip(got, want))
    return cosine > 0.9999, f"cosine {cosine:.6f}"


def first_output(run: Run, feeds: list[Values]) -> list[np.ndarray]:
    return [next(iter(run(f).values())) for f in feeds]


USES: dict[str, tuple[Callable[[Run, list[Values]], Any], Callable[[Any, Any], tuple[bool, str]]]]
USES = {
    "squeezenet|mnist": (best, equal),
    "ultraface": (detections(ultraface), same_boxes),
    "yolox": (detections(yolox), same_boxes),
    "hyperlpr": (detections(plates), same_boxes),
    "selfie": (mask, same_mask),
    "super|fns": (picture, same_picture),
    "minilm": (sentences, near),
    "dtln|gtcrn|silero": (stream, same_stream),
    "stories": (text, equal),
    "": (first_output, same_rows),
}


# ---- rows

def recorded(folder: Path, name: str) -> list[dict[str, np.ndarray]]:
    found = []
    for file in sorted((folder / "golden").glob(f"{name}.*.npz")):
        with np.load(file) as arrays:
            found.append({k.partition(":")[2]: arrays[k] for k in arrays.files
                          if k.startswith("in")})
    if not found:
        raise SystemExit(f"{folder / 'golden'} has no run of {name}")
    return found


def example() -> tuple[Path, list[dict[str, np.ndarray]]]:
    """The model that is ours, on a picture of waves."""
    y, x = np.mgrid[:96, :96] / 8
    waves = np.stack([np.sin(x), np.cos(y), np.sin(x * y / 9)]) / 2 + 0.5
    return EXAMPLES / "superres-x3.onnx", [{"image": waves[None].astype(np.float32)}]


def error(got: list[Values], want: list[Values]) -> float:
    return max(difference(g[n], w[n]).relative for g, w in zip(got, want) for n in tensors_in(w, w))


def row_of(path: Path, feeds: list[Values], device: Any, budget: float) -> dict[str, Any]:
    name = path.stem
    used, compare = next(use for key, use in USES.items() if re.search(key, name))
    exact = jitcl.compile(path, device=device)
    want, aim = [exact.run(f) for f in feeds], used(exact.run, feeds)
    row: dict[str, Any] = {"model": name, "device": device.target.name}
    for precision in PRECISIONS:
        tried = (lambda run: stream(run, feeds)) if used is stream else feeds
        more = {"calibrate": tried, "budget": budget} if precision == "auto" else {}
        begin = time.perf_counter()
        with jitcl.compile(path, device=device, precision=precision, **more) as model:
            row[f"{precision} s"] = time.perf_counter() - begin
            row[precision] = error([model.run(f) for f in feeds], want)
            row[f"{precision} same"], row[f"{precision} use"] = compare(used(model.run, feeds), aim)
            if precision == "auto":
                report = model.report()
                assert report.chosen is not None
                row |= {"share": report.chosen.share, "reasons": report.chosen.reasons,
                        "notes": report.chosen.notes,
                        "kept": [(why, share) for why, (share, _) in report.kept().items()]}
    return row


def language_row(folder: Path, device: Any) -> dict[str, Any]:
    """Of logits behind held tokens; `auto` on what the model writes itself."""
    held = json.loads((folder / "expected.json").read_text())["val_tokens_first_256"]

    def used(model: jitcl.lm.LanguageModel) -> tuple[np.ndarray, list[int]]:
        model.generate(held[:4], max_new_tokens=STEPS)
        return model.logits(held), model.last.ids

    with jitcl.lm.load(folder, device=device) as exact:
        want, aim = used(exact)
    row: dict[str, Any] = {"model": folder.name, "device": device.target.name}
    for precision in PRECISIONS:
        begin = time.perf_counter()
        with jitcl.lm.load(folder, device=device, precision=precision) as model:
            row[f"{precision} s"] = time.perf_counter() - begin
            got, tokens = used(model)
            row[precision] = difference(got, want).relative
            row[f"{precision} same"], row[f"{precision} use"] = equal(tokens, aim)
            row |= {"share": float(model.options.reduced), "reasons": [], "notes": [], "kept": []}
    return row


def printed(rows: list[dict[str, Any]]) -> None:
    print("| model | normal | low | auto | used for | FLOPs in f16 | stays f32 | s |\n"
          "|---|---|---|---|---|---|---|---|")
    for row in rows:
        errors = " | ".join(f"{row[p]:.1e}" for p in PRECISIONS)
        uses = [f"**{p}: {row[f'{p} use']}**" for p in PRECISIONS if not row[f"{p} same"]]
        why = Counter("effect" if "moves outputs" in why else "range" for _, why in row["reasons"])
        kept = [*(f"{k} layers by their {why}" for why, k in why.items()),
                *(f"{share:.0%} {why}" for why, share in row["kept"]
                  if share >= 0.005 and why != "as asked")]
        print(f"| {row['model']} | {errors} | {', '.join(uses) or row['auto use']} | "
              f"{row['share']:.0%} | {'; '.join(kept) or 'nothing'} | {row['auto s']:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--models", type=Path, metavar="FOLDER")
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--print", dest="files", nargs="+", type=Path, metavar="ROWS.json")
    options = parser.parse_args()
    if options.files:
        printed([row for f in options.files for row in json.loads(f.read_text())])
        return
    device, rows = open_device(options.device), []
    names = [""] if options.models is None else options.names or sorted(
        f.stem if f.suffix == ".onnx" else f.parent.name
        for f in (*options.models.glob("*.onnx"), *options.models.glob("*/expected.json")))
    for name in names:
        if options.models is None:
            rows.append(row_of(*example(), device, options.budget))
        elif (options.models / name).is_dir():
            rows.append(language_row(options.models / name, device))
        else:
            rows.append(row_of(options.models / f"{name}.onnx", recorded(options.models, name),
                               device, options.budget))
        print(json.dumps(rows[-1]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows))
    printed(rows)


if __name__ == "__main__":
    main()
