"""When a latency curve is plainly linear."""

import pytest

from frameworktax.linear import why_linear
from frameworktax.records import Estimate


def curve(half_width: float = 0.02, **values: float) -> dict[int, Estimate]:
    return {
        int(name.removeprefix("b")): Estimate(
            value=value, low=value * (1 - half_width), high=value * (1 + half_width)
        )
        for name, value in values.items()
    }


def test_linear_over_two_doublings():
    reason = why_linear(curve(b1=100, b2=150, b4=300, b8=600))
    assert reason is not None
    # log(588 / 153) / log 4 = 0.971
    assert reason == (
        "latency grows as fast as the batch: elasticity 1.00, at least 0.97, from batch 2 to 8"
    )


@pytest.mark.parametrize(
    "points",
    [
        curve(b2=150, b4=300),  # one doubling
        curve(b1=100, b2=102, b4=110),  # flat
        curve(b1=100, b2=210, b4=380),  # 1.07, then 0.86
        curve(0.1, b1=100, b2=200, b4=400),  # log(360 / 110) / log 4 = 0.855
        curve(b3=300, b4=400, b5=500),  # no doublings
        {},
    ],
)
def test_not_plainly_linear(points):
    assert why_linear(points) is None


def test_dense_grids_are_judged_over_doublings():
    points = curve(**{f"b{n}": 100 * n for n in range(1, 17)})
    assert "from batch 4 to 16" in why_linear(points)
