#!/usr/bin/env python3
"""jitcl on a GPU beside torch in a CUDA graph, in turns, on the same machine.

    beside_torch.py models [--batch 1 16] [--precision high low] [NAME ...]
    beside_torch.py products                    matrix products, us and TFLOP/s
    beside_torch.py rows                        of 4096 x 4096, GB/s beside a copy's

Asks for torch with CUDA; `models` for transformers, onnx and onnxscript, too. Nine architectures
have seeded random weights. torch computes f32 without TF32 beside "high", f16 beside "low". Inputs
and results stay on the device on both sides. Products and rows are computed several times by one
graph, so that what a launch costs is neither side's alone. Times are medians of turns, of runs
until the device is idle; a difference of results is the largest, over the largest value.
"""

from __future__ import annotations

import argparse
import io
import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

import jitcl
from jitcl.bench.turns import take_turns, timed_turn

TURNS = 7
PRODUCTS = ((4096, 4096, 4096), (1024, 1024, 1024), (128, 768, 768), (128, 768, 3072),
            (128, 3072, 768), (3136, 576, 64), (784, 1152, 128), (196, 2304, 256), (49, 4608, 512),
            (1, 4096, 11008))                   # rows, terms, columns
ROWS = {"softmax": lambda x: torch.softmax(x, -1), "relu": torch.relu,
        "transpose": lambda x: x.T.contiguous(),
        "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])}
TYPES = {"high": ("f32", torch.float32), "low": ("f16", torch.float16)}
Arrays = dict[str, np.ndarray]


class Engine:
    """Who takes turns: `run` returns when the device is idle."""

    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self.name, self.run = name, run

    def turn(self, seconds: float) -> list[float]:
        return timed_turn(self.run, seconds)


def replayed(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Engine, Any]:
    """The function in a CUDA graph, and the tensors that it leaves its results in."""
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            function(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        made = function(*inputs)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    run()
    return Engine("torch", run), made


def kept(model: jitcl.Model, inputs: Arrays) -> tuple[Engine, Any]:
    """The model on inputs that lie on its device, and where it leaves its results."""
    tensors = {}
    for name, array in inputs.items():
        tensors[name] = jitcl.DeviceTensor.zeros(array.dtype, array.shape, model)
        tensors[name].put(array, [(0, 0, array.nbytes)])
        tensors[name].settle()
    bound = model.bind(inputs=tensors, keep=[o.name for o in model.outputs])
    found = bound.run()
    return Engine("jitcl", bound.run), next(iter(found.values()))


def compared(ours: tuple[Engine, Any], theirs: tuple[Engine, Any]) -> tuple[float, float, float]:
    """Seconds of ours, of theirs, and by how much the first results differ."""
    found = np.asarray(ours[1].numpy(), np.float32)
    want = theirs[1].float().cpu().numpy()
    times = take_turns([ours[0], theirs[0]], TURNS)
    return (times["jitcl"].median, times["torch"].median,
            float(np.abs(found - want).max() / np.abs(want).max()))


# ---- models


def architectures() -> dict[str, tuple[Callable[[], torch.nn.Module], Sequence[Any], str]]:
    """Name -> what makes it, the shapes of its inputs behind the batch (whole numbers: their
    bound), and the result that is taken."""
    import transformers as t
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    picture, text = [("image", (3, 224, 224))], [("ids", (64,), 1000)]
    efficient = partial(t.EfficientNetConfig, width_coefficient=1.0, depth_coefficient=1.0,
                        image_size=224, hidden_dim=1280)
    return {
        "resnet50": (lambda: t.ResNetForImageClassification(t.ResNetConfig()), picture, "logits"),
        "mobilenetv2": (lambda: t.MobileNetV2ForImageClassification(t.MobileNetV2Config()),
                        picture, "logits"),
        "efficientnet_b0": (lambda: t.EfficientNetForImageClassification(efficient()), picture,
                            "logits"),
        "convnext_tiny": (lambda: t.ConvNextForImageClassification(t.ConvNextConfig()), picture,
                          "logits"),
        "vit_b16": (lambda: t.ViTForImageClassification(t.ViTConfig()), picture, "logits"),
        "segformer_b0": (lambda: t.SegformerForSemanticSegmentation(t.SegformerConfig()),
                         [("image", (3, 512, 512))], "logits"),
        "bert_base_128": (lambda: t.BertModel(t.BertConfig(), add_pooling_layer=False),
                          [("ids", (128,), 1000)], "last_hidden_state"),
        "gpt2_prefill_64": (lambda: t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), text,
                            "logits"),
        "whisper_tiny_enc": (lambda: WhisperEncoder(t.WhisperConfig()), [("mel", (80, 3000))],
                             "last_hidden_state")}


class OneResult(torch.nn.Module):
    """A module of transformers as a function of its inputs in order, to one tensor."""

    def __init__(self, module: torch.nn.Module, result: str) -> None:
        super().__init__()
        self.module, self.result = module, result

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.module(*inputs), self.result)
        return found


