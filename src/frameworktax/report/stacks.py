"""Breakdowns as stacks, for flame graph tools: collapsed text, or a file for speedscope.

A stack goes from the point over its modules to a line of the breakdown, or from the line to
libraries and symbols where the point has no layers; its weight is ns in one call. A part below
zero, as noise makes it of waiting, has no width in such a picture and is left out.

Source: github.com/brendangregg/FlameGraph; github.com/jlfwong/speedscope, file format schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from frameworktax.analysis.where import OUTSIDE, Node, tree
from frameworktax.errors import UsageError, flat
from frameworktax.records import Measurement, Run, point_name
from frameworktax.report.words import label, lines_of

COLLAPSED, SPEEDSCOPE = ".collapsed", ".speedscope.json"


class Frame(NamedTuple):
    """A level of a stack."""

    name: str
    file: str | None = None
    line: int | None = None


Stack = tuple[tuple[Frame, ...], float]
"""Frames from the outermost on, ns."""


def stacks(m: Measurement) -> list[Stack]:
    """Return the stacks of a point, none where nothing is known of its time."""
    if m.layers:
        found = [stack for node in tree(m.layers) for stack in _of_module(node, "", ())]
    else:
        found = list(_of_symbols(m))
    return [(frames, ns) for frames, ns in found if ns > 0]


def _of_module(node: Node, above: str, frames: tuple[Frame, ...]) -> Iterator[Stack]:
    layer = node.own
    path = (node.path or "").removeprefix(above).lstrip(".")
    name = " ".join(part for part in (path, layer.class_) if part) or OUTSIDE
    frames = (*frames, Frame(name, layer.file, layer.line))
    for child in node.children:
        yield from _of_module(child, node.path or "", frames)
    for operator in layer.operators:
        inner = (Frame(operator.name),) if operator.name else ()
        yield from _of_lines(operator.bill_ns, (*frames, *inner))
    if not layer.operators:
        yield from _of_lines(layer.bill_ns, frames)


def _of_lines(bill: Mapping[str, float], frames: tuple[Frame, ...]) -> Iterator[Stack]:
    for line, ns in lines_of(bill):
        yield (*frames, Frame(label(line))), ns


def _of_symbols(m: Measurement) -> Iterator[Stack]:
    rest = dict(m.bill_ns or {})
    for line, library, symbol, ns in m.symbols_ns:
        rest[line] = rest.get(line, 0.0) - ns
        yield (Frame(label(line)), Frame(library), Frame(symbol)), ns
    yield from _of_lines(rest, ())


def collapsed(run: Run) -> str:
    """Return a line a stack: frames with semicolons between, and ns."""
    lines = [
        ";".join([_plain(point_name(m.point)), *(_plain(frame.name) for frame in frames)])
        + f" {round(ns)}\n"
        for m in run.measurements
        for frames, ns in stacks(m)
    ]
    return "".join(lines)


def _plain(name: str) -> str:
    return flat(name).replace(";", ":")


def speedscope(run: Run) -> dict[str, Any]:
    """Return a file for speedscope: a profile for each point."""
    frames: dict[Frame, int] = {}
    profiles = []
    for m in run.measurements:
        found = stacks(m)
        if found:
            profiles.append(
                {
                    "type": "sampled",
                    "name": point_name(m.point),
                    "unit": "nanoseconds",
                    "startValue": 0,
                    "endValue": sum(ns for _, ns in found),
                    "samples": [[frames.setdefault(f, len(frames)) for f in s] for s, _ in found],
                    "weights": [ns for _, ns in found],
                }
            )
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "frameworktax",
        "shared": {
            "frames": [
                {key: value for key, value in frame._asdict().items() if value is not None}
                for frame in frames
            ]
        },
        "profiles": profiles,
    }


def is_stacks(path: Path) -> bool:
    """Return whether a file's name asks for stacks."""
    return path.name.endswith((COLLAPSED, SPEEDSCOPE))


def write(run: Run, path: Path) -> None:
    """Write the stacks of a run in the format that the file's name says.

    Raises:
        UsageError: no point has a breakdown.
    """
    if not any(stacks(m) for m in run.measurements):
        raise UsageError("no point has a breakdown to write; see frameworktax doctor")
    is_text = path.name.endswith(COLLAPSED)
    path.write_text(collapsed(run) if is_text else json.dumps(speedscope(run)), encoding="utf-8")
