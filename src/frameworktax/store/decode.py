"""JSON data as records: strict types, unknown fields left out, nothing executed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

from frameworktax.records import RECORDS, Block, Calibration, Record


def decode(hint: Any, value: Any) -> Any:
    """Return JSON data as the annotated type: dataclasses, tuples, mappings, plain values.

    A field this version does not know is left out: a newer minor writer stays readable.

    Raises:
        TypeError: the data has another shape than the annotation.
    """
    import msgspec

    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, RecursionError) as error:
        raise TypeError(str(error)) from error


@cache
def line_decoder(kind: str) -> Callable[[bytes], Record]:
    """Return what makes a record of a line of one kind; the line's other fields are left out.

    The function raises ``ValueError`` for a line that is no such record.
    """
    import msgspec

    plain = msgspec.json.Decoder(RECORDS[kind]).decode

    def decoded(line: bytes) -> Record:
        try:
            return cast(Record, plain(line))
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def timed(line: bytes) -> Record:
        record = decoded(line)
        latency_ns = cast("Block | Calibration", record).latency_ns
        if not latency_ns or min(latency_ns) < 0:
            raise ValueError("no latency, or one below zero")
        return record

    return timed if RECORDS[kind] in (Block, Calibration) else decoded


def plain_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        ValueError: it is none.
    """
    import msgspec

    try:
        data = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data
