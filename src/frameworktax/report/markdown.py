"""The tables as Markdown, and every point as a CSV row."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from frameworktax.records import BILL, Estimate, Measurement, Run
from frameworktax.report.quantities import tables_of
from frameworktax.report.tables import Family, families
from frameworktax.report.words import (
    duration,
    factor,
    interval,
    is_reference,
    label,
    milliseconds,
    parity_words,
    percent,
)
from frameworktax.store.export import inert

ESTIMATES = (
    *("latency", "pipelined", "enqueue", "kernel", "span", "tax", "warm_overhead"),
    *("first_token", "per_token"),
)
SHAPE = ("input", "length_mean", "length_sd", "phase", "new_tokens", "kv_cache", "channels_last")
PLAIN = (
    *("bill_method", "launches", "operators", "flops", "macs", "parameters"),
    *("padding_share", "setup_ns", "artifact_bytes", "peak_memory_bytes"),
)
CSV_FIELDS = (
    *("model", "runtime", "paradigm", "platform", "threads", "batch", "length", "image_size"),
    *("precision", "width", "depth", *SHAPE, "status", "reason"),
    *(f"{name}_ns{end}" for name in ESTIMATES for end in ("", "_low", "_high")),
    *(f"tax_share{end}" for end in ("", "_low", "_high")),
    *(f"ratio_to_eager{end}" for end in ("", "_low", "_high")),
    *(f"bill_{name}_ns" for name in BILL),
    *("regime", "within_tolerance", "max_relative_difference", *PLAIN, "notes"),
)


def escape(text: str) -> str:
    """Return text that stays one cell of a Markdown table and starts no markup."""
    flat = " ".join(text.split())
    for sign in ("\\", "|", "<", "`", "*", "_", "["):
        flat = flat.replace(sign, f"\\{sign}")
    return flat


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---") -> str:
    lines = [head, ["---", *[align] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def text(run: Run) -> str:
    """Return the run as Markdown."""
    parts = [f"# {escape(run.headline)}"]
    for family in families(run):
        parts += [f"## {escape(family.title)}", *_family(family)]
    if run.advice:
        rows = [[escape(a.action), factor(a.gain), a.kind, escape(a.evidence)] for a in run.advice]
        parts += ["## What to do", _table(["action", "gain", "kind", "evidence"], rows)]
    if run.harness_floor_ns is not None:
        parts.append(f"Harness floor: {duration(run.harness_floor_ns.value)} a call.")
    said = [n.text for n in run.notes] + [f"left out: {t}" for t in run.left_out]
    if said:
        parts += ["## Notes", "\n".join(f"- {escape(t)}" for t in said)]
    return "\n\n".join(parts) + "\n"


def _family(family: Family) -> list[str]:
    parts = []
    if family.measured:
        batches = family.batches
        head = ["latency, ms", *(f"batch {b}" for b in batches), "outputs against eager"]
        rows = [
            [escape(r), *(_cell(family.at(r, b)) for b in batches), _outputs(family, r)]
            for r in family.runtimes
        ]
        parts.append(_table(head, rows))
        parts += _bill(family, batches[0])
        for found in tables_of(family):
            head = [escape(found.caption), *map(escape, found.head[1:])]
            parts.append(_table(head, [[escape(cell) for cell in row] for row in found.rows]))
            parts += [escape(found.hint)] if found.hint else []
    if family.lost:
        rows = [[escape(who), status, escape(why)] for who, status, why in family.lost]
        parts.append(_table(["not measured", "status", "reason"], rows))
    if family.notes:
        parts.append("\n".join(f"- {escape(who)}: {escape(said)}" for who, said in family.notes))
    return parts


def _cell(m: Measurement | None) -> str:
    if m is None:
        return "–"
    return interval(m.latency_ns) + (f", {m.regime}" if m.regime else "")


def _outputs(family: Family, runtime: str) -> str:
    m = next(m for m in family.measured if m.runtime == runtime)
    return "reference" if is_reference(m) else escape(parity_words(m.parity))


def _bill(family: Family, batch: int) -> list[str]:
    points = [p for r in family.runtimes if (p := family.at(r, batch)) and p.bill_ns]
    used = [name for name in BILL if any((p.bill_ns or {}).get(name) for p in points)]
    if not points:
        return []
    head = [f"bill at batch {batch}, ms", "latency", "tax", *map(label, used), "method"]
    rows = [
        [
            escape(p.runtime),
            milliseconds(p.latency_ns.value if p.latency_ns else None),
            percent(p.tax_share.value if p.tax_share else None),
            *(milliseconds((p.bill_ns or {}).get(name)) for name in used),
            escape(p.bill_method or ""),
        ]
        for p in points
    ]
    return [_table(head, rows, "---:")]


def csv_rows(run: Run) -> list[dict[str, object]]:
    """Return one flat row a point, the fields of ``CSV_FIELDS``; None for what was not measured."""
    return [_row(m) for m in run.measurements]


def _row(m: Measurement) -> dict[str, object]:
    w = m.workload
    row: dict[str, object] = dict.fromkeys(CSV_FIELDS)
    for name in ("runtime", "paradigm", "platform", "threads", "status", "reason", "regime"):
        row[name] = getattr(m, name)
    for name in ("model", "batch", "length", "image_size", "precision", "width", "depth", *SHAPE):
        row[name] = getattr(w, name)
    for name in PLAIN:
        row[name] = getattr(m, name)
    for name in (*(f"{e}_ns" for e in ESTIMATES), "tax_share", "ratio_to_eager"):
        estimate: Estimate | None = getattr(m, name)
        if estimate is not None:
            row |= {name: estimate.value, f"{name}_low": estimate.low}
            row[f"{name}_high"] = estimate.high
    row |= {f"bill_{name}_ns": ns for name, ns in (m.bill_ns or {}).items()}
    if m.parity is not None:
        row["within_tolerance"] = m.parity.within_tolerance
        row["max_relative_difference"] = m.parity.max_relative_difference
    row["notes"] = " ".join(n.code for n in m.notes)
    return row


def csv_text(run: Run) -> str:
    """Return the rows as CSV with a header; text that a spreadsheet would run is quoted."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in csv_rows(run):
        writer.writerow({key: inert(value) for key, value in row.items()})
    return out.getvalue()


def write(run: Run, path: Path) -> None:
    """Write Markdown or CSV, told by the suffix."""
    path.write_text(csv_text(run) if path.suffix == ".csv" else text(run), encoding="utf-8")
