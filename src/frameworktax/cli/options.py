"""Options that verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frameworktax.errors import UsageError

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


def check_loudness(quiet: bool, verbose: bool) -> None:
    """Raise UsageError if both are asked for."""
    if quiet and verbose:
        raise UsageError("--quiet and --verbose are opposites; give one of them")
