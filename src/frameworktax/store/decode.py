"""JSON data as records: strict types, unknown fields left out, nothing executed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, cast

import msgspec

from frameworktax.records import RECORDS, Block, Calibration, Record

LONGEST_NS = 2**63 - 1
"""292 years: no block takes longer, and what does is no number of ours."""
MOST = 2**31 - 1
"""Processes of a point, rounds of a session."""
NOT_A_RECORD = (ValueError, RecursionError, msgspec.DecodeError)
"""What a decoder raises for a line that is no such record."""

Decoder = Callable[[bytes], Any]
_Time = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_NS)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


def decode(hint: Any, value: Any) -> Any:
    """Return JSON data as the annotated type: dataclasses, tuples, mappings, plain values.

    A field this version does not know is left out: a newer minor writer stays readable.

    Raises:
        TypeError: the data has another shape than the annotation.
    """
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, RecursionError) as error:
        raise TypeError(str(error)) from error


def _timed(line: bytes) -> Record:
    record = cast(Block, _plain("block")(line))
    _check(record.latency_ns, record.process, record.round)
    _check((record.pipelined_ns, record.cpu_ns))
    return record


def _calibrated(line: bytes) -> Record:
    record = cast(Calibration, _plain("calibration")(line))
    _check(record.latency_ns, record.round)
    return record


def _check(times_ns: tuple[int, ...], *numbers: int) -> None:
    """Raise ValueError for what no clock and no counter gives: it would end in an overflow."""
    if not times_ns or min(times_ns) < 0 or max(times_ns) > LONGEST_NS:
        raise ValueError("no latencies, or impossible ones")
    if numbers and not 0 <= min(numbers) <= max(numbers) <= MOST:
        raise ValueError("an impossible process or round")


@cache
def _plain(kind: str) -> Decoder:
    return msgspec.json.Decoder(RECORDS[kind]).decode


DECODERS: dict[str, Decoder] = {
    **{kind: _plain(kind) for kind in RECORDS},
    "block": _timed,
    "calibration": _calibrated,
}
"""Kind → what makes a record of a line of that kind, or raises one of ``NOT_A_RECORD``."""


class BlockRow(msgspec.Struct, gc=False):
    """A block on its way into a column: the same checks as a record's, made by the parser."""

    session: str
    point: str
    process: _Number
    round: _Number
    latency_ns: Annotated[tuple[_Time, ...], msgspec.Meta(min_length=1)]
    pipelined_ns: _Time
    pipelined_calls: int
    cpu_ns: _Time
    enqueue_ns: tuple[int, ...] | None = None
    first_token_ns: tuple[int, ...] | None = None


def plain_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; raises one of ``NOT_A_RECORD`` where it is none."""
    data = msgspec.json.decode(line)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data
