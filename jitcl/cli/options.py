"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jitcl.config import ISOLATION
from jitcl.errors import InputError, OptionError
from jitcl.passes.options import CHOICES, Options
from jitcl.passes.packing import tolerated

if TYPE_CHECKING:
    from jitcl.runtime.model import Model

F = TypeVar("F", bound=Callable[..., Any])
Shape = tuple[str, tuple[int, ...]]          # (input name, "" = the only one; dimensions)


class ShapeType(click.ParamType):
    """`image=1,3,224,224`; the name may be left out where a model has one input."""

    name = "[NAME=]DIMS"

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> Shape:
        if isinstance(value, tuple):
            return value
        name, _, dims = value.rpartition("=")
        if not re.fullmatch(r"([0-9]{1,18}([,x][0-9]{1,18})*)?", dims):
            self.fail(f"'{value}' is no shape: write NAME=1,3,224,224", param, ctx)
        return name, tuple(int(d) for d in re.split("[,x]", dims) if d)


class Precision(click.Choice):
    """One for all layers, or `low;NAME=high;..` with names or patterns of layers."""

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> str:
        if "=" not in value and ";" not in value:
            return str(super().convert(value, param, ctx))
        try:
            return Options(value).said
        except OptionError as error:
            self.fail(str(error), param, ctx)


class Memory(click.Choice):
    """Of buffers; or `bits=4;block=64;..`, of weights, too; with a tolerance, where it is looked
    for.
    """

    tolerance = False

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> str:
        if "=" not in value:
            return str(super().convert(value, param, ctx))
        try:
            Options("high", tolerated(value)[0] if self.tolerance else value)
        except OptionError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class MemoryWithin(Memory):
    tolerance = True


class Numbers(click.ParamType):
    """Comma-separated numbers, one a channel."""

    name = "R,G,B"

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(v) for v in value.split(","))
        except ValueError:
            self.fail(f"'{value}' is not numbers such as 0.5,0.5,0.5", param, ctx)


_MODEL = click.argument("model", type=click.Path(path_type=Path))
_DEVICE = click.option("-d", "--device", default="auto", show_default=True, metavar="DEVICE",
                       help="auto, cpu, opencl[:PLATFORM[:DEVICE]] (numbers or parts of names), "
                            "reference; profile:NAME to compile only.")
_TUNING = click.option("--tuning", type=click.Choice(CHOICES["tuning"]), default="none",
                       show_default=True, help="How long to search for faster kernels.")
_PRECISION = ("high: as the model says; normal: f16 storage; low: f16 arithmetic too, where the "
              "device has it. For layers: 'low;/head/*=high'.")
_MEMORY = ("low: pack buffers tightest; high: share none. Weights in few bits: "
           "'bits=4;block=64;skip=/head/*'.")
_SHARED = (
    click.option("--precision", type=Precision(CHOICES["precision"]), default="high",
                 show_default=True, help=_PRECISION),
    click.option("--memory", type=Memory(CHOICES["memory"]), default="normal",
                 show_default=True, help=_MEMORY),
    _TUNING,
    click.option("--shape", "shapes", type=ShapeType(), multiple=True,
                 help="An input's shape, where the model leaves it open; repeatable."),
    click.option("--cache-dir", type=click.Path(path_type=Path), metavar="DIR",
                 help="The kernel cache; default: JITCL_CACHE_DIR, or the user's cache directory."),
)
input_option = click.option(
    "-i", "--input", "given", multiple=True, metavar="[NAME=]FILE",
    help="An input from a .npy, a .npz (without NAME: all arrays in it), a picture, or "
    "JSON numbers; repeatable. NAME may be left out where there is one input.")
_PICTURES = (
    click.option("--scale", type=float,
                 help="Pictures: factor on 0..255  [default: 1/255 for floats]"),
    click.option("--mean", type=Numbers(), default=(), help="Pictures: subtracted after scaling."),
    click.option("--std", type=Numbers(), default=(), help="Pictures: divided by after that."),
    click.option("--bgr", is_flag=True, help="Pictures: blue first, as OpenCV has it."),
)
value_option = click.option(
    "-i", "--input", "given", multiple=True, metavar="NAME=VALUE",
    help="The value of an input that decides shapes (a Reshape's target): a .npy, or numbers such "
    "as [1, -1].")
isolation_option = click.option(
    "--isolation", type=click.Choice(ISOLATION),
    help="When OpenCL kernels are built and tried in a process of their own; untrusted: on "
    "drivers, and for features, that are not known good.  [default: JITCL_ISOLATION, or untrusted]")
