"""Whether a latency curve has become plainly linear: larger batches then tell nothing new."""

from __future__ import annotations

import math
from collections.abc import Mapping

from frameworktax.records import Estimate
from frameworktax.stats import LINEAR

REASON = "latency grows as fast as the batch"
"""How the reason of a point left out for this begins."""


def why_linear(curve: Mapping[int, Estimate]) -> str | None:
    """Return why larger batches need not be measured, None if they do.

    Over the last two doublings, n₁ to n₂ to n₃, each elasticity is above ``LINEAR``, and so is the
    low end over both together: log(low₃ / high₁) / log(n₃ / n₁).

    Args:
        curve: batch size → latency, ns, with its interval.
    """
    chosen: list[int] = []
    for batch in sorted(curve, reverse=True):
        if not chosen or 2 * batch <= chosen[0]:
            chosen.insert(0, batch)
        if len(chosen) == 3:
            break
    if len(chosen) < 3 or min(curve[b].low for b in chosen) <= 0:
        return None
    first, middle, last = chosen
    steps = [_slope(curve, first, middle), _slope(curve, middle, last)]
    low = math.log(curve[last].low / curve[first].high) / math.log(last / first)
    if min(*steps, low) <= LINEAR:
        return None
    return (
        f"{REASON}: elasticity {_slope(curve, first, last):.2f}, at least {low:.2f}, "
        f"from batch {first} to {last}"
    )


def _slope(curve: Mapping[int, Estimate], small: int, large: int) -> float:
    return math.log(curve[large].value / curve[small].value) / math.log(large / small)
