"""Results in an experiment tracker: MLflow, Weights & Biases.

Both get the same: a run for the whole with the document and the report as files, and a run for
each point with what was asked for as parameters and what was measured as metrics, intervals
beside them as ``_low`` and ``_high``. The tracker's own settings say where it goes
(``MLFLOW_TRACKING_URI``, ``WANDB_PROJECT``, ``WANDB_MODE`` …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from frameworktax.errors import UsageError, needs
from frameworktax.records import FLOOR, Run
from frameworktax.report import html, json_document
from frameworktax.report.rows import SHAPE, csv_row
from frameworktax.version import __version__

ASKED = ("threads", "batch", "length", "image_size", "width", "depth", *SHAPE)
"""Numbers that are no measurement; text never is one."""
NAME_CHARACTERS = 120


def points(run: Run) -> Iterator[tuple[str, dict[str, Any], dict[str, float]]]:
    """Yield name, parameters and metrics of each point but the harness's floor.

    The names are the columns of ``to_pandas``; what is None is left out.
    """
    for row in map(csv_row, run.measurements):
        if row["runtime"] == FLOOR:
            continue
        known = {name: value for name, value in row.items() if value is not None}
        metrics = {
            name: float(value)
            for name, value in known.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in ASKED
        }
        params = {name: value for name, value in known.items() if name not in metrics}
        name = f"{row['model']}, {row['runtime']}, batch {row['batch']}"
        yield name[:NAME_CHARACTERS], params, metrics


def whole(run: Run) -> tuple[str, dict[str, Any]]:
    """Return name and facts of a run as a whole."""
    models = dict.fromkeys(m.workload.model for m in run.measurements if m.runtime != FLOOR)
    facts: dict[str, Any] = {"headline": run.headline, "frameworktax": __version__}
    facts["sessions"] = ", ".join(sorted({m.session for m in run.measurements if m.session}))
    if run.environment is not None:
        e = run.environment
        facts |= {"host": e.host, "cpu": e.cpu, "system": e.system, "python": e.python}
        facts |= {f"{name}_version": version for name, version in e.libraries.items()}
    return f"frameworktax {', '.join(models)}"[:NAME_CHARACTERS], facts


def to_mlflow(run: Run, *, experiment: str | None = None) -> str:
    """Log results to MLflow: a run, inside the active one if there is one, and one a point in it.

    Args:
        run: to log.
        experiment: its name; the active one if left out.

    Returns:
        The identity of the run that holds the others.

    Raises:
        UsageError: MLflow is not installed, refuses, or is not reached.
    """
    with needs("MLflow is not installed", "mlflow"):
        import mlflow
        from mlflow.exceptions import MlflowException
    name, facts = whole(run)
    try:
        if experiment is not None:
            mlflow.set_experiment(experiment)
        with TemporaryDirectory() as folder, mlflow.start_run(run_name=name, nested=True) as outer:
            mlflow.set_tags(facts)
            for path in _files(run, Path(folder)):
                mlflow.log_artifact(str(path))
            for point, params, metrics in points(run):
                with mlflow.start_run(run_name=point, nested=True):
                    mlflow.log_params(params)
                    mlflow.log_metrics(metrics)
    except MlflowException as error:
        raise _refused("MLflow", "MLFLOW_TRACKING_URI", error) from error
    return str(outer.info.run_id)


def to_wandb(run: Run, *, project: str | None = None) -> str:
    """Log results to Weights & Biases: a group of runs, one for the whole and one a point.

    Args:
        run: to log.
        project: its name; that of ``WANDB_PROJECT`` if left out.

    Returns:
        The name of the group.

    Raises:
        UsageError: wandb is not installed, refuses, or is not reached.
    """
    with needs("wandb is not installed", "wandb"):
        import wandb
    name, facts = whole(run)
    group = f"{name} {facts['sessions'].rpartition(', ')[2]}".strip()

    def begin(name: str, kind: str, config: Mapping[str, Any]) -> Any:
        # A run of its own, whatever run the caller has open.
        return wandb.init(
            project=project,
            group=group,
            job_type=kind,
            name=name,
            config=dict(config),
            reinit="create_new",
        )

    try:
        with TemporaryDirectory() as folder, begin(name, "frameworktax", facts) as outer:
            artifact = wandb.Artifact("frameworktax-results", type="frameworktax-results")
            for path in _files(run, Path(folder)):
                artifact.add_file(str(path))
            outer.log_artifact(artifact)
        for point, params, metrics in points(run):
            with begin(point, "frameworktax-point", params) as one:
                one.log(metrics)
    except wandb.Error as error:
        raise _refused("wandb", "WANDB_MODE and WANDB_API_KEY", error) from error
    return group


TRACKERS: Mapping[str, Callable[[Run], str]] = {"mlflow": to_mlflow, "wandb": to_wandb}


def _files(run: Run, folder: Path) -> list[Path]:
    """Write the document and the report; raises UsageError where no report can be drawn."""
    document, page = folder / "frameworktax.json", folder / "frameworktax.html"
    document.write_text(json_document.text(run), encoding="utf-8")
    page.write_text(html.page(run), encoding="utf-8")
    return [document, page]


def _refused(name: str, settings: str, error: Exception) -> UsageError:
    said = " ".join(str(error).split())[:300]
    return UsageError(f"{name} refused: {said}; check {settings}")
