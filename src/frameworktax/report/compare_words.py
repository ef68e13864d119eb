"""How a comparison is worded, the same in every format."""

from __future__ import annotations

import re

from frameworktax.analysis.compare.comparison import Change, Comparison
from frameworktax.analysis.compare.verdict import share, signed
from frameworktax.records import Estimate, point_name
from frameworktax.report.words import milliseconds

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]+")
"""What drives a terminal, or what XML 1.0 and UTF-8 cannot hold, escaped or not."""
MARKS = {"slower": "▲", "faster": "▼", "same": "=", "cannot tell": "?"}


def flat(text: str) -> str:
    """Return text from anywhere in one line that every format can hold."""
    return " ".join(CONTROL.sub(" ", text).split())


def point(change: Change) -> str:
    """Return the point in words, with what it stands against where the names differ."""
    against = f" (against {change.against})" if change.against else ""
    return flat(point_name(change.point) + against)


def reason(change: Change) -> str:
    """Return the verdict in words."""
    return flat(change.reason)


def value(estimate: Estimate | None, metric: str) -> str:
    """Return one side's number: ms, or a count."""
    if estimate is None:
        return "–"
    return f"{estimate.value:.0f}" if metric == "launches" else milliseconds(estimate.value)


def unit(metric: str) -> str:
    """Return the unit as it stands in a head: ``, ms`` or nothing."""
    return "" if metric == "launches" else ", ms"


def change_told(change: Change) -> str:
    """Return ``+10.3 % (+8.1 to +12.5)``; an en dash where there is no ratio."""
    estimate = change.ratio
    if estimate is None:
        return "–"
    if estimate.low == estimate.high:
        return signed(estimate.value)
    low, high = (signed(x).removesuffix(" %") for x in (estimate.low, estimate.high))
    return f"{signed(estimate.value)} ({low} to {high})"


def verdict(change: Change) -> str:
    """Return the verdict, with the gate's where the point is beyond it."""
    return f"{change.verdict}, beyond the gate" if change.gate == "regressed" else change.verdict


def counts(change: Change) -> str:
    """Return counts that changed: ``operators 482 → 490``."""
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in (change.counts or {}).items())


def footers(comparison: Comparison) -> list[str]:
    """Return what stands below the points: environment, notes, what has no partner."""
    said = [f"{d.field}: {d.before} before, {d.after} after" for d in comparison.environment]
    said += [note.text for note in comparison.notes]
    for name, points in (
        ("before", comparison.unpaired_before),
        ("after", comparison.unpaired_after),
    ):
        if points:
            said.append(f"only {name}: {'; '.join(points)}")
    if len(comparison.points) > 1 and comparison.metric != "launches":
        said.append(
            f"error of {share(1 - comparison.confidence)} over all {len(comparison.points)} points "
            "(Holm); intervals are each point's own"
        )
    return [flat(text) for text in said]
