"""What differs between two environments, and how points are called in words."""

from __future__ import annotations

from frameworktax.analysis.compare.comparison import Difference
from frameworktax.records import Environment, Point, Workload

MACHINE = ("host", "cpu", "cores", "threads_per_core", "gpus")
"""Fields of the environment that make timings another machine's."""
SOFTWARE = ("system", "python", "virtualization", "governor", "turbo", "libraries")
"""Fields that are named: an upgrade is often what is compared."""


def environments(before: Environment | None, after: Environment | None) -> list[Difference]:
    """Return the fields that differ; libraries one by one."""
    if before is None or after is None:
        return []
    found = []
    for name in (*MACHINE, *SOFTWARE):
        a, b = getattr(before, name), getattr(after, name)
        if name == "libraries":
            for library in sorted(a.keys() | b.keys()):
                one, other = a.get(library, "none"), b.get(library, "none")
                if one != other and library != "frameworktax":
                    found.append(_difference(f"libraries.{library}", one, other))
        elif name == "gpus":
            a, b = (tuple(str(gpu.get("name")) for gpu in gpus) for gpus in (a, b))
            if a != b:
                found.append(_difference(name, ", ".join(a) or "none", ", ".join(b) or "none"))
        elif a != b:
            found.append(_difference(name, a, b))
    return found


def _difference(name: str, before: object, after: object) -> Difference:
    return Difference(field=name, before=str(before), after=str(after), machine=name in MACHINE)


def told(point: Point) -> str:
    """Return a point in words: what is ordinary is left out."""
    return (
        f"{workload_told(point.workload)}, {point.runtime}"
        + (f", {point.platform}" if point.platform != "cpu" else "")
        + (f", {point.threads} threads" if point.threads != 1 else "")
    )


def workload_told(w: Workload) -> str:
    """Return a workload in words."""
    said = [
        w.model,
        f"batch {w.batch}",
        f"length {w.length}" if w.length else "",
        f"{w.image_size} px" if w.image_size else "",
        f"width × {w.width:g}" if w.width != 1 else "",
        f"depth × {w.depth:g}" if w.depth != 1 else "",
        w.precision if w.precision != "float32" else "",
        w.input if w.input != "dense" else "",
        w.phase if w.phase != "forward" else "",
        f"{w.kv_cache} cache" if w.kv_cache else "",
        f"{w.new_tokens} new tokens" if w.new_tokens else "",
        "channels last" if w.channels_last else "",
    ]
    return ", ".join(part for part in said if part)
