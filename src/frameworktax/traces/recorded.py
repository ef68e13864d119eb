"""What every reader of traces returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from frameworktax.traces.kineto import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A trace from anywhere, and what is known of the file.

    Attributes:
        trace: the events.
        source: ``kineto``, ``xplane`` or ``nsys``.
        records: read in the file, those of no interest included.
        malformed: records that could not be read at all.
        cut: why the file ends early; None if it does not.
        device_names: by number, as far as the file tells.
    """

    trace: Trace
    source: str
    records: int
    malformed: int = 0
    cut: str | None = None
    device_names: Mapping[int, str] = field(default_factory=dict)
