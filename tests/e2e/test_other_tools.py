"""explain on other tools' results, as a user types them."""

import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "other_tools"


@pytest.fixture
def run(here):
    return here


def test_a_table_of_latencies_in_text_and_json(run):
    shutil.copy(DATA / "framework_tax_figures.csv", run.folder / "figures.csv")
    told = run("explain", "figures.csv", "--json", "-")
    assert told.code == 0, told.err
    document = told.json()
    curves = {(c["model"], c["precision"]): c for c in document["curves"]}
    assert curves["ResNet-50 (figure-4)", "float32"]["axis"] == "batch"
    assert 8 <= curves["ResNet-50 (figure-4)", "float32"]["free_batch"]["value"] < 16
    assert 16 <= curves["ResNet-50 (figure-4)", "float16"]["free_batch"]["value"] < 32
    text = run("explain", "figures.csv")
    assert text.code == 0 and "flat to batch 8" in text.out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.csv", ""),
        ("words.csv", "model,latency\nm,fast\n"),
        ("cut.json", '{"machine_info": {}, "benchmarks": [{"na'),
    ],
)
def test_bad_files_are_one_line_and_exit_2(run, name, content):
    run.write(name, content)
    told = run("explain", name)
    assert told.code == 2
    assert told.err.count("\n") == 1 and told.err.startswith("frameworktax: ")
    assert told.out == ""


def test_what_if_of_a_table_says_what_it_lacks(run):
    run.write("table.csv", "model,runtime,batch,ms\nm,eager,1,1\nm,eager,2,1.5\nm,eager,4,2.5\n")
    told = run("explain", "table.csv", "--batch", "8", "--host-speed", "2", "--json", "-")
    assert told.code == 0, told.err
    by_change = {p["change"]: p for p in told.json()["predictions"]}
    assert set(by_change) == {"--batch 8", "--host-speed 2"}
    assert all(p["reason"] for p in by_change.values())  # the device is not said, nor kernel times
