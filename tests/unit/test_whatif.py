"""What-if: exact numbers of every formula, and a reason wherever there is none."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sample_records as data
from hypothesis import given, settings
from hypothesis import strategies as st
from made_points import device_point, estimate, point
from two_queues import play, random_program

from frameworktax.analysis.document import build
from frameworktax.analysis.whatif import formulas
from frameworktax.analysis.whatif.formulas import WhatIf, predict, predict_steps
from frameworktax.errors import UsageError
from frameworktax.records import Note, Run


@pytest.fixture(autouse=True)
def shown(request, monkeypatch):
    """The errors that formulas have shown: what a test puts in, or the committed ones."""
    errors = {}
    if "committed" not in request.node.name:
        monkeypatch.setattr(formulas, "errors_shown", lambda: errors)
    return errors


def ask(asked, *measurements, **more):
    run = Run(measurements=measurements)
    return predict(asked, run, **more)


def one(asked, *measurements, **more):
    (found,) = ask(asked, *measurements, **more)
    return found


def test_a_faster_host_takes_its_share_of_the_tax():
    found = one(WhatIf(host_speed=2), point())
    assert found.change == "--host-speed 2"
    assert found.subject == "m, eager, batch 1"
    assert found.formula == formulas.HOST
    assert found.latency_ns.value == pytest.approx(200 + 600)
    assert found.factor.value == pytest.approx(1.25)
    # only the tax share's interval moves the factor: 1 / (1 − s / 2)
    assert found.factor.low == pytest.approx(1 / (1 - 0.39 / 2))
    assert found.factor.high == pytest.approx(1 / (1 - 0.41 / 2))
    assert found.shown_error is None and found.reason is None


def test_a_faster_cpu_takes_its_share_of_tax_and_kernels():
    found = one(WhatIf(cpu_speed=2), point())
    assert found.latency_ns.value == pytest.approx(500)
    assert found.factor.value == pytest.approx(2)
    # kernels that memory bounds stay: 0.41 / 2 + 0.59
    assert found.factor.low == pytest.approx(1 / (1 - 0.39 / 2))
    assert found.factor.high == pytest.approx(2)
    assert found.scales != one(WhatIf(host_speed=2), point()).scales != ""
    slower = one(WhatIf(cpu_speed=0.5), point()).factor
    assert (slower.low, slower.value) == (pytest.approx(0.5), pytest.approx(0.5))
    assert slower.high == pytest.approx(1 / (1 + 0.39))


def test_without_a_tax_share_a_faster_cpu_may_gain_nothing():
    found = one(WhatIf(cpu_speed=2), point(tax_share=None, bill_method=None))
    assert (found.factor.low, found.factor.value) == (1, 2)


def test_on_a_device_a_faster_cpu_is_a_faster_host():
    both = [one(asked, device_point()) for asked in (WhatIf(cpu_speed=2), WhatIf(host_speed=2))]
    assert both[0].latency_ns == both[1].latency_ns


def test_what_was_measured_is_not_predicted():
    host = (1.0, 1.4, 0.7, 1.1)  # it drifts, and both sides of a round with it

    def blocks(latency):
        return tuple((p, r, latency * f) for p in range(3) for r, f in enumerate(host))

    slow = point(session="s", blocks_ns=blocks(1000.0))
    fast = point("inference-mode", latency=800.0, session="s", blocks_ns=blocks(800.0))
    told = one(WhatIf(runtime="inference-mode"), slow, fast)
    assert told.formula == "measured"
    assert (told.factor.low, told.factor.high) == pytest.approx((1.25, 1.25))
    other = one(WhatIf(runtime="inference-mode"), replace(slow, session="t"), fast)
    # blocks of two sessions are no pairs, and what sessions differ by is not in either's interval
    assert other.factor.low < 1.1 and other.factor.high > 1.4


def test_what_was_measured_is_not_said_to_be_unchecked():
    from frameworktax.report.trace_blocks import proof_text

    pair = point(), point("inference-mode")
    found = ask(WhatIf(runtime="inference-mode", host_speed=2), *pair)[:2]
    unchecked, measured = map(proof_text, found)
    assert "never checked" in unchecked
    assert measured == "measured"


def test_another_runtime_with_the_same_kernels_pays_its_own_overhead(shown):
    other = point("inference-mode", batch=2, warm_overhead_ns=estimate(100, 5))
    own = point(warm_overhead_ns=estimate(200, 5))
    shown[formulas.RUNTIME] = {"median": 0.03, "p95": 0.1, "n": 9}
    found = predict(WhatIf(runtime="inference-mode"), Run(measurements=(own, other)))
    assert found[0].formula == formulas.RUNTIME
    # the tax is 400 × 100 / 200 if all of it is the runtime's own, 400 − 200 + 100 if none is
    assert found[0].latency_ns.value == pytest.approx(600 + (200 + 300) / 2)
    assert found[0].latency_ns.low <= 600 + 200 and found[0].latency_ns.high >= 600 + 300
    assert found[0].shown_error == shown[formulas.RUNTIME]


@pytest.mark.parametrize(
    ("asked", "measured", "reason"),
    [
        (WhatIf(device_speed=2), point(), "needs a device"),
        (WhatIf(graphs=True), point(), "needs a device"),
        (WhatIf(runtime="onnxruntime"), point(), "onnxruntime runs other kernels"),
        (WhatIf(runtime="inference-mode"), point("openvino"), "openvino runs other kernels"),
        (WhatIf(runtime="inference-mode"), point(), "--twin all"),
        (WhatIf(host_speed=2), point(bill_method="width-shrunk-twin"), "not known by sampling"),
        (WhatIf(host_speed=2), point(tax_share=None, bill_method=None), "not known by sampling"),
        (WhatIf(device_speed=2), device_point(launches=None), "needed"),
        (WhatIf(device_speed=2), device_point(latency=200_000.0), "neither queue"),
        (WhatIf(device_speed=2), device_point(notes=(Note("waits-inside", ""),)), "host waits"),
        (WhatIf(graphs=True), device_point(notes=(Note("waits-inside", ""),)), "host waits"),
        (WhatIf(graphs=True), device_point(runtime="cuda-graph"), "already"),
        (WhatIf(runtime="tensorrt"), device_point(), "measure it"),
        (WhatIf(runtime="torchscript"), device_point(), "host time of torchscript"),
    ],
)
def test_refusals_name_their_reason(asked, measured, reason):
    found = one(asked, measured)
    assert found.latency_ns is None and found.factor is None
    assert reason in found.reason


@pytest.mark.parametrize(
    "asked",
    [
        WhatIf(),
        WhatIf(cpu_speed=-1.0),
        WhatIf(host_speed=0.0),
        WhatIf(device_speed=math.inf),
        WhatIf(device_speed=math.nan),
        WhatIf(cpu_speed=1e-310),  # 1 over it is infinite
    ],
)
def test_changes_that_cannot_be(asked):
    with pytest.raises(UsageError) as found:
        predict(asked, Run(measurements=(point(),)))
    assert "\n" not in str(found.value)


def test_each_change_is_answered_alone_and_those_of_the_machine_together():
    found = ask(WhatIf(device_speed=2, host_speed=2, graphs=True), device_point())
    assert [p.change for p in found] == [
        "--device-speed 2",
        "--host-speed 2",
        "--graphs",
        "--device-speed 2 --host-speed 2 --graphs",
    ]


def test_a_host_bound_device_gains_from_the_host_and_from_graphs():
    host, device, graphs = (
        one(asked, device_point()).latency_ns.value
        for asked in (WhatIf(host_speed=2), WhatIf(device_speed=2), WhatIf(graphs=True))
    )
    assert device == pytest.approx(100_000, rel=0.01)
    # half of the host's time, then the device is in the way: its span and what is in no queue
    assert host == pytest.approx(45_000 + 100_000 - 90_000, rel=0.05)
    assert graphs == pytest.approx(90_000 / 41 + 40_000 + 0.1 * 4_000)


def test_what_moves_a_latency_before_and_after_moves_no_factor():
    """A host that is slow in one run is slow before and after; a faster device costs nothing."""
    noisy = replace(device_point(), latency_ns=estimate(100_000.0, 20_000))
    found = one(WhatIf(device_speed=2), noisy)
    assert found.latency_ns.high - found.latency_ns.low > 35_000
    assert found.factor.low >= 1 - 1e-9
    assert found.factor.high < 1.02
    # latencies that may be near zero say nothing of their ratio
    wide = replace(device_point(), latency_ns=estimate(100_000.0, 70_000))
    assert one(WhatIf(host_speed=3), wide).factor is None


@pytest.mark.parametrize("span_ns", [estimate(44_000.0, 100), None])
def test_a_graph_leaves_few_of_the_pauses_between_kernels(span_ns):
    """Without a span a microsecond is assumed between two kernels, of which up to 0.3 stay."""
    found = one(WhatIf(graphs=True), device_point(span_ns=span_ns, launches=4)).latency_ns
    least_ns = 10_000 + 40_000
    assert found.low <= least_ns < found.value < found.high
    assert found.high >= least_ns + 0.3 * 4_000


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        # host and kernels together are 0.19 of the latency longer than it, kernels 0.02 of it
        (WhatIf(graphs=True), {"tax": 98e3, "enqueue_ns": estimate(118e3), "span_ns": None}),
        (WhatIf(device_speed=2), {"latency_ns": estimate(100e3, 99.9e3)}),
    ],
)
def test_no_latency_is_predicted_that_may_be_below_zero(asked, more):
    found = one(asked, device_point(**more))
    assert found.latency_ns is None and found.factor is None
    assert found.reason.startswith("its interval reaches zero")


def test_of_several_hosts_what_another_session_measured_answers_nothing():
    both = [
        point(name, session=name, warm_overhead_ns=estimate(250.0, 5))
        for name in ("eager", "inference-mode")
    ]
    asked = WhatIf(runtime="inference-mode")
    notes = (Note("several-hosts", "measured on 2 hosts"),)
    here, mixed = (predict(asked, Run(measurements=both, notes=n))[0] for n in ((), notes))
    assert (here.formula, mixed.formula) == ("measured", formulas.RUNTIME)
    assert "warm overhead of inference-mode is not known" in mixed.reason


def test_the_host_time_of_another_runtime_on_a_device_is_not_predicted():
    other = device_point(batch=2, runtime="torchscript", enqueue_ns=estimate(60_000.0, 500))
    found = ask(WhatIf(runtime="torchscript"), device_point(), other)[0]
    assert found.latency_ns is None and "measure it" in found.reason


def recorded(*steps):
    return SimpleNamespace(stretches=lambda: steps)


def test_steps_of_a_trace_are_replayed():
    rng = np.random.default_rng(4)
    programs = [random_program(rng, launches=80, host_ns=9_000, kernel_ns=3_000) for _ in range(5)]
    steps = [play(p) for p in programs]
    found = predict_steps(WhatIf(host_speed=2, runtime="tensorrt"), recorded(*steps), "step")
    assert [p.formula for p in found] == ["two-queue replay"] * 2
    truth = np.mean([play(p, host_speed=2).end_ns for p in programs])
    assert found[0].latency_ns.low < truth < found[0].latency_ns.high
    assert found[0].latency_ns.value == pytest.approx(truth, rel=0.02)
    assert found[0].factor.value > 1.5
    assert found[1].latency_ns is None and "host time of tensorrt" in found[1].reason


def test_the_sample_session_answers_every_change():
    run = build(data.sample_records())
    found = predict(WhatIf(host_speed=2, runtime="inference-mode"), run)
    subjects = {p.subject.split(",")[1].strip() for p in found}
    assert subjects == set(data.LATENCY_NS)
    for p in found:
        assert (p.latency_ns is None) == (p.reason is not None)
        if p.latency_ns is not None:
            assert p.latency_ns.low <= p.latency_ns.value <= p.latency_ns.high
            assert p.factor.low <= p.factor.value <= p.factor.high


def test_the_committed_table_names_formulas_that_are_near_enough():
    known = {formulas.RUNTIME, formulas.UNIFORM, formulas.GRAPHED}
    for name, errors in formulas.errors_shown().items():
        assert name in known
        assert 0 <= errors["median"] <= 0.05 and 0 <= errors["p95"] <= 0.15  # METHOD, section 9
        assert errors["n"] >= 5


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.floats(0.1, 10), st.floats(0.1, 10))
def test_a_faster_host_never_costs(share, speed, more):
    tax = estimate(share, 0.02)
    slow, fast = formulas.faster_host(tax, speed), formulas.faster_host(tax, speed * (1 + more))
    assert fast.value <= slow.value + 1e-12
    assert formulas.faster_host(tax, 1.0).value == pytest.approx(1)
    assert slow.low <= slow.value <= slow.high
