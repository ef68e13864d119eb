"""Every thread of a process: with scripted events, and known answers with real ones."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
import sys
import time

import pytest

from frameworktax.attribution import perf_event, threads
from frameworktax.attribution.perf_event import PERIOD_NS, RefusedError, probe
from frameworktax.attribution.threads import Events, ThreadSampler

needs_perf_event = pytest.mark.skipif(probe() is not None, reason=str(probe()))
PID = 1 << 26  # above any pid


class FakeEvents(Events):
    """Threads of which each reading gives a sample in user mode, one in kernel mode, two lost."""

    refuses: dict[int, int]
    opened: set[int]

    def open(self, samples):
        thread = samples.thread
        if thread in self.refuses:
            raise RefusedError(self.refuses[thread], os.strerror(self.refuses[thread]))
        self.threads[thread] = samples
        self.readings = getattr(self, "readings", {}) | {thread: 0}
        self.opened.add(thread)

    def read(self):
        for thread, samples in self.threads.items():
            samples.user.append(thread)
            samples.system += 1
            samples.lost += 2
            self.readings[thread] += 1

    def cpu_ns(self, thread):
        return 1000 * self.readings[thread]

    def close(self, thread):
        del self.threads[thread]
        self.opened.remove(thread)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A fake /proc: call it with the threads that are there."""
    monkeypatch.setattr(FakeEvents, "refuses", {}, raising=False)
    monkeypatch.setattr(FakeEvents, "opened", set(), raising=False)
    tasks = tmp_path / f"proc/{PID}/task"
    ran = [0]

    def has(*names, began=1):
        tasks.mkdir(parents=True, exist_ok=True)
        for one in {path.name for path in tasks.iterdir()} - {str(name) for name in names}:
            (tasks / one / "comm").unlink()
            (tasks / one / "schedstat").unlink(missing_ok=True)
            (tasks / one).rmdir()
        (tasks.parent / "stat").write_text(f"{PID} (a) Z) S 1 1 {'0 ' * 16}{began} 0")
        for name in names:
            (tasks / str(name)).mkdir(exist_ok=True)
            (tasks / str(name) / "comm").write_text(f"thread-{name}\n")
            (tasks / str(name) / "schedstat").write_text(f"{ran[0]} {2 * ran[0]} 1\n")
            ran[0] += 50

    has.root = tmp_path
    return has


def sampler_of(machine):
    """A sampler that looks only when it is asked."""
    return ThreadSampler(PID, FakeEvents(PERIOD_NS), machine.root)


@contextlib.contextmanager
def started(sampler):
    """Sample while a block lasts."""
    sampler.start()
    yield sampler
    sampler.stop()


class FakeRing:
    """A processor that has run, since the last time, what ``samples`` holds: (thread, mode)."""

    def __init__(self):
        self.samples, self.lost = [], 0

    def take(self):
        data = b"".join(
            struct.pack("<IHHQiiQ", perf_event.SAMPLE, mode, 32, 100 + thread, PID, thread, 7)
            for thread, mode in self.samples
        )
        self.samples = []
        return data

    def newly_lost(self, data):
        """As the kernel counts: there is no record yet of the last ones."""
        lost, self.lost = self.lost, 0
        return lost

    def close(self):
        pass


def test_samples_of_processors_are_handed_to_the_threads_that_are_asked_for(machine, monkeypatch):
    rings = [FakeRing(), FakeRing()]
    monkeypatch.setattr(threads, "_rings", lambda *_: rings)
    user, kernel = 2, perf_event.MODE_KERNEL
    rings[0].samples = [(1, user)]  # before it is asked for
    machine(1, 2)
    events = Events(1000, processors=True)
    with started(ThreadSampler(PID, events, machine.root)) as sampler:
        rings[1].lost = 3
        rings[0].samples = [(1, user), (99, user), (2, user), (2, kernel)]
        rings[1].samples = [(1, user), (99, kernel), (-1, user)]  # the last is ending
        machine(1, 2)
        first = {one.thread: one for one in sampler.take()}
        assert list(first[1].user) == [101, 101]
        assert (list(first[2].user), first[2].system) == ([102], 1)
        assert [one.cpu_ns for one in first.values()] == [100, 100]  # the scheduler's
        assert {one.lost for one in first.values()} == {0}  # they may be of any program
        assert (events.lost, events.due) == (3, 1 + 4 + 3 + 3)
        machine(2)
        rings[1].samples = [(1, user), (1, kernel)]  # and ended: 1,000 ns each
        sampler.look()
        second = {one.thread: one for one in sampler.take()}
        assert (second[1].ended, second[1].cpu_ns, second[1].lost) == (True, 2000, 0)


def test_processors_behind_one_that_is_switched_off_are_sampled_too(monkeypatch):
    opened = []

    def open_event(period_ns, *, processor, **more):
        if processor % 2:
            raise RefusedError(errno.ENODEV, "switched off")
        opened.append(processor)

    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)  # those that are switched on
    monkeypatch.setattr(threads, "read", lambda root, path: "0,2,4,6")
    monkeypatch.setattr(perf_event, "open_event", open_event)
    monkeypatch.setattr(perf_event, "Ring", lambda *_: FakeRing())
    Events(1000, processors=True)
    assert opened == [0, 2, 4, 6]


