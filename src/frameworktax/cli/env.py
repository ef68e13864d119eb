"""`frameworktax env`: environments of their own for runtimes that need one."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.cli.deliver import console

environments_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Environments of their own for runtimes whose packages are large or disagree.",
)
app.add_typer(environments_app, name="env")


@environments_app.command("create")
def create(
    names: Annotated[list[str], typer.Argument(help="As in 'frameworktax env list'.")],
) -> None:
    """Install a runtime apart; measuring then uses it like any other.

    Example:

      frameworktax env create executorch
    """
    from frameworktax import runtimes
    from frameworktax.runtimes import environments

    wanted = {name: runtimes.recipe(name) for name in names}  # a wrong name installs nothing
    for name, recipe in wanted.items():
        python = environments.create(name, recipe, lambda text: print(text, file=sys.stderr))
        print(f"{name}: ready, {python}")


@environments_app.command("list")
def list_environments(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List what can be installed apart, and what is installed.

    Example:

      frameworktax env list
    """
    from frameworktax import runtimes
    from frameworktax.report.render_terminal import print_rows
    from frameworktax.runtimes import environments

    rows = environments.found(runtimes.recipes())
    if as_json:
        print(json.dumps([asdict(r) | {"folder": str(r.folder)} for r in rows], indent=1))
        return
    print_rows(
        console(),
        ["environment", "installs", "size", "here"],
        [
            [r.name, ", ".join(r.packages), f"{r.megabytes} MB", "ready" if r.ready else "no"]
            for r in rows
        ],
    )


@environments_app.command("remove")
def remove(names: Annotated[list[str], typer.Argument(help="Environments to delete.")]) -> None:
    """Delete environments.

    Example:

      frameworktax env remove executorch
    """
    from frameworktax import runtimes
    from frameworktax.runtimes import environments

    for name in names:
        runtimes.recipe(name)
    for name in names:
        print(f"{name}: {'removed' if environments.remove(name) else 'there was none'}")
