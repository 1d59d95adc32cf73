"""`jitcl cache`: what is kept on disk, how much of it, and why something was built again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jitcl.cli.options import (
    Shape,
    full_shapes,
    json_option,
    model_options,
    named_shapes,
    value_option,
)
from jitcl.errors import CacheError

if TYPE_CHECKING:
    from rich.table import Table

    from jitcl.devices.faults import FaultDatabase
    from jitcl.runtime.cache import Entry, KernelCache

EPILOG = """\b
Examples:
  jitcl cache ls                             models; --all for kernels and weights, too
  jitcl cache size --json
  jitcl cache clear --device pocl            entries of one device, by part of its name
  jitcl cache retry                          try again what failed on drivers
  jitcl cache why model.onnx -d cpu          which part of the key missed

The folder is the user's cache directory, or JITCL_CACHE_DIR; JITCL_CACHE_SIZE bounds it.
"""

_dir = click.option("--cache-dir", type=click.Path(path_type=Path), metavar="DIR",
                    help="The kernel cache; default: JITCL_CACHE_DIR, or the user's cache "
                    "directory.")
_device = click.option("-d", "--device", metavar="NAME",
                       help="Only this device: its folder's name, or a part of it.")


@click.group(epilog=EPILOG)
def cache() -> None:
    """Look into the kernel cache, or clear it."""


@cache.command()
@_dir
@_device
@click.option("--all", "every", is_flag=True, help="List kernels and weights one by one, too.")
@json_option
def ls(cache_dir: Path | None, device: str | None, every: bool, as_json: bool) -> None:
    """List entries, device by device, the most recently used first, and who uses the kernels and
    weights. JSON lists every entry.
    """
    from jitcl.cli.console import console, print_json
    from jitcl.runtime.pruning import users
    kept = _open(cache_dir)
    entries = kept.ls(_one(kept, device))
    by_name = users(kept.ls())
    users_of = {e.path: _users(by_name, e) for e in entries}
    if as_json:
        print_json([{"device": e.device, "kind": e.kind, "subject": e.subject, "digest": e.digest,
                     "bytes": e.nbytes, "used": e.used, "damaged": e.damaged or None,
                     "path": str(e.path), "parts": dict(e.parts), "uses": list(e.uses),
                     "provides": list(e.provides),
                     "used_by": [f"{u.kind}/{u.digest}" for u in users_of[e.path]]}
                    for e in entries])
        return
    out = console()
    out.print(kept.root)
    for name in dict.fromkeys(e.device for e in entries):
        out.print(_entries(name, [e for e in entries if e.device == name], every, users_of))
    for database in _databases(cache_dir, device):
        if database.faults:
            count = len(database.faults)
            out.print(f"{_name(database)}: {count} fault{'s' * (count > 1)} of its driver "
                      f"{'are' if count > 1 else 'is'} remembered; `jitcl devices` shows them")


def _users(by_name: Mapping[str, list[Entry]], e: Entry) -> list[Entry]:
    """The entries that use one, each once."""
    found = {u.path: u for name in e.names for u in by_name.get(name, ())}
    return list(found.values())


def _used_by(users: Iterable[Entry]) -> str:
    """"3 plans of model a, model b"; for kernels and weights that no model here uses, that."""
    plans = {u.path: u.subject for u in users}
    if not plans:
        return "used by no plan"
    subjects = ", ".join(sorted(set(plans.values())))
    return f"used by {len(plans)} plan{'s' * (len(plans) > 1)} of {subjects}"


def _entries(device: str, entries: list[Entry], every: bool,
             users_of: Mapping[Path, list[Entry]]) -> Table:
    """One device's entries; those without a subject (kernels, weights) in one row a kind, unless
    `every`.
    """
    from jitcl.cli.console import table
    from jitcl.codegen.text import amount
    rows = table(device, "used", "size", "kind", "entry", right=("size",))
    kernels: dict[str, list[Entry]] = {}
    for e in entries:
        if not (e.subject or e.damaged or every):
            kernels.setdefault(e.kind, []).append(e)
            continue
        what = e.subject or f"{' '.join(e.provides) or e.digest}, {_used_by(users_of[e.path])}"
        what += f" for {e.parts['shapes']}" if "shapes" in e.parts else ""
        what = f"damaged: {e.damaged}" if e.damaged else what
        rows.add_row(_time(e), amount(e.nbytes, "B"), e.kind, what)
    for kind, some in kernels.items():
        rows.add_row(_time(some[0]), amount(sum(e.nbytes for e in some), "B"), kind,
                     f"{len(some)} entries, "
                     + _used_by(u for e in some for u in users_of[e.path]))
    return rows


def _time(e: Entry) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used))


@cache.command()
@_dir
@_device
@json_option
def size(cache_dir: Path | None, device: str | None, as_json: bool) -> None:
    """Bytes on disk, of each device and in all."""
    from jitcl.cli.console import console, print_json, table
    from jitcl.codegen.text import amount
    kept = _open(cache_dir)
    one = _one(kept, device)
    names = kept.devices() if one is None else (one,)
    sizes = {name: kept.size(name) for name in names}
    total = sum(sizes.values())
    if as_json:
        print_json({"root": str(kept.root), "bytes": total, "limit": kept.limit, "devices": sizes})
        return
    rows = table(str(kept.root), "device", "size", right=("size",))
    for name, nbytes in sizes.items():
        rows.add_row(name, amount(nbytes, "B"))
    rows.add_row("in all", f"{amount(total, 'B')} of {amount(kept.limit, 'B')}")
    console().print(rows)


@cache.command()
@_dir
@_device
@click.option("--faults", is_flag=True, help="Forget what failed on drivers, too.")
@json_option
def clear(cache_dir: Path | None, device: str | None, faults: bool, as_json: bool) -> None:
    """Delete all entries, or those of one device. Only files that jitcl wrote are touched.

    What failed on drivers stays remembered, so that no kernel that crashed is tried again, unless
    --faults is given.
    """
    from jitcl.cli.console import print_json
    kept = _open(cache_dir)
    removed = kept.clear(_one(kept, device))
    forgotten = sum(d.retry() for d in _databases(cache_dir, device)) if faults else 0
    if as_json:
        print_json({"root": str(kept.root), "removed": removed, "forgotten": forgotten})
    else:
        click.echo(f"removed {removed} entries from {kept.root}"
                   + (f"; {_faults(forgotten)} forgotten" if faults else ""))


@cache.command()
@_dir
@_device
@json_option
def retry(cache_dir: Path | None, device: str | None, as_json: bool) -> None:
    """Forget what failed on drivers, so that every kernel is tried again: after a driver was
    repaired, say. Models are compiled anew then; built kernels are kept. Devices of which a probe
    crashed or hung are probed again.
    """
    from jitcl.cli.console import print_json
    from jitcl.devices.opencl.remembered import forget_fatal
    found = {_name(d): d.retry() for d in _databases(cache_dir, device)}
    probes = forget_fatal(cache_dir, device or "")
    if device is not None and not (found or probes):
        raise CacheError(f"nothing is remembered of a device '{device}'\n  There are: "
                         f"{', '.join(map(_name, _databases(cache_dir, None))) or 'none'}")
    if as_json:
        print_json({"forgotten": sum(found.values()), "devices": found, "probed_again": probes})
        return
    for name, count in found.items():
        click.echo(f"{name}: {_faults(count)} forgotten")
    if probes:
        click.echo(f"devices that are probed again: {probes}")
    if not (found or probes):
        click.echo("no faults of drivers are remembered")


@cache.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@_dir
@_device
def export(file: Path, cache_dir: Path | None, device: str | None) -> None:
    """Write what searches found (`jitcl tune`) into FILE, - for standard output."""
    from jitcl.cli.console import write_json
    from jitcl.runtime.tuned import exported
    kept = _open(cache_dir)
    found = exported(kept, _one(kept, device))
    write_json(file, found)
    click.echo(f"{sum(map(len, found['devices'].values()))} groups of {len(found['devices'])} "
               "devices", err=True)


@cache.command("import")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@_dir
def import_(files: tuple[Path, ...], cache_dir: Path | None) -> None:
    """Take over what searches found elsewhere, where less is known here.

    It serves devices of the same name, driver and features, and this version of jitcl alone.
    Kernels are compared with the interpreter as all new ones are.
    """
    from jitcl.runtime.tuned import imported
    kept = _open(cache_dir)
    for file in files:
        click.echo(f"{file}: {imported(kept, file)} groups that were not known")


def _faults(count: int) -> str:
    return "1 fault is" if count == 1 else f"{count} faults are"


def _databases(cache_dir: Path | None, part: str | None) -> list[FaultDatabase]:
    """What is remembered of the drivers whose files have this part in their names."""
    from jitcl.devices.faults import databases
    return [d for d in databases(cache_dir) if part is None or part in _name(d)]


def _name(database: FaultDatabase) -> str:
    return database.path.stem if database.path is not None else ""


@cache.command()
@model_options
@value_option
@json_option
def why(model: Path, shapes: tuple[Shape, ...], given: tuple[str, ...], as_json: bool,
        **options: Any) -> None:
    """Say whether MODEL is in the cache, and if not, which part of its key differs.

    Options are those of `jitcl run`; the key is made of them, the model's content, the device with
    its driver, and jitcl's own code.
    """
    import numpy as np

    from jitcl.cli.console import print_json
    from jitcl.cli.feeds import Scaling, read_feeds
    from jitcl.runtime.model import open_model
    opened = open_model(model, **options)
    fixed = named_shapes(opened, shapes)
    feeds = read_feeds(opened, given, Scaling(), fixed)
    wanted = full_shapes(opened, fixed, known=tuple(feeds))
    answer = opened.why({**feeds, **{n: np.broadcast_to(0, shape) for n, shape in wanted.items()}})
    if not as_json:
        click.echo(str(answer))
        return
    nearest = answer.nearest
    print_json({"subject": answer.subject, "hit": answer.hit,
                "nearest": None if nearest is None else
                {"device": nearest.device, "digest": nearest.digest, "used": nearest.used},
                "differs": [{"part": part, "now": now, "stored": stored}
                            for part, now, stored in answer.differs]})


def _open(cache_dir: Path | None) -> KernelCache:
    from jitcl.runtime.cache import kernel_cache
    return kernel_cache(cache_dir)


def _one(kept: KernelCache, part: str | None) -> str | None:
    """The device folder that a part of its name selects; CacheError where it is none or several."""
    if part is None:
        return None
    found = [d for d in kept.devices() if part == d] or [d for d in kept.devices() if part in d]
    if len(found) != 1:
        what = f"{len(found)} devices match" if found else "no device matches"
        raise CacheError(f"{what} '{part}' in the cache {kept.root}\n"
                         f"  There are: {', '.join(kept.devices()) or 'none'}")
    return found[0]
