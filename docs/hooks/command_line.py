"""The command line's reference, made of the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

PROGRAM = "frameworktax"
HEAD = """# Command line

Every verb with its options, as in `--help`. Exit codes: 0 done; 1 nothing could be measured, or a
gate failed; 2 wrong use, with one line that says what to do; 3 inconclusive; 130 interrupted.
"""


def pages() -> dict[str, str]:
    """Return the page under its name."""
    from typer.main import get_command

    from frameworktax.cli import app

    root = get_command(app)
    parts = [HEAD]
    for path, command in verbs(root, (PROGRAM,)):
        parts.append(section(path, command))
    return {"reference/command-line.md": "\n".join(parts)}


def verbs(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that does something, with the words that call it, by name."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in sorted(command.commands):
        below = command.commands[name]
        if not below.hidden:
            yield from verbs(below, (*path, name))


def section(path: tuple[str, ...], command: Any) -> str:
    """Return one command's section: its help, its arguments, its options."""
    said, _, examples = inspect.cleandoc(command.help or "").partition("Examples:")
    parameters = [p for p in command.params if not getattr(p, "hidden", False)]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    usage = [*path, *(["[OPTIONS]"] if options else []), *(metavar(p) for p in arguments)]
    parts = [f"## {' '.join(path[1:])}", said.strip(), block("text", [" ".join(usage)])]
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    if lines:
        parts.append(block("bash", lines))
    if arguments:
        rows = [(f"`{metavar(p)}`", p.help or "") for p in arguments]
        parts.append(table(("argument", "what it is"), rows))
    if options:
        rows3 = [(names(p), default(p), p.help or "") for p in options]
        parts.append(table(("option", "default", "what it does"), rows3))
    return "\n\n".join(parts) + "\n"


def metavar(parameter: Any) -> str:
    """Return an argument as the usage line has it."""
    name = parameter.metavar or parameter.name.upper()
    name = name if parameter.required else f"[{name}]"
    return f"{name}..." if parameter.nargs != 1 else name


def names(option: Any) -> str:
    """Return an option's names, with a word for the value of one that takes any."""
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    said = [f"`{name}{value}`" for name in option.opts]
    said += [f"`{name}`" for name in option.secondary_opts]
    return ", ".join(said)


def default(option: Any) -> str:
    """Return what holds where an option is left out."""
    if option.is_flag or option.default in (None, (), []) or callable(option.default):
        return "required" if option.required else ""
    return f"`{option.default}`"


def block(language: str, lines: list[str]) -> str:
    """Return a fenced block."""
    return "\n".join([f"```{language}", *lines, "```"])


def table(head: tuple[str, ...], rows: list[Any]) -> str:
    """Return a table; bars inside cells are escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )
