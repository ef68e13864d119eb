"""Who is innermost when, against brute force."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frameworktax.traces.intervals import _one_by_one, _open_before, nest

any_spans = st.lists(
    st.tuples(st.integers(0, 14), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=9
)


@st.composite
def laminar(draw, low=0, high=16, depth=0):
    """Return intervals inside each other or apart, in no order."""
    spans, at = [], low
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(at, high))
        end = draw(st.integers(start, high))
        spans.append((start, end))
        if depth < 3 and end > start:
            spans += draw(laminar(start, end, depth + 1))
        at = end
    return draw(st.permutations(spans)) if depth == 0 else spans


def columns(spans):
    return (np.array([s for s, _ in spans], np.int64), np.array([e for _, e in spans], np.int64))


def depth(nesting, event):
    around = nesting.parent[event]
    return 0 if around < 0 else 1 + depth(nesting, around)


def check_stretches(spans):
    nesting = nest(*columns(spans))
    stretches = nesting.stretches()
    for moment in range(26):
        opened = [
            i for i in nesting.order if nesting.start_ns[i] <= moment < nesting.end_ns[i]
        ]  # fmt: skip
        deepest = max(opened, key=lambda i: depth(nesting, i), default=-1)
        assert [o for s, e, o in zip(*stretches, strict=True) if s <= moment < e] == [deepest]


@given(any_spans)
def test_innermost_equals_brute_force_whatever_overlaps(spans):
    check_stretches(spans)


@given(laminar())
def test_innermost_equals_brute_force_where_calls_nest(spans):
    check_stretches(spans)


@given(laminar())
def test_calls_that_nest_are_nested_without_a_stack_and_the_same(spans):
    nesting = nest(*columns(spans))
    start, end = (c[nesting.order] for c in columns(spans))
    parent, cut = _one_by_one(start, end)
    assert cut.tolist() == end.tolist()
    assert parent.tolist() == _open_before(start, end).tolist()


@given(any_spans)
def test_each_event_is_around_what_the_stack_says(spans):
    nesting = nest(*columns(spans))
    parent, cut = _one_by_one(*(c[nesting.order] for c in columns(spans)))
    back = np.where(parent >= 0, nesting.order[parent], -1) if spans else parent
    assert nesting.parent[nesting.order].tolist() == back.tolist()
    assert nesting.end_ns[nesting.order].tolist() == cut.tolist()


def test_a_child_that_ends_after_its_parent_is_cut():
    nesting = nest(*columns([(0, 10), (4, 12), (6, 11)]))
    assert nesting.end_ns.tolist() == [10, 10, 10]
    assert nesting.parent.tolist() == [-1, 0, 1]


def test_nearest_is_the_innermost_or_the_outermost_that_is_chosen():
    nesting = nest(*columns([(0, 10), (1, 9), (2, 8), (3, 4), (20, 30)]))
    chosen = np.array([False, True, True, False, False])
    assert nesting.nearest(chosen).tolist() == [-1, 1, 2, 2, -1]
    assert nesting.nearest(chosen, outermost=True).tolist() == [-1, 1, 1, 1, -1]


def test_nothing_nests_in_nothing():
    nesting = nest(*columns([]))
    assert nesting.stretches()[2].tolist() == [-1]
    assert nesting.nearest(np.zeros(0, bool)).tolist() == []
