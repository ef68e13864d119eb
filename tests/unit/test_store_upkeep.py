"""Checking stores and reading parts of them; what damages them."""

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sample_records as data

from frameworktax import store
from frameworktax.errors import StoreError, UsageError
from frameworktax.records import (
    Block,
    Calibration,
    LeftOut,
    Outcome,
    Point,
    Session,
    Subject,
    Workload,
)
from frameworktax.store import shards
from frameworktax.store.read import condition
from frameworktax.store.upkeep import check

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
FAST = Point(workload=Workload(model="fast"), runtime="eager")
SLOW = Point(workload=Workload(model="slow", batch=4), runtime="onnxruntime")


def name(hour: int) -> str:
    return f"20261120T{hour:02}0000-aa"


def session(hour: int, points=(FAST, SLOW)) -> list:
    at = name(hour)
    found = [
        Session(
            session=at,
            started=f"2026-11-20T{hour:02}:00:00+00:00",
            version="0",
            command=(),
            environment=data.ENVIRONMENT,
        ),
        Calibration(session=at, round=0, latency_ns=(5,)),
    ]
    for point in points:
        found.append(Subject(session=at, point=point, paradigm="eager"))
        found += [
            Block(
                session=at,
                point=point.key(),
                process=0,
                round=i,
                latency_ns=(hour, hour + 1, hour + 5),
                pipelined_ns=3,
                pipelined_calls=3,
                cpu_ns=3,
            )
            for i in range(2)
        ]
    return found


def fill(folder: Path, hour: int, records=None) -> Path:
    with store.Writer(folder, name(hour)) as writer:
        for record in session(hour) if records is None else records:
            writer.write(record)
    return writer.path


# --- writing: what goes wrong ------------------------------------------------------------------


class FullDisk:
    """A file that takes ``room`` bytes more and then refuses, as a full disk does."""

    def __init__(self, file, room: int, *, truncates: bool = True):
        self._file, self.room, self._truncates = file, room, truncates

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(data[: self.room])
        self.room -= taken
        return taken

    def truncate(self, size):
        if not self._truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.truncate(size)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("truncates", [True, False])
@pytest.mark.parametrize("room", [0, 1, 60])
def test_a_full_disk_is_one_line_and_costs_the_refused_record_alone(tmp_path, room, truncates):
    first, second, third = session(10)[1:4]
    with store.Writer(tmp_path, name(10)) as writer:
        writer.write(first)
        writer._file = FullDisk(writer._file, room, truncates=truncates)
        with pytest.raises(StoreError, match="No space left on device; "):
            writer.write(second)
        writer._file.room = 10_000  # somebody made room
        writer.write(third)
    records, notes = store.read(tmp_path)
    assert records == [first, third]
    assert [n.code for n in notes] == (["bad-line"] if room and not truncates else [])
    kept = shards.records(writer.path, [], lambda line, kind: kind == third.kind)
    assert third in [record for record, _ in kept]


def test_a_short_write_is_carried_on(tmp_path):
    class Slow(FullDisk):
        def write(self, data):
            return self._file.write(data[:7])

    record = session(10)[3]
    with store.Writer(tmp_path, name(10)) as writer:
        writer._file = Slow(writer._file, 0)
        writer.write(record)
    assert store.read(tmp_path) == ([record], [])


def test_each_record_is_on_disk_when_write_returns(tmp_path):
    with store.Writer(tmp_path, name(10)) as writer:
        for count, record in enumerate(session(10), start=1):
            writer.write(record)
            assert len(store.read(tmp_path)[0]) == count


def test_a_read_only_store_is_one_line(tmp_path, monkeypatch):
    fill(tmp_path, 10)

    def refuse(*args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StoreError, match=r"Read-only file system; .*--store"):
        store.Writer(tmp_path, name(11))


@pytest.mark.parametrize("bad", ["../x", "a/b", "", ".hidden", "/etc/x", "x\n", "a" * 300])
def test_a_session_from_elsewhere_names_no_path(tmp_path, bad):
    with pytest.raises(StoreError, match="cannot name a shard"):
        store.Writer(tmp_path / "s", bad)
    assert not (tmp_path / "s").exists()


def test_two_writers_share_a_store(tmp_path):
    with store.Writer(tmp_path, "a") as one, store.Writer(tmp_path, "b") as other:
        for i in range(5):
            for writer, session in ((one, "a"), (other, "b")):
                writer.write(Calibration(session=session, round=i, latency_ns=(i + 1,)))
    records, notes = store.read(tmp_path)
    assert sorted((r.session, r.round) for r in records) == [(s, i) for s in "ab" for i in range(5)]
    assert notes == []


