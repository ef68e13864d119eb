"""The verbs that list and check: `list`, `doctor`, `schema` and `store`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frameworktax.cli.deliver import Output, console, print_list, this_command
from frameworktax.cli.options import AsJson, Conditions, Device, DryRun, parse_size
from frameworktax.errors import UsageError, check_known, counted, flat

if TYPE_CHECKING:
    from frameworktax.analysis.summary import PointSummary

lister, stores = (
    typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=text)
    for text in (
        "List models, runtimes and studies, and what is missing.",
        "List and check stores, log them to trackers; prune the cache.",
    )
)
Folder = Annotated[Path, typer.Argument(help="A store's folder.", show_default=False)]
SHOWN = 100
"""Points of a store that are shown."""


@lister.command("models")
def list_models(as_json: AsJson = False) -> None:
    """List every model by name, and how to bring your own.

    Example:

      frameworktax list models
    """
    from frameworktax import models

    rows = models.describe_names()
    above = [None, *(r["family"] for r in rows)]
    print_list(
        rows,
        as_json,
        ["model", "family", "what it is"],
        [  # one family after the other, named once
            [
                r["name"],
                "" if r["family"] == family else r["family"],
                "; ".join(filter(None, (r["summary"], r["missing"]))),
            ]
            for r, family in zip(rows, above, strict=False)
        ],
    )
    if not as_json:
        print("your own: file.py:function or package.module:function")


@lister.command("runtimes")
def list_runtimes(as_json: AsJson = False, device: Device = "auto") -> None:
    """List every runtime by name, and why one is not available here.

    Examples:

      frameworktax list runtimes

      frameworktax list runtimes --json
    """
    from frameworktax import api, runtimes
    from frameworktax.runtimes.base import Target

    target = Target(device=api.pick_device(device))
    rows: list[dict[str, Any]] = [
        {
            "name": runtime.name,
            "paradigm": runtime.paradigm,
            "devices": list(runtime.devices),
            "precisions": list(runtime.precisions),
            "options": dict(runtime.options),
            "available": (reason := runtime.missing(target)) is None,
            "reason": reason,
        }
        for runtime in map(runtimes.get, runtimes.names())
    ]
    print_list(
        rows,
        as_json,
        ["runtime", "paradigm", f"on {target.device}"],
        [[r["name"], r["paradigm"], r["reason"] or "available"] for r in rows],
    )


@lister.command("studies")
def list_studies(as_json: AsJson = False) -> None:
    """List the paper's studies, for `frameworktax reproduce`.

    Example:

      frameworktax list studies
    """
    from frameworktax.reproduce import studies

    rows: list[dict[str, Any]] = [
        {"name": study.name, "title": study.title, "claims": [claim.id for claim in study.claim]}
        for study in map(studies.load, studies.every_name())
    ]
    print_list(
        rows,
        as_json,
        ["study", "title", "claims"],
        [[r["name"], r["title"], ", ".join(r["claims"])] for r in rows],
    )


def doctor(
    as_json: AsJson = False,
    fix_hints: Annotated[
        bool, typer.Option("--fix-hints", help="Print the commands that would help; run none.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure how far sessions differ here, for compare."),
    ] = False,
) -> None:
    """Say whether this machine is fit to measure, and what would make it fitter.

    With --calibrate, some minutes: how far sessions of one program differ on this host. 'compare'
    then uses that between sessions in place of another host's.

    Examples:

      frameworktax doctor

      frameworktax doctor --fix-hints
    """
    if fix_hints and (calibrate or as_json):
        raise UsageError("--fix-hints only prints commands; give it alone")
    if calibrate:
        from frameworktax import comparing

        with Output().ending(None, f"Again: {this_command()}"):
            found, path = comparing.calibrate(lambda text: print(text, file=sys.stderr, flush=True))
        if as_json:
            print(json.dumps(asdict(found)))
            return
        text = (
            f"beyond what they show, sessions of one program differ by {found.session_sd:.2%} and "
            f"{found.block_noise:.2f} × the spread of their blocks, processes by "
            f"{found.process_sd:.2%}; written: {path}"
        )
        _say([text])
        return
    from frameworktax import host
    from frameworktax.attribution import probe

    checks = host.doctor(probe())
    if fix_hints:
        print("\n".join(host.hints(checks) or ["# nothing to do: this machine is fit to measure"]))
        return
    print_list(
        [asdict(check) for check in checks],
        as_json,
        ["check", "status", "found", "remedy"],
        [[c.code, c.status, c.text, c.remedy or ""] for c in checks],
    )


def schema(
    document: Annotated[
        str, typer.Argument(help="run (measure), comparison or program (run, attach).")
    ] = "run",
) -> None:
    """Print the JSON Schema of a document that --json writes.

    Example:

      frameworktax schema comparison
    """
    known = documents()
    check_known("document", document, known)
    print(json.dumps(known[document], indent=1))


def documents() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each document that ``--json`` writes, by name."""
    from frameworktax.analysis.compare.comparison import Comparison
    from frameworktax.programs.document import Program
    from frameworktax.records import Run
    from frameworktax.report import json_document

    known = {"run": Run, "comparison": Comparison, "program": Program}
    return {name: json_document.schema(document) for name, document in known.items()}


# --- stores ---------------------------------------------------------------------------------------


@stores.command("list")
def list_points(store: Folder, where: Conditions = None, as_json: AsJson = False) -> None:
    """List the points of a store, one a line; of a large store the first ones.

    Example:

      frameworktax store list frameworktax-results --where model=bert-base
    """
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
    print(f"{counted(len(lines), 'point')} from {counted(sessions, 'session')}")


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


@stores.command()
def check(store: Folder, as_json: AsJson = False) -> None:
    """Read every line of a store and report damage; exit code 1 if there is any.

    Example:

      frameworktax store check frameworktax-results
    """
    from frameworktax.store import upkeep

    health = upkeep.check(store)
    if as_json:
        print(json.dumps(asdict(health)))
    else:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(health.records.items()))
        places, count = len(health.damage), counted(health.shards, "shard")
        verdict = f"damaged in {counted(places, 'place')}" if places else "whole"
        summary = f"{store}: {verdict}; {count}: {kinds or 'no records'}"
        _say([*health.remarks, *health.damage, summary])
    if health.damage:
        raise typer.Exit(1)


@stores.command()
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
    print(f"{would}: {counted(len(entries), 'prepared model')}, {total / 1e6:.1f} MB")


@stores.command()
def export(
    store: Folder,
    to: Annotated[str, typer.Option(help="mlflow or wandb.", show_default=False)],
    where: Conditions = None,
) -> None:
    """Log each point of a store to an experiment tracker.

    Example:

      frameworktax store export frameworktax-results --to mlflow
    """
    from frameworktax import api
    from frameworktax.integrations.trackers import TRACKERS
    from frameworktax.store.read import condition

    check_known("tracker", to, TRACKERS)
    results = api.read_store(store, condition(where) if where else None)
    print(f"logged to {to}: {counted(len(results), 'point')} in {TRACKERS[to](results.run)}")


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(flat(line))
