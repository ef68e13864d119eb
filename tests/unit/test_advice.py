import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sample_records as data
from made_points import device_point, estimate
from made_points import point as made_point
from test_where import stack as layer_stack

from frameworktax.analysis.advice import (
    PREPACKING,
    _kernels_and_tax,
    _place,
    difference,
    either,
    headline,
    recommend,
    without,
)
from frameworktax.analysis.bill import TWIN
from frameworktax.analysis.document import build
from frameworktax.records import Block, Estimate, Outcome, Parity, Point, Subject, Workload
from frameworktax.runtimes import variants
from frameworktax.stats import ratio_interval, simultaneous, t_quantile


@pytest.fixture(scope="module")
def run():
    return build(data.sample_records())


def starting(run, text):
    return [a for a in run.advice if a.action.startswith(text)]


def test_the_recommendation_is_the_first_advice_and_only_with_equal_outputs(run):
    (best,) = starting(run, "use ")
    assert re.fullmatch(r"use onnxruntime .*\b1 to 16", best.action)
    assert best.kind == "measured"
    assert best.gain.value == pytest.approx(2.2)
    assert "outputs equal to 4e-6" in best.evidence


def test_a_warm_overhead_bounds_nothing_in_the_headline_either():
    assert "at most 2.6" in headline([made_point()], [])  # the low end of 40 ± 1 %
    warm = headline([made_point(bill_method=TWIN)], [])
    assert "warm overhead" in warm and "at most" not in warm


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ({}, "1.12 ×"),  # 100 of 90 ± 0.5 µs
        ({"span_ns": None}, "1.7 ×"),  # what of the host's time is waiting is not known
        ({"tax": 40_000.0, "enqueue_ns": estimate(20_000.0, 500)}, "2.6 ×"),  # 100 of 40 ± 1
        ({"tax": 12_000.0, "enqueue_ns": estimate(20_000.0, 500)}, "5.2 ×"),  # of 5.13, not 8.3
    ],
)
def test_a_faster_device_leaves_the_time_of_the_host_that_runs_beside_it(more, most):
    """Kernels of a device overlap with the host, so that the tax is not all that is left."""
    point = device_point(**more)
    assert f"a faster device would give at most {most}" in headline([point], [])
    (bound, *_) = _kernels_and_tax(point)
    assert most in bound.action
    assert ("the host takes" in bound.evidence) is (most in ("1.12 ×", "5.2 ×"))


def test_a_runtime_that_differs_is_named_and_not_ranked(run):
    (note,) = [n for n in run.notes if n.code == "not-ranked"]
    assert re.match(r"openvino .*2\.0 × .*\b0\.022\b", note.text)


@pytest.fixture(scope="module")
def lengths():
    """Two lengths; inductor, which is named first, fails at the one whose curve comes first."""
    made = [data.session()]
    at = {n: data.point("inductor") for n in (32, 128)}
    for n, point in at.items():
        at[n] = replace(point, workload=replace(point.workload, length=n))
        made.append(Subject(session=data.SESSION, point=at[n], paradigm="deferred"))
    failed = Outcome(
        session=data.SESSION, point=at[32].key(), process=0, status="crashed", reason="no"
    )
    made += [failed, *data.blocks(at[128], 4e6)]
    for length, latencies in ((32, (1e6, 1.01e6, 1.02e6)), (128, (5e6, 9e6, 17e6))):
        for batch, ns in zip((1, 2, 4), latencies, strict=True):
            point = data.point("eager", batch)
            point = replace(point, workload=replace(point.workload, length=length))
            made.append(Subject(session=data.SESSION, point=point, paradigm="eager"))
            made += data.blocks(point, ns)
            made.append(data.sampled(point, ns, data.SHARES["eager"], batch))
    return build(made)


def test_the_headline_has_the_free_batch_of_the_length_that_it_is_about(lengths):
    assert "batch 4" not in lengths.headline


