"""The ring buffer's records and the refusals, without sampling anything."""

from __future__ import annotations

import contextlib
import errno
import itertools
import struct
from collections import Counter

import pytest

from frameworktax.attribution import perf_event, sampler
from frameworktax.attribution.perf_event import (
    ON,
    PREEMPTED,
    PerfEventSampler,
    records,
    refusal,
)
from frameworktax.errors import WorkerError
from frameworktax.testing import FakeClock


def sample_record(address, mode):
    return struct.pack("<IHHQQ", 9, mode, 24, address, 100 + address % 100)


def lost_record(number):
    return struct.pack("<IHHQQ", 2, 0, 24, 1, number)


def test_records_are_told_apart():
    throttle = struct.pack("<IHHQQQ", 5, 0, 32, 0, 0, 0)
    data = sample_record(0x1000, 2) + lost_record(7) + throttle + sample_record(1 << 63, 1)
    assert list(records(data)) == [
        (9, 2, 0, 24),
        (2, 0, 24, 24),
        (5, 0, 48, 32),
        (9, 1, 80, 24),
    ]


def test_a_damaged_ring_is_an_error_and_no_endless_loop():
    with pytest.raises(ValueError, match="byte 24"):
        list(records(sample_record(1, 2) + bytes(16)))


@pytest.mark.parametrize("first", [0, 4096 - 16, 4096 - 24, 3 * 4096 - 8])
def test_the_ring_is_read_around_its_end_and_emptied(first, tmp_path, monkeypatch):
    """A ring of one page behind its control page, as the kernel lays it out."""
    data = sample_record(0xA, 2) + lost_record(3) + sample_record(0xB, 1) + sample_record(0xC, 2)
    for what, time_ns in ((PREEMPTED, 5), (ON, 7)):  # a switch: what it did, then its time
        data += struct.pack("<IHHQ", 14, what << 13, 16, time_ns)
    ring = bytearray(2 * 4096)
    for i, byte in enumerate(data):
        ring[4096 + (first + i) % 4096] = byte
    struct.pack_into("<QQ", ring, 1024, first + len(data), first)
    counter = tmp_path / "counter"
    counter.write_bytes(bytes(8))  # a kernel before 6.0 counts no lost samples
    event = object.__new__(PerfEventSampler)
    with counter.open("rb") as file:
        event._fd, event._ring, event._page, event._size = file.fileno(), ring, 4096, 4096
        event._counted_lost, event._has_tops, event.period_ns = 0, False, 1000
        assert event.drain() == (
            [(0xA, 110, 0), (0xC, 112, 0)], [111], 3, [(5, PREEMPTED), (7, ON)]
        )  # fmt: skip
        file.seek(0)
        assert event.drain() == ([], [], 0, [])
    assert struct.unpack_from("<QQ", ring, 1024) == (first + len(data),) * 2


def test_the_kernels_own_count_of_lost_samples_is_taken_as_the_difference(tmp_path):
    counter = tmp_path / "counter"
    counter.write_bytes(struct.pack("<QQQQ", 9, 5, 9, 12))
    event = object.__new__(PerfEventSampler)
    with counter.open("rb") as file:
        event._fd, event._ring, event._page, event._size = (
            file.fileno(),
            bytearray(8192),
            4096,
            4096,
        )
        event._counted_lost, event.period_ns = 0, 1000
        assert [event.drain()[2], event.drain()[2]] == [5, 7]
        assert event.cpu_ns == 9


def test_samples_that_were_due_while_the_kernel_throttled_are_lost(tmp_path):
    counter = tmp_path / "counter"
    counter.write_bytes(struct.pack("<QQ", 9, 2))
    event = object.__new__(PerfEventSampler)
    event._counted_lost, event.period_ns = 0, 1000

    def throttled(kind, time_ns):
        return struct.pack("<IHHQQQ", kind, 0, 32, time_ns, 0, 0)

    with counter.open("rb") as file:
        event._fd = file.fileno()
        first = throttled(5, 10_000) + sample_record(1, 2) + throttled(6, 13_000)
        assert event.newly_lost(first + throttled(5, 20_000)) == 2 + 3
        counter.write_bytes(struct.pack("<QQ", 9, 2))
        file.seek(0)
        # The thread slept meanwhile: a tick at most.
        assert event.newly_lost(throttled(6, 10**9)) == perf_event._TICK_NS / 1000


