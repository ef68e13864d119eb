"""The shape of a study file, as pydantic models; only the parent imports this.

Every axis may be written as one value or a list; ``batch``, ``length``, ``image_size``,
``threads`` and ``new_tokens`` also as ``"1..64"``, the powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from frameworktax.errors import UsageError
from frameworktax.records import PRECISIONS
from frameworktax.sweep import values

MAX_VALUES = 10_000
"""Values one axis may have; a longer list is a mistake, not a study."""


def _listed(value: Any) -> list[Any]:
    found = list(value) if isinstance(value, list | tuple) else [value]
    if not found:
        raise ValueError("is empty; name at least one value or leave it out")
    if len(found) > MAX_VALUES:
        raise ValueError(f"has {len(found)} values; {MAX_VALUES} at most")
    return list(dict.fromkeys(found))


def _texts(value: Any) -> tuple[str, ...]:
    found = _listed(value)
    for item in found:
        if not isinstance(item, str) or not item.strip():
            raise ValueError(f'{item!r} is no name; write names in quotes, as in ["a", "b"]')
    return tuple(found)


def _integers(value: Any) -> tuple[int, ...]:
    found: list[int] = []
    for item in _listed(value):
        if isinstance(item, str):
            try:
                found += values.numbers(item, "the value")
            except UsageError as error:
                raise ValueError(str(error)) from error
        elif isinstance(item, bool) or not isinstance(item, int) or item < 1:
            raise ValueError(f'{item!r} is no whole number above 0; write 8, [1, 2, 4] or "1..64"')
        else:
            found.append(item)
    return tuple(_listed(found))


def _factors(value: Any) -> tuple[float, ...]:
    found = _listed(value)
    for item in found:
        if isinstance(item, bool) or not isinstance(item, int | float) or not 0 < item < 1e6:
            raise ValueError(f"{item!r} is no number above 0; write 0.5 or [0.5, 1, 2]")
    return tuple(float(item) for item in found)


def _flags(value: Any) -> tuple[bool, ...]:
    found = _listed(value)
    for item in found:
        if not isinstance(item, bool):
            raise ValueError(f"{item!r} is neither true nor false")
    return tuple(found)


def _one_of(*allowed: str) -> Callable[[Any], tuple[str, ...]]:
    def chosen(value: Any) -> tuple[str, ...]:
        found = _texts(value)
        for item in found:
            if item not in allowed:
                raise ValueError(f"no '{item}'; choose from {', '.join(allowed)}")
        return found

    return chosen


def _schema(item: dict[str, Any], *more: dict[str, Any]) -> WithJsonSchema:
    lists = {"type": "array", "minItems": 1, "items": {"anyOf": [item, *more]} if more else item}
    return WithJsonSchema({"anyOf": [item, *more, lists]})


def _choice(*allowed: str) -> WithJsonSchema:
    return _schema({"enum": list(allowed)})


SPAN = {"type": "string", "pattern": r"^\s*\d+(\s*(\.\.|,)\s*\d+)*\s*$"}
INPUTS = ("dense", "ragged")
PHASES = ("forward", "generate")
CACHES = ("none", "dynamic", "static")

Texts = Annotated[tuple[str, ...], BeforeValidator(_texts), _schema({"type": "string"})]
Integers = Annotated[
    tuple[int, ...], BeforeValidator(_integers), _schema({"type": "integer", "minimum": 1}, SPAN)
]
Factors = Annotated[
    tuple[float, ...],
    BeforeValidator(_factors),
    _schema({"type": "number", "exclusiveMinimum": 0}),
]
Flags = Annotated[tuple[bool, ...], BeforeValidator(_flags), _schema({"type": "boolean"})]
Precisions = Annotated[tuple[str, ...], BeforeValidator(_one_of(*PRECISIONS)), _choice(*PRECISIONS)]
InputKinds = Annotated[tuple[str, ...], BeforeValidator(_one_of(*INPUTS)), _choice(*INPUTS)]
Phases = Annotated[tuple[str, ...], BeforeValidator(_one_of(*PHASES)), _choice(*PHASES)]
Caches = Annotated[tuple[str, ...], BeforeValidator(_one_of(*CACHES)), _choice(*CACHES)]


def _duration(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    try:
        return values.seconds(value if isinstance(value, str) else repr(value), "the value")
    except UsageError as error:
        raise ValueError(str(error)) from error


def _share(value: Any) -> float:
    try:
        return values.share(value if isinstance(value, str) else repr(value), "the value")
    except UsageError as error:
        raise ValueError(str(error)) from error


def _tables(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, Mapping):
        raise ValueError(f"is one table; write [[{info.field_name}]], once for each")
    return value


def _compared(value: Any) -> Any:
    lists = value if isinstance(value, list | tuple) else [value]
    for names in lists:
        if not isinstance(names, list | tuple) or len(names) < 2:
            raise ValueError('is a list of lists of two models or more, as in [["a", "b"]]')
    return value


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"type": ["string", "number"], "examples": ["90s", "10min", "1h"]}),
]
Share = Annotated[
    float,
    BeforeValidator(_share),
    WithJsonSchema({"type": ["string", "number"], "examples": ["3%", 0.03]}),
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Axes(_Table):
    """The axes of a grid; one that is left out keeps the model's own default."""

    models: Texts | None = Field(
        None, description="Names, file.py:function or package.module:function (--allow-code)."
    )
    runtimes: Texts | None = Field(None, description="Names, or all.")
    batch: Integers | None = Field(None, description="Samples a call.")
    length: Integers | None = Field(None, description="Tokens a sample; models with a length.")
    image_size: Integers | None = Field(None, description="Pixels a side; models of images.")
    width: Factors | None = Field(None, description="Factors on layer widths.")
    depth: Factors | None = Field(None, description="Factors on the number of layers.")
    precision: Precisions | None = Field(None, description="Of weights and arithmetic.")
    threads: Integers | None = Field(None, description="Of the calling process on a CPU.")
    platform: Texts | None = Field(None, description="local, cpu, cuda:N, or a node's label.")
    input: InputKinds | None = Field(None, description="Dense, or sentences of drawn lengths.")
    length_mean: Factors | None = Field(None, description="Mean of drawn lengths; ragged only.")
    length_sd: Factors | None = Field(None, description="Their standard deviation.")
    phase: Phases | None = Field(None, description="One forward pass, or greedy decoding.")
    new_tokens: Integers | None = Field(None, description="Tokens to generate; generate only.")
    kv_cache: Caches | None = Field(None, description="Cache of keys and values; generate only.")
    channels_last: Flags | None = Field(None, description="Memory format of images and weights.")
    batch_dim: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Batch dimension of the inputs of a model of your own."
    )

    def given(self) -> dict[str, tuple[Any, ...]]:
        """Return the axes that were written, by name."""
        found: dict[str, tuple[Any, ...]] = {}
        for name in Axes.model_fields:
            value = getattr(self, name)
            if value is not None:
                found[name] = value if isinstance(value, tuple) else (value,)
        return found


