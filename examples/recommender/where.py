"""Where does a call of the recommender spend its time? Takes seconds and half-width."""

import sys

from recommender import many_tables

import frameworktax as ft

model, inputs = many_tables()
seconds, until = map(float, sys.argv[1:])
results = ft.measure(
    model, inputs, runtimes="eager", batch=[1, 64], time_budget=seconds, until=until
)

print(results.run.headline)
for m in results:
    if m.bill_ns is None:
        continue
    lines = sorted(m.bill_ns.items(), key=lambda line: -line[1])
    text = ", ".join(f"{name} {ns / 1e3:.0f} µs" for name, ns in lines if ns > 1000)
    print(f"batch {m.workload.batch}: {text}; {m.operators} operators")
