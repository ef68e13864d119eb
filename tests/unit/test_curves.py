import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworktax.analysis.curves import free_batch, free_batch_interval, isotonic, ratio_to_first


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
    ("latency", "value", "bound"),
    [
        # it doubles from 4 to 8: 1.1 is reached at 4 · 2^(log 1.1 / log 2)
        ([100, 100, 100, 200], 4 * 1.1, False),
        ([100, 200, 400], 1.1, False),  # no batch is free
        ([100, 101, 109], 4, True),  # the largest is
        # batch 1 is slower than 2 by noise: pooled to 102, the limit is 112.2, and not 114.4
        ([104, 100, 113, 226], 2 * 2 ** (math.log(1.1) / math.log(113 / 102)), False),
    ],
)
def test_free_batch_is_interpolated_between_logarithms_of_the_isotonic_curve(latency, value, bound):
    batches = [1, 2, 4, 8][: len(latency)]
    assert free_batch(batches, latency) == (pytest.approx(value), bound)


def column(latency, noise=(0.99, 1.0, 1.01), processes=(1.0, 1.0, 1.0)):
    return {(i, r): latency * p * n for i, p in enumerate(processes) for r, n in enumerate(noise)}


def test_interval_is_exact_without_noise():
    columns = [column(latency, noise=(1, 1, 1)) for latency in (100, 100, 100, 200)]
    found, bound = free_batch_interval([1, 2, 4, 8], columns)
    assert (found.low, found.value, found.high) == pytest.approx((4.4, 4.4, 4.4))
    assert not bound
    assert found.n == 3


def test_what_belongs_to_a_process_cancels_in_the_free_batch():
    same = [column(100, (1, 1), (0.8, 1, 1.2)), column(200, (1, 1), (0.8, 1, 1.2))]
    found, _ = free_batch_interval([1, 2], same)
    assert found.high - found.low < 1e-9


def test_no_curve_no_free_batch():
    assert free_batch_interval([1], [column(100)]) == (None, False)
    assert free_batch_interval([2, 4], [column(100), column(200)]) == (None, False)
    assert free_batch_interval([1, 2], [column(100), {}]) == (None, False)


def test_ends_are_where_the_interval_of_the_ratio_holds_the_limit():
    # log ratios of three processes 0.08, 0.10, 0.12: half-width 4.30 · 0.02 / √3 at batch 2
    columns = [{(p, 0): 1.0 for p in range(3)} for _ in range(2)]
    columns[1] = {(p, 0): math.exp(move) for p, move in enumerate((0.08, 0.10, 0.12))}
    found, bound = free_batch_interval([1, 2], columns)
    half = 4.302652729911275 * 0.02 / math.sqrt(3)
    assert found.value == pytest.approx(2 ** (math.log(1.1) / 0.10))
    assert found.low == pytest.approx(2 ** (math.log(1.1) / (0.10 + half)))
    assert found.high == 2  # at its low end, batch 2 is free
    assert (found.n, bound) == (3, False)


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
        truth, _ = free_batch(batches, latencies.tolist())
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
    assert 0.90 <= held / sessions <= 0.985
