"""The errors of predictions: measure what they start from and what they predict, and compare.

    python benchmarks/validate.py [--models NAMES] [--time-budget 660] [--quick]

Writes the table of errors that the package reads, and docs/results/validate.md.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from frameworktax import api, store
from frameworktax.analysis.whatif.formulas import SAME_KERNELS
from frameworktax.cli.progress import ProgressView
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
from prediction_checks import Check, judge

ROOT = Path(__file__).resolve().parents[1]
MEDIAN, P95 = 0.05, 0.15
"""Median and 95th percentile of the relative error up to which a formula is trusted."""
ENOUGH = 5
"""Checks below which nothing is judged: one disturbed measurement is no verdict."""
TABLE = ROOT / "src/frameworktax/analysis/whatif/formula_errors.json"
PAGE = ROOT / "docs/results/validate.md"
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
"""Measured by default; small enough to fit in eleven minutes, the quick ones first, which leave
time to the others."""
BUDGET_S = 660.0
LEAST_S = 1.0
STARTS = (1, 4)
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
        return {name: summary(found) for name, found in errors.items()}

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
    made = [
        (runtime, replace(base, batch=batch))
        for runtime in ("eager", *runtimes)
        for batch in STARTS
    ]
    if not on_gpu:
        made += [(runtime, replace(base, twin=True)) for runtime in SAME_KERNELS]
    return [
        Point(workload=workload, runtime=runtime, platform=device) for runtime, workload in made
    ]


def newest(records: Sequence[Record]) -> list[Record]:
    """Return the records of the last session: blocks of two sessions are no pairs."""
    sessions = [r for r in records if isinstance(r, Session)]
    last = max(sessions, key=lambda s: (s.started, s.session)).session
    return [r for r in records if r.session == last]


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Return median and 95th percentile (nearest rank above) of relative errors, signs dropped."""
    ordered = sorted(abs(e) for e in errors)
    n = len(ordered)
    return {"median": median(ordered), "p95": ordered[math.ceil(0.95 * n) - 1], "n": n}


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, shown in sorted(document["formulas"].items()):
        trusted = shown["median"] <= MEDIAN and shown["p95"] <= P95
        verdict = "predicts" if trusted else "too far off: remove it"
        verdict = verdict if shown["n"] >= ENOUGH else "too few checks to judge"
        yield (
            name,
            _percent(shown["median"]),
            _percent(shown["p95"]),
            f"{shown['n']:.0f}",
            verdict,
        )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _counted(document: Mapping[str, Any]) -> str:
    checks = document["checks"]
    left = sum(not check["counted"] for check in checks)
    return (
        f"{len(checks)} checks; {left} not counted, because what was measured is uncertain by more "
        "than 5 % and by more than the error; "
        f"a formula predicts with errors up to {_percent(MEDIAN)} at the median and "
        f"{_percent(P95)} at the 95th percentile"
    )


def markdown(document: Mapping[str, Any]) -> str:
    """Return the document as a page: the table, the machine, every check."""
    where = document["environment"] or {}
    libraries = where.get("libraries") or {}
    named = [f"{name} {libraries[name]}" for name in ("torch", "transformers") if name in libraries]
    lines = [
        "# The errors of predictions",
        "",
        f"Written by `make validate` on {document['made']}, on {where.get('cpu', '?')}, "
        f"{where.get('cores', '?')} processors; {', '.join(named)}. Predictions run on a document "
        "without the point in question and are held against what was measured for it in the same "
        "session.",
        "",
        "| formula | median error | 95th percentile | checks | |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in _rows(document)]
    lines += ["", _counted(document) + ".", ""]
    lines += [
        "| from | change | formula | error | measured to | counted |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {_cell(c['subject'])} | `{_cell(c['change'])}` | {_cell(c['formula'])} | "
        f"{100 * c['error']:+.1f} % | ±{_percent(c['uncertainty'])} | "
        f"{'yes' if c['counted'] else 'no'} |"
        for c in document["checks"]
    ]
    if document["refused"]:
        lines += ["", "Not predicted:", ""]
        lines += [f"- {_cell(reason)}" for reason in document["refused"]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("`", "'")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names with commas between; a list of small ones if not")
    parser.add_argument("--time-budget", type=float, default=BUDGET_S, help="seconds")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="fresh processes a point")
    parser.add_argument("--quick", action="store_true", help="a trial, written to a folder apart")
    asked = parser.parse_args()
    trial = Path(tempfile.gettempdir(), "frameworktax-validate")
    table, page = (trial / TABLE.name, trial / PAGE.name) if asked.quick else (TABLE, PAGE)
    with ProgressView(Console(stderr=True)) as bar:
        found = validate(
            asked.models.split(",") if asked.models else None,
            time_budget=asked.time_budget,
            device=asked.device,
            processes=asked.processes,
            reporter=bar,
        )
    document = found.document()
    page.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    page.write_text(markdown(document), encoding="utf-8")
    print(f"written: {table}, {page}")


if __name__ == "__main__":
    main()
