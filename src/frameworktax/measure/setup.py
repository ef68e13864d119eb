"""Set-up of a session: what must stand beside what was asked for, exports, first processes."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from frameworktax.errors import WorkerError
from frameworktax.measure.export_worker import ExportWorker
from frameworktax.measure.in_place import InPlace
from frameworktax.measure.plan import Plan
from frameworktax.measure.process import Worker
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.series import Series, Spawn, series_of
from frameworktax.records import FLOOR, Workload

SHARE = 0.6
"""Share of the time budget within which a runtime must be ready."""

LOAD_S = 10.0
"""Loading a model that needs no compiler may take this long whatever the budget."""
DESCRIBE_SHARE = 0.05
"""Share of the time budget after which no larger batch size is run to count its operations."""


def await_all(futures: list[Future[Any]], reporter: Reporter, text: str) -> None:
    """Wait in short steps, so that Ctrl-C is seen; a wrong use in any of them is raised."""
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=0.5)
        for future in finished:
            future.result()
        reporter.progress(len(futures) - len(pending), len(futures), text)


def _export_order(series: Series) -> tuple[bool, bool, str]:
    """What is asked for before its twins, what compiles last, one interpreter after another."""
    return series.runtime.compiles, series.is_twin, str(series.runtime.python() or "")


class Setup:
    """Makes every series ready to be timed, or says why it is not."""

    def __init__(
        self,
        plan: Plan,
        series: list[Series],
        recorder: Recorder,
        spawn: Spawn,
        reporter: Reporter,
        scratch: Path,
        export_worker: ExportWorker,
    ) -> None:
        self._plan = plan
        self._series = series
        self._recorder = recorder
        self._spawn = spawn
        self._reporter = reporter
        self._scratch = scratch
        self._export_worker = export_worker
        self._deadline = time.monotonic() + SHARE * plan.budget_s

    def run(self, pool: ThreadPoolExecutor, has_sampler: bool) -> None:
        """Set up every series, references, floor and twins included.

        One set-up process reads the model and exports it for one runtime after another, so that
        the model's library is imported once; measuring processes start beside it.

        Raises:
            UsageError: what was asked for cannot be, found by whoever tried first.
        """
        self._reporter.phase("setting up")
        for series in self._series:
            reason = series.runtime.missing(series.target)
            if reason := reason or series.runtime.cannot(series.workload):
                self._recorder.mark_failed(series, WorkerError("unavailable", reason))
        self._add_references()
        self._add_floor()
        wanted = [s for s in self._series if s.dead is None]
        starts = [pool.submit(self.make_ready, s) for s in wanted if not s.runtime.prepares]
        try:
            facts = {}
            for config, series in {s.config: s for s in wanted if not s.is_floor}.items():
                self._reporter.progress(0, len(wanted), f"reading {series.workload.model}")
                facts[config] = self._describe(series)
            twins = self._add_twins(facts, has_sampler)
            starts += [pool.submit(self.make_ready, s) for s in twins if not s.runtime.prepares]
            exports = [s for s in wanted + twins if s.runtime.prepares]
            exports.sort(key=_export_order)
            for number, series in enumerate(exports):
                self._reporter.progress(number, len(exports), f"exporting for {series.label}")
                if self._prepare(series):
                    starts.append(pool.submit(self.make_ready, series))
        except BaseException:  # whatever it is: nobody waits any more for what was asked of it
            self._export_worker.close()
            raise
        self._export_worker.rest()
        await_all(starts, self._reporter, "loading and compiling")
        for series in self._series:
            self._recorder.subjects(series, facts.get(series.config, {}))

    def _describe(self, series: Series) -> dict[str, Any]:
        try:
            return self._export_worker.process().request(
                "describe",
                timeout_s=max(8.0, SHARE / 2 * self._plan.budget_s),
                workload=asdict(series.workload),
                device=series.target.device,
                limit_s=DESCRIBE_SHARE * self._plan.budget_s,
                batches=sorted(series.points),
                live=series.live,
            )
        except WorkerError as error:
            # Counting is not measuring: the model may still run where it cannot be described.
            return {"facts": {}, "has_twin": False, "notes": [("not-described", str(error))]}

    def _prepare(self, series: Series) -> bool:
        """Export for one runtime; where that fails, once more in a fresh process."""
        python = series.runtime.python()

        def fresh() -> Worker | InPlace:
            return self._export_worker.process(python, fresh=True)

        try:
            try:
                series.prepare(lambda: self._export_worker.process(python), self._left())
            except WorkerError as error:
                if error.status == "timeout":
                    raise
                series.prepare(fresh, self._left())
        except WorkerError as error:
            self._recorder.mark_failed(series, self._explain(error))
            return False
        return True

    def make_ready(self, series: Series) -> None:
        """Start process 0 and bind the smallest batch that works."""
        try:
            for batch in sorted(series.points):
                try:
                    if not (0 in series.workers and series.workers[0].alive):
                        series.start(0, self._spawn, self._left(LOAD_S))
                    least = 0.0 if series.runtime.compiles else LOAD_S
                    series.bind(0, batch, self._left(least))
                    return
                except WorkerError as error:
                    if 0 not in series.load_ns or error.status == "timeout":
                        raise  # no other batch size would fare better
                    series.failed.add(batch)
                    self._recorder.outcome(series, batch, 0, self._explain(error))
                    last = error
            raise last
        except WorkerError as error:
            self._recorder.mark_failed(series, self._explain(error))

    def _left(self, least: float = 0.0) -> float:
        """Return the seconds a step of set-up may take, ``least`` however little time is left.

        Raises:
            WorkerError: none is left, and the step is not to be begun.
        """
        left = max(least, self._deadline - time.monotonic())
        if left <= 0:
            raise WorkerError("timeout", "not begun in time")
        return left

    def _explain(self, error: WorkerError) -> WorkerError:
        if error.status != "timeout":
            return error
        return WorkerError(
            "timeout",
            f"{error}: set-up may take {SHARE:.0%} of the {self._plan.budget_s:.0f} s that this "
            f"session has; give three times the {self._plan.budget_option}",
        )

    def _add_references(self) -> None:
        """Add an untimed eager series to every workload that is measured without one."""
        have = {s.config for s in self._series if s.runtime.name == "eager" and s.dead is None}
        for series in list(self._series):
            if series.reference in have or series.dead or series.is_floor:
                continue
            have.add(series.reference)
            points = tuple(
                replace(
                    p,
                    runtime="eager",
                    workload=replace(p.workload, precision=series.reference.precision),
                )
                for p in series.points.values()
            )
            (reference,) = series_of(points, self._plan.folder, self._scratch, self._plan.live)
            reference.timed = False
            self._series.append(reference)

    def _add_floor(self) -> None:
        """Add the null runtime: its latency is the harness's own floor, measured every session."""
        if not any(s.is_floor for s in self._series):
            point = replace(self._plan.points[0], runtime=FLOOR, platform="cpu")
            self._series += series_of((point,), self._plan.folder, self._scratch, None)

    def _add_twins(self, facts: dict[Workload, dict[str, Any]], has_sampler: bool) -> list[Series]:
        twins: list[Series] = []
        for series in self._series:
            needed = not (series.runtime.has_symbols and has_sampler)
            wanted = self._plan.twin == "all" or (
                self._plan.twin == "auto" and (needed or series.runtime.name == "eager")
            )
            can = (
                facts.get(series.config, {}).get("has_twin")
                and series.dead is None
                and series.timed
                and not series.target.is_cuda
                and not series.is_floor
            )
            if wanted and can:
                points = tuple(
                    replace(p, workload=replace(p.workload, twin=True))
                    for p in series.points.values()
                )
                twins += series_of(points, self._plan.folder, self._scratch, None)
        self._series += twins
        return twins
