"""What the scripts of a page get as data: points, layouts of pictures, what-if answers, downloads.

Columns keep 10,000 points near a megabyte: each text is written once and then by number, numbers
have six significant digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from frameworktax.analysis.whatif.formulas import WhatIf, predict
from frameworktax.records import FLOOR, Measurement, Prediction, Run, device_of, point_name
from frameworktax.report.charts import AXES, FIELDS, Picture
from frameworktax.report.json_document import dump
from frameworktax.report.rows import csv_row, csv_text
from frameworktax.report.trace_blocks import latency_text, proof_text
from frameworktax.report.vega import colours, harmless, template
from frameworktax.report.words import factor, parity_mark

DOCUMENT_POINTS = 1_000
"""Points above which the page carries columns only, not the document."""
TEMPLATES = ("latency", "bill", "shares", "operations")
TEXTS = ("model", "runtime", "precision", "platform", "status", "regime", "bill_method")
NUMBERS = (
    *("batch", "length", "image_size", "width", "depth", "threads"),
    *("latency_ns", "latency_ns_low", "latency_ns_high"),
    *("tax_share", "tax_share_low", "tax_share_high"),
    *("ratio_to_eager", "ratio_to_eager_low", "ratio_to_eager_high"),
    *("flops", "parameters"),
)


def scripts_data(
    run: Run,
    points: Sequence[Measurement],
    lines: Sequence[Picture],
    charts: Mapping[str, Picture | int],
) -> dict[str, Any]:
    """Return the data of a page.

    ``points`` are in the order in which pictures number them, ``lines`` all that can be drawn;
    ``charts``: place in the page → picture, or the number of a line.
    """
    drawn = {name: one if isinstance(one, int) else asdict(one) for name, one in charts.items()}
    downloads: dict[str, Any] = {}
    if len(run.measurements) <= DOCUMENT_POINTS:  # without raw samples, which the store has
        lean = (replace(m, samples_ns=(), blocks_ns=(), calibrator_ns=()) for m in run.measurements)
        whole = dump(replace(run, measurements=tuple(lean)))
        downloads = {"run": whole, "csv": csv_text(run)}
    runtimes = list(dict.fromkeys(m.runtime for m in points))
    named = {
        "columns": columns(points),
        "lines": [rounded(asdict(line)) for line in lines],
        "charts": rounded(drawn),
        "colours": dict(zip(runtimes, colours(runtimes), strict=True)),
        "whatif": whatif(run),
    }
    return {
        **downloads,
        **harmless(named),
        "templates": {name: template(name) for name in TEMPLATES},
        "look": template("look"),
        "fields": FIELDS,
        "axes": AXES,
    }


def columns(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return name → numbers, or ``{"of": texts, "at": numbers of texts}``; null is not measured."""
    rows = [csv_row(m) for m in measurements]
    made: dict[str, Any] = {name: [rounded(row[name]) for row in rows] for name in NUMBERS}
    for name in TEXTS:
        made[name] = _coded([row[name] for row in rows])
    marks = (parity_mark(m) if m.status == "ok" else "" for m in measurements)
    made["outputs"] = _coded([*marks])
    return made


def rounded(value: Any) -> Any:
    """Return JSON data with every number to six significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _coded(texts: Sequence[object]) -> dict[str, Any]:
    numbers: dict[object, int] = {}
    at = [None if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    return {"of": list(numbers), "at": at}


# --- what if -----------------------------------------------------------------------------------

SUBJECTS = 100
"""Points at most that the what-if sliders can start from, the smallest batch of each runtime."""
STOPS: dict[str, tuple[float, ...]] = {
    "host_speed": (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4),
    "device_speed": (0.5, 1, 2, 4),
    "queue_speed": (0.5, 1, 2, 4),
}
"""Slider → the factors at which it stops. The speeds of a device and of its host (``queue_speed``)
are replayed together: every pair of stops, with and without graphs."""


def whatif(run: Run) -> list[dict[str, Any]]:
    """Return what the sliders show: for each point its name, device, latency and ``answers``.

    An answer is two texts at a stop: a latency and its proof, or that it is not predicted and why.
    A stop that changes nothing has none.
    """
    measured = {
        point_name(m.point): m
        for m in run.measurements
        if m.latency_ns is not None and m.runtime != FLOOR
    }
    series = list(dict.fromkeys((m.family(), m.runtime) for m in measured.values()))[:SUBJECTS]
    families = {family for family, _ in series}
    subjects: dict[str, dict[str, Any]] = {}
    on_cpu = {f"{x:g}": WhatIf(host_speed=x) for x in STOPS["host_speed"] if x != 1}
    for device, stops in (("cpu", on_cpu), ("gpu", _gpu_stops())):
        own = tuple(
            m
            for m in measured.values()
            if m.family() in families and (device == "cpu") == (device_of(m.platform) == "cpu")
        )
        for stop, asked in stops.items():
            for found in predict(asked, Run(measurements=own), alone=False):
                latency = latency_text(measured[found.subject].latency_ns)
                new = {"name": found.subject, "device": device, "latency": latency, "answers": {}}
                subjects.setdefault(found.subject, new)["answers"][stop] = _answer(found)
    return list(subjects.values())[:SUBJECTS]


def _gpu_stops() -> dict[str, WhatIf]:
    return {
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


def _answer(found: Prediction) -> tuple[str, str]:
    if found.reason is not None:
        return "not predicted", found.reason
    gain = f"{factor(found.factor)} faster; " if found.factor is not None else ""
    return latency_text(found.latency_ns), f"{gain}{proof_text(found)}"
