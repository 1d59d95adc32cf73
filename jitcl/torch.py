"""PyTorch's models: `torch.compile(module, backend="jitcl")` and `jitcl.from_torch(module, args)`.

Both go through torch.export and torch's own ONNX exporter, so that a model is compiled as one that
came from a file; tensors are read through DLPack. The only room that imports torch.

    module -> Dynamo's graph -> torch.export -> ONNX -> jitcl.compile -> tensors on the CPU
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import Dim, ExportedProgram, export
from torch.fx import GraphModule, Node

from jitcl.compiling import compile as compile_model
from jitcl.errors import InputError, ModelError, OptionError, UnsupportedError
from jitcl.runtime.model import Model, open_model

NO_GRADIENTS = ("jitcl computes no gradients, and this is called where torch would record them\n"
                "  Call it inside torch.no_grad() or torch.inference_mode().")


def from_torch(
    module: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> Model:
    """Compile a module, or what torch.export made of one, as `jitcl.compile` would its ONNX file.

    args, kwargs: example arguments of a module, as torch.export takes them; an ExportedProgram has
    its own. dynamic_shapes: which sizes may change, in torch.export's words. options: those of
    `jitcl.compile`. The model's inputs and outputs are named as torch's exporter names them, and
    weights are those that the module has now. Raises what `compile` raises, and ModelError where
    torch can't export the module.
    """
    if isinstance(module, ExportedProgram):
        if args or kwargs or dynamic_shapes is not None:
            raise OptionError("from_torch: an ExportedProgram has its arguments and shapes already"
                              "\n  Give args, kwargs and dynamic_shapes to torch.export.export.")
        return compile_model(_onnx(module), **options)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch: got a {type(module).__name__}, wanted a torch.nn.Module or "
                         "a torch.export.ExportedProgram")
    program = _exported(module, tuple(args), dict(kwargs or {}), dynamic_shapes)
    return compile_model(_onnx(program), **options)


def _exported(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
              dynamic_shapes: Any) -> ExportedProgram:
    try:
        with torch.no_grad():
            return export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:         # torch has no common class
        raise ModelError(f"torch.export can't export {type(module).__name__}: "
                         f"{type(error).__name__}: {error}") from error


def _onnx(program: ExportedProgram) -> bytes:
    """The program as an ONNX file. UnsupportedError where it changes what it is given: the file's
    model would not.
    """
    aten = torch.ops.aten
    training = {aten.batch_norm.default: 5, aten.dropout.default: 2}        # op -> its argument
    if any(node.args[training[node.target]] for node in program.graph.nodes
           if node.target in training):
        raise UnsupportedError("this module is in training mode: its batch norm or dropout would "
                               "learn or draw\n  Call module.eval() first.")
    signature = program.graph_signature
    if any(isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
           for node in program.graph.nodes):
        # only the graph without such ops says which of them reach what was given
        signature = program.run_decompositions({}).graph_signature
    changed = sorted({*signature.buffers_to_mutate.values(),
                      *signature.user_inputs_to_mutate.values()})
    if changed:
        raise UnsupportedError(
            f"this model writes into {', '.join(changed)}, and a compiled one can't\n  Return the "
            "new values instead.")
    try:
        with _quiet():
            made = torch.onnx.export(program, dynamo=True, verbose=False)
    except Exception as error:
        raise ModelError(f"torch's ONNX exporter can't write this model: "
                         f"{type(error).__name__}: {error}") from error
    assert made is not None
    file = io.BytesIO()
    made.save(file)
    return file.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on what it has no use for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# ---- torch.compile

def backend(graph: GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
            ) -> Callable[..., tuple[Any, ...]]:
    """What Dynamo calls with a graph, whose inputs are sizes, weights and tensors: a function of
    the same arguments. `torch.compile(module, backend="jitcl", options={"device": "cpu"})`: options
    are those of `jitcl.compile`, without what goes with precision "auto".
    """
    if torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in examples):
        raise UnsupportedError(NO_GRADIENTS)
    return _Compiled(graph, examples, dict(options or {}))


class _Compiled:
    """A graph of Dynamo's, compiled when it is first called. Parameters and buffers are constants
    of its model, which is made again when torch says that they were written to; so are numbers
    that no tensor's size tells.
    """

    def __init__(self, graph: GraphModule, examples: Sequence[Any], options: dict[str, Any]
                 ) -> None:
        self.graph, self.options = graph, options
        self.inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        tensors = [k for k, x in enumerate(examples)
                   if isinstance(x, torch.Tensor) and not _is_number(self.inputs[k], x)]
        self.state = [k for k in tensors if _is_state(self.inputs[k], examples[k])]
        self.tensors = [k for k in tensors if k not in self.state]
        told = {str(size): (k, axis) for k in self.tensors
                for axis, size in enumerate(_value(self.inputs[k]).shape)}
        self.sizes = {k: told[str(_value(node))] for k, node in enumerate(self.inputs)
                      if k not in tensors and str(_value(node)) in told}
        self.fixed = sorted(set(range(len(examples))) - {*tensors, *self.sizes})
        self.models: dict[tuple[Any, ...], tuple[Any, Model]] = {}
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        self.results: list[Any] = list(output.args[0])
        for result in self.results:
            if isinstance(result, Node) and not isinstance(_value(result), torch.Tensor):
                raise UnsupportedError(f"torch.compile: the result '{result.name}' is no tensor\n"
                                       "  Return tensors alone.")
        self.given = list(dict.fromkeys(r for r in self.results if isinstance(r, Node)))

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        key = tuple(map(_number, (args[k] for k in self.fixed)))
        written = [(args[k].data_ptr(), _version(args[k])) for k in self.state]
        was, model = self.models.get(key, (None, None))
        if model is None or was != written:
            model = self._model(args)
            self.models[key] = written, model
        feeds = {t.name: args[k].detach() for t, k in zip(model.inputs, self.tensors, strict=True)}
        found = dict(zip(self.given, map(_tensor, model.run(feeds).values()), strict=True))
        return tuple(found[r] if isinstance(r, Node) else r for r in self.results)

    def _model(self, args: tuple[Any, ...]) -> Model:
        """Of the graph with state and fixed numbers inside, which tensors alone are left of."""
        shapes = tuple({axis: Dim.AUTO for axis, size in enumerate(_value(self.inputs[k]).shape)
                        if isinstance(size, torch.SymInt)} for k in self.tensors)
        program = _exported(self._module(args), tuple(args[k].detach() for k in self.tensors), {},
                            shapes)
        return open_model(_onnx(program), **self.options)

    def _module(self, args: tuple[Any, ...]) -> GraphModule:
        """The graph with tensors for its inputs, in their order."""
        made, owned = torch.fx.Graph(), dict[str, Any]()
        there: dict[Node, Any] = {self.inputs[k]: made.placeholder(f"x{k}") for k in self.tensors}
        for k in self.state:
            owned[f"state_{k}"] = args[k]
            there[self.inputs[k]] = made.get_attr(f"state_{k}")
        for k, (tensor, axis) in self.sizes.items():
            there[self.inputs[k]] = made.call_function(
                torch.ops.aten.sym_size.int, (there[self.inputs[tensor]], axis))
        numbers = {self.inputs[k]: _number(args[k]) for k in self.fixed}
        there |= numbers
        for node in self.graph.graph.nodes:
            if node.op == "output":
                made.output(tuple(there[r] for r in self.given))
            elif node.op == "call_method" and node.target == "item" and node.args[0] in numbers:
                there[node] = numbers[node.args[0]]
            elif node.op != "placeholder":
                there[node] = made.node_copy(node, lambda n: there[n])
                if node.op in ("get_attr", "call_module"):
                    owned[node.target] = operator.attrgetter(node.target)(self.graph)
        return GraphModule(owned, made, "Traced")


def _value(node: Node) -> Any:
    """What Dynamo traced with: a tensor of sizes that may be symbols, or a number."""
    return node.meta["example_value"]


def _is_state(node: Node, example: torch.Tensor) -> bool:
    """Whether an input is a parameter or a buffer of the module, not an argument of the call."""
    return isinstance(example, torch.nn.Parameter) or bool(
        node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))


def _is_number(node: Node, example: torch.Tensor) -> bool:
    """Whether an input is a float of Python's, which Dynamo passes as a tensor to ask its item."""
    return "tensor_dict" not in node.meta and example.dim() == 0


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _version(tensor: torch.Tensor) -> int:
    """How often it was written to; tensors of inference mode don't count."""
    return 0 if tensor.is_inference() else tensor._version


def _tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory as a tensor."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


if "jitcl" not in torch._dynamo.list_backends():        # without the package's entry point
    torch._dynamo.register_backend(backend, name="jitcl")

__all__ = ["backend", "from_torch"]
