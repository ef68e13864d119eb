"""Opening a report in a real browser, for the tests of this folder."""

import contextlib
import importlib.util
import os
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
if "FRAMEWORKTAX_NO_BROWSER" in os.environ:
    CHROMIUM = None
DESK = {"width": 1280, "height": 900}
LIMIT_MS = 600_000
"""Of a step in the page: no outcome depends on how long one takes."""


def needed():
    """Skip the module where the browser, its driver or the plotting package is missing."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    if CHROMIUM is None:
        pytest.skip("no chromium on the path", allow_module_level=True)


def axe():
    """Return where axe-core lies, in the package that carries it; None where that is missing."""
    found = importlib.util.find_spec("axe_playwright_python")
    return found and Path(found.origin).with_name("axe.min.js")


@contextlib.contextmanager
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def visit(browser, run, path, **options):
    """Open the report of a run; return the page, what it said and what it asked for."""
    from frameworktax.report.html import page as drawn

    path.write_text(drawn(run), encoding="utf-8")
    options = {"color_scheme": "light", "viewport": DESK, **options}
    page = browser.new_context(accept_downloads=True, **options).new_page()
    page.set_default_timeout(LIMIT_MS)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-drawn=yes]")
    return page, said, asked


def outside(asked):
    """Return the requests that leave the page."""
    return [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
