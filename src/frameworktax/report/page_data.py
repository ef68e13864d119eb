"""What the scripts of a page get as data: points, layouts of pictures, what-if answers, downloads.

Columns keep 10,000 points near a megabyte: each text is written once and then by number, numbers
have six significant digits. More than ``MOST`` points are thinned by whole families, so that every
line that is drawn has all of its points.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from frameworktax.analysis.whatif.formulas import WhatIf, predict
from frameworktax.records import FLOOR, Measurement, Prediction, Run, device_of, point_name
from frameworktax.report.charts import AXES, FIELDS, Picture, lines
from frameworktax.report.families import Family, families
from frameworktax.report.json_document import dump
from frameworktax.report.rows import csv_rows, csv_text
from frameworktax.report.trace_blocks import latency_text, proof_text
from frameworktax.report.vega import colours, template
from frameworktax.report.words import factor, parity_mark

MOST = 10_000
"""Points that a page has; a browser sorts and draws so many without a pause."""
SECTIONS = 12
"""Families with a section of their own; more pictures are drawn for too long."""
FEW_SECTIONS = 3
"""The same in a page of more than ``MANY_POINTS``."""
MANY_POINTS = 1_000
DRAWN_POINTS = 2_500
"""Points that one picture draws; of more, every second, third …"""
DOCUMENT_POINTS = 1_000
"""Points above which the page carries columns only, not the document."""
DOCUMENT_BYTES = 2_000_000
"""The same for the document's text; without raw samples it may fit."""
DIGITS = 6
TEMPLATES = ("latency", "bill", "shares", "operations", "changes")
TEXTS = ("model", "runtime", "precision", "platform", "status", "regime", "bill_method")
NUMBERS = (
    *("batch", "length", "image_size", "width", "depth", "threads"),
    *("latency_ns", "latency_ns_low", "latency_ns_high"),
    *("tax_share", "tax_share_low", "tax_share_high"),
    *("ratio_to_eager", "ratio_to_eager_low", "ratio_to_eager_high"),
    *("flops", "parameters"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the page of a run has.

    Attributes:
        every: all families of the run.
        kept: those whose points are in the page.
        in_full: those with a section of their own, the first of ``kept``.
        lines: pictures that can be drawn of ``kept``.
        data: for the page's scripts.
        document: ``whole``, ``without samples`` or ``left out``.
    """

    every: Sequence[Family]
    kept: Sequence[Family]
    in_full: Sequence[Family]
    lines: Sequence[Picture]
    data: dict[str, Any]
    document: str

    @property
    def step(self) -> int:
        """One of how many points is drawn where all are drawn together."""
        return math.ceil(_size(self.kept) / DRAWN_POINTS)

    @property
    def thinned(self) -> str:
        """What of the points the page does not have, or shows only in the chart of any axis."""
        said = []
        if len(self.kept) < len(self.every):
            said.append(
                f"This page has {_size(self.kept):,} of {_size(self.every):,} points: "
                f"{len(self.kept):,} of {len(self.every):,} groups, evenly picked, each with all "
                "of its points."
            )
        if len(self.in_full) < len(self.kept):
            said.append(
                f"The first {len(self.in_full)} of {len(self.kept):,} groups have a section "
                "above; every one can be drawn here."
            )
        return " ".join(said)


def contents(run: Run) -> Contents:
    """Return what the page of a run has."""
    every = families(run)
    kept = thinned(every)
    drawable = lines(kept)
    measurements = [m for family in kept for m in family.measurements]
    runtimes = list(dict.fromkeys(m.runtime for m in measurements))
    document, carried = _document(run)
    return Contents(
        every=every,
        kept=kept,
        in_full=kept[: SECTIONS if len(measurements) <= MANY_POINTS else FEW_SECTIONS],
        lines=drawable,
        document=document,
        data={
            **carried,
            "columns": columns(measurements),
            "lines": [rounded(asdict(line)) for line in drawable],
            "templates": {name: template(name) for name in TEMPLATES},
            "look": template("look"),
            "fields": FIELDS,
            "axes": AXES,
            "colours": dict(zip(runtimes, colours(runtimes), strict=True)),
            "whatif": whatif(run),
        },
    )


def _size(shown: Sequence[Family]) -> int:
    return sum(len(family.measurements) for family in shown)


def thinned(shown: Sequence[Family], most: int = MOST) -> list[Family]:
    """Return whole families, evenly spaced in the order given, with ``most`` points or fewer.

    The first one always stays: the headline is about it.
    """
    total = _size(shown)
    if total <= most:
        return list(shown)
    kept: list[Family] = []
    used = passed = 0
    for family in shown:
        size = len(family.measurements)
        # Keep in step: as large a share of the room is used as of the families is passed.
        if not kept or (used <= most * passed / total and used + size <= most):
            kept.append(family)
            used += size
        passed += size
    return kept


def columns(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return name → numbers, or ``{"of": texts, "at": numbers of texts}``; null is not measured."""
    rows = csv_rows(Run(measurements=tuple(measurements)))
    made: dict[str, Any] = {name: [rounded(row[name]) for row in rows] for name in NUMBERS}
    for name in TEXTS:
        made[name] = _coded([row[name] for row in rows])
    made["outputs"] = _coded([parity_mark(m) for m in measurements])
    return made


def rounded(value: Any) -> Any:
    """Return JSON data with every number to six significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _coded(texts: Sequence[object]) -> dict[str, Any]:
    numbers: dict[object, int] = {}
    at = [None if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return {"of": list(numbers), "at": at}


def _document(run: Run) -> tuple[str, dict[str, Any]]:
    """Return what of the document fits into the page, and that part."""
    if len(run.measurements) <= DOCUMENT_POINTS:
        text = csv_text(run)
        for said, part in (("whole", run), ("without samples", _without_samples(run))):
            dumped = dump(part)
            if len(json.dumps(dumped)) + len(text) <= DOCUMENT_BYTES:
                return said, {"run": dumped, "csv": text}
    return "left out", {}


def _without_samples(run: Run) -> Run:
    lean = (replace(m, samples_ns=(), blocks_ns=(), calibrator_ns=()) for m in run.measurements)
    return replace(run, measurements=tuple(lean))


# --- what if -----------------------------------------------------------------------------------

SUBJECTS = 100
"""Points that the what-if sliders can start from; the page says so where there are more."""
STOPS: dict[str, tuple[float, ...]] = {
    "host_speed": (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4),
    "device_speed": (0.5, 1, 2, 4),
    "queue_speed": (0.5, 1, 2, 4),
}
"""Slider → the factors at which it stops. The speeds of a device and of its host (``queue_speed``)
are replayed together: every pair of stops, with and without graphs."""


def whatif(run: Run) -> dict[str, Any]:
    """Return what the sliders show at each of their stops.

    Returns:
        ``subjects``, each with its name, latency and ``answers``: change → stop → [latency,
        factor, number of the proof] or, where a formula refuses, [number of the reason]; a stop
        that changes nothing has none. ``texts``: proofs and reasons. ``of``: how many points
        there are to start from.
    """
    groups: dict[object, list[Measurement]] = {}
    for m in run.measurements:
        if m.latency_ns is not None and m.runtime != FLOOR:
            groups.setdefault(m.family(), []).append(m)
    subjects: list[dict[str, Any]] = []
    texts: dict[str, int] = {}
    count = 0
    for points in groups.values():
        firsts = _firsts(points)
        count += len(firsts)
        if len(subjects) < SUBJECTS:
            subjects += _answered(points, firsts, texts)
    return {"subjects": subjects[:SUBJECTS], "texts": list(texts), "of": count}


def _firsts(points: Sequence[Measurement]) -> dict[str, Measurement]:
    """Return the point of the smallest batch of each runtime, by its name."""
    first: dict[str, Measurement] = {}
    for m in points:
        if m.workload.batch < first.setdefault(m.runtime, m).workload.batch:
            first[m.runtime] = m
    return {point_name(m.point): m for m in first.values()}


def _answered(
    points: Sequence[Measurement], firsts: dict[str, Measurement], texts: dict[str, int]
) -> list[dict[str, Any]]:
    device = "cpu" if device_of(points[0].platform) == "cpu" else "gpu"
    change, stops = _stops(device)
    answers: dict[str, dict[str, list[Any]]] = {name: {} for name in firsts}
    group = Run(measurements=tuple(points))
    for stop, one in stops.items():
        for found in predict(one, group, alone=False):
            answers[found.subject][stop] = _texts(found, texts)
    return [
        {
            "name": name,
            "device": device,
            "latency": latency_text(m.latency_ns),
            "answers": {change: answers[name]},
        }
        for name, m in firsts.items()
    ]


def _stops(device: str) -> tuple[str, dict[str, WhatIf]]:
    """Return a device's change, and stop of its sliders → what is asked there.

    Speeds of a GPU and of its host, and graphs, are one change, ``machine``.
    """
    if device == "cpu":
        return "host_speed", {f"{x:g}": WhatIf(host_speed=x) for x in STOPS["host_speed"] if x != 1}
    return "machine", {
        f"{device_speed:g} {host_speed:g} {int(graphs)}": WhatIf(
            device_speed=None if device_speed == 1 else device_speed,
            host_speed=None if host_speed == 1 else host_speed,
            graphs=graphs,
        )
        for device_speed, host_speed, graphs in product(
            STOPS["device_speed"], STOPS["queue_speed"], (False, True)
        )
        if graphs or device_speed != 1 or host_speed != 1
    }


def _texts(found: Prediction, texts: dict[str, int]) -> list[Any]:
    """Return an answer in words; what many answers share is written once, in ``texts``."""
    proof = found.reason if found.reason is not None else proof_text(found)
    number = texts.setdefault(proof, len(texts))
    if found.reason is not None:
        return [number]
    return [latency_text(found.latency_ns), found.factor and factor(found.factor), number]
