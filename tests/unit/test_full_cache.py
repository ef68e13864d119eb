"""A cache that takes nothing more ends a session in one line, and is no fault of a point."""

import pytest

from frameworktax import store
from frameworktax.errors import StoreError
from frameworktax.measure.plan import Plan
from frameworktax.measure.session import MeasuringSession
from frameworktax.records import Point, Workload


def test_a_full_cache_is_one_line_that_names_the_remedy(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "scratch-s").touch()  # refuses a folder there, as a full disk does
    plan = Plan(points=(Point(workload=Workload(model="mlp"), runtime="null"),), folder=cache)
    with store.Writer(tmp_path / "store", "s") as writer:
        session = MeasuringSession(plan, writer)
        with pytest.raises(StoreError, match=r"cannot write in the cache .*FRAMEWORKTAX_CACHE"):
            session.run()
    assert store.read(tmp_path / "store")[0] == []
