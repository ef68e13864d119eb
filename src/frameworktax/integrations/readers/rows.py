"""What every reader hands on: rows, and the names that other tools have for the same things."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError
from frameworktax.records import Environment

MAX_BYTES = 256 * 2**20
"""Tables and reports are small; what is larger is something else."""
HEAD_BYTES = 4096

WORDS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)
"""What other tools call the things that we name."""
WHOLE = ("batch", "length", "image_size", "threads")
NUMBERS = (*WHOLE, "width", "depth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point of another tool.

    Attributes:
        model: as the file has it; its labels beyond ours in brackets.
        runtime: likewise.
        precision: in our words where it is one of ours.
        platform: likewise, ``unknown`` where nothing says.
        values: our number columns and foreign axes → value.
        latency_ns: one value, or one a repeat.
        kernel_ns: likewise; empty where the tool has none.
        correlated: the repeats are calls of one process that followed each other.
        summary: value and standard error of the mean, with its count, where a tool keeps no
            repeats.
        facts: fields of a ``Measurement`` that the file states.
    """

    model: str
    runtime: str
    precision: str
    platform: str = "unknown"
    values: Mapping[str, float] = field(default_factory=dict)
    latency_ns: tuple[float, ...] = ()
    kernel_ns: tuple[float, ...] = ()
    correlated: bool = False
    summary: tuple[float, float, int] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Everything a file says; ``source`` names the tool."""

    source: str
    rows: tuple[Row, ...]
    environment: Environment | None = None


def our_name(column: str) -> str | None:
    """Return our word for a column, or None."""
    plain = re.sub(r"[^a-z0-9]+", "_", column.strip().lower()).strip("_")
    return next((ours for ours, theirs in WORDS["columns"].items() if plain in theirs), None)


def our_precision(text: str) -> str:
    """Return ``float32`` for ``fp32`` and so on; what is not ours stays."""
    plain = text.strip().lower().removeprefix("torch.")
    return str(WORDS["precisions"].get(plain, plain))


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer of a thousand digits
        return None
    return found if math.isfinite(found) else None


def text_of(path: Path) -> str:
    """Return a file's text.

    Raises:
        UsageError: it cannot be read, is no text, or too large for a table.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UsageError(f"{path}: {size >> 20} MB is no table; name a smaller file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name another") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text at byte {error.start}; name another file") from error


def json_of(path: Path, marks: tuple[str, ...]) -> Any:
    """Return a JSON file's data if its head holds one of ``marks``, otherwise None.

    The head is looked at first, so that a trace of gigabytes is not read to find out whose it is.

    Raises:
        UsageError: it has the mark and is no JSON.
    """
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name another") from error
    if not any(f'"{mark}"' in head for mark in marks):
        return None
    try:
        return json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}: no JSON at line {error.lineno}: {error.msg}; was it cut short?"
        ) from error
    except RecursionError as error:
        raise UsageError(f"{path}: brackets nested too deeply; this is no report") from error


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def word(value: Any, default: str = "unknown") -> str:
    """Return a text that is not empty, or the default for anything else."""
    return value if isinstance(value, str) and value else default
