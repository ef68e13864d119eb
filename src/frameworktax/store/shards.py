"""Reading shards line by line: whole records, and what is wrong with the rest.

A shard may be torn at its end (its writer was killed), a concatenation of shards, or both; where a
torn line and the next shard's header run into one line, they are separated again. Decoding is
strict in types, leaves fields of later writers out and executes nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from frameworktax.errors import StoreError, quoted
from frameworktax.records import (
    RECORDS,
    STORE_SCHEMA,
    STORE_VERSION,
    Attribution,
    Block,
    Calibration,
    LeftOut,
    Note,
    Places,
    Record,
    Subject,
)
from frameworktax.store.write import FIRST, SUFFIX

LONGEST_NS = 2**63 - 1
"""292 years; a longer time is damage, and would overflow."""
MOST = 2**31 - 1
"""Processes of a point, rounds of a session."""
NOT_A_RECORD = (ValueError, RecursionError, msgspec.DecodeError)
"""What a decoder raises for a line that is no such record."""
KIND = re.compile(rb'\{"record": ?"([a-z-]+)"').match
"""How every writer begins a record; a line that begins otherwise is parsed to find its kind."""
BEGINS = re.compile(rb'\{"(?:record|schema)": ?"')
"""Where a line may begin inside another one. Quotes inside a string are escaped: none match."""
BUFFER_BYTES = 1_000_000
CHUNK_BYTES = 2_000_000
"""Lines of a shard that are read, and decoded, together."""
LINE_BYTES = 64 << 20
"""A longer line is no record that anything writes."""

Wanted = Callable[[bytes, str], bool]
"""Asked with a line and its kind before it is decoded; a refused line is not checked."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of a shard that is no record.

    Attributes:
        shard: name of the file.
        line: number, from 1.
        kind: ``torn`` (the last line of what one writer wrote) or ``bad``.
    """

    shard: str
    line: int
    kind: Literal["torn", "bad"]


# --- one line -----------------------------------------------------------------------------------


def decode(hint: Any, value: Any) -> Any:
    """Return JSON data as the annotated type: dataclasses, tuples, mappings, plain values.

    Raises:
        TypeError: the data has another shape than the annotation.
    """
    try:
        return msgspec.convert(value, hint)
    except (msgspec.ValidationError, RecursionError) as error:
        raise TypeError(str(error)) from error


_Time = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_NS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_Times = Annotated[list[_Time], msgspec.Meta(min_length=1)]
_Span = Annotated[int, msgspec.Meta(gt=0, le=LONGEST_NS)]
"""What is divided by."""
_Spans = Annotated[list[_Span], msgspec.Meta(min_length=1)]


class _Numbers(msgspec.Struct, kw_only=True, gc=False):
    kind: ClassVar[str] = Block.kind
    session: str
    point: str
    process: _Count
    round: _Count
    pipelined_ns: _Span
    pipelined_calls: _Count
    cpu_ns: _Time


class CompactBlock(_Numbers, kw_only=True, gc=False):
    """A ``Block`` on its way into ``columns.Blocks``: read and checked in less time."""

    latency_ns: _Spans
    enqueue_ns: _Times | None = None
    first_token_ns: _Times | None = None

    def __post_init__(self) -> None:
        """Refuse as many times of one kind as there are not calls."""
        for times in (self.enqueue_ns, self.first_token_ns):
            if times is not None and len(times) != len(self.latency_ns):
                raise ValueError("as many times of one kind as there are calls")


class RawBlock(_Numbers, kw_only=True, gc=False):
    """A block with no times but its latencies, which are still text."""

    latency_ns: msgspec.Raw
    enqueue_ns: None = None
    first_token_ns: None = None


_COMPACT_BLOCK = msgspec.json.Decoder(CompactBlock).decode
raw_blocks = msgspec.json.Decoder(RawBlock).decode_lines
"""Returns the blocks of lines together, or raises one of ``NOT_A_RECORD``."""


def compact_block(line: bytes) -> CompactBlock | None:
    """Return the block of a line, None where it is none."""
    try:
        return _COMPACT_BLOCK(line)
    except NOT_A_RECORD:
        return None


def _is_batch(record: Subject | LeftOut) -> bool:
    return 0 < record.point.workload.batch <= LONGEST_NS


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    kind: msgspec.json.Decoder(cls).decode for kind, cls in RECORDS.items()
}
_CAN_BE: dict[str, Callable[[Any], bool]] = {
    Calibration.kind: lambda one: (
        0 <= one.round <= MOST
        and len(one.latency_ns) > 0
        and all(0 < ns <= LONGEST_NS for ns in one.latency_ns)
    ),
    Attribution.kind: lambda one: 0 < one.calls <= LONGEST_NS,
    Places.kind: lambda one: (
        0 < one.calls <= LONGEST_NS
        and all(index < len(one.modules) for ticks in one.ticks for index, *_ in ticks)
    ),
    Subject.kind: _is_batch,
    LeftOut.kind: _is_batch,
}
"""Kind → whether numbers of the right type can be what they say."""


def decode_line(line: bytes, kind: str = "") -> Record | None:
    """Return the record of a line; None where it is none. The kind is looked for unless given."""
    try:
        kind = kind or str(_plain_object(line).get("record"))
        if kind not in RECORDS or (kind == Block.kind and compact_block(line) is None):
            return None
        record: Record = _DECODERS[kind](line)
    except NOT_A_RECORD:
        return None
    can_be = _CAN_BE.get(kind)
    return record if can_be is None or can_be(record) else None


def may_be(line: bytes, wanted: Wanted) -> bool:
    """Return whether a line is wanted, as far as its beginning says."""
    begins = KIND(line)
    return begins is None or wanted(line, begins[1].decode())


def _plain_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; raises one of ``NOT_A_RECORD`` where it is none."""
    data = msgspec.json.decode(line)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


