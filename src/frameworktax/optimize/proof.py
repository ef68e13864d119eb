"""Does the delivered artifact compute what eager computes? Asked of it as its user asks.

One fresh process builds the model, draws inputs and runs eager on them; another loads the
deployment, of which it knows the folder alone, and is called with the same inputs, as torch's
tensors and every fourth time as numpy's arrays. The outputs are compared here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from frameworktax import host
from frameworktax.errors import WorkerError
from frameworktax.measure import parity
from frameworktax.measure.process import Worker
from frameworktax.measure.protocol import Drawn
from frameworktax.measure.worker import Server
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.interface import Interface

DRAWS = 32
"""Inputs over which outputs are compared: the model's own, edge values and random ones."""
LEAST_BETWEEN = 4
"""Draws of a shape between those that were asked for; all of them together have ``DRAWS``."""
MOST_BETWEEN = 16
"""Such shapes that one artifact is proven at."""
TRIES = 2
"""How many times the wanted number is drawn before eager's outputs are said to prove nothing."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the comparison of a shape found.

    Attributes:
        draws: that proved something.
        difference: the largest, as a share of the largest output.
        tolerance: of the parity rule.
        failure: why outputs are not proven equal; empty where they are.
    """

    draws: int
    difference: float
    tolerance: float
    failure: str = ""


class Prover:
    """The two processes; that with the model exports as well. They are ended with the context.

    Args:
        target: device, precision and threads.
        live: file of a sent module; None for a model with a name.
        scratch: folder for what is exchanged.
        limit_s: of each step.
    """

    def __init__(self, target: Target, live: str | None, scratch: Path, limit_s: float) -> None:
        self._target, self._live, self._scratch = target, live, scratch
        self._limit_s = limit_s
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.rest()

    def _worker(self, label: str, *, fresh: bool = False) -> Worker:
        worker = self._workers.get(label)
        if worker is None or fresh or not worker.alive:
            if worker is not None:
                worker.kill()
            variables = host.worker_environment(self._target.threads)
            variables["TMPDIR"] = str(self._scratch)
            worker = self._workers[label] = Worker(label, environment=variables)
        return worker

    def export(self, workload: Workload, runtime: str, batches: Sequence[int], to: Path) -> None:
        """Export a model for a runtime into a folder; where that fails, again in a fresh process.

        Raises:
            WorkerError: it failed, crashed or took too long.
        """

        def prepare(worker: Worker) -> None:
            worker.request(
                Server.prepare,
                self._limit_s,
                workload=workload,
                runtime=runtime,
                target=self._target,
                folder=str(to),
                batches=tuple(batches),
                live=self._live,
            )

        try:
            prepare(self._worker("model"))
        except WorkerError as error:
            if error.status == "timeout":
                raise
            prepare(self._worker("model", fresh=True))

    def interface(self, workload: Workload) -> tuple[Interface, tuple[tuple[int, ...], ...]]:
        """Return how the module is called, and the sizes of its inputs at the workload's batch."""
        drawn = self._draw(workload, 0)
        return Interface(**drawn.interface), drawn.sizes

    def sizes(
        self, workload: Workload
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Return the sizes of the inputs and of eager's outputs at a shape."""
        drawn = self._draw(workload, 0)
        outputs = parity.read_outputs(self._path("outputs"))
        return drawn.sizes, tuple(tuple(array.shape) for array in outputs)

    def prove(
        self, folder: Path, workload: Workload, wanted: int = DRAWS, precision: str = "float32"
    ) -> Proof:
        """Compare outputs at one shape over drawn inputs; stops at the first that differ.

        Args:
            folder: of the deployment.
            workload: the shape.
            wanted: inputs that prove something.
            precision: what serves the shape computes in.
        """
        proven, largest = 0, 0.0
        tolerance = parity.TOLERANCE[precision]
        for number in range(TRIES * wanted):
            try:
                self._draw(workload, number)
                self._serve(folder, number)
            except WorkerError as error:
                return Proof(proven, largest, tolerance, f"input {number + 1}: {error}")
            outputs = [parity.read_outputs(self._path(name)) for name in ("outputs", "served")]
            found = parity.compare(outputs[0], outputs[1], precision)
            tolerance = found.tolerance
            if found.within_tolerance is False:
                why = found.reason or f"differ at {found.worst}"
                failure = f"input {number + 1} of {wanted}: outputs {why}"
                return Proof(proven, largest, tolerance, failure)
            if found.within_tolerance:
                proven += 1
                largest = max(largest, found.max_relative_difference or 0.0)
            if proven == wanted:
                return Proof(proven, largest, tolerance)
        failure = (
            f"only {proven} of {TRIES * wanted} inputs gave outputs of eager that prove anything"
        )
        return Proof(proven, largest, tolerance, failure)

    def rest(self) -> None:
        """End the processes: nothing is to run beside what is timed; a later step starts anew."""
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()

    def forget(self) -> None:
        """End the process that serves: what it loaded is about to change."""
        worker = self._workers.pop("serving", None)
        if worker is not None:
            worker.kill()

    def _draw(self, workload: Workload, number: int) -> Drawn:
        return self._worker("model").request(
            Server.draw,
            self._limit_s,
            workload=workload,
            device=self._target.device,
            number=number,
            inputs=str(self._path("inputs")),
            outputs=str(self._path("outputs")),
            live=self._live,
        )

    def _serve(self, folder: Path, number: int) -> None:
        self._worker("serving").request(
            Server.serve,
            self._limit_s,
            folder=str(folder),
            inputs=str(self._path("inputs")),
            outputs=str(self._path("served")),
            on_torch=number % 4 != 3,
        )

    def _path(self, name: str) -> Path:
        return self._scratch / f"{name}.npz"


def between(sizes: Sequence[int], most: int = MOST_BETWEEN) -> list[int]:
    """Return sizes inside the range of those given, at most so many, spread."""
    inside = [n for n in range(min(sizes, default=0), max(sizes, default=0)) if n not in sizes]
    if len(inside) <= most:
        return inside
    step = len(inside) / most
    return [inside[int(i * step)] for i in range(most)]


def draws_between(count: int) -> int:
    """Return how many inputs to draw for each of so many shapes between."""
    return max(LEAST_BETWEEN, math.ceil(DRAWS / count)) if count else 0
