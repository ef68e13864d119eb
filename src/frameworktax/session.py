"""A session: set up every series, then go round them block by block until the intervals are told.

All processes of one comparison are alive together and measured in turn (round robin, shuffled),
one block at a time on the host: the host's clock drifts by 10 % and more, and only neighbours in
time can be compared. Where memory does not hold all processes, they are measured in shifts, each
shift with every runtime in it. What is measured is in the store the moment it is measured.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from frameworktax import host, runtimes, timing
from frameworktax.attribution import available_samplers
from frameworktax.engines.in_place import InPlace
from frameworktax.engines.local import Worker
from frameworktax.errors import NothingMeasuredError, UsageError, WorkerError
from frameworktax.host.cache import held, prune_cache
from frameworktax.ledger import Ledger
from frameworktax.linear import why_linear
from frameworktax.plan import Plan
from frameworktax.records import Note, Point, device_of
from frameworktax.rounds import BLOCK_NS, FIRST_ROUNDS, SAMPLE_NS, Rounds
from frameworktax.series import Cell, Series, series_of
from frameworktax.setup import Reporter, Setup, await_all
from frameworktax.stats import process_interval
from frameworktax.store import Writer

MEMORY_SHARE = 0.8
"""Share of the free memory that measuring processes may fill together."""
OWED_SHARE = 0.5
"""Share of the time budget by which a session may run over, to tell each runtime's first point."""
WATCHED = 3
"""Batches measured at first where a curve is to stop when it is linear: two doublings."""
ADMIT_SHARE = 0.85
"""Share of the time left that is given out: costs are estimates."""


class Silent:
    """A reporter that says nothing."""

    def phase(self, text: str) -> None:
        """Say nothing."""

    def progress(self, done: float, total: float, text: str) -> None:
        """Say nothing."""


