"""A comparison as blocks: its answer, a row a point, reasons, what else to know."""

from __future__ import annotations

from collections import defaultdict

from frameworktax.analysis.compare.comparison import Change, Comparison, share, signed
from frameworktax.errors import flat
from frameworktax.records import Estimate, point_name
from frameworktax.report.blocks import (
    Block,
    Cell,
    Heading,
    Note,
    Notes,
    Severity,
    Table,
    right,
    table,
)
from frameworktax.report.words import milliseconds, time_text

MARKS = {"slower": "▲", "faster": "▼", "same": "=", "cannot tell": "?"}
FEW = 3
"""Points without a partner that are named; of more, the number is given."""


def compare_blocks(comparison: Comparison) -> list[Block]:
    """Return headline, points, reasons and what else is known."""
    return [
        Heading(comparison.headline, 1, style="bad" if comparison.exit_code == 1 else ""),
        changes(comparison),
        *places(comparison),
        Notes("", (*_reasons(comparison), *_footers(comparison))),
    ]


def changes(comparison: Comparison) -> Table:
    """Return a row a point: both sides, the change, the verdict."""
    metric = comparison.metric
    rows = [
        [
            Cell(change_name(change)),
            Cell(value(change.before, metric)),
            Cell(value(change.after, metric)),
            Cell(change_text(change), style=change.verdict if change.ratio else "dim"),
            Cell(
                f"{MARKS[change.verdict]} {verdict(change)}",
                style=change.verdict,
                short=f"{MARKS[change.verdict]}{' gate' if change.gate == 'regressed' else ''}",
            ),
        ]
        for change in comparison.points
    ]
    heads = (right("before"), right("after"), right("change (95 % interval)"))
    verdicts = {change.verdict for change in comparison.points}
    key = [(mark, meaning) for meaning, mark in MARKS.items() if meaning in verdicts]
    return table("", [metric, *heads, "verdict"], rows, key=key)


def places(comparison: Comparison) -> list[Table]:
    """Return where in the model the tax changed, a table a point that says."""
    return [
        table(
            f"Where the tax changed, ms in a call: {change_name(change)}",
            ["layer, without the modules inside it", *map(right, ("before", "after", "change"))],
            [
                (
                    one.name,
                    milliseconds(one.before.value),
                    milliseconds(one.after.value),
                    Cell(
                        f"{one.change.value / 1e6:+.3f}",
                        note=f"({one.change.low / 1e6:+.3f} to {one.change.high / 1e6:+.3f})",
                    ),
                )
                for one in change.moved
            ],
            hint="intervals are those within each result; how sessions differ is not in them",
        )
        for change in comparison.points
        if change.moved
    ]


def change_name(change: Change) -> str:
    """Return the point in words, with what it stands against where the names differ."""
    against = f" (against {change.against})" if change.against else ""
    return flat(point_name(change.point) + against)


def value(estimate: Estimate | None, metric: str) -> str:
    """Return one side's number: a time, or a count."""
    if estimate is None or metric != "launches":
        return time_text(estimate.value if estimate else None)
    return f"{estimate.value:.0f}"


def change_text(change: Change) -> str:
    """Return ``+10.3 % (+8.1 to +12.5)``; a dash where there is no ratio."""
    e = change.ratio
    if e is None:
        return "–"
    low, high = (signed(x).removesuffix(" %") for x in (e.low, e.high))
    ends = f" ({low} to {high})" if low != high else ""
    return f"{signed(e.value)}{ends}"


def verdict(change: Change) -> str:
    """Return the verdict, with the gate's where the point is beyond it."""
    return f"{change.verdict}, beyond the gate" if change.gate == "regressed" else change.verdict


def reason(change: Change) -> str:
    """Return why the verdict is what it is, in one line."""
    return flat(change.reason)


def _reasons(comparison: Comparison) -> list[Note]:
    """Return what the table does not show, the same of several points once."""
    reasons: dict[str, list[Change]] = defaultdict(list)
    for change in comparison.points:
        parts = reason(change).split("; ")
        if change.ratio is not None:  # the change itself and "within" stand in the table
            parts = parts[2 if change.verdict == "same" else 1 :]
        parts += [f"{name} {old} → {new}" for name, (old, new) in (change.counts or {}).items()]
        if any(parts):
            reasons["; ".join(part for part in parts if part)].append(change)
    return [
        Note(
            "reason",
            text,
            "; ".join(map(change_name, found)) if len(found) <= FEW else f"{len(found)} points",
            "info" if all(c.verdict == "same" and not c.counts for c in found) else "warning",
        )
        for text, found in reasons.items()
    ]


def _footers(comparison: Comparison) -> list[Note]:
    """Return differences of the environment, notes, and what has no partner."""
    notes = [
        Note("environment", f"{d.field}: {d.before} before, {d.after} after", "", "warning")
        for d in comparison.environment
    ]
    notes += [Note(n.code, n.text, "", "warning") for n in comparison.notes]
    sides = {"before": comparison.unpaired_before, "after": comparison.unpaired_after}
    for name, points in sides.items():
        if len(points) > FEW:
            notes.append(Note("unpaired", f"{len(points)} points only {name}", "", "warning"))
        if points:
            severity: Severity = "info" if len(points) > FEW else "warning"
            notes.append(Note("unpaired", "; ".join(points), f"only {name}", severity))
    if len(comparison.points) > 1 and comparison.metric != "launches":
        text = (
            f"error of {share(1 - comparison.confidence)} over all {len(comparison.points)} points "
            "(Holm); intervals are each point's own"
        )
        notes.append(Note("family-error", text))
    return notes
