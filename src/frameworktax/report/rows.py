"""Every point as a flat row: the columns of CSV, Parquet and pandas."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from frameworktax.errors import needs, write_text
from frameworktax.records import BILL, Estimate, Measurement, Run

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


def csv_row(m: Measurement) -> dict[str, object]:
    """Return a point as a flat row of ``CSV_FIELDS``; None for what was not measured."""
    w = m.workload
    row: dict[str, object] = dict.fromkeys(CSV_FIELDS)
    facts = ("runtime", "paradigm", "platform", "threads", "status", "reason", "regime")
    for name in (*facts, *PLAIN):
        row[name] = getattr(m, name)
    for name in ("model", "batch", "length", "image_size", "precision", "width", "depth", *SHAPE):
        row[name] = getattr(w, name)
    for name in (*(f"{e}_ns" for e in ESTIMATES), "tax_share", "ratio_to_eager"):
        estimate: Estimate | None = getattr(m, name)
        if estimate is not None:
            row |= {name: estimate.value, f"{name}_low": estimate.low}
            row[f"{name}_high"] = estimate.high
    row |= {f"bill_{name}_ns": (m.bill_ns or {}).get(name) for name in BILL}
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
    for row in map(csv_row, run.measurements):
        for name, value in row.items():
            if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
                row[name] = f"'{value}"
        writer.writerow(row)
    return out.getvalue()


def write_parquet(run: Run, path: Path) -> None:
    """Write the rows as Parquet; a column without a value anywhere is one of numbers.

    Raises:
        UsageError: pyarrow is not installed, or the file cannot be written.
    """
    with needs("Parquet needs pyarrow (.csv does not)", "parquet"):
        import pyarrow
        import pyarrow.parquet
    rows = [csv_row(m) for m in run.measurements]
    table = pyarrow.table({name: [row[name] for row in rows] for name in CSV_FIELDS})
    for at, field in enumerate(table.schema):
        if pyarrow.types.is_null(field.type):
            empty = table.column(at).cast(pyarrow.float64())
            table = table.set_column(at, field.name, empty)
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    write_text(path, out.getvalue())
