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
    "comparison": "frameworktax.report.compare_document",
}


@app.command()
def schema(
    document: Annotated[str, typer.Argument(help="run or comparison.")] = "run",
) -> None:
    """Print the JSON Schema of the document that --json writes."""
    if document not in DOCUMENTS:
        raise UsageError(
            f"no document '{document}'{nearest(document, DOCUMENTS)}; have run, comparison"
        )
    described = importlib.import_module(DOCUMENTS[document]).schema()
    print(json.dumps(described, indent=1))  # noqa: T201
