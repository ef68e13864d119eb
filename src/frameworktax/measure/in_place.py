"""The measuring process's work done in this very process.

Only for a live module that cannot be sent to a process of its own (a class defined inside a
function, a handle to a device): the caller's other threads and caches are then in the numbers,
and a fault of the model is a fault of the caller. Records made so carry the note ``in-place``.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from frameworktax.measure.process import problem
from frameworktax.measure.worker import Server


class InPlace:
    """Answers like ``engines.local.Worker``, from this process; time limits do not apply."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.alive = True
        self.output = SimpleNamespace(total_bytes=0)
        self.spent_ns: dict[str, int] = {}  # kept of workers only
        self._server = Server()

    def request(self, do: str, *, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """Do what is asked, now; raises as ``Worker.request`` does."""
        del timeout_s
        if do == "pin":
            return {}  # pinning the caller's process would outlive the measurement
        answer = self._server.handle({"do": do, **arguments})
        if "ok" in answer:
            return dict(json.loads(json.dumps(answer["ok"])))  # as it comes over the pipe
        raise problem(do, **answer["error"])

    def stop(self) -> None:
        """Do nothing: this process does nothing but what it is asked."""

    def go_on(self) -> bool:
        """Return True: it is still here."""
        return True

    def kill(self) -> None:
        """Let go of the model."""
        self.alive = False
        self._server = Server()
