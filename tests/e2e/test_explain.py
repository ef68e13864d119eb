"""`frameworktax explain` as a user runs it."""

import json
import shutil
from pathlib import Path

import jsonschema

DATA = Path(__file__).parents[1] / "data"
TRACE = DATA / "h100-bert-small-step.json"


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


def test_wrong_use_is_one_line(here):
    here("explain", str(TRACE), "--device-speed", "-1").refused("--device-speed")
    here("explain", str(TRACE), "--json", ".").refused()


def test_a_table_of_latencies_in_text_and_json(here):
    shutil.copy(DATA / "other_tools/framework_tax_figures.csv", here.folder / "figures.csv")
    told = here("explain", "figures.csv", "--json", "-")
    assert told.code == 0, told.err
    curves = {(c["model"], c["precision"]): c for c in told.json()["curves"]}
    assert curves["ResNet-50 (figure-4)", "float32"]["axis"] == "batch"
    assert 8 <= curves["ResNet-50 (figure-4)", "float32"]["free_batch"]["value"] < 16
    assert 16 <= curves["ResNet-50 (figure-4)", "float16"]["free_batch"]["value"] < 32
    text = here("explain", "figures.csv")
    assert text.code == 0 and "flat to batch 8" in text.out
