#!/usr/bin/env python3
"""What kernels cost on Mali and Adreno GPUs that aren't here, as Mesa's compilers for them count.

    static_cost.py --root DIR [--reach FOLDER] [--gpus mali-g610,...] [--precisions high,low]
                   [--shape ids=1,128] [--rows 256] [--save NUMBERS.json] [--baseline NUMBERS.json]
                   [--write TABLE.md] [--check] MODEL ...

DIR (or the environment variable REACH_ROOT) holds the compilers, FOLDER (or REACH; by default
../shared/reach beside this checkout) the scripts that fetch and run them. Nothing runs on a GPU:
the kernels of every model, for the profile of each GPU, are compiled, and the driver's statistics
read; of a language model (a .gguf file or a folder) those of a step behind PAST tokens. What was
compiled is kept in DIR/costs. Printed for each GPU, precision and kind of kernel:

    kernels       different texts
    load/store    mean over launches of a work-item's memory accesses: cycles on Mali, instructions
                  on Adreno (texture reads among them); each counts once, whatever its width, and
                  what stands in a loop counts once
    all items     that number times the work-items of all launches, in millions: what tells whether
                  fewer accesses only come of a smaller tile
    arithmetic    as load/store: the busiest arithmetic pipe on Mali, instructions on Adreno
    registers     the most of any kernel: 32-bit ones on Mali, vec4 on Adreno
    occupancy     the least: threads of what fits at best
    spills        stores to and loads from the stack
    fma           kernels that call fma() where it is a routine of many instructions
    loop          of the innermost loops of products and convolutions, from the machine code: cycles
                  of memory over cycles of arithmetic, the most of any kernel. Assumed: 64 lanes
                  compute a cycle and 16 words of 32 bits are moved (24 and 8 on Bifrost, whose two
                  instructions of a tuple count once), and no two lanes read the same word; but on
                  Valhall a line of 64 bytes, of which several lanes of a wave read some, takes one
                  cycle, where the registers that addresses are made of prove how far these lie
                  apart. Of a kernel's launches the worst counts. Mesa's
                  own rate, a cycle an access whatever its width, would ask for 64 multiply-adds
                  beside each: more sums than there are registers at full occupancy.
    useful        multiply-adds (under "low" of pairs of halves) of the instructions there, a mean

--check: which kernels miss which criterion, in place of the table; exit status 1 where one does.

    loop          of products and convolutions: "loop" above is at most 1.25. Not asked of products
                  of one row (GEMV): each weight is read for one multiply-add, whatever is done
    occupancy     full, on Valhall (G57 and later)
    spills        none
    scalar        of vectors that the text reads or writes by elements (vloadN, x[0] beside x[1])
                  the machine code has accesses of one element
    halves        under "low", of products and convolutions: all multiply-adds of the innermost
                  loops are of halves, on Mali of pairs (v2f16), unless the pass that assigns
                  precisions keeps the group in f32: such a kernel computes no halves, and is
                  counted and listed as "f32 by decision", with the pass's reason

--baseline: numbers that --save kept; each cell then says "before -> after". static_cost_before.json
has those of commit f44c608, for the table in docs/measurements.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jitcl
from benchmarks.mali_lanes import WAVE, Strides, addresses, lines
from jitcl.cli.lowered import lower_for_dump
from jitcl.codegen.plan import KernelSource, Plan, Step
from jitcl.ir.group import Group
from jitcl.runtime.model import open_model

PROCESSES = 2                                # that plan, and that compile
BATCH = 12                                   # kernels that a process of the driver's compiles
REACH = Path(__file__).resolve().parents[2] / "shared" / "reach"
# GPUs without a profile: that of their generation, or of the one before
PROFILES = {"adreno-630": "adreno-640", "mali-g720": "mali-g715"}
PAST = 256                                   # tokens that a language model has written before
GPUS = ("mali-g52", "mali-g610", "adreno-630", "adreno-740")
WAVES, THREADS = 16, 2                       # at full occupancy: Adreno, Mali from Bifrost on
ROUTINE = 100                                # instructions more than mad(): fma() is a routine
PROBE = ("__kernel void probe_{0}(__global const float *x, __global float *y)\n"
         "{{ int i = get_global_id(0); y[i] = {0}(x[i], x[i + 1], x[i + 2]); }}\n")
KINDS = ("GEMM", "GEMV", "convolution", "depthwise", "pooling", "softmax", "layer norm",
         "attention", "elementwise", "transpose", "copies", "other")
COLUMNS = ("kernels", "load/store", "all items", "arithmetic", "registers", "occupancy", "spills",
           "fma", "loop", "useful")
LOOPS = ("GEMM", "convolution", "depthwise")     # whose innermost loops are weighed
CRITERIA = ("loop", "occupancy", "spills", "scalar", "halves")
DECIDED = "f32 by decision"
MOST_LOOP = 1.25                                 # cycles of memory for one of arithmetic
LANES, WORDS = 64, 16                            # a cycle: that compute, that are moved
BIFROST = 24, 8
# of f32; not what adds -0, a multiplication, of which divisions of indices have some
NO_SUM = r"(?!.*, (?:0x0|#0)\.neg$)"
MULTIPLY_ADD = rf"\bFMA\.f32{NO_SUM}|mad\.f32"
# of a half, not of a pair: so is one of a pair of which each factor is a half twice
LONE_HALF = (rf"\bFMA\.f16{NO_SUM}|"
             rf"\bFMA\.v2f16{NO_SUM}\S* [^,]+, [^,]*\.h(00|11), [^,]*\.h(00|11),")
MOVES = {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Concat", "Expand", "Slice"}
Numbers = dict[str, Any]                     # of a kernel: what the table's columns are made of
Planned = tuple[Plan, dict[int, str]]        # and why groups are kept in f32, by their numbers


def kind_of(step: Step, kernel: KernelSource) -> str:
    """Which row of the table a launch counts in."""
    stem, types = step.kernel.partition("_")[0], {op for _, op in step.origins}
    if stem == "gemm" and dict(zip(kernel.params, step.params)).get("m_count") == 1:
        return "GEMV"
    if stem == "attention":
        return stem
    if kernel.template:
        return {"gemm": "GEMM", "conv": "convolution", "sum": "depthwise", "max": "pooling",
                "mean": "pooling"}.get(stem, "copies")
    if any("Pool" in op for op in types):
        return "pooling"
    if "Softmax" in types:
        return "softmax"
    if "LayerNormalization" in types or {"ReduceMean", "Sqrt"} <= types:
        return "layer norm"
    if types and types <= MOVES:
        return "transpose" if "Transpose" in types else "copies"
    return "other" if any(op.startswith(("Reduce", "MatMul", "Gemm")) for op in types) else (
        "elementwise")


def plan_of(model: Path, gpu: str, precision: str, shapes: dict[str, tuple[int, ...]],
            rows: int = 1) -> Planned:
    """The launches of a model for the profile of a GPU, without its constants. rows: tokens that a
    language model reads."""
    device = f"profile:{PROFILES.get(gpu, gpu)}"
    if model.suffix != ".onnx":
        opened = jitcl.lm.load(model, device=device, precision=precision)._model(rows, "next")
        past = {t.name: (1, PAST, *t.shape[2:]) for t in opened.inputs
                if t.name.startswith("past.")}
        shapes = {"keys": (1, PAST + rows)} | past
    else:
        opened = open_model(model, device=device, precision=precision)
    known = {t.name for t in opened.inputs}
    given = {name: shape for name, shape in shapes.items() if name in known}
    lowered = lower_for_dump(opened, given, ())
    decided = {each.number: why for each in lowered.groups if (why := kept_in_f32(each.group))}
    return replace(lowered.plan, constants={}), decided


def kept_in_f32(group: Group) -> str:
    """Why the pass that assigns precisions keeps a group in f32; "" where it is to compute halves,
    or wasn't asked."""
    whys = {"" if part.compute == "f16" else part.in_f32 for part in group.parts}
    return "" if "" in whys else "; ".join(sorted(whys))


