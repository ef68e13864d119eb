"""`frameworktax list`: models, runtimes and studies, and what is missing for each."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import console

lister = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List models, runtimes and studies, and what is missing.",
)
app.add_typer(lister, name="list")


@lister.command("models")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Every model by name, and how to bring your own.

    Example:

      frameworktax list models
    """
    from dataclasses import asdict

    from frameworktax import models
    from frameworktax.report.render_terminal import print_rows

    rows = [asdict(row) for row in models.describe_names()]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    families = [r["family"] for r in rows]
    print_rows(
        console(),
        ["model", "family", "what it is", "missing"],
        [  # one family after the other, named once
            [r["name"], r["family"] * (r["family"] != above), r["summary"], r["missing"] or ""]
            for r, above in zip(rows, ["", *families], strict=False)
        ],
    )
    print("your own: file.py:function or package.module:function")


@lister.command("runtimes")
def list_runtimes(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
) -> None:
    """Every runtime by name, and why one is not available here.

    Examples:

      frameworktax list runtimes

      frameworktax list runtimes --json
    """
    from frameworktax import api, runtimes
    from frameworktax.report.render_terminal import print_rows
    from frameworktax.runtimes.base import Target

    target = Target(device=api.pick_device(device))
    rows = []
    for name in runtimes.names():
        runtime = runtimes.get(name)
        reason = runtime.missing(target)
        rows.append(
            {
                "name": name,
                "paradigm": runtime.paradigm,
                "devices": list(runtime.devices),
                "precisions": list(runtime.precisions),
                "options": dict(runtime.options),
                "environment": runtime.environment or None,
                "available": reason is None,
                "reason": reason,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print_rows(
        console(),
        ["runtime", "paradigm", f"on {target.device}"],
        [[str(r["name"]), str(r["paradigm"]), str(r["reason"] or "available")] for r in rows],
    )


@lister.command("studies")
def list_studies(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """The paper's studies, for `frameworktax reproduce`.

    Example:

      frameworktax list studies
    """
    from frameworktax.report.render_terminal import print_rows
    from frameworktax.reproduce import studies

    every = [studies.load(name) for name in studies.every_name()]
    if as_json:
        rows = [
            {"name": s.name, "title": s.title, "claims": [claim.id for claim in s.claim]}
            for s in every
        ]
        print(json.dumps(rows, indent=1))
        return
    print_rows(
        console(),
        ["study", "title", "claims"],
        [[s.name, s.title, ", ".join(claim.id for claim in s.claim)] for s in every],
    )
