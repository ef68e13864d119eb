"""Documents as JSON: written, described by a schema; a run's read back with its faults named."""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frameworktax.analysis.compare.comparison import Comparison
from frameworktax.errors import StoreError
from frameworktax.records import RUN_SCHEMA, RUN_VERSION, Run


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
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, no JSON, brackets without end
        raise StoreError(
            f"{path} is no JSON document ({error}); name a store, or what --json wrote"
        ) from error
    return parse(data, str(path))


def parse(data: Any, path: str) -> Run:
    """Return plain JSON data as a document; ``path`` says where it came from.

    Raises:
        StoreError: another schema or version, or a field has the wrong type.
    """
    from pydantic import TypeAdapter, ValidationError

    found = data.get("schema") if isinstance(data, dict) else None
    if found != RUN_SCHEMA:
        raise StoreError(f"{path} is no {RUN_SCHEMA} document; write one with --json")
    if data.get("version") != RUN_VERSION:
        raise StoreError(
            f"{path} has version {data.get('version')}, this frameworktax reads {RUN_VERSION}; "
            "use the one that wrote it"
        )
    try:
        return TypeAdapter(Run).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(f"{path}: {where}: {first['msg']}; write it again with --json") from error
