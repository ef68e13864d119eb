"""Pictures of the report for the documentation: light, dark, on a phone, on paper.

    python benchmarks/screenshots.py [docs/results/demo/run.json]

Writes ``docs/images/report-{light,dark,narrow,print}.png`` of the document's report.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from frameworktax.report import html, json_document

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "docs" / "results" / "demo" / "run.json"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PICTURES = (
    ("light", 1280, 2000, "light", "screen"),
    ("dark", 1280, 2000, "dark", "screen"),
    ("narrow", 360, 2000, "light", "screen"),
    ("print", 794, 1800, "dark", "print"),
)
"""Name, width, height, colours, medium."""


def main() -> int:
    document = Path(sys.argv[1]) if len(sys.argv) > 1 else DEMO
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as started:
        page_file = Path(name) / "report.html"
        html.write_report(json_document.load(document), page_file)
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture, width, height, colours, medium in PICTURES:
            size = {"width": width, "height": height}
            dark = colours == "dark"
            page = browser.new_context(
                color_scheme="dark" if dark else "light", viewport=size
            ).new_page()
            page.goto(page_file.as_uri())
            page.wait_for_selector("body[data-drawn=yes]")
            page.emulate_media(media="print" if medium == "print" else "screen")
            page.wait_for_timeout(500)
            target = folder / f"report-{picture}.png"
            page.screenshot(path=target)
            print(f"{target}: {target.stat().st_size / 1e3:.0f} kB")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
