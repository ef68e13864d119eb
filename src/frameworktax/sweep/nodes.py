"""Where jobs can run now: nodes join and leave while a campaign goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from frameworktax.clock import Clock
from frameworktax.sweep.executor import Engine, Platform

REFRESH_S = 5.0
"""How old the engine's answer may be."""
AWAY_S = 600.0
"""How long points wait for a platform without a node: a machine starts anew in less."""


class Places:
    """The platforms of an engine, asked for again as time goes by."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._found: dict[str, Platform] = {}
        self._asked_ns: int | None = None
        self._away_ns: dict[str, int] = {}

    def now(self) -> Sequence[Platform]:
        """Return where jobs can run, as of ``REFRESH_S`` ago at most."""
        now_ns = self._clock.wall_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= REFRESH_S * 1e9:
            self._found = {place.label: place for place in self._engine.platforms()}
            self._asked_ns = now_ns
        return tuple(self._found.values())

    def named(self, label: str) -> Platform:
        """Return a platform that ``now`` named."""
        return self._found[label]

    def gone(self, labels: Iterable[str], say: Callable[[str], None]) -> list[str]:
        """Return those of the labels that have had no node for ``AWAY_S``."""
        self.now()
        now_ns = self._clock.wall_ns()
        found = []
        for label in labels:
            place = self._found.get(label)
            if place is not None and place.slots > 0:
                self._away_ns.pop(label, None)
                continue
            if label not in self._away_ns:
                self._away_ns[label] = now_ns
                say(f"no node of platform '{label}' is there; its points wait for {AWAY_S:.0f} s")
            if now_ns - self._away_ns[label] >= AWAY_S * 1e9:
                found.append(label)
        return found
