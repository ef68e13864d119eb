"""Set-up runs beside measuring, and never at the moment of a timed block.

Whatever starts, loads, exports or compiles is *at work*. While a block is timed or sampled, all
that is at work is stopped (SIGSTOP to its process group) and nothing new begins; a step's time
limit does not count that time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from frameworktax.measure.process import A, AnyWorker, P, Step
from frameworktax.measure.template import Templates


class Gate:
    """Lets set-up pass, except while something is timed.

    Args:
        templates: whose imports are set-up, too.
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._turn = threading.RLock()
        self._at_work: set[AnyWorker] = set()

    def start(self, make: Callable[[], AnyWorker]) -> AnyWorker:
        """Start a process; it is at work until it has answered once."""
        with self._turn:
            worker = make()
            self._at_work.add(worker)
            return worker

    def ask(
        self,
        worker: AnyWorker,
        method: Step[P, A],
        timeout_s: float,
        *arguments: P.args,
        **given: P.kwargs,
    ) -> A:
        """Ask for something that may run beside set-up, but not beside a timed block."""
        with self._turn:
            self._at_work.add(worker)
        try:
            return worker.request(method, timeout_s, *arguments, **given)
        finally:
            with self._turn:
                self._at_work.discard(worker)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Stop what is at work until the end of the block."""
        with self._turn:
            stopped = list(self._at_work)
            for worker in stopped:
                worker.stop()
            self._templates.pause()
            try:
                yield
            finally:
                self._templates.go_on()
                for worker in stopped:
                    worker.go_on()
