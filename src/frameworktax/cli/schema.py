"""`frameworktax init` and `schema`: a study to start from, and what documents look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from frameworktax.cli.app import app
from frameworktax.errors import UsageError, nearest

DOCUMENTS = ("run", "comparison", "program", "study")


@app.command()
def schema(
    document: Annotated[
        str, typer.Argument(help="run (measure), comparison, program (run, attach) or study.")
    ] = "run",
) -> None:
    """Print the JSON Schema of a document that --json writes, or of a study.

    Example:

      frameworktax schema study
    """
    if document not in DOCUMENTS:
        raise UsageError(
            f"no document '{document}'{nearest(document, DOCUMENTS)}; have {', '.join(DOCUMENTS)}"
        )
    print(json.dumps(describe(document), indent=1))


def describe(document: str) -> dict[str, Any]:
    """Return the JSON Schema of one of ``DOCUMENTS``."""
    from frameworktax.analysis.compare.comparison import Comparison
    from frameworktax.programs.document import Program
    from frameworktax.records import Run
    from frameworktax.report import json_document
    from frameworktax.sweep import study

    if document == "study":
        return study.schema()
    described = {"run": Run, "comparison": Comparison, "program": Program}
    return json_document.schema(described[document])


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
