"""Whatever befalls shards, each complete record is read exactly once and none is invented."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import to_json

from frameworktax import store
from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    LeftOut,
    Note,
    Outcome,
    Parity,
    Point,
    Subject,
    Workload,
    record_id,
)

HEADER = json.dumps(store.HEADER, separators=(",", ":"))
NASTY = st.text(max_size=12) | st.sampled_from(
    [HEADER, '{"record":"block"', "\n", "\u2028", '"', "\\", "{}", "\x00"]
)
TIMES = st.lists(st.integers(1, 2**53), min_size=1, max_size=4).map(tuple)
COUNTS = st.integers(0, 3)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def points():
    return st.builds(
        Point,
        workload=st.builds(Workload, model=NASTY, batch=st.integers(1, 8), width=FLOATS),
        runtime=NASTY,
    )


def records(session: str):
    own = st.just(session)
    return st.one_of(
        st.builds(
            Block,
            session=own,
            point=NASTY,
            process=COUNTS,
            round=COUNTS,
            latency_ns=TIMES,
            pipelined_ns=st.integers(1, 3),
            pipelined_calls=COUNTS,
            cpu_ns=COUNTS,
            enqueue_ns=st.none() | TIMES,
        ).map(lambda b: b if b.enqueue_ns is None else replace(b, enqueue_ns=b.latency_ns)),
        st.builds(Calibration, session=own, round=COUNTS, latency_ns=TIMES),
        st.builds(
            Subject,
            session=own,
            point=points(),
            paradigm=NASTY,
            notes=st.lists(st.builds(Note, NASTY, NASTY), max_size=2).map(tuple),
        ),
        st.builds(
            Outcome, session=own, point=NASTY, process=COUNTS, status=st.just("ok"), reason=NASTY
        ),
        st.builds(
            Attribution,
            session=own,
            point=NASTY,
            process=COUNTS,
            method=NASTY,
            calls=st.integers(1, 3),
            wall_ns=COUNTS,
            latency_ns=COUNTS,
            samples=st.lists(st.dictionaries(NASTY, COUNTS, max_size=2), max_size=2).map(tuple),
            top=st.lists(st.tuples(NASTY, NASTY, NASTY, COUNTS), max_size=2).map(tuple),
        ),
        st.builds(
            Parity,
            session=own,
            point=NASTY,
            reference=NASTY,
            max_abs_difference=st.none() | FLOATS,
            max_relative_difference=st.none(),
            tolerance=FLOATS,
            within_tolerance=st.none() | st.booleans(),
        ),
        st.builds(LeftOut, session=own, point=points(), reason=NASTY),
    )


def shard(session: str, written: list) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with store.Writer(Path(folder), session) as writer:
            for record in written:
                writer.write(record)
        return writer.path.read_bytes()


@st.composite
def stores(draw):
    """Draw shards as (records, bytes) of a few sessions, no two records alike in one of them."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        session = f"s{number}"
        written = draw(st.lists(records(session), max_size=6, unique_by=record_id))
        found.append((written, shard(session, written)))
    return found


def complete(written: list, text: bytes) -> list:
    """Return the records whose whole line is in what is left of a shard."""
    pieces = text.split(b"\n")[1:]  # the header's
    return [
        record
        for record, piece in zip(written, pieces, strict=False)
        if piece == json.dumps(to_json(record), separators=(",", ":"), ensure_ascii=False).encode()
    ]


def read_back(*files: bytes) -> list:
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(files):
            (Path(folder) / f"{number}.jsonl").write_bytes(text)
        return store.read(Path(folder))[0]


def same(found: list, expected: list) -> bool:
    """Return whether two lists hold the same records, in any order."""
    left = list(found)
    for record in expected:
        if record not in left:
            return False
        left.remove(record)
    return not left


@given(stores())
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(found):
    assert read_back(*(text for _, text in found)) == [r for written, _ in found for r in written]


@given(stores(), st.data())
@settings(max_examples=40, deadline=None)
def test_truncated_copied_and_concatenated_shards(found, data):
    """Every shard is cut anywhere; then all of them, some twice, are appended to few files."""
    cut, expected = [], []
    for written, text in found:
        left = text[: data.draw(st.integers(0, len(text)))]
        cut.append(left)
        expected += complete(written, left)
    order = data.draw(st.lists(st.sampled_from(cut), max_size=4))
    files = [b"", b""]
    for text in [*cut, *order]:
        files[data.draw(st.integers(0, 1))] += text
    assert same(read_back(*files), expected)


@given(stores(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_lines_of_several_writers_in_any_order(found, random):
    """Two writers on one file, each line whole: as file systems give it for appended lines."""
    queues = [text.splitlines(keepends=True) for _, text in found]
    lines = []
    while any(queues):
        queue = random.choice([q for q in queues if q])
        lines.append(queue.pop(0))
    assert same(read_back(b"".join(lines)), [r for written, _ in found for r in written])


@given(stores(), st.binary(max_size=30), st.data())
@settings(max_examples=30, deadline=None)
def test_a_line_of_anything_else_costs_nothing(found, rubbish, data):
    written, text = found[0]
    lines = text.splitlines(keepends=True)
    at = data.draw(st.integers(1, len(lines)))
    foreign = b"".join(b"~" + part + b"\n" for part in rubbish.split(b"\n"))
    assert read_back(b"".join([*lines[:at], foreign, *lines[at:]])) == written
