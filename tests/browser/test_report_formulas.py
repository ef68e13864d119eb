"""What the page's script computes is what Python computes: predictions, and every latency chart."""

import math
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
sys.path.insert(0, str(Path(__file__).parent))
import report_pages as pages
import sample_records as data

pytestmark = pytest.mark.browser
pages.needed()

from frameworktax.analysis.document import build
from frameworktax.analysis.estimates import product, quotient
from frameworktax.analysis.whatif import formulas, replay
from frameworktax.analysis.whatif import predict as whatif
from frameworktax.analysis.whatif.queued import Change, point_latency
from frameworktax.analysis.whatif.request import WhatIf
from frameworktax.records import Estimate, Measurement, Run, Workload
from frameworktax.report import whatif_html
from frameworktax.report.charts import latency_chart
from frameworktax.report.tables import families

CASES = 60


@pytest.fixture(scope="module")
def run():
    """The sample with uneven numbers: one that lies between two texts is rounded to either."""
    made = build(data.sample_records())

    def uneven(e, factor=1.01370219):
        return e and replace(e, value=e.value * factor, low=e.low * factor, high=e.high * factor)

    return replace(
        made,
        measurements=tuple(
            replace(m, latency_ns=uneven(m.latency_ns), tax_share=uneven(m.tax_share, 0.98713))
            for m in made.measurements
        ),
        curves=tuple(replace(c, latency_ns=tuple(map(uneven, c.latency_ns))) for c in made.curves),
    )


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    with pages.chromium() as browser:
        opened, _, _ = pages.visit(browser, run, tmp_path_factory.mktemp("page") / "r.html")
        yield opened


def estimate(draw, value, spread=0.2):
    return Estimate(
        value=value,
        low=value * (1 - spread * draw.random()),
        high=value * (1 + spread * draw.random()),
    )


def three(found):
    return [found.value, found.low, found.high]


def in_page(page, calls):
    """Ask the page for ``[[function, arguments], …]`` at once."""
    return page.evaluate(
        "calls => calls.map(([name, args]) => window.frameworktax.formulas[name](...args))", calls
    )


def near(found, wanted):
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(found, wanted, strict=True))


def test_formulas_are_pythons(page):
    draw = random.Random(7)
    calls, wanted = [], []
    for _ in range(CASES):
        share = estimate(draw, draw.uniform(0.01, 0.95))
        latency = estimate(draw, 10 ** draw.uniform(4, 9))
        speed, width, matrix = draw.uniform(0.2, 5), draw.uniform(0.3, 4), draw.random()
        values = sorted(draw.sample(range(1, 200), draw.randint(2, 5)))
        line = [estimate(draw, 1e6 * (1 + n * draw.uniform(0.05, 0.2))) for n in values]
        at = draw.uniform(1, 300)
        calls += [
            ["fasterHost", [three(share), speed]],
            ["wider", [three(share), matrix, width]],
            ["product", [three(share), three(latency)]],
            ["quotient", [three(latency), three(share)]],
            ["alongLine", [values, list(map(three, line)), at]],
        ]
        wanted += [
            formulas.faster_host(share, speed),
            formulas.wider(share, matrix, width),
            product(share, latency, ""),
            quotient(latency, share, ""),
            formulas.along_line(values, line, at, ""),
        ]
    found = in_page(page, calls)
    for call, got, want in zip(calls, found, wanted, strict=True):
        assert near(got, three(want)), call


def test_two_queues_are_pythons(page):
    draw = random.Random(8)
    calls, wanted = [], []
    for _ in range(CASES):
        launches = draw.choice([1, 2, 37, 400, 1500])
        host, kernel = (estimate(draw, 10 ** draw.uniform(5, 7)) for _ in range(2))
        span = None if draw.random() < 0.3 else estimate(draw, kernel.value * draw.uniform(1, 1.4))
        latency = estimate(draw, max(host.value, kernel.value) * draw.uniform(1, 1.3))
        m = device_point(latency, host, kernel, span, launches)
        change = Change(
            device_speed=draw.uniform(0.3, 4),
            host_speed=draw.uniform(0.3, 4),
            graphs=draw.random() < 0.4,
            kernels=draw.uniform(0.5, 4),
        )
        point = {
            "launches": launches,
            "latency": three(latency),
            "enqueue": three(host),
            "kernel": three(kernel),
            "span": three(span) if span else None,
        }
        asked = {
            "deviceSpeed": change.device_speed,
            "hostSpeed": change.host_speed,
            "graphs": change.graphs,
            "kernels": change.kernels,
        }
        calls.append(["pointLatency", [point, asked]])
        wanted.append(point_latency(m, change))
    for call, got, want in zip(calls, in_page(page, calls), wanted, strict=True):
        assert near(got, three(want)), call
    assert replay.QUEUE < 1500  # one of the cases fills the queue


