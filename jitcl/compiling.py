"""`jitcl.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitcl.devices.base import Device, DeviceInfo, Progress
from jitcl.errors import InputError, OptionError
from jitcl.passes.options import Memory, Options, Precision
from jitcl.passes.packing import Packing, tolerated
from jitcl.runtime.arguments import tally_of
from jitcl.runtime.calls import Shapes
from jitcl.runtime.inputs import fixed_shapes
from jitcl.runtime.model import Model, compile_now, open_model
from jitcl.runtime.source import Source

if TYPE_CHECKING:
    from jitcl.accuracy.auto import Judge


def compile(
    model: Any,
    *,
    device: str | Device | DeviceInfo | None = "auto",
    precision: Precision = "high",
    memory: Memory = "normal",
    tuning: str = "none",
    guard: str | None = None,
    tolerance: float | Judge | None = None,
    calibrate: Any = None,
    budget: float | None = None,
    shapes: Shapes | None = None,
    strict: bool = False,
    isolation: str | None = None,
    priority: str = "normal",
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Model:
    """Compile a model for a device.

    model: path of an .onnx or .jitcl file, bytes, an onnx.ModelProto, or a jitcl Graph.
    device: "auto" (what `jitcl bench --where` has found for this model; else a GPU if there is one,
    else "cpu"), "cpu", "opencl[:platform[:device]]",
    "reference", one of `jitcl.devices()`, or a pyopencl.CommandQueue, in which everything is run.
    precision: "high" as the model says; "normal" f16 storage, f32 arithmetic; "low" f16 arithmetic
    where possible. `{"/head/*": "high", "*": "low"}` says it for ONNX nodes by name or pattern
    (OptionError for one that matches none): see `Options`. "auto" is f16 wherever outputs stay
    within `tolerance` of f32 on the inputs of `calibrate`, which is tried once and kept in the
    cache: docs/precision.md.
    memory: "low", "normal" or "high"; {"bits": 4, "block": 64, "skip": ["/head/*"]} stores weights
    in few bits, rounded for the inputs of `calibrate` where these are given; with "tolerance":
    0.05, what hurts takes 8 bits or stays as it is: docs/quantisation.md. tuning: "none", "fast",
    "wide" or "heavy": how long to search for faster kernels of an OpenCL device (docs/tuning.md).
    guard: "outputs" or "layers": these are looked at behind each run for infinity, NaN and zeros
    alone that f16 caused; the run is repeated, and goes on, with f32 where it is needed. "off".
    None: "outputs" where precision is below "high".
    tolerance: of "auto": the largest error of an output, in units of its largest element (1e-2), or
    a function of (outputs, outputs in f32) -> whether they are fine. calibrate: inputs to try: a
    dict, an iterable of dicts (64 at most), a folder of .npz; of "auto", too, a function of
    run(inputs) -> outputs that runs steps which read their states; None: random ones. budget:
    seconds, after which the best so far is taken (300); of a tolerance of memory, too.
    shapes: input name -> shape, to compile now; without it, models of fixed shape compile now and
    others when run.
    strict: raise rather than run any op on the host.
    isolation: when OpenCL kernels are built in a process of their own: "always", "untrusted" (on
    drivers, and for features, that are not known good) or "never"; None: JITCL_ISOLATION.
    priority: "low", "normal" or "high", of the runs of models that share a device: one begins when
    none of a higher priority is queued or under way there. Drivers are told, too (docs/async.md).
    cache_dir: the kernel cache; default is the user's cache directory, or JITCL_CACHE_DIR.
    progress: called as progress(done, total, what is under way) while a device is probed, and the
    model is read and its kernels built, checked and loaded, now and in later runs. done <= total,
    and both are equal when that is done; the total grows when it turns out that more is to be done.

    Raises ModelError, UnsupportedError, OptionError, DeviceError, BuildError, OutOfMemoryError.
    """
    options: dict[str, Any] = {
        "device": device, "precision": precision, "memory": memory, "tuning": tuning,
        "guard": guard, "strict": strict, "isolation": isolation,
        "priority": priority, "cache_dir": cache_dir, "progress": progress}
    options |= found(model, options, tolerance, calibrate, budget, shapes)
    return compile_now(model, shapes, **options)


def found(model: Any, options: Mapping[str, Any], tolerance: float | Judge | None = None,
          calibrate: Any = None, budget: float | None = None, shapes: Shapes | None = None
          ) -> dict[str, Any]:
    """What is to be found first, of options of `open_model`: weights that are rounded for inputs,
    precisions of layers. Raises OptionError where there is nothing to find with what is given.
    """
    auto = isinstance(options["precision"], str) and options["precision"] == "auto"
    memory, limit = tolerated(options["memory"])
    weights, result = Options("high", memory).weights, dict[str, Any]()
    if weights is not None:
        result["memory"] = weights
        if limit is not None:
            result["memory"], feeds = within(model, options, weights, limit, calibrate, budget,
                                             shapes)
            calibrate = None if calibrate is None else feeds
        elif calibrate is not None:
            result["memory"], calibrate = packed(model, options, weights, calibrate)
    if auto:
        result["precision"] = chosen(model, {**options, **result}, tolerance, calibrate, budget,
                                     shapes)
    elif tolerance is not None or (budget is not None and limit is None) or (
            calibrate is not None and weights is None):
        raise OptionError("tolerance, calibrate and budget are of precision='auto', calibrate of "
                          "memory={'bits': 4}, too, and budget of memory={'bits': 4, 'tolerance': "
                          "0.05}, where weights' own tolerance stands")
    return result


def packed(model: Any, options: Mapping[str, Any], weights: Packing, calibrate: Any,
           folded: bool = True) -> tuple[Packing, list[Any]]:
    """Weights rounded for inputs, and these. folded: as `calibrated` takes it."""
    from jitcl.accuracy.calibration import feeds_of_calibration
    from jitcl.runtime.calibrated import calibrated

    with open_model(model, **{**options, "precision": "high", "device": "cpu"}) as opened:
        feeds = feeds_of_calibration(calibrate, opened.inputs)
        tally = tally_of(options["progress"])
        return calibrated(opened.source, weights, feeds, opened.cache, tally, folded), feeds


def within(model: Any, options: Mapping[str, Any], weights: Packing, limit: float | Judge,
           calibrate: Any, budget: float | None, shapes: Shapes | None = None, *,
           rounded: bool | None = None, made_up: bool = False,
           written: Callable[[Packing], Source] | None = None) -> tuple[Packing, Sequence[Any]]:
    """Weights whose bits hold a tolerance, and the inputs that they were tried on. rounded: for
    these, where `calibrate` was given if it is None. made_up: they are random numbers. written: as
    `accuracy.bits.held` takes it.
    """
    from jitcl.accuracy.auto import Trial
    from jitcl.accuracy.bits import held

    if callable(calibrate):
        raise OptionError("calibrate: got a function, and memory has a tolerance: wanted inputs, a "
                          "dict, an iterable of dicts or a folder of .npz")
    with open_model(model, **{**options, "precision": "high", "device": "cpu",
                              "memory": weights}) as opened:
        if calibrate is None and fixed_shapes(opened.inputs, shapes) is None:
            raise InputError(
                "memory: tolerance: shapes of inputs are open, or one is no tensor: "
                f"{', '.join(map(str, opened.inputs))}\n  Give inputs to try, calibrate=, or "
                "shapes=.")
        trial = Trial.of(limit, calibrate, shapes, budget, opened.inputs)
        trial = replace(trial, random=trial.random or made_up)
        rounded = calibrate is not None if rounded is None else rounded
        return held(opened.source, weights, trial, rounded, opened.cache,
                    tally_of(options["progress"]), written), trial.feeds


def chosen(model: Any, options: Mapping[str, Any], tolerance: float | Judge | None, calibrate: Any,
           budget: float | None, shapes: Shapes | None, made_up: bool = False) -> Options:
    """What `precision="auto"` comes to with options of `open_model`. made_up: the inputs to try are
    random numbers.
    """
    from jitcl.accuracy.auto import Trial, choose

    opened = open_model(model, **{**options, "precision": "high"})
    with opened:
        trial = Trial.of(tolerance, calibrate, shapes, budget, opened.inputs)
        trial = replace(trial, random=trial.random or made_up)
        return choose(opened.source, opened.device, options["memory"], trial, options["cache_dir"],
                      tally_of(options["progress"]))


__all__ = ["chosen", "compile", "found", "packed", "within"]
