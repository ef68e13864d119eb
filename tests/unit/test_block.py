"""Code measured in place, on a scripted clock with a scripted sampler: exact numbers."""

import asyncio
import json
import re
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from frameworktax.attribution.sampler import Ticks
from frameworktax.attribution.symbols import Leaf
from frameworktax.block import NAMED, Block, tax
from frameworktax.errors import UsageError
from frameworktax.measure.inline_profiler import STRETCH_NS
from frameworktax.testing import FakeClock

KERNEL = Leaf("libtorch_cpu.so", "at::native::gemm")
PYTHON = Leaf("python3.11", "_PyEval_EvalFrameDefault")
MS = 1_000_000


class Scripted:
    """A sampler that sees one tick a millisecond, three of four in a kernel."""

    name = "scripted"
    period_ns = MS

    def __init__(self, clock):
        self.clock = clock
        self.on = None
        self.seen = 0
        self.kept = []
        self.closed = False

    def start(self):
        self.on = self.clock.now_ns

    resume = start

    def pause(self):
        self.seen += self.clock.now_ns - self.on

    def stop(self):
        ticks = self.seen // MS
        kernel = ticks * 3 // 4
        self.kept.append(Ticks(Counter({KERNEL: kernel, PYTHON: ticks - kernel}), 0))
        self.seen = 0

    def ticks(self):
        return list(self.kept)

    def __exit__(self, *exception):
        self.closed = True


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def made():
    return []


@pytest.fixture
def block(clock, made):
    def sampler():
        made.append(Scripted(clock))
        return made[-1]

    return Block("step", clock=clock, sampler=sampler)


def test_shares_come_from_sampled_runs_and_latency_from_the_others(block, clock):
    for _ in range(200):
        with block:
            sampled = block._local.profiler.sampling
            clock.work(8 * MS if sampled else 4 * MS)  # being sampled costs something
    found = block.result()
    assert found.calls == 200
    assert found.latency.value == 4 * MS
    assert found.share.value == 0.25
    assert (found.kernel.value, found.tax.value) == (3 * MS, 1 * MS)
    assert found.bill_ns["python"] == 1 * MS
    assert sum(found.bill_ns.values()) == pytest.approx(found.latency.value)
    assert any(note.code == "sampler-inflation" for note in found.notes)


def test_time_off_the_processor_is_waiting_and_time_in_the_queue_is_nobodys(block, clock):
    for _ in range(50):
        with block:
            clock.work(4 * MS)
            clock.wait(4 * MS)
            clock.others(8 * MS)
    found = block.result()
    assert found.bill_ns["wait"] == pytest.approx(found.latency.value / 2)
    assert [n.text[:32] for n in found.notes if n.code == "waits-for-others"] == [
        "the thread waits for 50% of a ru"
    ]


def test_what_a_hypervisor_takes_is_no_tax(block, clock):
    for _ in range(50):
        with block:
            clock.work(4 * MS)
            clock.stolen(4 * MS)
    found = block.result()
    assert found.bill_ns["wait"] == 0
    assert found.share.value == 0.25


def test_what_a_reading_of_the_queue_takes_is_in_wall_and_cpu_time_alike(block, clock):
    clock.queued_ns = lambda: clock.work(MS) or 0
    for _ in range(50):
        with block:
            clock.work(3 * MS)
            clock.wait(4 * MS)
    found = block.result()
    assert found.bill_ns["wait"] == pytest.approx(found.latency.value / 2)


def test_from_four_samples_no_share_is_known_and_from_five_there_is_one(clock):
    for samples, is_known in ((4, False), (5, True)):
        block = Block("step", clock=clock, sampler=lambda: Scripted(clock))
        with block:
            clock.work(samples * MS)
        found = block.result()
        assert found.latency.value == samples * MS
        assert ((found.share is None), bool(found.reason)) == (not is_known, not is_known)


def test_a_stretch_ends_after_enough_sampled_time(block, clock, made):
    with block:
        clock.work(STRETCH_NS)
    with block:
        clock.work(MS)
    assert len(made[0].kept) == 1


def test_one_run_has_no_interval_and_says_how_it_was_timed(block, clock):
    with block:
        clock.work(8 * MS)
    found = block.result()
    assert found.latency.low == found.latency.value == found.latency.high == 8 * MS
    assert found.share.value == 0.25
    (text,) = (note.text for note in found.notes if note.code == "timed-while-sampled")
    assert re.findall(r"\d+", text) == sampler_cost()
    assert re.search(r"1 run, 8\.00 \(no interval\) ms .* 25 %", str(found))