def test_threads_that_begin_and_end_each_have_their_samples(machine):
    machine(1, 2)
    with started(sampler_of(machine)) as sampler:
        machine(2, 3)
        sampler.look()
        taken = sampler.take()
        by_id = {one.thread: one for one in taken}
        assert {id: (list(one.user), one.ended) for id, one in by_id.items()} == {
            1: ([1, 1], True),  # with all, and once more when it had ended
            2: ([2, 2, 2], False),
            3: ([3], False),
        }
        assert by_id[2].name == "thread-2"
        assert (by_id[1].lost, by_id[1].cpu_ns, by_id[1].system) == (4, 2000, 2)
        assert by_id[2].cpu_ns == 50  # as the scheduler counts
        later = sampler.take()  # only what is new, of those that are still there
        assert [(one.thread, one.cpu_ns, list(one.user)) for one in later] == [
            (2, 0, [2]),
            (3, 0, [3]),
        ]
    assert FakeEvents.opened == set()


def test_a_later_thread_with_the_number_of_one_that_ended_is_another(machine):
    machine(1, 2)
    with started(sampler_of(machine)) as sampler:
        for those in ((2,), (1, 2)):
            machine(*those)
            sampler.look()
        assert [(one.thread, one.ended) for one in sampler.take()] == [
            (1, True),
            (2, False),
            (1, False),
        ]


def test_clocks_of_threads_are_read_where_samples_are_taken_and_not_at_each_look(
    machine, monkeypatch
):
    read, clock = [], ThreadSampler._read_clock
    monkeypatch.setattr(
        ThreadSampler, "_read_clock", lambda self, one: (read.append(one), clock(self, one))
    )
    machine(1, 2)
    with started(sampler_of(machine)) as sampler:
        for _ in range(3):
            sampler.look()
        assert read == []
        sampler.take()
        assert read == [1, 2]


def test_a_thread_that_is_refused_is_counted_and_one_that_just_ended_is_not(machine):
    machine(1, 2, 3, 4)
    FakeEvents.refuses.update({2: errno.EMFILE, 3: errno.ESRCH, 4: errno.EMFILE})
    with started(sampler_of(machine)) as sampler:
        taken = sampler.take()
    assert [one.thread for one in taken] == [1]
    assert sampler.refused == {2: os.strerror(errno.EMFILE), 4: os.strerror(errno.EMFILE)}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EMFILE])
def test_where_no_thread_may_be_sampled_the_reason_is_an_error(machine, number):
    machine(1, 2)
    FakeEvents.refuses.update({1: number, 2: number})
    with pytest.raises(RefusedError, match=os.strerror(number)):
        sampler_of(machine).start()


def test_a_process_that_is_not_there_is_an_error(machine):
    with pytest.raises(RefusedError) as refused:
        sampler_of(machine).start()
    assert refused.value.errno == errno.ESRCH


def test_the_process_is_known_to_have_ended(machine):
    machine(1)
    with started(sampler_of(machine)) as sampler:
        assert not sampler.is_ended
        machine()
        (machine.root / f"proc/{PID}/task").rmdir()
        sampler.look()
        assert sampler.is_ended
        assert [one.ended for one in sampler.take()] == [True]


def test_a_later_process_with_the_same_number_is_another(machine, monkeypatch):
    monkeypatch.setattr(threads.time, "clock_gettime_ns", lambda clock: 5)
    machine(PID, 5)
    with started(sampler_of(machine)) as sampler:
        machine(PID, 6, began=2)
        for _ in range(2):
            sampler.look()
            assert sampler.is_ended and FakeEvents.opened == set()
        taken = sampler.take()
        # By their events: what the files say now is of the other process, and so is its clock.
        assert [(one.thread, one.ended, one.cpu_ns) for one in taken] == [
            (5, True, 2000),
            (PID, True, 2000),
        ]
        assert sampler.unseen_cpu_ns is None


def test_a_process_lives_on_without_its_first_thread(machine):
    machine(PID, 5)
    with started(sampler_of(machine)) as sampler:
        stat = machine.root / f"proc/{PID}/stat"
        machine(PID, 5, 6)
        stat.write_text(stat.read_text().replace(") S", ") Z"))
        sampler.look()
        assert not sampler.is_ended and 6 in FakeEvents.opened


@needs_perf_event
def test_another_process_is_sampled_until_it_ends():
    """One thread spins, one sleeps."""
    code = (
        "import threading, time\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "input()\n"
        "end = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\n"
    )
    before = len(os.listdir("/proc/self/fd"))
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        with started(ThreadSampler(process.pid, Events(PERIOD_NS))) as sampler:
            process.stdin.write(b"\n")
            process.stdin.close()
            while not sampler.is_ended:  # as a zombie: not waited for yet
                time.sleep(0.01)
                sampler.look()
        taken = sampler.take()
    assert len(os.listdir("/proc/self/fd")) <= before
    by_id = {one.thread: one for one in taken}
    spun = by_id.pop(process.pid)
    assert len(spun.user) > 20
    assert spun.cpu_ns > 299_000_000
    if sampler.sees_kernel:  # a hypervisor that takes the processor away takes ticks with it
        due = spun.cpu_ns / PERIOD_NS
        assert 0.3 * due < len(spun.user) + spun.system + spun.lost < 1.1 * due
    assert all(len(one.user) <= 2 for one in by_id.values())
