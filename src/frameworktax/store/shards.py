"""Reading shards line by line: whole records, and what is wrong with the rest.

A shard may be torn at its end (its writer was killed), a concatenation of shards, or both; where a
torn line and the next shard's header run into one line, both sides are told apart again.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from frameworktax.errors import StoreError
from frameworktax.records import RECORDS, STORE_SCHEMA, STORE_VERSION, Note, Record
from frameworktax.store.decode import DECODERS, NOT_A_RECORD, Decoder, plain_object
from frameworktax.store.write import HEADER, SUFFIX

KIND = re.compile(rb'\{"record": ?"([a-z-]+)"').match
"""How every writer begins a record; a line that begins otherwise is parsed to find its kind."""
BEGINS = re.compile(rb'\{"(?:record|schema)": ?"')
"""Where a line may begin inside another one. Quotes inside a string are escaped: none match."""
FIRST = json.dumps(HEADER, separators=(",", ":")).encode()
UNWANTED = object()
"""What a decoder returns for a line that is a record and not asked for."""
BUFFER_BYTES = 1_000_000
SHOWN = 5
"""Bad lines of one shard that get a note each; the rest are counted."""


Wanted = Callable[[bytes, str], bool]
"""Asked with a line and its kind before it is parsed; faults of a refused one are not told."""


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


def find(folder: Path) -> list[Path]:
    """Return the shards of a store, by name; a file is a store of one.

    Raises:
        StoreError: there is no store or no shard.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise StoreError(f"no store at {folder}; measure with --store {folder} first")
    shards = sorted(p for p in folder.glob(f"*{SUFFIX}") if p.is_file())
    if not shards:
        raise StoreError(f"{folder} holds no results (*.jsonl); measure with --store {folder}")
    return shards


def records(
    shard: Path, faults: list[Fault], wanted: Wanted | None = None
) -> Iterator[tuple[Record, bytes]]:
    """Yield the records of a shard in line order, repeated ones too, each with its bytes.

    Args:
        shard: the file.
        faults: gets what is no record.
        wanted: if given, only lines that it wants are parsed.

    Raises:
        StoreError: the file cannot be read, is no shard, or holds another version.
    """
    return scan(shard, faults, wanted, DECODERS)


def scan(
    shard: Path, faults: list[Fault], wanted: Wanted | None, decoders: Mapping[str, Decoder]
) -> Iterator[tuple[Any, bytes]]:
    """Yield what decoders, by kind, make of the lines; else as ``records``."""
    try:
        with shard.open("rb", buffering=BUFFER_BYTES) as file:
            first = file.readline()
            if not first:
                faults.append(Fault(shard.name, 1, "torn"))
            _check_first(shard, first)
            yield from _apart(shard, 1, first, faults, wanted, decoders)
            for number, line in enumerate(file, start=2):
                begins = KIND(line)
                if begins is not None and (kind := begins[1].decode()) in decoders:
                    if wanted is not None and not wanted(line, kind):
                        continue
                    try:
                        record = decoders[kind](line)
                    except NOT_A_RECORD:
                        pass
                    else:
                        if record is not UNWANTED:
                            yield record, line
                        continue
                yield from _apart(shard, number, line, faults, wanted, decoders)
    except OSError as error:
        raise StoreError(f"cannot read {shard}: {error.strerror}") from error


def check(shard: Path) -> None:
    """Raise StoreError unless a file begins as a shard of this version."""
    try:
        with shard.open("rb") as file:
            _check_first(shard, file.readline())
    except OSError as error:
        raise StoreError(f"cannot read {shard}: {error.strerror}") from error


def one(line: bytes) -> Record | None:
    """Return the record of a line, None where it is none."""
    begins = KIND(line)
    decoder = DECODERS.get(begins[1].decode()) if begins else None
    found: Record | None
    try:
        found = decoder(line) if decoder else _any_form(line, None, DECODERS)
    except NOT_A_RECORD:
        return None
    return found


def _check_first(shard: Path, line: bytes) -> None:
    """Raise StoreError unless a shard begins here, be it that its writer was killed at once."""
    parts = [line, *_parts(line)]
    torn = not line.endswith(b"\n") and all(FIRST.startswith(part) for part in _parts(line))
    if not torn and not any(_is_header(shard, part) for part in parts):
        raise StoreError(f"{shard} is not a frameworktax store; name the folder of --store")


def _is_header(shard: Path, line: bytes) -> bool:
    """Return whether a line begins a shard.

    Raises:
        StoreError: of another version.
    """
    try:
        data = plain_object(line)
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


def _any_form(line: bytes, wanted: Wanted | None, decoders: Mapping[str, Decoder]) -> Any:
    """Decode a record however it begins: None where it is none, ``UNWANTED`` where not wanted."""
    try:
        kind = str(plain_object(line).get("record"))
        if kind not in RECORDS:
            return None
        if wanted is not None and not wanted(line, kind):
            return UNWANTED
        return decoders[kind](line)
    except NOT_A_RECORD:
        return None


def _parts(line: bytes) -> list[bytes]:
    """Cut a line wherever another one may begin in it, be it no more than a torn header."""
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


def _apart(
    shard: Path,
    number: int,
    line: bytes,
    faults: list[Fault],
    wanted: Wanted | None,
    decoders: Mapping[str, Decoder],
) -> Iterator[tuple[Any, bytes]]:
    """Yield what is whole in a line that is no plain record: nothing in a header or a blank."""
    if not line.strip() or _is_header(shard, line):
        return
    found = _any_form(line, wanted, decoders)
    parts = [line] if found is not None else _parts(line)
    rest = []
    for part in parts:
        record = found if found is not None else _any_form(part, wanted, decoders)
        if record is UNWANTED:
            continue
        if record is not None:
            yield record, part
        elif not _is_header(shard, part):
            rest.append(part)
    if rest:
        ended = rest[-1] is parts[-1] and line.endswith(b"\n")
        faults.append(Fault(shard.name, number, "bad" if ended else "torn"))


def notes(faults: Iterable[Fault]) -> list[Note]:
    """Return faults in words: one note each, many bad lines of one shard counted."""
    found = []
    bad: dict[str, int] = defaultdict(int)
    for fault in faults:
        if fault.kind == "torn":
            text = f"{fault.shard}: line {fault.line} is torn and was skipped"
            found.append(Note("torn-line", text))
            continue
        bad[fault.shard] += 1
        if bad[fault.shard] <= SHOWN:
            text = f"{fault.shard}: line {fault.line} is no record and was skipped"
            found.append(Note("bad-line", text))
    for shard, count in bad.items():
        if count > SHOWN:
            text = f"{shard}: {count - SHOWN} more lines are no records and were skipped"
            found.append(Note("bad-lines", text))
    return found
