"""The order in which a session measures: every point once, then processes, then precision."""

import random
import signal
import threading
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
from fake_workers import AtOnce, FakeHost, FakeWorker

from frameworktax import store
from frameworktax.errors import NothingMeasuredError, WorkerError
from frameworktax.measure import session as measuring
from frameworktax.measure import template
from frameworktax.measure.plan import EXPECTED_SETUP_S, Plan
from frameworktax.measure.process import Gate
from frameworktax.measure.protocol import Facts
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.schedule import FIRST_ROUNDS
from frameworktax.measure.session import MeasuringSession
from frameworktax.measure.template import Templates
from frameworktax.measure.worker import Server
from frameworktax.records import (
    Attribution,
    Block,
    Effort,
    LeftOut,
    Note,
    Outcome,
    Parity,
    Point,
    Subject,
    Workload,
)
from frameworktax.testing import FakeClock, FakeRuntime

BATCHES = (1, 2, 4)
RUNTIMES = ("fast", "eager", "exported")


def runtime(name):
    made = FakeRuntime()
    made.name = name
    made.prepares = name in ("exported", "slow-export")
    made.compiles = name in ("slow-export", "slow-call")
    return made


class Listener(Reporter):
    def __init__(self):
        self.events = []

    def asked(self, points, until):
        self.events.append(("asked", len(points), until))

    def measured(self, point, medians_ns):
        self.events.append(("measured", point.runtime, len(medians_ns)))

    def setting_up(self, label, step):
        self.events.append(("setting up", label))

    def ready(self, label):
        self.events.append(("ready", label))

    def remaining(self, seconds):
        self.events.append(("remaining", seconds))


class Ran:
    """A session on a fake host, run to its end."""

    def __init__(self, tmp_path, monkeypatch):
        self.clock = FakeClock()
        self.host = FakeHost(self.clock)
        self.listener = Listener()
        self.tmp_path = tmp_path
        self.at_once = True
        self.sampler = "perf-event"
        self.patch = monkeypatch.setattr

    def run(self, runtimes=RUNTIMES, batches=BATCHES, platform="cpu", **plan):
        self.patch("frameworktax.runtimes.get", runtime)
        if self.at_once:
            self.patch(measuring, "ThreadPoolExecutor", AtOnce)
        self.patch(measuring, "usable_sampler", lambda: self.sampler)
        self.patch(measuring, "Worker", self.host.process)
        points = tuple(
            Point(
                workload=Workload(model="own.py:build", batch=batch),
                runtime=name,
                platform=platform,
            )
            for name in runtimes
            for batch in batches
        )
        plan = Plan(points=points, folder=self.tmp_path / "cache", **{"until": 0.03, **plan})
        with store.Writer(self.tmp_path / "s", "session") as writer:
            session = MeasuringSession(plan, writer, self.listener, clock=self.clock)
            session._begin_templates = lambda: None
            try:
                session.run()
            finally:
                self.records, _ = store.read(self.tmp_path / "s")
        return self

    def of(self, kind):
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def blocks(self):
        """(runtime, batch, process) of each block, the floor's left out."""
        return [one for one in self.host.steps("block") if one[0] != "null"]


@pytest.fixture
def ran(tmp_path, monkeypatch):
    return Ran(tmp_path, monkeypatch)


def test_every_point_is_measured_once_before_any_second_process(ran):
    blocks = ran.run().blocks
    first = next(i for i, (*_, process) in enumerate(blocks) if process > 0)
    covered = {(name, batch) for name, batch, _ in blocks[:first]}
    assert covered == {(name, batch) for name in RUNTIMES for batch in BATCHES}
    assert all(blocks[:first].count((*one, 0)) >= 1 for one in covered)
    assert {process for *_, process in blocks} == {0, 1, 2}


def test_eager_is_first_at_each_batch_and_the_cheapest_batch_is_first(ran):
    blocks = ran.run().blocks
    firsts = {}
    for name, batch, _ in blocks:
        firsts.setdefault(batch, name)
    assert firsts == dict.fromkeys(BATCHES, "eager")
    assert list(firsts) == sorted(BATCHES)


def test_a_point_has_one_block_before_the_second_process_where_the_budget_is_ample(ran):
    ran.run(budget_s=600.0)
    first = min(block.round for block in ran.of(Block) if block.process)
    before = [block.point for block in ran.of(Block) if block.round < first]
    asked = {(r.point.runtime, r.point.workload.batch): r.point.key() for r in ran.of(Subject)}
    assert [before.count(asked[name, 4]) for name in RUNTIMES] == [1] * len(RUNTIMES)


