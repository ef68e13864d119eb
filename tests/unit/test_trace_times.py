"""Microseconds to nanoseconds, many at a time: never one off."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from frameworktax.traces import kineto

nanoseconds = st.integers(-(2**60), 2**60)


@given(st.lists(st.integers(-(2**41) * 1000 + 1, 2**41 * 1000 - 1), min_size=1, max_size=20))
def test_every_nanosecond_survives_as_a_float_below_the_border(values):
    found = kineto.from_numbers([float(f"{Decimal(v) / 1000:f}") for v in values])
    assert found is not None
    assert found[0].tolist() == values


def test_a_float_above_the_border_is_left_to_the_text():
    assert kineto.from_numbers([2.0**41 + 0.125]) is None
    assert kineto.from_numbers([1695835542514261, 3])[0].tolist() == [1695835542514261000, 3000]


def test_what_is_no_time_is_told():
    ns, good = kineto.from_text([b"1e3", b"nan", b"-2.5", b"9" * 40, b"4"])
    assert good.tolist() == [True, False, True, False, True]
    assert ns[good].tolist() == [1_000_000, -2_500, 4_000]
    assert kineto.from_numbers([float("nan"), 1.0, float("inf")])[1].tolist() == [
        False,
        True,
        False,
    ]
