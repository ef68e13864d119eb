"""Documents as JSON: written, described by a schema; a run's read back with its faults named."""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.errors import StoreError, one_line
from frameworktax.records import RUN_SCHEMA, RUN_VERSION, Run
from frameworktax.report.trace_blocks import trace_blocks

MOST = 1e30
"""More than any time in ns, size in bytes or count in a document."""
OTHERS = {
    "program": "of 'frameworktax run' or 'attach': no command reads it, --report writes a page",
    "comparison": "of 'frameworktax compare': no command reads it, -o comment.md writes a page",
    "optimization": "of 'frameworktax optimize': 'frameworktax compare' takes the folder it names",
    "deployment": "of a deployment: explain takes proof.json, 'frameworktax compare' the folder",
    "ablation": "of 'frameworktax ablate': explain takes its store, as does ablate --redraw",
    "baselines": "of the pytest plugin: pytest reads it",
}
"""Other document of this tool → what it is of, and what reads it."""
SIZES = ("batch", "length", "image_size", "width", "depth")
"""Of a workload."""


def dump(document: Any) -> dict[str, Any]:
    """Return it as plain JSON data; what is not finite is ``null``, as it was not measured."""
    data: dict[str, Any] = plain(asdict(document))
    return data


def plain(value: Any) -> Any:
    """Return data made of dicts, lists, text and finite numbers; ``class_`` gets its own name."""
    if isinstance(value, dict):
        return {"class" if k == "class_" else str(k): plain(item) for k, item in value.items()}
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def text(document: Run | Comparison) -> str:
    """Return the document as text, one field a line down to the measurements."""
    return json.dumps(dump(document), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def schema(document: type[Any] = Run) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document, whose name and version are its defaults."""
    from pydantic import TypeAdapter

    described = TypeAdapter(document).json_schema()
    fields = described["properties"]
    for name in ("schema", "version"):
        fields[name]["const"] = fields[name]["default"]
    described["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    described["title"] = f"{fields['schema']['const']} version {fields['version']['const']}"
    # A run may be another program's; all others are written by this one alone, and whole.
    whole = described.get("required", []) if document is Run else fields
    described["required"] = sorted({*whole, "schema", "version"})
    return described


def load(path: Path) -> Run:
    """Read a document back.

    Raises:
        StoreError: it cannot be read, is no JSON, is another schema or version, or a field has
            the wrong type; names the first such field.
    """
    try:
        written = path.read_text(encoding="utf-8")
        data = json.loads(
            written,
            parse_int=partial(_measured, int),
            parse_float=partial(_measured, float),
            parse_constant=partial(_measured, float),
        )
        if "\\ud" in written.lower():  # halves of characters, which no file can hold by themselves
            json.dumps(data, ensure_ascii=False).encode()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, no JSON, brackets without end
        raise StoreError(
            f"{path} is no JSON document ({error}); name a store, or what --json wrote"
        ) from error
    return parse(data, str(path))


def _measured(kind: type[float], text: str) -> float:
    """Return a number, or raise ValueError where sums and products of such would not be finite."""
    value = kind(text)
    if not abs(value) < MOST:
        raise ValueError(f"{text[:20]} was never measured")
    return value


def parse(data: Any, path: str) -> Run:
    """Return plain JSON data as a document; ``path`` says where it came from.

    Raises:
        StoreError: another schema or version, or a field has the wrong type or cannot be.
    """
    from pydantic import TypeAdapter, ValidationError

    found = data.get("schema") if isinstance(data, dict) else None
    if found != RUN_SCHEMA:
        other = OTHERS.get(str(found).removeprefix("frameworktax."))
        what = (
            f"the document {other}" if other else f"no {RUN_SCHEMA} document; write one with --json"
        )
        raise StoreError(f"{path} is {what}")
    if data.get("version") != RUN_VERSION:
        raise StoreError(
            f"{path} has version {data.get('version')}, this frameworktax reads {RUN_VERSION}; "
            "use the one that wrote it"
        )
    try:
        run = TypeAdapter(Run).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(f"{path}: {where}: {first['msg']}; write it again with --json") from error
    for m in run.measurements:
        sizes = (getattr(m.workload, name) for name in SIZES)
        latency = m.latency_ns.value if m.latency_ns is not None else None
        r = m.ratio_to_eager
        ratio = (r.low, r.value, r.high) if r is not None else ()
        times_ns = [one[-1] for one in (*m.blocks_ns, *m.calibrator_ns)]
        times_ns += [min(calls) for calls in m.samples_ns if calls]
        known = (m.threads, latency, *ratio, *sizes, *times_ns)
        if not all(n is None or n > 0 for n in known):
            text = (
                f"{m.runtime}: a size, the threads, the latency, its ratio or a time is not above "
                "zero"
            )
            raise StoreError(f"{path}: {text}; write it again with --json")
    try:
        trace_blocks(run.trace)  # its parts have no types
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        text = f"the trace in it is none of this tool's ({one_line(error)})"
        raise StoreError(f"{path}: {text}; write it again with --json") from error
    return run
