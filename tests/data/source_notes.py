"""Note codes and the sentences in the source, read without importing it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "frameworktax"
CODE = re.compile(r"[a-z]+(-[a-z]+)+")
FIELD = re.compile(r"\{[^{}]*\}")
"""A value in what ``str.format`` fills in."""
GAP = "…"
"""Stands where a sentence has a value."""


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def records(path: Path) -> bool:
    """Return whether a module writes notes into records or documents, and not only on a page."""
    return SOURCE / "report" not in path.parents and path.name != "blocks.py"


def template(node: ast.expr) -> str | None:
    """Return a string, f-string or format with its values as gaps, None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return FIELD.sub(GAP, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
        )
    return None


@cache
def codes() -> set[str]:
    """Return every note code: first of ``Note(code, text)`` or of a pair (code, text)."""
    found = set()
    for tree in (tree for path, tree in trees().items() if records(path)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Note":
                code = node.args[0] if len(node.args) == 2 else None
            elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
                code = node.elts[0]
            else:
                continue
            if isinstance(code, ast.Constant) and isinstance(code.value, str) and code.value:
                pair = isinstance(node, ast.Tuple)
                if not pair or (CODE.fullmatch(code.value) and " " in _shown(node.elts[1])):
                    found.add(code.value)
    return found


def _shown(node: ast.expr) -> str:
    """Return the sentence, or a blank where a variable or a call holds it."""
    text = template(node)
    return " " if text is None else text


@cache
def sentences() -> set[str]:
    """Return every string of the source as a template."""
    return {
        " ".join(text.split())
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and (text := template(node)) is not None
    }
