"""The report in a real browser: it draws, loads nothing, and names do nothing."""

import csv
import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import report_pages as pages
import sample_records as data

pytestmark = pytest.mark.browser
pages.needed()

from test_report import hostile

from frameworktax.analysis.document import build
from frameworktax.analysis.whatif import formulas as whatif
from frameworktax.analysis.whatif.formulas import WhatIf
from frameworktax.report import charts, trace_blocks, words
from frameworktax.report.blocks import Chart, table
from frameworktax.report.families import families
from frameworktax.report.html import write_page
from frameworktax.report.run_blocks import run_blocks

PHONE = {"width": 360, "height": 740}
AXE = pages.axe()


@pytest.fixture(scope="module")
def browser():
    with pages.chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def run():
    """The sample, once more with twice the length, which makes a second axis."""
    made = build(data.sample_records())
    longer = tuple(
        replace(m, workload=replace(m.workload, length=256), flops=(i + 1) * 10**9)
        for i, m in enumerate(made.measurements)
        if m.runtime != "null"
    )
    return replace(made, measurements=(*made.measurements, *longer))


@pytest.fixture(scope="module")
def light(browser, run, tmp_path_factory):
    page, said, asked = pages.visit(browser, run, tmp_path_factory.mktemp("light") / "r.html")
    yield page
    assert said == []
    assert pages.outside(asked) == []


def test_draws_quietly_and_alone_in_the_dark_and_on_a_phone(browser, run, tmp_path):
    options = {"color_scheme": "dark", "viewport": PHONE}
    page, said, asked = pages.visit(browser, run, tmp_path / "r.html", **options)
    assert said == []
    assert pages.outside(asked) == []
    assert page.locator(".chart svg.marks").count() == 8
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE["width"]
    assert page.locator("#bill-0 svg", has_text="38 %").count() == 1
    fill = page.locator(".chart svg .role-axis-label text").first.get_attribute("fill")
    assert fill in ("#9da7b3", "#e9ecef")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 26)"


WATCH = """new MutationObserver(() => {
  window.atOpen ??= document.querySelectorAll('.chart svg.marks').length;
}).observe(document, { subtree: true, attributeFilter: ['data-open'] })"""


def test_what_the_screen_shows_is_drawn_first(browser, light):
    page = browser.new_context(viewport={"width": 1280, "height": 1800}).new_page()
    page.set_default_timeout(pages.LIMIT_MS)
    page.add_init_script(WATCH)
    page.goto(light.url)
    page.wait_for_selector("body[data-drawn=yes]")
    seen = page.evaluate(
        """[...document.querySelectorAll('.chart')]
        .filter(c => c.getBoundingClientRect().top < innerHeight).length"""
    )
    assert page.evaluate("window.atOpen") >= seen > 0
    assert page.evaluate("window.atOpen") < page.locator(".chart svg.marks").count() == 8


def has_opacities(page, chart, *wanted):
    """Wait until the lines of a chart have these opacities, in any order."""
    page.wait_for_function(
        """([chart, wanted]) => [...document.querySelectorAll(`#${chart} .mark-line path`)]
        .map(line => line.getAttribute("opacity")).sort().join() === wanted""",
        arg=[chart, ",".join(sorted(wanted))],
    )


def test_a_runtime_is_isolated_with_mouse_and_keyboard(light):
    chips = light.locator("#latency-0").locator("xpath=preceding-sibling::p[@class='chips']")
    chip = chips.get_by_role("button", name="onnxruntime")
    has_opacities(light, "latency-0", *["1"] * 6)
    chip.click()
    has_opacities(light, "latency-0", *["0.1"] * 5, "1")
    other = chips.get_by_role("button", name="eager")
    other.focus()
    light.keyboard.press("Enter")
    has_opacities(light, "latency-0", *["0.1"] * 4, "1", "1")
    for one in (chip, other):
        one.click()
    has_opacities(light, "latency-0", *["1"] * 6)


def test_a_point_tells_its_numbers(light):
    light.locator("#latency-0 .mark-symbol path").first.hover()
    tip = light.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    said = tip.inner_text()
    assert all(word in said for word in ("eager", "4.40 (4.29 to 4.51) ms", "62 %"))
    light.mouse.move(0, 0)


def test_a_point_of_a_twin_tells_that_its_overhead_is_no_tax(light):
    point = light.locator('#latency-0 .mark-symbol path[aria-label*="runtime: onnxruntime"]').first
    point.hover()
    tip = light.locator("#vg-tooltip-element.visible", has_text="onnxruntime")
    tip.wait_for()
    assert re.search(r"\bwarm \d+ %", tip.inner_text())
    light.mouse.move(0, 0)


