"""Tokens per second of language models of random weights, in GGUF files of real sizes.

    python benchmarks/language_models.py --shape 0.5B --kind Q4_0 Q8_0
    python benchmarks/language_models.py --peer other/bin/python --rounds 5
    python benchmarks/language_models.py --device opencl --shape 7B --precision low --prompt 2048

Each engine runs in a process of its own, in turns, so that what else a machine does falls on all.
`--peer PYTHON` names the interpreter of an environment that has llama-cpp-python. Before a slash
are tokens or seconds of the wall clock, behind it those of the CPU. Memory is resident: the
process's own pages, those of mapped files (weights), and the most that there was of both.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# width, layers, heads, heads of keys, inner width, vocabulary, biases of q, k and v
SHAPES = {"tiny": (256, 2, 4, 2, 512, 1000, True),
          "0.5B": (896, 24, 14, 2, 4864, 151936, True),         # Qwen 2.5
          "1.1B": (2048, 22, 32, 4, 5632, 32000, False),        # TinyLlama
          "7B": (4096, 32, 32, 32, 11008, 32000, False)}        # Llama 2
CONTEXT = 8192


def write(file: Path, shape: str, kind: str) -> Path:
    """A file of random weights, of matrices all of one type."""
    import gguf

    width, layers, heads, shared, inner, words, biases = SHAPES[shape]
    random, arch = np.random.default_rng(0), "qwen2" if biases else "llama"
    t = gguf.GGMLQuantizationType[kind]
    out = gguf.GGUFWriter(file, arch)
    for key, value in (("block_count", layers), ("embedding_length", width),
                       ("attention.head_count", heads), ("attention.head_count_kv", shared),
                       ("feed_forward_length", inner), ("context_length", CONTEXT),
                       ("vocab_size", words)):
        out.add_uint32(f"{arch}.{key}", value)
    out.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
    out.add_float32(f"{arch}.rope.freq_base", 1e4)
    out.add_string("tokenizer.ggml.model", "no_vocab")

    def matrix(name: str, n: int, k: int) -> None:
        once = random.standard_normal((min(n, 64), k)).astype(np.float32) / np.sqrt(k)
        coded = gguf.quants.quantize(once, t)
        rows = np.tile(coded, (-(-n // len(coded)), 1))[:n]
        out.add_tensor(f"{name}.weight", np.ascontiguousarray(rows), raw_dtype=t)

    def vector(name: str, n: int, value: float) -> None:
        out.add_tensor(name, np.full(n, value, np.float32))

    size = width // heads
    matrix("token_embd", words, width)
    vector("output_norm.weight", width, 1)
    if not biases:
        matrix("output", words, width)
    for k in range(layers):
        for name, n, of in (("attn_q", width, width), ("attn_k", shared * size, width),
                            ("attn_v", shared * size, width), ("attn_output", width, width),
                            ("ffn_gate", inner, width), ("ffn_up", inner, width),
                            ("ffn_down", width, inner)):
            matrix(f"blk.{k}.{name}", n, of)
            if biases and name in ("attn_q", "attn_k", "attn_v"):
                vector(f"blk.{k}.{name}.bias", n, 0.01)
        vector(f"blk.{k}.attn_norm.weight", width, 1)
        vector(f"blk.{k}.ffn_norm.weight", width, 1)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


class _Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def __call__(self) -> tuple[float, float]:
        return time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]


def memory() -> dict[str, float]:
    """MB now: of the process's own pages, and of files' (weights that are mapped)."""
    said = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("Rss"))
    return {"own": int(said["RssAnon"].split()[0]) / 1024,
            "file": int(said["RssFile"].split()[0]) / 1024,
            "most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def ours(file: Path, prompt: list[int], count: int, precision: str, device: str,
         cache: str | None) -> dict[str, Any]:
    import jitcl
    from jitcl.lm.sampling import Sampling

    clock = _Clock()
    model = jitcl.lm.load(file, device=device, precision=precision, cache_dir=cache)
    greedy = Sampling.of({}, {})

    def text(ids: list[int], n: int) -> None:
        model.ends = frozenset()
        assert len(list(model.tokens(ids, n, greedy))) == n

    return _timed(text, clock, prompt, count)


def theirs(file: Path, prompt: list[int], count: int) -> dict[str, Any]:
    import llama_cpp
    from llama_cpp import Llama

    clock = _Clock()
    model = Llama(str(file), n_ctx=CONTEXT, n_threads=2, n_threads_batch=2, n_batch=512,
                  verbose=False)

    def text(ids: list[int], n: int) -> None:
        model.reset()
        model._ctx.kv_cache_clear()
        model.eval(ids)
        for _ in range(n - 1):
            logits = np.ctypeslib.as_array(
                llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1), (model.n_vocab(),))
            model.eval([int(logits.argmax())])

    return _timed(text, clock, prompt, count)


def _timed(text: Callable[[list[int], int], None], clock: _Clock, prompt: list[int], count: int
           ) -> dict[str, Any]:
    """What an engine takes that writes `text(ids, how many)`; the clock runs since it is opened."""
    text(prompt[:1], 1)
    load = clock()
    text(prompt, 2)
    text(prompt[:1], 8)
    clock = _Clock()
    text([p + 1 for p in prompt], 1)
    prefill, clock = clock(), _Clock()
    text(prompt[:1], count)
    return {"load": load, "prefill": prefill, "decode": clock(), **memory()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["0.5B"])
    parser.add_argument("--kind", nargs="+", default=["Q4_0"])
    parser.add_argument("--precision", nargs="+", default=["high"])
    parser.add_argument("--device", default="cpu", help="of jitcl's engine")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="that are written")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="a Python that has llama-cpp-python")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--cache", help="jitcl's cache")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    prompt = [3 + 7 * k % 900 for k in range(args.prompt)]
    if args.one:
        engine, file = args.one[0], Path(args.one[1])
        found = (theirs(file, prompt, args.tokens) if engine == "llama.cpp" else
                 ours(file, prompt, args.tokens, engine, args.device, args.cache))
        print(json.dumps(found))
        return
    for shape in args.shape:
        for kind in args.kind:
            file = args.folder / f"random-{shape}-{kind}.gguf"
            if not file.exists():
                write(file, shape, kind)
            compare(args, file)


def compare(args: argparse.Namespace, file: Path) -> None:
    engines = dict.fromkeys(args.precision, sys.executable)
    if args.peer:
        engines["llama.cpp"] = args.peer
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for _ in range(args.rounds):
        for name, python in engines.items():
            done = subprocess.run([python, __file__, *sys.argv[1:], "--one", name, str(file)],
                                  capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            rounds[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{file.name}, {file.stat().st_size / 2**20:.0f} MB; {args.prompt} tokens of a prompt, "
          f"{args.tokens} of text; median of {args.rounds}")
    for name, found in rounds.items():
        def middle(key: str, part: int | None = None, found: list[Any] = found) -> float:
            return statistics.median(f[key] if part is None else f[key][part] for f in found)

        print(f"  {name:10}  load {middle('load', 0):.2f}/{middle('load', 1):.2f} s  prefill "
              f"{args.prompt / middle('prefill', 0):.1f}/{args.prompt / middle('prefill', 1):.1f}"
              f"  decode {args.tokens / middle('decode', 0):.1f}/"
              f"{args.tokens / middle('decode', 1):.1f} tokens/s  memory own {middle('own'):.0f}, "
              f"file {middle('file'):.0f}, most {middle('most'):.0f} MB")


if __name__ == "__main__":
    main()
