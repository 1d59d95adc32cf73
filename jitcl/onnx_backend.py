"""onnx's backend interface (onnx.backend.base) over jitcl.

    import jitcl.onnx_backend as backend
    prepared = backend.prepare(onnx.load("model.onnx"), "CPU")      # or "OPENCL", "OPENCL:0:1"
    (logits,) = prepared.run([array])

Devices are "CPU", "OPENCL[:platform[:device]]" and "REFERENCE", in capitals as onnx writes them or
not, and whatever else `jitcl.compile` takes. The functions of this module are those of `Backend`,
as onnxruntime.backend has them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from jitcl.compiling import compile
from jitcl.errors import DeviceError, InputError, OptionError, UnsupportedError
from jitcl.runtime.model import Model

# `prepare` passes these to jitcl.compile; onnx's tests pass tolerances, which are theirs to use
OPTIONS = tuple(name for name in inspect.signature(compile).parameters
                if name not in ("model", "device"))
TOLERANCES = ("rtol", "atol")


class JitclRep(BackendRep):
    """A prepared model. `model`: the jitcl.Model behind it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._inputs = [t.name for t in model.inputs if not t.optional]
        self._names = [t.name for t in model.outputs]
        self._tuple = namedtupledict("Outputs", self._names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, a tuple that knows their names: `found[0]`, `found["logits"]`.

        inputs: arrays in the order of the model's inputs that have no default (None: an optional
        one that is left out), one array alone, or a dict by name. Raises InputError.
        """
        if kwargs:
            raise OptionError(f"run() has no option '{next(iter(kwargs))}'")
        found = self.model.run(self._feeds(inputs))
        return self._tuple(*(found[name] for name in self._names))

    def _feeds(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        if isinstance(inputs, (list, tuple)):
            if len(inputs) > len(self._inputs):
                raise InputError(f"{len(inputs)} inputs were passed to a model that takes "
                                 f"{len(self._inputs)}: {', '.join(self._inputs)}")
            return {n: v for n, v in zip(self._inputs, inputs) if v is not None}
        if len(self._inputs) != 1:
            raise InputError(f"one array was passed to a model with {len(self._inputs)} inputs: "
                             f"pass a list: {', '.join(self._inputs)}")
        return {self._inputs[0]: inputs}


class JitclBackend(Backend):
    """What onnx's tests and tools are given."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether this machine has it; nothing is probed or built."""
        spec = _spec(device)
        if not spec.startswith("opencl"):
            return spec in ("cpu", "reference", "auto")
        from jitcl.devices.opencl.platform import select
        try:
            select(spec)
        except DeviceError:
            return False
        return True

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """False where `prepare` refuses what the model needs. Of models with open shapes, some of
        that only turns out when they are run.
        """
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: Any = "CPU", **kwargs: Any) -> JitclRep:
        """Compile a model; options are those of `jitcl.compile`, and so are the errors."""
        unknown = [k for k in kwargs if k not in (*OPTIONS, *TOLERANCES)]
        if unknown:
            raise OptionError(f"prepare() has no option '{unknown[0]}'; there are "
                              f"{', '.join(OPTIONS)}")
        options = {k: v for k, v in kwargs.items() if k in OPTIONS}
        return JitclRep(compile(model, device=_spec(device), **options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: Any = "CPU", **kwargs: Any
                  ) -> tuple[Any, ...]:
        """`prepare` and `run` at once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Any, device: Any = "CPU",
                 outputs_info: Sequence[tuple[Any, Sequence[int]]] | None = None, **kwargs: Any
                 ) -> tuple[Any, ...]:
        """Run one node: its inputs in order, None for those left out, or a dict by their names.

        outputs_info: (dtype, shape) of each output, checked against what comes out. opset_version:
        of the node's domain; the newest that this onnx knows without it.
        """
        version = kwargs.pop("opset_version", None)
        model, feeds = _model_of(node, inputs, version)
        found = cls.run_model(model, feeds, device, **kwargs)
        for name, value, info in zip(node.output, found, outputs_info or ()):
            want = np.dtype(info[0]), tuple(info[1])
            if isinstance(value, np.ndarray) and (value.dtype, value.shape) != want:
                raise InputError(f"output '{name}' of {node.op_type} is {value.dtype}"
                                 f"{list(value.shape)}, outputs_info says {want[0]}{list(want[1])}")
        return found


def _spec(device: Any) -> Any:
    """"OPENCL:Intel" -> "opencl:intel"; "CPU:0" is the CPU. What is no text is jitcl's own."""
    if not isinstance(device, str):
        return device
    spec = device.strip().lower()
    return "cpu" if spec == "cpu:0" else spec


def _model_of(node: onnx.NodeProto, inputs: Any, version: int | None
              ) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one node, and what to feed it."""
    if isinstance(inputs, Mapping):
        given = [inputs.get(name) for name in node.input]
    else:
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if len(given) > len(node.input):
        raise InputError(f"{len(given)} inputs were passed to a node that names "
                         f"{len(node.input)}: {', '.join(node.input)}")
    feeds = {n: v for n, v in zip(node.input, given) if n and v is not None}
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    alone.input[:] = [n if n in feeds else "" for n in node.input]
    newest = onnx.defs.onnx_opset_version()
    opsets = [helper.make_opsetid("", newest if node.domain or version is None else version)]
    if node.domain:
        own = [s.since_version for s in onnx.defs.get_all_schemas_with_history()
               if s.domain == node.domain]
        opsets.append(helper.make_opsetid(node.domain, version or max(own, default=1)))
    graph = helper.make_graph(
        [alone], node.op_type, [helper.make_value_info(n, _type(v, n)) for n, v in feeds.items()],
        [helper.make_tensor_value_info(n, onnx.TensorProto.UNDEFINED, None)
         for n in node.output if n])
    return helper.make_model(graph, opset_imports=opsets), feeds


def _type(value: Any, name: str) -> onnx.TypeProto:
    """The ONNX type of a fed value."""
    if isinstance(value, list):
        if not value:
            raise InputError(f"input '{name}': an empty sequence does not say what it is of; put "
                             "the node into a model")
        item = _type(value[0], name)
        item.tensor_type.ClearField("shape")                # others may have another
        return helper.make_sequence_type_proto(item)
    array = np.asarray(value)
    return helper.make_tensor_type_proto(
        onnx.TensorProto.STRING if array.dtype.kind in "OUS"
        else helper.np_dtype_to_tensor_dtype(array.dtype),
        None if array.dtype.kind in "OUS" else array.shape)


is_compatible = JitclBackend.is_compatible
prepare = JitclBackend.prepare
run_model = JitclBackend.run_model
run_node = JitclBackend.run_node
supports_device = JitclBackend.supports_device

__all__ = ["JitclBackend", "JitclRep", "is_compatible", "prepare", "run_model", "run_node",
           "supports_device"]
