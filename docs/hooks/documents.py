"""The reference of the documents that are written as JSON, and their schemas as files."""

from __future__ import annotations

import json
from typing import Any

HEAD = """# Documents as JSON

What `--json` writes. Times are integers or numbers of nanoseconds (`_ns`), sizes are bytes, shares
are fractions. `null` means not measured, and a note says why. The schemas themselves, as
`frameworktax schema` prints them, lie beside this page: {files}.

What a store holds, line by line: [Stores](../store.md). What the words mean: [Records](records.md).
"""
WHAT = {
    "run": "Written by `measure`, `sweep`, `explain` and `report` with `--json`.",
    "comparison": "Written by `frameworktax compare --json`.",
    "program": "Written by `run` and `attach` with `--json`.",
}


def pages() -> dict[str, str]:
    """Return the page and the schemas under their names."""
    from frameworktax.cli.lists import documents

    found, parts = {}, []
    for name, described in documents().items():
        found[f"reference/{name}.schema.json"] = json.dumps(described, indent=1) + "\n"
        parts.append(f"## {name}\n\n{WHAT[name]}\n\n{fields(described)}")
        for part, below in described.get("$defs", {}).items():
            if below.get("properties"):
                parts.append(f"### {part} in {name}\n\n{fields(below)}")
    links = ", ".join(f"[{name}]({name}.schema.json)" for name in WHAT)
    text = "\n\n".join([HEAD.format(files=links), *parts]) + "\n"
    return {"reference/documents.md": text, **found}


def fields(described: dict[str, Any]) -> str:
    """Return the fields of an object as a table."""
    needed = described.get("required", [])
    rows = []
    for name, field in described.get("properties", {}).items():
        said = field.get("description", "")
        if "const" in field:
            said = f"always `{json.dumps(field['const'])}`"
        rows.append((f"`{name}`", kind(field), "yes" if name in needed else "", said))
    lines = [("field", "type", "required", "what it is"), ("---",) * 4, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def kind(field: dict[str, Any]) -> str:
    """Return a field's type in a few words."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(kind(item) for item in field[key]))
    name = field.get("type", "any")
    if isinstance(name, list):
        return " or ".join(name)
    if name == "array" and "items" in field:
        return f"list of {kind(field['items'])}"
    if name == "array" and "prefixItems" in field:
        return f"({', '.join(kind(item) for item in field['prefixItems'])})"
    if name == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"names to {kind(field['additionalProperties'])}"
    return str(name)