def device_point(latency, host, kernel, span, launches):
    return Measurement(
        workload=Workload(model="device", length=32),
        runtime="eager",
        paradigm="eager",
        platform="cuda:0",
        threads=1,
        status="ok",
        latency_ns=latency,
        enqueue_ns=host,
        kernel_ns=kernel,
        span_ns=span,
        launches=launches,
    )


def test_answers_and_refusals_are_those_of_explain(page):
    """Every slider on every subject: the same latency, factor, formula or reason."""
    run = made_up(random.Random(9))
    shown = whatif_html.data(run)
    asked = [
        *((WhatIf(host_speed=s), {"hostSpeed": s}) for s in (0.5, 1.7, 4.0)),
        *((WhatIf(batch=b), {"batch": b}) for b in (2, 3, 8, 11, 40)),
        *((WhatIf(width=w), {"width": w}) for w in (0.5, 1.3, 2.0)),
        *((WhatIf(depth=d), {"depth": d}) for d in (0.5, 1.5, 2.0, 5.0)),
        (WhatIf(graphs=True), {"graphs": True}),
        (WhatIf(device_speed=2.0, host_speed=0.5), {"deviceSpeed": 2.0, "hostSpeed": 0.5}),
    ]
    compared = reasons = 0
    for change, in_script in asked:
        told = {p.subject: p for p in whatif.predict(change, run) if p.change == change.words()}
        answers = page.evaluate(
            "([data, change]) => data.subjects.map("
            "s => [s.name, s.onCpu, window.frameworktax.answer(s, change, data.shown)])",
            [shown, in_script],
        )
        for name, on_cpu, got in answers:
            if on_cpu and (change.graphs or change.device_speed):
                continue  # sliders of a device are not shown for a point of a CPU
            if change.depth and not on_cpu:
                continue  # nor the slider of the layers for one of a device
            want = told[name]
            if want.reason is not None:
                assert got["reason"] == want.reason
                reasons += 1
                continue
            assert got["formula"] == want.formula, (name, in_script)
            assert near(got["latency"], three(want.latency_ns)), (name, in_script)
            assert near(got["factor"], three(want.factor)), (name, in_script)
            compared += 1
    assert compared > 30
    assert reasons > 10


def made_up(draw):
    """Points of both kinds, some without what a formula needs."""
    points = []
    for runtime, share in (("eager", 0.6), ("onnxruntime", None), ("torchscript", 0.9)):
        for width, depth in ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0)):
            for batch in (1, 2, 4, 8):
                ns = 1e6 * (1 + 0.3 * batch) * depth * width * draw.uniform(0.9, 1.1)
                points.append(
                    Measurement(
                        workload=Workload(
                            model="m", length=32, batch=batch, width=width, depth=depth
                        ),
                        runtime=runtime,
                        paradigm="eager",
                        platform="cpu",
                        threads=1,
                        status="ok",
                        latency_ns=estimate(draw, ns, 0.05),
                        tax_share=estimate(draw, share, 0.1) if share else None,
                        bill_method="perf-event" if share else None,
                        kernel_detail_ns={"gemm": 3.0, "vectorised": 1.0 if batch < 8 else 9.0}
                        if share
                        else None,
                        flops=2_000_000,
                        macs=900_000,
                        parameters=10_000 if runtime == "eager" else 900_000,
                    )
                )
    for batch in (1, 4):
        host, kernel = estimate(draw, 2e6), estimate(draw, 1e6 * batch)
        latency = estimate(draw, 1.1 * max(host.value, kernel.value))
        m = device_point(latency, host, kernel, None, 120)
        points.append(replace(m, workload=replace(m.workload, batch=batch)))
    unknown = replace(points[-1], workload=replace(points[-1].workload, length=64), kernel_ns=None)
    return Run(measurements=(*points, unknown))


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
def test_the_latency_chart_is_pythons(page, run, wide):
    """The script fills the same specification with the same numbers, six digits each."""
    (family,) = families(run)
    found = page.evaluate(
        "wide => window.frameworktax.latency(window.frameworktax.data.slices[0], wide)", wide
    )
    wanted = latency_chart(family, wide=wide)
    assert wanted["layer"][-1]["data"]["values"][0]["text"] == "eager: free up to batch 4.06"
    assert differences(found, wanted) == []


def differences(found, wanted, at=""):
    """Return where two specifications differ, legends left out: the page has buttons instead."""
    if isinstance(wanted, dict):
        if at.endswith("color"):
            wanted = {**wanted, "legend": None}
        assert set(found) == set(wanted), at
        return [d for key in wanted for d in differences(found[key], wanted[key], f"{at}.{key}")]
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return [f"{at}: {len(found)} and {len(wanted)} items"]
        pairs = enumerate(zip(found, wanted, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{at}.{i}")]
    if isinstance(wanted, float) and not isinstance(found, bool):
        return [] if math.isclose(found, wanted, rel_tol=2e-5) else [f"{at}: {found} and {wanted}"]
    return [] if found == wanted else [f"{at}: {found} and {wanted}"]
