"""What the system no longer gives ends a session in one line, and is no fault of a point."""

import errno
import socket
import threading

import pytest

from frameworktax import store
from frameworktax.errors import StoreError, UsageError, WorkerError
from frameworktax.measure import orphans
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Worker
from frameworktax.measure.session import MeasuringSession
from frameworktax.measure.worker import Server
from frameworktax.records import Point, Workload

POINT = Point(workload=Workload(model="mlp"), runtime="null")


def test_a_full_cache_is_one_line_that_names_the_remedy(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "scratch-s").touch()  # refuses a folder there, as a full disk does
    with store.Writer(tmp_path / "store", "s") as writer:
        session = MeasuringSession(Plan(points=(POINT,), folder=cache), writer)
        with pytest.raises(StoreError, match=r"cannot write in the cache .*FRAMEWORKTAX_CACHE"):
            session.run()
    assert store.read(tmp_path / "store")[0] == []


def test_the_last_file_descriptor_is_one_line_that_names_the_remedy(tmp_path, monkeypatch):
    """As with ``ulimit -n 20``: ``/proc`` can no longer be listed."""

    def none_left(*_):
        raise OSError(errno.EMFILE, "Too many open files", "/proc")

    monkeypatch.setattr(orphans, "_all", none_left)
    with store.Writer(tmp_path / "store", "s") as writer:
        session = MeasuringSession(Plan(points=(POINT,), folder=tmp_path / "cache"), writer)
        with pytest.raises(UsageError, match="too many open files; run ulimit -n"):
            session.run()


def test_a_process_without_a_file_descriptor_fails_the_step_alone(monkeypatch):
    def none_left():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", none_left)
    with pytest.raises(WorkerError, match=r"started for memory: .* ulimit -n"):
        Worker("w").request(Server.memory, 900.0)


def test_a_thread_that_cannot_be_started_fails_the_step_alone(monkeypatch):
    def none_left(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    with pytest.raises(WorkerError, match="no process could be started for memory: can't start"):
        Worker("w").request(Server.memory, 900.0)
