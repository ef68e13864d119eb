"""A measuring process under limits that were there before it."""

import subprocess
import sys
import time

from frameworktax.measure.process import Worker

UNDER_A_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, 1 << 31))
from frameworktax.measure.process import Worker
from frameworktax.measure.worker import Server
worker = Worker("w", memory_bytes=1 << 40)
print(worker.request(Server.memory, 900.0) > 0)
worker.kill()
"""


def test_a_limit_on_memory_that_is_there_already_is_not_raised():
    """As with ``ulimit -d``: raising it is refused, and nothing could be measured."""
    command = [sys.executable, "-c", UNDER_A_LIMIT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_time_in_which_a_worker_is_stopped_does_not_count(monkeypatch):
    worker, now = Worker("test"), [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    try:
        assert worker._left_s(10_000_000_000) == 10
        now[0] = 4_000_000_000
        worker.stop()
        now[0] = 50_000_000_000
        assert worker._left_s(10_000_000_000) == 6
        worker.go_on()
        now[0] = 53_000_000_000
        assert worker._left_s(10_000_000_000) == 3
        assert worker.stopped_ns(0, now[0]) == 46_000_000_000
        assert worker.stopped_ns(49_000_000_000, 51_000_000_000) == 1_000_000_000
        assert worker.stopped_ns(50_000_000_000, 51_000_000_000) == 0
    finally:
        worker.kill()
