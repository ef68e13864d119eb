"""The statistics of a comparison: by hand, and against simulated data whose truth is known."""

import math
import random
from dataclasses import replace
from statistics import variance

import pytest

from frameworktax.analysis.compare import contrasts
from frameworktax.analysis.compare.contrasts import Contrast

T_2 = 4.302652729911275
"""Student t, 0.975, two degrees of freedom."""


def contrast(value=0.0, spread=1e-4, degrees=2.0, scale=1 / 3, parts=()):
    return Contrast(
        value=value, spread=spread, degrees=degrees, scale=scale, parts=parts, n=3, method="m"
    )


# --- by hand ------------------------------------------------------------------------------------


def test_paired_is_the_median_per_process_and_t_over_processes():
    drift = [1.0, 1.4, 0.7]
    before = {(p, r): 100.0 * drift[r] for p in range(3) for r in range(3)}
    factors = (1.09, 1.10, 1.11)
    after = {(p, r): factors[p] * before[p, r] for p in range(3) for r in range(3)}
    found = contrasts.paired(before, after)
    logs = [math.log(f) for f in factors]
    assert found.value == pytest.approx(sum(logs) / 3)
    assert found.spread == pytest.approx(variance(logs))
    assert (found.degrees, found.n, found.drift) == (2, 3, None)
    told = contrasts.ratio(replace(found, parts=()))
    half = T_2 * math.sqrt(variance(logs) / 3 + contrasts.LEAST_SD**2)
    # LEAST_SD is known for certain and adds a little to the degrees of freedom
    assert math.log(told.high / told.value) == pytest.approx(half, rel=0.1)


def test_one_disturbed_round_moves_no_median():
    before = {(p, r): 100.0 for p in range(3) for r in range(5)}
    after = {(p, r): 100.0 * (9.0 if r == 2 else 1.0) for p in range(3) for r in range(5)}
    assert contrasts.paired(before, after).value == 0.0


def test_too_few_processes_are_taken_by_blocks_and_widened():
    before = {(0, r): 100.0 for r in range(10)}
    found = contrasts.paired(before, dict.fromkeys(before, 101.0))
    assert found.n == 10 and "too few processes" in found.method
    assert found.variance == pytest.approx(2 * contrasts.PROCESS_SD**2 + contrasts.LEAST_SD**2)
    assert contrasts.p_value(found) > 0.05  # 1 % may be two processes


def test_nothing_in_common_is_no_contrast():
    assert contrasts.paired({(0, 0): 1.0}, {(0, 1): 1.0}) is None
    assert contrasts.paired({(0, 0): 1.0}, {(0, 0): 1.0}) is None


def test_identical_blocks_are_no_proof_of_anything():
    blocks = {(p, r): 60.0 for p in range(3) for r in range(5)}
    found = contrasts.paired(blocks, blocks)
    assert found.spread == 0.0
    assert contrasts.p_value(found) == 1.0
    told = contrasts.ratio(found)
    assert told.low < 1.0 < told.high


def test_satterthwaite_by_hand():
    # two parts of equal size, 2 and 2 degrees: (2v)² / (v²/2 + v²/2) = 4
    c = contrast(spread=3.0, parts=((1.0, 2.0),))
    assert c.freedom == pytest.approx(4.0, rel=1e-5)
    known = contrast(spread=1e-4, degrees=math.inf)
    assert known.freedom == 1e6
    assert contrasts.p_value(replace(known, value=1.959964 * math.sqrt(known.variance))) == (
        pytest.approx(0.05, abs=1e-4)
    )


def test_holm_by_hand():
    assert contrasts.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert contrasts.holm([0.5, 0.9]) == [1.0, 1.0]
    assert contrasts.holm([]) == []


def test_trigamma_inverse():
    from scipy.special import polygamma

    for y in (0.1, 0.7, 3.0, 40.0):
        assert contrasts._trigamma_inverse(float(polygamma(1, y))) == pytest.approx(y, rel=1e-6)


