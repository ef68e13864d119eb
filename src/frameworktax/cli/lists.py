"""`list`, `doctor` and `schema`: what can be measured, with what, where, written how."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from frameworktax.cli.deliver import print_list
from frameworktax.cli.options import AsJson, Device
from frameworktax.errors import check_known

lister = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List models, runtimes and studies, and what is missing.",
)


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
    if calibrate:
        from frameworktax import comparing

        found, path = comparing.calibrate(lambda text: print(text, file=sys.stderr, flush=True))
        if as_json:
            print(json.dumps(asdict(found)))
            return
        print(
            f"beyond what they show, sessions of one program differ by {found.session_sd:.2%} and "
            f"{found.block_noise:.2f} × the spread of their blocks, processes by "
            f"{found.process_sd:.2%}; written: {path}"
        )
        return
    from frameworktax import host
    from frameworktax.attribution import probe

    checks = host.doctor(probe())
    if fix_hints and not as_json:
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