def test_precision_ends_before_the_budget_and_coverage_does_not(ran):
    ran.host.noise = 0.5
    ran.run(budget_s=600.0, precise_s=6.0)
    (effort,) = ran.of(Effort)
    # A round takes 0.8 s, and the pause before it 0.5 s; third blocks come first.
    assert 4e9 < effort.measuring_ns < 7.4e9
    assert len(set(ran.blocks)) == 3 * len(RUNTIMES) * len(BATCHES)
    short = Ran(ran.tmp_path / "short", ran.patch.__self__)
    short.run(budget_s=600.0, precise_s=0.1)
    assert {short.blocks.count(one) >= 2 for one in short.blocks} == {True}
    assert len(set(short.blocks)) == 3 * len(RUNTIMES) * len(BATCHES)


def test_others_wait_for_eager_and_are_warmed_up_meanwhile(ran):
    """Eager is loaded once everything else is warm; then it is the first."""
    warm, ran.at_once = threading.Event(), False
    others = {(n, b, 0) for n in ("fast", "exported") for b in BATCHES}

    def before(worker, request):
        if request.step == "load" and worker.runtime == "eager":
            assert warm.wait(600)
        if not others - set(ran.host.steps("bind")):
            warm.set()

    ran.host.before = before
    blocks = ran.run().blocks
    assert blocks[0][0] == "eager"
    assert {one for one in blocks if one[0] != "eager"} > others


def test_what_fails_while_others_are_set_up_is_not_tried_again(ran):
    """Eager is loaded once the batch size was tried that could be warmed up before it."""
    failed, ran.at_once = [], False
    tried = threading.Event()

    def before(worker, request):
        if request.step == "load" and worker.runtime == "eager":
            assert tried.wait(600)
        if request.step == "bind" and worker.runtime == "fast" and request.batch == 2:
            failed.append(worker.process)
            raise WorkerError("failed", "not here")
        if request.step == "bind" and worker.runtime == "fast" and request.batch == 4:
            tried.set()

    ran.host.before = before
    ran.run(runtimes=["eager", "fast"])
    assert failed == [0]
    measured = {(batch, process) for name, batch, process in ran.blocks if name == "fast"}
    assert measured == {(b, p) for b in BATCHES if b != 2 for p in range(3)}


def test_a_process_that_ends_while_timed_is_started_anew_for_other_batches(ran):
    """What was not measured in it would otherwise be neither measured nor left out."""

    def before(worker, request):
        if request.step == "block" and worker.runtime == "fast" and request.batch == 1:
            worker.alive = False
            raise WorkerError("crashed", "killed")

    ran.host.before = before
    ran.run()
    died = [one for one in ran.of(Outcome) if one.status == "crashed"]
    points = {subject.point.key(): subject.point for subject in ran.of(Subject)}
    assert {(points[one.point].runtime, points[one.point].workload.batch) for one in died} == {
        ("fast", 1)
    }
    measured = {points[block.point] for block in ran.of(Block)}
    assert {p.workload.batch for p in measured if p.runtime == "fast"} == {2, 4}
    assert {p.workload.batch for p in measured if p.runtime == "eager"} == set(BATCHES)


@pytest.mark.parametrize("step", ["bind", "output", "block"])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_size_that_ends_its_process_costs_no_other_one_anything(ran, step, batch):
    """As a CUDA error does, after which a process has no use of its device any more."""

    def before(worker, request):
        if request.step == step and worker.runtime == "fast" and request.batch == batch:
            worker.alive = False
            raise WorkerError("failed", "CUDA error: an illegal memory access was encountered")

    ran.host.before = before
    ran.run(runtimes=["eager", "fast"])
    points = {subject.point.key(): subject.point for subject in ran.of(Subject)}
    fast = [one for one in ran.of(Block) if points[one.point].runtime == "fast"]
    measured = {(points[one.point].workload.batch, one.process) for one in fast}
    assert measured == {(b, p) for b in BATCHES if b != batch for p in range(3)}
    ends = {
        (points[one.point].workload.batch, one.process): one
        for one in ran.of(Outcome)
        if points[one.point].runtime == "fast"
    }
    assert ends[batch, 0].status == "failed" and "CUDA error" in ends[batch, 0].reason
    for one in set(BATCHES) - {batch}:
        others = ends[one, 0]
        is_noted = "restarted" in {note.code for note in others.notes}
        assert (others.status, is_noted) in {("ok", True), ("failed", False)}


