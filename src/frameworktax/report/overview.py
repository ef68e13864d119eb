"""Tables that only the page has: the ranking, and those over all points of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.curves import free_batch
from frameworktax.analysis.estimates import times
from frameworktax.records import Measurement, Run
from frameworktax.report import words
from frameworktax.report.blocks import Table, right, table
from frameworktax.report.charts import Slice
from frameworktax.report.families import Family, families
from frameworktax.report.words import is_reference, milliseconds, parity_mark, parity_words

MARKS = "= outputs proven equal to eager's, ≠ different, ? neither"
FREE_AXES = ("width", "depth", "length")


def ranking(family: Family) -> list[tuple[Measurement, float | None]]:
    """Return the points of the smallest batch, fastest first, with their share of the slowest.

    Only what is proven to compute the same is ranked; the rest follows with None.
    """
    batch = family.batches[0]
    points = [p for name in family.runtimes if (p := family.at(name, batch)) is not None]
    proven = [m for m in points if is_reference(m) or parity_mark(m) == "="]
    slowest = max((_value(m) for m in points), default=1.0)
    ranked = [(m, _value(m) / slowest) for m in sorted(proven, key=_value)]
    return [*ranked, *((m, None) for m in sorted(points, key=_value) if m not in proven)]


def _value(m: Measurement) -> float:
    if m.latency_ns is None:  # families hand out measured points only
        raise ValueError("a point without latency cannot be ranked")
    return m.latency_ns.value


def ranked(family: Family) -> Table | None:
    """Return the ranking as a table; None for a single runtime."""
    found = ranking(family)
    if len(found) < 2:
        return None
    rows = []
    for place, (m, share) in enumerate(found, start=1):
        ratio = m.ratio_to_eager
        faster = "–" if ratio is None else f"{times(1 / ratio.value)} {_ends(m)}"
        outputs = "reference" if is_reference(m) else f"{parity_mark(m)} {parity_words(m.parity)}"
        rank = "not ranked" if share is None else str(place)
        latency = "–" if m.latency_ns is None else words.interval(m.latency_ns)
        rows.append((m.runtime, rank, latency, faster, outputs))
    return table(
        f"Runtimes ranked at batch {family.batches[0]}",
        ("runtime", *map(right, ("rank", "latency, ms", "faster than eager", "outputs"))),
        rows,
        hint=f"{MARKS}. Only what is proven equal is ranked.",
    )


def _ends(m: Measurement) -> str:
    ratio = m.ratio_to_eager
    return "" if ratio is None else f"({1 / ratio.high:.2f} to {1 / ratio.low:.2f})"


def free_sizes(slices: Sequence[Slice], points: Sequence[Measurement]) -> Table | None:
    """Return the largest width, depth and length that cost 10 % more than the smallest at most.

    Args:
        slices: as ``charts.slices`` gives them.
        points: that the slices number.
    """
    rows = []
    for one in slices:
        if one.axis not in FREE_AXES:
            continue
        lines: dict[str, list[Measurement]] = {}
        for number in one.rows:
            lines.setdefault(points[number].runtime, []).append(points[number])
        for runtime, line in lines.items():
            if len(line) < 2:
                continue
            values = [float(getattr(m.workload, one.axis)) for m in line]
            found, bound = free_batch(values, [_value(m) for m in line])
            least = "≥ " if bound else ""
            rows.append((runtime, one.axis, f"{values[0]:g}", f"{least}{found:.3g}", one.title))
    if not rows:
        return None
    return table(
        "How far other sizes are free",
        ("runtime", "axis", right("smallest"), right("free up to"), "at"),
        rows,
        hint="The largest value whose latency is within 10 % of the smallest one's, interpolated; "
        "without an interval.",
    )


def hardware(run: Run) -> Table | None:
    """Return equal points on several platforms or thread counts beside each other, ms."""
    places = list(dict.fromkeys(_place(m) for m in run.measurements if m.latency_ns))
    if len(places) < 2:
        return None
    lines: dict[tuple[str, str], dict[str, Measurement]] = {}
    for family in families(run):
        for m in family.measured:
            title = f"{_titled(family)}, batch {m.workload.batch}"
            lines.setdefault((title, m.runtime), {})[_place(m)] = m
    rows = [
        (title, runtime, *(_latency(found.get(place)) for place in places))
        for (title, runtime), found in lines.items()
        if len(found) > 1
    ]
    if not rows:
        return None
    return table(
        "Hardware side by side: latency, ms, and framework tax",
        ("model", "runtime", *map(right, places)),
        rows,
    )


def _titled(family: Family) -> str:
    """Return the title without the place."""
    m = family.measurements[0]
    dropped = {m.platform, f"{m.threads} thread{'s' if m.threads != 1 else ''}"}
    return ", ".join(part for part in family.title.split(", ") if part not in dropped)


def _place(m: Measurement) -> str:
    if m.platform != "cpu":
        return m.platform
    return f"{m.platform}, {m.threads} thread{'s' if m.threads != 1 else ''}"


def _latency(m: Measurement | None) -> str:
    if m is None or m.latency_ns is None:
        return "–"
    tax = "" if m.tax_share is None else f", {words.percent(m.tax_share.value)}"
    latency = f"{milliseconds(m.latency_ns.value)} {words.plus_minus(m.latency_ns)}"
    return latency.rstrip() + tax


def matrix(run: Run) -> Table | None:
    """Return which model ran in which runtime; None for a single model."""
    shown = families(run)
    names = list(dict.fromkeys(family.model for family in shown))
    runtimes = list(dict.fromkeys(m.runtime for f in shown for m in f.measurements))
    if len(names) < 2:
        return None
    cells: dict[tuple[str, str], list[Measurement]] = {}
    for family in shown:
        for m in family.measurements:
            cells.setdefault((family.model, m.runtime), []).append(m)
    rows = [(name, *(_cell(cells.get((name, r), [])) for r in runtimes)) for name in names]
    return table(
        "What ran where",
        ("model", *map(right, runtimes)),
        rows,
        hint=f"{MARKS}; a word is why there is no latency; – was not asked for.",
    )


def _cell(points: Sequence[Measurement]) -> str:
    """Return the worst that was found: a difference, no proof, equality; or why nothing ran."""
    if not points:
        return "–"
    measured = [m for m in points if m.latency_ns is not None]
    if not measured:
        return points[0].status
    marks = {"reference" if is_reference(m) else parity_mark(m) for m in measured}
    found = next(mark for mark in ("≠", "?", "=", "reference") if mark in marks)
    lost = len(points) - len(measured)
    return f"{found}, {lost} of {len(points)} lost" if lost else found


def first_rows(found: Table, most: int) -> Table:
    """Return a table with so many rows at most, and how many there are in its hint."""
    if len(found.rows) <= most:
        return found
    said = f"The first {most} of {len(found.rows):,} rows. {found.hint}"
    return replace(found, rows=found.rows[:most], hint=said.strip())
