"""What costs inside the framework: tax by layer of the stack and by kind of operator.

    python benchmarks/operators.py [--quick | --redraw]

By layer: samples of the program counter in eager PyTorch, among real kernels. Autograd and what
inference mode saves: by leaving them out, side by side in the same session. By operator: the
width-shrunk twin's operators, each alone in a loop: the warm overhead.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from common import child
from frameworktax import api, store
from frameworktax.ablate.steps import effect
from frameworktax.analysis.compare.contrasts import blocks, paired, ratio
from frameworktax.analysis.document import build
from frameworktax.attribution.buckets import qualified
from frameworktax.measure.plan import Plan
from frameworktax.records import BILL, Attribution, Measurement, Point, Record, Run, Workload
from frameworktax.report.words import interval, label, milliseconds, percent
from operator_times import measure as operators
from question import Place, bar, machine, place, table

MODELS = (Workload(model="bert-base", length=16), Workload(model="resnet-50", image_size=64))
QUICK = (Workload(model="bert-tiny", length=16), Workload(model="resnet-18", image_size=32))
RUNTIMES = ("eager", "eager@autograd", "inference-mode")
BUDGET_S = 150.0
LEADERS = 4

MEANINGS = {
    "kernel": "math kernels and the copies inside them",
    "dispatch": "the dispatcher, operator wrappers, bindings",
    "python": "the interpreter and its extension modules",
    "allocator": "malloc and free",
    "runtime": "an engine's executor, a compiled graph's wrapper",
    "threading": "waiting for and handing out work to threads",
    "system": "page faults and system calls",
    "launch": "device launch calls on the host",
    "device_gap": "device idle between queued kernels",
    "wait": "the calling thread was not running",
    "remainder": "what no rule could place",
}
"""Line of the breakdown → what is in it."""


def measure(at: Place) -> None:
    """Measure every model in one session of its own, and its twin's operators after it."""
    itemised = {}
    for workload in QUICK if at.quick else MODELS:
        budget = 90.0 if at.quick else BUDGET_S
        plan = Plan(
            points=tuple(Point(workload=workload, runtime=name) for name in RUNTIMES),
            processes=1 if at.quick else 3,
            budget_s=budget,
        )
        with bar() as shown:
            api.run_plan(plan, at.store, reporter=shown, command=("operators", workload.model))
        twin = replace(workload, twin=True)
        itemised[workload.model] = child(Path(__file__), ["--itemise", _plain(twin)], 180.0)
    (at.folder / "operators.json").write_text(json.dumps(itemised, indent=1) + "\n")


def _plain(workload: Workload) -> str:
    return json.dumps(asdict(workload))


def itemise(workload: Workload) -> None:
    """Print the operators of a model, in a process of their own."""
    import torch

    from frameworktax import models, runtimes
    from frameworktax.runtimes.base import Target

    loaded = runtimes.get("eager").load(models.build(workload), Target(), Path())
    with torch.no_grad():
        print(json.dumps(asdict(operators(loaded.bind(workload.batch)))))


def page(at: Place) -> str:
    """Return the page from the store and the operators beside it."""
    records, _ = store.read(at.store)
    run = build(records)
    itemised = json.loads((at.folder / "operators.json").read_text())
    lines = [
        "# What costs inside the framework",
        "",
        "Written by `make operators` from the store beside it. Eager PyTorch, batch 1. "
        + machine(run.environment),
    ]
    for m in run.measurements:
        if m.runtime == "eager":
            lines += ["", *_model(m, run, records, itemised.get(m.workload.model, {}))]
    return "\n".join(lines) + "\n"


