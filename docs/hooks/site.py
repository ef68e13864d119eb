"""What MkDocs asks of us while it builds the site: navigation, generated pages, links.

The Markdown files are written to be read in the repository as well. So a link may leave
``docs/``; what it leads to becomes part of the site, under ``repository/``, and so does the link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import documents
import paper_claims
import python_names
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OUTSIDE = "repository"
HOW_TO = "How to"
RESULTS = "Results"
CHANGES = ROOT / "CHANGELOG.md"
EXAMPLES = ROOT / "examples" / "README.md"
FENCE = re.compile(r"^ *```(\w*) *$")
NAMED = re.compile(r"^ *<!-- file: (.+?) -->$")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of results and examples that there are; make anchors as Git hosts do."""
    for entry in config.nav or []:
        if RESULTS in entry:
            entry[RESULTS] = [
                {title(page): page.relative_to(DOCS).as_posix()}
                for page in sorted((DOCS / "results").glob("*.md"), key=title)
            ]
        elif HOW_TO in entry and EXAMPLES.is_file():
            entry[HOW_TO].insert(0, {"Decide, in real cases": uri_of(EXAMPLES)})
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def title(page: Path) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# +(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.stem


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading: lower case, blanks as separators, no other signs."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and what links lead to outside of ``docs/``."""
    reached = {page for page in (CHANGES, EXAMPLES) if page.is_file()}
    waiting = [*(DOCS / file.src_uri for file in files.documentation_pages()), *reached]
    while waiting:
        page = waiting.pop()
        for target in set(targets(page)) - reached:
            reached.add(target)
            if target.suffix == ".md":
                waiting.append(target)
    made: dict[str, str | bytes] = {uri_of(path): path.read_bytes() for path in sorted(reached)}
    for generator in (command_line, documents, paper_claims, python_names):
        made |= generator.pages()
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def targets(page: Path) -> Iterator[Path]:
    """Yield the files outside of ``docs/`` that a page's links lead to."""
    for line in prose(page.read_text(encoding="utf-8").splitlines()):
        for link in LINK.findall(line):
            target = target_of(link, page)
            if target is not None and target.is_file() and not target.is_relative_to(DOCS):
                yield target


def target_of(link: str, page: Path) -> Path | None:
    """Return the file a link leads to; None for a place in the same page or another host."""
    path = link.partition("#")[0]
    if not path or "://" in link or link.startswith("mailto:"):
        return None
    return (page.parent / path).resolve()


def uri_of(path: Path) -> str:
    """Return where in the site's sources a file of the repository stands."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"


def source_of(uri: str) -> Path:
    """Return the file of the repository behind a page."""
    inside = uri.removeprefix(f"{OUTSIDE}/")
    return DOCS / uri if inside == uri else ROOT / inside


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to where their targets stand in the site; name the blocks that are files."""
    uri = page.file.src_uri
    source = source_of(uri)
    folder = Path(uri).parent.as_posix()

    def led(match: re.Match[str]) -> str:
        link = match[1]
        target = target_of(link, source)
        if target is None or not target.is_relative_to(ROOT):
            return match[0]
        where = os.path.relpath(uri_of(target), folder)
        _, mark, place = link.partition("#")
        return f"]({where}{mark}{place})"

    lines = markdown.splitlines()
    made = [LINK.sub(led, line) for line in prose(lines)]
    # A line of a block is empty in the prose, and stays as it is.
    kept = [new if new else old for new, old in zip(made, lines, strict=True)]
    return "\n".join(plain_bars(line) for line in files_named(kept)) + "\n"


def prose(lines: list[str]) -> list[str]:
    """Return the lines with those of fenced blocks emptied."""
    inside = False
    found = []
    for line in lines:
        fence = FENCE.match(line) is not None
        found.append("" if inside or fence else line)
        inside ^= fence
    return found


def plain_bars(line: str) -> str:
    """Return a row of a table with bars inside code as they are: Python-Markdown keeps the sign."""
    if not line.startswith("|"):
        return line
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), line)


def files_named(lines: list[str]) -> list[str]:
    """Return the lines with the name of each block that is a file as the block's title."""
    name = None
    found = []
    for line in lines:
        fence = FENCE.match(line)
        if comment := NAMED.match(line):
            name = comment[1]
        elif fence and fence[1] and name is not None:
            found.append(f'{line.rstrip()} title="{name}"')
            name = None
            continue
        elif line.strip():
            name = None
        found.append(line)
    return found