def module_of(name: str, batch: int) -> tuple[torch.nn.Module, Arrays]:
    """An architecture with seeded weights, and seeded inputs."""
    make, inputs, result = architectures()[name]
    torch.manual_seed(0)
    module = OneResult(make(), result).eval()
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d) and part.running_mean is not None:
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    rng = np.random.default_rng(0)
    return module, {n: rng.integers(0, bound[0], (batch, *shape)) if bound else
                    rng.standard_normal((batch, *shape)).astype(np.float32)
                    for n, shape, *bound in inputs}


def exported(name: str, batch: int) -> bytes:
    """The architecture as an ONNX model."""
    warnings.filterwarnings("ignore")
    module, inputs = module_of(name, batch)
    made = torch.onnx.export(module, tuple(map(torch.from_numpy, inputs.values())), None,
                             input_names=list(inputs), output_names=["out"], opset_version=18,
                             dynamo=True, verbose=False)
    file = io.BytesIO()
    made.save(file)
    return file.getvalue()


def compiled(device: str, precisions: Sequence[str], name: str, batch: int) -> bytes:
    """The ONNX model, of which the cache has the kernels then."""
    model = exported(name, batch)
    for precision in precisions:
        jitcl.compile(model, device=device, precision=precision).close()
    return model


def models(names: Sequence[str], batches: Sequence[int], precisions: Sequence[str], device: str,
           processes: int) -> None:
    for batch in batches:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            texts = dict(zip(names, pool.map(
                compiled, *zip(*((device, precisions, n, batch) for n in names)))))
        for precision in precisions:
            ratios = []
            for name in names:
                module, inputs = module_of(name, batch)
                ours = kept(jitcl.compile(texts[name], device=device, precision=precision), inputs)
                kind = TYPES[precision][1]
                fed = [torch.from_numpy(a).cuda() for a in inputs.values()]
                fed = [x.to(kind) if x.is_floating_point() else x for x in fed]
                mine, theirs, error = compared(ours, replayed(module.cuda().to(kind), *fed))
                ratios.append(mine / theirs)
                print(f"{name} batch {batch} {precision}: {1e3 * mine:.3f} ms, torch "
                      f"{1e3 * theirs:.3f} ({ratios[-1]:.2f}), differ {error:.1e}", flush=True)
            print(f"batch {batch} {precision}: geometric mean "
                  f"{statistics.geometric_mean(ratios):.2f}, at most {max(ratios):.2f}", flush=True)


# ---- products and rows


def repeated(body: Callable[[int], str], arguments: str, count: int) -> Any:
    """A graph whose `count` results are computed alike."""
    lines = [f"  %y{i} = {body(i)}" for i in range(count)]
    return jitcl.parse("\n".join([f"graph @repeated({arguments}) {{", *lines, "  return " +
                                  ", ".join(f"%y{i}" for i in range(count)), "}"]))


