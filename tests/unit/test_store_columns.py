"""A large store as columns: the same numbers as a report."""

import importlib
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import sample_records as data
from hypothesis import given
from hypothesis import strategies as st
from sample_records import to_json

from frameworktax import store
from frameworktax.analysis import grouping as gathered
from frameworktax.analysis.summary import summarise, wanted
from frameworktax.errors import StoreError
from frameworktax.records import Block, Outcome, Point, Session, Subject, Workload
from frameworktax.stats import process_interval, ratio_interval
from frameworktax.store import shards
from frameworktax.store.columns import Batch, Blocks

reading = importlib.import_module("frameworktax.store.read")  # a function hides it
AT = Point(workload=Workload(model="m"), runtime="eager")


def fill(folder: Path, session: str, records) -> None:
    with store.Writer(folder, session) as writer:
        for record in records:
            writer.write(record)


def blocks(session: str, medians, point: Point = AT, process: int = 0) -> list[Block]:
    return [
        Block(
            session=session,
            point=point.key(),
            process=process,
            round=i,
            latency_ns=(ns, ns, ns + 9),
            pipelined_ns=3 * ns,
            pipelined_calls=3,
            cpu_ns=3 * ns,
        )
        for i, ns in enumerate(medians)
    ]


def subject(session: str, point: Point = AT) -> Subject:
    return Subject(session=session, point=point, paradigm="eager")


