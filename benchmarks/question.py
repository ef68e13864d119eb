"""What the pages of ``make questions`` share: where they go, the store beside them, the machine."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frameworktax.cli.progress import ProgressView
from frameworktax.records import Environment

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a question's page, pictures and store lie.

    Attributes:
        page: the Markdown file.
        folder: what is drawn from: a store and further files.
        quick: a trial, whose numbers prove nothing.
        redraw: nothing is measured.
    """

    page: Path
    folder: Path
    quick: bool
    redraw: bool

    @property
    def store(self) -> Path:
        """The store, shards only."""
        return self.folder / "store"

    def write(self, text: str) -> None:
        """Write the page and say where it is."""
        self.page.parent.mkdir(parents=True, exist_ok=True)
        self.page.write_text(text, encoding="utf-8")
        print(f"written: {self.page}", flush=True)

    def fresh(self) -> None:
        """Leave nothing of an earlier run: a page tells one run."""
        if not self.redraw:
            shutil.rmtree(self.folder, ignore_errors=True)


def place(name: str, description: str, arguments: Sequence[str] | None = None) -> Place:
    """Return where a question's results go, by the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke test, in a temporary folder")
    parser.add_argument("--redraw", action="store_true", help="draw the page from what is kept")
    given = parser.parse_args(arguments)
    base = PAGES
    if given.quick:
        base = Path(tempfile.gettempdir()) / "frameworktax-questions"
    found = Place(base / f"{name}.md", base / name, given.quick, given.redraw)
    found.fresh()
    return found


def bar() -> ProgressView:
    """Return a progress bar on standard error."""
    from rich.console import Console

    return ProgressView(Console(stderr=True, highlight=False))


def machine(where: Environment | None) -> str:
    """Return the machine and the versions in a sentence."""
    if where is None:
        return "No environment was recorded."
    versions = [
        f"{name} {where.libraries[name]}"
        for name in ("frameworktax", "torch", "transformers", "onnxruntime", "openvino")
        if name in where.libraries
    ]
    virtual = f", {where.virtualization}" if where.virtualization else ""
    return (
        f"Measured on {where.cpu}, {where.cores} processors{virtual}, one thread; "
        f"{', '.join(versions)}; load {where.load_1min} when it began."
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return a Markdown table; columns from ``left`` on are numbers."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|" + "---|" * left + "--:|" * (len(header) - left))
    return lines + ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
