"""`frameworktax reproduce` as a user types it, told from stores; measuring is `sweep`'s."""

from pathlib import Path

import paper_records as made
import pytest
from sample_records import write

from frameworktax.reproduce import studies

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    records = made.made(
        studies.load("figure-1"),
        lambda point: (3.6 if point.workload.model == "mobilebert" else 1.0) * 4e6,
    )
    return write(tmp_path / "made-store", records)


def test_what_there_is_to_measure_is_a_document_too(here, store):
    words = ("reproduce", "figure-1", "--scale", "small", "--dry-run", "--store", str(store))
    ran = here(*words, "--json", "-")
    assert ran.code == 0, ran.err
    document = ran.json()
    assert len(document["points"]) == 6
    assert {point["held"]["status"] for point in document["points"]} == {"measured"}
    budget = here(*words, "--time-budget", "7s", "--json", "-")
    assert budget.json()["study"]["time_budget"] == 7
    assert here(*words, "--time-budget", "soon").code == 2


def test_a_study_is_told_and_drawn_from_a_store(here, store):
    ran = here("reproduce", "figure-1", "--redraw", "--store", str(store), "--json", "-")
    assert ran.code == 0, ran.err
    document = ran.json()
    claims = {claim["id"]: claim for claim in document["claims"]}
    assert claims["C1"]["verdict"] == "holds"
    assert claims["C1.rank"]["ours"][0]["estimate"]["high"] < 0.7
    assert claims["C1"]["paper"]["computed"][1]["value"] == pytest.approx(62.2 / 17.3)
    assert len(document["measurements"]) == 6

    words = ("reproduce", "figure-1", "--redraw", "--store", str(store))
    ran = here(*words, "--report", "page.md", "--out", "drawn")
    assert ran.code == 0, ran.err
    assert ran.out.count("holds") >= 2
    assert (here.folder / "drawn" / "figure-1.png").read_bytes().startswith(b"\x89PNG")
    assert "figure-1.svg" in (here.folder / "page.md").read_text()


def test_a_store_without_the_study_is_said(here, store):
    ran = here("reproduce", "figure-13", "--redraw", "--store", str(store))
    assert ran.code == 1
    assert str(store) in ran.err and "figure-13" in ran.err


@pytest.mark.skipif(
    not (ROOT / "docs/results/paper-store").is_dir(), reason="no measured page is committed yet"
)
def test_the_committed_page_is_what_its_store_says(here):
    folder = ROOT / "docs" / "results"
    ran = here(
        *("reproduce", "all", "--redraw", "--quiet", "--store", str(folder / "paper-store")),
        *("--report", "paper.md"),
    )
    assert ran.code == 0, ran.err
    assert (here.folder / "paper.md").read_text() == (folder / "paper.md").read_text()