def test_each_stop_of_a_slider_shows_pythons_answer(light, run):
    """Every stop of every slider, from every point, against ``predict`` asked for that alone."""
    places = light.locator("[data-change]")
    shown = light.evaluate(STOPS)
    names = light.locator("#whatif-subject option").all_inner_texts()
    assert len({row[0] for row in shown}) == len(names) == 12
    texts = refused = 0
    asked = {}
    for subject, change, stop, said, more in shown:
        if stop == "1":
            assert more == "as it was measured"
            continue
        if (change, stop) not in asked:
            asked[change, stop] = whatif.predict(WhatIf(**{change: float(stop)}), run)
        found = next(p for p in asked[change, stop] if p.subject == names[int(subject)])
        if found.reason is not None:
            assert (said, more) == ("not predicted", found.reason)
            refused += 1
        else:
            assert said == trace_blocks.latency_text(found.latency_ns)
            assert more.startswith(f"{words.factor(found.factor)} faster; {found.formula}")
            texts += 1
    assert places.count() == 2  # one of a CPU, one of a device
    assert texts > 50


STOPS = """() => {
  const shown = [];
  const subject = document.getElementById("whatif-subject");
  const moved = (target) => target.dispatchEvent(new Event("input", { bubbles: true }));
  for (const option of subject.options) {
    subject.value = option.value;
    moved(subject);
    for (const row of document.querySelectorAll("[data-change]:not([hidden])")) {
      const slider = row.querySelector("input");
      for (let at = 0; at <= Number(slider.max); at += 1) {
        slider.value = String(at);
        moved(slider);
        shown.push([option.value, row.dataset.change, slider.dataset.stops.split(" ")[at],
          ...["b", "small"].map((name) => row.querySelector(`[data-answer] ${name}`).textContent)]);
      }
    }
  }
  subject.value = "0";
  moved(subject);
  return shown;
}"""


def test_a_slider_moves_with_the_keyboard_and_is_reset(light):
    slider = light.locator("#host_speed")
    place = light.locator("[data-answer=host_speed]")
    slider.focus()
    for _ in range(3):
        light.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "× 2"
    assert "faster" in place.inner_text()
    light.get_by_role("button", name="Reset").click()
    assert slider.get_attribute("aria-valuetext") == "× 1"
    assert "as it was measured" in place.inner_text()


@pytest.mark.parametrize("number", [0, -1])
def test_the_page_draws_latency_as_python_does(light, run, number):
    """The script fills the same specification with the same numbers, six digits each."""
    shown = families(run)
    points = [m for family in shown for m in family.measurements]
    found = light.evaluate(
        "(n) => window.frameworktax.filled(window.frameworktax.data.lines.at(n))", number
    )
    wanted = charts.drawn(charts.lines(shown)[number], points)
    wanted["encoding"]["color"]["legend"] = None  # the page has buttons instead
    assert differences(found, wanted) == []


