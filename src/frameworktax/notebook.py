"""Records as small tables for a notebook: a row for each field that says something, as text."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from frameworktax.errors import cut

FEW = 8
"""Entries that are shown one by one; of more, only their number is."""
LONGEST = 300
"""Characters of one cell."""


class HtmlRepr:
    """A dataclass that a notebook shows as a table; names and texts in it are escaped."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from html import escape

        name = next(c.__name__ for c in type(self).__mro__ if "__dataclass_fields__" in vars(c))
        left = " style='text-align:left'"
        rows = "".join(
            f"<tr><th scope='row'{left}>{escape(name)}</th><td{left}>{escape(text)}</td></tr>"
            for name, text in rows_of(self)
        )
        return f"<table><caption>{name}</caption><tbody>{rows}</tbody></table>"


def rows_of(record: Any) -> Iterator[tuple[str, str]]:
    """Yield name and text of each field that is neither None nor empty."""
    for field in fields(record):
        value = getattr(record, field.name)
        if value is not None and value not in ((), {}, ""):
            yield field.name, cut(text_of(value), LONGEST)


def text_of(value: Any) -> str:
    """Return a field's value as text: numbers with six digits, intervals in brackets."""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if {"value", "low", "high"} <= _names(value):
        ends = f"{text_of(value.low)} to {text_of(value.high)}"
        return f"{text_of(value.value)} ({ends})"
    if {"code", "text"} == _names(value):
        return str(value.text)
    if is_dataclass(value):
        said = [
            f"{f.name} {text_of(getattr(value, f.name))}"
            for f in fields(value)
            if f.default is MISSING or getattr(value, f.name) != f.default
        ]
        return ", ".join(said)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text_of(one)}" for name, one in value.items())
    if isinstance(value, tuple | list):
        if len(value) > FEW or any(isinstance(one, tuple | list | array) for one in value):
            return f"{len(value)} entries"
        return "; ".join(map(text_of, value))
    return str(value)


def _names(value: Any) -> set[str]:
    return {field.name for field in fields(value)} if is_dataclass(value) else set()
