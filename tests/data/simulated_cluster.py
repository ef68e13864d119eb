"""A cluster that measures nothing, on a clock that moves only by hand, and keeps the truth.

Nodes crash, hang, leave with what they run, and join; jobs end in any order, are reported twice, or
come home after they were given up. What was written down is remembered here, so that afterwards a
sweep's store and its table can be compared with it: nothing lost, doubled or invented.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from frameworktax.errors import WorkerError
from frameworktax.records import (
    Attribution,
    Block,
    Environment,
    Outcome,
    Point,
    Session,
    Status,
    Subject,
)
from frameworktax.store import Writer, read
from frameworktax.sweep.executor import Done, Job, Platform, limit_s
from frameworktax.sweep.run import SweepResults
from frameworktax.testing import FakeClock

PROCESSES, ROUNDS, CALLS = 3, 2, 20
MEMORY_BYTES = 10**15
"""Of a node: what shares a session does not hang on the memory of whoever runs this."""
HOST = Environment(host="simulated", system="s", python="3", cpu="c", cores=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, by chance and by design.

    Attributes:
        crash: share of sessions that are lost though their node stays.
        hang: share of sessions that never end.
        twice: share of ends that are reported twice.
        late: share of lost sessions that come home whole after all.
        node_s: mean time between nodes that leave, 0 for never.
        back_s: how long such a node stays away.
        joining: moments, s, at which a node joins each platform.
        poison: points that end every session they are in.
        failing: points that fail whenever they are tried.
        flaky: points that crash the first time.
        driver_s: when the driver is killed.
    """

    crash: float = 0.0
    hang: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    node_s: float = 0.0
    back_s: float = 300.0
    joining: Sequence[float] = ()
    poison: frozenset[Point] = frozenset()
    failing: frozenset[Point] = frozenset()
    flaky: frozenset[Point] = frozenset()
    driver_s: float | None = None


class DriverKilled(BaseException):
    """The driver's process ends here; nothing it would still do is done."""


@dataclass
class Truth:
    """What really happened, over several drivers."""

    measured: dict[Point, list[str]] = field(default_factory=lambda: defaultdict(list))
    blocks: set[tuple[str, str, int, int]] = field(default_factory=set)
    tried: Counter[Point] = field(default_factory=Counter)
    lost_alone: Counter[Point] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    sessions: Iterator[int] = field(default_factory=itertools.count)


@dataclass
class _Run:
    job: Job
    node: int
    session: str
    ended: bool = False


