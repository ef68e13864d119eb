"""Which points of a store are meant: ``model=bert-base``, ``batch=1..8``, ``runtime=onnx*``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from frameworktax.errors import UsageError, nearest
from frameworktax.records import Point, Workload

FIELDS = (
    *(f.name for f in fields(Workload) if f.name != "twin"),
    *(f.name for f in fields(Point) if f.name != "workload"),
)
"""What can be asked for. The twin follows its point, whose bill needs it."""
NUMBER = r"[-+]?\d+(?:\.\d+)?"
SPAN = re.compile(rf"({NUMBER})\.\.({NUMBER})")


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions on a point, all of which must hold; none is every point."""

    conditions: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Where:
        """Return the conditions of ``NAME=VALUE,VALUE`` texts.

        Raises:
            UsageError: a text has another form, or names no field of a point.
        """
        found = []
        for text in texts:
            name, sign, values = text.partition("=")
            name = name.strip()
            if not sign or not values.strip():
                raise UsageError(f"--where '{text}' is no condition; write NAME=VALUE,VALUE")
            if name not in FIELDS:
                raise UsageError(
                    f"--where {name}: no such field{nearest(name, FIELDS)}; "
                    f"choose from {', '.join(FIELDS)}"
                )
            words = tuple(word.strip() for word in values.split(",") if word.strip())
            found.append((name, words))
        return cls(tuple(found))

    def matcher(self) -> Callable[[Point], bool]:
        """Return the test of a point."""
        tests = [(name, [_test(word) for word in words]) for name, words in self.conditions]

        def matches(point: Point) -> bool:
            return all(any(t(_value(point, name)) for t in alts) for name, alts in tests)

        return matches


def _value(point: Point, name: str) -> Any:
    return getattr(point.workload if hasattr(point.workload, name) else point, name)


def _test(word: str) -> Callable[[Any], bool]:
    span = SPAN.fullmatch(word)
    if span:
        low, high = float(span[1]), float(span[2])
        return lambda v: _is_number(v) and low <= v <= high
    number = float(word) if re.fullmatch(NUMBER, word) else None

    def test(value: Any) -> bool:
        if _is_number(value):
            return number is not None and bool(value == number)
        if isinstance(value, bool):
            return word.lower() == str(value).lower()
        return fnmatchcase("none" if value is None else str(value), word)

    return test


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
