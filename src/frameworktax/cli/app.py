"""The application that every verb registers with, and the options that verbs share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from frameworktax.errors import UsageError

RETIRED = {
    "validate": "'make validate' in a clone of the repository measures the errors of predictions",
    "list coverage": "see docs/results/coverage.md or 'frameworktax list runtimes'",
    "store push": "a store is a folder of files: copy it with rsync, aws s3 sync or hf upload",
    "store pull": "a store is a folder of files: copy it with rsync, aws s3 sync or hf download",
    "init --from-optimum-benchmark": "write the study from the template of 'frameworktax init'",
}
"""Commands and options that the previous version had, each with what replaced it."""

QUIET, VERBOSE = "--quiet", "--verbose"
STORE = Path("frameworktax-results")

Quiet = Annotated[bool, typer.Option(QUIET, help="Print nothing but errors.")]
Verbose = Annotated[
    bool, typer.Option(VERBOSE, help="Print every step, version and note; trace errors.")
]
JsonFile = Annotated[
    str | None, typer.Option("--json", help="Write the document; - for standard output.")
]
HtmlReport = Annotated[Path | None, typer.Option(help="Write an HTML report.")]
Store = Annotated[Path, typer.Option(help="Folder that keeps every sample.")]
ModelName = Annotated[str, typer.Argument(help="A name, file.py:function or package.mod:function.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda:N.")]
TimeBudget = Annotated[str, typer.Option(help="Wall time for everything: 60s, 10min, 1h.")]
Until = Annotated[str, typer.Option(help="Stop at this half-width of the interval.")]
Processes = Annotated[int, typer.Option(help="Fresh processes for each point.", min=1)]
Length = Annotated[
    int | None, typer.Option(help="Tokens per sample; for speech models samples at 16 kHz.")
]
ImageSize = Annotated[int | None, typer.Option(help="Pixels per side.")]
Width = Annotated[float, typer.Option(help="Factor on layer widths.")]
Depth = Annotated[float, typer.Option(help="Factor on the number of layers.")]
Phase = Annotated[str, typer.Option(help="forward, or generate: greedy decoding.")]
Conditions = Annotated[
    list[str] | None,
    typer.Option(help="Select points: model=bert-base, batch=1..8. May be repeated."),
]

app = typer.Typer(
    name="frameworktax",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for help costs more than the help
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure, itemise, explain and cut the framework tax of neural-network inference.",
)


def check_loudness(quiet: bool, verbose: bool) -> None:
    """Raise UsageError if both are asked for."""
    if quiet and verbose:
        raise UsageError("--quiet and --verbose are opposites; give one of them")


def replacement(arguments: Sequence[str]) -> str | None:
    """Return what replaced the retired command in these arguments; None if none is retired."""
    words = [word.partition("=")[0] for word in arguments]
    for command, instead in RETIRED.items():
        verb, *rest = command.split()
        if words[:1] == [verb] and set(rest) <= set(words):
            return f"'{command}' was removed: {instead}"
    return None
