"""`frameworktax init`: a study to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.errors import UsageError


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.toml"),
) -> None:
    """Write a commented study for `frameworktax sweep`; nothing is overwritten.

    Example:

      frameworktax init study.toml
    """
    from frameworktax.sweep.study import TEMPLATE

    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise UsageError(f"{file} exists; name another file") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file") from error
    print(f"written: {file}; next: frameworktax sweep {file} --dry-run")
