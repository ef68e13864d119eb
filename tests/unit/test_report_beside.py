"""Two results side by side in one page."""

from dataclasses import replace

import comparison_records as data
import pytest

from frameworktax import comparing
from frameworktax.analysis.document import build
from frameworktax.cli.report import report_command
from frameworktax.errors import UsageError
from frameworktax.report import export, html

HOSTILE = "</script><img src=x onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def sides():
    before = build(data.session(batches=(1, 2)))
    after = build(data.session(data.NEW, batches=(1, 2), factors={"inference-mode": 1.3}))
    return after, comparing.compare(before, after).comparison


def test_names_of_the_other_side_do_nothing(sides):
    run, comparison = sides
    turned = replace(
        comparison,
        before=HOSTILE,
        headline=HOSTILE,
        points=tuple(replace(p, runtime=HOSTILE, reason=HOSTILE) for p in comparison.points),
        unpaired_after=(HOSTILE,),
    )
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    page = html.page(run, turned).split("<script")[0]
    assert "<img" not in page
    assert page.count("&lt;img") > 7


def test_the_page_tells_both_stores(tmp_path):
    pytest.importorskip("vl_convert", reason="pip install 'frameworktax[report]'")
    before, after = tmp_path / "before", tmp_path / "after"
    data.write(before, data.session())
    data.write(after, data.session(data.NEW, factors={"eager": 0.7}))
    page = tmp_path / "r.html"
    report_command(before, after, page, quiet=True)
    text = page.read_text()
    assert "Side by side" in text
    assert f"Before: {before}. After: {after}." in text
    assert "Both sides" in text
    assert "Side by side" not in html.page(build(data.session()))


def test_other_formats_say_where_to_go(sides, tmp_path):
    after, comparison = sides
    with pytest.raises(UsageError, match="frameworktax compare BEFORE AFTER"):
        export.write(after, tmp_path / "r.md", comparison)
    data.write(tmp_path / "store", data.session())
    with pytest.raises(UsageError, match=r"add -o report\.html"):
        report_command(tmp_path / "store", tmp_path / "store")