class Override(Axes):
    """Points that match every axis written here get the axes of ``set`` instead."""

    set: Axes


class Priority(Axes):
    """Points that match get this priority; higher is measured earlier, 0 is the default."""

    value: Annotated[int, Field(strict=True)]


class Settings(_Table):
    """How the study is measured."""

    name: str = Field("study", min_length=1, max_length=200)
    description: str = ""
    time_budget: Duration | None = Field(None, description="Wall time for everything.")
    point_budget: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="Points at most, in the order of their priority."
    )
    processes: Annotated[int, Field(ge=1, le=100, strict=True)] = Field(
        3, description="Fresh processes a point."
    )
    until: Share = Field(0.03, description="Half-width of the interval at which a point is done.")
    twin: Literal["auto", "all", "none"] = Field("auto", description="Width-shrunk twins.")
    stop_when_linear: bool = Field(
        False,
        strict=True,
        description="Leave out larger batches once latency grows as fast as the batch.",
    )
    attempts: Annotated[int, Field(ge=1, le=10, strict=True)] = Field(
        2, description="Times a point that fails is tried before it is left alone."
    )
    together: Annotated[tuple[Texts, ...], BeforeValidator(_compared)] = Field(
        (), description="Models that are compared with one another, measured side by side."
    )


class StudyFile(_Table):
    """A study of frameworktax."""

    study: Settings = Settings()  # type: ignore[call-arg] # all of it has defaults, by Field
    grid: Axes | None = Field(None, description="The product of its axes.")
    point: Annotated[tuple[Axes, ...], BeforeValidator(_tables)] = Field(
        (), description="Further points, each a small grid."
    )
    exclude: Annotated[tuple[Axes, ...], BeforeValidator(_tables)] = Field(
        (), description="Points that match are left out."
    )
    override: Annotated[tuple[Override, ...], BeforeValidator(_tables)] = Field(
        (), description="Other values for some points."
    )
    priority: Annotated[tuple[Priority, ...], BeforeValidator(_tables)] = Field(
        (), description="What is measured earlier."
    )


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a study, for editors."""
    found = StudyFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
