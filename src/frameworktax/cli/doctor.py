"""`frameworktax doctor`: is this machine fit to measure."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import console


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    fix_hints: Annotated[
        bool, typer.Option("--fix-hints", help="Print the commands that would help; run none.")
    ] = False,
) -> None:
    """Say whether this machine is fit to measure, and what would make it fitter.

    Examples:

      frameworktax doctor

      frameworktax doctor --fix-hints
    """
    from dataclasses import asdict

    from frameworktax import host
    from frameworktax.attribution import available_samplers
    from frameworktax.report.render_terminal import print_rows

    checks = host.doctor(available_samplers())
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
        return
    if fix_hints:
        for line in host.hints(checks) or ["# nothing to do: this machine is fit to measure"]:
            print(line)
        return
    print_rows(
        console(),
        ["check", "", "found", "remedy"],
        [[c.code, c.status, c.text, c.remedy or ""] for c in checks],
    )
