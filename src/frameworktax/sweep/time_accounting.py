"""Where the time of a sweep went: stretches of wall time that add up to the whole."""

from __future__ import annotations

from collections.abc import Mapping

from frameworktax.records import Effort

MEASURING = ("blocks", "attribution")
"""What counts as measuring: blocks, with the calibrator's, and runs for attribution."""
ASKED = {
    "block": "blocks",
    "calibrate": "blocks",
    "sample": "attribution",
    "places": "attribution",
    "device": "attribution",
}
"""Requests that are answered one at a time on the host → what they are spent on."""


def itemise(effort: Effort, asked: Mapping[str, int], wall_ns: int) -> dict[str, int]:
    """Return a session's wall time by what it was spent on, ns; the parts add up to it.

    Args:
        effort: of the session.
        asked: wall time that workers were waited for, by request.
        wall_ns: from its begin until its processes had ended.
    """
    found = dict.fromkeys(MEASURING, 0)
    for request, name in ASKED.items():
        found[name] += asked.get(request, 0)
    found["setting up"] = effort.setup_ns
    # Warm-up, pauses that keep blocks of one point apart, pinning, writing records.
    found["between blocks"] = effort.measuring_ns - sum(found[name] for name in MEASURING)
    found["ending"] = wall_ns - effort.setup_ns - effort.measuring_ns
    return found


def overhead(spent: Mapping[str, int], wall_ns: int) -> float | None:
    """Return (wall − measuring) / measuring; None if nothing was measured."""
    measuring = sum(spent.get(name, 0) for name in MEASURING)
    return (wall_ns - measuring) / measuring if measuring else None
