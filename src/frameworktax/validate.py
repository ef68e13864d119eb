"""How far predictions are off: measure what they start from and what they speak of, and compare."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frameworktax import api, store
from frameworktax.analysis.whatif import formula_errors as shown
from frameworktax.analysis.whatif.formulas import SAME_KERNELS
from frameworktax.analysis.whatif.prediction_checks import DEPTHS, WIDER, Check, judge
from frameworktax.errors import NothingMeasuredError, UsageError
from frameworktax.measure.plan import Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.records import (
    Environment,
    Point,
    Record,
    Session,
    Workload,
)
from frameworktax.version import __version__

SCHEMA = "frameworktax.validation"
VERSION = 1
MODELS: Mapping[str, Workload] = {
    workload.model: workload
    for workload in (
        Workload(model="mlp"),
        Workload(model="bert-tiny", length=64),
        Workload(model="resnet-18", image_size=64),
        Workload(model="mobilenet-v2", image_size=64),
        Workload(model="bert-mini", length=64),
        Workload(model="resnet-50", image_size=64),
        Workload(model="distilbert", length=16),
        Workload(model="gpt2", length=16),
    )
}
"""What is measured unless told, small enough for all of it to fit in eleven minutes; the quick ones
first, which leave time to the others."""
BUDGET_S = 660.0
LEAST_S = 1.0
BATCHES = (1, 2, 4, 8, 16)
PROCESSES = 2
UNTIL = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The checks of a machine; ``formulas`` sums up the counted ones."""

    checks: tuple[Check, ...]
    refused: tuple[str, ...]
    environment: Environment | None
    made: str

    @property
    def formulas(self) -> dict[str, dict[str, float]]:
        """Formula → median and 95th percentile of the error, and how many checks."""
        errors: dict[str, list[float]] = defaultdict(list)
        for check in self.checks:
            if check.counted:
                errors[check.formula].append(check.error)
        return {name: shown.summary(found) for name, found in errors.items()}

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "frameworktax": __version__,
            "made": self.made,
            "environment": asdict(self.environment) if self.environment else None,
            "formulas": self.formulas,
            "checks": [asdict(check) for check in self.checks],
            "refused": list(self.refused),
        }


def validate(
    models: Sequence[str] | None = None,
    *,
    time_budget: float = BUDGET_S,
    folder: str | Path = "frameworktax-results/validate",
    device: str = "auto",
    processes: int = PROCESSES,
    reporter: Reporter | None = None,
) -> Validation:
    """Measure the predictions that can be measured here, model by model.

    Args:
        models: names; a default list of small ones if left out.
        time_budget: seconds of wall time for all of them; each has an equal share of what is left.
        folder: store, one a model inside it.
        device: auto, cpu or cuda:N.
        processes: fresh processes a point.
        reporter: told of progress.

    Raises:
        UsageError: an unknown model or device.
        NothingMeasuredError: no prediction could be held against a measurement.
    """
    from frameworktax import models as registry

    names = list(models) if models else list(MODELS)
    where = api.pick_device(device)
    for name in names:
        registry.check(MODELS.get(name, Workload(model=name)))
    if time_budget <= 0 or processes < 1:
        raise UsageError("time budget and processes must be above zero")
    checks: list[Check] = []
    refused: list[str] = []
    environment = None
    deadline = time.monotonic() + time_budget
    for number, name in enumerate(names):
        place = Path(folder) / name.replace("/", "-")
        plan = Plan(
            points=tuple(grid(name, where)),
            processes=processes,
            until=UNTIL,
            budget_s=share(deadline - time.monotonic(), len(names) - number),
            twin="none",
        )
        try:
            results = api.run_plan(plan, place, reporter=reporter, command=("validate", name))
        except NothingMeasuredError as error:
            refused.append(f"{name}: {error}")
            continue
        found, why = judge(newest(store.read(place)[0]), results.run.measurements)
        environment = results.run.environment
        checks += found
        refused += why
    if not checks:
        raise NothingMeasuredError(
            "no prediction could be held against a measurement; give a larger --time-budget"
        )
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return Validation(
        checks=tuple(checks), refused=tuple(refused), environment=environment, made=made
    )


def share(left_s: float, models: int) -> float:
    """Return the budget of the next of ``models``: its part of what is left, never nothing."""
    return max(LEAST_S, left_s / models)


def grid(name: str, device: str) -> list[Point]:
    """Return the points that the predictions for a model start from and speak of."""
    base = MODELS.get(name, Workload(model=name))
    on_gpu = device != "cpu"
    runtimes = [*SAME_KERNELS[1:], *(["cuda-graph"] if on_gpu else [])]
    made = [("eager", replace(base, batch=batch)) for batch in BATCHES]
    made += [(runtime, replace(base, batch=batch)) for runtime in runtimes for batch in (1, 4)]
    made.append(("eager", replace(base, width=WIDER)))
    if not on_gpu:
        made += [("eager", replace(base, depth=depth)) for depth in DEPTHS]
        made += [(runtime, replace(base, twin=True)) for runtime in SAME_KERNELS]
    return [
        Point(workload=workload, runtime=runtime, platform=device) for runtime, workload in made
    ]


def newest(records: Sequence[Record]) -> list[Record]:
    """Return the records of the last session: blocks of two sessions are no pairs."""
    sessions = [r for r in records if isinstance(r, Session)]
    last = max(sessions, key=lambda s: (s.started, s.session)).session
    return [r for r in records if r.session == last]