def differences(found, wanted, at=""):
    """Return where two specifications differ."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), at
        return [d for key in wanted for d in differences(found[key], wanted[key], f"{at}.{key}")]
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return [f"{at}: {len(found)} and {len(wanted)} items"]
        pairs = enumerate(zip(found, wanted, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{at}.{i}")]
    if isinstance(wanted, float) and not isinstance(found, bool):
        return [] if math.isclose(found, wanted, rel_tol=2e-5) else [f"{at}: {found} and {wanted}"]
    return [] if found == wanted else [f"{at}: {found} and {wanted}"]


def test_a_box_of_the_flame_is_looked_at_alone(light):
    flame = light.locator(".flame").first
    boxes = flame.locator("button.box")
    kernel = flame.get_by_role("button", name="kernel, ").first
    before = kernel.bounding_box()["width"]
    kernel.click()
    assert kernel.bounding_box()["width"] > 2 * before
    assert boxes.filter(visible=True).count() < boxes.count()
    light.keyboard.press("Enter")  # the focus is on the box
    assert kernel.bounding_box()["width"] == pytest.approx(before)


def test_a_search_says_how_much_of_the_call_it_found(light):
    flame = light.locator(".flame").first
    search, found = flame.locator("input[type=search]"), flame.locator(".find output")
    search.fill("KERNEL")
    share = float(flame.locator("li[data-name=kernel]").first.get_attribute("data-share"))
    assert found.text_content() == f"{100 * share:.1f} % of the call"
    assert flame.locator(".box.missed").count() > 0
    search.fill("")
    assert found.text_content() == ""
    assert flame.locator(".box.missed").count() == 0


def test_any_axis_can_be_chosen(light):
    axis = light.locator("#explore-axis")
    assert axis.locator("option").all_inner_texts() == ["batch size", "length, tokens"]
    axis.select_option("length")
    light.locator("#explore-line").select_option(index=1)
    light.wait_for_function(
        "document.querySelector('#explore .role-axis-title text')?.textContent === 'length, tokens'"
    )
    assert "256" in light.locator("#explore .role-axis-label").first.text_content()
    axis.select_option("batch")
    light.wait_for_function(
        "document.querySelector('#explore .role-axis-title text')?.textContent === 'batch size'"
    )


def first_cells(table, column=0):
    return [row.locator("th, td").nth(column).inner_text() for row in table.locator("tr").all()]


def test_tables_are_sorted_by_number_and_by_name(light):
    table = light.locator("table", has_text="Latency of one call").first
    head = table.get_by_role("columnheader", name=re.compile(r"batch 1\b"))
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert first_cells(table.locator("tbody"))[0] == "onnxruntime"
    head.get_by_role("button").focus()
    light.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert first_cells(table.locator("tbody"))[0] == "eager"
    names = table.get_by_role("columnheader", name="runtime")
    names.get_by_role("button").click()
    assert head.get_attribute("aria-sort") is None
    found = first_cells(table.locator("tbody"))
    assert found == sorted(found)


def test_the_table_of_every_point_is_searched_and_turned(light, run):
    place = light.locator("#every-point")
    assert place.locator("tbody tr").count() == 25
    place.get_by_role("button", name="Further points").click()
    assert "26 to" in place.inner_text()
    light.fill("#find", "onnxruntime ok")
    assert place.locator("tbody tr").count() == 10
    assert set(first_cells(place.locator("tbody"), 1)) == {"onnxruntime"}
    light.fill("#find", "")


def test_the_overhead_of_a_twin_is_named_beside_every_point(light):
    heads = light.locator("#every-point thead th").all_inner_texts()
    light.fill("#find", "onnxruntime ok")
    taxes = first_cells(light.locator("#every-point tbody"), heads.index("tax"))
    light.fill("#find", "eager ok")
    others = first_cells(light.locator("#every-point tbody"), heads.index("tax"))
    light.fill("#find", "")
    assert {text.partition(" ")[0] for text in taxes} == {"warm"}
    assert not any("warm" in text for text in others)


def test_what_is_searched_stays_sorted(browser, run, tmp_path):
    page, *_ = pages.visit(browser, run, tmp_path / "r.html")
    place = page.locator("#every-point")
    heads = place.locator("thead th").all_inner_texts()
    place.get_by_role("columnheader", name="latency, ms").get_by_role("button").click()
    page.fill("#find", "ok")
    shown = first_cells(place.locator("tbody"), heads.index("latency, ms"))
    assert shown == sorted(shown, key=float) and len(set(shown)) > 1


def saved(page, button):
    with page.expect_download() as got:
        button.click()
    return got.value.suggested_filename, Path(got.value.path())


def test_downloads_are_the_document_and_its_rows(light, run):
    _, path = saved(light, light.locator("#get-json"))
    found = json.loads(path.read_text())
    assert found["schema"] == "frameworktax.run"
    assert len(found["measurements"]) == len(run.measurements)
    _, path = saved(light, light.locator("#get-csv"))
    assert path.read_text().startswith("model,runtime,")


def test_every_table_is_saved(light):
    tables = light.locator(".scroll table")
    assert tables.count() == light.locator("[aria-label$='as CSV']").count() > 5
    name, path = saved(light, light.get_by_role("button", name="The points shown as CSV"))
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert name == "points.csv"
    assert len(rows) == len(light.evaluate("window.frameworktax.data.columns.batch"))
    assert float(rows[0]["latency_ns"]) == pytest.approx(4_400_000)
    button = light.get_by_role("button", name=re.compile("Latency of one call.* as JSON")).first
    _, path = saved(light, button)
    found = json.loads(path.read_text())
    assert {row["runtime"] for row in found} >= {"eager", "onnxruntime"}


def test_every_plot_is_saved(light):
    figures = light.locator("figure").count()
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        buttons = light.locator("figure").get_by_role("button", name=f"as {kind}")
        assert buttons.count() == figures
        name, path = saved(light, buttons.first)
        assert name == f"latency-0.{kind.lower()}"
        assert path.read_bytes().startswith(start)


def test_paper_has_ink_and_no_controls(light, tmp_path):
    light.emulate_media(media="print", color_scheme="dark")
    light.wait_for_function(
        "getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'"
    )
    controls = light.locator("button:not(.sort, .box, .chips *), select, input, form")
    assert controls.filter(visible=True).count() == 0
    light.emulate_media(media="screen", color_scheme="light")
    light.pdf(path=tmp_path / "r.pdf")
    assert light.locator("details:not([open])").count() == 0  # paper cannot be unfolded
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")


def test_paper_has_every_column_of_what_is_folded(browser, run, tmp_path):
    """A page without scripts cannot unfold anything for the printer."""
    write_page(tmp_path / "r.html", "", run_blocks(run))
    page = browser.new_page()
    page.goto((tmp_path / "r.html").as_uri())
    page.emulate_media(media="print")
    cells = "[...document.querySelectorAll('details :is(th, td)')]"
    assert page.evaluate(f"{cells}.length") > 100
    assert page.evaluate(f"{cells}.filter(e => !e.checkVisibility()).length") == 0


def test_a_page_without_scripts_is_no_wider_than_its_screen(browser, run, tmp_path):
    long = "a sentence of many words " * 12
    spec = charts.drawn(charts.bill_chart(families(run)[0]))
    write_page(
        tmp_path / "r.html",
        "",
        [table("", ["name", "says", "found"], [["x", long, long]]), Chart("picture", spec)],
    )
    page = browser.new_page(viewport=pages.DESK)
    page.goto((tmp_path / "r.html").as_uri())
    wider = "e => e.scrollWidth - e.clientWidth"
    assert page.locator(".scroll").evaluate(wider) == 0  # no text lies beyond the screen
    assert page.locator("tbody tr").evaluate("e => e.clientHeight") < 400
    page.set_viewport_size(PHONE)
    assert page.locator("html").evaluate(wider) == 0


def test_the_keyboard_reaches_everything_that_can_be_pressed(light):
    """Whatever is scrolled or pressed can be focused, and the focus is seen."""
    missing = light.evaluate(
        """() => [...document.querySelectorAll('button, select, input, summary, .scroll')]
        .filter(e => e.checkVisibility() && !e.disabled).filter(e => {
          e.focus({ focusVisible: true });
          return document.activeElement !== e || getComputedStyle(e).outlineStyle === 'none';
        }).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert missing == []


