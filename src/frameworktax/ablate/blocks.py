"""An ablation as the document of ``--json``, as blocks, and as a waterfall."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from frameworktax.ablate.ladder import trunk_of
from frameworktax.ablate.steps import Ablation, Effect, Step
from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.estimates import inverse
from frameworktax.errors import UsageError
from frameworktax.records import point_name
from frameworktax.report import vega
from frameworktax.report.blocks import Block, Cell, Heading, Note, Notes, Table, Text, right, table
from frameworktax.report.run_blocks import notes_on_run
from frameworktax.report.vega import Spec
from frameworktax.report.words import (
    NONE,
    factor,
    milliseconds,
    parity_mark,
    plus_minus,
    time_text,
    warm,
)

SCHEMA = "frameworktax.ablation"
VERSION = 1
PATH_TITLES = {
    "eager": "eager",
    "torchscript": "TorchScript",
    "inductor": "Inductor",
    "onnxruntime": "ONNX Runtime",
    "device": "device",
}
READING = (
    "change: of the latency against the step above, or the nearest measured one before it; the "
    "first step of an engine follows {trunk}. alone: this step only, against the base. Intervals "
    "of 95 % from blocks of the same rounds. ≠: the outputs differ"
)

ROW = 26
"""Pixels of a step of the waterfall."""
PREFIX = {"torchscript": "TorchScript: ", "inductor": "Inductor: ", "onnxruntime": "ORT: "}
"""Of the names of a path's steps there."""
FASTER, SLOWER, UNPROVEN = "#009e73", "#c0504d", "#9aa3ad"
TIMES = ("latency_ns", "tax_ns", "kernel_ns", "tax_share")
PALE = 0.55
"""Opacity of a bar whose tax is a lower bound."""


def document(ablation: Ablation) -> dict[str, Any]:
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
        "notes": [asdict(note) for note in ablation.run.notes],
        "environment": asdict(ablation.run.environment) if ablation.run.environment else None,
    }


def _step(step: Step) -> dict[str, Any]:
    rung, m = step.rung, step.measured
    found = m if step.reason is None else None

    def plain(one: Any) -> dict[str, Any] | None:
        return None if one is None else asdict(one)

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
        **{name: plain(getattr(found, name, None)) for name in TIMES},
        "bill_method": found.bill_method if found else None,
        "same_outputs": m.parity.within_tolerance if m is not None and m.parity else None,
        "added": plain(step.added),
        "alone": plain(step.alone),
        "alone_runtime": rung.alone.runtime if rung.alone else None,
        "alone_reason": step.alone_reason,
        "total": plain(step.total),
        "notes": [asdict(note) for note in m.notes] if m is not None else [],
    }


def ablation_blocks(ablation: Ablation) -> list[Block]:
    """Return the answer, the steps path by path, why numbers are missing, the machine."""
    blocks: list[Block] = [Heading(headline(ablation), 1)]
    blocks += [steps_table(ablation), reasons(ablation)]
    blocks += notes_on_run(ablation.run)
    where = ablation.run.environment
    if where is not None:
        torch = where.libraries.get("torch", "?")
        text = f"session {ablation.session}, {where.cpu}, {where.cores} processors, torch {torch}"
        blocks.append(Text(text, style="dim"))
    return blocks


def headline(ablation: Ablation) -> str:
    """Return the answer in a sentence."""
    point = ablation.base.rung.point
    name = point_name(point, runtime=False)
    m, best = ablation.base.measured, ablation.best
    if m is None or m.latency_ns is None:
        return f"{name}: the base was not measured: {ablation.base.reason}"
    found = f"{name}: {time_text(m.latency_ns.value)} as it comes"
    if best is None or best.total is None or best.total.together is None:
        return f"{found}; no step could be compared with it"
    ratio = best.total.together
    if ratio.high >= 1:
        return f"{found}; no step is proven faster"
    gain = factor(inverse(ratio))
    largest = _largest(ablation)
    step = f"; the largest single step is {largest.rung.title}" if largest else ""
    return f"{found}, {gain} faster with {best.rung.title}{step}"


def _largest(ablation: Ablation) -> Step | None:
    """Return the proven step that takes off most, where that is proven."""
    faster = [
        (ratio.value, number)
        for number, step in enumerate(ablation.proven)
        if step.added is not None and (ratio := step.added.together) is not None and ratio.high < 1
    ]
    return ablation.proven[min(faster)[1]] if faster else None


