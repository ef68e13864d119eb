"""Properties that hold for every input: intervals, union, isotonic curve, free batch."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworktax.analysis.curves import free_batch, free_batch_interval
from frameworktax.analysis.estimates import difference, product, quotient, share_texts
from frameworktax.records import Estimate
from frameworktax.stats import process_interval, ratio_interval

TIMES = st.floats(1e2, 1e9)
FEW = settings(max_examples=50, deadline=None)
BATCHES = [1, 2, 4, 8, 16, 32]


def tables(low=2, high=6):
    row = st.lists(TIMES, min_size=low, max_size=high)
    return st.lists(row, min_size=1, max_size=5)


@FEW
@given(tables(), st.floats(0.01, 100))
def test_an_interval_scales_with_its_unit(blocks, factor):
    here = process_interval(blocks)
    there = process_interval([[b * factor for b in row] for row in blocks])
    for name in ("value", "low", "high"):
        scale = abs(there.high) + abs(there.low)
        assert getattr(there, name) == pytest.approx(
            getattr(here, name) * factor, rel=1e-6, abs=1e-9 * scale
        )
    assert here.low <= here.value <= here.high


PAIRS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 5)), st.tuples(TIMES, TIMES), min_size=2
)


@FEW
@given(PAIRS)
def test_a_ratio_turned_round_is_its_inverse(pairs):
    a = {key: x for key, (x, _) in pairs.items()}
    b = {key: y for key, (_, y) in pairs.items()}
    there, back = ratio_interval(a, b), ratio_interval(b, a)
    assert there.value * back.value == pytest.approx(1)
    assert math.log(there.low) == pytest.approx(-math.log(back.high), abs=1e-6)


@FEW
@given(PAIRS, st.lists(st.floats(0.5, 2), min_size=6, max_size=6))
def test_what_the_host_does_to_a_round_moves_no_ratio(pairs, drift):
    a = {key: x for key, (x, _) in pairs.items()}
    b = {key: y for key, (_, y) in pairs.items()}
    moved = [{key: value * drift[key[1]] for key, value in side.items()} for side in (a, b)]
    here, there = ratio_interval(a, b), ratio_interval(*moved)
    assert there.value == pytest.approx(here.value, rel=1e-9)
    assert math.log(there.high) == pytest.approx(math.log(here.high), rel=1e-6, abs=1e-9)


ESTIMATES = st.builds(
    lambda value, down, up: Estimate(value=value, low=value * (1 - down), high=value * (1 + up)),
    st.floats(1, 1e6),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
)


@FEW
@given(ESTIMATES, ESTIMATES)
def test_arithmetic_of_intervals_keeps_the_value_inside_and_never_narrows(a, b):
    for made in (product(a, b, "m"), quotient(a, b, "m"), difference(a, b, "m")):
        assert made.low <= made.value <= made.high
    width = difference(a, b, "m")
    assert width.high - width.low >= max(a.high - a.low, b.high - b.low) / 2 - 1e-6


def test_a_share_as_text_reaches_as_far_as_the_further_end_of_its_interval():
    assert share_texts(Estimate(value=0.30, low=0.28, high=0.50)) == ("30", "20")
    assert share_texts(Estimate(value=0.30, low=0.10, high=0.32)) == ("30", "20")


CURVES = st.lists(TIMES, min_size=2, max_size=len(BATCHES))


@FEW
@given(CURVES, st.floats(0.1, 10))
def test_the_free_batch_is_within_the_curve_and_knows_no_unit(values, unit):
    batches = BATCHES[: len(values)]
    found, bound = free_batch(batches, values)
    assert 1 <= found.low <= found.value <= found.high <= batches[-1]
    assert {found.low, found.high} <= set(batches)
    assert bound == (values[-1] / values[0] <= 1.1)
    scaled, _ = free_batch(batches, [v * unit for v in values])
    assert scaled.value == pytest.approx(found.value, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=3), min_size=3, max_size=3))
def test_the_interval_of_a_free_batch_holds_it(noise):
    columns = [
        {(p, r): latency * f for p, row in enumerate(noise) for r, f in enumerate(row)}
        for latency in (100.0, 101.0, 140.0, 270.0)
    ]
    found, _ = free_batch_interval(BATCHES[:4], columns)
    assert 1 <= found.low <= found.value <= found.high <= 8
