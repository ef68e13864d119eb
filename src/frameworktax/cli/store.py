"""`frameworktax store`: what can be done with results that lie there."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import console
from frameworktax.errors import UsageError

if TYPE_CHECKING:
    from frameworktax.analysis.summary import PointSummary
    from frameworktax.records import Note
    from frameworktax.store.transfer import Transfer

keeper = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, merge, check, export, prune and copy stores.",
)
app.add_typer(keeper, name="store")

Folder = Annotated[Path, typer.Argument(help="A store's folder.", show_default=False)]
Conditions = Annotated[
    list[str] | None,
    typer.Option(help="Only such points: model=bert-base, batch=1..8. May be repeated."),
]
SHOWN = 100
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]


@keeper.command("list")
def list_points(
    store: Folder,
    where: Conditions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """A line for each point a store holds; quick on large stores, of which it shows the first.

    Example:

      frameworktax store list frameworktax-results --where model=bert-base
    """
    from dataclasses import asdict

    from frameworktax.analysis.summary import summarise
    from frameworktax.report.terminal import print_rows
    from frameworktax.store import Where
    from frameworktax.store.columns import columns

    matches = Where.parse(where or ()).matcher()
    gc.disable()  # nothing made here is garbage before the end: looking for it takes a tenth longer
    try:
        found = columns(store)
        lines = [line for line in summarise(found) if matches(line.point)]
    finally:
        gc.enable()
    if as_json:
        print(json.dumps([asdict(line) for line in lines], allow_nan=False))
        return
    print_rows(
        console(),
        ["point", "runtime", "latency, ms", "blocks", "sessions", "status"],
        [_row(line) for line in lines[:SHOWN]],
    )
    say_notes(found.notes)
    if len(lines) > SHOWN:
        print(f"the first {SHOWN}; --where tells others, --json all")
    sessions = len({line.session for line in lines})
    print(f"{len(lines)} points, told from {sessions} sessions")


def _row(line: PointSummary) -> list[str]:
    from frameworktax.records import point_name
    from frameworktax.report.words import half_width, milliseconds

    told_ns = line.latency_ns
    latency = f"{milliseconds(told_ns.value)} ±{half_width(told_ns)}" if told_ns else "–"
    told = line.status if line.reason is None else f"{line.status}: {line.reason}"
    counts = [f"{line.blocks}", f"{line.sessions}"]
    return [point_name(line.point, runtime=False), line.point.runtime, latency, *counts, told]


@keeper.command()
def merge(
    stores: Annotated[list[Path], typer.Argument(help="Folders or shards.", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A new folder.", show_default=False)
    ],
) -> None:
    """Write several stores as one; every record once.

    Example:

      frameworktax store merge node-1 node-2 -o all
    """
    from frameworktax.store.merge import merge as merged_into

    merged = merged_into(stores, output)
    say_notes(merged.notes)
    _say(merged.conflicts)
    print(
        f"{output}: {merged.records} records in {merged.shards} shards; "
        f"{merged.duplicates} copies left out, {len(merged.conflicts)} that differ"
    )


@keeper.command()
def check(
    store: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Read every line of a store and say what is damaged; exit code 1 if anything is.

    Example:

      frameworktax store check frameworktax-results
    """
    from dataclasses import asdict

    from frameworktax.store.check import check as checked

    health = checked(store)
    if as_json:
        print(json.dumps(asdict(health)))
    else:
        _say([*health.remarks, *health.damage])
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(health.records.items()))
        verdict = f"damaged in {len(health.damage)} places" if health.damage else "whole"
        print(f"{store}: {verdict}; {health.shards} shards: {kinds or 'no records'}")
    if health.damage:
        raise typer.Exit(1)


@keeper.command()
def prune(
    store: Annotated[
        Path | None, typer.Argument(help="A store's folder.", show_default=False)
    ] = None,
    keep_last: Annotated[int | None, typer.Option(help="Sessions that stay.", min=0)] = None,
    older_than: Annotated[str | None, typer.Option(help="Sessions older than: 12h, 30d, 2w.")] = (
        None
    ),
    failed: Annotated[bool, typer.Option("--failed", help="Points that failed.")] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Your prepared models, least recently used first.")
    ] = False,
    limit: Annotated[str, typer.Option(help="What the cache may hold: 2GB.")] = "2GB",
    dry_run: DryRun = False,
) -> None:
    """Remove old sessions and failed points of a store, or prepared models from your cache.

    Example:

      frameworktax store prune frameworktax-results --older-than 30d --dry-run
    """
    from datetime import UTC, datetime

    from frameworktax.cli.parse import parse_age, parse_size
    from frameworktax.host.cache import cache_folder, prune_cache, prune_old_cache
    from frameworktax.store.prune import Rules
    from frameworktax.store.prune import prune as pruned_by

    age = parse_age(older_than, "--older-than") if older_than is not None else None
    size = parse_size(limit, "--limit")
    rules = Rules(keep_last=keep_last, older_than=age, failed=failed)
    would = "would go" if dry_run else "gone"
    if rules == Rules() and not cache:
        raise UsageError("say what is to go: --keep-last 5, --older-than 30d, --failed or --cache")
    if rules != Rules():
        if store is None:
            raise UsageError("name the store whose sessions are to go, or give --cache alone")
        done = pruned_by(store, rules, datetime.now(UTC), dry_run=dry_run)
        _say([f"session {session}: {would}" for session in done.sessions])
        _say(done.kept)
        print(
            f"{would}: {len(done.sessions)} sessions, {done.points} failed points; "
            f"{done.records} records, {done.bytes / 1e6:.1f} MB"
        )
    if cache:
        entries = prune_cache(cache_folder(), size, dry_run=dry_run)
        if store is not None:
            entries += prune_old_cache(store, dry_run=dry_run)
        _say([f"{entry.path.name}, {entry.bytes / 1e6:.1f} MB: {would}" for entry in entries])
        total = sum(entry.bytes for entry in entries)
        print(f"{would}: {len(entries)} prepared models, {total / 1e6:.1f} MB")


@keeper.command()
def push(
    store: Folder,
    url: Annotated[str, typer.Argument(help="file://, s3:// or hf://.", show_default=False)],
) -> None:
    """Copy a store's results to a URL; what is there already stays.

    Example:

      frameworktax store push frameworktax-results s3://bucket/results
    """
    from frameworktax.store import transfer

    _say_transfer(transfer.push(store, url), url)


@keeper.command()
def pull(
    url: Annotated[str, typer.Argument(help="file://, s3:// or hf://.", show_default=False)],
    store: Folder,
) -> None:
    """Copy results from a URL into a store; what is there already stays.

    Example:

      frameworktax store pull s3://bucket/results frameworktax-results
    """
    from frameworktax.store import transfer

    _say_transfer(transfer.pull(url, store), str(store))


def _say_transfer(done: Transfer, target: str) -> None:
    _say(done.refused)
    print(f"{target}: {len(done.copied)} shards copied, {done.unchanged} were there already")
    if done.refused:
        raise typer.Exit(1)


def say_notes(notes: Iterable[Note]) -> None:
    _say([note.text for note in notes])


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        # a name from a file stays one line and gives the terminal no orders
        print("".join(c if c.isprintable() else "?" for c in line))