def test_the_headline_is_never_empty():
    """A killed set-up leaves a session alone, ``--runtimes null`` the floor alone."""
    floor = Point(workload=Workload(model="null"), runtime="null")
    subject = Subject(session=data.SESSION, point=floor, paradigm="floor")
    killed = build([data.session()])
    alone = build([data.session(), subject, *data.blocks(floor, 200)])
    assert killed.headline and alone.headline and killed.headline != alone.headline


def test_advice_names_the_length_that_it_is_about(lengths):
    told = [a.evidence for a in lengths.advice]
    assert len(set(told)) == len(told) > 4
    assert all(("length 32" in text) != ("length 128" in text) for text in told)


def test_measured_before_predicted_before_bounds_and_each_by_gain(run):
    order = [("measured", "predicted", "bound").index(a.kind) for a in run.advice]
    assert order == sorted(order)
    for kind in ("measured", "predicted", "bound"):
        end = "high" if kind == "bound" else "value"
        gains = [getattr(a.gain, end) for a in run.advice if a.kind == kind]
        assert gains == sorted(gains, reverse=True)
    assert all(a.gain.low > 1 for a in run.advice)


def test_free_batch_is_a_gain_per_sample(run):
    (batch,) = starting(run, "batch up to")
    assert re.match(r"batch up to 4\b.* eager\b", batch.action)
    assert batch.gain.value == pytest.approx(4 * 4.4 / 4.8)


def test_bounds(run):
    (kernels,) = starting(run, "faster math kernels")
    assert kernels.gain.value == pytest.approx(1 / (1 - 0.39 * 0.98))
    (free,) = starting(run, "the same kernels")
    assert free.gain.value == pytest.approx(1 / (0.39 * 0.98))
    assert {kernels.kind, free.kind} == {"bound"}


@pytest.mark.parametrize(
    ("half", "starts"),
    [(0.15, ["faster math", "the same"]), (0.25, ["the same"]), (0.3, []), (0.6, [])],
)
def test_a_bound_more_than_twice_its_value_is_none(half, starts):
    """Of 45 % tax kernels bound 2.2 times and the tax 1.8 times; with 25 points more 5 and 3.3."""
    point = data.point("eager")
    share = Estimate(value=0.45, low=0.45 - half, high=0.45 + half)
    fields = {
        "tax_share": share,
        "bill_method": "test",
        "platform": "cpu",
        "runtime": "eager",
        "span_ns": None,
    }
    m = SimpleNamespace(point=point, workload=point.workload, **fields)
    found = [one.action for one in _kernels_and_tax(m)]
    assert [text.startswith(start) for text, start in zip(found, starts, strict=True)] == [
        True
    ] * len(starts)


def session_without(*runtimes):
    """The sample session in which these runtimes were not measured."""
    left = {data.point(name, batch).key() for name in runtimes for batch in data.BATCHES}
    records = data.sample_records()
    kept = []
    for record in records:
        point = getattr(record, "point", None)
        if (point.key() if isinstance(point, Point) else point) not in left:
            kept.append(record)
    return build(kept)


def test_packing_is_predicted_only_where_nothing_that_prepacks_was_measured(run):
    assert starting(run, "freeze and prepack") == []
    bare = session_without("torchscript-frozen", "inductor", "onnxruntime", "openvino")
    packing = max(starting(bare, "freeze and prepack"), key=lambda a: "eager" in a.evidence)
    assert packing.gain.value == pytest.approx(1 / (1 - 0.156 * 0.98))
    assert packing.kind == "predicted"
    assert all(name in packing.action for name in PREPACKING)


def test_memory(run):
    (memory,) = starting(run, "keep memory")
    assert memory.gain.value == pytest.approx(1 / (1 - 0.1 * 0.98))  # allocator 6 %, system 4 %
    assert memory.kind == "bound"
    settings = re.findall(r"(\w+)=(\d+)", memory.action)
    assert len(settings) == 2 and set(settings) <= set(variants.KEEP.items())


@pytest.mark.parametrize(
    ("faults", "keeps"), [(0, False), (1999, False), (2000, True), (None, True)]
)
def test_memory_that_is_kept_already_needs_another_malloc(faults, keeps):
    """Where no page is faulted in, glibc's settings change nothing; another malloc can."""
    found = quiet(kernel=500, allocator=500, page_faults=faults)  # in 2,000 calls
    assert len(starting(found, "keep memory")) == keeps
    assert len(starting(found, "preload jemalloc")) == (not keeps)


def quiet(*, page_faults=None, **shares):
    """Eager with these samples in a thousand and nothing else to say."""
    point = data.point("eager")
    records = [Subject(session=data.SESSION, point=point, paradigm="eager")]
    records += data.blocks(point, 1_000_000)
    sampled = data.sampled(point, 1_000_000, shares)
    sampled = replace(sampled, detail={"packing": 990}, page_faults=page_faults)
    return build([*records, sampled])


def test_too_little_packing_and_allocator_are_not_worth_a_word():
    found = quiet(kernel=500, python=421, allocator=79)
    assert starting(found, "freeze") == starting(found, "keep memory") == []
    assert len(starting(quiet(kernel=500, python=418, allocator=82), "keep memory")) == 1


def noisy(runtime, latency, noise):
    """Blocks of a runtime, off by another factor in every process."""
    point = data.point(runtime)
    for record in data.blocks(point, latency):
        assert isinstance(record, Block)
        factor = 1 + noise * (record.process - 1)
        yield replace(record, latency_ns=tuple(int(n * factor) for n in record.latency_ns))


@pytest.mark.parametrize(("noise", "told"), [(0.001, 1), (0.05, 0)])
def test_no_advice_whose_interval_includes_one(noise, told):
    fast, eager = data.point("fast"), data.point("eager")
    records = [Subject(session=data.SESSION, point=p, paradigm="eager") for p in (eager, fast)]
    records += [*data.blocks(eager, 1_000_000), *noisy("fast", 950_000, noise)]
    records.append(parity(fast, within=True))
    assert len(starting(build(records), "use fast")) == told


def parity(point, *, within, found=1e-6, reason=None):
    return Parity(
        session=data.SESSION, point=point.key(), reference="eager", max_abs_difference=found,
        max_relative_difference=found, tolerance=1e-4, within_tolerance=within, reason=reason,
    )  # fmt: skip


def test_an_unproven_runtime_is_named_and_not_ranked():
    fast, eager = data.point("fast"), data.point("eager")
    records = [Subject(session=data.SESSION, point=p, paradigm="eager") for p in (eager, fast)]
    records += [*data.blocks(eager, 1_000_000), *data.blocks(fast, 500_000)]
    found = build([*records, parity(fast, within=None, found=None, reason="outputs are all zero")])
    assert starting(found, "use fast") == []
    (note,) = found.notes
    assert note.code == "not-ranked"
    assert re.fullmatch(r"fast .*2\.0 × .*outputs are all zero", note.text)
    assert "not compared" in build(records).notes[0].text


def test_words_for_outputs():
    at = data.point("x")
    assert difference(parity(at, within=True, found=0.0)) == "outputs equal"
    assert difference(parity(at, within=True, found=4.2e-6)) == "outputs equal to 4e-6"
    assert "not compared" in difference(None)


def test_gain_without_a_part():
    share = Estimate(value=0.5, low=0.4, high=0.6)
    gain = without(share, "m")
    assert (gain.low, gain.value, gain.high) == pytest.approx((1 / 0.6, 2, 2.5))
    assert without(Estimate(value=0.9, low=0.8, high=1.0), "m") is None


# --- one recommendation for each batch size -----------------------------------------------------


def test_batches_with_the_same_recommendation_are_one(run):
    (one,) = recommend(run.measurements)
    assert (one.batches, one.runtimes) == ((1, 2, 4, 8, 16), ("onnxruntime",))
    assert one.gain.value == one.gain.high == pytest.approx(2.2)
    assert one.gain.low == pytest.approx(12.9 / 10.9)  # at batch 16


def changed(factors, *runtimes, batches=(1, 2)):
    """Eager at 1 ms and runtimes at these factors of it, each process off by a factor."""
    records = []
    for batch in batches:
        for runtime in ("eager", *runtimes):
            at = data.point(runtime, batch)
            records.append(Subject(session=data.SESSION, point=at, paradigm="eager"))
            for record in data.blocks(at, 1_000_000):
                factor = factors.get((runtime, batch), (1, 1, 1))[record.process]
                calls = tuple(int(n * factor) for n in record.latency_ns)
                records.append(replace(record, latency_ns=calls))
            if runtime != "eager":
                records.append(parity(at, within=True))
    return recommend(build(records).measurements)


def test_runtimes_that_no_interval_separates_are_named_together():
    (one,) = changed(
        {("a", 1): (0.5, 0.51, 0.5), ("b", 1): (0.51, 0.5, 0.51), ("c", 1): (0.7, 0.7, 0.7)},
        "a", "b", "c", batches=(1,),
    )  # fmt: skip
    assert one.runtimes == ("a", "b")
    assert one.gain.low < 1 / 0.51 < 1 / 0.5 < one.gain.high < 2.1
    assert either(one.runtimes) == "a or b (not separable)"
    assert either(tuple("abcde")) == "a, b, c or 2 more (not separable)"


@pytest.mark.parametrize("spreads", [(1,) * 20, (1, 1, 1, 1, 10), (1, 2, 3)])
def test_the_best_of_many_is_not_named_for_its_luck(spreads):
    # runtimes as fast as eager, each process off by about 1 %: each looks faster in 2.5 % of cases
    rng = np.random.default_rng(3)
    alone = together = 0
    for _ in range(1000):
        logs = rng.normal(0, 0.01, (len(spreads), 3)) * np.array(spreads)[:, None]
        eager = {(p, 0): 1.0 for p in range(3)}
        ratios = [
            ratio_interval(eager, {(p, 0): float(np.exp(x)) for p, x in enumerate(row)})
            for row in logs
        ]
        alone += any(r.low > 1 for r in ratios)
        together += any(r.low > 1 for r in simultaneous(ratios))
    assert alone / 1000 > 0.8 * (1 - 0.975 ** len(spreads))
    assert together / 1000 < 0.05, "2.5 % are wanted on this side"


def test_none_of_many_equal_runtimes_is_said_to_be_slower_than_the_best():
    """The best and the worst of ten are further apart than nine pairs drawn by themselves."""
    rng, missed, draws = np.random.default_rng(5), 0, 300
    equal = Parity(
        session="s", point="p", reference="eager", max_abs_difference=0.0,
        max_relative_difference=0.0, tolerance=1e-3, within_tolerance=True,
    )  # fmt: skip
    for _ in range(draws):
        eager, *others = 1e6 * np.exp(rng.normal(0, 0.02, (11, 12)))
        family = []
        for i, own in enumerate(0.7 * ns for ns in others):
            blocks, below = ({(p, 0): ns for p, ns in enumerate(side)} for side in (own, eager))
            ratio = ratio_interval(blocks, below)
            timed = tuple((p, 0, ns) for p, ns in enumerate(own))
            made = {"ratio_to_eager": ratio, "parity": equal, "session": "s", "blocks_ns": timed}
            family.append(made_point(f"r{i}", **made))
        (one,) = recommend(family)
        missed += len(one.runtimes) < 10
    assert missed / draws <= 0.05


def test_intervals_that_hold_together_pool_the_spread_between_processes():
    def ratio(*logs):
        sides = ({(p, 0): math.exp(x) for p, x in enumerate(logs)}, {(p, 0): 1.0 for p in range(3)})
        return ratio_interval(*sides)

    one, other = ratio(0.1, 0.2, 0.3), ratio(-0.02, 0.0, 0.02)
    wide, narrow = simultaneous([one, other])
    quantile = t_quantile(0.975, 2)
    assert math.log(wide.high / wide.value) == pytest.approx(quantile * 0.1 / math.sqrt(3))
    # The mean of logarithms, each from two degrees of freedom: short by Euler's constant.
    pooled = math.sqrt(0.1 * 0.02 * math.exp(0.5772156649))
    assert math.log(narrow.high / narrow.value) == pytest.approx(quantile * pooled / math.sqrt(3))
    assert math.log(narrow.value / narrow.low) == pytest.approx(quantile * pooled / math.sqrt(3))
    # Equal values say nothing of the spread of the others, and their own is the pooled one.
    *both, equal = simultaneous([one, other, ratio(0.4, 0.4, 0.4)])
    quantile = t_quantile(1 - 0.05 / 3, 3)
    halves = [math.log(found.high / found.value) for found in (*both, equal)]
    expected = [quantile * sd / math.sqrt(3) for sd in (0.1, pooled, pooled)]
    assert halves == pytest.approx(expected)
    assert simultaneous([one]) == [one] and simultaneous([]) == []