@pytest.mark.parametrize(("step", "ends"), [("sample", True), ("block", True), ("block", False)])
def test_a_point_that_fails_once_it_is_timed_goes_on_in_further_processes(ran, step, ends):
    """Its first value is in the store, and each process says how it ended."""
    asked = Counter()

    def before(worker, request):
        if request.step != step or worker.runtime != "fast" or request.batch != 2:
            return
        asked[worker.process] += 1
        if step == "sample" or asked[worker.process] == 2:
            worker.alive = not ends
            raise WorkerError("crashed", "killed")

    ran.host.before = before
    ran.run(runtimes=["eager", "fast"])
    (point,) = {
        subject.point.key()
        for subject in ran.of(Subject)
        if (subject.point.runtime, subject.point.workload.batch) == ("fast", 2)
    }
    assert {block.process for block in ran.of(Block) if block.point == point} == {0, 1, 2}
    ended = [(one.process, one.status) for one in ran.of(Outcome) if one.point == point]
    assert sorted(ended) == [(process, "crashed") for process in range(3)]


def test_a_session_ends_at_the_precision_that_was_asked_for(ran):
    ran.run(runtimes=["eager"], batches=[1], budget_s=600.0)
    assert len(ran.blocks) <= 12
    assert ran.clock.now_ns < 8e9


def test_a_noisy_session_ends_before_its_budget_or_at_its_blocks(ran):
    ran.host.noise = 0.2
    ran.run(runtimes=["eager"], batches=[1], budget_s=600.0)
    assert 30 <= len(ran.blocks) <= 32
    ran.clock.now_ns, short = 0, Ran(ran.tmp_path / "short", ran.patch.__self__)
    short.host.noise = 0.2
    short.run(runtimes=["eager"], batches=[1], budget_s=2.0)
    (effort,) = short.of(Effort)
    assert 6 <= len(short.blocks) < 30 and effort.measuring_ns < 2.1e9


def test_no_round_is_begun_that_would_end_after_the_budget(ran):
    """One round takes about 8 s here, and is expected to take 10.5 s."""
    ran.host.noise = 0.2
    ran.host.call_ns = lambda runtime, batch: 500_000_000 if runtime == "eager" else 1_000
    ran.run(runtimes=["eager"], batches=[1], budget_s=60.0)
    (effort,) = ran.of(Effort)
    assert 40e9 < effort.measuring_ns < 60e9


def test_nothing_sleeps_while_a_point_waits(ran):
    """With many points, other points' blocks lie between those of one, but once: after pass B."""
    ran.host.noise = 0.5
    ran.run(batches=[1, 2, 4, 8, 16, 32], budget_s=60.0)
    assert sum(ran.clock.slept) <= 0.5


def test_a_point_alone_has_pauses_between_its_rounds(ran):
    ran.host.noise = 0.2
    ran.run(runtimes=["eager"], batches=[1], budget_s=60.0)
    assert ran.clock.slept and max(ran.clock.slept) <= 0.5
    alone = Ran(ran.tmp_path / "alone", ran.patch.__self__)
    alone.host.noise = 0.2
    alone.run(runtimes=["eager"], batches=[1], budget_s=60.0, processes=1)
    assert 1.5 < max(alone.clock.slept) <= 2.0


def test_a_spent_budget_leaves_points_covered_and_others_out_with_a_reason(ran):
    ran.host.call_ns = lambda runtime, batch: 100_000_000 * batch
    ran.run(batches=[1, 2, 4, 8, 16], budget_s=12.0)
    measured = {one[:2] for one in ran.blocks}
    left_out = {(r.point.runtime, r.point.workload.batch): r.reason for r in ran.of(LeftOut)}
    assert {("eager", 1), ("fast", 1), ("exported", 1)} <= measured
    assert set(left_out) | measured == {(n, b) for n in RUNTIMES for b in [1, 2, 4, 8, 16]}
    assert not set(left_out) & measured and left_out
    assert all("--time-budget" in reason for reason in left_out.values())
    assert {len([b for b in ran.blocks if b[:2] == one]) >= 2 for one in measured} == {True}
    assert all(process == 0 for *_, process in ran.blocks)


def test_a_batch_that_takes_no_longer_than_a_smaller_one_is_not_left_out(ran):
    """By the smaller one it would take 8 s a call: too long for what is left."""
    ran.host.call_ns = lambda runtime, batch: 2_000_000_000
    ran.run(runtimes=["eager", "fast"], batches=[1, 4], budget_s=90.0, processes=1)
    assert not ran.of(LeftOut)
    (effort,) = ran.of(Effort)
    assert effort.measuring_ns < 90e9


