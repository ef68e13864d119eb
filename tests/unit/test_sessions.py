"""Two sessions of one program: by hand, and against simulated hosts whose truth is known."""

import math
import random
from statistics import fmean, stdev

import pytest

from frameworktax.analysis.compare import contrasts
from frameworktax.analysis.compare.contrasts import Sample


def session(level, host=1.0, processes=(0.99, 1.0, 1.01), rounds=5, calibrated=True):
    return Sample(
        blocks={(p, r): level * host * f for p, f in enumerate(processes) for r in range(rounds)},
        calibrator=dict.fromkeys(range(rounds), 370.0 * host) if calibrated else {},
    )


# --- by hand ------------------------------------------------------------------------------------


def test_nothing_measured_is_no_contrast():
    empty = Sample(blocks={}, calibrator={})
    assert contrasts.between([empty], session(100.0), on_cpu=True) is None
    assert contrasts.between([session(100.0)], empty, on_cpu=True) is None


def test_the_parts_of_two_still_sessions():
    found = contrasts.between([session(100.0)], session(108.0), on_cpu=True)
    assert found.value == pytest.approx(math.log(1.08))
    assert (found.drift, found.n, found.degrees) == (0.0, 3, 4)
    own = found.spread * (1 / 3 + 1 / 3)
    known = 2 * 0.006**2 + contrasts.LEAST_SD**2
    assert found.variance == pytest.approx(own + known)


def test_several_sessions_before_are_averaged_and_each_counts_for_its_part():
    before = [session(level) for level in (98.0, 100.0, 102.0, 104.0)]
    found = contrasts.between(before, session(108.0), on_cpu=True)
    assert found.value == pytest.approx(
        math.log(108.0) - fmean(math.log(level) for level in (98.0, 100.0, 102.0, 104.0))
    )
    assert (found.n, found.degrees, found.drift) == (3, 5 * 2, 0.0)
    own = found.spread * (1 / 3 + 4 * (1 / 3) / 16)
    assert found.spread == pytest.approx(
        contrasts.between(before[:1], session(108.0), on_cpu=True).spread
    )
    known = (1 + 1 / 4) * 0.006**2 + contrasts.LEAST_SD**2
    assert found.variance == pytest.approx(own + known)
    moved = [session(100.0, host=host) for host in (0.9, 1.1)]
    drifted = contrasts.between(moved, session(100.0), on_cpu=True)
    assert drifted.drift == pytest.approx(-fmean(map(math.log, (0.9, 1.1))), abs=1e-4)
    assert (
        contrasts.between([*before, Sample(blocks={}, calibrator={})], before[0], on_cpu=True)
        is None
    )


def test_a_drifting_host_is_told_from_a_changed_program():
    drifted = contrasts.between([session(100.0)], session(100.0, host=1.08), on_cpu=True)
    assert drifted.value == pytest.approx(0.0, abs=1e-12)
    assert drifted.drift == pytest.approx(math.log(1.08))
    assert drifted.measured == pytest.approx(math.log(1.08))
    assert drifted.variance > (contrasts.DRIFT_SD * math.log(1.08)) ** 2  # its share is not known
    assert contrasts.p_value(drifted) > 0.9


def test_on_a_device_the_drift_of_the_host_only_widens():
    found = contrasts.between([session(100.0)], session(100.0, host=1.08), on_cpu=False)
    assert found.value == pytest.approx(math.log(1.08))
    assert found.measured is None
    assert contrasts.p_value(found) > 0.05


def test_without_a_calibrator_the_hosts_own_drift_is_in_the_interval():
    bare = session(100.0, calibrated=False)
    found = contrasts.between([session(100.0)], bare, on_cpu=True)
    assert found.drift is None
    assert found.variance > 2 * contrasts.UNCALIBRATED_SD**2
    other = contrasts.between([session(100.0)], session(100.0), on_cpu=True, same_calibrator=False)
    assert other.drift is None and other.variance == pytest.approx(found.variance)


