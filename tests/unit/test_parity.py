"""Parity compares relatively, and refuses to prove what it cannot."""

import numpy as np
import pytest

from frameworktax.measure.parity import (
    REAL,
    TOLERANCE,
    compare,
    compare_files,
    read_extra,
    read_outputs,
    without_padding,
)


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


@pytest.mark.parametrize("beside", [np.array([640.0]), np.array([30_000])])
def test_each_output_is_judged_by_its_own_size(beside):
    scores = np.array([0.5, 0.25])
    found = compare([beside, scores], [beside, scores + np.array([0.0, 0.25])], "float32")
    assert found.within_tolerance is False
    assert found.max_relative_difference == pytest.approx(0.5)
    assert found.worst == "output 1 [1]: 0.5, eager 0.25"
    assert compare([beside, scores], [beside, scores + 1e-5], "float32").within_tolerance is True


def test_an_output_that_rounding_left_is_judged_by_the_size_of_the_largest():
    sums, rest = np.array([1000.0]), np.array([1e-5])
    assert compare([sums, rest], [sums, -rest], "float32").within_tolerance is True
    assert compare([sums, rest], [sums, rest + 0.01], "float32").within_tolerance is False
    assert compare([sums, rest * 0], [sums, rest * 0], "float32").within_tolerance is True


def test_bfloat16_arithmetic_is_not_float32():
    rng = np.random.default_rng(0)
    exact = rng.normal(size=1000)
    rounded = (exact.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert compare([exact], [rounded.astype(float)], "float32").within_tolerance is False
    assert compare([exact], [rounded.astype(float)], "bfloat16").within_tolerance is True


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ([], "no numbers"),
        ([np.zeros(3)], "prove nothing"),
        ([np.array([np.nan])], "NaN"),
        ([np.ones(3), np.array([np.nan])], "NaN"),
    ],
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
    precisions = ("float32", "float16", "bfloat16", "int8")
    assert sorted(precisions, key=TOLERANCE.__getitem__) == list(precisions)
    assert len({TOLERANCE[one] for one in precisions}) == 4


def test_whole_numbers_must_be_equal_and_the_first_that_is_not_is_named():
    ids = np.array([[7, 5, 40_000], [1, 2, 3]])
    other = ids.copy()
    other[0, 2], other[1, 1] = 39_999, 9
    found = compare([ids], [other], "float32")
    assert (found.within_tolerance, found.tolerance) == (False, 0.0)
    assert found.worst == "output 0 [1, 1]: 9, eager 2; 2 of 6 differ"
    assert found.max_abs_difference == 7
    same = compare([ids], [ids.copy()], "bfloat16")
    assert (same.within_tolerance, same.tolerance, same.max_abs_difference) == (True, 0.0, 0.0)


def test_whole_numbers_beside_others_must_be_equal_too():
    floats, ids = np.array([1.0, 1000.0]), np.array([3, 4])
    close = floats + 1e-4
    assert compare([floats, ids], [close, ids], "float32").within_tolerance is True
    assert compare([floats, ids], [close, ids + 1], "float32").within_tolerance is False


def test_padding_is_left_out_of_outputs_with_tokens_only():
    real = np.array([[True, True, False], [True, False, False]])
    hidden = np.arange(1, 13).reshape(2, 3, 2).astype(float)
    pooled = np.ones((2, 3))  # as wide as the sentences are long: features, no tokens
    kept = without_padding([hidden, pooled], real)
    assert kept[0].tolist() == [[[1, 2], [3, 4], [0, 0]], [[7, 8], [0, 0], [0, 0]]]
    assert kept[1].tolist() == pooled.tolist()
    assert hidden[0, 2].tolist() == [5, 6]  # the caller's own is left alone


def test_which_tokens_are_real_travels_beside_the_outputs(tmp_path):
    real = np.array([[True, False]])
    np.savez(tmp_path / "o.npz", np.zeros(1), np.ones(2), real=real, repeats=False)
    np.savez(tmp_path / "dense.npz", np.zeros(1))
    assert [a.size for a in read_outputs(tmp_path / "o.npz")] == [1, 2]
    assert read_extra(tmp_path / "o.npz", REAL).tolist() == real.tolist()
    assert read_extra(tmp_path / "dense.npz", REAL) is None


@pytest.mark.parametrize("differs", ["eager", "own", None])
def test_outputs_that_differ_from_call_to_call_prove_nothing(tmp_path, differs):
    for name in ("eager", "own"):
        np.savez(tmp_path / f"{name}.npz", np.ones(3), repeats=name != differs)
    found = compare_files(tmp_path / "own.npz", tmp_path / "eager.npz", "float32")
    assert found.within_tolerance is (None if differs else True)
    assert (found.reason is not None) == bool(differs)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([-np.inf, 1.0, 2.0], True),
        ([-np.inf, 1.0, 2.1], False),
        ([-np.inf, -np.inf, 2.0], False),
        ([np.inf, 1.0, 2.0], None),  # a sum of large numbers may have overflowed
        ([-3e38, 1.0, 2.0], None),
    ],
)
def test_an_infinity_that_both_have_is_equal(other, verdict):
    """A masked logit: no such model was ranked or delivered."""
    reference = [np.array([-np.inf, 1.0, 2.0])]
    assert compare(reference, [np.array(other)], "float32").within_tolerance is verdict


def test_infinities_alone_prove_nothing():
    found = compare([np.array([-np.inf])], [np.array([-np.inf])], "float32")
    assert found.within_tolerance is None and "prove nothing" in found.reason
