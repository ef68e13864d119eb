"""The timeline of a store: what was measured, in its order, nothing else."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import sample_records as data

import frameworktax as ft
from frameworktax import store
from frameworktax.analysis.document import build
from frameworktax.errors import UsageError
from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    Note,
    Outcome,
    Point,
    Session,
    Subject,
    Workload,
)
from frameworktax.report import timeline

ONE, TWO = "20261120T100000-aaaa", "20261120T110000-bbbb"
POINT = Point(workload=Workload(model="net", batch=4), runtime="eager")


def block(round_, process, latency_ns, **more):
    return Block(
        session=ONE,
        point=POINT.key(),
        process=process,
        round=round_,
        latency_ns=latency_ns,
        pipelined_ns=sum(latency_ns),
        pipelined_calls=len(latency_ns),
        cpu_ns=7,
        **more,
    )


RECORDS = [
    Session(session=ONE, started="then", version="1", command=(), environment=data.ENVIRONMENT),
    Subject(session=ONE, point=POINT, paradigm="eager", setup_ns=5_000),
    Calibration(session=ONE, round=0, latency_ns=(10, 11)),
    block(0, 1, (100, 103)),
    block(0, 0, (98, 1_001)),
    Attribution(
        session=ONE,
        point=POINT.key(),
        process=0,
        method="perf-event",
        calls=3,
        wall_ns=300,
        latency_ns=100,
        samples=({"kernel": 2, "python": 1}, {"kernel": 1}),
    ),
    Calibration(session=ONE, round=1, latency_ns=(12,)),
    block(1, 0, (99,)),
    Outcome(session=ONE, point=POINT.key(), process=0, status="ok", load_ns=4_000),
    Outcome(session=ONE, point=POINT.key(), process=1, status="ok", load_ns=9_000),
]


def slices(records, **options):
    """Return (group, line, name, begin, length) of every slice, times in ns."""
    names, found = {}, []
    for event in timeline.events(records, **options):
        place = event["pid"], event["tid"]
        if event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            names[place] = event["args"]["name"]
        elif event["ph"] == "X":
            times = round(event["ts"] * 1000), round(event["dur"] * 1000)
            found.append((names[event["pid"]], names[place], event["name"], *times))
    return found


def test_blocks_and_calls_stand_end_to_end_in_their_order():
    found = slices(RECORDS)
    before = [s for s in found if s[0].startswith("before the rounds")]
    assert {(s[1], s[3], s[4]) for s in before} == {
        ("eager: net: set-up", 0, 5_000),
        ("eager: net: load, process 0", 0, 4_000),
        ("eager: net: load, process 1", 0, 9_000),
    }
    series = f"eager: net ({ONE})"
    measured = [s for s in found if s not in before and s[2] not in ("call", "round 0", "round 1")]
    assert measured == [
        (f"calibrator ({ONE})", "calibrator", "calibrator", 9_000, 21),
        (series, "process 1", "batch 4", 9_021, 203),
        (series, "process 0", "batch 4", 9_224, 1_099),
        (series, "process 0", "where the time goes, batch 4", 10_323, 300),
        (f"calibrator ({ONE})", "calibrator", "calibrator", 10_623, 12),
        (series, "process 0", "batch 4", 10_635, 99),
    ]
    calls = [(begin, length) for _, _, name, begin, length in found if name == "call"]
    assert calls[2:6] == [(9_021, 100), (9_121, 103), (9_224, 98), (9_322, 1_001)]
    rounds = [(name, begin, length) for _, _, name, begin, length in found if "round " in name]
    assert rounds == [("round 0", 9_000, 1_323), ("round 1", 10_623, 111)]


def test_what_is_known_of_a_slice_stands_beside_it():
    found = {e["name"]: e["args"] for e in timeline.events(RECORDS) if e["ph"] == "X"}
    assert found["where the time goes, batch 4"]["samples"] == {"kernel": 3, "python": 1}
    assert found["batch 4"] == {
        "point": POINT.key(),
        "process": 0,
        "round": 1,
        "cpu_ns": 7,
        "calls": 1,
        "median_ns": 99,
    }


def test_on_a_device_the_pipelined_calls_are_others():
    device = replace(block(0, 0, (100, 101), enqueue_ns=(40, 41)), pipelined_ns=150)
    found = slices([RECORDS[1], device])
    assert [s[2:] for s in found if s[2] != "round 0"][1:] == [
        ("batch 4", 5_000, 201),
        ("call", 5_000, 100),
        ("call", 5_100, 101),
        ("pipelined, batch 4", 5_201, 150),
    ]
    found = [e["args"] for e in timeline.events([device]) if e["name"] == "call"]
    assert found == [{"enqueue_ns": 40}, {"enqueue_ns": 41}]


def test_a_set_up_of_an_earlier_session_was_not_in_this_one():
    reused = replace(RECORDS[1], notes=(Note("set-up-reused", "from then"),))
    assert not [s for s in slices([reused, *RECORDS[2:5]]) if s[2] == "set-up"]


def test_sessions_follow_one_another_in_groups_of_their_own():
    later = [replace(r, session=TWO) for r in RECORDS]
    first, both = slices(RECORDS), slices([*RECORDS, *later])
    assert both[: len(first)] == first
    end = max(begin + length for *_, begin, length in first)
    assert all(s[0].endswith(f"({TWO})") and s[3] >= end for s in both[len(first) :])
    empty = Session(session="x", started="", version="", command=(), environment=data.ENVIRONMENT)
    assert slices([empty, *RECORDS]) == first


def test_the_file_is_json_says_its_axis_and_is_refused_by_explain(tmp_path):
    path = tmp_path / "t.json"
    count = timeline.write(RECORDS, path)
    written = json.loads(path.read_text())
    assert len(written["traceEvents"]) == count == len(list(timeline.events(RECORDS)))
    about = written["otherData"]
    assert (about["schema"], about["calls"]) == ("frameworktax.timeline", "each")
    assert "measured time alone" in about["axis"]
    assert about["sessions"] == {ONE: "then"}
    with pytest.raises(UsageError, match="is a timeline that frameworktax wrote") as refused:
        ft.explain(path)
    assert "\n" not in str(refused.value)


def test_of_very_many_calls_blocks_are_shown_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_CALLS", 7)  # there are 8
    timeline.write(RECORDS, tmp_path / "t.json")
    written = json.loads((tmp_path / "t.json").read_text())
    assert "call" not in {e["name"] for e in written["traceEvents"]}
    assert written["otherData"]["calls"] == "left out: more than 7 (8)"
    whole = [s for s in slices(RECORDS) if s[2] != "call"]
    assert slices(RECORDS, each_call=False) == whole


def test_without_anything_timed_there_is_no_timeline(tmp_path):
    with pytest.raises(UsageError, match="nothing in it was timed"):
        timeline.write(RECORDS[:2], tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()


def test_of_results_the_sessions_behind_them(tmp_path):
    folder = tmp_path / "store"
    for session in (data.SESSION, TWO):
        with store.Writer(folder, session) as writer:
            for record in data.sample_records():
                writer.write(replace(record, session=session))
    run = build(data.sample_records())
    path = ft.Results(run, folder).timeline(tmp_path / "t.json")
    assert list(json.loads(path.read_text())["otherData"]["sessions"]) == [data.SESSION]
