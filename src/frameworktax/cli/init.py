"""`frameworktax init`: a study to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.errors import UsageError


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.toml"),
    from_optimum_benchmark: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Write a commented study for `frameworktax sweep`; nothing is overwritten.

    Example:

      frameworktax init study.toml
    """
    if from_optimum_benchmark is not None:
        raise UsageError(
            "--from-optimum-benchmark is gone: copy the models, runtimes and shapes into [grid] "
            "of a new study; docs/studies.md lists its axes"
        )
    from frameworktax.sweep.study import TEMPLATE

    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise UsageError(f"{file} is there already; name another file") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file") from error
    print(f"{file} is written. See what it comes to: frameworktax sweep {file} --dry-run")
