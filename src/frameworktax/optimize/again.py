"""A deployment measured again and compared with what its proof measured."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frameworktax import api, comparing
from frameworktax.measure.plan import DEFAULT_PROCESSES, Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.records import DEPLOYED
from frameworktax.runtimes import deployment
from frameworktax.stats import UNTIL

BUDGET_S = 60.0


def measure_again(
    folder: Path,
    *,
    gate: float | None = None,
    across: bool = False,
    time_budget: float = BUDGET_S,
    until: float = UNTIL,
    processes: int = DEFAULT_PROCESSES,
    reporter: Reporter | None = None,
    command: Sequence[str] = (),
) -> comparing.Compared:
    """Measure a deployment and compare its latency with that in its ``proof.json``.

    Neither the model nor its library is needed.

    Args:
        folder: of the deployment.
        gate: a regression beyond this fraction fails.
        across: compare timings of different machines.
        time_budget: seconds of wall time for measuring.
        until: half-width of the interval, as a share, at which a shape is done.
        processes: fresh processes a shape.
        reporter: shows progress.
        command: recorded with the session.

    Returns:
        The comparison, proof before and now after.

    Raises:
        DeploymentError: it cannot be loaded here.
        UsageError: another machine without ``across``, an impossible gate.
        NothingMeasuredError: nothing could be measured.
    """
    deployment.read(folder)  # says why it cannot be loaded before anything is started
    before = comparing.read(folder / deployment.PROOF)
    plan = Plan(
        points=tuple(m.point for m in before.measurements),
        processes=processes,
        until=until,
        budget_s=time_budget,
        twin="none",
        deployment=folder.resolve(),
    )
    with tempfile.TemporaryDirectory(prefix="frameworktax-compare-") as store:
        after = api.run_plan(plan, Path(store), reporter=reporter, command=command).run
    own = tuple(m for m in after.measurements if m.runtime == DEPLOYED)
    return comparing.compare(before, replace(after, measurements=own), gate=gate, across=across)