def test_a_period_is_varied_from_time_to_time_and_left_at_a_random_moment(monkeypatch):
    """A new one after 10 ms; calls begin anywhere in it, which takes as long as that."""
    now, asked = [0], []

    def clock():
        now[0] += 1_000
        return now[0]

    def ioctl(fd, request, value):
        assert (fd, request) == (5, 0x40082404)  # PERF_EVENT_IOC_PERIOD
        asked.append((now[0], *struct.unpack("Q", value)))

    monkeypatch.setattr(perf_event.time, "perf_counter_ns", clock)
    monkeypatch.setattr(perf_event.fcntl, "ioctl", ioctl)
    event = object.__new__(PerfEventSampler)
    event._fd, event.period_ns, event._varied_ns = 5, 500_000, -perf_event.VARIED_NS
    waited = []
    while len(asked) < 50:
        before, began = len(asked), now[0]
        event.vary()
        if len(asked) == before:
            assert now[0] == began + 1_000  # nothing but a look at the clock
        else:
            waited.append((now[0] - began) / asked[-1][1])
    apart = [late[0] - early[0] for early, late in itertools.pairwise(asked)]
    assert min(apart) >= perf_event.VARIED_NS
    assert max(apart) <= perf_event.VARIED_NS + 600_000
    periods = [period for _, period in asked]
    assert len(set(periods)) > 45
    assert all(425_000 <= period <= 575_000 for period in periods)
    assert event.period_ns == 500_000  # what is recorded of all of them together
    assert max(waited) <= 1.02
    assert min(waited) < 0.25 < 0.75 < max(waited)


def test_what_varies_the_period_is_called_before_each_call():
    varied = []

    class Sampler:
        name, period_ns = "scripted", 1
        start = stop = lambda self: None

        def ticks(self):
            return [sampler.Ticks(Counter(), 0)]

    clock = FakeClock()
    sampler.sample(
        lambda: clock.work(300),
        Sampler(),
        stretches=1,
        duration_ns=1_000,
        vary=lambda: varied.append(clock.wall_ns()),
        clock=clock,
    )
    assert [time_ns - varied[0] for time_ns in varied] == [0, 300, 600, 900]


@pytest.mark.parametrize(
    ("number", "paranoid", "words"),
    [
        (errno.EACCES, "4", "sudo sysctl kernel.perf_event_paranoid=2"),
        (errno.EPERM, "1", "--cap-add PERFMON"),
        (errno.EPERM, None, "not allowed here"),
        (errno.ENOSYS, "2", "CONFIG_PERF_EVENTS"),
        (errno.ENOMEM, "2", "Cannot allocate memory"),
    ],
)
def test_a_refusal_says_what_helps(tmp_path, number, paranoid, words):
    if paranoid is not None:
        (tmp_path / "proc/sys/kernel").mkdir(parents=True)
        (tmp_path / "proc/sys/kernel/perf_event_paranoid").write_text(paranoid + "\n")
    message = refusal(number, tmp_path)
    assert words in message
    assert "\n" not in message


def test_kernel_samples_are_asked_for_first_then_given_up(monkeypatch):
    asked = []

    def refuse(period_ns, *, flags, **more):
        asked.append(not flags & perf_event.EXCLUDE_KERNEL)
        raise perf_event.RefusedError(errno.EACCES, "no")

    monkeypatch.setattr(perf_event, "open_event", refuse)
    with pytest.raises(perf_event.RefusedError):
        PerfEventSampler(10**9)
    assert asked == [True, False]


def test_where_no_sampler_is_allowed_the_reason_is_kept(monkeypatch):
    def refuse(stretch_ns, threads):
        raise perf_event.RefusedError(errno.EPERM, "no perf-event today")

    monkeypatch.setattr(sampler, "open_sampler", refuse)
    with pytest.raises(WorkerError, match="no perf-event today") as caught:
        sampler.attribute_cpu(lambda: None)
    assert caught.value.status == "unavailable"


def test_an_error_of_the_call_itself_is_no_refusal(monkeypatch):
    class Sampler(contextlib.nullcontext):
        start = stop = lambda self: None

    monkeypatch.setattr(sampler, "open_sampler", lambda *_: Sampler(Sampler()))

    def call():
        raise FileNotFoundError("the model's own")

    with pytest.raises(FileNotFoundError):
        sampler.attribute_cpu(call)
