"""A study's data: read from its file, changed by overrides, and where each part was written.

An override is ``table.key=value``, or ``table=value``; ``~table.key`` and ``~table`` remove. A
value is read as TOML (``[1, 2]``, ``"a"``, ``true``); what is no TOML is text, and commas outside
quotes and brackets make a list.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError

HEADER = re.compile(r"^\s*(\[\[?)([\w\"'. \t-]+)\]\]?\s*(#.*)?$")
KEY = re.compile(r"^\s*([\w\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")
MAX_BYTES = 1 << 20
"""A study of 20,000 points written out has half of it."""
MAX_DOTS = 500
"""Dots in a line: the time and memory that tomllib takes for a key grow with its parts squared."""
FORM = "write TABLE.KEY=VALUE, as in grid.batch=1,2, or ~exclude to leave a part out"
Location = Sequence[str | int]
"""A path into the data: ``("exclude", 1, "batch")``."""


@dataclass(frozen=True)
class Source:
    """The text of a study, for the positions in messages; tomllib keeps no line numbers.

    Attributes:
        name: the file as the user named it.
        text: its content.
        typed: dotted paths that came from the command line, to the override.
    """

    name: str
    text: str
    typed: dict[str, str] = field(default_factory=dict)

    def where(self, location: Location) -> str:
        """Return ``study.toml line 7: grid.batch``, or the override that set it.

        A part of the path that is not found falls back to the table around it.
        """
        dotted = ".".join(map(str, location))
        for path, typed in self.typed.items():
            if dotted == path or dotted.startswith(path + "."):
                return f"'{typed}'"
        line = self.line(location)
        shown = dotted or "the study"
        return f"{self.name} line {line}: {shown}" if line else f"{self.name}: {shown}"

    def line(self, location: Location) -> int | None:
        """Return the line that a path points at, from 1, None if it has none."""
        found: int | None = None
        depth = 0
        for path, number in _keys(self.text.splitlines()):
            if len(path) > depth and list(path) == list(location[: len(path)]):
                depth, found = len(path), number
        return found


def _keys(lines: list[str]) -> list[tuple[tuple[str | int, ...], int]]:
    """Return the path and line of every table and key."""
    table: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    found: list[tuple[tuple[str | int, ...], int]] = []
    for number, text in enumerate(lines, start=1):
        if header := HEADER.match(text):
            name = header[2].strip()
            parts = _parts(name)
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                table = (*parts, counts[name])
            else:
                table = parts
            found.append((table, number))
        elif key := KEY.match(text):
            found.append(((*table, *_parts(key[1])), number))
    return found


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def read(
    study: str | Path | Mapping[str, Any], overrides: Sequence[str]
) -> tuple[Source, dict[str, Any]]:
    """Return the text and the data of a study, overrides applied.

    Raises:
        UsageError: it cannot be read, is no TOML, or an override is wrong.
    """
    if isinstance(study, Mapping):
        name, text, data = "study", "", copy.deepcopy(dict(study))
    else:
        path = Path(study)
        name = str(path)
        try:
            text = _text(path)
            data = tomllib.loads(text)
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is no text in UTF-8; save it as such") from error
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}; 'frameworktax init {path}' writes a study"
            ) from error
        except ValueError as error:  # no TOML, or an integer of thousands of digits
            raise UsageError(f"{path}: no TOML: {error}") from error
        except RecursionError as error:
            raise UsageError(f"{path}: nested too deep to be a study") from error
    return Source(name, text, apply(data, overrides)), data


def _text(path: Path) -> str:
    """Return a study's text; raises UsageError for what would take minutes to parse."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no regular file; name a study in TOML")
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MB is no study")
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MAX_DOTS:
            raise UsageError(f"{path} line {number}: {line.count('.')} dots are no key of a study")
    return text


def apply(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, str]:
    """Change the data of a study by overrides.

    Returns:
        Dotted path → the override that set it, for messages.

    Raises:
        UsageError: an override of another form, or nothing to remove.
    """
    typed: dict[str, str] = {}
    for word in overrides:
        removes = word.startswith("~")
        key, equals, text = word.removeprefix("~").partition("=")
        *table, name = key.split(".", 1)
        holder = data.setdefault(table[0], {}) if table else data
        if not name or removes == bool(equals) or not isinstance(holder, dict):
            raise UsageError(f"'{word}' is no override; {FORM}")
        if not removes:
            holder[name] = value_of(text)
            typed[key] = word
        elif holder.pop(name, None) is None:
            raise UsageError(f"'{word}': the study has no {key}")
    return typed


def typed_words(overrides: Sequence[str]) -> set[str]:
    """Return the texts among the values of overrides: what the user named, and no file did."""
    values = [value_of(word.partition("=")[2]) for word in overrides]
    listed = (value if isinstance(value, list) else [value] for value in values)
    return {one for value in listed for one in value if isinstance(one, str)}


def value_of(text: str) -> Any:
    """Return the value of an override: TOML, else a list by commas, else text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):  # no TOML, or an integer of thousands of digits: text
        pass
    inner = re.fullmatch(r"\s*\[(.*)\]\s*", text)
    parts = _split(inner[1] if inner else text)
    if len(parts) > 1 or inner:
        return [value_of(part) for part in parts if part.strip()]
    return text


def _split(text: str) -> list[str]:
    """Split at commas outside quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[](){}":
            depth += 1 if character in "[({" else -1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return parts
