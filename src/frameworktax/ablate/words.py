"""An ablation in words: the document of ``--json``, rows of the table, the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from frameworktax.ablate.ladder import trunk_of
from frameworktax.ablate.steps import Ablation, Effect, Step
from frameworktax.records import Estimate, Measurement
from frameworktax.report.words import (
    TWIN,
    half_width,
    milliseconds,
    parity_mark,
)

SCHEMA = "frameworktax.ablation"
VERSION = 1
HEADER = ("step", "ms", "±", "tax", "kernel", "adds", "tax, ms", "kernel, ms", "alone")
PATH_TITLES = {
    "eager": "eager",
    "torchscript": "TorchScript",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    "device": "device",
}
READING = (
    "adds: change of the latency over the step above, or the nearest measured one before it; an "
    "engine's first step is added to {trunk}. alone: change over the base with this step only. "
    "95 % intervals, each for itself, from blocks of the same rounds."
)


def plain(ablation: Ablation) -> dict[str, Any]:
    """Return the document of ``--json``; times in ns, ``null`` where not known, with a reason."""
    best = ablation.best
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "session": ablation.session,
        "started": ablation.started,
        "workload": asdict(ablation.base.rung.point.workload),
        "platform": ablation.base.rung.point.platform,
        "best": best.rung.name if best else None,
        "steps": [_step(step) for step in ablation.steps],
        "environment": asdict(ablation.environment) if ablation.environment else None,
    }


def _step(step: Step) -> dict[str, Any]:
    rung, m = step.rung, step.measured
    told = m if m is not None and step.reason is None else None
    return {
        "name": rung.name,
        "title": rung.title,
        "path": rung.path,
        "after": rung.after,
        "runtime": rung.point.runtime,
        "threads": rung.point.threads,
        "channels_last": rung.point.workload.channels_last,
        "status": m.status if m is not None else "left-out",
        "reason": step.reason,
        "latency_ns": _estimate(told.latency_ns if told else None),
        "tax_ns": _estimate(told.tax_ns if told else None),
        "kernel_ns": _estimate(told.kernel_ns if told else None),
        "tax_share": _estimate(told.tax_share if told else None),
        "bill_method": told.bill_method if told else None,
        "same_outputs": m.parity.within_tolerance if m is not None and m.parity else None,
        "added": _effect(step.added),
        "alone": _effect(step.alone),
        "alone_runtime": rung.alone.runtime if rung.alone else None,
        "alone_reason": step.alone_reason,
        "total": _effect(step.total),
        "notes": [asdict(note) for note in m.notes] if m is not None else [],
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)


def _effect(effect: Effect | None) -> dict[str, Any] | None:
    return None if effect is None else asdict(effect)


def headline(ablation: Ablation) -> str:
    """Return the answer in a sentence."""
    m, best = ablation.base.measured, ablation.best
    if m is None or m.latency_ns is None:
        return f"{_title(ablation)}: the base was not measured: {ablation.base.reason}"
    said = f"{_title(ablation)}: {milliseconds(m.latency_ns.value)} ms as it comes"
    if best is None or best.total is None or best.total.ratio is None:
        return f"{said}; no step was told"
    ratio = best.total.ratio
    gain = f"{1 / ratio.value:.2f} × ({1 / ratio.high:.2f} to {1 / ratio.low:.2f})"
    biggest = _biggest(ablation)
    step = f"; the largest single step is {biggest.rung.title}" if biggest else ""
    return f"{said}, {gain} faster with {best.rung.title}{step}"


def _title(ablation: Ablation) -> str:
    w = ablation.base.rung.point.workload
    said = [w.model, f"batch {w.batch}"]
    said += [f"length {w.length}"] if w.length is not None else []
    said += [f"{w.image_size} pixels"] if w.image_size is not None else []
    return ", ".join(said)


def _biggest(ablation: Ablation) -> Step | None:
    """Return the step on one thread that takes off most, where that is proven."""
    told = [
        (step.added.ratio.value, number)
        for number, step in enumerate(ablation.steps)
        if step.added is not None
        and step.added.ratio is not None
        and step.added.ratio.high < 1
        and step.rung.name != "threads"
    ]
    return ablation.steps[min(told)[1]] if told else None


def reading(ablation: Ablation) -> str:
    """Return how to read the table."""
    trunk = trunk_of(ablation.base.rung.point)
    titles = {step.rung.name: step.rung.title for step in ablation.steps}
    return READING.format(trunk=titles.get(trunk, trunk))


def rows(ablation: Ablation, *, wide: bool = True) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (path, cells) of every step; ``wide`` with the intervals of tax and kernel time."""
    for step in ablation.steps:
        yield step.rung.path, _cells(step, wide)


