"""A study file, and the study that it becomes: read, changed by overrides, checked, laid out.

Every axis may be written as one value or as a list; ``batch``, ``length``, ``image_size``,
``threads`` and ``new_tokens`` also as ``"1..64"``, the powers of two. Only the parent imports this.

An override is ``table.key=value``, or ``table=value``; ``~table.key`` and ``~table`` remove. A
value is read as TOML (``[1, 2]``, ``"a"``, ``true``); what is no TOML is text, and commas outside
quotes and brackets make a list.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from frameworktax.errors import UsageError, as_path, nearest, quoted
from frameworktax.measure.plan import (
    DEFAULT_PROCESSES,
    DEFAULT_SETUP_LIMIT_S,
    LARGEST,
    MOST_PROCESSES,
    Twin,
)
from frameworktax.records import Input, KvCache, Phase, Point, Precision
from frameworktax.stats import UNTIL
from frameworktax.sweep import values
from frameworktax.sweep.grid import Location, Planned, check_models, code_of, expand

HERE = {"local": "cpu", "cpu": "cpu"}
"""Platforms of a host without a GPU: label → device."""
TEMPLATE = Path(__file__).with_name("template.toml")
"""The study that ``frameworktax init`` writes: common keys set, the others as comments."""
HINTS = {
    "bool_type": "write true or false",
    "int_type": "write a whole number",
    "missing": "is missing",
    "model_type": "is no table; write [grid] or [study] once, {key = value} within a line",
    "string_type": "write a text in quotes",
    "string_pattern_mismatch": "is no name",
    "tuple_type": "is no list; write it in [ ]",
    "too_short": 'is no list of lists of two models or more, as in [["a", "b"]]',
}
"""What to write instead, by pydantic's name of the error."""
HEADER = re.compile(r"^\s*(\[\[?)([\w\"'. \t-]+)\]\]?\s*(#.*)?$")
WORD = re.compile(r"""("[^"]*"|'[^']*')|[^\s,\[\]"'](?:[^,\[\]"']*[^\s,\[\]"'])?""")
"""Of an override's lists: between commas and brackets, or in quotes."""
KEY = re.compile(r"^\s*([\w\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")
MAX_BYTES = 1 << 20
"""A study of 20,000 points written out has half of it."""
MAX_DOTS = 500
"""Dots in a line: the time and memory that tomllib takes for a key grow with its parts squared."""
FORM = "write TABLE.KEY=VALUE, as in grid.batch=1,2, or ~exclude to leave a part out"


# --- its text and data ----------------------------------------------------------------------------


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
        paths = (tuple(location[:depth]) for depth in range(len(location), 0, -1))
        line = next((f" line {self._lines[path]}" for path in paths if path in self._lines), "")
        return f"{self.name}{line}: {dotted or 'the study'}"

    @cached_property
    def _lines(self) -> Mapping[tuple[str | int, ...], int]:
        """Path of every table and key → the first line that has it."""
        table: tuple[str | int, ...] = ()
        counts: Counter[str] = Counter()
        found: dict[tuple[str | int, ...], int] = {}
        for number, text in enumerate(self.text.splitlines(), start=1):
            if header := HEADER.match(text):
                name = header[2].strip()
                table = _parts(name)
                if header[1] == "[[":
                    table = (*table, counts[name])
                    counts[name] += 1
                found.setdefault(table, number)
            elif key := KEY.match(text):
                found.setdefault((*table, *_parts(key[1])), number)
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
        path = as_path("the study", study)
        name = str(path)
        try:
            text = _text(path)
            data = tomllib.loads(text)
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is no text in UTF-8; save it as such") from error
        except OSError as error:
            then = f"a study is written by: frameworktax init {quoted(path)}"
            raise UsageError(f"cannot read {path}: {error.strerror}; {then}") from error
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
    text = path.read_text(encoding="utf-8-sig")
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
        if not isinstance(word, str):
            raise UsageError(f"{word!r} is no override; {FORM}")
        removes = word.startswith("~")
        key, equals, text = word.removeprefix("~").partition("=")
        *table, name = key.split(".", 1)
        holder = data.setdefault(table[0], {}) if table else data
        if not name or removes == bool(equals) or not isinstance(holder, dict):
            raise UsageError(f"'{word}' is no override; {FORM}")
        if not removes:
            try:
                holder[name] = value_of(text)
            except RecursionError as error:
                raise UsageError(f"'{key}' is nested too deep to be of a study") from error
            typed[key] = word
        elif holder.pop(name, None) is None:
            raise UsageError(f"'{word}': the study has no {key}")
    return typed


