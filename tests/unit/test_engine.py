"""What a worker's failure means to the session."""

import pytest

from frameworktax.errors import UsageError, UserModelError, WorkerError
from frameworktax.measure.process import problem
from frameworktax.measure.protocol import Bind, Describe, Failure, Load, TimeBlock
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

WORKLOAD = Workload(model="m")
LOAD = Load(workload=WORKLOAD, runtime="fake", target=Target(), folder="")
DESCRIBE = Describe(workload=WORKLOAD, device="cpu", batches=(1,), limit_s=1.0)
BIND = Bind(batch=1, limit_ns=1)


def test_wrong_use_while_setting_up_is_the_users():
    assert type(problem(LOAD, Failure(status="usage", message="m"))) is UsageError
    assert type(problem(DESCRIBE, Failure(status="user-model", message="m"))) is UserModelError


@pytest.mark.parametrize("status", ["usage", "user-model"])
def test_wrong_use_later_is_a_failed_step(status):
    found = problem(BIND, Failure(status=status, message="m"))
    assert isinstance(found, WorkerError) and found.status == "failed"


@pytest.mark.parametrize("status", ["failed", "unavailable", "out-of-memory"])
def test_faults_keep_their_status(status):
    found = problem(TimeBlock(batch=1, calls=5), Failure(status=status, message="why"))
    assert isinstance(found, WorkerError)
    assert (found.status, str(found)) == (status, "why")
