"""Every thread of a process: with scripted events, and known answers with real ones."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from frameworktax.attribution import threads
from frameworktax.attribution.perf_event import Drained, RefusedError, probe
from frameworktax.attribution.threads import ThreadSampler

needs_perf_event = pytest.mark.skipif(probe() is not None, reason=str(probe()))
PID = 1 << 26  # above any pid


class FakeEvent:
    """A thread whose every drain gives one sample in user mode, one in kernel mode, two lost."""

    refuses: dict[int, int]
    open: set[int]

    def __init__(self, stretch_ns, *, thread, period_ns, kernel):
        if thread in self.refuses:
            raise RefusedError(self.refuses[thread], os.strerror(self.refuses[thread]))
        self.kernel, self.thread, self.cpu_ns = True, thread, 0
        self.drains = 0
        self.open.add(thread)

    def resume(self):
        pass

    def drain(self):
        self.drains += 1
        self.cpu_ns += 1000
        return Drained([(self.thread, self.drains)], [self.drains], 2)

    def close(self):
        self.open.remove(self.thread)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A fake /proc: call it with the threads that are there."""
    monkeypatch.setattr(threads, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "refuses", {}, raising=False)
    monkeypatch.setattr(FakeEvent, "open", set(), raising=False)
    tasks = tmp_path / f"proc/{PID}/task"
    ran = [0]

    def has(*names, **refused):
        tasks.mkdir(parents=True, exist_ok=True)
        for one in {path.name for path in tasks.iterdir()} - {str(name) for name in names}:
            (tasks / one / "comm").unlink()
            (tasks / one / "schedstat").unlink(missing_ok=True)
            (tasks / one).rmdir()
        (tasks.parent / "stat").write_text(f"{PID} (a) Z) S 1 1")
        for name in names:
            (tasks / str(name)).mkdir(exist_ok=True)
            (tasks / str(name) / "comm").write_text(f"thread-{name}\n")
            (tasks / str(name) / "schedstat").write_text(f"{ran[0]} {2 * ran[0]} 1\n")
            ran[0] += 50

    has.root = tmp_path
    return has


def sampler_of(machine):
    """A sampler that looks only when it is asked."""
    return ThreadSampler(PID, root=machine.root, has_reader=False)


def test_threads_that_begin_and_end_each_have_their_samples(machine):
    machine(1, 2)
    with sampler_of(machine) as sampler:
        machine(2, 3)
        sampler.look()
        taken = sampler.take()
        by_id = {one.thread: one for one in taken.threads}
        assert {id: (list(one.user), one.ended) for id, one in by_id.items()} == {
            1: ([1, 1], True),  # with all, and once more when it had ended
            2: ([2, 2], False),
            3: ([3], False),
        }
        assert by_id[2].name == "thread-2"
        assert (by_id[1].lost, by_id[1].cpu_ns, list(by_id[1].kernel_ns)) == (4, 2000, [1, 2])
        assert (by_id[2].cpu_ns, by_id[2].queued_ns) == (50, 100)  # as the scheduler counts
        later = sampler.take()  # only what is new, of those that are still there
        assert [(one.thread, one.cpu_ns, list(one.user_ns)) for one in later.threads] == [
            (2, 0, [3]),
            (3, 0, [2]),
        ]
    assert FakeEvent.open == set()


def test_no_thread_runs_for_what_the_busiest_and_all_of_them_leave(machine, monkeypatch):
    now = [0]
    monkeypatch.setattr(threads.time, "perf_counter_ns", lambda: now[0])
    machine(1, 2)
    with sampler_of(machine) as sampler:
        for now[0] in (5_000, 6_500):  # each thread runs for 1,000 between two looks
            sampler.look()
        assert sampler.take().idle_ns == (3_000, 4_500)
        now[0] += 9_000
        assert sampler.take().idle_ns == (7_000, 8_000)


def test_a_thread_that_is_refused_is_counted_and_one_that_just_ended_is_not(machine):
    machine(1, 2, 3, 4)
    FakeEvent.refuses.update({2: errno.EMFILE, 3: errno.ESRCH, 4: errno.EMFILE})
    with sampler_of(machine) as sampler:
        taken = sampler.take()
    assert [one.thread for one in taken.threads] == [1]
    assert taken.refused == {os.strerror(errno.EMFILE): 2}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EMFILE])
def test_where_no_thread_may_be_sampled_the_reason_is_an_error(machine, number):
    machine(1, 2)
    FakeEvent.refuses.update({1: number, 2: number})
    with pytest.raises(RefusedError, match=os.strerror(number)):
        sampler_of(machine).start()
    assert "frameworktax-sampler" not in [one.name for one in threading.enumerate()]


def test_a_process_that_is_not_there_is_an_error(machine):
    with pytest.raises(RefusedError) as refused:
        sampler_of(machine).start()
    assert refused.value.errno == errno.ESRCH


def test_the_process_is_known_to_have_ended(machine):
    machine(1)
    with sampler_of(machine) as sampler:
        assert not sampler.is_ended
        machine()
        (machine.root / f"proc/{PID}/task").rmdir()
        sampler.look()
        assert sampler.is_ended
        assert [one.ended for one in sampler.take().threads] == [True]


@needs_perf_event
def test_two_threads_of_this_process_are_seen_as_they_take_the_processor():
    """One spins once it is sampled, one sleeps."""
    is_seen = threading.Event()

    def spin():
        is_seen.wait()
        end = time.thread_time_ns() + 200_000_000
        while time.thread_time_ns() < end:
            pass

    with ThreadSampler(interval_s=0.02) as sampler:
        first = threading.Thread(target=spin)
        waits = threading.Event()
        second = threading.Thread(target=waits.wait)
        first.start()
        second.start()
        ids = first.native_id, second.native_id
        while ids[0] not in sampler._samples:
            time.sleep(0.01)
        is_seen.set()
        first.join()
        while not any(one.ended for one in sampler._samples.values()):
            time.sleep(0.01)  # until it was looked at
        taken = sampler.take()
        waits.set()
        second.join()
    by_id = {one.thread: one for one in taken.threads}
    spun = by_id[ids[0]]
    assert 180_000_000 < spun.cpu_ns < 400_000_000
    ticks = len(spun.user) + len(spun.kernel_ns) + spun.lost
    if taken.sees_kernel:  # a hypervisor that takes the processor away takes ticks with it
        due = spun.cpu_ns / taken.period_ns
        assert 0.3 * due < ticks < 1.1 * due
    assert list(spun.user_ns) == sorted(spun.user_ns)
    assert len(by_id[ids[1]].user) <= 2


@needs_perf_event
def test_a_fork_keeps_no_event_and_the_sampler_leaves_nothing():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with ThreadSampler() as sampler:
        ours = len(os.listdir("/proc/self/fd"))
        child = os.fork()
        if not child:
            os._exit(len(os.listdir("/proc/self/fd")))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < ours
        assert sampler.take().threads
    # What an earlier test left open may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before
    assert "frameworktax-sampler" not in [one.name for one in threading.enumerate()]


@needs_perf_event
def test_another_process_is_sampled_until_it_ends():
    code = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with subprocess.Popen([sys.executable, "-S", "-c", code]) as process:
        with ThreadSampler(process.pid, interval_s=0.02) as sampler:
            while not sampler.is_ended:  # as a zombie: not waited for yet
                time.sleep(0.01)
        taken = sampler.take()
    (thread,) = taken.threads
    assert thread.thread == process.pid
    assert len(thread.user) > 20
    assert thread.cpu_ns > 150_000_000  # what came before the sampler is not in it
