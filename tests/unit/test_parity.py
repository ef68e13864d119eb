"""Parity compares relatively, and refuses to prove what it cannot."""

import numpy as np
import pytest

from frameworktax.parity import TOLERANCE, compare, read_outputs


def test_equal_is_within_tolerance_with_difference_zero():
    a = [np.array([1.0, -4.0])]
    found = compare(a, a, "float32")
    assert (found.max_abs_difference, found.within_tolerance) == (0.0, True)


def test_difference_is_relative_to_the_largest_value():
    found = compare([np.array([1000.0, 0.001])], [np.array([1000.0, 0.501])], "float32")
    assert found.max_abs_difference == pytest.approx(0.5)
    assert found.max_relative_difference == pytest.approx(5e-4)
    assert found.within_tolerance is True
    assert found.worst == "output 0 [1]: 0.501, eager 0.001"


def test_bfloat16_arithmetic_is_not_float32():
    rng = np.random.default_rng(0)
    exact = rng.normal(size=1000)
    rounded = (exact.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert compare([exact], [rounded.astype(float)], "float32").within_tolerance is False
    assert compare([exact], [rounded.astype(float)], "bfloat16").within_tolerance is True


@pytest.mark.parametrize(
    ("reference", "word"),
    [([], "no numbers"), ([np.zeros(3)], "prove nothing"), ([np.array([np.nan])], "NaN")],
)
def test_a_degenerate_reference_proves_nothing(reference, word):
    found = compare(reference, reference, "float32")
    assert found.within_tolerance is None
    assert word in found.reason


@pytest.mark.parametrize(
    "other", [[np.ones((2, 1))], [np.ones(2), np.ones(2)], [np.array([1.0, np.inf])], []]
)
def test_other_shapes_or_infinities_differ(other):
    assert compare([np.ones(2)], other, "float32").within_tolerance is False


def test_outputs_are_read_in_order_and_never_unpickled(tmp_path):
    np.savez(tmp_path / "o.npz", *[np.full(1, i) for i in range(12)])
    assert [int(a[0]) for a in read_outputs(tmp_path / "o.npz")] == list(range(12))
    np.savez(tmp_path / "bad.npz", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        read_outputs(tmp_path / "bad.npz")


def test_tolerances_grow_with_coarser_precision():
    assert TOLERANCE["float32"] < TOLERANCE["float16"] < TOLERANCE["bfloat16"]