def test_points_that_look_alike_share_their_spread():
    alike = contrasts.moderate([contrast(spread=s * 1e-4) for s in (0.9, 1.0, 1.1, 1.0)])
    assert {c.degrees for c in alike} == {8.0}  # its own two, and six of the others at most
    spreads = [c.spread for c in alike]
    assert max(spreads) / min(spreads) < 1.1 < 0.000110 / 0.000090
    alone = contrast()
    assert contrasts.moderate([alone]) == [alone]
    known = contrast(degrees=math.inf)
    assert contrasts.moderate([known, contrast(), contrast(spread=2e-4)])[0] == known


def test_points_measured_another_way_share_no_spread():
    ways = [
        replace(contrast(spread=s * 1e-4), method=way) for s in (1.0, 1.2, 90.0) for way in "ab"
    ]
    told = contrasts.moderate(ways)
    assert told[::2] == contrasts.moderate(ways[::2])
    assert told[1::2] == contrasts.moderate(ways[1::2])
    assert contrasts.moderate(ways[:2]) == ways[:2]


def test_points_that_differ_keep_most_of_their_own_spread():
    mixed = [contrast(spread=s) for s in (1e-8, 1e-6, 1e-4, 1e-2, 1e-7, 1e-3)]
    told = contrasts.moderate(mixed)
    # beyond what two degrees of freedom give by chance: trigamma(1) = π² / 6
    excess = variance([math.log(c.spread) for c in mixed]) - math.pi**2 / 6
    degrees = 2 + 2 * contrasts._trigamma_inverse(excess)
    assert [c.degrees for c in told] == pytest.approx([degrees] * 6)
    assert told[3].spread > 100 * told[0].spread


# --- simulated: blocks in processes --------------------------------------------------------------


def decide(found):
    """Return (ratio, adjusted p) of each contrast, as the rule does."""
    shared = contrasts.moderate(found)
    adjusted = contrasts.holm([contrasts.p_value(c) for c in shared])
    return list(zip(map(contrasts.ratio, shared), adjusted, strict=True))


def within(rng, points, ratio):
    """Two points of one session differ in process and block alone."""
    found = []
    for _ in range(points):
        pair = []
        for factor in (1.0, ratio):
            blocks = {}
            for p in range(3):
                level = rng.gauss(0, 0.009)
                for r in range(4):
                    blocks[p, r] = 1e6 * factor * math.exp(level + 0.03 * r + rng.gauss(0, 0.008))
            pair.append(blocks)
        found.append(contrasts.paired(*pair))
    return decide(found)


def test_false_alarms_power_and_coverage():
    rng = random.Random(11)
    gate = 1.05
    many = [within(rng, 1, 1.0)[0] for _ in range(600)]
    assert sum(p < 0.05 and e.value > gate for e, p in many) / 600 <= 0.02
    assert sum(p < 0.05 for _, p in many) / 600 <= 0.07
    assert sum(e.low <= 1 <= e.high for e, _ in many) / 600 >= 0.93
    ten = [within(rng, 1, 1.10)[0] for _ in range(400)]
    assert sum(p < 0.05 and e.value > gate for e, p in ten) / 400 >= 0.95
    assert sum(e.low <= 1.1 <= e.high for e, _ in ten) / 400 >= 0.93
    five = [within(rng, 1, 1.05)[0] for _ in range(400)]
    assert sum(p < 0.05 and e.value > 1 for e, p in five) / 400 >= 0.80


def test_the_error_of_the_whole_family_is_held_and_power_stays():
    """Twenty points of the same code: any one told different is an error of the family."""
    rng = random.Random(5)
    wrong = sum(any(p < 0.05 for _, p in within(rng, 20, 1.0)) for _ in range(150))
    assert wrong / 150 <= 0.08
    told = [p < 0.05 and e.value > 1.05 for _ in range(40) for e, p in within(rng, 20, 1.10)]
    assert sum(told) / len(told) >= 0.95  # with two degrees of freedom a point: under a half


def test_without_holm_the_family_error_would_be_large():
    rng = random.Random(5)
    wrong = 0
    for _ in range(150):
        pairs = [within(rng, 1, 1.0)[0] for _ in range(20)]
        wrong += any(p < 0.05 for _, p in pairs)
    assert wrong / 150 > 0.4
