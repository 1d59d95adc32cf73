"""`jitcl profile`: where the time of a model's runs goes, or of several models'."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import (
    Shape,
    common_options,
    input_option,
    isolation_option,
    named_shapes,
    picture_options,
)
from jitcl.errors import InputError, OptionError

if TYPE_CHECKING:
    from jitcl.profiling.profile import Profile
    from jitcl.runtime.model import Model

Job = tuple["Model", dict[str, Any]]

EPILOG = """\b
Examples:
  jitcl profile model.onnx                              kernels, copies, waits, the host
  jitcl profile model.onnx --save run.html              a timeline to look at
  jitcl profile detect.onnx pose.onnx -d opencl         two models on one device, in turns
  jitcl profile a.onnx b.onnx --together --save t.html  who waits for whom?
  jitcl profile a.onnx b.onnx -d cpu -d opencl          each on a device of its own
  jitcl profile model.onnx --cold                       the first run: compiling and the cache
  jitcl profile model.onnx --save run.trace.json        for ui.perfetto.dev

\b
How to read it: a run's time is that from its call to its return. Every moment of it counts
once: for kernels where one runs, else for copies, else for what the host did; "unexplained"
is what nobody told of. Times of kernels are those of the device's clock (OpenCL) where it
agrees with the host's; on the CPU, steps are run one by one. See docs/profiling.md.
"""


@click.command(epilog=EPILOG)
@click.argument("models", type=click.Path(path_type=Path), nargs=-1, required=True,
                metavar="MODEL [MODEL]...")
@click.option("-d", "--device", "devices", multiple=True, metavar="DEVICE",
              help="A device as `jitcl run` takes it: one for all models, or one for each.  "
              "[default: auto]")
@common_options
@input_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True,
              help="Seed of the random numbers for inputs that are not given.")
@picture_options
@click.option("--repeat", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="Runs of each model.")
@click.option("--together", is_flag=True,
              help="Each model in a thread of its own; otherwise they take turns in one.")
@click.option("--cold", is_flag=True, help="With the first run, which compiles or reads the cache.")
@click.option("--kernels", type=click.IntRange(0), default=20, show_default=True, metavar="N",
              help="List the N slowest kernels.")
@click.option("--roof/--no-roof", default=True, show_default=True,
              help="Measure the devices' peaks, and say what share of them kernels reach.")
@click.option("--save", "files", type=click.Path(path_type=Path, dir_okay=False), multiple=True,
              metavar="FILE", help="Write .html (a timeline), .trace.json (Perfetto, Chrome), "
              ".json (all numbers) or .txt; repeatable.")
@isolation_option
def profile(models: tuple[Path, ...], devices: tuple[str, ...], shapes: tuple[Shape, ...],
            given: tuple[str, ...], seed: int, scale: float | None, mean: tuple[float, ...],
            std: tuple[float, ...], bgr: bool, repeat: int, together: bool, cold: bool,
            kernels: int, roof: bool, files: tuple[Path, ...], **options: Any) -> None:
    """Say where the time of MODEL's runs goes: kernels, copies, waits, the host."""
    from jitcl.cli.console import check_writable, console, progress_bar
    from jitcl.cli.feeds import Scaling, complete_feeds
    from jitcl.profiling.documents import saved_kind
    from jitcl.profiling.profile import profile as recorded
    from jitcl.profiling.text import show
    from jitcl.runtime.model import open_model

    for path in files:
        saved_kind(path)                        # before an hour of runs, not after it
        check_writable(path)
    if len(devices) > 1 and len(devices) != len(models):
        raise OptionError(f"--device was given {len(devices)} times for {len(models)} models\n"
                          "  Give one for all, or one for each.")
    if given and len(models) > 1:
        raise InputError("-i names an input of one model, and there are several\n"
                         "  Profile them with the random inputs that are the default.")
    jobs: list[Job] = []
    with progress_bar() as progress:
        for number, path in enumerate(models):
            device = devices[number] if len(devices) > 1 else (*devices, "auto")[0]
            model = open_model(path, device=device, progress=progress, **options)
            feeds = complete_feeds(model, given, Scaling(scale, mean, std, bgr),
                                   named_shapes(model, shapes), True, seed)
            jobs.append((model, feeds))
        if not cold:
            for model, feeds in jobs:
                model.run(feeds)
    with recorded() as found:
        (_together if together else _in_turn)(jobs, repeat)
    if roof:
        _under_roof(found)
    show(found, console(), kernels)
    for path in files:
        click.echo(f"saved {found.save(path)}")


def _in_turn(jobs: Sequence[Job], repeat: int) -> None:
    for _ in range(repeat):
        for model, feeds in jobs:
            model.run(feeds)


def _together(jobs: Sequence[Job], repeat: int) -> None:
    """Raises what the first model raised that failed."""
    failed: list[BaseException] = []

    def work(model: Model, feeds: dict[str, Any]) -> Callable[[], None]:
        def runs() -> None:
            try:
                for _ in range(repeat):
                    model.run(feeds)
            except BaseException as error:  # noqa: BLE001  raised below
                failed.append(error)
        return runs

    threads = [threading.Thread(target=work(*job)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _under_roof(found: Profile) -> None:
    from jitcl.bench.profiled import peaks_of, under_roof

    under_roof(found, peaks_of(found))
