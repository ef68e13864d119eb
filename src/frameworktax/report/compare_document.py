"""A comparison as JSON, and its schema."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from frameworktax.analysis.compare.comparison import (
    COMPARISON_SCHEMA,
    COMPARISON_VERSION,
    Comparison,
)
from frameworktax.report.json_document import described_as, plain


def dump(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain JSON data; what is not finite is ``null``."""
    data: dict[str, Any] = plain(asdict(comparison))
    return data


def text(comparison: Comparison) -> str:
    """Return the document as text."""
    return json.dumps(dump(comparison), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    described = described_as(Comparison, COMPARISON_SCHEMA, COMPARISON_VERSION)
    described["required"] = sorted(described["properties"])
    return described
