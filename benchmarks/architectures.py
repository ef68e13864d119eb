"""Which architectures pay how much: one study, one table.

    python benchmarks/architectures.py [--quick | --redraw]

The study is ``architectures.toml``; the page is drawn from the store that it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frameworktax import store, sweep
from frameworktax.analysis.document import build
from frameworktax.records import Curve, Measurement, Run
from frameworktax.report.words import free_batch, interval, milliseconds, warm
from question import Place, machine, place, table

STUDY = Path(__file__).with_suffix(".toml")
KINDS = {
    "resnet-50": "convolutional",
    "distilbert": "encoder",
    "gpt2": "decoder, prefill",
    "moe": "mixture of experts",
    "mamba": "state-space",
    "lstm": "recurrent",
    "gnn": "graph",
    "recommender": "recommender",
    "unet": "diffusion, one step",
}
"""Model → architecture, in the order of the page."""
DECODE = "decoder, decode"
QUICK = ("study.time_budget=40s", "study.processes=1", "grid.models=gnn", "~point")
REFERENCE = "eager"


def page(at: Place) -> str:
    """Return the page from the store."""
    records, _ = store.read(at.store)
    return text(build(records))


def text(run: Run) -> str:
    """Return the page of a run."""
    eager = [m for m in run.measurements if m.runtime == REFERENCE and m.workload.batch == 1]
    order = list(KINDS)
    known = [m for m in eager if m.workload.model in KINDS]
    known.sort(key=lambda m: (order.index(m.workload.model), m.workload.phase))
    lines = [
        "# Which architectures pay how much",
        "",
        "Written by `make architectures` from the store beside it; the study is "
        "[architectures.toml](../../benchmarks/architectures.toml). " + machine(run.environment),
        "",
        "Eager PyTorch at batch 1, small inputs; *free up to* is the largest batch within 10 % of "
        "batch 1; *best* the fastest of the runtimes measured whose outputs are proven equal, by "
        "blocks of the same rounds; ≥: the tax of a twin, a lower figure.",
        "",
    ]
    header = (
        "architecture", "model", "latency, ms", "tax", "tax, ms", "operators", "µs of tax each",
        "free up to", f"tax at the largest batch, {REFERENCE}", "best at batch 1", "times faster",
    )  # fmt: skip
    lines += table(header, [_row(m, run) for m in known], left=2)
    missing = [name for name in KINDS if name not in {m.workload.model for m in known}]
    lines += ["", *_reasons(run, missing)]
    return "\n".join(lines) + "\n"


def _row(m: Measurement, run: Run) -> tuple[str, ...]:
    kind = KINDS[m.workload.model] if m.workload.phase == "forward" else DECODE
    best, factor = _best(m, run)
    last = max(_family(m, run, REFERENCE), key=lambda o: o.workload.batch)
    each = "–"
    if m.tax_ns is not None and m.operators:
        each = f"{m.tax_ns.value / m.operators / 1e3:.1f}"
    return (
        kind,
        f"`{m.workload.model}`{_size(m)}",
        interval(m.latency_ns),
        _share(m),
        milliseconds(m.tax_ns.value) if m.tax_ns else "–",
        str(m.operators or "–"),
        each,
        _free(m, run),
        f"{_share(last)} at {last.workload.batch}",
        best,
        factor,
    )


def _size(m: Measurement) -> str:
    w = m.workload
    if w.phase == "generate":
        token = f", {milliseconds(m.per_token_ns.value)} ms a token" if m.per_token_ns else ""
        return f", {w.length} and {w.new_tokens} tokens{token}"
    return (f", {w.length} tokens" if w.length else "") + (
        f", {w.image_size} pixels" if w.image_size else ""
    )


def _share(m: Measurement) -> str:
    share = m.tax_share
    if share is None:
        return "–"
    low, high = (f"{100 * v:.0f}" for v in (share.low, share.high))
    return f"{warm(m)}{100 * share.value:.0f} % ({low} to {high})"


def _family(m: Measurement, run: Run, runtime: str | None = None) -> list[Measurement]:
    """Return points that differ from one in batch and runtime alone, the latter fixed if given."""

    return [
        o
        for o in run.measurements
        if replace(o.workload, batch=m.workload.batch) == m.workload
        and o.latency_ns is not None
        and runtime in (None, o.runtime)
    ]


def _free(m: Measurement, run: Run) -> str:
    own = sorted({o.workload.batch for o in _family(m, run, REFERENCE)})
    curve: Curve | None = next(
        (
            c
            for c in run.curves
            if (c.model, c.runtime) == (m.workload.model, REFERENCE)
            and [int(v) for v in c.values] == own
            and c.latency_ns[0] == m.latency_ns
        ),
        None,
    )
    if curve is None or curve.free_batch is None:
        return "–"
    free = curve.free_batch
    return free_batch(free, is_lower_bound=curve.free_is_lower_bound)


def _best(m: Measurement, run: Run) -> tuple[str, str]:
    """Return the fastest runtime with equal outputs, and how many times faster than eager."""
    told = [
        (o.ratio_to_eager.value, o.runtime, o.ratio_to_eager)
        for o in _family(m, run)
        if o.workload == m.workload
        and o.ratio_to_eager is not None
        and o.parity is not None
        and o.parity.within_tolerance
    ]
    if not told:
        return REFERENCE, "no other was told"
    _, name, ratio = min(told)
    if ratio.low >= 1:
        return REFERENCE, "1"
    proven = "" if ratio.high < 1 else ", not proven"
    return name, f"{1 / ratio.value:.2f} ({1 / ratio.high:.2f} to {1 / ratio.low:.2f}){proven}"


def _reasons(run: Run, missing: Sequence[str]) -> list[str]:
    lines = [f"- {KINDS[name]} (`{name}`): not measured." for name in missing]
    for m in run.measurements:
        if m.latency_ns is None and m.workload.batch == 1 and m.runtime != "null":
            reason = " ".join((m.reason or m.status).split())[:240].replace("<", "&lt;")
            lines.append(f"- `{m.workload.model}`, {m.workload.phase}, {m.runtime}: {reason}")
    return lines + [f"- left out: {said}" for said in run.left_out]


def main() -> None:
    at = place("architectures", __doc__ or "")
    if not at.redraw:
        from rich.console import Console

        from frameworktax.cli.progress import ProgressView

        with ProgressView(Console(stderr=True)) as shown:
            sweep(
                STUDY, *(QUICK if at.quick else ()), store=at.store, reporter=shown,
                command=("architectures",),
            )  # fmt: skip
    at.write(page(at))


if __name__ == "__main__":
    main()
