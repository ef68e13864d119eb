"""`frameworktax schema`: the JSON Schema of the documents."""

from __future__ import annotations

import importlib
import json
from typing import Annotated

import typer

from frameworktax.cli.app import app
from frameworktax.errors import UsageError, nearest

DOCUMENTS = {
    "run": "frameworktax.report.json_document",
    "comparison": "frameworktax.report.compare_export",
    "study": "frameworktax.sweep.study",
}


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
    described = importlib.import_module(DOCUMENTS[document]).schema()
    print(json.dumps(described, indent=1))
