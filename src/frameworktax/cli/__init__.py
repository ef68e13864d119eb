"""The command line: parse, call, print, exit code; no arithmetic."""

from __future__ import annotations

import inspect
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from frameworktax.cli import lists, measure, report, run
from frameworktax.cli.deliver import INTERRUPTED, UNREAD, fail, into_nothing
from frameworktax.cli.options import QUIET, VERBOSE
from frameworktax.errors import NO_ROOM, FrameworktaxError, indented, one_line
from frameworktax.version import __version__

CRASHED = 70
"""A fault of this program (EX_SOFTWARE): no code of a verdict, and none of wrong use."""
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""What typer's parser raises; newer ones carry a click of their own, so it is found from here."""
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
    "store export -o": "frameworktax report STORE -o points.csv writes the table",
    "store export --output": "frameworktax report STORE -o points.csv writes the table",
    "report --last": "a session is a file of the store: frameworktax report STORE/SESSION.jsonl",
    "compare --format": "-o FILE.md writes a comment, --json FILE the whole comparison",
    "explain --batch": "another size is measured: frameworktax measure MODEL --batch 8",
    "explain --width": "another size is measured: frameworktax measure MODEL --width 2",
    "explain --depth": "another size is measured: frameworktax measure MODEL --depth 2",
    "schema study": "docs/studies.md says what a study may hold; init writes one",
    "init --from-optimum-benchmark": "write its models and shapes into [grid]; see docs/studies.md",
}
"""Commands and options that the previous version had, each with what replaced it."""

VERBS: Mapping[str, Callable[..., Any]] = {
    "ablate": measure.ablate_command,
    "attach": run.attach_command,
    "compare": report.compare_command,
    "explain": report.explain_command,
    "doctor": lists.doctor,
    "schema": lists.schema,
    "measure": measure.measure,
    "optimize": measure.optimize_command,
    "report": report.report_command,
    "reproduce": measure.reproduce_command,
    "run": run.run_command,
    "sweep": measure.sweep,
    "init": measure.init,
}
"""In the order of the help text."""


class Verb(TyperCommand):
    """A command that typer makes of its function when its options are first asked for.

    The help text needs none of the 150 options of all verbs, any other command those of one.
    """

    def __init__(self, name: str) -> None:
        # What follows the program of ``run`` is the program's own.
        settings = {"allow_interspersed_args": name != "run"}
        text = inspect.getdoc(VERBS[name]) or ""
        brief = text.partition("\n")[0]  # typer would cut it after 45 characters
        super().__init__(
            name, context_settings=settings, help=text, short_help=brief, rich_markup_mode=None
        )
        del self.params, self.callback

    def __getattr__(self, name: str) -> Any:
        """Make what was not asked for before, and keep it."""
        if name not in ("params", "callback"):
            raise AttributeError(name)
        alone = typer.Typer(add_completion=False)
        alone.command()(VERBS[str(self.name)])
        made = get_command(alone)
        self.params, self.callback = made.params, made.callback
        return getattr(self, name)


class Verbs(TyperGroup):
    """The command line: each of ``VERBS``, and the groups that are added to ``app``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: Verb(name) for name in VERBS} | dict(self.commands)


app = typer.Typer(
    name="frameworktax",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for help costs more than the help
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure, itemise, explain and cut the framework tax of neural-network inference.",
)
app.add_typer(lists.lister, name="list")
app.add_typer(lists.stores, name="store")


def main() -> None:
    """Run the command line; every expected error is one line and an exit code."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # closed: what is written there would be in a file of ours
            into_nothing(number)
            setattr(sys, name, os.fdopen(number, "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of another encoding loses signs only
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # raises here, and not at exit, if the reader has left
    except FrameworktaxError as error:
        if VERBOSE in sys.argv and QUIET not in sys.argv:
            _trace(error)
        fail(replacement(sys.argv[1:]) or str(error), error.exit_code)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(2)
        said = error.format_message()
        unknown = ("Missing", "No such", "Got unexpected")
        if said.startswith(unknown) and error.ctx is not None:
            said = f"{said.rstrip('.')}; see '{error.ctx.command_path} --help'"
        fail(replacement(sys.argv[1:]) or said, 2)
    except (typer.Abort, KeyboardInterrupt):
        fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _unread()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):
            _unread()  # typer leaves with 1, which would say that a gate failed
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no verdict
        _crashed(error)
    else:
        if code == INTERRUPTED:  # typer returns it for a Ctrl-C, and says nothing
            fail("interrupted", INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)


def replacement(arguments: Sequence[str]) -> str | None:
    """Return what replaced the retired command in these arguments; None if none is retired."""
    words = [word.partition("=")[0] for word in arguments]
    for command, instead in RETIRED.items():
        verb, *rest = command.split()
        if words[:1] == [verb] and set(rest) <= set(words):
            return f"'{command}' was removed: {instead}"
    return None


def _crashed(error: Exception) -> NoReturn:
    """End with one line where a path is at fault, with a traceback and a code of its own else."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        into_nothing(1)
        fail(
            f"cannot write {error.filename or 'the output'}: {error.strerror}; free space, and "
            "run the same command again: what a store has is kept",
            2,
        )
    if isinstance(error, OSError) and error.filename is not None:
        fail(f"cannot use {error.filename}: {error.strerror}; name another", 2)
    if isinstance(error, MemoryError):
        fail("not enough memory for this; give it less, or a machine with more", 2)
    _trace(error)
    fail(f"a fault of frameworktax itself, please report it: {one_line(error)}", CRASHED)


def _trace(error: Exception) -> None:
    """Print where an error was raised; names in it drive no terminal."""
    for line in "".join(traceback.format_exception(error)).splitlines():
        print(indented(line), file=sys.stderr)


def _unread() -> NoReturn:
    """Leave without a word, as every filter does whose reader has left."""
    into_nothing(1)
    sys.exit(UNREAD)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show:
        print(__version__)
        raise typer.Exit
