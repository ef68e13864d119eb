"""Where something stands in a study: tomllib keeps no line numbers, so they are looked up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEADER = re.compile(r"^\s*(\[\[?)\s*([\w\"'. -]+?)\s*\]\]?\s*(#.*)?$")
KEY = re.compile(r"^\s*([\w\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")
Location = Sequence[str | int]
"""A path into the data: ``("exclude", 1, "batch")``."""


@dataclass(frozen=True)
class Source:
    """The text of a study, for messages.

    Attributes:
        name: the file as the user named it.
        text: what it holds.
        typed: dotted paths that came from the command line, to what was typed.
    """

    name: str
    text: str
    typed: dict[str, str] = field(default_factory=dict)

    def where(self, location: Location, value: object = None) -> str:
        """Return ``study.toml line 7: grid.batch``, or the words typed on the command line.

        Args:
            location: the path; parts that are not found fall back to what holds them.
            value: an element of a list on several lines, to point at its own line.
        """
        dotted = ".".join(map(str, location))
        for path, typed in self.typed.items():
            if dotted == path or dotted.startswith(path + "."):
                return f"'{typed}'"
        line = self.line(location, value)
        shown = dotted or "the study"
        return f"{self.name} line {line}: {shown}" if line else f"{self.name}: {shown}"

    def line(self, location: Location, value: object = None) -> int | None:
        """Return the number of the line that a path points at, from 1, None if it has none."""
        lines = self.text.splitlines()
        found: int | None = None
        depth = 0
        for path, number in _keys(lines):
            common = len(path) if list(path) == list(location[: len(path)]) else 0
            if common > depth:
                depth, found = common, number
        if found is None or value is None:
            return found
        quoted = {repr(value), f'"{value}"'}
        for number in range(found, len(lines) + 1):
            text = lines[number - 1]
            if number > found and (KEY.match(text) or HEADER.match(text)):
                break
            tokens = re.findall(r"\"[^\"]*\"|'[^']*'|[^\s,\[\]={}#]+", text)
            if quoted & set(tokens):
                return number
        return found


def _keys(lines: list[str]) -> list[tuple[tuple[str | int, ...], int]]:
    """Return the path and line of every table and key."""
    table: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    found: list[tuple[tuple[str | int, ...], int]] = []
    for number, text in enumerate(lines, start=1):
        if header := HEADER.match(text):
            name = header[2]
            parts = _parts(name)
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                table = (*parts, counts[name])
            elif parts[0] in counts:  # [override.set] belongs to the last [[override]]
                table = (parts[0], counts[str(parts[0])], *parts[1:])
            else:
                table = parts
            found.append((table, number))
        elif key := KEY.match(text):
            found.append(((*table, *_parts(key[1])), number))
    return found


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def read(path: Path) -> Source:
    """Return a file as a source; raises OSError and UnicodeDecodeError."""
    return Source(str(path), path.read_text(encoding="utf-8"))
