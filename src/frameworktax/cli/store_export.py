"""`frameworktax store export`: a store as a table, as a timeline, or in an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frameworktax.cli.store import Conditions, Folder, keeper, say_notes
from frameworktax.errors import UsageError, nearest

if TYPE_CHECKING:
    from frameworktax.store import Where

TIMELINE_SUFFIX = ".trace.json"


@keeper.command()
def export(
    store: Folder,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File: .parquet .csv .jsonl, or .trace.json for ui.perfetto.dev.",
            show_default=False,
        ),
    ] = None,
    where: Conditions = None,
    table: Annotated[str, typer.Option(help="blocks (with every sample) or measurements.")] = (
        "blocks"
    ),
    to: Annotated[
        str | None, typer.Option(help="Log each point to mlflow or wandb instead of a file.")
    ] = None,
) -> None:
    """Write what a store holds as a table or a timeline, or log it to an experiment tracker.

    Examples:

      frameworktax store export frameworktax-results -o blocks.parquet

      frameworktax store export frameworktax-results -o session.trace.json
    """
    from frameworktax import api
    from frameworktax.cli.deliver import check_writable
    from frameworktax.report import export as reports
    from frameworktax.store import Where
    from frameworktax.store import export as tables

    if table not in ("blocks", "measurements"):
        raise UsageError(f"no table '{table}'; choose blocks or measurements")
    conditions = Where.parse(where) if where else None
    if to is not None and output is None:
        _log(store, conditions, to)
        return
    if output is None or to is not None:
        raise UsageError("name a file with -o, or a tracker with --to: one of the two")
    if output.name.endswith(TIMELINE_SUFFIX):
        _draw(store, conditions, output)
        return
    tables.check_suffix(output)
    check_writable(None, output)
    if table == "blocks":
        count, notes = tables.export(store, output, conditions)
        say_notes(notes)
    else:
        results = api.read_store(store, conditions)
        reports.write_table(results.run, output)
        count = len(results)
    print(f"written: {output}, {count} {table}")


def _log(folder: Path, conditions: Where | None, to: str) -> None:
    from frameworktax import api
    from frameworktax.integrations.trackers import TRACKERS

    if to not in TRACKERS:
        choices = " or ".join(TRACKERS)
        raise UsageError(f"no tracker '{to}'{nearest(to, TRACKERS)}; choose {choices}")
    results = api.read_store(folder, conditions)
    name = TRACKERS[to](results.run)
    print(f"logged to {to}: {len(results)} points in {name}")


def _draw(folder: Path, conditions: Where | None, output: Path) -> None:
    from frameworktax.cli.deliver import check_writable
    from frameworktax.report import timeline
    from frameworktax.store import read

    check_writable(None, output)
    records, notes = read(folder, conditions)
    say_notes(notes)
    count = timeline.write(records, output)
    print(f"written: {output}, {count} events; open it in ui.perfetto.dev")
