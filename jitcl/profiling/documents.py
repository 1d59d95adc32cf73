"""A profile as files: JSON with all numbers, a trace for Perfetto and Chrome, a page to look at."""

from __future__ import annotations

import json
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
    def span(s: Span) -> dict[str, Any]:
        at = {name: (moment - profile.begin) * 1e-9 for name, moment in (
            ("begin", s.begin), ("end", s.end), ("queued", s.queued), ("submitted", s.submitted))
            if moment}
        return {"kind": s.kind, "name": s.name, **at, "on": s.place or "host",
                **({"bytes": s.nbytes} if s.nbytes else {})}

    def run(r: RunSpan) -> dict[str, Any]:
        own = span(Span("run", r.model, r.begin, r.end, submitted=r.asked))
        return {"model": r.model, "device": r.device, "thread": r.thread, "begin": own["begin"],
                "end": own["end"], "submitted": own.get("submitted"), "failed": r.failed or None,
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
    """Trace Event Format: a process for the host, with its threads, and one for each device; a run
    is a span around those of its thread. `page` draws the same events.
    """
    threads = {t: n for n, t in enumerate(dict.fromkeys(r.thread for r in profile.runs), 1)}
    queues = {d.device: (number, 1) for number, d in enumerate(profile.devices, 2)}
    named = [("process_name", (1, 0), "host"),
             *(("thread_name", (1, n), f"thread {n}") for n in threads.values()),
             *(("process_name", (pid, 0), device) for device, (pid, _) in queues.items()),
             *(("thread_name", at, "queue") for at in queues.values())]
    events: list[dict[str, Any]] = [
        {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
        for kind, (pid, tid), name in named]

    def add(s: Span, thread: int, facts: dict[str, Any]) -> None:
        pid, tid = queues[s.place] if s.place else (1, thread)
        events.append({"name": s.name, "cat": s.kind, "ph": "X",
                       "ts": (s.begin - profile.begin) / 1e3, "dur": (s.end - s.begin) / 1e3,
                       "pid": pid, "tid": tid, "args": facts})

    for run in profile.runs:
        add(Span("run", run.model, run.begin, run.end), threads[run.thread],
            {"model": run.model, "device": run.device, **(
                {"submitted_us": round((run.begin - run.asked) / 1e3, 1)} if run.asked else {})})
        for s in run.spans:
            add(s, threads[run.thread], {"model": run.model, **_facts(s)})
    for s in profile.outside_spans:
        add(s, 0, _facts(s))
    return {"displayTimeUnit": "ms", "traceEvents": events}


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
    events = trace(profile)["traceEvents"]
    spans = sorted((e for e in events if e["ph"] == "X" and e["tid"]),
                   key=lambda e: (e["ts"], -e["dur"]))
    models = list(dict.fromkeys(r.model for r in profile.runs))
    # a device's one queue goes by the device's name, which its process has
    lanes = {(e["pid"], e["tid"] or 1): e["args"]["name"] for e in reversed(events)
             if e["ph"] == "M" and (e["pid"], e["tid"]) != (1, 0)}
    data = {
        "seconds": profile.seconds, "kinds": KINDS, "of": len(spans), "spans": spans[:MOST],
        "lanes": [[f"{pid}/{tid}", lanes[pid, tid]] for pid, tid in sorted(lanes)],
        "colours": {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(models)}}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined,
        autoescape=True)
    script = json.dumps(data).replace("<", "\\u003c")       # no name ends the script
    return environment.get_template("timeline.html.j2").render(
        data=script, tables=text(profile, len(profile.kernels)), remarks=remarks(profile),
        title=", ".join(models) or "no runs")


__all__ = ["document", "page", "saved", "saved_kind", "trace"]
