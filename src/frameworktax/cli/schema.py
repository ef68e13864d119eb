"""`frameworktax schema`: the JSON Schema of the documents."""

from __future__ import annotations

import json

from frameworktax.cli.app import app


@app.command()
def schema() -> None:
    """Print the JSON Schema of the document that --json writes."""
    from frameworktax.report.json_document import schema as document_schema

    print(json.dumps(document_schema(), indent=1))  # noqa: T201