def test_the_first_point_is_measured_however_small_the_budget(ran):
    ran.run(budget_s=1e-6)
    assert {one[:2] for one in ran.blocks} == {("eager", 1), ("fast", 1), ("exported", 1)}


def test_set_up_is_not_charged(ran):
    ran.host.setup_ns = {"fast": 10**12, "exported": 10**12, "eager": 10**12}
    ran.run(budget_s=60.0)
    (effort,) = ran.of(Effort)
    assert not ran.of(LeftOut)
    assert effort.measuring_ns < 90e9 < 3e12 <= effort.wall_ns
    assert effort.setup_ns >= 6e12  # two more processes of each
    assert 0 < effort.calls_ns < effort.measuring_ns


def test_a_session_that_is_interrupted_does_not_say_that_it_was_whole(ran):
    def measured(point, medians_ns):
        if len(ran.blocks) > 10:
            raise KeyboardInterrupt

    ran.listener.measured = measured
    with pytest.raises(KeyboardInterrupt):
        ran.run()
    assert ran.of(Block)
    assert not ran.of(Effort)


def test_a_batch_size_that_the_model_refuses_leaves_the_others_of_an_export(ran):
    raised = (Note("counts-failed", "not counted: no four"),)
    ran.host.facts = {batch: Facts(notes=raised if batch == 4 else ()) for batch in BATCHES}

    def before(worker, request):
        if request.step == "prepare" and 4 in request.batches:
            raise WorkerError("failed", "no four")

    ran.host.before = before
    ran.run(["exported"])
    batch_of = {one.point.key(): one.point.workload.batch for one in ran.of(Subject)}
    ended = {(batch_of[one.point], one.status) for one in ran.of(Outcome)}
    assert ended == {(1, "ok"), (2, "ok"), (4, "failed")}
    assert {batch for _, batch, _ in ran.blocks} == set(BATCHES) - {4}


def test_processes_end_side_by_side(ran, monkeypatch):
    """All are signalled before the first is waited for."""
    seen = []
    monkeypatch.setattr(FakeWorker, "signal", lambda worker, which: seen.append(which))
    monkeypatch.setattr(FakeWorker, "kill", lambda worker: seen.append("waits"))
    ran.run(("eager",), (1,), processes=1)
    begun = len(ran.host.workers)
    assert seen[-2 * begun :] == [signal.SIGKILL] * begun + ["waits"] * begun


def test_outputs_of_runtimes_are_written_side_by_side(ran, monkeypatch):
    monkeypatch.setattr(measuring.host, "usable_cpus", lambda: (0, 1))
    both, ran.at_once = threading.Barrier(2, timeout=600), False
    is_ready = threading.Event()  # so that both are visited together

    def before(worker, request):
        if request.step == "load" and worker.runtime == "eager":
            assert is_ready.wait(600)
        if request.step == "output":
            both.wait()

    ran.host.before = before
    ran.listener.ready = lambda label: is_ready.set() if label == "fast" else None
    ran.run(("eager", "fast"), (1,), processes=1)
    assert {parity.within_tolerance for parity in ran.of(Parity)} == {True}


def test_a_reference_that_ends_its_process_is_started_anew_for_other_batches(ran):
    """Eager that was not asked for, whose outputs prove those of others."""

    def before(worker, request):
        if request.step == "output" and worker.runtime == "eager" and request.batch == 2:
            worker.alive = False
            raise WorkerError("crashed", "SIGSEGV")

    ran.host.before = before
    found = ran.run(runtimes=["fast"]).of(Parity)
    points = {subject.point.key(): subject.point for subject in ran.of(Subject)}
    proven = {points[one.point].workload.batch: one for one in found}
    assert {batch: one.within_tolerance for batch, one in proven.items()} == {
        1: True, 2: None, 4: True,
    }  # fmt: skip
    assert proven[2].reason == "no outputs of eager: SIGSEGV"


@pytest.mark.parametrize("silent", ["eager", "fast"])
def test_outputs_that_cannot_be_written_say_why(ran, silent):
    def before(worker, request):
        if request.step == "output" and worker.runtime == silent:
            raise WorkerError("failed", "no tensor is in it")

    ran.host.before = before
    found = ran.run(runtimes=["eager", "fast"], batches=[1]).of(Parity)
    points = {subject.point.key(): subject.point.runtime for subject in ran.of(Subject)}
    (fast,) = [one for one in found if points[one.point] == "fast"]
    assert (fast.within_tolerance, fast.reason) == (
        None,
        f"no outputs of {silent}: no tensor is in it",
    )


