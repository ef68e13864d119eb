"""`frameworktax store`: list, check and export measured results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frameworktax.cli.deliver import check_writable, console
from frameworktax.cli.options import AsJson, Conditions, DryRun, parse_size
from frameworktax.errors import UsageError, check_known, check_suffix, flat

if TYPE_CHECKING:
    from frameworktax.analysis.summary import PointSummary

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, check and export stores; prune the cache.",
)

Folder = Annotated[Path, typer.Argument(help="A store's folder.", show_default=False)]
SHOWN = 100


@commands.command("list")
def list_points(store: Folder, where: Conditions = None, as_json: AsJson = False) -> None:
    """List the points of a store, one a line; of a large store the first ones.

    Example:

      frameworktax store list frameworktax-results --where model=bert-base
    """
    from dataclasses import asdict

    from frameworktax.analysis.summary import summarise, wanted
    from frameworktax.api import no_collection
    from frameworktax.report.render_terminal import print_rows
    from frameworktax.store import read_columns
    from frameworktax.store.read import condition

    matches = condition(where or ())
    with no_collection():
        records, notes = read_columns(store, wanted=wanted)
        lines = [line for line in summarise(records) if matches(line.point)]
    if as_json:
        print(json.dumps([asdict(line) for line in lines], allow_nan=False))
        return
    print_rows(
        console(),
        ["point", "runtime", "latency", "blocks", "sessions", "status"],
        [_row(line) for line in lines[:SHOWN]],
    )
    _say(note.text for note in notes)
    if len(lines) > SHOWN:
        print(f"first {SHOWN} shown; --where selects others, --json prints all")
    sessions = len({line.session for line in lines})
    print(f"{len(lines)} points from {sessions} sessions")


def _row(line: PointSummary) -> list[str]:
    from frameworktax.records import point_name
    from frameworktax.report.words import plus_minus, time_text
    from frameworktax.stats import within_one_process

    latency = "–"
    if line.latency_ns is not None:
        latency = f"{time_text(line.latency_ns.value)} {plus_minus(line.latency_ns)}"
        latency += " within one process" * within_one_process(line.latency_ns)
    status = line.status if line.reason is None else f"{line.status}: {line.reason}"
    counts = [f"{line.blocks}", f"{line.sessions}"]
    return [point_name(line.point, runtime=False), line.point.runtime, latency, *counts, status]


@commands.command()
def check(store: Folder, as_json: AsJson = False) -> None:
    """Read every line of a store and report damage; exit code 1 if there is any.

    Example:

      frameworktax store check frameworktax-results
    """
    from dataclasses import asdict

    from frameworktax.store import upkeep

    health = upkeep.check(store)
    if as_json:
        print(json.dumps(asdict(health)))
    else:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(health.records.items()))
        verdict = f"damaged in {len(health.damage)} places" if health.damage else "whole"
        summary = f"{store}: {verdict}; {health.shards} shards: {kinds or 'no records'}"
        _say([*health.remarks, *health.damage, summary])
    if health.damage:
        raise typer.Exit(1)


@commands.command()
def prune(
    cache: Annotated[
        bool, typer.Option("--cache", help="Your prepared models, least recently used first.")
    ] = False,
    limit: Annotated[str, typer.Option(help="What the cache may hold: 2GB.")] = "2GB",
    dry_run: DryRun = False,
) -> None:
    """Remove prepared models from your cache.

    Example:

      frameworktax store prune --cache --limit 500MB --dry-run
    """
    from frameworktax.host.cache import cache_folder, prune_cache

    size = parse_size(limit, "--limit")
    if not cache:
        raise UsageError("give --cache; to remove a session, remove its file from the store")
    would = "would go" if dry_run else "gone"
    entries = prune_cache(cache_folder(), size, dry_run=dry_run)
    _say([f"{entry.path.name}, {entry.bytes / 1e6:.1f} MB: {would}" for entry in entries])
    total = sum(entry.bytes for entry in entries)
    print(f"{would}: {len(entries)} prepared models, {total / 1e6:.1f} MB")


@commands.command()
def export(
    store: Folder,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File: .parquet or .csv.", show_default=False),
    ] = None,
    where: Conditions = None,
    to: Annotated[
        str | None, typer.Option(help="Log each point to mlflow or wandb instead of a file.")
    ] = None,
) -> None:
    """Write the points of a store as a table, or log them to an experiment tracker.

    Examples:

      frameworktax store export frameworktax-results -o points.csv

      frameworktax store export frameworktax-results --to mlflow
    """
    from frameworktax import api
    from frameworktax.integrations.trackers import TRACKERS
    from frameworktax.report import export as reports
    from frameworktax.store.read import condition

    wanted = condition(where) if where else None
    if output is not None and to is None:
        check_suffix(output, (".parquet", ".csv"))
        check_writable(output)
        results = api.read_store(store, wanted)
        reports.write(results.run, output)
        print(f"written: {output}, {len(results)} points")
    elif to is not None and output is None:
        check_known("tracker", to, TRACKERS)
        results = api.read_store(store, wanted)
        print(f"logged to {to}: {len(results)} points in {TRACKERS[to](results.run)}")
    else:
        raise UsageError("name a file with -o, or a tracker with --to: one of the two")


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(flat(line))
