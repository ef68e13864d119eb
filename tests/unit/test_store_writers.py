"""Several processes and one store: each has a shard, nobody's record is lost or read twice."""

import multiprocessing

import pytest

from frameworktax import store
from frameworktax.errors import StoreError
from frameworktax.records import Calibration, Environment, Session

EACH = 200
FORK = multiprocessing.get_context("fork")


def write(folder, begin):
    begin.wait()
    session = store.new_session_id(folder)
    with store.Writer(folder, session) as writer:
        for number in range(EACH):
            writer.write(Calibration(session=session, round=number, latency_ns=(number + 1,)))


def test_three_processes_write_while_another_reads(tmp_path):
    begin = FORK.Event()
    writers = [FORK.Process(target=write, args=(tmp_path, begin)) for _ in range(3)]
    for one in writers:
        one.start()
    begin.set()
    seen = 0
    while any(one.is_alive() for one in writers):
        if any(tmp_path.glob("*.jsonl")):
            records, notes = store.read(tmp_path)
            assert len(records) >= seen, "a record that was there is gone"
            assert {note.code for note in notes} <= {"torn-line"}
            seen = len(records)
    for one in writers:
        one.join()
        assert one.exitcode == 0
    records, notes = store.read(tmp_path)
    found = {(record.session, record.round) for record in records}
    sessions = {session for session, _ in found}
    assert len(sessions) == 3 and len(records) == len(found) == 3 * EACH and notes == []


def claim(folder, begin, answers):
    begin.wait()
    try:
        store.Writer(folder, "the-same")
    except StoreError:
        answers.put("refused")
    else:
        answers.put("mine")


def test_a_session_has_one_writer(tmp_path):
    begin, answers = FORK.Event(), FORK.Queue()
    claims = [FORK.Process(target=claim, args=(tmp_path, begin, answers)) for _ in range(4)]
    for one in claims:
        one.start()
    begin.set()
    told = sorted(answers.get() for _ in claims)
    for one in claims:
        one.join()
    assert told == ["mine", "refused", "refused", "refused"]
    with pytest.raises(StoreError, match="holds this session"):
        store.Writer(tmp_path, "the-same")


def test_a_session_begun_on_a_full_disk_leaves_no_shard(tmp_path, monkeypatch):
    def full(self, data):
        self._file.write(b'{"sch')
        raise StoreError("no space left on device")

    monkeypatch.setattr(store.Writer, "write", full)
    with pytest.raises(StoreError, match="no space"):
        store.Writer(tmp_path, "s")
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_no_utf_8_is_written_so_that_it_can_be_read(tmp_path):
    """As of a folder whose name another system has written: Python has its bytes as surrogates."""
    where = Environment(host="ü", system="s", python="3", cpu="c", cores=1)
    command = ("measure", "--store", b"st\xff".decode(errors="surrogateescape"), "日本")
    session = Session(session="a", started="t", version="1", command=command, environment=where)
    with store.Writer(tmp_path, "a") as writer:
        writer.write(session)
    (found,), notes = store.read(tmp_path)
    assert (found.command, notes) == (("measure", "--store", "st?", "日本"), [])
    assert found.environment == where