def test_the_effort_counts_calls_that_were_timed_or_sampled(ran):
    ran.run(runtimes=["eager"], batches=[1], processes=1)
    (effort,) = ran.of(Effort)
    keys = {r.point.runtime: r.point.key() for r in ran.of(Subject)}
    blocks = [block for block in ran.of(Block) if block.point == keys["eager"]]
    assert len(blocks) == 5
    sampled_ns = sum(r.wall_ns for r in ran.of(Attribution))
    assert effort.calls_ns == 5 * 20 * 1_000_000 + sampled_ns


def test_twins_come_after_what_was_asked_for(ran):
    ran.host.has_twin = True
    blocks = ran.run(twin="all").blocks
    first = next(i for i, (name, *_) in enumerate(blocks) if "twin" in name)
    assert {one[:2] for one in blocks[:first]} == {(n, b) for n in RUNTIMES for b in BATCHES}
    assert {name for name, *_ in blocks if "twin" in name} == {f"{n} (twin)" for n in RUNTIMES}


@pytest.mark.parametrize("sampler", ["perf-event", None])
def test_unasked_twins_are_measured_only_where_nothing_can_be_sampled(ran, sampler):
    ran.host.has_twin, ran.sampler = True, sampler
    twins = {name for name, *_ in ran.run().blocks if "twin" in name}
    assert twins == (set() if sampler else {f"{name} (twin)" for name in RUNTIMES})


@pytest.mark.parametrize("slow", ["slow-export", "slow-call"])
def test_a_slow_compiler_is_late_and_no_other_row_is_empty(ran, slow):
    """It compiles until every other point is measured: no other row waits for it."""
    covered, ran.at_once = threading.Event(), False

    def before(worker, request):
        if request.step == "block":
            others = {one[:2] for one in ran.host.steps("block")}
            if len(others - {("null", 1)}) >= 2 * len(BATCHES):
                covered.set()
        is_slow = getattr(request, "runtime", worker.runtime) == slow
        if is_slow and request.step == ("prepare" if slow == "slow-export" else "bind"):
            assert covered.wait(600)

    ran.host.before = before
    ran.run(runtimes=["eager", "fast", slow])
    assert {one[:2] for one in ran.blocks} == {
        (name, batch) for name in ("eager", "fast", slow) for batch in BATCHES
    }
    described = [r.point.runtime for r in ran.of(Subject) if r.final]
    assert list(dict.fromkeys(described)) == ["eager", "fast", slow, "null"]


def test_what_takes_longer_than_a_step_may_is_left_with_a_reason(ran):
    def before(worker, request):
        if request.step == "load" and request.runtime == "fast":
            raise WorkerError("timeout", "load not done after 9 s, ended")

    ran.host.before = before
    ran.run(setup_limit_s=9.0)
    lost = [r for r in ran.of(Outcome) if r.status == "timeout"]
    assert len(lost) == len(BATCHES) and all("--setup-limit" in r.reason for r in lost)
    assert {one[0] for one in ran.blocks} == {"eager", "exported"}


def test_nothing_that_works_is_an_error_with_every_reason(ran):
    """But not those of the floor, which was not asked for."""

    def before(worker, request):
        if request.step == "load":
            raise WorkerError("failed", "no such thing")

    ran.host.before = before
    with pytest.raises(NothingMeasuredError, match="eager: no such thing") as caught:
        ran.run()
    assert "null" not in str(caught.value)


@pytest.mark.parametrize("step", ["bind", "block"])
@pytest.mark.parametrize("floor", [(), ("null",)])
def test_nothing_that_is_timed_is_an_error_whatever_step_fails(ran, step, floor):
    def before(worker, request):
        if request.step == step and worker.runtime != "null":
            raise WorkerError("failed", "no")

    ran.host.before = before
    with pytest.raises(NothingMeasuredError) as nothing:
        ran.run(runtimes=("eager", "fast", *floor))
    assert str(nothing.value) in {
        f"nothing could be measured; {one}: no; {other}: no"
        for one, other in (("eager", "fast"), ("fast", "eager"))
    }


def test_where_memory_is_short_processes_are_measured_in_shifts(ran, monkeypatch):
    ran.host.resident_bytes = 10**15
    ran.run()
    blocks = ran.blocks
    assert {process for *_, process in blocks} == {0, 1, 2}
    order = [process for *_, process in blocks]
    assert order == sorted(order)
    outcomes = [(r.point, r.process) for r in ran.of(Outcome) if r.status == "ok"]
    assert len(outcomes) == len(set(outcomes))


def processes_of(blocks, batch=1):
    return {process for _, its, process in blocks if its == batch}


