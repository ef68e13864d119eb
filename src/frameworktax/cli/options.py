"""Options that verbs share: how much is said."""

from __future__ import annotations

from typing import Annotated

import typer

from frameworktax.errors import UsageError

QUIET, VERBOSE = "--quiet", "--verbose"
Quiet = Annotated[bool, typer.Option(QUIET, help="Print nothing but errors.")]
Verbose = Annotated[
    bool,
    typer.Option(VERBOSE, help="Say every step, version and note in full; trace errors."),
]


def check_loudness(quiet: bool, verbose: bool) -> None:
    """Raise UsageError if both are asked for."""
    if quiet and verbose:
        raise UsageError("--quiet and --verbose are opposites; give one of them")
