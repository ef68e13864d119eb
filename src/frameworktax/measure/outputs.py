"""Outputs held against eager's, per batch size: nothing is ranked without it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from frameworktax.errors import WorkerError
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.series import Series


class Outputs:
    """What series answer, each batch size of each asked for once.

    Args:
        series: of the session.
        recorder: takes the verdicts.
        scratch: where outputs lie until the session ends.
    """

    def __init__(self, series: list[Series], recorder: Recorder, scratch: Path) -> None:
        self._series = series
        self._recorder = recorder
        self._scratch = scratch
        self._uncompared: list[tuple[Series, int]] = []

    def compare(self, series: Series, batches: list[int], *, last: bool = False) -> None:
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
                    self._recorder.parity(series.points[batch], own, reference)

    def compare_late(self, *, last: bool = False) -> None:
        """Compare what waited for eager's; ``last``: eager's will not come."""
        waiting, self._uncompared = self._uncompared, []
        for series, batch in waiting:
            self.compare(series, [batch], last=last)

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
