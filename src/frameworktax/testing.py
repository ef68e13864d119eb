"""Fakes with exact, known times: a clock and a runtime. No sleep, no engine.

clock = FakeClock()
call = FakeLoaded(clock, cost_ns=lambda batch, number: 1_000 * batch).bind(8)
call()                                        # the clock moves on by 8,000 ns
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from frameworktax.clock import Clock
from frameworktax.models.base import Model
from frameworktax.runtimes.base import Call, Loaded, Runtime, Target


class FakeClock(Clock):
    """A clock that moves only by hand.

    Attributes:
        now_ns: wall time.
        busy_ns: CPU time of the calling thread.
        tick_ns: what reading the wall clock costs, to stand for a harness's own cost.
        others_ns: time spent ready to run while others had the processor.
        waited: how often it waited.
        slept: every ``sleep`` asked for, seconds.
    """

    def __init__(self, start_ns: int = 0, tick_ns: int = 0) -> None:
        super().__init__(
            wall_ns=self._wall,
            cpu_ns=lambda: self.busy_ns,
            sleep=self._sleep,
            queued_ns=lambda: self.others_ns,
            waits=lambda: self.waited,
        )
        self.now_ns = start_ns
        self.busy_ns = 0
        self.tick_ns = tick_ns
        self.others_ns = 0
        self.waited = 0
        self.slept: list[float] = []

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # a real clock is frozen, this one is moved by hand

    def work(self, ns: int) -> None:
        """Spend time computing: wall and CPU time pass."""
        self.now_ns += ns
        self.busy_ns += ns

    def wait(self, ns: int) -> None:
        """Spend time waiting: only wall time passes."""
        self.now_ns += ns
        self.waited += 1

    def stolen(self, ns: int) -> None:
        """Lose the processor to a hypervisor: wall time passes, and no queue knows of it."""
        self.now_ns += ns

    def others(self, ns: int) -> None:
        """Stand in the queue while others hold the processor."""
        self.now_ns += ns
        self.others_ns += ns

    def wait_until(self, ns: int) -> None:
        """Wait until a moment; it may have passed."""
        self.now_ns = max(self.now_ns, ns)

    def _wall(self) -> int:
        self.work(self.tick_ns)
        return self.now_ns

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.wait(max(round(seconds * 1e9), int(seconds > 0)))  # no sleep takes no time


class FakeLoaded(Loaded):
    """A loaded runtime whose calls take scripted times on a ``FakeClock``.

    Args:
        clock: what calls move on.
        cost_ns: batch size and number of the call (from 0, per batch size) → host time, ns.
        device: where given, each call also launches a kernel of ``kernel_ns(batch)`` on it.
        first_token_ns: where given, calls generate: when in a call its first token is there,
            likewise by batch size and number of the call.
    """

    def __init__(
        self,
        clock: FakeClock,
        cost_ns: Callable[[int, int], int] = lambda batch, number: 1_000 * batch,
        device: Any = None,
        kernel_ns: Callable[[int], int] = lambda batch: 100 * batch,
        first_token_ns: Callable[[int, int], int] | None = None,
    ) -> None:
        self._clock, self._cost, self._device, self._kernel = clock, cost_ns, device, kernel_ns
        self._first_token = first_token_ns
        self._first_at: int | None = None

    def bind(self, batch: int) -> Call:
        """Return a call that takes its scripted time and returns ones, (batch, 2)."""
        made = 0

        def call() -> np.ndarray:
            nonlocal made
            cost = self._cost(batch, made)
            if self._first_token is not None:
                self._first_at = self._clock.now_ns + self._first_token(batch, made)
            made += 1
            if self._device is None:
                self._clock.work(cost)
            else:
                self._device.launch(host_ns=cost, kernel_ns=self._kernel(batch))
            return np.ones((batch, 2))

        return call

    def outputs(self, result: Any) -> list[np.ndarray]:
        """Return the ones."""
        return [np.asarray(result, np.float64)]

    def first_token_ns(self) -> int | None:
        """Return the clock's reading at the last call's first token."""
        return self._first_at

    def synchronize(self) -> None:
        """Wait for the fake device, if there is one."""
        if self._device is not None:
            self._device.synchronize()


class FakeRuntime(Runtime):
    """A runtime that runs anywhere and computes nothing; see ``FakeLoaded`` for its arguments."""

    name: str = "fake"
    paradigm: ClassVar[str] = "floor"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    precisions: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")
    needs_model: ClassVar[bool] = False
    kv_caches: ClassVar[tuple[str, ...]] = ("none", "dynamic", "static")
    keeps_channels_last: ClassVar[bool] = True

    def __init__(self, loaded: FakeLoaded | None = None, missing: str | None = None) -> None:
        self._loaded = loaded or FakeLoaded(FakeClock())
        self._missing = missing

    def missing(self, target: Target) -> str | None:
        """Return the scripted reason."""
        return self._missing

    def load(self, model: Model | None, target: Target, directory: Path) -> Loaded:
        """Return the scripted loaded runtime."""
        return self._loaded
