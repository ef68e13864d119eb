"""The waterfall: a bar a step, kernel time and tax, and what the step took off or added."""

from __future__ import annotations

from pathlib import Path

from frameworktax.ablate.blocks import change
from frameworktax.ablate.steps import Ablation, Step
from frameworktax.errors import UsageError
from frameworktax.report import vega
from frameworktax.report.palette import Spec
from frameworktax.report.words import TWIN, milliseconds

KERNEL, TAX, WHOLE = "#3f6fa8", "#e0702a", "#9aa3ad"
FASTER, SLOWER = "#009e73", "#c0504d"
ROW = 26
"""Pixels of a step."""
PREFIX = {"torchscript": "TorchScript: ", "inductor": "Inductor: ", "onnxruntime": "ORT: "}
PARTS = ("kernel time", "framework tax", "not separated")


def waterfall(ablation: Ablation) -> Spec:
    """Return the picture: bars as they are measured, a rule from the step before to this one.

    A whisker is the interval of the change over the step before. In a bar of pale colours the tax
    is a lower bound, from the twin.

    Raises:
        UsageError: no step was measured.
    """
    steps = [s for s in ablation.steps if s.reason is None and s.measured is not None]
    if not steps:
        raise UsageError("no step was measured; there is nothing to draw")
    by_name = {s.rung.name: s for s in steps}
    totals = [_total(s) for s in steps]
    spec: Spec = vega.fill(
        vega.template("waterfall"),
        {
            "height": ROW * len(steps),
            "names": [_name(s) for s in steps],
            "longest": max(total["end"] for total in totals) * 1.42,
            "parts": list(PARTS),
            "colours": [KERNEL, TAX, WHOLE],
            "segments": [segment for s in steps for segment in _segments(s)],
            "moves": [move for s in steps if (move := _move(s, by_name)) is not None],
            "totals": totals,
        },
    )
    return spec


def _name(step: Step) -> str:
    return PREFIX.get(step.rung.path, "") + step.rung.title


def _segments(step: Step) -> list[Spec]:
    m = step.measured
    if m is None or m.latency_ns is None:
        return []
    row = {"step": _name(step), "opacity": 0.55 if m.bill_method == TWIN else 1.0}
    whole = m.latency_ns.value / 1e6
    if m.kernel_ns is None:
        return [{**row, "part": PARTS[2], "start": 0.0, "end": whole}]
    kernel = m.kernel_ns.value / 1e6
    return [
        {**row, "part": PARTS[0], "start": 0.0, "end": kernel},
        {**row, "part": PARTS[1], "start": kernel, "end": whole},
    ]


def _move(step: Step, by_name: dict[str, Step]) -> Spec | None:
    """Return the rule from the latency before to this one: what the paired ratio says."""
    m, added = step.measured, step.added
    if m is None or m.latency_ns is None or added is None or added.ratio is None:
        return None
    if added.against not in by_name:
        return None
    here = m.latency_ns.value / 1e6
    ratio = added.ratio
    proven = ratio.high < 1 or ratio.low > 1
    colour = WHOLE if not proven else FASTER if ratio.value < 1 else SLOWER
    return {"step": _name(step), "start": here / ratio.value, "end": here, "colour": colour}


def _total(step: Step) -> Spec:
    m = step.measured
    if m is None or m.latency_ns is None:
        raise ValueError("a step without latency cannot be drawn")
    latency = milliseconds(m.latency_ns.value)
    effect = change(step.added)
    here, low, high = m.latency_ns.value / 1e6, 1.0, 1.0
    if step.added is not None and step.added.ratio is not None:
        ratio = step.added.ratio  # the whisker: the host's drift, common to all bars, is not in it
        low, high = ratio.low / ratio.value, ratio.high / ratio.value
    return {
        "step": _name(step),
        "start": here * low,
        "end": here * high,
        "text": f"{latency}  {effect}" if effect else latency,
    }


def write(ablation: Ablation, path: Path) -> None:
    """Write the waterfall as ``.svg``, ``.png`` or ``.pdf``.

    Raises:
        UsageError: another suffix, nothing measured, or no plotting package.
    """
    vega.check(path)
    vega.write(waterfall(ablation), path)