def _model(
    m: Measurement, run: Run, records: Sequence[Record], itemised: Mapping[str, object]
) -> list[str]:
    w = m.workload
    size = f"{w.length} tokens" if w.length else f"{w.image_size} pixels"
    lines = [f"## {w.model}, {size}", ""]
    if m.latency_ns is None or m.bill_ns is None or m.tax_share is None:
        return [*lines, f"Not measured: {m.reason or 'no bill'}."]
    low, high = percent(m.tax_share.low), percent(m.tax_share.high)
    lines += [
        f"Latency {interval(m.latency_ns)} ms; tax {percent(m.tax_share.value)} of it "
        f"({low} to {high}); {m.operators or '?'} operators.",
        "",
        "### By layer of the stack",
        "",
        f"By {m.bill_method}, among real kernels.",
        "",
    ]
    total = m.latency_ns.value
    leaders = _leaders(m, records)
    rows = [
        (label(n), MEANINGS[n], "; ".join(leaders[n]), milliseconds(ns), percent(ns / total))
        for n in BILL
        if (ns := m.bill_ns.get(n))
    ]
    header = ("layer", "what", "most sampled, of all samples", "ms", "of the latency")
    lines += table(header, rows, left=3)
    lines += ["", *_left_out(m, run), "", "### By kind of operator", ""]
    return lines + _operators(m, itemised)


def _leaders(m: Measurement, records: Sequence[Record]) -> dict[str, list[str]]:
    """Return line of the bill → its most sampled symbols, with their share of all samples."""
    point = Point(workload=m.workload, runtime=m.runtime, platform=m.platform, threads=m.threads)
    found: dict[str, Counter[str]] = {name: Counter() for name in BILL}
    samples = 0
    for record in records:
        if isinstance(record, Attribution) and record.point == point.key():
            samples += sum(sum(stretch.values()) for stretch in record.samples)
            for bucket, library, symbol, count in record.top:
                short = qualified(symbol) or library
                found.setdefault(bucket, Counter())[f"`{short[:60]}`"] += count
    return {
        name: [f"{symbol} {count / samples:.0%}" for symbol, count in top.most_common(LEADERS)]
        for name, top in found.items()
    }


def _left_out(m: Measurement, run: Run) -> list[str]:
    """Return what autograd costs and what inference mode saves, by leaving them out."""
    lines = []
    for runtime, said in (
        ("eager@autograd", "Recording gradients (no `no_grad`)"),
        ("inference-mode", "Inference mode (no version counters, no views tracked)"),
    ):
        other = next(
            (o for o in run.measurements if (o.workload, o.runtime) == (m.workload, runtime)), None
        )
        if other is None or other.latency_ns is None:
            lines.append(f"- {said}: not measured ({other.reason if other else 'left out'}).")
            continue
        contrast = paired(blocks(m), blocks(other))
        found = effect("eager", m, other, ratio(contrast) if contrast else None)
        if found.ratio is None or found.latency_ns is None:
            lines.append(f"- {said}: {found.reason}.")
            continue
        tax = f", the tax by {interval(found.tax_ns)} ms" if found.tax_ns else ""
        r = found.ratio
        lines.append(
            f"- {said} changes the latency by {interval(found.latency_ns)} ms{tax}: "
            f"a ratio of {r.value:.3f} ({r.low:.3f} to {r.high:.3f})."
        )
    return lines


def _operators(m: Measurement, itemised: Mapping[str, object]) -> list[str]:
    times = itemised.get("time_ns")
    calls = itemised.get("calls")
    latency = itemised.get("latency_ns")
    if not (
        isinstance(times, dict) and isinstance(calls, dict) and isinstance(latency, float | int)
    ):
        return ["Not measured."]
    lines = [
        f"The width-shrunk twin takes {milliseconds(latency)} ms"
        + (f"; the tax in place is {milliseconds(m.tax_ns.value)} ms" if m.tax_ns else "")
        + ". Its operators, each alone in a loop (kernels of one or two channels included), and "
        "what stands between them: Python, the model's own code, and caches colder than a loop's.",
        "",
    ]
    order = sorted(times, key=lambda name: -times[name])
    rows = [
        (
            name,
            str(calls.get(name, "")),
            milliseconds(times[name]),
            percent(times[name] / latency),
            f"{times[name] / calls[name] / 1e3:.2f}" if name in calls else "",
        )
        for name in order
        if times[name] / latency >= 0.005
    ]
    return lines + table(("operator", "calls", "ms", "of the twin", "µs a call"), rows)


def main() -> None:
    if sys.argv[1:2] == ["--itemise"]:
        itemise(Workload(**json.loads(sys.argv[2])))
        return
    at = place("operators", __doc__ or "")
    if not at.redraw:
        measure(at)
    at.write(page(at))


if __name__ == "__main__":
    main()