def test_where_intervals_are_wide_more_processes_are_measured(ran):
    """At the batch sizes that are, and only where the caller left the number of processes open."""
    rng = random.Random(2)
    ran.host.call_ns = lambda _, batch: round(1e6 * (rng.gauss(1, 0.1) if batch == 1 else 8))
    ran.run(runtimes=["eager", "fast"], batches=[1, 8], most_processes=12)
    assert processes_of(ran.blocks) == set(range(12)) and processes_of(ran.blocks, 8) == {0, 1, 2}
    assert all(ran.blocks.count((name, 1, 11)) >= 2 for name in ("eager", "fast"))
    first = ran.blocks.index(("eager", 1, 3))
    assert {ran.blocks[:first].count((name, 1, 2)) for name in ("eager", "fast")} <= {2, 3}


def test_a_batch_size_that_takes_too_long_keeps_no_other_from_more_processes(ran):
    ran.host.noise = 0.1
    ran.host.call_ns = lambda _, batch: 1_000_000 * (150 if batch == 64 else batch)
    ran.run(runtimes=["eager", "fast"], batches=[1, 64], most_processes=12, precise_s=29.0)
    assert processes_of(ran.blocks) == set(range(12))
    assert processes_of(ran.blocks, 64) == {0, 1, 2}


def test_a_batch_size_gets_as_many_more_processes_as_there_is_time_for(ran):
    """After a smaller one, which gets all."""
    ran.host.noise = 0.1
    ran.host.call_ns = lambda _, batch: 1_000_000 * (150 if batch == 64 else batch)
    ran.run(runtimes=["eager"], batches=[1, 64], most_processes=12, precise_s=22.0)
    assert processes_of(ran.blocks) == set(range(12))
    assert 3 < len(processes_of(ran.blocks, 64)) < 12


def test_a_large_batch_size_takes_no_process_from_a_smaller_one(ran):
    """There is time for it in two of three more processes, and then for nothing in the third."""
    ran.host.noise = 0.1
    ran.host.call_ns = lambda _, batch: 1_000_000 * (150 if batch == 64 else 20)
    ran.run(runtimes=["eager", "fast"], batches=[1, 64], most_processes=12, precise_s=42.1)
    assert processes_of(ran.blocks, 64) == set(range(5))
    assert processes_of(ran.blocks) >= set(range(6))


def test_before_more_processes_are_begun_the_rest_of_the_time_is_said(ran):
    ran.host.noise = 0.2
    ran.run(runtimes=["eager"], batches=[1], most_processes=12, precise_s=12.0)
    whole, *left = [one[1] for one in ran.listener.events if one[0] == "remaining"]
    assert whole == EXPECTED_SETUP_S + 12 and len(left) > 2
    assert all(0 < later < earlier < 12 for earlier, later in pairwise(left))
    heard = ran.listener.events[: ran.listener.events.index(("remaining", left[0]))]
    assert max(one[2] for one in heard if one[0] == "measured") == 3


@pytest.mark.parametrize("most", [12, 0])
def test_what_is_precise_or_has_its_processes_gets_no_more_of_them(ran, most):
    ran.host.noise = 0.0 if most else 0.2
    ran.run(most_processes=most)
    assert processes_of(ran.blocks) == {0, 1, 2}


def test_no_more_processes_than_memory_and_time_allow(ran, monkeypatch):
    ran.host.noise = 0.2
    monkeypatch.setattr("frameworktax.host.memory_available_bytes", lambda: 12_000)
    ran.run(runtimes=["eager"], most_processes=12)
    assert 3 < len(processes_of(ran.blocks)) < 12
    slow = Ran(ran.tmp_path / "slow", ran.patch.__self__)
    slow.host.noise = 0.2
    slow.host.setup_ns = {"eager": 7_000_000_000}
    slow.run(runtimes=["eager"], most_processes=12, precise_s=12.0)
    assert processes_of(slow.blocks) == {0, 1, 2}


@pytest.mark.parametrize(("last_that_fails", "begun"), [(5, 6), (4, 12)])
def test_where_no_more_processes_can_be_loaded_twice_as_many_are_not_tried(
    ran, last_that_fails, begun
):
    ran.host.noise = 0.2

    def before(worker, request):
        if request.step == "load" and 3 <= worker.process <= last_that_fails:
            worker.alive = False
            raise WorkerError("out-of-memory", "killed by the kernel during load")

    ran.host.before = before
    ran.run(runtimes=["eager"], batches=[1], most_processes=12, precise_s=20.0)
    loads = [process for name, _, process in ran.host.steps("load") if name == "eager"]
    assert sorted(loads) == list(range(begun))
    assert processes_of(ran.blocks) == {*range(3), *range(last_that_fails + 1, begun)}


