import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworktax.analysis.curves import (
    free_batch,
    free_batch_interval,
    isotonic,
    ratio_to_first,
    whole_ends,
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([3, 2, 1], [2, 2, 2]),
        ([1, 3, 2, 4], [1, 2.5, 2.5, 4]),
        ([5, 1, 6, 2, 9], [3, 3, 4, 4, 9]),
        ([1], [1]),
    ],
)
def test_isotonic(values, expected):
    assert isotonic(values) == expected


@settings(deadline=None)  # the first example imports scipy
@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=12))
def test_isotonic_rises_keeps_the_mean_and_agrees_with_scipy(values):
    from scipy.optimize import isotonic_regression

    found = isotonic(values)
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(found))
    assert found == pytest.approx(isotonic_regression(values).x, rel=1e-9)


@pytest.mark.parametrize(
    ("latency", "ends", "value", "bound"),
    [
        # it doubles from 4 to 8: 1.1 is reached at 4 · 2^(log 1.1 / log 2)
        ([100, 100, 100, 200], (4, 8), 4 * 1.1, False),
        ([100, 200, 400], (1, 2), 1.1, False),  # no batch is free
        ([100, 101, 109], (4, 4), 4, True),  # the largest is
        # 113 is within 10 % of 104; between 4 and 8 the limit is reached at 114.4
        ([104, 100, 113, 226], (4, 8), 4 * 2 ** (math.log(114.4 / 113) / math.log(2)), False),
        # 4 is not free though 2 is slower yet, by noise: pooled to 116, reached at once
        ([100, 120, 112, 130], (1, 2), 2 ** (math.log(1.1) / math.log(1.16)), False),
        ([100, 120, 108, 130], (1, 8), 2 ** (math.log(1.1) / math.log(1.14)), False),
    ],
)
def test_a_free_batch_lies_between_measured_ones_and_its_value_is_interpolated(
    latency, ends, value, bound
):
    found, is_bound = free_batch([1, 2, 4, 8][: len(latency)], latency)
    assert ((found.low, found.high), is_bound) == (ends, bound)
    assert found.value == pytest.approx(value)


def column(latency, noise=(0.99, 1.0, 1.01), processes=(1.0, 1.0, 1.0)):
    return {(i, r): latency * p * n for i, p in enumerate(processes) for r, n in enumerate(noise)}


def test_without_noise_the_interval_is_between_two_measured_batches():
    columns = [column(latency, noise=(1, 1, 1)) for latency in (100, 100, 100, 200)]
    found, bound = free_batch_interval([1, 2, 4, 8], columns)
    assert (found.low, found.value, found.high) == pytest.approx((4, 4.4, 8))
    assert whole_ends(found) == (4, 7)
    assert not bound
    assert found.n == 3


def test_what_belongs_to_a_process_cancels_in_the_free_batch():
    same = [column(100, (1, 1), (0.8, 1, 1.2)), column(200, (1, 1), (0.8, 1, 1.2))]
    found, _ = free_batch_interval([1, 2], same)
    assert whole_ends(found) == (1, 1)


def test_no_curve_no_free_batch():
    assert free_batch_interval([1], [column(100)]) == (None, False)
    assert free_batch_interval([1, 2], [column(100), {}]) == (None, False)


def test_a_batch_is_free_or_not_where_the_interval_of_its_ratio_says_so():
    # log ratios of three processes 0.08, 0.10, 0.12: half-width 4.30 · 0.02 / √3 at batch 2
    columns = [{(p, 0): math.exp(level) for p in range(3)} for level in (0, 0, 2)]
    columns[1] = {(p, 0): math.exp(move) for p, move in enumerate((0.08, 0.10, 0.12))}
    found, bound = free_batch_interval([1, 2, 4], columns)
    assert found.value == pytest.approx(2 ** (math.log(1.1) / 0.10))
    assert (found.low, found.high, found.n, bound) == (1, 4, 3, False)  # 2 may be free or not
    found, bound = free_batch_interval([1, 2], columns[:2])
    assert (found.low, found.high, bound) == (1, 2, True)