def test_what_is_faster_than_the_best_in_their_common_rounds_is_no_worse_than_it():
    """Eager is slow in three rounds, of which ``a`` has none: it gains less, and beats ``b``."""
    records = []
    for runtime, base_ns in (("eager", 1e6), ("a", 0.49e6), ("b", 0.5e6)):
        at = data.point(runtime)
        records.append(Subject(session=data.SESSION, point=at, paradigm="eager"))
        for record in data.blocks(at, base_ns, rounds=(1.0,) * 5):
            slow = 1.2 if runtime == "eager" and record.round < 3 else 1.0
            if runtime != "a" or record.round >= 3:
                calls = tuple(int(n * slow) for n in record.latency_ns)
                records.append(replace(record, latency_ns=calls))
        records += [parity(at, within=True)] * (runtime != "eager")
    (one,) = recommend(build(records).measurements)
    assert one.runtimes == ("b", "a")


def test_what_is_not_proven_faster_than_eager_is_in_no_tie():
    (one,) = changed(
        {("a", 1): (0.5, 0.51, 0.5), ("b", 1): (0.3, 1.0, 1.4)}, "a", "b", batches=(1,)
    )
    assert one.runtimes == ("a",)


def test_a_recommendation_changes_with_the_batch():
    half, same = (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)
    slower = (1.1, 1.1, 1.1)
    found = changed(
        {
            ("a", 1): half, ("a", 2): half, ("a", 4): slower, ("a", 8): (0.9, 1.0, 1.1),
            ("b", 1): same, ("b", 2): same, ("b", 4): half, ("b", 8): slower,
        },
        "a", "b", batches=(1, 2, 4, 8),
    )  # fmt: skip
    assert [(one.batches, one.runtimes) for one in found] == [
        ((1, 2), ("a",)), ((4,), ("b",)), ((8,), ()),
    ]  # fmt: skip
    assert [one.gain is None for one in found] == [False, False, True]


def test_a_noisy_batch_does_not_widen_what_others_show():
    half, noisy = (0.5, 0.51, 0.5), (0.1, 0.5, 0.9)
    found = changed(
        {("a", 1): half, ("a", 2): half, ("a", 4): (0.39, 0.4, 0.41), ("a", 8): (0.2, 0.25, 0.3)},
        "a", batches=(1, 2, 4, 8),
    )  # fmt: skip
    assert [one.batches for one in found] == [(1, 2, 4), (8,)]
    assert 1.9 < found[0].gain.low < 2 < found[0].gain.high < 3.1
    # one that is not proven faster at all is no recommendation, as before
    assert [one.runtimes for one in changed({("a", 1): half, ("a", 2): noisy}, "a")] == [("a",), ()]


def test_advice_names_the_place_that_pays_most():
    layers = tuple(layer_stack(spin=400.0))
    m = replace(
        build(data.sample_records()).measurements[0],
        layers=layers,
        latency_ns=Estimate(value=1555.0, low=1500.0, high=1600.0, n=3),
    )
    found = _place(m)
    assert re.match(r"layers\.2 .*\b44 % ", found.action)
    assert "net.py:7" in found.action
    assert found.gain.value == pytest.approx(1555 / (1555 - 420))
    assert found.kind == "bound"
    assert _place(replace(m, layers=())) is None
    # 420 ns of 465: a bound above 10 says nothing, and the action gives none
    short = replace(m, latency_ns=Estimate(value=465.0, low=460.0, high=470.0, n=3))
    assert found.action.endswith("faster") and (all_of_it := _place(short)).gain.high > 10
    assert all_of_it.action.endswith(")")
