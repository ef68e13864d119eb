"""A comparison as blocks, and as a comment of a pull request."""

from __future__ import annotations

from collections import defaultdict

from frameworktax.analysis.compare.comparison import Change, Comparison, share, signed
from frameworktax.errors import flat
from frameworktax.records import point_name
from frameworktax.report.blocks import (
    Block,
    Cell,
    Heading,
    Note,
    Notes,
    Severity,
    Table,
    listed,
    right,
)
from frameworktax.report.render_markdown import markdown
from frameworktax.report.words import NONE, milliseconds, time_text

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
    verdicts = {change.verdict for change in comparison.points}
    return listed(
        "",
        comparison.points,
        {
            metric: change_name,
            right("before"): lambda c: time_text(c.before.value if c.before else None),
            right("after"): lambda c: time_text(c.after.value if c.after else None),
            right("change (95 % interval)"): lambda c: Cell(
                change_text(c), style=c.verdict if c.ratio else "dim"
            ),
            "verdict": lambda c: Cell(
                f"{MARKS[c.verdict]} {c.verdict}{', beyond the gate' * (c.gate == 'regressed')}",
                style=c.verdict,
                short=f"{MARKS[c.verdict]}{' gate' if c.gate == 'regressed' else ''}",
            ),
        },
        key=[(mark, meaning) for meaning, mark in MARKS.items() if meaning in verdicts],
    )


def places(comparison: Comparison) -> list[Table]:
    """Return where in the model the tax changed, a table a point that says."""
    return [
        listed(
            f"Where the tax changed, ms in a call: {change_name(change)}",
            change.moved,
            {
                "layer, without the modules inside it": lambda one: one.name,
                right("before"): lambda one: milliseconds(one.before.value),
                right("after"): lambda one: milliseconds(one.after.value),
                right("change"): lambda one: Cell(
                    f"{one.change.value / 1e6:+.3f}",
                    note=f"({one.change.low / 1e6:+.3f} to {one.change.high / 1e6:+.3f})",
                ),
            },
            hint="listed with an error of 5 % over all places and points; intervals are each "
            "place's own",
        )
        for change in comparison.points
        if change.moved
    ]


def change_name(change: Change) -> str:
    """Return the point in words, with what it stands against where the names differ."""
    against = f" (against {change.against})" if change.against else ""
    return flat(point_name(change.point) + against)


def change_text(change: Change) -> str:
    """Return ``+10.3 % (+8.1 to +12.5)``; a dash where there is no ratio."""
    e = change.ratio
    if e is None:
        return NONE
    low, high = (signed(x).removesuffix(" %") for x in (e.low, e.high))
    ends = f" ({low} to {high})" if low != high else ""
    return f"{signed(e.value)}{ends}"


def _reasons(comparison: Comparison) -> list[Note]:
    """Return what the table does not show, the same of several points once."""
    reasons: dict[str, list[Change]] = defaultdict(list)
    for change in comparison.points:
        parts = flat(change.reason).split("; ")
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
    if len(comparison.points) > 1:
        text = (
            f"error of {share(1 - comparison.confidence)} over all {len(comparison.points)} points "
            "(Holm); intervals are each point's own"
        )
        notes.append(Note("family-error", text))
    return notes


def comment(comparison: Comparison) -> str:
    """Return Markdown for a pull request: headline, table, what to know folded away."""
    _, *tables, notes = compare_blocks(comparison)
    title = Heading(comparison.headline, 3)  # within a page of comments
    answer, more = markdown([title, *tables]), markdown([notes])
    folded = f"\n<details><summary>Reasons and notes</summary>\n\n{more}\n</details>\n"
    return answer + folded if more.strip() else answer
