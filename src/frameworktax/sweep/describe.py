"""A point in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from frameworktax.records import Point

AXES = ("batch", "length", "image_size", "precision", "width", "depth", "input", "phase")
ORDINARY: dict[str, Any] = {
    "length": None,
    "image_size": None,
    "precision": "float32",
    "width": 1.0,
    "depth": 1.0,
    "input": "dense",
    "phase": "forward",
}


def describe(point: Point) -> str:
    """Return what is particular about a point: ``batch 8, length 128``."""
    workload = asdict(point.workload)
    parts = [
        f"{name.replace('_', ' ')} {workload[name]}"
        for name in AXES
        if name == "batch" or workload[name] != ORDINARY[name]
    ]
    parts += [f"{point.threads} threads"] if point.threads > 1 else []
    parts += [point.platform] if point.platform != "cpu" else []
    return ", ".join(parts)
