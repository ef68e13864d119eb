"""Requests and answers survive the way over the socket unchanged."""

import pytest

from frameworktax.measure import protocol
from frameworktax.measure.worker import Server
from frameworktax.records import Attribution, Note, Workload
from frameworktax.runtimes.base import Target

WORKLOAD = Workload(model="m", batch=2, width=0.5, kv_cache="static")
NOTES = (Note("a-code", "a text"),)
PLACE = {"workload": WORKLOAD, "runtime": "eager", "target": Target(threads=2), "folder": "/f"}

EXCHANGES = [
    (
        protocol.Describe(workload=WORKLOAD, device="cpu", batches=(1, 2), limit_s=0.5),
        protocol.Described(
            facts={1: protocol.Facts(flops=7, notes=NOTES), 2: protocol.Facts()},
            has_twin=True,
            notes=NOTES,
        ),
    ),
    (protocol.Prepare(batches=(1, 2), **PLACE), protocol.Prepared(setup_ns=1)),
    (protocol.Load(live="/a/file", **PLACE), protocol.Loaded(load_ns=3, notes=NOTES)),
    (
        protocol.Bind(batch=1, limit_ns=9),
        protocol.Bound(calls=3, call_ns=2, settled=False, first_ns=4, peak_memory_bytes=5),
    ),
    (protocol.WriteOutput(batch=1, path="p"), protocol.OutputWritten(repeatable=True)),
    (
        protocol.TimeBlock(batch=1, calls=2),
        protocol.TimedBlock(
            latency_ns=(1, 2), pipelined_ns=3, pipelined_calls=2, cpu_ns=3, enqueue_ns=(1, 1)
        ),
    ),
    (
        protocol.Sample(batch=1, duration_ns=1),
        Attribution(
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
        ),
    ),
    (protocol.Pin(cpus=(0, 3)), protocol.Done()),
    (protocol.ReadMemory(), protocol.Memory(resident_bytes=1)),
    (protocol.ListModules(), protocol.Modules(names=("os", "sys"))),
]


@pytest.mark.parametrize(("request_", "answer"), EXCHANGES)
def test_both_ends_have_the_same_records(request_, answer):
    line = protocol.encode_request(request_)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert protocol.decode_request(line.decode()) == request_
    assert protocol.decode_answer(request_, protocol.encode_answer(answer)) == answer


def test_a_failure_answers_any_request():
    failure = protocol.Failure(status="timeout", message="why")
    assert protocol.decode_answer(protocol.ReadMemory(), protocol.encode_answer(failure)) == failure


def test_the_measuring_process_has_a_handler_for_every_request():
    assert set(Server()._handlers) == set(protocol.REQUESTS.values())