def value_of(text: str) -> Any:
    """Return the value of an override: TOML, else a list by commas, else text.

    Raises:
        RecursionError: lists in lists, hundreds deep.
    """
    worded = WORD.sub(lambda word: word[0] if word[1] else _as_toml(word[0]), text)
    lists = [worded, f"[{worded}]"] if {",", "["} & set(text) else []
    for toml in (text, *lists):
        with suppress(ValueError):
            return _toml(toml)
    return text


def _toml(text: str) -> Any:
    """Return one TOML value; raises ValueError for anything else."""
    data = tomllib.loads(f"x = {text}")
    if len(data) > 1:
        raise ValueError("several lines")
    return data["x"]


def _as_toml(word: str) -> str:
    """Return a word as TOML: as it is where it is a value, else in quotes."""
    with suppress(ValueError):
        _toml(word)
        return word
    return json.dumps(word, ensure_ascii=False)


# --- its tables -----------------------------------------------------------------------------------


def _listed(value: Any) -> list[Any]:
    """Return an axis: one value counts as a list of it, and a repeated value counts once."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    if not found:
        raise ValueError("is empty; name at least one value or leave it out")
    unique = {(type(item), repr(item)): item for item in found}  # True is no 1
    return list(unique.values())


def _spans(value: Any) -> list[Any]:
    """Return an axis of whole numbers; a text may be a span, ``"1..64"``."""
    found: list[Any] = []
    for item in _listed(value):
        found += _parsed(values.numbers, item) if isinstance(item, str) else [item]
    return _listed(found)


def _parsed(parse: Any, value: Any) -> Any:
    """Return what a value says as on the command line."""
    try:
        return parse(value if isinstance(value, str) else repr(value), "the value")
    except UsageError as error:
        raise ValueError(str(error)) from error


def _tables(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, Mapping):
        raise ValueError(f"is one table; write [[{info.field_name}]], once for each")
    return value


_Name = Annotated[str, Field(strict=True, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
_Count = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
_Factor = Annotated[float, Field(strict=True, gt=0, lt=1e6)]
_List = BeforeValidator(_listed)
Texts = Annotated[tuple[_Name, ...], _List]
Compared = Annotated[tuple[_Name, ...], Field(min_length=2), _List]
Integers = Annotated[tuple[_Count, ...], BeforeValidator(_spans)]
Factors = Annotated[tuple[_Factor, ...], _List]
Duration = Annotated[float, BeforeValidator(lambda value: _parsed(values.seconds, value))]
Share = Annotated[float, BeforeValidator(lambda value: _parsed(values.share, value))]
_Tables = BeforeValidator(_tables)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axes(_Table):
    """The axes of a grid (docs/studies.md); one left out keeps the model's own default."""

    models: Texts | None = None
    runtimes: Texts | None = None
    batch: Integers | None = None
    length: Integers | None = None
    image_size: Integers | None = None
    width: Factors | None = None
    depth: Factors | None = None
    precision: Annotated[tuple[Precision, ...], _List] | None = None
    threads: Integers | None = None
    platform: Texts | None = None
    input: Annotated[tuple[Input, ...], _List] | None = None
    length_mean: Factors | None = None
    length_sd: Factors | None = None
    phase: Annotated[tuple[Phase, ...], _List] | None = None
    new_tokens: Integers | None = None
    kv_cache: Annotated[tuple[KvCache, ...], _List] | None = None
    channels_last: Annotated[tuple[Annotated[bool, Field(strict=True)], ...], _List] | None = None
    batch_dim: Annotated[int, Field(strict=True, ge=0)] | None = None

    def given(self) -> dict[str, tuple[Any, ...]]:
        """Return the axes that were written, by name."""
        axes = self.model_dump(include=set(Axes.model_fields), exclude_none=True)
        return {name: v if isinstance(v, tuple) else (v,) for name, v in axes.items()}