def products(device: str) -> None:
    """Weights are constants, as in models: they may be arranged when a model is compiled."""
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    for m, k, n in PRODUCTS:
        count = 4 if m * k * n > 1 << 34 or k * n > 1 << 24 else 16
        weights = [(rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
                   for _ in range(count)]
        x = rng.standard_normal((m, k)).astype(np.float32)
        for precision, (_, kind) in TYPES.items():
            dtype = np.float16 if precision == "low" else np.float32
            element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            values = [helper.make_tensor_value_info(name, element, shape) for name, shape in (
                ("x", (m, k)), *((f"y{i}", (m, n)) for i in range(count)))]
            graph = helper.make_graph(
                [helper.make_node("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(count)],
                "products", values[:1], values[1:],
                [numpy_helper.from_array(w.astype(dtype), f"w{i}") for i, w in enumerate(weights)])
            model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)],
                                      ir_version=8)
            ours = kept(jitcl.compile(model.SerializeToString(), device=device,
                                      precision=precision), {"x": x.astype(dtype)})
            fed = [torch.from_numpy(a).cuda().to(kind) for a in (x, *weights)]
            engine, made = replayed(lambda x, *w: [x @ each for each in w], *fed)
            mine, theirs, error = compared(ours, (engine, made[0]))
            print(f"{m}x{k}x{n} {'f16' if precision == 'low' else 'f32'}: {1e6 * mine / count:.1f}"
                  f" us ({2e-12 * m * n * k * count / mine:.1f} TFLOP/s), torch "
                  f"{1e6 * theirs / count:.1f} ({mine / theirs:.2f}), differ {error:.1e}",
                  flush=True)


def rows(device: str) -> None:
    """Seconds of one more kernel: many less few, so that a run's beginning and end are no part."""
    bodies = {"softmax": "softmax(%x{}) {{axis=-1}}", "relu": "relu(%x{})",
              "transpose": "transpose(%x{}) {{perm=[1, 0]}}",
              "layer norm": "layer_norm(%x{}, %scale, %bias) {{axis=-1, epsilon=1e-5}}"}
    few, many, size = 8, 32, 4096
    for short, kind in TYPES.values():
        fed = [torch.randn(size, size, device="cuda", dtype=kind) for _ in range(many)]
        moved = 2e-9 * fed[0].nbytes
        copies = [replayed(lambda *x: [each.clone() for each in x], *fed[:n])[0]
                  for n in (few, many)]
        for name, body in bodies.items():
            times, errors = [], []
            for count, copy in zip((few, many), copies):
                inputs = {f"x{i}": x.cpu().numpy() for i, x in enumerate(fed[:count])}
                if "scale" in body:
                    inputs |= {"scale": np.ones(size, inputs["x0"].dtype),
                               "bias": np.zeros(size, inputs["x0"].dtype)}
                arguments = ", ".join(f"%{n}: {short}[{','.join(map(str, a.shape))}]"
                                      for n, a in inputs.items())
                graph = repeated(body.format, arguments, count)
                ours = kept(jitcl.compile(graph, device=device,
                                          precision="low" if short == "f16" else "high"), inputs)
                engine, made = replayed(lambda *x, f=ROWS[name]: [f(each) for each in x],
                                        *fed[:count])
                mine, theirs, error = compared(ours, (engine, made[0]))
                errors.append(error)
                times.append((mine, theirs, take_turns([copy], TURNS)["torch"].median,
                              _copied(device, fed[0].nbytes, count)))
            mine, theirs, copied, ordered = ((b - a) / (many - few) for a, b in zip(*times))
            print(f"{name} {short}: {moved / mine:.0f} GB/s, {ordered / mine:.2f} of a copy by "
                  f"OpenCL ({moved / ordered:.0f}), {copied / mine:.2f} of one in a CUDA graph "
                  f"({moved / copied:.0f}); torch {moved / theirs:.0f}, differ {max(errors):.1e}",
                  flush=True)


def _copied(device: str, nbytes: int, count: int) -> float:
    """Seconds of so many copies by clEnqueueCopyBuffer, behind each other."""
    import pyopencl as cl

    from jitcl.devices.opencl.platform import select

    found = select(device)
    context = cl.Context([found.handle])
    queue = cl.CommandQueue(context)
    pairs = [[cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(2)]
             for _ in range(count)]

    def run() -> None:
        for to, source in pairs:
            cl.enqueue_copy(queue, to, source, byte_count=nbytes)
        queue.finish()

    run()
    return take_turns([Engine("copy", run)], TURNS)["copy"].median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("models", "products", "rows"))
    parser.add_argument("names", nargs="*", help="of models; all nine without")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--precision", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--processes", type=int, default=4, help="that compile ahead")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if options.what == "models":
        models(options.names or list(architectures()), options.batch, options.precision,
               options.device, options.processes)
    elif options.what == "products":
        products(options.device)
    else:
        rows(options.device)


if __name__ == "__main__":
    main()