class SimulatedCluster:
    """An executor of nodes that are numbers.

    Args:
        folder: the store.
        clock: moved by it.
        nodes: how many, by label.
        faults: what goes wrong.
        seed: of everything that is drawn.
        truth: of the drivers before.
    """

    def __init__(
        self,
        folder: Path,
        clock: FakeClock,
        nodes: Mapping[str, int],
        faults: Faults,
        seed: int,
        truth: Truth | None = None,
    ) -> None:
        self.truth = truth or Truth()
        self.jobs: list[Job] = []
        self.cpu_ns = 0
        """CPU time spent in here, to be taken off the driver's."""
        self.recoveries: list[tuple[int, int]] = []
        """After a loss, ns until its points were out again, and until the last was measured."""
        self._folder = folder
        self._clock = clock
        self._faults = faults
        self._rng = random.Random(seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._label: dict[int, str] = {}
        self._idle: dict[str, deque[int]] = defaultdict(deque)
        self._running: dict[int, _Run] = {}
        self._waiting: dict[str, deque[Job]] = {label: deque() for label in nodes}
        self._done: deque[Done] = deque()
        self._open: set[str] = set()
        self._lost_at: dict[Point, int] = {}
        self._again_at: dict[Point, int] = {}
        for label, count in nodes.items():
            for _ in range(count):
                self._join(label)
            for moment in faults.joining:
                self._at(moment, lambda label=label: self._join(label))
        if faults.node_s:
            self._at(self._rng.expovariate(1 / faults.node_s), self._leave)
        if faults.driver_s is not None:
            self._at(faults.driver_s, self._kill)

    # --- an executor --------------------------------------------------------------------------

    def platforms(self) -> Sequence[Platform]:
        """Return the labels with the nodes that are there."""
        begin = time.process_time_ns()
        self._pass(self._clock.now_ns)
        slots = Counter(self._label.values())
        found = [
            Platform(
                label=label, device="cpu", host=label, slots=slots[label], memory_bytes=MEMORY_BYTES
            )
            for label in self._waiting
        ]
        self.cpu_ns += time.process_time_ns() - begin
        return found

    def submit(self, job: Job) -> None:
        """Take a job."""
        begin = time.process_time_ns()
        self.jobs.append(job)
        self._open.add(job.name)
        for point in job.points:
            if point in self._lost_at:
                self._again_at.setdefault(point, self._clock.now_ns)
        self._waiting[job.platform].append(job)
        self._place(job.platform)
        self.cpu_ns += time.process_time_ns() - begin

    def next_done(self, wait_s: float) -> Done | None:
        """Let time pass until a job has ended."""
        begin = time.process_time_ns()
        until_ns = self._clock.now_ns + round(wait_s * 1e9)
        while not self._done and self._open:
            if not self._events or self._events[0][0] > until_ns:
                self._pass(until_ns)
                break
            self._pass(self._events[0][0])
        self.cpu_ns += time.process_time_ns() - begin
        return self._done.popleft() if self._done else None

    def cancel(self, name: str) -> bool:
        """Take back a job that waits for a node."""
        for queue in self._waiting.values():
            for job in queue:
                if job.name == name:
                    queue.remove(job)
                    self._open.discard(name)
                    return True
        return False

    def close(self) -> None:
        """Nothing runs but numbers."""

    # --- what happens -------------------------------------------------------------------------

    def _at(self, after_s: float, event: Callable[[], None]) -> None:
        moment = self._clock.now_ns + round(after_s * 1e9)
        heapq.heappush(self._events, (moment, next(self._number), event))

    def _pass(self, moment_ns: int) -> None:
        """Let everything happen up to a moment, each thing at its time."""
        while self._events and self._events[0][0] <= moment_ns:
            when_ns, _, event = heapq.heappop(self._events)
            self._clock.wait_until(when_ns)
            event()
        self._clock.wait_until(moment_ns)

    def _join(self, label: str) -> None:
        node = next(self._number)
        self._label[node] = label
        self._idle[label].append(node)
        self._place(label)

    def _leave(self) -> None:
        self._at(self._rng.expovariate(1 / self._faults.node_s), self._leave)
        if not self._label:
            return
        node = self._rng.choice(list(self._label))
        self.truth.happened["node left"] += 1
        label = self._label[node]
        self._gone(node)
        self._at(self._faults.back_s, lambda: self._join(label))
        if run := self._running.get(node):
            self._lose(run, "crashed", "its node left")

    def _gone(self, node: int) -> None:
        label = self._label.pop(node)
        if node in self._idle[label]:
            self._idle[label].remove(node)

    def _kill(self) -> None:
        self.truth.happened["driver killed"] += 1
        for run in list(self._running.values()):
            self._write(run, self._rng.random())
        raise DriverKilled

    def _place(self, label: str) -> None:
        while self._waiting[label] and self._idle[label]:
            self._start(self._waiting[label].popleft(), self._idle[label].popleft())

    def _start(self, job: Job, node: int) -> None:
        session = new_session(next(self.truth.sessions))
        run = self._running[node] = _Run(job, node, session)
        wall_s = min(job.plan.budget_s, sum(self._rng.lognormvariate(1.8, 0.3) for _ in job.points))
        chance = self._rng.random()
        if not self._faults.poison.isdisjoint(job.points):
            self._at(
                wall_s * self._rng.random(), lambda: self._lose(run, "out-of-memory", "poison")
            )
        elif chance < self._faults.crash:
            self._at(wall_s * self._rng.random(), lambda: self._lose(run, "crashed", "SIGKILL"))
        elif chance < self._faults.crash + self._faults.hang:
            self._at(limit_s(job), lambda: self._lose(run, "timeout", "did not end"))
        else:
            self._at(wall_s, lambda: self._finish(run, wall_s))

    def _finish(self, run: _Run, wall_s: float) -> None:
        if run.ended:
            return
        self._free(run)
        self._write(run, 1.0)
        wall_ns = round(wall_s * 1e9)
        self._report(Done(job=run.job, session=run.session, wall_ns=wall_ns))
        self._count_recovered(run.job)

    def _count_recovered(self, job: Job) -> None:
        lost = [(self._lost_at.pop(p), p) for p in job.points if p in self._lost_at]
        if lost:
            moment, point = min(lost, key=lambda found: found[0])
            again_ns = self._again_at.get(point, self._clock.now_ns) - moment
            self.recoveries.append((again_ns, self._clock.now_ns - moment))
        for _, point in lost:
            self._again_at.pop(point, None)

    def _lose(self, run: _Run, status: str, reason: str) -> None:
        if run.ended:
            return
        self.truth.happened[reason] += 1
        if len(run.job.points) == 1:
            self.truth.lost_alone[run.job.points[0]] += 1
        self._free(run)
        for point in run.job.points:
            if point not in self._faults.poison:
                self._lost_at.setdefault(point, self._clock.now_ns)
        error = WorkerError(status, f"the session was lost: {reason}")
        lost = Done(job=run.job, session=run.session, wall_ns=0, error=error)
        comes_home = (
            self._rng.random() < self._faults.late
            and self._faults.poison.isdisjoint(run.job.points)
        )  # fmt: skip
        if not comes_home:
            self._write(run, self._rng.random() * 0.6)
            self._report(lost)
            return
        # Cut off from the driver and not dead: the records come home when others do the same.
        self._report(Done(job=run.job, session="", wall_ns=0, error=error))
        whole = Done(job=run.job, session=run.session, wall_ns=10**9)

        def home() -> None:
            self.truth.happened["came home late"] += 1
            self._write(run, 1.0)
            self._done.append(whole)

        self._at(self._rng.uniform(1, 300), home)

    def _free(self, run: _Run) -> None:
        run.ended = True
        del self._running[run.node]
        label = run.job.platform
        if run.node in self._label:
            self._idle[label].append(run.node)
        self._place(label)

    def _report(self, done: Done) -> None:
        self._done.append(done)
        self._open.discard(done.job.name)
        if self._rng.random() < self._faults.twice:
            self.truth.happened["reported twice"] += 1
            self._at(self._rng.uniform(0, 200), lambda: self._done.append(done))

    # --- what is written ----------------------------------------------------------------------

    def _write(self, run: _Run, share: float) -> None:
        """Write a session: points whole up to a share of them, then one cut off half-way."""
        points = list(run.job.points)
        self._rng.shuffle(points)
        whole = len(points) if share >= 1 else int(share * len(points))
        lines: list[Session | Subject | Block | Outcome | Attribution] = [
            Session(session=run.session, started="2026-01-01T00:00:00", version="0",
                    command=("x",), environment=HOST)
        ]  # fmt: skip
        for number, point in enumerate(points[: whole + 1]):
            cut = number >= whole
            if cut and point in self._faults.poison:
                continue
            lines.append(Subject(session=run.session, point=point, paradigm="eager"))
            if point not in self._faults.poison:
                lines += self._point(run.session, point, cut=cut)
        with Writer(self._folder, run.session) as writer:
            for line in lines:
                writer.write(line)
        if self._rng.random() < self._faults.twice:  # the same records, in a second shard
            self.truth.happened["records twice"] += 1
            copy = self._folder / f"{run.session}-again.jsonl"
            copy.write_bytes((self._folder / f"{run.session}.jsonl").read_bytes())

    def _point(self, session: str, point: Point, *, cut: bool) -> list[Block | Outcome]:
        key = point.key()
        if not cut:
            self.truth.tried[point] += 1
            status: Status | None = "failed" if point in self._faults.failing else None
            if point in self._faults.flaky and self.truth.tried[point] == 1:
                status = "crashed"
            if status is not None:
                return [
                    Outcome(session=session, point=key, process=0, status=status, reason="drawn")
                ]
        found: list[Block | Outcome] = []
        for process in range(1 if cut else PROCESSES):
            for round_ in range(ROUNDS):
                self.truth.blocks.add((session, key, process, round_))
                found.append(block(session, key, process, round_))
        if not cut:
            self.truth.measured[point].append(session)
            found.append(Outcome(session=session, point=key, process=0, status="ok"))
        return found


def new_session(number: int) -> str:
    """Return an identity that sorts as sessions begin, those of the driver in between.

    The driver's follow the newest in the store: these lie in the future, seconds apart.
    """
    return f"{datetime(2099, 1, 1) + timedelta(seconds=10 * number):%Y%m%dT%H%M%S}-{number:08x}"


def block(session: str, key: str, process: int, round_: int) -> Block:
    """Return a block that no other equals: its content says where it came from."""
    first = int(key[:6], 16) * 1000 + int(session[-6:], 16) % 97 * 10 + process * ROUNDS + round_
    latency_ns = tuple(first + call % 2 for call in range(CALLS))
    return Block(
        session=session, point=key, process=process, round=round_, latency_ns=latency_ns,
        pipelined_ns=sum(latency_ns), pipelined_calls=CALLS, cpu_ns=sum(latency_ns),
    )  # fmt: skip


def faults_of(results: SweepResults, truth: Truth, faults: Faults, attempts: int) -> list[str]:
    """Return what in a sweep's results and in its store is lost, doubled or invented."""
    found: list[str] = []
    for point, one in results.statuses.items():
        may_fail = (
            point in faults.poison
            or point in faults.failing
            or truth.lost_alone[point] >= attempts
            or (point in faults.flaky and truth.lost_alone[point])
        )
        if one.status == "measured" and not truth.measured[point]:
            found.append(f"invented: {point}")
        if one.status != "measured" and truth.measured[point]:
            found.append(f"lost: {point} is {one}")
        if one.status != "measured" and not may_fail:
            found.append(f"not measured: {point} is {one}")
        if one.status == "open" and point not in faults.failing:
            found.append(f"left open: {point} is {one}")
    table = Counter(
        Point(workload=m.workload, runtime=m.runtime, platform=m.platform, threads=m.threads)
        for m in results.run.measurements
    )
    found += [f"{count} times in the table: {point}" for point, count in table.items() if count > 1]
    found += [f"not of the study: {point}" for point in table if point not in results.statuses]
    found += [f"not in the table: {point}" for point in truth.measured if point not in table]
    for m in results.run.measurements:
        point = Point(workload=m.workload, runtime=m.runtime, platform=m.platform)
        if m.status != "ok":
            if results.statuses[point].status == "measured":
                found.append(f"measured, and {m.status} in the table: {point}")
            continue
        session = m.session or ""
        expected = [
            tuple(
                ns
                for round_ in range(ROUNDS)
                for ns in block(session, point.key(), process, round_).latency_ns
            )
            for process in range(PROCESSES)
        ]
        if session not in truth.measured[point] or list(m.samples_ns) != expected:
            found.append(f"not as measured: {point} in {session}")
    records, notes = read(results.store)
    kept = [(r.session, r.point, r.process, r.round) for r in records if isinstance(r, Block)]
    if len(kept) != len(set(kept)) or set(kept) != truth.blocks:
        found.append(f"{len(kept)} blocks in the store, {len(truth.blocks)} were written")
    return found + [note.text for note in notes if note.code != "clock-jump"]