class Priority(Axes):
    """Points that match get this priority; higher is measured earlier, 0 is the default."""

    value: Annotated[int, Field(strict=True)]


class Settings(_Table):
    """How the study is measured (docs/studies.md)."""

    name: str = Field("study", min_length=1, max_length=200)
    description: str = ""
    time_budget: Duration | None = None
    setup_limit: Duration = DEFAULT_SETUP_LIMIT_S
    processes: int = Field(DEFAULT_PROCESSES, ge=1, le=MOST_PROCESSES, strict=True)
    until: Share = UNTIL
    twin: Twin = "auto"
    attempts: int = Field(2, ge=1, le=10, strict=True)
    together: tuple[Compared, ...] = ()


class StudyFile(_Table):
    """A study of frameworktax."""

    study: Settings = Settings()  # type: ignore[call-arg] # all of it has defaults, by Field
    grid: Axes | None = None
    point: Annotated[tuple[Axes, ...], _Tables] = ()
    exclude: Annotated[tuple[Axes, ...], _Tables] = ()
    priority: Annotated[tuple[Priority, ...], _Tables] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is to be measured, and how.

    Attributes:
        settings: the ``[study]`` table.
        planned: every point, in the order the study names them.
        code: references to Python code among the models, with the file each leads to.
        notes: parts of the study that have no effect.
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
    overrides: Sequence[str] = (),
    *,
    platforms: Mapping[str, str] = HERE,
    allow_code: bool = False,
) -> Study:
    """Return a study.

    Args:
        study: its file, or its data.
        overrides: ``key=value`` over it.
        platforms: label → device, as the executor offers them.
        allow_code: whether models may be Python code; those named by an override may.

    Raises:
        UsageError: it cannot be read, is wrong (file, line and the allowed values are named), or
            names code that is not allowed to run.
    """
    text, data = read(study, overrides)
    try:
        file = StudyFile.model_validate(data)
    except ValidationError as error:
        raise UsageError(_first_error(text, error)) from error
    planned, notes = expand(file, text, platforms)
    code = code_of(planned)
    typed = [value_of(word.partition("=")[2]) for word in overrides]
    named = [*typed, *itertools.chain(*(value for value in typed if isinstance(value, list)))]
    foreign = code_of(one for one in planned if one.point.workload.model not in named)
    if foreign and not allow_code:
        raise UsageError(
            f"{text.name} would run code of yours: {'; '.join(foreign)}; "
            "read it, then give --allow-code"
        )
    check_models(planned, text)
    return Study(settings=file.study, planned=planned, code=code, notes=notes)


def _first_error(text: Source, error: ValidationError) -> str:
    """Return the first error of a study in one line: its place, and what may be written there."""
    first = error.errors(include_url=False)[0]
    location, given = first["loc"], first.get("input")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        tables: dict[Any, type[BaseModel]] = {"study": Settings, "priority": Priority}
        table = StudyFile if len(location) == 1 else tables.get(location[0], Axes)
        known, name = list(table.model_fields), str(location[-1])
        hint = nearest(name, known) or ";"
        if len(location) == 1 and name in Axes.model_fields:
            hint = f", did you mean 'grid.{name}'?"
        message = f"unknown key '{name}'{hint} choose from {', '.join(known)}"
        return f"{text.where(location)}: {message}{more}"
    message = HINTS.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    if isinstance(given, bool | int | float | str) and repr(given) not in message:
        message += f", not {given!r}"
    return f"{text.where(location)}: {message}{more}"