def steps_table(ablation: Ablation) -> Table:
    """Return every step: its latency and tax, what it changes on top of others and alone."""
    trunk = trunk_of(ablation.base.rung.point)
    titles = {step.rung.name: step.rung.title for step in ablation.steps}
    heads = ("latency", "tax", "kernels", "change", "alone")
    rows: list[list[Cell]] = []
    path = ""
    for step in ablation.steps:
        if step.rung.path != path:
            path = step.rung.path
            rows.append([Cell(PATH_TITLES[path], style="dim"), *(Cell("") for _ in heads)])
        m = step.measured
        # The base and its like are eager by another name: their outputs are compared as well.
        mark = "" if m is None or step.reason or parity_mark(m) in ("", "=") else parity_mark(m)
        rows.append([Cell(f"{step.rung.title} {mark}".rstrip()), *_measured(step)])
    return table(
        "Latency of one call after each step, ms (± half of its 95 % interval)",
        ["step", *map(right, heads)],
        rows,
        hint=READING.format(trunk=titles.get(trunk, trunk)),
    )


def _measured(step: Step) -> tuple[Cell, ...]:
    m = step.measured
    if m is None or step.reason is not None or m.latency_ns is None:
        return (Cell(NONE), Cell(NONE), Cell(NONE), Cell(""), Cell(""))
    around = plus_minus(m.latency_ns)
    latency = milliseconds(m.latency_ns.value)
    return (
        Cell(latency, note=around, short=f"{latency} {around.replace(' ', ''):>4}"),
        Cell(warm(m) + milliseconds(m.tax_ns.value if m.tax_ns else None)),
        Cell(milliseconds(m.kernel_ns.value if m.kernel_ns else None)),
        Cell(change(step.added)),
        Cell(change(step.alone).partition(" (")[0]),
    )


def change(effect: Effect | None) -> str:
    """Return ``−12 % (−14 to −10)``; empty where there is none."""
    if effect is None:
        return ""
    if effect.ratio is None:
        return NONE
    ratios = (effect.ratio.value, effect.ratio.low, effect.ratio.high)
    value, low, high = (f"{100 * (r - 1):+.0f}".replace("-", "−") for r in ratios)
    return f"{value} % ({low} to {high})"


def reasons(ablation: Ablation) -> Notes:
    """Return why numbers are missing, the same reason once for all its steps."""
    found: dict[tuple[str, str], list[str]] = {}
    for step in ablation.steps:
        title = step.rung.title
        if step.reason is not None:
            found.setdefault(("not-measured", f"not measured: {step.reason}"), []).append(title)
            continue
        if step.alone_reason:
            found.setdefault(("not-alone", f"alone: {step.alone_reason}"), []).append(title)
        if step.added is not None and step.added.reason:
            found.setdefault(("no-difference", step.added.reason), []).append(title)
    return Notes(
        "",
        tuple(
            Note(code, text, ", ".join(steps), "warning" if code == "not-measured" else "info")
            for (code, text), steps in found.items()
        ),
    )


# --- the waterfall --------------------------------------------------------------------------------


def waterfall(ablation: Ablation) -> Spec:
    """Return the picture: bars as they are measured, a rule from the step before to this one.

    A whisker is the interval of the change over the step before: the host's drift, common to all
    bars, is not in it. In a bar of pale colours the tax is a lower bound, from the twin.

    Raises:
        UsageError: no step was measured.
    """
    drawn = {step.rung.name: step for step in ablation.steps if step.reason is None}
    steps = [bar for step in drawn.values() if (bar := _bar(step, drawn)) is not None]
    if not steps:
        raise UsageError("no step was measured; there is nothing to draw")
    longest = max(step["high"] for step in steps) * 1.42
    values = {"height": ROW * len(steps), "longest": longest, "steps": steps}
    return vega.filled("waterfall", values)


def _bar(step: Step, drawn: Collection[str]) -> Spec | None:
    """Return a step's bar in ms: where its parts end, the latency before, the ends of the whisker.

    None where the step was not measured.
    """
    m = step.measured
    if m is None or m.latency_ns is None:
        return None
    latency = m.latency_ns.value / 1e6
    kernel = m.kernel_ns.value / 1e6 if m.kernel_ns is not None else None
    bar: Spec = {
        "step": PREFIX.get(step.rung.path, "") + step.rung.title,
        "opacity": PALE if m.bill_method == TWIN else 1.0,
        "kernel time": kernel,
        "framework tax": None if kernel is None else latency,
        "not separated": latency if kernel is None else None,
        "latency": latency,
        "low": latency,
        "high": latency,
        "text": f"{milliseconds(m.latency_ns.value)}  {change(step.added)}".rstrip(),
    }
    if step.added is not None and step.added.ratio is not None:
        ratio = step.added.ratio
        bar["low"] = latency * (ratio.low / ratio.value)
        bar["high"] = latency * (ratio.high / ratio.value)
        if step.added.against in drawn:
            colour = FASTER if ratio.high < 1 else SLOWER if ratio.low > 1 else UNPROVEN
            bar |= {"before": latency / ratio.value, "colour": colour}
    return bar
