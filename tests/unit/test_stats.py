"""Intervals: numbers worked out by hand, and coverage where the truth is known."""

import math
import random
from array import array
from statistics import median

import numpy as np
import pytest

from frameworktax import stats


def test_mean_interval_by_hand():
    # mean 2, sd 1, n 3: half-width t(0.975, 2) / sqrt(3) = 4.30265 / 1.73205
    e = stats.mean_interval([1.0, 2.0, 3.0], "m")
    assert e is not None
    assert e.value == 2.0
    assert e.high - e.value == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert (e.n, e.method, e.confidence) == (3, "m", 0.95)


@pytest.mark.parametrize(("code", "most"), [("I", 2**32), ("q", 2**50), ("d", 2**50)])
def test_blocks_taken_together_have_the_median_and_the_sum_of_each(code, most):
    rng = random.Random(3)
    blocks = [[rng.randrange(most) for _ in range(calls)] for calls in (1, 2, 5, 6, 5, 2)]
    calls = np.array([len(block) for block in blocks])
    values = array(code, [value for block in blocks for value in block])
    medians, sums = stats.block_medians(values, np.cumsum(calls) - calls, calls)
    assert medians.tolist() == [median(block) for block in blocks]
    assert sums.tolist() == [sum(block) for block in blocks]


def test_no_blocks_have_no_medians():
    none = np.array([], int)
    assert [column.tolist() for column in stats.block_medians(array("I"), none, none)] == [[], []]


def test_one_value_has_no_interval():
    assert stats.mean_interval([1.0], "m") is None
    assert stats.process_interval([[1.0]]) is None
    assert stats.process_interval([]) is None


def test_processes_count_once_however_many_blocks_they_have():
    e = stats.process_interval([[1.0, 1.0, 1.0, 100.0], [2.0], [3.0, 3.0]])
    assert e is not None
    assert (e.value, e.n) == (2.0, 3)
    assert e.method == "process-medians-of-block-medians"


def test_blocks_of_two_processes_are_two_values_and_not_as_many_as_there_are_blocks():
    e = stats.process_interval([[1.0, 2.0], [3.5, 3.5, 3.5]])
    assert e is not None
    assert (e.value, e.n, e.method) == (2.5, 2, stats.BY_PROCESS)
    assert e.high - e.value == pytest.approx(12.706204736 * 2 / 2)  # t(0.975, 1) · s / √2


def test_the_interval_of_one_process_is_over_its_blocks_and_says_so():
    e = stats.process_interval([[1.0, 2.0, 3.0]])
    assert e is not None
    assert (e.value, e.n, e.method) == (2.0, 3, "block-medians-of-one-process")


def test_a_signed_value_stays_signed():
    e = stats.mean_interval([-3.0, -2.0, -1.0], "m")
    assert e is not None and e.value == -2.0 and e.low < -3.0


def test_ratio_pairs_by_round_and_takes_out_drift():
    drift = [1.0, 1.3, 0.8, 2.0]
    a = {(p, r): 3.0 * drift[r] for p in range(3) for r in range(4)}
    b = {(p, r): 2.0 * drift[r] for p in range(3) for r in range(4)}
    e = stats.ratio_interval(a, b)
    assert e is not None
    assert e.value == pytest.approx(1.5)
    assert e.high - e.low == pytest.approx(0.0, abs=1e-12)


def test_ratio_uses_only_common_rounds():
    e = stats.ratio_interval({(0, 0): 2.0, (0, 1): 4.0, (0, 9): 50.0}, {(0, 0): 1.0, (0, 1): 1.0})
    assert e is not None
    assert e.value == pytest.approx(math.sqrt(8.0))
    assert stats.ratio_interval({(0, 0): 1.0}, {(0, 1): 1.0}) is None


def test_spread_tells_the_levels_apart():
    between, within = stats.spread([[9.0, 11.0], [19.0, 21.0]])
    assert between == pytest.approx(math.sqrt(50.0) / 15.0)
    assert within == pytest.approx(math.sqrt((2 / 100 + 2 / 400) / 2))
    assert stats.spread([[1.0]]) == (None, None)


def test_relative_half_width():
    e = stats.mean_interval([1.0, 2.0, 3.0], "m")
    assert stats.relative_half_width(e) == pytest.approx(4.302652729911275 / math.sqrt(3) / 2)
    assert stats.relative_half_width(None) == math.inf


def test_coverage_with_a_process_component():
    """Blocks within processes, 4 % between and 3 % within: 95 % must mean 95 %."""
    rng = random.Random(7)
    hits = wrong = 0
    for _ in range(2_000):
        data = []
        for _ in range(3):
            process = 100 * (1 + rng.gauss(0, 0.04))
            data.append([process * (1 + rng.gauss(0, 0.03)) for _ in range(4)])
        e = stats.process_interval(data)
        hits += e.low <= 100 <= e.high
        flat = stats.mean_interval([b for blocks in data for b in blocks], "flat")
        wrong += flat.low <= 100 <= flat.high
    assert hits / 2_000 == pytest.approx(0.95, abs=0.015)
    assert wrong / 2_000 < 0.85  # what ignoring the processes would have claimed