def _cells(step: Step, wide: bool) -> tuple[str, ...]:
    m = step.measured
    if m is None or step.reason is not None or m.latency_ns is None:
        return (step.rung.title, "–", "", "–", "–", "", "", "", "")
    # The base and its like are eager by another name: their outputs are compared as well.
    mark = "" if parity_mark(m) in ("", "=") else f" {parity_mark(m)}"
    added = step.added
    return (
        step.rung.title + mark,
        milliseconds(m.latency_ns.value),
        half_width(m.latency_ns),
        _tax(m),
        milliseconds(m.kernel_ns.value) if m.kernel_ns else "–",
        change(added),
        _signed(added.tax_ns if added else None, wide),
        _signed(added.kernel_ns if added else None, wide),
        change(step.alone) if step.alone is not None else "",
    )


def _tax(m: Measurement) -> str:
    if m.tax_ns is None:
        return "–"
    return f"{'≥ ' if m.bill_method == TWIN else ''}{milliseconds(m.tax_ns.value)}"


def change(effect: Effect | None) -> str:
    """Return ``−12 % (−14 to −10)``; empty where there is none."""
    if effect is None:
        return ""
    ratio = effect.ratio
    if ratio is None:
        return "–"
    return f"{_per_cent(ratio.value)} % ({_per_cent(ratio.low)} to {_per_cent(ratio.high)})"


def _per_cent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f}".replace("-", "−")


def _signed(ns: Estimate | None, wide: bool) -> str:
    if ns is None:
        return "–"
    value, low, high = (_with_sign(v) for v in (ns.value, ns.low, ns.high))
    return f"{value} ({low} to {high})" if wide else value


def _with_sign(ns: float) -> str:
    return f"{'−' if ns < 0 else '+'}{milliseconds(abs(ns))}"


def reasons(ablation: Ablation) -> list[str]:
    """Return why numbers are missing, the same reason once for all its steps."""
    found: dict[str, list[str]] = {}
    for step in ablation.steps:
        if step.reason is not None:
            found.setdefault(f"not measured: {step.reason}", []).append(step.rung.title)
            continue
        if step.alone_reason:
            found.setdefault(f"alone: {step.alone_reason}", []).append(step.rung.title)
        if step.added is not None and step.added.reason:
            found.setdefault(step.added.reason, []).append(step.rung.title)
    return [f"{', '.join(steps)}: {reason}" for reason, steps in found.items()]


def markdown(ablation: Ablation, *, level: int = 1, figure: str | None = None) -> str:
    """Return the ablation as a page: table by path, reasons, the machine.

    Args:
        ablation: what was found.
        level: of its heading.
        figure: file of the picture, shown above the table.
    """
    lines = [f"{'#' * level} {_cell(_title(ablation))}", "", f"{_cell(headline(ablation))}.", ""]
    if figure:
        lines += [f"![Latency after each step, kernel time and tax]({figure})", ""]
    path = None
    for at, cells in rows(ablation):
        if at != path:
            lines += [""] if path is not None else []
            lines += [f"**{PATH_TITLES[at]}**", "", "| " + " | ".join(HEADER) + " |"]
            lines += ["|---|" + "--:|" * (len(HEADER) - 1)]
            path = at
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    lines += ["", f"Times in ms. {reading(ablation)}", ""]
    lines += [f"- {_cell(reason)}" for reason in reasons(ablation)]
    where = ablation.environment
    if where is not None:
        torch = where.libraries.get("torch", "?")
        lines += [
            "",
            f"Session {ablation.session}, {where.cpu}, {where.cores} processors, torch {torch}.",
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
