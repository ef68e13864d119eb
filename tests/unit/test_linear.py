"""When a latency curve is plainly linear."""

import pytest

from frameworktax import store
from frameworktax.measure.recorder import Recorder
from frameworktax.measure.schedule import stop_linear, waiting, why_linear
from frameworktax.measure.series import PointRun, series_of
from frameworktax.records import Estimate, LeftOut, Point, Workload


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


@pytest.fixture
def watched(tmp_path):
    """Series over batches 1 to 32 that stop when linear, the second the first's twin."""
    points = [
        Point(workload=Workload(model="mlp", batch=2**n, twin=twin), runtime="null")
        for twin in (False, True)
        for n in range(6)
    ]
    series = series_of(tuple(points), tmp_path, tmp_path, None)
    for one in series:
        one.ready = True
    with store.Writer(tmp_path / "store", "session") as writer:
        yield series, Recorder(writer, "session"), tmp_path / "store"


def times(series, **values):
    for name, value in values.items():
        batch = int(name.removeprefix("b"))
        cell = PointRun(series, batch, 0, calls=5, call_ns=value)
        cell.medians = [float(value), value * 1.001, value * 0.999]
        series.runs[batch, 0] = cell


def test_a_watched_curve_goes_on_batch_by_batch_and_stops_with_its_twin(watched):
    (series, twin), recorder, folder = watched

    def open_now():
        return [batch for _, batch in waiting([series], stop_when_linear=True)]

    assert open_now() == [1, 2, 4]
    times(series, b1=1000, b2=1010, b4=1500)
    for one in (series, twin):
        one.open -= {1, 2, 4}
    stop_linear([series, twin], recorder)
    assert open_now() == [8]
    times(series, b8=3000, b16=6000)
    for one in (series, twin):
        one.open -= {8, 16}
    stop_linear([series, twin], recorder)
    assert series.open == twin.open == set()
    left = [r for r in store.read(folder)[0] if isinstance(r, LeftOut)]
    assert [(r.point.workload.batch, r.point.workload.twin) for r in left] == [(32, False)]
    assert left[0].reason.startswith("latency grows as fast as the batch: elasticity 1.00")
