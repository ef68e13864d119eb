"""The store: nothing lost, nothing doubled, and every damage said."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sample_records import to_json

from frameworktax import store
from frameworktax.errors import StoreError
from frameworktax.records import (
    Block,
    Calibration,
    Environment,
    Note,
    Point,
    Session,
    Subject,
    Workload,
)

ENVIRONMENT = Environment(host="h", system="s", python="3", cpu="c", cores=2, affinity=(0, 1))
RECORDS = [
    Session(
        session="s1", started="2026-01-01", version="0", command=("x",), environment=ENVIRONMENT
    ),
    Subject(
        session="s1",
        point=Point(workload=Workload(model="mlp", batch=2, width=0.5), runtime="eager"),
        paradigm="eager",
        parameters=3,
        notes=(Note("a", "b"),),
    ),
    Block(
        session="s1",
        point="p",
        process=0,
        round=0,
        latency_ns=(1, 2),
        pipelined_ns=3,
        pipelined_calls=2,
        cpu_ns=3,
        enqueue_ns=(1, 1),
    ),
    Calibration(session="s1", round=0, latency_ns=(5,)),
]


def fill(folder: Path, session: str = "s1", count: int = len(RECORDS)) -> Path:
    with store.Writer(folder, session) as writer:
        for record in RECORDS[:count]:
            writer.write(record)
    return writer.path


def test_columns_have_the_same_times(tmp_path):
    times = [(1, 2), (3, 2**32 - 1), (2**32, 5, 7), (2**63 - 1, 7)]
    for most in (2, 4):  # with times from 4.3 s on, and without
        blocks = [
            replace(RECORDS[2], round=number, latency_ns=ns, enqueue_ns=None)
            for number, ns in enumerate(times[:most])
        ]
        with store.Writer(tmp_path / f"{most}", "s1") as writer:
            for record in (*RECORDS[:2], *blocks):
                writer.write(record)
        *others, timed = store.read_columns(tmp_path / f"{most}")[0]
        assert others == store.read(tmp_path / f"{most}")[0][:2]
        assert [tuple(timed.samples([row])) for row in range(most)] == times[:most]
        assert timed.latencies[0].itemsize == {2: 4, 4: 8}[most]
        assert timed.calls.tolist() == [len(ns) for ns in times[:most]]
        assert timed.cpu_ns.tolist() == [block.cpu_ns for block in blocks]


def test_a_shard_begins_with_schema_and_version(tmp_path):
    first = fill(tmp_path).read_text().splitlines()[0]
    assert json.loads(first) == {"schema": "frameworktax.store", "version": 1}


@pytest.mark.parametrize("last", range(len(RECORDS)), ids=lambda n: RECORDS[n].kind)
def test_a_torn_last_line_is_skipped_and_said(tmp_path, last):
    """Cut before every byte of the last record, whatever kind it is."""
    path = fill(tmp_path, count=last + 1)
    text = path.read_bytes()
    begin = text.rindex(b"\n", 0, len(text) - 1) + 1
    for at in range(begin, len(text)):
        path.write_bytes(text[:at])
        records, notes = store.read(tmp_path)
        if at == len(text) - 1:  # only the newline is gone: the record is whole
            assert (records, notes) == (RECORDS[: last + 1], [])
        else:
            assert records == RECORDS[:last]
            assert [n.code for n in notes] == (["torn-line"] if at > begin else [])


def test_concatenated_and_copied_shards_double_nothing(tmp_path):
    path = fill(tmp_path)
    assert store.read(tmp_path) == (RECORDS, [])
    (tmp_path / "copy.jsonl").write_bytes(path.read_bytes() * 2)
    assert store.read(tmp_path) == (RECORDS, [])


def test_a_line_of_rubbish_costs_only_itself(tmp_path):
    path = fill(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    lines[2:2] = ["{not json}\n", '{"record": "unheard-of"}\n', "[1]\n", '{"record":"block"}\n']
    lines[6:6] = ["[" * 100_000 + "\n"]
    path.write_text("".join(lines))
    records, notes = store.read(tmp_path)
    assert records == RECORDS
    (note,) = notes
    assert note.code == "bad-line" and "line 3 and 4 more" in note.text


@pytest.mark.parametrize(
    "change",
    [
        {"latency_ns": "12"},
        {"latency_ns": [1.5]},
        {"latency_ns": None},
        {"latency_ns": []},
        {"latency_ns": [5, -1]},
        {"latency_ns": [5, 0]},
        {"pipelined_ns": 0},
        {"latency_ns": [10**400]},
        {"enqueue_ns": [1]},
        {"first_token_ns": [1, 1, 1]},
        {"cpu_ns": -1},
        {"pipelined_calls": -1},
        {"round": -1},
        {"process": 10**10},
        {"process": "0"},
        {"process": True},
        {"session": None},
    ],
)
def test_wrong_types_are_no_record(tmp_path, change):
    path = fill(tmp_path)
    bad = {**json.loads(json.dumps(to_json(RECORDS[2]))), **change}
    path.write_text(path.read_text() + json.dumps(bad) + "\n")
    records, notes = store.read(tmp_path)
    assert records == RECORDS
    assert [n.code for n in notes] == ["bad-line"]


@pytest.mark.parametrize("record", ["attribution", "calibration"])
def test_what_would_be_divided_by_zero_is_no_record(tmp_path, record):
    path = fill(tmp_path)
    found = {"record": record, "session": "s1", "point": "p", "process": 0, "round": 7}
    found |= {"method": "perf-event", "calls": 1, "wall_ns": 1, "latency_ns": 1}
    found |= {"latency_ns": [1]} if record == "calibration" else {}
    zero = {"calls": 0, "latency_ns": [0]} if record == "calibration" else {"calls": 0}
    path.write_text(path.read_text() + json.dumps(found) + "\n" + json.dumps(found | zero) + "\n")
    records, notes = store.read(tmp_path)
    assert [one.kind for one in records[len(RECORDS) :]] == [record]
    assert [n.code for n in notes] == ["bad-line"]


def test_a_batch_of_no_samples_is_no_point(tmp_path):
    path = fill(tmp_path)
    (subject,) = (to_json(one) for one in RECORDS if isinstance(one, Subject))
    for batch in (0, -1):
        changed = json.loads(json.dumps(subject))
        changed["point"]["workload"]["batch"] = batch
        path.write_text(path.read_text() + json.dumps(changed) + "\n")
    records, notes = store.read(tmp_path)
    assert records == RECORDS
    assert [n.code for n in notes] == ["bad-line"]


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    path = fill(tmp_path)
    monkeypatch.setattr(store.shards, "LINE_BYTES", 100_000)
    path.write_text(path.read_text() + "9" * 99_999 + "\n")
    with pytest.raises(StoreError, match=r"line 6 is longer .* remove that line"):
        store.read(tmp_path)
    path.write_text(path.read_text().replace("9" * 99_999, "9" * 99_998))
    assert store.read(tmp_path)[0] == RECORDS


def test_a_field_of_a_later_writer_is_left_out(tmp_path):
    path = fill(tmp_path)
    more = {**to_json(Calibration(session="s1", round=1, latency_ns=(6,))), "new": 1}
    path.write_text(path.read_text() + json.dumps(more) + "\n")
    assert store.read(tmp_path)[0][-1] == Calibration(session="s1", round=1, latency_ns=(6,))


LATER = '{"schema": "frameworktax.store", "version": 99}\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [(LATER, "version 99"), ("not a store", "not a frameworktax"),
     ('{"schema": "else"}', "not a frameworktax"), ("\x00\xff", "not a frameworktax")],
)  # fmt: skip
def test_another_file_or_version_is_refused(tmp_path, content, said):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(StoreError, match=said):
        store.read(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 10, 43])
def test_a_shard_whose_writer_was_killed_at_once_costs_nothing_else(tmp_path, size):
    whole = fill(tmp_path)
    (tmp_path / "killed.jsonl").write_bytes(whole.read_bytes()[:size])
    records, notes = store.read(tmp_path)
    assert records == RECORDS
    assert [n.code for n in notes] == (["torn-line"] if size < 43 else [])


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_torn_shard_with_another_appended_loses_the_torn_record_alone(tmp_path, cut):
    torn = fill(tmp_path).read_bytes()[:-cut]
    other = Calibration(session="s2", round=0, latency_ns=(7,))
    with store.Writer(tmp_path, "s2") as writer:
        writer.write(other)
    (tmp_path / "s1.jsonl").write_bytes(torn + writer.path.read_bytes())
    writer.path.unlink()
    whole = [r for r in RECORDS if json.dumps(to_json(r), separators=(",", ":")) in torn.decode()]
    records, notes = store.read(tmp_path)
    assert records == [*whole, other]
    lost = torn.rpartition(b"\n")[2] and len(whole) == torn.count(b"\n") - 1
    assert [n.code for n in notes] == (["torn-line"] if lost else [])


def test_an_appended_shard_of_another_version_is_refused(tmp_path):
    path = fill(tmp_path)
    path.write_text(path.read_text() + LATER)
    with pytest.raises(StoreError, match="version 99"):
        store.read(tmp_path)


def test_no_store_and_empty_store_say_what_to_do(tmp_path):
    with pytest.raises(StoreError, match="no store at"):
        store.read(tmp_path / "none")
    with pytest.raises(StoreError, match="holds no results"):
        store.read(tmp_path)


def test_a_session_never_writes_over_another(tmp_path):
    fill(tmp_path)
    with pytest.raises(StoreError):
        store.Writer(tmp_path, "s1")


def test_an_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="another --store"):
        store.Writer(tmp_path / "file", "s")


def test_nan_is_never_written(tmp_path):
    with store.Writer(tmp_path, "s") as writer, pytest.raises(ValueError):
        writer.write(Calibration(session="s", round=1, latency_ns=(float("nan"),)))


def test_session_ids_differ():
    assert store.new_session_id() != store.new_session_id()


def test_sessions_of_one_second_sort_as_they_were_begun(tmp_path):
    """The newest session of a point is the one that counts: a retry comes after what it retries."""
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    found = []
    for number in range(100):
        session = store.new_session_id(tmp_path, now=now + timedelta(milliseconds=9 * number))
        store.Writer(tmp_path, session).close()
        found.append(session)
    assert found == sorted(found) and len(set(found)) == 100
    assert found[-1].startswith(("20261120T120000-", "20261120T120001-", "20261120T120002-"))
    (tmp_path / "20261120T120005-of-another.jsonl").touch()
    later = store.new_session_id(tmp_path, now=now + timedelta(seconds=5))
    assert later.startswith("20261120T120006-")


def test_no_session_follows_the_last_second(tmp_path):
    (tmp_path / "99991231T235959-of-another.jsonl").touch()
    with pytest.raises(StoreError, match="99991231T235959"):
        store.new_session_id(tmp_path)


def test_a_key_is_the_content():
    point = Point(workload=Workload(model="mlp"), runtime="eager")
    assert point.key() == Point(workload=Workload(model="mlp"), runtime="eager").key()
    assert point.key() != Point(workload=Workload(model="mlp", batch=2), runtime="eager").key()
    assert point.key() != Point(workload=Workload(model="mlp"), runtime="eager", threads=2).key()


def test_keys_are_those_of_the_first_stores():
    """As computed before there was ragged input or generating: old blocks find their points."""
    plain = Workload(model="bert-tiny", batch=4, length=32)
    own = Workload(model="m.py:f", batch=1, width=0.5, batch_dim=1, precision="bfloat16", twin=True)
    assert Point(workload=plain, runtime="eager").key() == "bb7766553e30560f"
    elsewhere = Point(workload=own, runtime="onnxruntime", platform="cuda:0", threads=2)
    assert elsewhere.key() == "07b76ef4c607b5af"
    ragged = Workload(model="bert-tiny", batch=4, length=32, length_mean=20.0)
    assert Point(workload=ragged, runtime="eager").key() != "bb7766553e30560f"
