"""`frameworktax schema`: the JSON Schema of the documents."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.errors import UsageError, nearest

DOCUMENTS = ("run", "comparison", "study")


@app.command()
def schema(
    document: Annotated[str, typer.Argument(help="run, comparison or study.")] = "run",
) -> None:
    """Print the JSON Schema of a document that --json writes, or of a study.

    Example:

      frameworktax schema study
    """
    if document not in DOCUMENTS:
        raise UsageError(
            f"no document '{document}'{nearest(document, DOCUMENTS)}; have {', '.join(DOCUMENTS)}"
        )
    from frameworktax.analysis.compare.comparison import Comparison
    from frameworktax.records import Run
    from frameworktax.report import json_document
    from frameworktax.sweep import study

    kind = {"run": Run, "comparison": Comparison}.get(document)
    described = json_document.schema(kind) if kind else study.schema()
    print(json.dumps(described, indent=1))