# --- a shard ------------------------------------------------------------------------------------


def find(folder: Path) -> list[Path]:
    """Return the shards of a store, by name; a file is a store of one.

    Raises:
        StoreError: there is no store or no shard.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise StoreError(f"no store at {folder}; measure with --store {quoted(folder)} first")
    shards = sorted(p for p in folder.glob(f"*{SUFFIX}") if p.is_file())
    if not shards:
        then = f"measure with --store {quoted(folder)}"
        raise StoreError(f"{folder} holds no results (*.jsonl); {then}")
    return shards


def records(
    shard: Path, faults: list[Fault], wanted: Wanted | None = None
) -> Iterator[tuple[Record, bytes]]:
    """Yield the records of a shard in line order, repeated ones too, each with its bytes.

    ``faults`` gets what is no record; only lines that are ``wanted`` are decoded.

    Raises:
        StoreError: the file cannot be read, is no shard, or holds another version.
    """
    lines = enumerate(chain.from_iterable(chunks(shard)), start=1)
    return decoded(shard, lines, faults, wanted)


def chunks(shard: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a shard, many at a time; of an empty file an empty one.

    Raises:
        StoreError: as ``records`` does.
    """
    number = 0
    try:
        with shard.open("rb", buffering=BUFFER_BYTES) as file:
            while (part := file.read(CHUNK_BYTES)) or not number:
                rest = file.readline(LINE_BYTES)
                found = BytesIO(part + rest).readlines() or [b""]
                if not number:
                    _check_first(shard, found[0])
                number += len(found)
                if len(found[-1]) >= LINE_BYTES:
                    raise StoreError(
                        f"{shard}: line {number} is longer than {LINE_BYTES >> 20} MB; remove that "
                        "line, no session writes such a one"
                    )
                yield found
    except OSError as error:
        raise StoreError(f"cannot read {shard}: {error.strerror}") from error


def decoded(
    shard: Path, lines: Iterable[tuple[int, bytes]], faults: list[Fault], wanted: Wanted | None
) -> Iterator[tuple[Record, bytes]]:
    """Yield the records in some lines of a shard, as ``records`` does."""
    for number, line in lines:
        begins = KIND(line)
        kind = begins[1].decode() if begins else ""
        if kind and wanted is not None and not wanted(line, kind):
            continue
        record = decode_line(line, kind)
        if record is None:
            yield from _separated(shard, number, line, faults, wanted)
        elif kind or wanted is None or wanted(line, record.kind):
            yield record, line


def _check_first(shard: Path, line: bytes) -> None:
    """Raise StoreError unless a shard begins here, even one whose writer was killed at once."""
    parts = _parts(line)
    torn = not line.endswith(b"\n") and all(FIRST.startswith(part) for part in parts)
    if not torn and not any(_is_header(shard, part) for part in [line, *parts]):
        raise StoreError(f"{shard} is not a frameworktax store; name the folder of --store")


def _is_header(shard: Path, line: bytes) -> bool:
    """Return whether a line begins a shard.

    Raises:
        StoreError: of another version.
    """
    try:
        data = _plain_object(line)
    except NOT_A_RECORD:
        return False
    if data.get("schema") != STORE_SCHEMA:
        return False
    if data.get("version") != STORE_VERSION:
        raise StoreError(
            f"{shard} has store version {data.get('version')}, this program reads "
            f"{STORE_VERSION}; use the frameworktax that wrote it"
        )
    return True


def _parts(line: bytes) -> list[bytes]:
    """Cut a line wherever another one may begin in it, even if that is only a torn header."""
    cuts = [0, *(found.start() for found in BEGINS.finditer(line) if found.start()), len(line)]
    parts: list[bytes] = []
    for begin, end in pairwise(cuts):
        tails = []
        while (brace := line.rfind(b"{", begin + 1, end)) > 0:
            if not FIRST.startswith(line[brace:end]):
                break
            tails.append(line[brace:end])
            end = brace
        parts += [line[begin:end], *reversed(tails)]
    return parts


def _separated(
    shard: Path, number: int, line: bytes, faults: list[Fault], wanted: Wanted | None
) -> Iterator[tuple[Record, bytes]]:
    """Yield the records in a line that is none as a whole: none in a header or a blank."""
    if not line:
        faults.append(Fault(shard.name, number, "torn"))
    if not line.strip() or _is_header(shard, line):
        return
    parts = _parts(line)
    rest = []
    for part in parts:
        record = decode_line(part)
        if record is not None:
            if wanted is None or wanted(part, record.kind):
                yield record, part
        elif not _is_header(shard, part):
            rest.append(part)
    if rest:
        ended = rest[-1] is parts[-1] and line.endswith(b"\n")
        faults.append(Fault(shard.name, number, "bad" if ended else "torn"))


def notes(faults: Iterable[Fault]) -> list[Note]:
    """Return faults in words: a note for each torn line, and for the bad ones of each shard."""
    found = []
    bad: dict[str, list[int]] = defaultdict(list)
    for fault in faults:
        if fault.kind == "bad":
            bad[fault.shard].append(fault.line)
        else:
            text = f"{fault.shard}: line {fault.line} is torn and was skipped"
            found.append(Note("torn-line", text))
    for shard, lines in bad.items():
        more = f" and {len(lines) - 1} more are no records and were" if lines[1:] else ""
        text = f"{shard}: line {lines[0]}{more or ' is no record and was'} skipped"
        found.append(Note("bad-line", text))
    return found
