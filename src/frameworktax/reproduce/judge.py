"""Claims against numbers: the verdict is computed from intervals by the study file's own rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from frameworktax.records import Estimate
from frameworktax.reproduce import paper
from frameworktax.reproduce.files import Claim, Part, StudyFile
from frameworktax.reproduce.rows import Row, values
from frameworktax.reproduce.rules import evaluate, told
from frameworktax.reproduce.unjudged import Unjudged

Verdict = Literal["holds", "does-not-hold", "cannot-be-judged"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does-not-hold"
OPEN: Verdict = "cannot-be-judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One part of a claim, for one combination of its ``each``.

    Attributes:
        says: what was computed, in words.
        ours: None where it could not be.
        paper: the same rule on the paper's own numbers; None where it gives none.
        paper_verdict: what the rule says of the paper's own number.
        bounds: what ours was held against.
    """

    says: str
    bounds: str
    verdict: Verdict
    reason: str
    ours: Estimate | None = None
    paper: float | None = None
    paper_verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim with its verdict."""

    id: str
    study: str
    claim: str
    text: str
    where: str
    number: str
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]

    def document(self) -> dict[str, Any]:
        """Return the claim as plain data, ours and the paper's apart."""
        return {
            "id": self.id,
            "study": self.study,
            "text": self.text,
            "verdict": self.verdict,
            "ours": [
                {
                    "what": f.says,
                    "verdict": f.verdict,
                    "bounds": f.bounds,
                    "estimate": None if f.ours is None else _finite(asdict(f.ours)),
                    "reason": f.reason,
                }
                for f in self.findings
            ],
            "paper": {
                "claim": self.claim,
                "where": self.where,
                "number": self.number,
                "computed": [
                    {"what": f.says, "value": f.paper, "verdict": f.paper_verdict}
                    for f in self.findings
                    if f.paper is not None
                ],
            },
            "reason": self.reason,
        }


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in data.items()
    }


def judge(study: StudyFile, ours: Sequence[Row]) -> tuple[Judged, ...]:
    """Return every claim of a study with its verdict.

    Args:
        study: with its rules.
        ours: what was planned, measured or with a reason why not.
    """
    theirs = paper.rows(study.name)
    return tuple(_judged(study, claim, ours, theirs) for claim in study.claim)


def _judged(study: StudyFile, claim: Claim, ours: Sequence[Row], theirs: Sequence[Row]) -> Judged:
    findings = [f for part in claim.part for f in _findings(part, ours, theirs)]
    verdicts = [f.verdict for f in findings]
    verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
    telling = [f for f in findings if f.verdict == verdict]
    reason = "; ".join(dict.fromkeys(f.reason for f in telling[:3]))
    if len(telling) > 3:
        reason += f"; and {len(telling) - 3} more"
    said = paper.claims()[claim.claim]
    return Judged(
        id=claim.id,
        study=study.name,
        claim=claim.claim,
        text=claim.text,
        where=said.where,
        number=claim.number or said.number,
        verdict=verdict,
        reason=reason,
        findings=tuple(findings),
    )


def _findings(part: Part, ours: Sequence[Row], theirs: Sequence[Row]) -> list[Finding]:
    if not part.each:
        return [_finding(part, ours, theirs)]
    wanted = {axis: part.of[axis] for axis in part.each if axis in part.of}
    choices = [
        value if isinstance(value := wanted.get(axis), list) else values(ours, axis)
        for axis in part.each
    ]
    found = []
    for chosen in itertools.product(*choices):
        fixed = dict(zip(part.each, chosen, strict=True))
        to = {**part.to, **{k: v for k, v in fixed.items() if k not in part.to}} if part.to else {}
        one = part.model_copy(
            update={
                "of": {**part.of, **fixed},
                "to": to,
                "says": f"{part.says} ({', '.join(str(v) for v in chosen)})",
            }
        )
        found.append(_finding(one, ours, theirs))
    return found


def _finding(part: Part, ours: Sequence[Row], theirs: Sequence[Row]) -> Finding:
    bounds = bounds_words(part)
    printed: float | None = None
    by_rule: Verdict | None = None
    if theirs:
        try:
            estimate = evaluate(part, theirs)
        except Unjudged:
            pass  # the paper gives no number for this part: the claim's own words stand
        else:
            printed = estimate.value
            if part.rule != "not_measured":
                by_rule = held(estimate, part.above, part.below)
    try:
        found = evaluate(part, ours)
    except Unjudged as reason:
        return Finding(
            says=part.says,
            bounds=bounds,
            verdict=OPEN,
            reason=f"{part.says}: {reason}",
            paper=printed,
            paper_verdict=by_rule,
        )
    verdict = held(found, part.above, part.below)
    return Finding(
        says=part.says,
        bounds=bounds,
        verdict=verdict,
        reason=_reason(part, found, verdict, bounds),
        ours=found,
        paper=printed,
        paper_verdict=by_rule,
    )


def held(x: Estimate, above: float | None, below: float | None) -> Verdict:
    """Return whether an interval lies inside the bounds, outside, or across one of them."""
    low = -math.inf if above is None else above
    high = math.inf if below is None else below
    if low <= x.low and x.high <= high:
        return HOLDS
    if x.high < low or x.low > high:
        return FAILS
    return OPEN


def _reason(part: Part, x: Estimate, verdict: Verdict, bounds: str) -> str:
    text = f"{part.says}: {number_words(x, part.unit)}"
    if verdict == OPEN:
        advice = "too few models" if part.rule.startswith("rank") else "measure longer"
        return f"{text}, across the bound of the claim ({bounds}): {advice}"
    return f"{text}, {'as' if verdict == HOLDS else 'where'} the claim asks for {bounds}"


def number_words(x: Estimate, unit: str = "") -> str:
    """Return ``1.23 (1.10 to 1.36)``; a count stands alone."""
    if x.low == x.high == x.value:
        return plain_words(x.value, unit)
    if math.isinf(x.high):
        return f"at least {plain_words(x.value, unit)} (from {plain_words(x.low, unit)})"
    ends = f"{plain_words(x.low, unit)} to {plain_words(x.high, unit)}"
    return f"{plain_words(x.value, unit)} ({ends})"


def plain_words(value: float, unit: str = "") -> str:
    """Return a number with three significant digits, a share as per cent."""
    if not math.isfinite(value):
        return "no bound"
    return f"{100 * value:.3g} %" if unit == "%" else f"{value:.3g}"


def bounds_words(part: Part) -> str:
    """Return the bounds of a rule in words."""
    said = []
    if part.above is not None:
        said.append(f"at least {plain_words(part.above, part.unit)}")
    if part.below is not None:
        said.append(f"at most {plain_words(part.below, part.unit)}")
    return " and ".join(said) or told(part.of)
