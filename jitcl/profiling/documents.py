"""A profile as files: JSON with all numbers, a trace for Perfetto and Chrome, a page to look at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from jitcl.devices.recording import KINDS, RunSpan, Span
from jitcl.errors import OptionError
from jitcl.profiling.parts import parts
from jitcl.profiling.text import remarks, text

if TYPE_CHECKING:
    from jitcl.profiling.profile import Profile

ENDINGS = (".html", ".trace.json", ".json", ".txt")
MOST = 20_000                   # spans that the page shows
COLOURS = ("#8fb4de", "#e8ae74", "#9ccf9c", "#d79bc0", "#d0c672", "#a8a3dd", "#86cdc9", "#e09a94")


def saved(profile: Profile, path: Path) -> str:
    """The text of a file of this name. OptionError for an ending that means nothing."""
    kind = saved_kind(path)
    if kind == ".html":
        return page(profile)
    if kind == ".trace.json":
        return json.dumps(trace(profile))
    if kind == ".json":
        return json.dumps(document(profile), indent=1)
    return text(profile, len(profile.kernels)) + "\n"


def saved_kind(path: Path) -> str:
    """What a file of this name is to hold: ENDINGS. OptionError for an ending that means nothing.
    """
    for ending in ENDINGS:
        if path.name.lower().endswith(ending):
            return ending
    raise OptionError(f"'{path}': wanted .html (a timeline), .trace.json (Perfetto, Chrome), .json "
                      "(all numbers) or .txt (tables)")


def document(profile: Profile) -> dict[str, Any]:
    """All numbers; times in seconds, those of runs and spans since the block began."""
    def at(moment: int) -> float:
        return (moment - profile.begin) * 1e-9

    def span(s: Span) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": s.kind, "name": s.name, "begin": at(s.begin),
                                 "end": at(s.end), "on": s.place or "host"}
        if s.queued:
            found |= {"queued": at(s.queued), "submitted": at(s.submitted)}
        if s.nbytes:
            found["bytes"] = s.nbytes
        return found

    def run(r: RunSpan) -> dict[str, Any]:
        return {"model": r.model, "device": r.device, "thread": r.thread, "begin": at(r.begin),
                "end": at(r.end), "submitted": at(r.asked) if r.asked else None,
                "failed": r.failed or None,
                "parts": {kind: spent * 1e-9
                          for kind, spent in parts(r, profile.others).items() if spent},
                "spans": [span(s) for s in r.spans]}

    return {"seconds": profile.seconds, "kinds": KINDS,
            "models": [asdict(m) for m in profile.models],
            "kernels": [asdict(k) for k in profile.kernels],
            "devices": [asdict(d) for d in profile.devices],
            "waits": [asdict(w) for w in profile.waits],
            "outside": profile.outside, "unfinished": profile.unfinished,
            "remarks": remarks(profile),
            "runs": [run(r) for r in profile.runs]}


def trace(profile: Profile) -> dict[str, Any]:
    """Trace Event Format: a process for the host, with its threads, and one for each device."""
    places = {d.device: number for number, d in enumerate(profile.devices, 2)}
    threads = {t: n for n, t in enumerate(dict.fromkeys(r.thread for r in profile.runs), 1)}
    events: list[dict[str, Any]] = [_named("process_name", 1, 0, "host")]
    events += [_named("process_name", number, 0, device) for device, number in places.items()]
    events += [_named("thread_name", number, 1, "queue") for number in places.values()]
    events += [_named("thread_name", 1, number, f"thread {number}") for number in threads.values()]

    def event(name: str, kind: str, begin: int, end: int, pid: int, tid: int, **args: Any
              ) -> dict[str, Any]:
        return {"name": name, "cat": kind, "ph": "X", "ts": (begin - profile.begin) / 1e3,
                "dur": (end - begin) / 1e3, "pid": pid, "tid": tid, "args": args}

    for run in profile.runs:
        thread = threads[run.thread]
        events.append(event(run.model, "run", run.begin, run.end, 1, thread, device=run.device))
        for s in run.spans:
            own = {"model": run.model, **_facts(s)}
            where = (places[s.place], 1) if s.place else (1, thread)
            events.append(event(s.name, s.kind, s.begin, s.end, *where, **own))
    for s in profile.outside_spans:
        events.append(event(s.name, s.kind, s.begin, s.end, 1, 0))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _facts(span: Span) -> dict[str, Any]:
    """Of a span, for people."""
    found: dict[str, Any] = {}
    if span.step is not None:
        spent = max(span.end - span.begin, 1)
        found["layers"] = ", ".join(name for name, _ in span.step.origins)
        if span.step.flops:
            found["GFLOP/s"] = round(int(span.step.flops) / spent, 2)
        found["bytes"] = int(span.step.bytes)
    elif span.nbytes:
        found["bytes"] = span.nbytes
    if span.queued:
        found["queued_us"] = round((span.begin - span.queued) / 1e3, 1)
        found["submitted_us"] = round((span.begin - span.submitted) / 1e3, 1)
    return found


def page(profile: Profile) -> str:
    """A page that needs nothing else: lanes of threads and devices, what is under the pointer, the
    tables below.
    """
    rows = list(_rows(profile))
    shown = sorted(rows, key=lambda row: row[1])[:MOST]
    models = list(dict.fromkeys(r.model for r in profile.runs))
    data = {
        "seconds": profile.seconds, "models": models,
        "colours": [COLOURS[n % len(COLOURS)] for n in range(len(models))],
        "lanes": list(dict.fromkeys(
            [*(row[0] for row in rows if row[0].startswith("thread")),
             *(d.device for d in profile.devices)])),
        "spans": shown, "of": len(rows), "kinds": KINDS}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
        autoescape=True)
    script = json.dumps(data).replace("<", "\\u003c")       # no name ends the script
    return environment.get_template("timeline.html.j2").render(
        data=script, tables=text(profile, len(profile.kernels)), remarks=remarks(profile),
        title=", ".join(models) or "no runs")


def _rows(profile: Profile) -> Iterator[list[Any]]:
    """[lane, begin and end in microseconds, kind, name, number of the model, row of the lane, since
    when it waited or 0, facts].
    """
    models = {name: n for n, name in enumerate(dict.fromkeys(r.model for r in profile.runs))}
    threads = {t: n for n, t in enumerate(dict.fromkeys(r.thread for r in profile.runs), 1)}

    def us(moment: int) -> float:
        return round((moment - profile.begin) / 1e3, 2)

    for run in profile.runs:
        lane, model = f"thread {threads[run.thread]}", models[run.model]
        yield [lane, us(run.begin), us(run.end), "run", run.model, model, 0,
               us(run.asked) if run.asked else 0, _told({"device": run.device})]
        for s in run.spans:
            if not s.place:
                depth = 1 + sum(o is not s and not o.place and o.begin <= s.begin and o.end >= s.end
                                for o in run.spans)
                yield [lane, us(s.begin), us(s.end), s.kind, s.name, model, depth, 0,
                       _told(_facts(s))]
                continue
            since = us(s.submitted) if s.submitted else 0
            yield [s.place, us(s.begin), us(s.end), s.kind, s.name, model, 0, since,
                   _told(_facts(s))]


def _told(facts: dict[str, Any]) -> str:
    return "\n".join(_lines(facts.items()))


def _lines(items: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in items:
        yield f"{name.replace('_us', ' before, us')}: {value}"


__all__ = ["document", "page", "saved", "saved_kind", "trace"]
