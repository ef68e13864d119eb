"""Rows: one measured or printed point with its numbers, the same shape for ours and the paper's.

The two never stand in one table: a rule or a chart is given either ours or the paper's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frameworktax.analysis.curves import Blocks
from frameworktax.analysis.estimates import exactly, inverse, scaled
from frameworktax.records import Estimate, Measurement

AXES = (
    *("model", "runtime", "precision", "batch", "length", "image_size", "width", "depth", "input"),
    *("phase", "regime", "panel"),
)
WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)
"""How the page and the figures name things."""
ROLES = {"onnxruntime-cuda": "onnxruntime"}
"""Runtimes that play another's part on a device."""


class NotEvaluable(Exception):  # noqa: N818 - no fault: a reason, and part of every result
    """A rule lacks a number; the text says which, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point.

    Attributes:
        at: axis → value; ``regime`` among them once it is known.
        numbers: quantity → estimate; times in ns, ``tax_share`` a fraction. A printed number
            has no interval: its ends equal its value.
        columns: blocks of latency, for curves.
        reason: why a planned point has no numbers.
        other_kernels: that it runs other kernels than eager, so that its ratio to eager is not of
            overhead alone; None where that is not known.
    """

    at: Mapping[str, Any]
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    columns: Blocks = field(default_factory=dict)
    reason: str | None = None
    other_kernels: str | None = None


def axes_of(workload: Any, runtime: str) -> dict[str, Any]:
    """Return the axes of a point, its runtime by the part it plays."""
    named = ("model", "precision", "batch", "length", "image_size", "width", "depth", "input")
    at = {name: getattr(workload, name) for name in (*named, "phase")}
    return {**at, "runtime": ROLES.get(runtime, runtime)}


def of_measurement(m: Measurement, layers: Mapping[str, int]) -> Row:
    """Return a measurement as a row; ``layers``: model → its authors' count at depth 1."""
    depth = layers.get(m.workload.model)
    counts = {
        "macs": m.macs,  # as the paper counts: linear, convolution and recurrent layers
        "full_macs": None if m.flops is None else m.flops / 2,  # products of activations as well
        "flops": m.flops,
        "parameters": m.parameters,
        "layers": None if depth is None else depth * m.workload.depth,
        "operators": m.operators,
        "launches": m.launches,
    }
    numbers: dict[str, Estimate | None] = {
        "latency": m.pipelined_ns,  # as the paper's: one synchronise at the end of a block
        "synchronised_latency": m.latency_ns,  # one synchronise a call
        "kernel": m.kernel_ns,
        "tax": m.tax_ns,
        "tax_share": m.tax_share,
        # until the call returns; on a CPU host and kernels share a thread: the tax
        "host": m.enqueue_ns if m.enqueue_ns is not None else m.tax_ns,
        "sm_active": m.sm_activity,
        "warp_occupancy": m.warp_occupancy,
        **{name: exactly(count, "counted") for name, count in counts.items() if count is not None},
    }
    if m.flops and m.pipelined_ns is not None and m.pipelined_ns.low > 0:
        numbers["flops_per_second"] = scaled(inverse(m.pipelined_ns), m.flops * 1e9)
    notes = "; ".join(note.text for note in m.notes)
    why = m.reason or notes or "no latency was measured"
    return Row(
        at={**axes_of(m.workload, m.runtime), "regime": m.regime},
        numbers={name: estimate for name, estimate in numbers.items() if estimate is not None},
        columns={((m.session, p), r): ns for p, r, ns in m.blocks_ns},
        reason=why if m.pipelined_ns is None else None,
        other_kernels=next((n.text for n in m.notes if n.code == "other-kernels"), None),
    )


def values(rows: Iterable[Row], axis: str) -> list[Any]:
    """Return the values of an axis in ascending order, names in the order they appear."""
    found = list(dict.fromkeys(row.at.get(axis) for row in rows if row.at.get(axis) is not None))
    return sorted(found) if all(isinstance(v, int | float) for v in found) else found


def select(rows: Sequence[Row], where: Mapping[str, Any]) -> list[Row]:
    """Return the rows that match.

    ``where``: axis → value, list of values, or ``first`` or ``last``: the smallest or largest
    value among the rows that match all the rest. ``panel`` names one of several drawings of a
    figure that print the same point; rows without it match any.
    """
    ends = {axis: value for axis, value in where.items() if value in ("first", "last")}
    found = [
        row
        for row in rows
        if all(
            row.at.get(axis) in (wanted if isinstance(wanted, list | tuple) else [wanted])
            or (axis == "panel" and axis not in row.at)
            for axis, wanted in where.items()
            if axis not in ends
        )
    ]
    for axis, end in ends.items():
        known = values(found, axis)
        wanted = known[0 if end == "first" else -1] if known else None
        found = [row for row in found if row.at.get(axis) == wanted]
    return found


def by_machine(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return machine → its rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row.at.get("machine", "this machine")), []).append(row)
    return found
