"""A comparison in every format, with hostile names."""

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import comparison_records as made
import jsonschema
import pytest
import sample_records as data
from rich.console import Console

from frameworktax.analysis.compare.comparison import Comparison, compare
from frameworktax.analysis.document import build
from frameworktax.analysis.where import Moved
from frameworktax.comparing import Compared
from frameworktax.records import Estimate
from frameworktax.report import compare_blocks as shown
from frameworktax.report import html, json_document
from frameworktax.report.compare_blocks import compare_blocks
from frameworktax.report.render_terminal import print_blocks

HOSTILE = "</script><script>alert(1)</script>|`x`[a](b) *b* ]]> \x1b[31m\x00\x0b\ud800 & \"'\n# h"


@pytest.fixture(scope="module")
def found():
    old = build(made.session(lost=("torchscript-frozen",)))
    new = build(made.session(made.NEW, factors={"eager": 1.1}, host=1.02, batches=(1, 2)))
    return compare(old, new, gate=0.05, names=("before/", "after/"))


@pytest.fixture(scope="module")
def hostile():
    old = build(made.session(model=HOSTILE, lost=("torchscript-frozen",)))
    env = replace(data.ENVIRONMENT, python=HOSTILE)
    new = build(made.session(made.NEW, model=HOSTILE, factors={"eager": 1.1}, environment=env))
    return compare(old, new, gate=0.05, names=(HOSTILE, HOSTILE))


def whole(ns):
    return Estimate(value=ns, low=ns, high=ns)


def printed(comparison, width=80):
    out = io.StringIO()
    print_blocks(compare_blocks(comparison), Console(file=out, width=width))
    return out.getvalue()


def test_terminal_fits_80_columns_and_says_all(found):
    assert max(len(line.rstrip()) for line in printed(found).splitlines()) <= 80
    flat = " ".join(printed(found, 140).split())
    for said in ("▲ slower", "= same", "? cannot tell", "beyond the gate", "+10.1 %"):
        assert said in flat
    assert "crashed before: signal 11" in flat
    assert "only after" in flat and "batch 2" in flat
    assert re.search(r"host itself \+1\.9 %, .*\+12\.2 % as measured", flat)


def test_one_reason_for_many_points_is_said_once():
    points = compare(build(made.session()), build(made.session(made.NEW, host=1.2)), gate=0.05)
    assert printed(points).count("noise reaches") == 1


def test_a_comment_has_the_places_whose_tax_changed(found):
    ms = whole(2e6)
    first = replace(
        found.points[0], moved=(Moved(name="encoder.*", before=ms, after=ms, change=whole(1e6)),)
    )
    text = shown.comment(replace(found, points=(first, *found.points[1:])))
    assert re.search(r"\| encoder.* \| 2.00 \| 2.00 \| \+1.000 ", text)
    assert text.index("encoder") < text.index("<details>")


def test_markdown_is_a_table_with_reasons_folded(found):
    text = shown.comment(found)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(found.points)
    assert {line.count("|") - line.count("\\|") for line in lines} == {6}
    assert "slower, beyond the gate" in text
    assert text.count("<details>") == text.count("</details>") == 1


def test_document_has_the_schema_it_says(found, hostile):
    for comparison in (found, hostile):
        document = json.loads(json_document.text(comparison).encode("utf-8", "replace"))
        jsonschema.validate(document, json_document.schema(Comparison))
    assert (document["schema"], document["version"]) == ("frameworktax.comparison", 1)
    point = json_document.dump(found)["points"][0]
    assert {"before", "after", "ratio", "verdict", "reason"} <= set(point)
    assert point["ratio"]["low"] < point["ratio"]["value"] < point["ratio"]["high"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "version": 2}, json_document.schema(Comparison))


# --- names that came from outside -----------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)


def test_html_holds_no_element_from_a_name(hostile):
    tags = Tags()
    tags.feed(html.comparison_fragment(hostile))
    table = {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert tags.found <= {*table, "div", "style", "p", "span", "ul", "li", "b"}


def test_markdown_with_hostile_names_keeps_its_table(hostile):
    text = shown.comment(hostile)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(hostile.points)
    assert not any(line.lstrip().startswith("# h") for line in text.splitlines())
    assert "<script>" not in text.replace("\\<script>", "")


def test_terminal_is_not_driven_by_a_name(hostile):
    assert "\x1b" not in printed(hostile)


def test_a_result_of_python_is_shown(found):
    compared = Compared(found)
    assert compared.comment() == shown.comment(found)
    assert compared.exit_code == 1 and "beyond the gate" in repr(compared)
    assert "<table>" in compared._repr_html_()
