"""A study file as points: read, changed by what was typed, checked, laid out."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from frameworktax.errors import UsageError, nearest
from frameworktax.records import Point
from frameworktax.sweep import overrides
from frameworktax.sweep.grid import Planned, check_models, code_of, expand
from frameworktax.sweep.schema import Axes, Settings, StudyFile
from frameworktax.sweep.source import Source, read

HERE = {"local": "cpu", "cpu": "cpu"}
"""Platforms of a host without a GPU: label → device."""

PLAIN = {
    "bool_type": "write true or false",
    "int_type": "write a whole number",
    "string_type": "write a text in quotes",
}
"""What may stand where something of another type does, by pydantic's name of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is to be measured, and how.

    Attributes:
        settings: the ``[study]`` table.
        planned: every point, in the order the study names them.
        code: references to Python code among the models, with the file each stands in.
        notes: what the study says that has no effect.
    """

    settings: Settings
    planned: tuple[Planned, ...]
    code: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        """The points alone."""
        return tuple(planned.point for planned in self.planned)


def load(
    study: str | Path | Mapping[str, Any],
    words: Sequence[str] = (),
    *,
    platforms: Mapping[str, str] = HERE,
    allow_code: bool = False,
) -> Study:
    """Return a study.

    Args:
        study: its file, or its data.
        words: overrides, ``key=value``.
        platforms: label → device, as the engine offers them.
        allow_code: whether models may be Python code.

    Raises:
        UsageError: it cannot be read, is wrong (file, line and the allowed values are named), or
            names code that is not allowed to run.
    """
    source, data = _read(study)
    source = Source(source.name, source.text, overrides.apply(data, list(words)))
    try:
        file = StudyFile.model_validate(data)
    except ValidationError as error:
        raise UsageError(_told(source, error)) from error
    planned, notes = expand(file, source, platforms)
    code = code_of(planned)
    if code and not allow_code:
        raise UsageError(
            f"{source.name} would run code of yours: {'; '.join(code)}; "
            "read it, then give --allow-code"
        )
    check_models(planned, source)
    return Study(settings=file.study, planned=planned, code=code, notes=notes)


def _read(study: str | Path | Mapping[str, Any]) -> tuple[Source, dict[str, Any]]:
    if isinstance(study, Mapping):
        return Source("study", ""), copy.deepcopy(dict(study))
    path = Path(study)
    try:
        source = read(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8; save it as such") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; 'frameworktax init {path}' writes a study"
        ) from error
    try:
        return source, tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: no TOML: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: nested too deep to be a study") from error


def _told(source: Source, error: ValidationError) -> str:
    """Return the first thing wrong, where it stands and what may stand there."""
    first = error.errors(include_url=False)[0]
    location = first["loc"]
    count = error.error_count() - 1
    more = f" (and {count} more)" if count else ""
    if first["type"] == "extra_forbidden":
        known = _fields(location[:-1])
        name = str(location[-1])
        hint = nearest(name, known) or ";"
        if len(location) == 1 and name in Axes.model_fields:
            hint = f", did you mean 'grid.{name}'?"
        text = f"unknown key '{name}'{hint} choose from {', '.join(known)}"
        return f"{source.where(location)}: {text}{more}"
    text = PLAIN.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    given = first.get("input")
    if isinstance(given, bool | int | float | str) and repr(given) not in text:
        text += f", not {given!r}"
    bad = _first_bad(text)
    return f"{source.where(location, bad)}: {text}{more}"


def _first_bad(text: str) -> str | None:
    """Return the value in quotes that a message complains about, to find its line in a list."""
    _, quote, rest = text.partition("'")
    return rest.partition("'")[0] if quote else None


def _fields(location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that a table of a study may have."""
    table: type[BaseModel] = StudyFile
    for part in location:
        if isinstance(part, int):
            continue
        annotation = table.model_fields[part].annotation
        found = [
            a
            for a in (annotation, *getattr(annotation, "__args__", ()))
            if isinstance(a, type) and issubclass(a, BaseModel)
        ]
        table = found[0]
    return list(table.model_fields)
