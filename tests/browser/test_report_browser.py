"""The report in a real browser: it draws, asks nobody for anything, and names do nothing."""

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import sample_records as data

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
if CHROMIUM is None:
    pytest.skip("no chromium on the path", allow_module_level=True)

from test_report import hostile  # noqa: E402

from frameworktax.analysis.document import build  # noqa: E402
from frameworktax.report.html import write_report  # noqa: E402

LIGHT = {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}}
DARK = {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}
PHONE = {"color_scheme": "light", "viewport": {"width": 390, "height": 800}}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def run():
    return build(data.sample_records())


def visit(browser, run, path, **options):
    """Open the report; return the page, what it said and what it asked for."""
    write_report(run, path)
    page = browser.new_context(accept_downloads=True, **options).new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-drawn=yes]", timeout=20_000)
    return page, said, asked


@pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])
def test_draws_quietly_and_alone(browser, run, tmp_path, options):
    page, said, asked = visit(browser, run, tmp_path / "r.html", **options)
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.locator(".chart svg.marks").count() == 3
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= options["viewport"]["width"]
    assert page.locator(".chart svg", has_text="onnxruntime").count() == 3
    assert page.locator(".chart svg", has_text="38 %").count() == 1


def test_dark_text_is_light(browser, run, tmp_path):
    page, _, _ = visit(browser, run, tmp_path / "r.html", **DARK)
    fill = page.locator(".chart svg .role-axis-label text").first.get_attribute("fill")
    assert fill in ("#9da7b3", "#e9ecef")


def test_a_click_in_the_legend_isolates_a_runtime(browser, run, tmp_path):
    page, said, _ = visit(browser, run, tmp_path / "r.html", **LIGHT)
    page.locator("#latency-0 .role-legend-label text", has_text="onnxruntime").click()
    page.wait_for_timeout(300)
    lines = page.locator("#latency-0 .mark-line path")
    opacities = [lines.nth(i).get_attribute("opacity") for i in range(lines.count())]
    assert sorted(opacities, key=str) == ["0.1"] * 5 + ["1"]
    assert said == []


def test_downloads_are_the_document_and_its_rows(browser, run, tmp_path):
    page, _, _ = visit(browser, run, tmp_path / "r.html", **LIGHT)
    with page.expect_download() as got:
        page.click("#get-json")
    found = json.loads(Path(got.value.path()).read_text())
    assert found["schema"] == "frameworktax.run"
    assert len(found["measurements"]) == len(run.measurements)
    with page.expect_download() as got:
        page.click("#get-csv")
    assert Path(got.value.path()).read_text().startswith("model,runtime,")


def test_hostile_names_do_nothing(browser, run, tmp_path):
    page, said, asked = visit(browser, hostile(run), tmp_path / "r.html", **LIGHT)
    page.locator("#latency-0 .mark-symbol path").first.hover()
    page.wait_for_timeout(300)
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img").count() == 0
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