def test_the_numbers_are_those_of_a_report(tmp_path):
    records = data.sample_records()
    half = len(records) // 2
    for name, part in (("a", records[:half]), ("b", records[half:]), ("c", records[: half // 2])):
        fill(tmp_path, name, part)
    expected, _ = gathered.gather(records)
    expected = [p for p in expected if p.measured and not p.point.workload.twin]
    found = summarise(store.read_columns(tmp_path)[0])
    assert [line.point for line in found] == [p.point for p in expected]
    for line, one in zip(found, expected, strict=True):
        status, reason = gathered.status_of(one)
        assert (line.status, line.reason, line.blocks) == (status, reason, len(one.blocks))
        own = [r for r in records if r.kind == "block" and r.point == one.point.key()]
        assert line.calls == sum(len(block.latency_ns) for block in own)
        assert line.processes == len(one.by_process)
        latency = one.latency
        if latency is None:
            assert line.latency_ns is None
            continue
        for name in ("value", "low", "high"):
            told = getattr(line.latency_ns, name)
            assert told == pytest.approx(getattr(latency, name), rel=1e-12)
        assert (line.latency_ns.method, line.latency_ns.n) == (latency.method, latency.n)


def test_a_point_of_several_sessions_is_told_from_the_newest_that_timed_it(tmp_path):
    environment = data.ENVIRONMENT
    for hour, medians in ((10, (100, 100)), (11, (200, 204)), (12, ())):
        name = f"20261120T{hour}0000-aa"
        opening = Session(
            session=name, started="", version="0", command=(), environment=environment
        )
        fill(tmp_path, name, [opening, subject(name), *blocks(name, medians)])
    (line,) = summarise(store.read_columns(tmp_path)[0])
    assert (line.session, line.sessions) == ("20261120T110000-aa", 2)
    assert (line.blocks, line.calls, line.processes) == (2, 6, 1)
    assert (line.latency_ns.value, line.latency_ns.method) == (202, "block-medians-of-one-process")


def test_one_block_has_no_interval_and_a_failure_has_a_reason(tmp_path):
    other = Point(workload=Workload(model="n"), runtime="eager")
    late = Point(workload=Workload(model="late"), runtime="eager")
    fill(
        tmp_path,
        "s",
        [
            *(subject("s", p) for p in (AT, other, late)),
            *blocks("s", [100]),
            Outcome(session="s", point=other.key(), process=0, status="crashed", reason="SIGSEGV"),
            Outcome(session="s", point=late.key(), process=1, status="timeout", reason="slow"),
        ],
    )
    timed, failed = summarise(store.read_columns(tmp_path)[0])
    assert (timed.status, timed.latency_ns) == ("ok", None)
    assert (failed.point, failed.status, failed.reason) == (other, "crashed", "SIGSEGV")


def test_a_later_crash_is_told_beside_what_was_measured(tmp_path):
    first, second = "20260101T000000-a", "20260102T000000-b"
    fill(tmp_path, first, [subject(first), *blocks(first, [100, 102, 101, 101, 101])])
    crash = Outcome(session=second, point=AT.key(), process=0, status="crashed", reason="SIGSEGV")
    fill(tmp_path, second, [subject(second), crash])
    (line,) = summarise(store.read_columns(tmp_path)[0])
    assert (line.session, line.status, line.latency_ns.value) == (first, "ok", 101)
    assert second in line.reason and "crashed: SIGSEGV" in line.reason


def test_a_session_that_was_cut_off_does_not_hide_a_whole_one(tmp_path):
    def newest():
        return summarise(store.read_columns(tmp_path, wanted=wanted)[0])[0]

    first, second, third = "20260101T000000-a", "20260102T000000-b", "20260103T000000-c"
    fill(tmp_path, first, [subject(first), *blocks(first, [100] * 5)])
    fill(tmp_path, second, [subject(second), *blocks(second, [900])])
    assert (newest().session, newest().sessions, newest().blocks) == (first, 2, 5)
    ended = [Outcome(session=third, point=AT.key(), process=p, status="ok") for p in range(3)]
    fill(tmp_path, third, [subject(third), *blocks(third, [300, 304]), *ended])
    assert (newest().session, newest().latency_ns.value) == (third, 302)


def test_an_empty_store_has_no_lines(tmp_path):
    fill(tmp_path, "s", [])
    assert summarise(store.read_columns(tmp_path)[0]) == []


def test_faults_are_noted_and_other_versions_refused(tmp_path):
    for name in ("a", "b"):
        fill(tmp_path, name, [subject(name), *blocks(name, [1, 2])])
    torn = tmp_path / "a.jsonl"
    torn.write_bytes(torn.read_bytes()[:-5])
    (*_, timed), notes = store.read_columns(tmp_path)
    assert [n.code for n in notes] == ["torn-line"]
    assert timed.calls.tolist() == [3, 3, 3]
    torn.write_text('{"schema": "frameworktax.store", "version": 99}\n')
    with pytest.raises(StoreError, match="version 99"):
        store.read_columns(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"latency_ns": []}, {"latency_ns": [-1]}, {"process": -1}, {"cpu_ns": -1}, {"round": 2**31}],
)
def test_what_a_reader_refuses_is_in_no_column(tmp_path, change):
    import json

    good = blocks("s", [1])[0]
    fill(tmp_path, "s", [good])
    path = tmp_path / "s.jsonl"
    path.write_text(path.read_text() + json.dumps({**to_json(good), "round": 1, **change}) + "\n")
    assert store.read(tmp_path)[0] == [good]
    (*_, timed), notes = store.read_columns(tmp_path)
    assert timed.calls.tolist() == [3]
    assert [n.code for n in notes] == ["bad-line"]


TEXTS = (
    *("[5]", "[7,8]", "[ 1, 2 ]", "[4294967295]", "[4294967296]", "[9223372036854775806]"),
    *("[9223372036854775807]", "[9223372036854775808]", "[0]", "[3,0,4]", "[-1]", "[]", "[[1]]"),
    *("[1.5]", "[1e3]", "[0.5]", '["1"]', '"5"', "5", "null", '{"a":[1]}', "[null]", "[true]"),
)


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4))
def test_many_lines_are_decoded_as_each_by_itself(texts):
    lines = [
        b'{"record":"block","session":"s","point":"p","process":0,"round":%d,"latency_ns":%b,'
        b'"pipelined_ns":1,"pipelined_calls":1,"cpu_ns":1}\n' % (i, text.encode())
        for i, text in enumerate(texts)
    ]
    alone = [shards.compact_block(line) for line in lines]
    found = Batch.read(lines)
    if None in alone:
        assert found is None
    elif found is None:  # the longest time there may be is decoded by itself
        assert any(2**63 - 1 in block.latency_ns for block in alone)
    else:
        expected = Batch.of(alone)
        assert (found.calls, found.latency_ns.tolist()) == (
            expected.calls,
            expected.latency_ns.tolist(),
        )
        assert [block.round for block in found.blocks] == [block.round for block in alone]