def compiled(files: dict[str, str], gpu: str, reach: Path, root: Path) -> dict[str, Numbers]:
    """What the driver says of each kernel, by name; SystemExit where it can't be asked. Kept by
    the kernel's text in ROOT/costs: each is compiled once, and a run that is cut off goes on.
    """
    kept = root / "costs" / gpu
    kept.mkdir(parents=True, exist_ok=True)
    asked = (reach / "compile.py").read_bytes() + (reach / "setup.sh").read_bytes()
    places = {name: kept / hashlib.sha256(asked + text.encode()).hexdigest()[:32]
              for name, text in files.items()}
    found = {name: json.loads(zlib.decompress(place.read_bytes()))
             for name, place in places.items() if place.exists()}
    missing = sorted(set(files) - set(found))
    with tempfile.TemporaryDirectory() as folder:
        for name in missing:
            Path(folder, f"{name}.cl").write_text(files[name])

        def ask(names: list[str]) -> None:
            command = [sys.executable, str(reach / "compile.py"), "--gpu", gpu, "--root", str(root),
                       "--disasm", "--limit", "600", *(f"{folder}/{name}.cl" for name in names)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                for line in child.stdout or ():
                    said = json.loads(line)
                    name = Path(said["file"]).stem
                    found[name] = said
                    if said["ok"]:               # failures are asked again: time may have run out
                        beside = places[name].with_suffix(f".{os.getpid()}")
                        beside.write_bytes(zlib.compress(line.encode()))
                        beside.replace(places[name])

        with ThreadPoolExecutor(PROCESSES) as pool:
            list(pool.map(ask, [missing[i:i + BATCH] for i in range(0, len(missing), BATCH)]))
    if set(files) - set(found):
        raise SystemExit(f"{gpu}: no answer for {sorted(set(files) - set(found))}")
    return found


def numbers(said: Numbers, text: str, fma_is_routine: bool,
            groups: Iterable[tuple[int, ...]] = ((),)) -> Numbers:
    """A kernel's numbers, of the driver's statistics. groups: the local sizes of its launches."""
    s = said["stats"]
    if not said["ok"] or not s:
        return {"failed": said["log"].strip()[-200:] or "no statistics"}
    if "cat6" in s:                              # Adreno
        access, sums, full = s["cat5"] + s["cat6"], s["cat2"] + s["cat3"] + s["cat4"], WAVES
        threads = s["max_waves"]
    else:
        access = s["ls"] if "ls" in s else s["ldst"]
        sums = s["arith"] if "arith" in s else max(s["fma"], s["cvt"], s["sfu"])
        threads, full = s["threads"], THREADS
    return {"access": access, "sums": sums, "registers": s["registers"],
            "occupancy": threads / full, "instructions": s["instructions"],
            "spills": s.get("spills", 0) + s.get("fills", 0) + s.get("stp", 0) + s.get("ldp", 0),
            "scalar": by_elements(text, machine_code(said["disasm"])),
            "fma": int(fma_is_routine and re.search(r"\bfma\(", text) is not None)} | weighed(
                said["disasm"], s, groups)


def machine_code(text: str) -> list[str]:
    """The lines of a kernel's last machine code."""
    text = re.split(r"^Native code for .*|^shader: .*|^}.*", text, flags=re.M)[-1] if (
        "clause_0:" not in text) else text[text.rindex("clause_0:"):]
    return [x for x in text.splitlines() if x.startswith("   ") or x.strip()]


def innermost(code: list[str]) -> list[slice]:
    """The loops without a loop inside: from the target of a jump backwards to the jump. Of
    code without a loop all of it."""
    places = {x.rstrip(":"): i for i, x in enumerate(code) if re.fullmatch(r"(l|clause_)\d+:", x)}
    edges = []
    for i, line in enumerate(code):
        back = re.search(r"offset:-(\d+)$", line) if "BRANCH" in line else None
        label = re.search(r"(?:JUMP|BRANCH|jump|br\b).*?\b(l\d+|clause_\d+)$", line)
        start = i + 1 - int(back[1]) if back else places.get(label[1], i) if label else i
        if start < i:
            edges.append((start, i))
    return [slice(a, b) for a, b in edges if not any(a <= c and d < b for c, d in edges)] or [
        slice(len(code))]


def moved_words(code: list[str], strides: list[Strides], group: tuple[int, ...]) -> list[float]:
    """Words of 32 bits that each line of code moves for a lane. strides: of each access on Valhall,
    whose lanes take no more than the time of the lines that a wave touches."""
    widths = [int(n[1]) / 32 if (n := re.search(r"(?:LOAD|STORE)\.i(\d+)", x)) else
              int(n[1]) if (n := re.search(r"\b[ls][dt]g\.\S+ .*, (\d)$", x)) else
              4 * ("isam" in x) for x in code]
    accesses = [i for i, width in enumerate(widths) if width]
    if group and len(strides) == len(accesses):  # else they are of another listing
        for i, each in zip(accesses, strides, strict=True):
            touched = lines(each, int(4 * widths[i]), group)
            widths[i] = min(widths[i], touched * WORDS / WAVE)
    return widths


def weighed(text: str, stats: Numbers, groups: Iterable[tuple[int, ...]]) -> Numbers:
    """Of a kernel: "loop" of its worst innermost loop and launch, "useful" of that loop, "floats"
    and "lone", multiply-adds of f32 and of single halves in all loops; {} where they add up no
    products."""
    lanes, words = BIFROST if "tuples" in stats else (LANES, WORDS)
    found = []
    code = machine_code(text)
    strides = addresses(text) if "fma" in stats else []      # Valhall
    moves = [moved_words(code, strides, group) for group in groups]
    for part in innermost(code):
        loop, moved = code[part], max(sum(m[part]) for m in moves)
        times = [1 + int(n[1]) if (n := re.search(r"\(rpt(\d)\)", x)) else 1 for x in loop]
        sums = sum(n for x, n in zip(loop, times) if re.search(r"\bFMA\.|mad\.f|FMA\.f", x))
        computed = sum(n for x, n in zip(loop, times) if not re.search(
            r"LOAD|STORE|BRANCH|JUMP|NOP|[ls][dt]g\.|isam|nop|jump|br |^\w+:|^[{}]|ds\(", x))
        tuples = sum(x.strip().startswith("*") for x in loop) or computed
        if sums:
            found.append({"loop": moved / words / (tuples / lanes), "useful": sums / computed,
                          "floats": sum(bool(re.search(MULTIPLY_ADD, x)) for x in loop),
                          "lone": sum(bool(re.search(LONE_HALF, x)) for x in loop)})
    worst = max(found, key=lambda f: f["loop"], default={})
    return worst and worst | {name: sum(f[name] for f in found) for name in ("floats", "lone")}


def by_elements(text: str, code: list[str]) -> int:
    """Accesses of one element in the machine code of a kernel whose text reads or writes vectors of
    global memory by elements; 0 where it doesn't."""
    pointers = set(re.findall(r"__global (?:const )?\w+ \*(?:restrict )?(\w+)", text))
    single = {x for x in re.findall(r"\b(\w+)\[((?:[^][]*\+ )?)(\d+)\]", text)
              if x[0] in pointers}
    beside = any((name, at, str(int(k) + 1)) in single for name, at, k in single)
    if not beside and not re.search(r"\bv(load|store)(_half)?\d+(_rte)?\(", text):
        return 0
    return sum(bool(re.search(r"(?:LOAD|STORE)\.i(8|16|32)\b|\b[ls][dt]g\.\S+ .*, 1$", x))
               for x in code)


def missed(c: Numbers, gpu: str, precision: str, kind: str) -> set[str]:
    """The criteria that a kernel's numbers miss; f32 is no miss where all its groups are kept so.
    """
    looped = kind in LOOPS and "loop" in c
    valhall = gpu.startswith("mali-g") and not re.fullmatch(r"mali-g(71|72|31|51|52|76)", gpu)
    misses = {"loop": looped and c["loop"] > MOST_LOOP,
              "occupancy": valhall and c["occupancy"] < 1, "spills": c["spills"] > 0,
              "scalar": c["scalar"] > 0,
              "halves": looped and precision == "low" and (
                  c["lone"] > 0 or c["floats"] > 0 and not c["decided"].get(precision))}
    return {name for name in CRITERIA if misses[name]}


def measure(planned: dict[tuple[Path, str], Planned], gpu: str, reach: Path, root: Path
            ) -> dict[str, Numbers]:
    """"gpu precision kind" -> the row's numbers."""
    plans = {key: plan for key, (plan, _) in planned.items()}
    texts = {k.entry: k.body for plan in plans.values() for k in plan.kernels}
    probes = {f"probe_{name}": PROBE.format(name) for name in ("fma", "mad")}
    said = compiled(probes | texts, gpu, reach, root)
    fma, mad = (said[name]["stats"]["instructions"] for name in probes)
    groups: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    whys: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (_, precision), (plan, decided) in planned.items():
        for step in plan.steps:
            groups[step.kernel].add(step.local_size)
            whys[step.kernel][precision].add(decided.get(step.group, ""))
    costs = {name: numbers(said[name], text, fma - mad > ROUTINE, groups[name])
             for name, text in texts.items()}
    for name, of in costs.items():               # "": a group that computes it isn't kept in f32
        of["decided"] = {p: "" if "" in each else "; ".join(sorted(each))
                         for p, each in whys[name].items()}
    rows: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for (model, precision), plan in plans.items():
        kernels = {k.entry: k for k in plan.kernels}
        whole = sum(step.flops for step in plan.steps) or 1
        for step in plan.steps:
            kind = kind_of(step, kernels[step.kernel])
            rows[f"{gpu} {precision} {kind}"].append((step.kernel, prod(step.global_size)))
            of = costs[step.kernel].setdefault("FLOPs", {})
            key = f"{precision} {kind} {model.stem}"
            of[key] = of.get(key, 0) + step.flops / whole
    return {key: row_of(key.split(" ", 2)[2], launches, costs) for key, launches in rows.items()}


def row_of(kind: str, launches: list[tuple[str, int]], costs: dict[str, Numbers]) -> Numbers:
    """The numbers of a row: of launches as (kernel, work-items)."""
    failed = {k: costs[k]["failed"] for k, _ in launches if "failed" in costs[k]}
    good = [(costs[k], items) for k, items in launches if k not in failed]
    used = [c for k, c in costs.items() if k in {k for k, _ in launches} - failed.keys()]
    row: Numbers = {"kernels": len({k for k, _ in launches}), "failed": failed}
    if good:
        row |= {"load/store": sum(c["access"] for c, _ in good) / len(good),
                "all items": sum(c["access"] * n for c, n in good) / 1e6,
                "arithmetic": sum(c["sums"] for c, _ in good) / len(good),
                "registers": max(c["registers"] for c in used),
                "occupancy": min(c["occupancy"] for c in used),
                "spills": sum(c["spills"] for c in used), "fma": sum(c["fma"] for c in used)}
        loops = [c for c in used if "loop" in c] if kind in LOOPS else []
        if loops:
            row |= {"loop": max(c["loop"] for c in loops),
                    "useful": sum(c["useful"] for c in loops) / len(loops)}
    row["by kernel"] = {k: costs[k] for k in sorted({k for k, _ in launches})}
    return row


def table(rows: dict[str, Numbers], before: dict[str, Numbers]) -> str:
    """Markdown; a cell that changed says both numbers."""
    lines = ["| GPU | precision | kernels of | " + " | ".join(COLUMNS) + " |",
             "|---|---|---|" + "---:|" * len(COLUMNS)]

    def place(key: str) -> tuple[str, str, int]:
        gpu, precision, kind = key.split(" ", 2)
        return gpu, precision, KINDS.index(kind)

    for key in sorted(rows, key=place):
        gpu, precision, kind = key.split(" ", 2)
        cells = [cell(before.get(key, {}).get(c), rows[key].get(c)) for c in COLUMNS]
        lines.append(f"| {gpu} | {precision} | {kind} | {' | '.join(cells)} |")
    failed = [f"- {key}, {name}: {why!r}" for key, row in rows.items()
              for name, why in row["failed"].items()]
    return "\n".join([*lines, *(["", "Not compiled:", *failed] if failed else []), ""])


def misses(rows: dict[str, Numbers]) -> str:
    """Markdown: how many kernels of each row miss which criterion, or are f32 by decision; then
    each of them with its numbers and the most that it is of a model's FLOPs."""
    columns = ("kernels", *CRITERIA, DECIDED)
    lines = ["| GPU | precision | kernels of | " + " | ".join(columns) + " |",
             "|---|---|---|" + "---:|" * len(columns)]
    named: list[tuple[float, str]] = []
    wide: list[tuple[float, str]] = []
    total, bad = 0, 0
    for key in sorted(rows):
        gpu, precision, kind = key.split(" ", 2)
        costs = {k: c for k, c in rows[key]["by kernel"].items() if "failed" not in c}
        found = {k: missed(c, gpu, precision, kind) for k, c in costs.items()}
        total, bad = total + rows[key]["kernels"], bad + sum(map(bool, found.values()))
        counts = [sum(name in f for f in found.values()) for name in CRITERIA]
        whys = {k: c["decided"][precision] for k, c in costs.items()
                if kind in LOOPS and precision == "low" and c.get("floats")}
        counts.append(sum(map(bool, whys.values())))
        if any(counts):
            lines.append(f"| {gpu} | {precision} | {kind} | {len(found)} | "
                         f"{' | '.join(str(n or '') for n in counts)} |")
        for k, names in found.items():
            of = {m: f for m, f in costs[k]["FLOPs"].items()
                  if m.startswith(f"{precision} {kind} ")}
            most = max(of, key=lambda m: of[m])
            if names:
                told = ", ".join(f"{n} {costs[k].get(n, 0):.3g}" for n in (
                    "loop", "useful", "registers", "occupancy", "spills", "scalar", "floats",
                    "lone"))
                named.append((of[most], f"- {key}, {k}, {of[most]:.1%} of {most.split()[-1]}: "
                              f"{', '.join(sorted(names))} ({told})"))
            if whys.get(k):
                wide.append((of[most], f"- {key}, {k}, {of[most]:.1%} of {most.split()[-1]}: "
                             f"{whys[k]}"))
        named += [(1, f"- {key}, {k}: not compiled") for k in rows[key]["failed"]]
    return "\n".join([*lines, "", f"{len(wide)} of {total} kernels are {DECIDED}:", "",
                      *(line for _, line in sorted(wide, reverse=True)), "",
                      f"{bad} of {total} kernels miss a criterion{':' if named else '.'}", "",
                      *(line for _, line in sorted(named, reverse=True)), ""])


def cell(before: float | None, after: float | None) -> str:
    """A number, after what it was."""
    old, new = ("-" if x is None else f"{x:.3g}" for x in (before, after))
    return new if before is None or old == new else f"{old} -> {new}"


def compilers(options: argparse.Namespace) -> tuple[Path, Path]:
    """(folder of the scripts, root of the compilers); SystemExit says how to get what is missing.
    """
    reach = Path(options.reach).resolve()
    if not (reach / "compile.py").is_file():
        raise SystemExit(f"no compile.py in {reach}: name the folder of the scripts that run Mesa's"
                         " compilers for Mali and Adreno by --reach or REACH")
    root = Path(options.root).resolve() if options.root else None
    if root is None or not any(root.glob("clbuild-*")):
        where = f"{root} has no compilers" if root else "no root of the compilers was named"
        raise SystemExit(f"{where}\n  Get them (810 MB of Debian packages, unpacked, half a minute)"
                         f": {reach / 'setup.sh'} DIR\n  then name DIR by --root or REACH_ROOT.")
    return reach, root


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition("=")
    return name, tuple(map(int, dims.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--root", default=os.environ.get("REACH_ROOT"))
    parser.add_argument("--reach", default=os.environ.get("REACH", REACH))
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--precisions", default="high,low")
    parser.add_argument("--shape", action="append", type=shape, default=[])
    parser.add_argument("--rows", type=int, default=1, help="tokens that a language model reads")
    parser.add_argument("--save", type=Path, help="numbers, for a later --baseline")
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--write", type=Path, help="the table, too")
    parser.add_argument("--check", action="store_true", help="which kernels miss which criterion")
    options = parser.parse_args()
    reach, root = compilers(options)
    before = json.loads(options.baseline.read_text()) if options.baseline else {}
    rows: dict[str, Numbers] = {}
    gpus, pairs = options.gpus.split(","), [*product(options.models, options.precisions.split(","))]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        plans = {(gpu, *pair): pool.submit(plan_of, pair[0], gpu, pair[1], dict(options.shape),
                                                   options.rows)
                 for gpu in gpus for pair in pairs}
        for gpu in gpus:
            made = {pair: plans[(gpu, *pair)].result() for pair in pairs}
            rows |= measure(made, gpu, reach, root)
            if options.save:                     # a long run that is cut off keeps what it has
                options.save.write_text(json.dumps(rows, indent=1))
    text = misses(rows) if options.check else table(rows, before)
    print(text)
    if options.write:
        options.write.write_text(text)
    if options.check and "- " in text.partition("Missed by:")[2]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