def test_two_rounds_of_the_calibrator_tell_no_noise():
    for rounds, drift_is_known in ((2, False), (3, True)):
        short = session(100.0, rounds=rounds)
        found = contrasts.between([short], session(100.0), on_cpu=True)
        assert (found.drift is not None) is drift_is_known


def test_block_noise_is_the_spread_of_blocks_and_leaves_medians_out():
    blocks = {(0, r): math.exp(x) for r, x in enumerate((-0.03, 0.0, 0.01))}
    blocks |= {(1, r): 5 * math.exp(x) for r, x in enumerate((-0.02, 0.0, 0.5))}
    spread, degrees = Sample(blocks=blocks, calibrator={}).block_noise
    assert spread == pytest.approx(1.4826 * 0.025)  # of 0.01, 0.02, 0.03, 0.5
    assert degrees == pytest.approx(0.37 * 4)
    assert Sample(blocks={(0, 0): 1.0, (1, 0): 2.0}, calibrator={}).block_noise is None


def test_block_noise_does_not_shrink_with_more_blocks():
    """What disturbs single blocks outlasts a session."""

    def variance(rounds):
        calm = session(100.0, rounds=rounds)
        wild = {(p, r): ns * (1 + 0.04 * ((r + p) % 3 - 1)) for (p, r), ns in calm.blocks.items()}
        side = Sample(blocks=wild, calibrator=calm.calibrator)
        return contrasts.between([calm], side, on_cpu=True).variance

    assert variance(30) == pytest.approx(variance(6), rel=0.05)
    assert variance(30) > (0.5 * 0.04) ** 2


def test_one_block_a_process_says_nothing_of_block_noise():
    one = session(100.0, rounds=1)
    found = contrasts.between([one], one, on_cpu=True)
    assert found.variance > 4 * contrasts.UNCALIBRATED_SD**2


# --- the host's speed ---------------------------------------------------------------------------


def test_the_quartile_by_hand():
    from scipy.stats import beta

    value, noise = contrasts.quartile([math.e, 1.0])
    weight = 1 - beta.cdf(0.5, 3 * 0.25, 3 * 0.75)  # of the larger of two
    assert value == pytest.approx(weight)
    assert noise == pytest.approx(weight * (1 - weight))
    assert contrasts.quartile([7.0] * 5) == (pytest.approx(math.log(7.0)), pytest.approx(0.0))


def test_a_disturbed_calibrator_keeps_its_quartile():
    calm = [370.0 + r for r in range(10)]
    disturbed = [*calm[:7], 900.0, 1200.0, 5000.0]
    assert contrasts.quartile(disturbed)[0] == pytest.approx(contrasts.quartile(calm)[0], abs=0.01)


def test_the_noise_of_the_quartile_is_never_less_than_said():
    """The variance is that of a single order statistic; weighing all of them is a little better."""
    rng = random.Random(2)
    found = [
        contrasts.quartile([math.exp(rng.gauss(0, 0.02)) for _ in range(10)]) for _ in range(400)
    ]
    said = math.sqrt(fmean(noise for _, noise in found))
    true = stdev(value for value, _ in found)
    assert true < said < 1.5 * true


def quartiles(*calibrators):
    return [contrasts.quartile(calibrator) for calibrator in calibrators]


def test_a_movement_within_the_noise_is_hardly_believed():
    noisy = [350.0, 362.0, 370.0, 380.0, 395.0]
    before, near, far = quartiles(noisy, [1.005 * ns for ns in noisy], [1.4 * ns for ns in noisy])
    little, _ = contrasts.moved([before], near)
    assert 0 < little < 0.5 * math.log(1.005)
    large, noise = contrasts.moved([before], far)
    assert large == pytest.approx(math.log(1.4), rel=0.05)
    assert noise == pytest.approx(2 * before[1], rel=0.1)
    back, _ = contrasts.moved([far], before)
    assert back == pytest.approx(-large)