def test_hostile_names_do_nothing(browser, run, tmp_path):
    page, said, asked = pages.visit(browser, hostile(run), tmp_path / "r.html")
    page.locator("#latency-0 .mark-symbol path").first.hover()
    page.locator("#latency-0").locator("xpath=../p[@class='chips']/button").nth(1).click()
    page.locator("table .sort").first.click()
    page.fill("#find", "<img src=x onerror=window.pwned=1>")
    page.wait_for_timeout(300)
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script").count() == 0
    assert said == []
    assert pages.outside(asked) == []


@pytest.fixture
def looks(light):
    """Return a function that gives the page another look; it has its own again afterwards."""

    def look(scheme, viewport):
        light.emulate_media(color_scheme=scheme)
        light.set_viewport_size(viewport)
        # The page hears of media and size before the next frame but one.
        light.evaluate("new Promise(on => requestAnimationFrame(() => requestAnimationFrame(on)))")
        light.evaluate("window.frameworktax.draw([])")  # ends when all is drawn anew
        return light

    yield look
    look("light", pages.DESK)


@pytest.mark.skipif(AXE is None, reason="axe-playwright-python, which carries axe, is missing")
@pytest.mark.parametrize(
    ("scheme", "viewport"),
    [("light", pages.DESK), ("dark", PHONE)],
    ids=["light", "dark and narrow"],
)
def test_axe_finds_nothing_serious(looks, scheme, viewport):
    page = looks(scheme, viewport)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
    # What passes is counted and not described: describing thousands of elements takes longest.
    found = page.evaluate(
        """axe.run({ resultTypes: ["violations"] })
        .then(r => ({ passes: r.passes.length, bad: r.violations }))"""
    )
    serious = [
        (v["impact"], v["id"], node["html"][:200], node["failureSummary"])
        for v in found["bad"]
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"][:3]
    ]
    assert serious == []
    assert found["passes"] > 10  # it looked


@pytest.mark.skipif(AXE is None, reason="axe-playwright-python, which carries axe, is missing")
def test_axe_finds_what_is_serious(light):
    light.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
    light.evaluate("document.body.append(Object.assign(new Image(), { id: 'nameless' }))")
    found = light.evaluate("axe.run('#nameless').then(r => r.violations.map(v => v.impact))")
    light.evaluate("document.getElementById('nameless').remove()")
    assert "critical" in found