def test_of_a_device_no_more_processes_are_started(ran, monkeypatch):
    monkeypatch.setattr("frameworktax.host.gpus", list)
    ran.host.noise = 0.2
    ran.run(runtimes=["eager"], batches=[1], platform="cuda:0", most_processes=12)
    assert processes_of(ran.blocks) == {0, 1, 2}


def test_what_compares_shares_rounds_with_eager(ran):
    ran.run()
    rounds = {}
    keys = {r.point.key(): (r.point.runtime, r.point.workload.batch) for r in ran.of(Subject)}
    for block in ran.of(Block):
        rounds.setdefault(keys[block.point], set()).add((block.process, block.round))
    for batch in BATCHES:
        assert rounds["eager", batch] >= rounds["fast", batch]


def test_the_floor_can_be_asked_for(ran):
    ran.run(runtimes=["null"], batches=[1, 2])
    keys = {r.point.workload.batch: r.point.key() for r in ran.of(Subject)}
    rounds = {batch: [b.round for b in ran.of(Block) if b.point == keys[batch]] for batch in (1, 2)}
    assert all(len(found) == len(set(found)) >= 5 for found in rounds.values())
    assert not ran.of(LeftOut)
    assert not ran.of(Attribution)


def test_the_floor_has_several_blocks_where_no_time_is_left_for_precision(ran):
    """It has one process, so no second one gives it what pass A left to be done."""
    ran.run(runtimes=["eager", "null"], budget_s=600.0, precise_s=0.1)
    for subject in ran.of(Subject):
        assert sum(block.point == subject.point.key() for block in ran.of(Block)) >= FIRST_ROUNDS


def test_the_floor_has_its_first_blocks_however_noisy_it_is(ran):
    ran.host.noise = 0.2
    ran.run(runtimes=["null"], batches=[1], budget_s=600.0)
    assert 5 <= len(ran.of(Block)) <= 8


def test_the_reporter_hears_what_is_asked_of_set_up_and_of_medians(ran):
    ran.run()
    heard = ran.listener.events
    assert heard[0] == ("asked", len(RUNTIMES) * len(BATCHES), 0.03)
    assert ("setting up", "exported") in heard and ("ready", "exported") in heard
    assert ("measured", "eager", 1) in heard and ("measured", "eager", 3) in heard


# --- the gate -------------------------------------------------------------------------------------


def test_what_is_at_work_is_stopped_while_a_block_is_timed():
    gate, host = Gate(Templates()), FakeHost(FakeClock())
    worker, idle = host.process("worker"), host.process("idle")
    seen = []

    def before(asked, request):
        with gate.quiet():  # the same thread may: a lock that counts
            seen.append((list(worker.signals), list(idle.signals)))

    host.before = before
    given = {"workload": Workload(model="m"), "runtime": "eager", "target": None}
    gate.ask(worker, Server.load, 1.0, folder="", **given)
    both = [signal.SIGSTOP, signal.SIGCONT]
    assert seen == [(both[:1], [])]
    assert worker.signals == both
    with gate.quiet():
        assert worker.signals == both  # it has answered


def test_templates_import_nothing_while_a_block_is_timed(monkeypatch):
    templates, heard = Templates(), []
    process = SimpleNamespace(is_over=False, begun=lambda timeout_s: True, signal=heard.append)
    templates._found["kind",] = SimpleNamespace(is_ready=False, above=None, process=process)
    with pytest.raises(KeyboardInterrupt), Gate(templates).quiet():
        assert heard == [signal.SIGSTOP]
        raise KeyboardInterrupt
    assert heard == [signal.SIGSTOP, signal.SIGCONT]
    process.is_over = True  # its number may be another process's by now
    with Gate(templates).quiet():
        assert len(heard) == 2
    assert len(heard) == 2


def test_no_template_begins_while_a_block_is_timed(monkeypatch):
    """Set-up may have asked for its process just before."""
    templates, is_quiet, began = Templates(), threading.Event(), []
    monkeypatch.setattr(template, "Template", lambda *_: began.append(is_quiet.is_set()))
    asking = threading.Thread(target=templates.get, args=({},))
    with Gate(templates).quiet():
        is_quiet.set()
        asking.start()
        asking.join(0.1)
        is_quiet.clear()
    asking.join()
    assert began == [False]


