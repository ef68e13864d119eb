"""Interval arithmetic against brute force: one flag per nanosecond of a short timeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworktax.traces import intervals as iv

LENGTH = 60
pairs = st.lists(
    st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(lambda p: (min(p), max(p))),
    max_size=12,
)


def columns(spans):
    return [s for s, _ in spans], [e for _, e in spans]


def depth(spans):
    line = np.zeros(LENGTH, int)
    for s, e in spans:
        line[s:e] += 1
    return line


@given(pairs)
def test_union_equals_brute_force(spans):
    assert iv.union_ns(*columns(spans)) == (depth(spans) > 0).sum()


@given(pairs)
def test_merged_intervals_are_sorted_disjoint_and_rebuild_the_timeline(spans):
    starts, ends = iv.merge(*columns(spans))
    assert (ends > starts).all()
    assert (starts[1:] > ends[:-1]).all()
    assert ((depth(zip(starts, ends, strict=True)) > 0) == (depth(spans) > 0)).all()


@given(pairs)
def test_gaps_and_union_cover_a_window(spans):
    starts, ends = iv.gaps(*columns(spans), window=(5, 50))
    idle = depth(spans)[5:50] == 0
    assert (depth(zip(starts, ends, strict=True))[5:50] > 0).tolist() == idle.tolist()
    assert (ends - starts).sum() == idle.sum()


@given(pairs, pairs)
def test_union_within_windows_equals_brute_force(spans, windows):
    got = iv.union_within_ns(*columns(spans), *columns(windows))
    assert got.tolist() == [(depth(spans)[s:e] > 0).sum() for s, e in windows]


@given(pairs, pairs)
def test_overlaps_of_two_lists_equal_brute_force(spans, others):
    mine, theirs = iv.merge(*columns(spans)), iv.merge(*columns(others))
    first, second, starts, ends = iv.overlaps(*mine, *theirs)
    found = sorted(zip(*(x.tolist() for x in (first, second, starts, ends)), strict=True))
    assert found == [
        (i, j, max(a, c), min(b, d))
        for i, (a, b) in enumerate(zip(*(x.tolist() for x in mine), strict=True))
        for j, (c, d) in enumerate(zip(*(x.tolist() for x in theirs), strict=True))
        if max(a, c) < min(b, d)
    ]


def test_touching_intervals_are_one_and_nanoseconds_survive_epoch_times():
    epoch = 1_751_410_836_000_000_000
    starts, ends = iv.merge([epoch + 3, epoch], [epoch + 7, epoch + 3])
    assert (starts.tolist(), ends.tolist()) == ([epoch], [epoch + 7])
    assert iv.union_ns([epoch, epoch + 1], [epoch + 1, epoch + 2]) == 2


def test_invalid_intervals_are_never_dropped_silently():
    for function in (iv.merge, iv.union_ns):
        with pytest.raises(ValueError, match=r"^1 intervals "):
            function([0, 5], [2, 4])
    with pytest.raises(ValueError, match="window ends"):
        iv.gaps([0], [1], window=(3, 2))
    with pytest.raises(ValueError, match="whole nanoseconds"):
        iv.union_ns([0.5], [1.0])
    with pytest.raises(ValueError, match="shape"):
        iv.union_ns([0, 1], [1])


def test_nothing_has_no_length():
    assert iv.union_ns([], []) == 0
    assert iv.union_within_ns([], [], [0], [5]).tolist() == [0]
    assert [a.tolist() for a in iv.gaps([], [], window=(1, 4))] == [[1], [4]]
