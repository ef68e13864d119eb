"""`frameworktax explain` as a user runs it."""

import gzip
import json
from pathlib import Path

import jsonschema
import pytest

DATA = Path(__file__).parents[1] / "data"
TRACE = DATA / "h100-bert-small-step.json"


def refused(ran):
    assert ran.code == 2, ran.err
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("frameworktax: ")


def test_a_trace_on_a_terminal_as_a_document_and_as_a_page(here):
    files = ("--json", "t.json", "--report", "t.html")
    ran = here("explain", str(TRACE), "--device-speed", "2", *files)
    assert ran.code == 0, ran.err
    assert "ProfilerStep#6" in ran.out
    assert "host starvation" in ran.out
    assert "--device-speed 2" in ran.out
    document = json.loads((here.folder / "t.json").read_text())
    device = document["trace"]["devices"]["0"]
    assert (device["kernel_ns"], device["kernels"], device["copies"]) == (309_437, 60, 1)
    assert "The trace" in (here.folder / "t.html").read_text()
    jsonschema.validate(document, here("schema").json())
    # and the document can be explained again
    again = here("explain", "t.json", "--json", "-")
    assert again.json() == document
    assert again.err == ""


def test_the_document_alone_on_standard_output(here):
    ran = here("explain", str(TRACE), "--json", "-")
    assert ran.code == 0
    assert ran.json()["trace"]["launches"] == 60
    assert here("explain", str(TRACE), "--quiet").out == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b'{"traceEvents": [',
        b'{"traceEvents": [' + b"[" * 3_000_000,
        b"[" * 3_000_000,
        gzip.compress(b'{"traceEvents": [' + b" " * 100_000_000, 1, mtime=0),
    ],
    ids=["empty", "words", "nothing", "nested", "brackets", "bomb"],
)
def test_what_is_no_trace_is_one_line(here, content):
    (here.folder / "t.json").write_bytes(content)
    refused(here("explain", "t.json", timeout=120))


def test_wrong_use_is_one_line(here):
    refused(here("explain", "none.json"))
    refused(here("explain", str(TRACE), "--device-speed", "-1"))
    refused(here("explain", str(TRACE), "--json", "."))


def test_a_trace_that_is_cut_is_explained_with_a_note(here):
    text = TRACE.read_bytes()
    (here.folder / "t.json").write_bytes(text[: len(text) * 2 // 3])
    ran = here("explain", "t.json")
    assert ran.code == 0, ran.err
    assert "the file is not whole" in " ".join(ran.out.split())