def sampler_cost():
    """Return the least and the most that sampling made calls longer by, in per cent."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "cost.json"
    cases = json.loads(path.read_text())["parts"]["sampler"]["cases"]
    costs = [case["ratio"]["value"] - 1 for case in cases]
    return [f"{100 * cost:.0f}" for cost in (min(costs), max(costs))]


def test_a_block_inside_itself_counts_once(block, clock):
    @block
    def countdown(n):
        clock.work(MS)
        if n:
            countdown(n - 1)

    countdown(3)
    found = block.result()
    assert (found.calls, found.wall_ns) == (1, 4 * MS)


def test_tasks_that_take_turns_in_a_block_are_no_runs_of_their_own_and_a_note_says_so(block, clock):
    async def step():
        with block:
            clock.work(8 * MS)
            with block:  # its own, as in any function
                await asyncio.sleep(0)

    async def both():
        await asyncio.gather(step(), step())

    asyncio.run(step())
    assert not {note.code for note in block.result().notes} & {"interleaved"}
    asyncio.run(both())
    found = block.result()
    (text,) = (note.text for note in found.notes if note.code == "interleaved")
    assert (found.calls, text.split()[0]) == (2, "2")


def test_a_run_ends_in_the_thread_that_began_it_and_later_runs_count(block, clock):
    """A generator with a block inside may end in any thread, where the collector runs."""
    with pytest.raises(UsageError, match="'step' was not entered in this thread"):
        block.__exit__()
    for _ in range(2):
        with block:
            clock.work(MS)
        with pytest.raises(UsageError, match="'step' was not entered in this thread"):
            block.__exit__()
    assert block.result().calls == 2


def test_an_exception_ends_the_run_and_goes_on(block, clock):
    with pytest.raises(ValueError, match="mine"), block:
        clock.work(MS)
        raise ValueError("mine")
    with block:
        clock.work(MS)
    assert block.result().calls == 2


def test_asked_inside_it_tells_the_runs_that_have_ended(block, clock):
    with block:
        clock.work(STRETCH_NS)
    with block:
        clock.work(STRETCH_NS)
    for runs in range(2, 6):
        with block:
            clock.work(MS)
            assert block.result().calls == runs


def test_threads_are_added_up_and_those_that_ended_give_their_sampler_back(block, clock, made):
    def work():
        with block:
            clock.work(8 * MS)

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [sampler.closed for sampler in made[:3]] == [True, True, False]
    found = block.result()
    assert (found.calls, found.share.value) == (3, 0.25)
    assert made[2].closed


def test_threads_that_ended_leave_their_numbers_and_no_more(block, clock):
    def work():
        for _ in range(2):  # the first is sampled, the second is not
            with block:
                clock.work(STRETCH_NS // 5)

    for _ in range(40):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    before = block.result()
    assert (before.calls, before.wall_ns) == (80, 80 * STRETCH_NS // 5)
    assert (before.latency.value, before.share.value) == (STRETCH_NS // 5, 0.25)
    assert before.share.n == 8  # five threads to a stretch, as one thread would have had
    assert block._profilers == []
    assert block.result() == before
    with block:
        clock.work(STRETCH_NS // 5)
    assert len(block._profilers) == 1
    assert block.result().calls == 81


def test_without_a_sampler_the_tax_is_missing_and_says_why(clock):
    def refused():
        raise OSError(1, "not allowed here; allow it")

    block = Block("step", clock=clock, sampler=refused)
    for _ in range(3):
        with block:
            clock.work(MS)
    found = block.result()
    assert found.latency.value == MS
    assert found.tax is None and found.share is None
    assert found.reason == "not allowed here; allow it"
    assert str(found).endswith("not allowed here; allow it")


@pytest.mark.parametrize("runs", [19, 20, 21, 41, 59])
def test_the_latency_is_the_mean_of_all_runs(clock, runs):
    def refused():
        raise OSError(1, "not allowed here")

    block = Block("step", clock=clock, sampler=refused)
    for run in range(runs):
        with block:
            clock.work(MS if run < runs - 1 else 10 * MS)
    found = block.result()
    assert found.latency.value * runs == pytest.approx(found.wall_ns)
    assert found.latency.n == min(20, runs)


def test_a_block_that_never_ran_says_so(block):
    assert str(block) == "step: never run"


async def coroutine(): ...


async def stream():
    yield


class Served:
    async def __call__(self): ...


@pytest.mark.parametrize("func", [coroutine, stream, lambda: (yield), Served(), partial(coroutine)])
def test_a_function_that_returns_before_its_work_is_done_is_refused(block, func):
    with pytest.raises(UsageError):
        block(func)


def test_a_decorator_without_a_name_is_refused():
    with pytest.raises(UsageError):  # what it returned would wrap its argument
        tax(len)


def test_runs_under_one_name_are_one_block_and_others_are_not():
    for _ in range(3):
        with tax("a loop") as merged:
            pass
    assert merged.result().calls == 3
    assert tax("a loop") is merged
    assert tax() is not tax()
    assert tax("a loop", fresh=True) is not merged
    NAMED.clear()
