"""One job on a node, in a process of its own: what the local engine does, told as JSON lines.

    python -m frameworktax.sweep.node STORE < ORDER

ORDER is one line of JSON: ``job`` (``engines.base.Job``), ``command``, ``allow_code``. The job's
session is a shard in STORE. Standard output gets a line for each of: ``say`` (for people),
``phase``, ``began`` once the host is ours, and at the end ``done`` or ``failed``. SIGTERM ends it
as Ctrl-C ends a sweep; so does the end of its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from frameworktax import models
from frameworktax.errors import FrameworktaxError, WorkerError
from frameworktax.host.lock import host_lock
from frameworktax.measure.reporter import Reporter
from frameworktax.store import decode
from frameworktax.sweep.executor import Done, Job
from frameworktax.sweep.local import LocalEngine

PR_SET_PDEATHSIG = 1
PATIENCE_S = 12
"""After this long the kernel ends what was told to end and has not."""


class Messages(Reporter):
    """A reporter whose words are lines of JSON."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, **message: Any) -> None:
        """Write one message."""
        os.write(self._descriptor, json.dumps(message).encode() + b"\n")

    def phase(self, text: str) -> None:
        """Say that a new phase begins."""
        self.tell(phase=text)

    def records(self, shard: Path, *, ended: bool = False) -> None:
        """Say nothing: the records themselves go home."""

    def say(self, text: str) -> None:
        """Pass on a line for people."""
        self.tell(say=text)


def run(order: dict[str, Any], folder: Path, messages: Messages) -> None:
    """Carry out one job into a store.

    Raises:
        FrameworktaxError: it could not be begun, or its records not be written.
    """
    job: Job = decode(Job, order["job"])
    command = tuple(map(str, order["command"]))
    code = [p.workload.model for p in job.points if models.is_user_model(p.workload.model)]
    if code and not order["allow_code"]:
        raise FrameworktaxError(f"the job names code of a user, {code[0]}, and may run none")
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        except PermissionError:
            messages.say(
                "measures at a lower priority, as Ray starts its workers nice; "
                "start the node with RAY_worker_niceness=0"
            )
    engine = LocalEngine(folder, "cpu", messages, command)
    with host_lock(command, messages.say):
        messages.tell(began=True)
        engine.submit(job)
        messages.tell(done=told(next(engine.completed())))


def told(done: Done) -> dict[str, Any]:
    """Return how a job ended as plain data; ``engines.ray.ended`` reads it."""
    error = done.error and {
        "kind": type(done.error).__name__,
        "message": str(done.error),
        "status": done.error.status if isinstance(done.error, WorkerError) else None,
    }
    return {
        "session": done.session,
        "wall_ns": done.wall_ns,
        "spent_ns": dict(done.spent_ns),
        "error": error,
    }


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(PATIENCE_S)
    raise KeyboardInterrupt


def main() -> int:
    """Read the order, measure, return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    messages = Messages(os.dup(1))
    os.dup2(2, 1)  # nothing that prints may break a message
    order = json.loads(sys.stdin.readline())
    try:
        run(order, Path(sys.argv[1]), messages)
    except FrameworktaxError as error:
        messages.tell(failed=str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