class MeasuringSession:
    """One session of a plan, written to a store as it goes."""

    def __init__(
        self, plan: Plan, writer: Writer, session: str, reporter: Reporter | None = None
    ) -> None:
        self._plan = plan
        self._reporter = reporter or Silent()
        self._deadline = time.monotonic() + plan.budget_s
        self._scratch = plan.folder / f"scratch-{session}"
        self._spawned: list[Worker | InPlace] = []
        self._stopping = False
        self._spawning = threading.Lock()
        self._uncompared: list[tuple[Series, int]] = []
        self._threads = max(point.threads for point in plan.points)
        self._memory_bytes = int(0.9 * host.memory_available_bytes())
        self._series = series_of(plan.points, plan.folder, self._scratch, plan.live)
        self._ledger = Ledger(writer, session)
        has_sampler = any(ok for _, ok, _ in available_samplers())
        self._has_sampler = has_sampler
        self._setup = Setup(
            plan, self._series, self._ledger, self._spawn, self._reporter, self._scratch
        )
        self._rounds = Rounds(
            plan,
            self._series,
            self._ledger,
            self._reporter,
            cpus=host.pick_cpus(self._threads),
            has_sampler=has_sampler,
            seed=session,
        )

    def run(self) -> None:
        """Measure everything; on Ctrl-C what was measured is in the store and this raises.

        Raises:
            UsageError: what was asked for cannot be (the model, the device).
            NothingMeasuredError: no point could be measured at all.
        """
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        with held(self._plan.folder):
            self._run()
        with contextlib.suppress(UsageError):  # another session runs: that one will see to it
            prune_cache(self._plan.folder)

    def _run(self) -> None:
        self._scratch.mkdir(mode=0o700)
        pool = ThreadPoolExecutor(max(1, min(len(host.usable_cpus()), 8)))
        try:
            self._setup.run(pool, self._has_sampler)
            self._raise_if_nothing()
            shifts = self._shifts()
            for number, processes in enumerate(shifts):
                now = time.monotonic()
                share = (self._deadline - now) / (len(shifts) - number)
                self._shift(pool, processes, now + share)
        finally:
            with self._spawning:  # who has begun one has it in the list, nobody begins another
                self._stopping = True
            self._ledger.close()
            self._end_workers()  # whoever waits in the pool for an answer is woken by this
            pool.shutdown(wait=True, cancel_futures=True)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def spent_ns(self) -> dict[str, int]:
        """Return the wall time that workers were waited for, by request, over all of them."""
        spent: Counter[str] = Counter()
        for worker in self._spawned:
            spent.update(worker.spent_ns)
        return dict(spent)

    def _raise_if_nothing(self) -> None:
        asked = [s for s in self._series if s.timed and not s.is_twin]
        if any(s.dead is None and not s.is_floor for s in asked):
            return
        reasons = [f"{s.runtime.name}: {s.dead}" for s in asked if s.dead]
        if reasons:
            raise NothingMeasuredError("nothing could be measured; " + "; ".join(reasons))

    def _end_workers(self) -> None:
        for worker in self._spawned:
            worker.kill()

    def _spawn(
        self,
        label: str,
        python: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Worker | InPlace:
        with self._spawning:
            if self._stopping:
                raise WorkerError("failed", "the session is ending")
            worker: Worker | InPlace
            if self._plan.in_place:
                if python is not None:
                    raise WorkerError(
                        "unavailable", "a module measured in place runs in this environment only"
                    )
                if variables:
                    raise WorkerError(
                        "unavailable", "a module measured in place keeps this process's allocator"
                    )
                worker = InPlace(label)
            else:
                on_device = any(device_of(p.platform) != "cpu" for p in self._plan.points)
                worker = Worker(
                    label,
                    memory_bytes=0 if on_device else self._memory_bytes,
                    python=python,
                    environment={
                        **host.worker_environment(self._threads),
                        "TMPDIR": str(self._scratch.resolve()),
                        **(variables or {}),
                    },
                )
            self._spawned.append(worker)
            return worker

    def _shifts(self) -> list[list[int]]:
        """Split processes into groups that fit in memory together, as many as time allows."""
        processes = self._affordable_processes()
        used = 0
        for series in self._series:
            for worker in series.workers.values():
                with contextlib.suppress(WorkerError):
                    used += worker.request("memory", timeout_s=30.0)["resident_bytes"]
        room = MEMORY_SHARE * host.memory_available_bytes()
        together = max(1, min(processes, 1 + int(room // max(1, used))))
        order = list(range(processes))
        return [order[i : i + together] for i in range(0, len(order), together)]

    def _affordable_processes(self) -> int:
        """Return how many processes a point can have: few and measured beat many and not."""
        left = ADMIT_SHARE * (self._deadline - time.monotonic())
        ready = [s for s in self._series if s.dead is None and s.timed and s.call_ns]
        starting = sum(s.load_ns[0] / 1e9 for s in ready if s.processes(2) > 1)
        for count in range(self._plan.processes, 1, -1):
            first = sum(self._cost_s(s, min(s.call_ns), count) for s in ready)
            if (count - 1) * starting / len(host.usable_cpus()) + first <= left:
                return count
        return 1

    def _shift(self, pool: ThreadPoolExecutor, processes: list[int], deadline: float) -> None:
        self._reporter.phase("starting processes")
        starts = [
            pool.submit(self._start, series, process)
            for process in processes
            for series in self._series
            if series.dead is None
            and process < series.processes(self._plan.processes)
            and process not in series.workers
        ]
        await_all(starts, self._reporter, "fresh processes")
        todo = {
            (series.key, batch)
            for series in self._series
            if series.timed and series.dead is None and series.workers
            for batch in series.points
            if batch not in series.failed
        }
        try:
            while todo and (wave := self._admit(todo, len(processes), deadline)):
                todo -= {(series.key, batch) for series, batch in wave}
                self._bind_wave(pool, wave)
                self._rounds.run(deadline)
                if self._plan.stop_when_linear:
                    self._stop_linear(todo)
            self._compare_late(last=True)
        finally:
            for series in self._series:
                for (batch, process), cell in series.cells.items():
                    self._ledger.outcome(series, batch, process, None, cell)
        self._leave_out(todo)
        last = processes[-1] + 1 == self._plan.processes
        for series in self._series:
            series.cells.clear()
            if not last and not series.is_floor:
                series.stop()

    def _start(self, series: Series, process: int) -> None:
        try:
            series.start(process, self._spawn, self._patience())
        except WorkerError as error:
            self._ledger.fail(series, process, sorted(series.points), error)
            series.workers.pop(process, None)

    def _cost_s(self, series: Series, batch: int, processes: int) -> float:
        """Return what warming up, timing and sampling one point will take, from smaller batches."""
        known = [b for b in series.call_ns if b <= batch]
        if not known:
            return 0.0
        call_ns = int(series.call_ns[max(known)] * batch / max(known))
        count = min(processes, series.processes(processes))
        block = timing.WARM_IN_NS + call_ns * (1 + timing.calls_for(call_ns, BLOCK_NS))
        each = FIRST_ROUNDS * block + max(SAMPLE_NS[0], 3 * call_ns)
        warm = sum(b == batch for _, b in series.bound)
        warming = call_ns * (1 + timing.WARMUP_CALLS) * max(0, count - warm)
        return (count * each + warming) / 1e9

    def _admit(
        self, todo: set[tuple[str, int]], processes: int, deadline: float
    ) -> list[tuple[Series, int]]:
        """Take the cheapest points first, as many as the time left holds."""
        left = ADMIT_SHARE * (deadline - time.monotonic())
        candidates = sorted(
            (self._cost_s(series, batch, processes), batch, number)
            for number, series in enumerate(self._series)
            for batch in self._next(series, todo)
            if series.dead is None
        )
        # The reference's first point comes first: without it nothing is ranked.
        candidates.sort(key=lambda c: not self._is_first_reference(self._series[c[2]], c[1]))
        wave: list[tuple[Series, int]] = []
        # Set-up may have taken all the time: every runtime's first point is told nevertheless.
        owed = 0.0 if self._rounds.begun else OWED_SHARE * self._plan.budget_s
        told: set[int] = set()
        for cost, batch, number in candidates:
            if cost <= left:
                left -= cost
            elif number not in told and cost <= owed + max(0.0, left):
                owed -= cost
            else:
                continue
            told.add(number)
            wave.append((self._series[number], batch))
        return wave

    def _next(self, series: Series, todo: set[tuple[str, int]]) -> list[int]:
        """Return the batches of a series that may come next: all, unless its curve is watched."""
        batches = sorted(batch for key, batch in todo if key == series.key)
        if not self._plan.stop_when_linear:
            return batches
        return batches[: 1 if any(cell.medians for cell in series.cells.values()) else WATCHED]

    def _stop_linear(self, todo: set[tuple[str, int]]) -> None:
        """Take the larger batches of plainly linear curves out of what is left to do."""
        for series in self._series:
            larger = [batch for key, batch in todo if key == series.key]
            if not larger or series.is_twin:
                continue
            medians: dict[int, list[list[float]]] = {}
            for (batch, _), cell in series.cells.items():
                if cell.medians:
                    medians.setdefault(batch, []).append(cell.medians)
            told = {batch: process_interval(values) for batch, values in medians.items()}
            reason = why_linear({batch: found for batch, found in told.items() if found})
            if reason is None:
                continue
            for batch in larger:
                self._ledger.left_out(series.points[batch], reason)
            todo -= {(s.key, b) for s in (series, *self._twins(series)) for b in larger}

    def _twins(self, series: Series) -> list[Series]:
        config = replace(series.config, twin=True)
        return [
            s for s in self._series if s.config == config and s.runtime.name == series.runtime.name
        ]

    def _is_first_reference(self, series: Series, batch: int) -> bool:
        return series.runtime.name == "eager" and not series.is_twin and batch == min(series.points)

    def _bind_wave(self, pool: ThreadPoolExecutor, wave: list[tuple[Series, int]]) -> None:
        self._reporter.phase("warming up")
        batches: dict[str, list[int]] = {}
        for series in self._series:
            mine = {b for s, b in wave if s is series}
            if not series.timed:  # the reference follows whoever is compared with it
                mine = {b for s, b in wave if s.reference == series.config}
            batches[series.key] = sorted(mine)
        for later in (False, True):
            # What one process has compiled lies in a cache for those after it.
            jobs = [
                pool.submit(self._bind, series, process, batches[series.key])
                for series in self._series
                if series.dead is None and batches[series.key]
                for process in list(series.workers)
                if later == (series.runtime.compiles and process != min(series.workers))
            ]
            await_all(jobs, self._reporter, "warm-up")
        self._compare_late()
        for series in self._series:
            if series.dead is None and not series.is_twin and not series.is_floor:
                self._compare(series, batches[series.key])

    def _bind(self, series: Series, process: int, batches: list[int]) -> None:
        for batch in batches:
            if process not in series.workers:
                return
            if batch in series.failed:
                continue
            try:
                answer = series.bind(process, batch, self._bind_patience(series, batch))
            except WorkerError as error:
                series.failed.add(batch)
                self._ledger.outcome(series, batch, process, error)
                if not series.workers[process].alive:
                    self._revive(series, process)
                continue
            if series.timed:
                series.cells[batch, process] = _cell(series.points[batch], process, answer)

    def _revive(self, series: Series, process: int) -> None:
        """Start a process anew after one batch size ended it, for the sake of the others."""
        bound = [batch for p, batch in series.bound if p == process]
        for batch in bound:
            del series.bound[process, batch]
        del series.workers[process]
        try:
            series.start(process, self._spawn, self._patience())
            for batch in bound:
                series.bind(process, batch, self._patience())
        except WorkerError as error:
            self._ledger.fail(series, process, bound, error)
            series.workers.pop(process, None)

    def _bind_patience(self, series: Series, batch: int) -> float:
        """Seconds a batch size may take to be bound: a hang must not eat the whole budget."""
        if series.runtime.compiles or not series.call_ns:
            return self._patience()
        nearest = max((b for b in series.call_ns if b <= batch), default=min(series.call_ns))
        expected_s = series.call_ns[nearest] * batch / nearest * 2 * timing.WARMUP_CALLS / 1e9
        return min(self._patience(), max(5.0, 10 * expected_s))

    def _patience(self) -> float:
        """Seconds one step of a worker may take."""
        return max(10.0, self._deadline - time.monotonic())

    def _compare(self, series: Series, batches: list[int], *, last: bool = False) -> None:
        """Compare outputs with eager's, per batch size; nothing is ranked without it.

        Where eager comes in a later wave, so does the comparison; ``last``: there is none.
        """
        if not series.timed:
            return
        eager = self._reference(series)
        for batch in batches:
            with contextlib.suppress(WorkerError):  # it shows up again when it is timed
                own = self._output(series, batch)
                reference = self._output(eager, batch) if eager is not None else None
                if own is None:
                    continue
                if reference is None and eager is not None and not last:
                    self._uncompared.append((series, batch))
                else:
                    self._ledger.parity(series.points[batch], own, reference)

    def _compare_late(self, *, last: bool = False) -> None:
        waiting, self._uncompared = self._uncompared, []
        for series, batch in waiting:
            self._compare(series, [batch], last=last)

    def _reference(self, series: Series) -> Series | None:
        return next(
            (
                s
                for s in self._series
                if s.runtime.name == "eager" and s.config == series.reference and s.dead is None
            ),
            None,
        )

    def _output(self, series: Series, batch: int) -> tuple[Path, bool] | None:
        """Return where the outputs of a batch lie and whether a second call gave the same."""
        path = self._scratch / f"{series.points[batch].key()}.npz"
        differs = path.with_suffix(".differs")
        worker = series.workers.get(0)
        if not path.exists():
            if worker is None or (0, batch) not in series.bound:
                return None
            answer: dict[str, Any] = worker.request(
                "output", timeout_s=120.0, batch=batch, path=str(path)
            )
            if not answer["repeatable"]:
                differs.touch()
        return path, not differs.exists()

    def _leave_out(self, todo: set[tuple[str, int]]) -> None:
        reason = f"the time budget of {self._plan.budget_s:.0f} s was spent"
        for series in self._series:
            for batch, point in series.points.items():
                if (series.key, batch) in todo and series.dead is None and not series.is_twin:
                    self._ledger.left_out(point, f"{reason}; give a longer --time-budget")


def _cell(point: Point, process: int, answer: Mapping[str, Any]) -> Cell:
    """Return the cell of a point that a process has bound and warmed up."""
    cell = Cell(
        point=point,
        process=process,
        calls=timing.calls_for(answer["call_ns"], BLOCK_NS),
        call_ns=max(1, answer["call_ns"]),
        warmup_calls=answer["calls"],
        peak_memory_bytes=answer["peak_memory_bytes"],
    )
    if not answer["settled"]:
        text = "warm-up ended at its time limit while calls were still getting faster"
        cell.notes.append(Note("not-settled", text))
    return cell


def known_runtimes(names: Iterable[str], input_kind: str = "dense") -> tuple[str, ...]:
    """Return runtime names with ``all`` written out; raises UsageError for an unknown one."""
    found: list[str] = []
    for name in names:
        found += runtimes.every(input_kind) if name == "all" else [runtimes.get(name).name]
    return tuple(dict.fromkeys(found))
