"""`frameworktax ablate` as a user runs it: redrawn from a store, wrong use."""

import json
import re

import ladder_records as made


def test_a_store_is_redrawn_in_every_form(here):
    made.write(here.folder / "s", made.records())
    files = ["--report", "r.md", "--figure", "f.svg", "--json", "d.json"]
    ran = here("ablate", "bert-mini", "--store", "s", "--redraw", *files)
    assert ran.code == 0, ran.err
    assert re.search(r"3\.33 × \(3\.32 to 3\.34\) \w+ with basic\b", " ".join(ran.out.split()))
    assert (here.folder / "r.md").read_text().startswith("# bert-mini, batch 1, length 128")
    assert "<svg" in (here.folder / "f.svg").read_text()
    assert json.loads((here.folder / "d.json").read_text())["best"] == "basic"


def test_what_is_typed_beside_redraw_selects_the_ladder(here):
    made.write(here.folder / "s", made.records())
    redraw = ["ablate", "bert-mini", "--store", "s", "--redraw", "--json", "-"]
    for typed in ([], ["--batch", "1", "--length", "128", "--device", "cpu"]):
        assert json.loads(here(*redraw, *typed).out)["best"] == "basic"
    found = json.loads(here(*redraw, "--paths", "torchscript").out)["steps"]
    assert {step["path"] for step in found} == {"eager", "torchscript"}
    ran = here(*redraw, "--batch", "8")
    assert ran.code == 2 and "batch 8" in ran.err and not ran.out
