"""A measuring process under limits that were there before it."""

import subprocess
import sys

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