ROUNDS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 4)), st.integers(1, 2**40), max_size=12
)
"""Process and round → the median of a block, ns."""


@given(st.lists(ROUNDS, min_size=1, max_size=5))
def test_all_points_at_once_have_the_intervals_of_each_by_itself(of_points):
    points = [replace(AT, workload=Workload(model=f"m{i}")) for i in range(len(of_points))]
    made = [
        replace(blocks("s", [ns], point, process)[0], round=round_)
        for point, rounds in zip(points, of_points, strict=True)
        for (process, round_), ns in rounds.items()
    ]
    random.Random(1).shuffle(made)
    half = len(made) // 2
    timed = Blocks([Batch.of(some) for some in (made[:half], made[half:], made)])
    rows = [timed.samples([row]) for row in range(len(made))]
    assert rows == [[ns, ns, ns + 9] for ns in map(int, timed.median_ns)]
    assert len(timed.calls) == len(made)
    numbers = {
        number: i for i, p in enumerate(points) for number in [timed.groups.get(("s", p.key()))]
    }
    numbers.pop(None, None)
    for number, i in numbers.items():
        by_process = defaultdict(list)
        for (process, _), ns in sorted(of_points[i].items()):
            by_process[process].append(ns)
        same(timed.latency[number], process_interval(list(by_process.values())))
        assert timed.levels[number] == {p: (median(own),) * 2 for p, own in by_process.items()}
        assert timed.times[number] == (sum(3 * ns + 9 for ns in of_points[i].values()),
                                       sum(3 * ns for ns in of_points[i].values()))  # fmt: skip
    pairs = [(a, b) for a in numbers for b in numbers]
    if pairs:
        ratios = timed.ratios(*zip(*pairs, strict=True))
        for (a, b), ratio in zip(pairs, ratios, strict=True):
            same(ratio, ratio_interval(of_points[numbers[a]], of_points[numbers[b]]))


def same(found, expected):
    assert (found is None) == (expected is None)
    if found is not None:
        assert (found.n, found.method) == (expected.n, expected.method)
        width = expected.high - expected.low
        for name in ("value", "low", "high"):
            close = pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-9 * width)
            assert getattr(found, name) == close
        assert (found.low == found.high) == (width == 0)


def test_columns_of_a_torn_store_hold_what_its_records_do(tmp_path):
    records = data.sample_records()
    parts = [records[i::3] for i in range(3)]
    for number, part in enumerate(parts):
        fill(tmp_path, f"s{number}", [*part, *parts[number - 1][:9]])
    torn = tmp_path / "s1.jsonl"
    lines = torn.read_bytes().splitlines(keepends=True)
    block, after = [i for i, line in enumerate(lines) if b'"record":"block"' in line][20:22]
    outcome = next(line for line in lines if b'"outcome"' in line)
    lines[block] = lines[block][:90] + outcome  # runs into another record
    lines[after] = lines[after][:90] + lines[after]  # and a block into itself
    torn.write_bytes(b"".join([*lines, b"{}\n"])[:-9])
    whole, notes = store.read(tmp_path)
    timed = [record for record in whole if isinstance(record, Block)]
    (*others, found), same_notes = store.read_columns(tmp_path)
    assert [note.code for note in notes] == ["torn-line"] * 3
    assert same_notes == notes
    assert others == [record for record in whole if record not in timed]
    expected = Blocks([Batch.of(timed)])
    assert found.groups.keys() == expected.groups.keys()
    for key, group in found.groups.items():
        rows, own = found.rows[group], expected.rows[expected.groups[key]]
        assert found.samples(rows) == expected.samples(own)
        for name in ("process", "round", "calls", "median_ns", "sum_ns", "cpu_ns"):
            column, known = getattr(found, name), getattr(expected, name)
            assert np.array_equal(column[rows], known[own])
