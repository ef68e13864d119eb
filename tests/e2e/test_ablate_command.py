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
