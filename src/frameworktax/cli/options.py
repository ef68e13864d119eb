"""Options that verbs share, and the texts of options as numbers, pairs and time spans."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from frameworktax.errors import UsageError
from frameworktax.sweep.values import numbers, seconds, share, words

QUIET, VERBOSE = "--quiet", "--verbose"
SHOWING = ("json_file", "report", "figure", "out", "quiet", "verbose")
"""Parameters that say how a result is shown, or where it is written."""
STORE = Path("frameworktax-results")

Quiet = Annotated[bool, typer.Option(QUIET, help="Print nothing but errors.")]
Verbose = Annotated[
    bool, typer.Option(VERBOSE, help="Print every step, version and note; trace errors.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing: only show what would be done.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
JsonFile = Annotated[
    str | None, typer.Option("--json", help="Write the document; - for standard output.")
]
Redraw = Annotated[
    bool, typer.Option("--redraw", help="Measure nothing: show the results in the store.")
]
HtmlReport = Annotated[Path | None, typer.Option(help="Write a report: .html or .md.")]
Store = Annotated[Path, typer.Option(help="Folder that keeps every sample.")]
ModelName = Annotated[str, typer.Argument(help="A name, file.py:function or package.mod:function.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda:N.")]
TimeBudget = Annotated[str, typer.Option(help="Time for measuring: 60s, 10min, 1h.")]
MeasureBudget = Annotated[
    str | None,
    typer.Option(
        help="Time for measuring: 60s, 10min, 1h; default: 12 s, or 60 s to cover all points.",
        show_default=False,
    ),
]
SetupLimit = Annotated[
    str, typer.Option(help="Time limit of each step of set-up: an export, a compilation.")
]
Until = Annotated[str, typer.Option(help="Stop at this half-width of the interval.")]
Processes = Annotated[
    int | None,
    typer.Option(
        help="Fresh processes for each point; default: 3, and up to 12 where they differ.",
        show_default=False,
        min=1,
    ),
]
Length = Annotated[
    int | None, typer.Option(help="Tokens per sample; for speech models samples at 16 kHz.")
]
Batches = Annotated[str, typer.Option(help="1,4,16 or 1..16 (powers of two).")]
BatchDim = Annotated[int | None, typer.Option(help="Batch dimension of own inputs.")]
Runtimes = Annotated[str, typer.Option(help="Names with commas between, or all.")]
Threads = Annotated[int, typer.Option(help="Threads on a CPU.", min=1)]
ForceThreads = Annotated[
    bool, typer.Option("--force-threads", help="Allow more threads than processors.")
]
ImageSize = Annotated[int | None, typer.Option(help="Pixels per side.")]
Width = Annotated[float, typer.Option(help="Factor on layer widths.")]
Depth = Annotated[float, typer.Option(help="Factor on the number of layers.")]
Phase = Annotated[str, typer.Option(help="forward, or generate: greedy decoding.")]
Conditions = Annotated[
    list[str] | None,
    typer.Option(help="Select points: model=bert-base, batch=1..8. May be repeated."),
]


PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "allow": lambda text, _: words(text),
    "batch": numbers,
    "length": numbers,
    "runtimes": lambda text, _: words(text),
    "setup_limit": seconds,
    "time_budget": seconds,
    "until": share,
}
"""What the text of an option becomes, by its name."""


def arguments(call: Callable[..., Any], given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the arguments of a call: the options named like its parameters, and more.

    ``given`` has the options of a verb as they were typed, ``more`` what is none, or not as typed.

    Raises:
        UsageError: a text that is no such number, time or share.
    """
    found = {name: given[name] for name in inspect.signature(call).parameters if name in given}
    for name, value in found.items():
        if name in PARSERS and isinstance(value, str):
            found[name] = PARSERS[name](value, f"--{name.replace('_', '-')}")
    return found | more


def typed(context: typer.Context) -> dict[str, str]:
    """Return the parameters that were typed, each with the option that it has."""
    found = {str(parameter.name): parameter.opts[-1] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in found}
    return {n: found[n] for n, source in sources.items() if source and source.name == "COMMANDLINE"}


def refuse_beside(context: typer.Context, option: str, *used: str) -> None:
    """Raise UsageError where an option was typed that does nothing beside another.

    ``used`` are the parameters that have a use beside it.
    """
    for name, other in typed(context).items():
        if name not in used:
            raise UsageError(f"{other} has no use beside {option}; leave one out")


def parse_input(text: str) -> tuple[str, float | None, float | None]:
    """Return ``ragged:20.92,10.18`` as kind, mean and standard deviation; the last two may lack."""
    kind, colon, moments = text.strip().partition(":")
    if not colon:
        return kind, None, None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*,\s*(\d+(?:\.\d+)?)\s*", moments)
    if not found:
        raise UsageError(f"--input '{text}' names no lengths; write ragged:MEAN,SD")
    return kind, float(found[1]), float(found[2])


def parse_pairs(texts: list[str], option: str) -> dict[str, str]:
    """Return ``before=after`` texts, commas between or one an option, as a mapping."""
    pairs: dict[str, str] = {}
    for text in texts:
        for word in words(text):
            before, sign, after = (part.strip() for part in word.partition("="))
            if not (sign and before and after):
                raise UsageError(f"{option} '{word}' names no pair; write {option} BEFORE=AFTER")
            if pairs.get(before, after) != after:
                raise UsageError(f"{option} pairs '{before}' twice; name each once")
            pairs[before] = after
    return pairs


def parse_size(text: str, option: str) -> int:
    """Return ``2GB``, ``500 MB`` or a number of bytes in bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)B?\s*", text)
    if not found:
        raise UsageError(f"{option} '{text}' is no size; write 2GB or 500MB")
    return int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " "))
