"""Lengths: the moments asked for, exactly, the same in every process; what cannot be is refused."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworktax.errors import UsageError
from frameworktax.models import ragged


def moments(p):
    lengths = np.arange(1, len(p) + 1)
    mean = float((p * lengths).sum())
    return mean, float((p * (lengths - mean) ** 2).sum()) ** 0.5


def test_the_papers_lengths_have_its_moments_after_truncation():
    p = ragged.distribution(ragged.MEAN, ragged.SD, 128)
    assert moments(p) == pytest.approx((20.92, 10.18), abs=1e-6)
    assert p.sum() == pytest.approx(1)


def test_it_is_the_distribution_of_largest_entropy():
    """log p is a parabola: nothing but the two moments went into it."""
    p = ragged.distribution(20.92, 10.18, 128)
    curvature = np.diff(np.log(p), n=2)
    assert curvature == pytest.approx(np.full(126, curvature[0]), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 512), st.floats(0.05, 0.95), st.floats(0.0, 0.9))
def test_any_moments_that_can_be_are_met(length, where, spread):
    mean = 1 + where * (length - 1)
    most = ((mean - 1) * (length - mean)) ** 0.5
    sd = ragged.LEAST_SD + spread * (most - ragged.LEAST_SD)
    if most <= ragged.LEAST_SD:
        return
    assert moments(ragged.distribution(mean, sd, length)) == pytest.approx((mean, sd), rel=1e-5)


@pytest.mark.parametrize(
    ("mean", "sd", "length", "says"),
    [
        (1.0, 2.0, 128, "mean must lie between"),
        (128.0, 2.0, 128, "mean must lie between"),
        (20.0, 0.5, 128, "between 1 and"),
        (20.0, 46.0, 128, "between 1 and 45.3"),
        (float("nan"), 2.0, 128, "mean must lie between"),
        (20.0, float("nan"), 128, "standard deviation"),
    ],
)
def test_moments_that_no_lengths_have_are_refused(mean, sd, length, says):
    with pytest.raises(UsageError, match=says):
        ragged.lengths(8, mean, sd, length)


def test_every_batch_stands_for_the_distribution():
    p = np.cumsum(ragged.distribution(20.92, 10.18, 128))
    for batch in (1, 2, 8, 64):
        drawn = ragged.lengths(batch, 20.92, 10.18, 128)
        expected = [1 + int((p < (i + 0.5) / batch).sum()) for i in range(batch)]
        assert sorted(drawn.tolist()) == expected
    drawn = ragged.lengths(256, 20.92, 10.18, 128)
    assert drawn.mean() == pytest.approx(20.92, abs=0.05)
    assert drawn.std() == pytest.approx(10.18, abs=0.1)
    assert drawn.min() >= 1 and drawn.max() <= 128
    assert drawn.tolist() != sorted(drawn.tolist())  # long and short ones are mixed


def test_another_process_draws_the_same():
    code = (
        "from frameworktax.models.ragged import lengths; "
        "print(lengths(16, 20.92, 10.18, 128).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(ragged.lengths(16, 20.92, 10.18, 128).tolist())
