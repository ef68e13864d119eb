"""Is one table faster than 26, and equal? Takes seconds and half-width."""

import sys

import torch
from recommender import ManyTables, OneTable, example

import frameworktax as ft

before = ManyTables().eval()
after = OneTable(before).eval()
inputs = example()
with torch.inference_mode():
    assert torch.equal(before(*inputs), after(*inputs)), "another result is no optimisation"

seconds, until = sys.argv[1:]
sides = ["recommender.py:many_tables", "recommender.py:one_table"]
study = {
    "study": {"together": [sides], "time_budget": f"{seconds}s", "until": float(until)},
    "grid": {"models": sides, "runtimes": ["eager"], "batch": [1, 64]},
}
ft.sweep(study, store="sides", allow_code=True)
found = ft.compare("sides", models={sides[0]: sides[1]}).comparison
print(found.headline)
for point in found.points:
    low, high = 1 / point.ratio.high, 1 / point.ratio.low
    print(f"batch {point.workload.batch}: {point.verdict}, {low:.2f} to {high:.2f} times as fast")