def test_calibrators_of_other_worlds_end_in_a_number():
    before, after = quartiles([1e-300] * 3, [1e300] * 3)
    value, noise = contrasts.moved([before], after)
    assert value == pytest.approx(math.log(1e300) * 2) and noise == pytest.approx(0.0)


# --- simulated: host, session, process, block ---------------------------------------------------


def simulated(
    rng, points, ratio, *, host_sd, session_sd, block_noise, rounds=5, share=1.0,
    calibrator_sd=0.015, disturbed=0.1,
):  # fmt: skip
    """One session of several points, and the calibrator beside them; each level moves the time."""
    host = rng.gauss(0, host_sd)
    own = rng.gauss(0, math.hypot(session_sd, 0.5 * block_noise))
    calibrator = {
        r: 370
        * math.exp(host + rng.gauss(0, calibrator_sd) + (0.4 if rng.random() < disturbed else 0))
        for r in range(rounds)
    }
    made = []
    for _ in range(points):
        blocks = {}
        for p in range(3):
            level = rng.gauss(0, 0.006) + own + share * host
            for r in range(rounds):
                blocks[p, r] = 1e6 * ratio * math.exp(level + rng.gauss(0, block_noise))
        made.append(Sample(blocks=blocks, calibrator=calibrator))
    return made


def judged(rng, ratio, points=1, constants=contrasts.ELSEWHERE, **host):
    old, new = simulated(rng, points, 1.0, **host), simulated(rng, points, ratio, **host)
    found = [
        contrasts.between([a], b, on_cpu=True, constants=constants)
        for a, b in zip(old, new, strict=True)
    ]
    shared = contrasts.moderate(found)
    adjusted = contrasts.holm([contrasts.p_value(c) for c in shared])
    return list(zip(map(contrasts.ratio, shared), adjusted, strict=True))


QUIET = {"host_sd": 0.003, "session_sd": 0.006, "block_noise": 0.008}
DRIFTING = {"host_sd": 0.05, "session_sd": 0.006, "block_noise": 0.008}
NOISY = {"host_sd": 0.02, "session_sd": 0.006, "block_noise": 0.06}
HEAVIER = {"host_sd": 0.04, "session_sd": 0.006, "block_noise": 0.008, "share": 1.5}


@pytest.mark.parametrize("host", [QUIET, DRIFTING, NOISY, HEAVIER])
def test_false_alarms_and_coverage(host):
    rng = random.Random(7)
    told = [judged(rng, 1.0, **host)[0] for _ in range(400)]
    assert sum(p < 0.05 and e.value > 1.05 for e, p in told) / 400 <= 0.02
    assert sum(e.low <= 1 <= e.high for e, _ in told) / 400 >= 0.90


@pytest.mark.parametrize(
    ("calibrator", "least"),
    [({"calibrator_sd": 0.005, "disturbed": 0.0}, 0.8), ({"calibrator_sd": 0.015}, 0.6)],
    ids=["idle", "one calibrator round in ten disturbed"],
)
def test_on_a_quiet_host_a_twentieth_is_found(calibrator, least):
    """What disturbs the calibrator's rounds costs power, and makes no false alarms."""
    rng = random.Random(11)
    told = [judged(rng, 1.05, **QUIET, **calibrator)[0] for _ in range(300)]
    same = [judged(rng, 1.0, **QUIET, **calibrator)[0] for _ in range(300)]
    found = sum(p < 0.05 and e.value > 1 for e, p in told) / 300
    alarms = sum(p < 0.05 and e.value > 1 for e, p in same) / 300
    print(f"found {found:.3f}, false alarms {alarms:.3f}")
    assert found >= least
    assert alarms <= 0.02


def test_many_points_keep_the_error_of_the_family():
    rng = random.Random(9)
    wrong = sum(any(p < 0.05 for _, p in judged(rng, 1.0, 20, **QUIET)) for _ in range(60))
    assert wrong / 60 <= 0.10


# --- constants of this host ---------------------------------------------------------------------

