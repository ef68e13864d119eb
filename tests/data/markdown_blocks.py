"""Fenced blocks of a Markdown file, with what an HTML comment right above says about each.

<!-- not run: REASON -->   the block below is an example that the tests do not run
<!-- file: NAME -->        the block below is a file, written where the others run
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^( *)```(\w*) *$")
COMMENT = re.compile(r"^ *<!-- (not run|file): (.+?) -->$")


@dataclass(frozen=True)
class Block:
    document: Path
    line: int
    language: str
    text: str
    not_run: str | None = None
    file: str | None = None


def blocks(document: Path) -> list[Block]:
    """Return the fenced blocks of a document, in order; ``line`` is that of the opening fence."""
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    body: list[str] = []
    said: dict[str, str] = {}
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, body = (number, fence[1], fence[2]), []
            elif comment := COMMENT.match(line):
                said = {comment[1]: comment[2]}
            elif line.strip():
                said = {}
        elif fence and not fence[2]:
            start, indent, language = opened
            text = "".join(part.removeprefix(indent) + "\n" for part in body)
            found.append(
                Block(document, start, language, text, said.get("not run"), said.get("file"))
            )
            opened, said = None, {}
        else:
            body.append(line)
    if opened is not None:
        raise ValueError(f"{document}:{opened[0]}: a block without an end")
    return found


def prose(document: Path) -> str:
    """Return the text outside fenced blocks and comments; every line keeps its number."""
    lines, inside = [], False
    for line in document.read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line) is not None
        lines.append("" if inside or fence else line)
        inside ^= fence
    text = "\n".join(lines)
    return re.sub(r"<!--.*?-->", lambda c: "\n" * c[0].count("\n"), text, flags=re.DOTALL)


def write_files(document: Path, folder: Path) -> None:
    """Write the blocks that are files."""
    for block in blocks(document):
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