def test_set_up_begins_nothing_while_a_block_is_timed():
    gate, host = Gate(Templates()), FakeHost(FakeClock())
    worker = host.process("worker")
    with gate.quiet():
        thread = threading.Thread(target=gate.ask, args=(worker, Server.memory, 1.0))
        thread.start()
        thread.join(0.05)
        assert host.asked == []
    thread.join()
    assert len(host.asked) == 1


def test_time_in_which_blocks_are_timed_does_not_count(monkeypatch):
    gate, now = Gate(Templates()), [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    now[0] = 4
    with gate.quiet():
        now[0] = 50
        assert gate.clock() == 4
    now[0] = 53
    assert gate.clock() == 7
    assert gate.quiet_ns(0, 53) == 46
    assert (gate.quiet_ns(49, 51), gate.quiet_ns(50, 51)) == (1, 0)


def test_blocks_of_a_session_are_timed_in_quiet(ran, monkeypatch):
    quiet = [0]
    real = Gate.quiet

    class Counting(Gate):
        def quiet(self):
            import contextlib

            @contextlib.contextmanager
            def inside():
                with real(self):
                    quiet[0] += 1
                    try:
                        yield
                    finally:
                        quiet[0] -= 1

            return inside()

    monkeypatch.setattr(measuring, "Gate", Counting)

    def before(worker, request):
        if request.step in ("block", "calibrate", "sample"):
            assert quiet[0] == 1
        if request.step in ("load", "prepare", "bind", "describe"):
            assert quiet[0] == 0

    ran.host.before = before
    ran.run()
    assert ran.blocks


def test_what_is_timed_is_pinned_and_what_is_warmed_up_is_not(ran):
    pinned = {}

    def before(worker, request):
        if request.step == "pin":
            pinned[worker] = bool(getattr(request, "cpus", ()))
        if request.step == "bind":
            assert not pinned.get(worker)
        if request.step in ("block", "sample") and worker.runtime != "null":
            assert pinned[worker]

    ran.host.before = before
    assert len(set(ran.run().blocks)) == 3 * len(RUNTIMES) * len(BATCHES)


def test_layers_are_measured_after_all_that_is_timed_which_is_the_same_without(ran, monkeypatch):
    monkeypatch.setattr(FakeRuntime, "places", ("module",))
    ran.host.noise = 0

    def before(worker, request):
        if request.step == "places":
            raise WorkerError("failed", "not here")

    def asked(by):
        ran.host.asked.clear()
        ran.tmp_path = ran.tmp_path / by
        ran.run(("eager",), (1, 8), by=by)
        timing = ("block", "calibrate", "sample", "places")
        return [one for one in ran.host.asked if one[1] in timing]

    ran.host.before = before
    with_layers, without = asked("module"), asked("none")
    assert with_layers[: len(without)] == without
    assert [step for _, step, *_ in with_layers[len(without) :]] == ["places"] * 6


def test_a_device_is_asked_for_kernel_time_before_it_is_asked_by_module(ran, monkeypatch):
    monkeypatch.setattr(FakeRuntime, "devices", ("cuda",))
    monkeypatch.setattr(FakeRuntime, "places", ("module",))

    slow_ns = 0

    def before(worker, request):
        if request.step == "device":
            ran.clock.work(slow_ns)
        if request.step == "places":
            raise WorkerError("failed", "not here")

    def asked(folder):
        ran.tmp_path = folder
        ran.host.asked.clear()
        ran.run(("eager",), (1, 8), platform="cuda:0", processes=1, by="auto", budget_s=60.0)
        steps = [step for _, step, *_ in ran.host.asked]
        return [step for step in steps if step in ("block", "device", "places")]

    ran.host.before = before
    assert asked(ran.tmp_path / "in time")[-4:] == ["device", "device", "places", "places"]
    # Unasked, nothing is broken down in a budget that is spent.
    slow_ns = 40_000_000_000
    assert asked(ran.tmp_path / "late")[-3:] == ["block", "device", "device"]


def test_runtimes_take_turns_in_one_order_and_in_its_reverse(ran):
    """Process 1 turns the order of process 0, others have orders that the session draws."""
    names = [f"runtime-{n}" for n in range(8)]
    ran.run(processes=4, runtimes=[*names, "eager"])  # eager is loaded first
    for what in ("load", "bind"):
        steps = [one for one in ran.host.steps(what) if one[0] != "null"]
        of = [[one[0] for one in steps if one[-1] == process] for process in range(4)]
        orders = [list(dict.fromkeys(one)) for one in of]
        assert orders[0] == orders[1][::-1] == ["eager", *names], what
        assert orders[2] == orders[3][::-1] != orders[0], what
        assert sorted(orders[2]) == sorted(orders[0])
