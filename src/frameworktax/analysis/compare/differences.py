"""What differs between two environments."""

from __future__ import annotations

from frameworktax.analysis.compare.comparison import Difference
from frameworktax.records import Environment

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
