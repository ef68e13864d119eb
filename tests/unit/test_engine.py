"""What a worker's error answer means to the session."""

import pytest

from frameworktax.errors import UsageError, UserModelError, WorkerError
from frameworktax.measure.process import problem


def test_wrong_use_while_setting_up_is_the_users():
    assert type(problem("load", "usage", "m")) is UsageError
    assert type(problem("describe", "user-model", "m")) is UserModelError


@pytest.mark.parametrize("status", ["usage", "user-model"])
def test_wrong_use_later_is_a_failed_step(status):
    found = problem("bind", status, "m")
    assert isinstance(found, WorkerError) and found.status == "failed"


@pytest.mark.parametrize("status", ["failed", "unavailable", "out-of-memory"])
def test_faults_keep_their_status(status):
    found = problem("block", status, "why")
    assert isinstance(found, WorkerError)
    assert (found.status, str(found)) == (status, "why")