IDLE = {"calibrator_sd": 0.005, "disturbed": 0.0}
APART = {"host_sd": 0.003, "session_sd": 0.018, "block_noise": 0.008, **IDLE}
"""Its sessions differ three times as much as those of the host that the constants are from."""


def calibrated(rng, sessions=12, **host):
    return contrasts.constants_of([simulated(rng, 1, 1.0, **host)[0] for _ in range(sessions)])


@pytest.mark.parametrize(("sd", "least"), [(0.0, 0.6), (0.003, 0.6), (0.018, 0.85)])
def test_calibrated_constants_are_those_of_the_host(sd, least):
    """Small ones come out smaller: what is said of the calibrator's noise covers part of them."""
    rng = random.Random(12)
    host = {**APART, "session_sd": sd}
    found = [calibrated(rng, **host) for _ in range(40)]
    total = [math.hypot(c.session_sd, 0.008 * c.block_noise) for c in found]
    true = math.hypot(sd, 0.5 * 0.008)
    assert least < math.sqrt(fmean(one**2 for one in total)) / true < 1.15
    median_of_five = 0.008 * math.sqrt(math.pi / 2 / 5)  # what blocks add to a process's median
    process_sd = math.hypot(0.006, median_of_five)
    assert fmean(c.process_sd for c in found) == pytest.approx(process_sd, rel=0.1)
    assert {(c.sessions, c.degrees) for c in found} == {(12, 11)}


def test_calibrated_constants_widen_with_their_own_freedom():
    known = contrasts.Constants(session_sd=0.02, block_noise=0.0, sessions=4)
    found = contrasts.between([session(100.0)], session(100.0), on_cpu=True, constants=known)
    elsewhere = contrasts.between([session(100.0)], session(100.0), on_cpu=True)
    assert found.variance - elsewhere.variance == pytest.approx(2 * (0.02**2 - 0.006**2))
    assert found.freedom == pytest.approx(3, rel=0.2) and elsewhere.freedom > 10
    on_device = contrasts.between([session(100.0)], session(100.0), on_cpu=False, constants=known)
    assert on_device.variance < elsewhere.variance + 2 * contrasts.DEVICE_SESSION_SD**2


def alarms_of(host, *, is_calibrated):
    rng = random.Random(13)
    alarms = []
    for _ in range(50):
        constants = calibrated(rng, **host) if is_calibrated else contrasts.ELSEWHERE
        for _ in range(5):
            ((found, p),) = judged(rng, 1.0, constants=constants, **host)
            alarms.append(p < 0.05 and found.value > 1.05)
    return fmean(alarms)


@pytest.mark.parametrize(
    ("host", "is_calibrated"), [({**QUIET, **IDLE}, True), (APART, True), (APART, False)]
)
def test_only_constants_of_another_host_raise_false_alarms(host, is_calibrated):
    """Where sessions differ more than on the host that the constants are of."""
    assert (alarms_of(host, is_calibrated=is_calibrated) <= 0.02) == is_calibrated


def test_calibrated_comparisons_find_a_twentieth_on_an_idle_host():
    rng = random.Random(14)
    found = []
    for _ in range(60):
        constants = calibrated(rng, **QUIET, **IDLE)
        for _ in range(5):
            ((ratio, p),) = judged(rng, 1.05, constants=constants, **QUIET, **IDLE)
            found.append((p < 0.05 and ratio.value > 1, ratio.low <= 1.05 <= ratio.high))
    power, coverage = map(fmean, zip(*found, strict=True))
    print(f"found {power:.3f}, coverage {coverage:.3f}")
    assert power >= 0.8
    assert coverage >= 0.92


def test_too_few_sessions_calibrate_nothing():
    with pytest.raises(ValueError, match="three sessions"):
        contrasts.constants_of([session(100.0)] * 2)
    with pytest.raises(ValueError, match="three processes"):
        contrasts.constants_of([session(100.0, processes=(1.0, 1.01))] * 3)
