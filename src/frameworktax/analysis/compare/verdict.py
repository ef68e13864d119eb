"""The verdict on a point, and on all of them, in a word and in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from frameworktax.analysis.compare.comparison import Change, Gate, Metric, Verdict
from frameworktax.records import Measurement

ERROR = 0.05
"""Chance that noise alone makes any point of a comparison faster or slower."""
SHOWN_DRIFT = 0.01
"""Movement of the host between two sessions from which on it is named."""


def judged(
    change: Change, gate: float | None, margin: float, family: int, after: Measurement
) -> Change:
    """Return the point with its verdict; one without a ratio stays as it is.

    Args:
        change: with ratio and p values.
        gate: regression that fails, a fraction.
        margin: what counts as the same, a fraction.
        family: points compared together.
        after: the side after, for what else is to be said of it.
    """
    estimate = change.ratio
    if estimate is None or change.p_adjusted is None:
        return change
    proven = change.p_adjusted < ERROR
    within = 1 / (1 + margin) <= estimate.low and estimate.high <= 1 + margin
    verdict: Verdict = "same" if within else "cannot tell"
    if proven:
        verdict = "slower" if estimate.value > 1 else "faster"
    state: Gate | None = None
    if gate is not None:
        passed = estimate.high <= 1 + gate or (proven and estimate.value <= 1 + gate)
        beyond = proven and estimate.value > 1 + gate
        state = "regressed" if beyond else "passed" if passed else "undecided"
    said = [f"{signed(estimate.value)} ({signed(estimate.low)} to {signed(estimate.high)})"]
    if verdict == "same":
        said.append(f"within {share(margin)}")
    elif verdict == "cannot tell":
        said.append(_open(change, margin, family))
    said += _beside(change, after)
    return replace(change, verdict=verdict, gate=state, reason="; ".join(said))


def _open(change: Change, margin: float, family: int) -> str:
    if change.p_value is not None and change.p_adjusted is not None and change.p_value < ERROR:
        return f"p {change.p_value:.2g} alone, {change.p_adjusted:.2g} among {family} points"
    advice = "measure both in one session, for longer, or with more --processes"
    if change.method is not None and change.method.startswith("paired"):
        advice = "measure for longer, or with more --processes"
    return f"noise reaches beyond {share(margin)}; {advice}"


def _beside(change: Change, after: Measurement) -> list[str]:
    """Return what the host did meanwhile, and whether the outputs are still right."""
    said = []
    host = change.host_ratio
    if host is not None and abs(host - 1) >= SHOWN_DRIFT:
        taken = "not taken out"
        if change.measured_ratio is not None:
            taken = f"taken out of {signed(change.measured_ratio)} as measured"
        said.append(f"the host itself {signed(host)}, {taken}")
    if after.parity is not None and after.parity.within_tolerance is False:
        said.append(f"its outputs differ from {after.parity.reference}'s")
    return said


def signed(factor: float) -> str:
    """Return a ratio as a signed change: ``+10.3 %``."""
    text = f"{100 * (factor - 1):+.1f}".replace("-", "−")
    return f"{text} %"


def share(margin: float) -> str:
    """Return a margin as text: ``5 %``."""
    return f"{100 * margin:.3g} %"


# --- all of them ----------------------------------------------------------------------------------


def exit_code(changes: Sequence[Change], gate: float | None) -> int:
    """Return 1 for a regression beyond the gate, 3 where something cannot be told, otherwise 0."""
    if any(c.gate == "regressed" for c in changes):
        return 1
    open_ = [
        c.gate == "undecided" if gate is not None else c.verdict == "cannot tell" for c in changes
    ]
    return 3 if any(open_) else 0


def headline(changes: Sequence[Change], metric: Metric, gate: float | None) -> str:
    """Return the whole comparison in a sentence."""
    counts = {v: sum(c.verdict == v for c in changes) for v in ("slower", "faster", "same")}
    counts["cannot be told"] = sum(c.verdict == "cannot tell" for c in changes)
    said = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    points = f"{len(changes)} point{'s' if len(changes) != 1 else ''}"
    text = f"{metric} of {points}: {said}"
    if gate is None:
        return text
    beyond = [c for c in changes if c.gate == "regressed"]
    if beyond:
        worst = max(beyond, key=lambda c: c.ratio.value if c.ratio else 0.0)
        by = f", the worst by {signed(worst.ratio.value)}" if worst.ratio else ""
        return f"{text}; {len(beyond)} beyond the gate of {share(gate)}{by}"
    undecided = sum(c.gate == "undecided" for c in changes)
    if undecided:
        return f"{text}; none is proven beyond the gate of {share(gate)}, {undecided} may be"
    return f"{text}; none beyond the gate of {share(gate)}"