def test_a_clock_set_back_changes_no_order(tmp_path):
    fill(tmp_path, 10)
    later = store.new_session_id(tmp_path, now=NOW - timedelta(hours=5))
    assert later.startswith("20261120T100001-")
    assert store.new_session_id(tmp_path, now=NOW).startswith("20261120T120000-")
    opening = session(10)[0]
    with store.Writer(tmp_path, later) as writer:
        writer.write(
            Session(
                session=later,
                started="2026-11-20T07:00:00+00:00",
                version="0",
                command=(),
                environment=opening.environment,
            )
        )
    _, notes = store.read(tmp_path)
    assert [n.code for n in notes] == ["clock-jump"]
    assert "10801 s behind" in notes[0].text


# --- a part of a store ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "models"),
    [
        (["model=fast"], {"fast"}),
        (["model=f*,s*"], {"fast", "slow"}),
        (["batch=4"], {"slow"}),
        (["batch=2..8"], {"slow"}),
        (["batch=1..8", "runtime=eager"], {"fast"}),
        (["width=1"], {"fast", "slow"}),
        (["length=none", "channels_last=false"], {"fast", "slow"}),
        (["length=128"], set()),
        (["batch=*", "length=*", "channels_last=*"], {"fast", "slow"}),
        (["batch=[2-9]"], {"slow"}),
        (["model=*.py:*"], set()),
    ],
)
def test_where(tmp_path, conditions, models):
    fill(tmp_path, 10)
    records, notes = store.read(tmp_path, condition(conditions))
    kept = {FAST.key(): "fast", SLOW.key(): "slow"}
    assert {r.point.workload.model for r in records if isinstance(r, Subject)} == models
    assert {kept[r.point] for r in records if isinstance(r, Block)} == models
    assert sum(isinstance(r, Block) for r in records) == 2 * len(models)
    assert {r.kind for r in records if not hasattr(r, "point")} == (
        {"session", "calibration"} if models else set()
    )
    assert notes == []


def test_what_was_left_out_is_part_of_a_view(tmp_path):
    left = LeftOut(session=name(10), point=SLOW, reason="time")
    fill(tmp_path, 10, [*session(10, [FAST]), left])
    assert left in store.read(tmp_path, condition(["model=slow"]))[0]
    assert left not in store.read(tmp_path, condition(["model=fast"]))[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model", "write NAME=VALUE"),
        ("model=", "write NAME=VALUE"),
        ("model=, ", "write NAME=VALUE"),
        ("modle=x", "did you mean 'model'"),
        ("twin=true", "no such field"),
        ("runtime=eager,model=mlp", "two conditions; write --where model=mlp apart"),
        ("batch=1,8..2", r"8\.\.2: no number lies there; write 2\.\.8"),
    ],
)
def test_a_condition_that_cannot_be(text, said):
    with pytest.raises(UsageError, match=said):
        condition([text])


# --- check ------------------------------------------------------------------------------------


def test_a_whole_store_is_whole(tmp_path):
    fill(tmp_path, 10)
    health = check(tmp_path)
    assert (health.damage, health.remarks, health.shards) == ((), (), 1)
    assert health.records == {"session": 1, "calibration": 1, "subject": 2, "block": 4}


def test_copies_and_sessions_that_run_are_no_damage(tmp_path):
    path = fill(tmp_path, 10)
    (tmp_path / "copy.jsonl").write_bytes(path.read_bytes())
    with store.Writer(tmp_path, name(11)):
        health = check(tmp_path)
    assert (health.damage, health.remarks) == ((), ())
    assert health.records["block"] == 4


@pytest.mark.parametrize("size", [0, 20, -9])
def test_a_killed_writer_is_no_damage(tmp_path, size):
    """Killed before the first record, in the middle of its header, in the middle of a record."""
    fill(tmp_path, 10)
    path = fill(tmp_path, 11)
    path.write_bytes(path.read_bytes()[:size])
    health = check(tmp_path)
    assert health.damage == ()
    assert ["is torn" in remark for remark in health.remarks] == [True]


def damaged(folder: Path, how: str) -> None:
    records = session(10)
    if how == "no session":
        records = records[1:]
    if how == "no subject":
        records = [r for r in records if not (isinstance(r, Subject) and r.point == SLOW)]
    if how == "wrong key":
        records.append(Outcome(session=name(10), point="../../x", process=0, status="ok"))
    if how == "differs":
        records.append(Calibration(session=name(10), round=0, latency_ns=(6,)))
    path = fill(folder, 10, records)
    if how == "bad":
        path.write_text(path.read_text() + "rubbish\n")
    if how == "version":
        (folder / "z.jsonl").write_text('{"schema":"frameworktax.store","version":99}\n')


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("bad", "line 10 is no record"),
        ("no session", "environment"),
        ("no subject", f"2 block records of point {SLOW.key()}, "),
        ("wrong key", "1 outcome records of point ../../x, "),
        ("differs", "differs"),
        ("version", "version 99"),
    ],
)
def test_damage_is_told_with_what_is_lost(tmp_path, how, said):
    damaged(tmp_path, how)
    health = check(tmp_path)
    assert len(health.damage) == 1, health.damage
    assert said in health.damage[0]
