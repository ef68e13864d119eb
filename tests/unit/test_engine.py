"""What a worker's answer, or its failure, means to the session."""

import errno
import io
import json
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_workers import timed

from frameworktax.attribution import layers
from frameworktax.errors import UsageError, UserModelError, WorkerError
from frameworktax.measure import protocol, worker
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
from frameworktax.records import Attribution, Note

NOTES = (Note("a-code", "a text"),)
BLOCK = replace(timed(1, 2), enqueue_ns=(1, 1))
FACTS = {1: protocol.Facts(flops=7, notes=NOTES), 2: protocol.Facts()}
SAMPLED = Attribution(
    session="",
    point="",
    process=0,
    method="perf-event",
    calls=1,
    wall_ns=2,
    latency_ns=2,
    samples=({"kernel": 3},),
    top=(("kernel", "lib", "symbol", 3),),
    notes=NOTES,
)


class Answers(Server):
    """Answers each request with what it is given."""

    def step(self, answer):
        return answer


def answered(server, step, **given):
    """Return what a server writes as its answer to a step."""
    written = io.BytesIO()
    server.answer(step, given, written)
    return written.getvalue()


def line_of(answer):
    return answered(Answers(), "step", answer=answer)


def asked(method, line):
    """Return what a worker makes of a line that answers a request."""
    worker = Worker("test", _process=SimpleNamespace())
    worker._channel, theirs = socket.socketpair()
    with theirs, worker._channel:
        theirs.sendall(line)
        return worker.request(method, 5.0)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (Server.describe, protocol.Described(facts=FACTS, has_twin=True, notes=NOTES)),
        (Server.prepare, 1),
        (Server.output, None),
        (Server.block, BLOCK),
        (Server.sample, SAMPLED),
        (Server.pin, None),
        (Server.modules, ("os", "sys")),
    ],
)
def test_answers_survive_the_way_over_the_socket_unchanged(method, answer):
    line = line_of(answer)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert asked(method, line) == answer


@pytest.mark.parametrize("answer", [1.5, None, BLOCK, float("nan"), "\udcff"])
def test_an_answer_of_another_kind_is_a_failed_step(answer):
    with pytest.raises(WorkerError) as raised:
        asked(Server.memory, line_of(answer))
    assert raised.value.status == "failed"


@pytest.mark.parametrize("line", [b"{}", b"[]", b"null", b"", b'{"answer": 1', b'{"failure": 1}'])
def test_a_line_that_is_no_answer_is_a_failed_step(line):
    with pytest.raises(WorkerError) as raised:
        asked(Server.memory, line + b"\n")
    assert raised.value.status == "failed"


def test_where_no_process_can_be_started_the_step_has_failed(monkeypatch):
    """The other runtimes go on."""

    def refuse(*words, **options):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    worker = Worker("test")
    for _ in range(2):
        with pytest.raises(WorkerError, match="started for memory: too many open files") as raised:
            worker.request(Server.memory, 1.0)
        assert raised.value.status == "failed" and not worker.alive
        assert worker.started is None


def test_the_time_in_which_another_request_is_answered_does_not_count():
    """Batch sizes of a process are warmed up one after the other, the largest first in some."""

    class Asked(Worker):
        def _begin(self, left_s):
            left.append(left_s())
            self._channel, theirs = socket.socketpair()
            theirs.sendall(line_of(1))
            theirs.detach()

    now, left = [0], []
    worker = Asked("test")
    second = threading.Thread(
        target=worker.request, args=(Server.memory, 5.0, lambda: now[0]), daemon=True
    )
    with worker._asking:
        second.start()
        second.join(0.1)
        now[0] = 60_000_000_000
    second.join()
    assert left == [5.0]


def problem(method, status):
    with pytest.raises((UsageError, WorkerError)) as raised:
        asked(method, b'{"failure": {"status": "%b", "message": "why"}}\n' % status.encode())
    return raised.value


def test_wrong_use_while_setting_up_is_the_users():
    assert type(problem(Server.load, "usage")) is UsageError
    assert type(problem(Server.describe, "user-model")) is UserModelError


@pytest.mark.parametrize(
    "status", ["usage", "user-model", "failed", "unavailable", "out-of-memory"]
)
def test_faults_keep_their_status_and_wrong_use_later_is_a_failed_step(status):
    for step in (Server.bind, Server.block):
        found = problem(step, status)
        assert isinstance(found, WorkerError) and str(found) == "why"
        assert found.status == ("failed" if status in ("usage", "user-model") else status)


@pytest.mark.parametrize(
    ("text", "status", "given_back"),
    [
        ("CUDA error: out of memory", "out-of-memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "out-of-memory", True),
        ("Failed to allocate memory for requested buffer of size 8", "out-of-memory", True),
        ("mat1 and mat2 shapes cannot be multiplied", "failed", False),
    ],
)
def test_where_memory_ran_out_other_processes_get_the_cached_rest(
    monkeypatch, text, status, given_back
):
    def bind(batch):
        raise RuntimeError(text)

    emptied = []
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: emptied.append(True))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    server = Server()
    server._loaded = SimpleNamespace(bind=bind)
    failure = json.loads(answered(server, "bind", batch=1, limit_ns=1))["failure"]
    assert failure["status"] == status
    assert bool(emptied) is given_back


def test_outputs_that_cannot_be_written_whole_leave_no_file(tmp_path):
    """Half a file would be read as a point's outputs later."""
    made = iter([[np.array([lambda: None])], []])  # a function cannot be pickled
    server = Server()
    server._loaded = SimpleNamespace(synchronize=lambda: None, outputs=lambda result: next(made))
    server._calls[1] = lambda: None
    line = answered(server, "output", batch=1, path=str(tmp_path / "o.npz"))
    assert "failure" in json.loads(line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("where", "name", "asked", "of"),
    [
        (worker, "attribute_cpu", "sample", {}),
        (layers, "attribute_modules", "places", {"by": "module", "stretches": 5}),
        (layers, "attribute_lines", "places", {"by": "line", "stretches": 5}),
    ],
)
def test_a_sampler_is_told_how_long_a_call_takes(monkeypatch, where, name, asked, of):
    """A ring for less holds the first part of a slow call only."""
    given = {}

    def attribute(*_, **arguments):
        given.update(arguments)
        raise WorkerError("unavailable", "no samples here")

    monkeypatch.setattr(where, name, attribute)
    server = Server()
    server._loaded = SimpleNamespace(root=lambda: None)
    server._calls[1], server._call_ns[1] = lambda: None, 3_000_000_000
    answered(server, asked, batch=1, duration_ns=50_000_000, **of)
    assert given["call_ns"] == 3_000_000_000
