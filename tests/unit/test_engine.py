"""What a worker's answer, or its failure, means to the session."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from fake_workers import timed

from frameworktax.errors import UsageError, UserModelError, WorkerError
from frameworktax.measure import protocol
from frameworktax.measure.process import decode
from frameworktax.measure.protocol import Failure
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
    line = protocol.encode(answer)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(method, line) == answer


@pytest.mark.parametrize("answer", [1.5, None, BLOCK])
def test_an_answer_of_another_kind_is_a_failed_step(answer):
    with pytest.raises(WorkerError) as raised:
        decode(Server.memory, protocol.encode(answer))
    assert raised.value.status == "failed"


def problem(method, status):
    with pytest.raises((UsageError, WorkerError)) as raised:
        decode(method, protocol.encode(Failure(status=status, message="why")))
    return raised.value


def test_wrong_use_while_setting_up_is_the_users():
    assert type(problem(Server.load, "usage")) is UsageError
    assert type(problem(Server.describe, "user-model")) is UserModelError


@pytest.mark.parametrize("status", ["usage", "user-model"])
def test_wrong_use_later_is_a_failed_step(status):
    found = problem(Server.bind, status)
    assert isinstance(found, WorkerError) and found.status == "failed"


@pytest.mark.parametrize("status", ["failed", "unavailable", "out-of-memory"])
def test_faults_keep_their_status(status):
    found = problem(Server.block, status)
    assert isinstance(found, WorkerError)
    assert (found.status, str(found)) == (status, "why")
