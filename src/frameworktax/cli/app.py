"""The application every verb hangs on."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="frameworktax",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for help costs more than the help
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure, itemise, explain and cut the framework tax of neural-network inference.",
)
