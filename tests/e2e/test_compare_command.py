"""`frameworktax compare` as a user runs it: exit codes, files, wrong use."""

import json
from dataclasses import replace

import comparison_records as made
import pytest
import sample_records as data


@pytest.fixture
def stores(here):
    made.write(here.folder / "before", made.session())
    made.write(here.folder / "after", made.session(made.NEW))
    made.write(here.folder / "slow", made.session(made.NEW, factors={"eager": 1.2}))
    made.write(here.folder / "noisy", made.session(made.NEW, host=1.3))
    other = replace(data.ENVIRONMENT, cpu="Intel")
    made.write(here.folder / "other", made.session(made.NEW, environment=other))
    return here


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["before", "after", "--gate", "5%"], 0),
        (["before", "slow", "--gate", "0.05"], 1),
        (["before", "slow", "--gate", "50%"], 0),
        (["before", "noisy", "--gate", "5%"], 3),
        (["before", "other"], 2),
        (["before", "other", "--across"], 0),
        (["before", "--runtime", "eager=torchscript-frozen", "--gate", "5%"], 0),
        (["before", "--runtime", "torchscript-frozen=eager", "--gate", "5%"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_exit_codes(stores, words, code):
    ran = stores("compare", *words)
    assert ran.code == code, ran.out + ran.err
    assert ("Traceback" in ran.err, bool(ran.out)) == (False, code != 2)


def test_json_on_standard_output_is_alone_there(stores):
    ran = stores("compare", "before", "slow", "--gate", "5%", "--json", "-")
    document = ran.json()
    assert (ran.code, document["exit_code"]) == (1, 1)
    assert document["schema"] == "frameworktax.comparison"
    assert {p["runtime"]: p["verdict"] for p in document["points"]}["eager"] == "slower"


def test_files_are_written_and_quiet_is_quiet(stores):
    files = ["-o", "c.md", "--json", "d.json"]
    ran = stores("compare", "before", "slow", "--gate", "5%", "--quiet", *files)
    assert (ran.code, ran.out) == (1, "")
    assert (stores.folder / "c.md").read_text().startswith("### latency of 3 points")
    assert json.loads((stores.folder / "d.json").read_text())["version"] == 1


def test_a_baseline_is_saved_and_compared(stores):
    saved = stores("compare", "before", "--save-baseline", "kept/b.json")
    assert saved.code == 0 and "3 points" in saved.out
    assert stores("compare", "kept/b.json", "slow", "--gate", "5%").code == 1
    assert stores("compare", "kept/b.json", "after", "--gate", "5%").code == 0


def test_schema_of_the_comparison(here):
    described = here("schema", "comparison").json()
    assert described["properties"]["schema"]["const"] == "frameworktax.comparison"
    assert here("schema").json()["properties"]["schema"]["const"] == "frameworktax.run"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere", "after"], ["nowhere"]),
        (["before"], ["two sessions", "--runtime BEFORE=AFTER"]),
        (["text.json", "after"], ["no JSON document"]),
        (["before", "uncommon"], ["uncommon has", "--model BEFORE=AFTER"]),
        (["before", "after", "--gate", "0"], ["--gate", "3%"]),
        (["before", "after", "--gate", "lots"], ["--gate"]),
        (["before", "after", "--format", "yaml"], ["-o FILE.md"]),
        (["before", "after", "-o", "x.docx"], ["x.docx", ".md"]),
        (["before", "after", "-o", "text.json/x.md"], ["cannot write"]),
        (["before", "after", "--json", "before"], ["folder"]),
        (["before", "after", "--runtime", "eager"], ["BEFORE=AFTER"]),
        (["before", "after", "--runtime", "a=b,a=c"], ["twice"]),
        (["before", "after", "--save-baseline", "b.json"], ["compares nothing"]),
        (["before", "--gate", "5%", "--save-baseline", "b.json"], ["compares nothing"]),
        (["before", "-o", "x.md", "--save-baseline", "b.json"], ["compares nothing"]),
        (["before", "--runtime", "eager=x", "--save-baseline", "b.json"], ["compares nothing"]),
        (["before", "--json", "-", "--save-baseline", "b.json"], ["compares nothing"]),
        (["before", "--save-baseline", "text.json/b.json"], ["cannot write"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_use_is_one_line(stores, words, says):
    stores.write("text.json", "<script>")
    made.write(stores.folder / "uncommon", made.session(made.NEW, model="mlp"))
    before = sorted(stores.folder.iterdir())
    stores("compare", *words).refused(*says)
    assert sorted(stores.folder.iterdir()) == before  # a refused command leaves nothing