def test_rounds_in_common_are_paired_and_others_left_out():
    host = [1.0, 1.5, 0.8, 1.2]
    first = {(p, r): 100 * f for p in range(3) for r, f in enumerate(host)}
    larger = {(p, r): 120 * f for p in range(3) for r, f in enumerate(host) if r != 1}
    larger |= {(p, 9): 900.0 for p in range(3)}
    ratio = ratio_to_first(larger, first)
    assert (ratio.low, ratio.high) == pytest.approx((1.2, 1.2))
    assert ratio.method == "paired-block-ratios"
    apart = {(p, r + 10): ns * (1.1, 1.0, 0.9)[p] for (p, r), ns in first.items()}
    assert ratio_to_first(apart, first).method == "paired-process-ratios"
    elsewhere = {(("t", p), r): ns for (p, r), ns in apart.items()}
    assert ratio_to_first(elsewhere, first).method == "ratios of independent blocks"


def test_the_interval_holds_the_free_batch_of_simulated_curves():
    """L = o + k·n, in processes that differ and on a host that drifts from round to round.

    The truth is read off the true latencies, as the free batch is off the measured ones.
    """
    rng = np.random.default_rng(7)
    batches = [1, 2, 4, 8, 16, 32, 64]
    errors, held, sessions = [], 0, 300
    for _ in range(sessions):
        latencies = 10 ** rng.uniform(0, 2.3) + np.array(batches)
        truth = free_batch(batches, latencies.tolist())[0].value
        host = np.exp(np.cumsum(rng.normal(0, 0.03, 8)))
        own = rng.normal(1, 0.02, 3)
        columns = []
        for latency in latencies.tolist():
            apart = own * rng.normal(1, 0.007, 3)
            columns.append(
                {
                    (p, r): latency * apart[p] * host[r] * rng.normal(1, 0.015)
                    for p in range(3)
                    for r in range(8)
                }
            )
        found, _ = free_batch_interval(batches, columns)
        errors.append(abs(math.log2(found.value / truth)))
        held += found.low <= truth <= found.high
    assert np.median(errors) < 0.1
    assert held / sessions >= 0.95


@pytest.mark.parametrize("batches", [(1, 2, 4, 8, 16, 32), (1, 4, 16, 64), (1, 16, 256)])
@pytest.mark.parametrize(
    "shape",
    [
        lambda o, n: max(o, n),
        lambda o, n: o + n,
        lambda o, n: o + 8 * math.ceil(n / 8),
        lambda o, n: o * (1.5 if 3 * n > o else 1.0),
    ],
    ids=["max", "sum", "steps", "jump"],
)
def test_what_is_printed_of_a_free_batch_holds_the_true_one_whatever_the_curve(shape, batches):
    """The true one is looked for among all batch sizes, of which few were measured."""
    rng = np.random.default_rng(5)
    held, sessions = 0, 60
    for _ in range(sessions):
        o = 10 ** rng.uniform(0, 2.5)
        every = np.array([shape(o, n) for n in range(1, 400)])
        truth = int(np.argmax(np.append(every > 1.1 * every[0], True)))
        columns = [
            {(p, r): every[n - 1] * rng.normal(1, 0.01) for p in range(3) for r in range(4)}
            for n in batches
        ]
        found, bound = free_batch_interval(batches, columns)
        low, high = whole_ends(found)
        held += low <= truth <= (math.inf if bound else high)
    assert held / sessions >= 0.95


def test_the_interval_of_blocks_without_common_processes_is_of_the_ratio_beside_it():
    rng = np.random.default_rng(2)
    found = []
    for _ in range(1000):
        below, above = rng.normal(0, 0.1, (2, 10)).tolist()
        first = {("a", r): math.exp(move) for r, move in enumerate(below)}
        found.append(
            ratio_to_first({("b", r): 2 * math.exp(m) for r, m in enumerate(above)}, first)
        )
    assert sum(one.low <= 2 <= one.high for one in found) >= 950