guard_option = click.option(
    "--guard", type=click.Choice(CHOICES["guard"]),
    help="What is looked at for results that f16's range spoilt, which are then computed in f32.  "
    "[default: outputs, where precision is below high]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def model_options(command: F) -> F:
    """MODEL and all options that decide what it is compiled into."""
    return _all(command, _MODEL, _DEVICE, *_SHARED)


def tuned_options(command: F) -> F:
    """The same, but for how long to search."""
    return _all(command, _MODEL, _DEVICE, *(o for o in _SHARED if o is not _TUNING))


def model_options_and_auto(command: F) -> F:
    """The same, with `--precision auto` and what belongs to it."""
    return _all(
        command, _MODEL, _DEVICE,
        click.option("--precision", type=Precision((*CHOICES["precision"], "auto")),
                     default="high", show_default=True,
                     help=f"{_PRECISION} auto: f16 wherever outputs stay within --tolerance of "
                     "f32, found once and kept in the cache."),
        click.option("--tolerance", type=click.FloatRange(0), metavar="X",
                     help="Of auto: the largest error of an output, in units of its largest "
                     "element.  [default: 1e-2]"),
        click.option("--calibrate", type=click.Path(path_type=Path), metavar="FOLDER",
                     help="Of auto: inputs to try, each .npz or .npy in it.  [default: the inputs "
                     "of this run]  Of weights in few bits: what they are rounded for."),
        click.option("--budget", type=click.FloatRange(0), metavar="SECONDS",
                     help="Of auto, and of weights' tolerance: after that no set of layers is "
                     "begun, and the best so far is taken.  [default: 300]"),
        click.option("--memory", type=MemoryWithin(CHOICES["memory"]), default="normal",
                     show_default=True, help=f"{_MEMORY} 'bits=4;tolerance=0.05': some take "
                     "8 bits, or stay, until no output is off by more of its largest element."),
        *_SHARED[2:])


def model_options_but_device(command: F) -> F:
    """The same for a command that takes several devices."""
    return _all(command, _MODEL, *_SHARED)


def common_options(command: F) -> F:
    """The same for a command that takes several models, too."""
    return _all(command, *_SHARED)


def language_options(command: F) -> F:
    """A folder and the options that `jitcl.lm.load` takes, but isolation."""
    _, memory, *_, cache_dir = _SHARED
    precision = click.option(
        "--precision", type=Precision((*CHOICES["precision"], "auto")), default="high",
        show_default=True, help="high: as the model says; normal: f16 storage; low: f16 arithmetic "
        "too, where the device has it; auto: the lowest that says nearly the same.")
    adapter = click.option("--adapter", type=click.Path(path_type=Path), metavar="FOLDER",
                           help="A LoRA adapter, as peft saves it, which is added to the weights.")
    return _all(command, _MODEL, _DEVICE, precision, memory, adapter, cache_dir)


def picture_options(command: F) -> F:
    """What becomes of the pixels of pictures: `feeds.Scaling`."""
    return _all(command, *_PICTURES)


def _all(command: F, *options: Callable[[F], F]) -> F:
    """The command with options, which its help lists in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def named_shapes(model: Model, shapes: Sequence[Shape]) -> dict[str, tuple[int, ...]]:
    """--shape options by input name; InputError where a name is missing, unknown or given twice."""
    from jitcl.runtime.inputs import check_shape

    found: dict[str, tuple[int, ...]] = {}
    for name, dims in shapes:
        name = name or only_input(model, "--shape NAME=DIMS")
        if name in found:
            raise InputError(f"--shape was given twice for input '{name}'")
        found[name] = dims
    by_name = {t.name: t for t in model.inputs}
    for name, dims in found.items():
        if name not in by_name:
            raise InputError(f"--shape: there is no input '{name}'; the inputs are "
                             f"{', '.join(map(str, model.inputs))}")
        want = by_name[name].shape
        if len(dims) != len(want) or any(isinstance(w, int) and w != d
                                         for w, d in zip(want, dims)):
            raise InputError(f"--shape {name}={','.join(map(str, dims))} does not fit "
                             f"input {by_name[name]}")
        check_shape(by_name[name], dims)
    return found


def only_input(model: Model, usage: str) -> str:
    """The name of the only required input; InputError where there are several."""
    required = [t for t in model.inputs if not t.optional]
    if len(required) != 1:
        raise InputError(f"the model has {len(required)} inputs: name one, {usage}\n  They are: "
                         f"{', '.join(map(str, required)) or 'none'}")
    return required[0].name


def full_shapes(model: Model, shapes: Mapping[str, tuple[int, ...]],
                known: Sequence[str] = ()) -> dict[str, tuple[int, ...]]:
    """Concrete shapes of all required inputs but those in `known`; InputError says what is open."""
    found = {}
    for t in model.inputs:
        if t.name in known or (t.optional and t.name not in shapes):
            continue
        if t.value is not None:
            continue
        shape = shapes.get(t.name, t.shape)
        unknown = [str(d) for d in shape if not isinstance(d, int)]
        if unknown:
            example = ",".join(str(d) if isinstance(d, int) else "1" for d in shape)
            raise InputError(f"input {t} leaves {', '.join(unknown)} open\n"
                             f"  Say its shape: --shape {t.name}={example}")
        found[t.name] = tuple(d for d in shape if isinstance(d, int))
    return found
