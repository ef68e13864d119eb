"""A race and a deployment as blocks, and as the page that lies in the deployment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from frameworktax.analysis.estimates import times_range
from frameworktax.records import Estimate
from frameworktax.report import charts
from frameworktax.report.blocks import (
    Block,
    Cell,
    Chart,
    Heading,
    Item,
    Items,
    Table,
    Text,
    listed,
    right,
    table,
)
from frameworktax.report.families import families
from frameworktax.report.render_markdown import markdown
from frameworktax.report.run_blocks import BREAKDOWN, breakdown_cells
from frameworktax.report.words import NONE, milliseconds, plus_minus
from frameworktax.runtimes.deployment import Manifest, left_out, served, shape_name

if TYPE_CHECKING:
    from frameworktax.optimize.race import Candidate
    from frameworktax.optimize.run import Optimized


def optimized_blocks(found: Optimized) -> list[Block]:
    """Return what was delivered, every candidate and why it lost, what could not race, pictures."""
    blocks: list[Block] = [Text(headline(found), style="strong")]
    if found.manifest is not None:
        blocks.append(shapes_table(found.manifest))
    blocks += [candidates_table(found.candidates), reasons(found.candidates)]
    if any(one.won for one in found.candidates):
        blocks.append(tax_table(found.candidates))
    if found.undeliverable:
        items = tuple(Item(name, why) for name, why in found.undeliverable)
        blocks.append(Items("Not in the race", items))
    if found.folder is not None:
        blocks.append(Text(f'fast = frameworktax.load("{found.folder}")', style="dim"))
    shown = families(found.final)
    points = [m for family in shown for m in family.measurements]
    pictures = (Chart(one.title, charts.drawn(one, points)) for one in charts.lines(shown))
    return [*blocks, *pictures]


def headline(found: Optimized) -> str:
    """Return the answer in a sentence."""
    model = found.candidates[0].workload.model
    delivered = [shape for shape in found.shapes if shape.gain is not None]
    if not delivered or found.folder is None:
        return f"{model}: nothing that can be delivered is proven faster than eager"
    gains, lows, highs = zip(*(shape.gain for shape in delivered if shape.gain), strict=True)
    span = times_range(Estimate(value=min(gains), low=min(gains), high=max(gains)))
    ends = times_range(Estimate(value=min(gains), low=min(lows), high=max(highs)))
    by = f" by shape, with intervals {ends}" if len(gains) > 1 and ends != span else ""
    left = len(found.shapes) - len(delivered)
    rest = f"; {left} of {len(found.shapes)} shapes are left to eager" if left else ""
    return f"{model}: {found.folder} is {span} faster than eager{by}, outputs proven equal{rest}"


def shapes_table(manifest: Manifest) -> Table:
    """Return what serves each shape that was asked for, those between, and what is left out."""
    return listed(
        "Delivered: latency in ms, gain over eager (95 % interval), largest difference of outputs",
        [shape for shape in manifest.shapes if not shape.is_between],
        {
            "shape": shape_name,
            "runtime": lambda shape: shape.runtime or "eager",
            right("latency"): lambda shape: _interval(shape.latency_ns, 1e-6),
            right("faster than eager"): lambda shape: _interval(shape.gain, 1),
            right("difference (allowed)"): lambda shape: (
                NONE
                if shape.difference is None
                else f"{shape.difference:.0e} ({shape.tolerance:g})"
            ),
        },
        hint=" ".join(_hints(manifest)),
    )


def _hints(manifest: Manifest) -> Iterator[str]:
    more = [shape for shape in served(manifest.shapes) if shape.is_between]
    if more:
        sizes = "; ".join(map(shape_name, more[:20]))
        others = f" and {len(more) - 20} more" if len(more) > 20 else ""
        yield f"Between them, proven equal and not timed: {sizes}{others}."
    if manifest.padding:
        names = {"batch": "batch", "length": "length", "together": "both together"}
        axes = [said for name, said in names.items() if getattr(manifest.padding, name)]
        yield (
            f"Any {' or '.join(axes)} between is padded to the next larger shape where that "
            "takes no longer than eager; proven equal."
        )
    if manifest.unpadded:
        yield f"Not padded: {manifest.unpadded}."
    if left := left_out(manifest.interface.output or {}):
        yield f"Left out of what it returns, as no tensor: {', '.join(left)}."
    if manifest.notes:
        yield f"Noted: {'; '.join(manifest.notes)}."


def triple(estimate: Estimate | None) -> tuple[float, float, float] | None:
    """Return value, low and high end, as a manifest has them."""
    return (estimate.value, estimate.low, estimate.high) if estimate is not None else None


def _interval(ends: tuple[float, float, float] | None, scale: float) -> str:
    if ends is None:
        return NONE
    value, low, high = (f"{x * scale:.3g}" for x in ends)
    return f"{value} ({low} to {high})"


def candidates_table(candidates: Sequence[Candidate]) -> Table:
    """Return every runtime at every shape, with its gain over eager."""
    bare = {one.measured.runtime == one.runtime for one in candidates if one.measured}
    called = "called as delivered"
    if True in bare:  # both, where heats are a session of ``measure``
        called = f"{called} after the heats, before " if False in bare else ""
        called += "engines alone, inputs bound beforehand"
    return listed(
        f"Candidates over all stages that each was in, {called}; latency in ms, "
        "gain over eager (95 % interval)",
        candidates,
        {
            "shape": lambda one: shape_name(one.workload),
            "runtime": lambda one: Cell(one.runtime, style="strong" if one.won else ""),
            right("latency"): _latency,
            right("gain, ×"): lambda one: _interval(triple(one.gain), 1),
        },
        named_by=2,
    )


def _latency(one: Candidate) -> Cell:
    latency = one.measured.latency_ns if one.measured is not None else None
    if latency is None:
        return Cell(NONE)
    return Cell(milliseconds(latency.value), note=plus_minus(latency))


def reasons(candidates: Sequence[Candidate]) -> Items:
    """Return why each candidate lost."""
    lost = [one for one in candidates if one.reason]
    items = tuple(Item(f"{one.runtime}, {shape_name(one.workload)}", one.reason) for one in lost)
    return Items("Why the others lost", items)


def tax_table(candidates: Sequence[Candidate]) -> Table:
    """Return what of the latency is still tax in each winner, and what it is."""
    rows: list[list[Cell | str]] = [
        [shape_name(one.workload), one.runtime, *breakdown_cells(one.measured)]
        for one in candidates
        if one.won and one.measured is not None
    ]
    return table("What is still tax in the winners", ["shape", "runtime", *BREAKDOWN], rows)


def readme(manifest: Manifest) -> str:
    """Return the page that lies in the deployment."""
    given = ", ".join(manifest.interface.names)
    made_of = {name: f" (build {build})" for name, build in manifest.builds.items()}
    packages = ", ".join(
        f"{name} {version}{made_of.get(name, '')}" for name, version in manifest.packages.items()
    )
    blocks: list[Block] = [
        Heading(f"{manifest.model}, deployed", level=1),
        Text(
            f"Made by frameworktax {manifest.frameworktax} on {manifest.machine.cpu} "
            f"({manifest.made}); for {manifest.threads} "
            f"{'thread' if manifest.threads == 1 else 'threads'} on {manifest.device}, in "
            f"{manifest.precision}. It needs {packages}, and neither the model's code nor its "
            "library."
        ),
        shapes_table(manifest),
    ]
    language = "python" if manifest.command.startswith("ft.") else "bash"
    use = (
        "```python\nimport frameworktax\n\n"
        f'fast = frameworktax.load("this folder")  # takes {given}, like the module\n```\n\n'
        "Install what it needs with `pip install -r requirements.txt`. Loading looks at every file "
        "first and refuses a changed one, other versions and another kind of processor. A shape "
        "that is left to eager in the table, or neither in it nor between, is refused, or run by "
        "the module: `load(folder, module=module)`.\n\n"
        "`frameworktax compare FOLDER --gate 5%` measures it again. Made anew by:\n\n"
        f"```{language}\n{manifest.command}\n```\n"
    )
    return markdown(blocks) + "\n" + use


def document(found: Optimized) -> dict[str, object]:
    """Return the document of ``--json``: the manifest's shapes and every candidate."""
    return {
        "schema": "frameworktax.optimization",
        "version": 1,
        "folder": str(found.folder) if found.folder is not None else None,
        "shapes": [asdict(shape) for shape in found.shapes],
        "candidates": [
            {
                "batch": one.workload.batch,
                "length": one.workload.length,
                "runtime": one.runtime,
                "measured_as": m.runtime if (m := one.measured) else None,
                "latency_ns": m.latency_ns.value if m and m.latency_ns else None,
                "gain": asdict(one.gain) if one.gain is not None else None,
                "start_ns": one.start_ns,
                "peak_memory_bytes": m.peak_memory_bytes if m else None,
                "breakdown_ns": m.bill_ns if m else None,
                "won": one.won,
                "reason": one.reason or None,
            }
            for one in found.candidates
        ],
        "not_in_the_race": [{"runtime": n, "reason": why} for n, why in found.undeliverable],
    }
