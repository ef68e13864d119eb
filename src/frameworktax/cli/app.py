"""The application that every verb registers with, and what replaced its retired commands."""

from __future__ import annotations

from collections.abc import Sequence

import typer

RETIRED = {
    "validate": "'make validate' in a clone of the repository measures the errors of predictions",
    "list coverage": "see docs/results/coverage.md, or 'frameworktax list runtimes'",
    "env": "install a runtime's packages beside the others: pip install 'frameworktax[jax]'",
    "store push": "a store is a folder of files: copy it with rsync, aws s3 sync or hf upload",
    "store pull": "a store is a folder of files: copy it with rsync, aws s3 sync or hf download",
    "store merge": "two stores in one folder are a store: cp node-1/*.jsonl node-2/*.jsonl all/",
    "store prune --keep-last": "a session is a file: remove the oldest SESSION.jsonl of the store",
    "store prune --older-than": "a session is a file: remove the oldest SESSION.jsonl of the store",
    "store prune --failed": "measure tries a failed point again, sweep study.attempts times in all",
    "store export --table": "--json FILE of a report has every sample of each point",
    "report --last": "a session is a file of the store: frameworktax report STORE/SESSION.jsonl",
    "compare --format": "-o FILE.md writes a comment, --json FILE the whole comparison",
    "explain --batch": "another size is measured: frameworktax measure MODEL --batch 8",
    "explain --width": "another size is measured: frameworktax measure MODEL --width 2",
    "explain --depth": "another size is measured: frameworktax measure MODEL --depth 2",
    "schema study": "docs/studies.md says what a study may hold; init writes one",
    "init --from-optimum-benchmark": "write its models and shapes into [grid]; see docs/studies.md",
}
"""Commands and options that the previous version had, each with what replaced it."""

app = typer.Typer(
    name="frameworktax",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for help costs more than the help
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure, itemise, explain and cut the framework tax of neural-network inference.",
)


def replacement(arguments: Sequence[str]) -> str | None:
    """Return what replaced the retired command in these arguments; None if none is retired."""
    words = [word.partition("=")[0] for word in arguments]
    for command, instead in RETIRED.items():
        verb, *rest = command.split()
        if words[:1] == [verb] and set(rest) <= set(words):
            return f"'{command}' was removed: {instead}"
    return None
