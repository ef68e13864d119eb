"""Verdicts for people at a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from frameworktax.reproduce.claims import Judged, estimate_text, value_text
from frameworktax.reproduce.results import Reproduction

if TYPE_CHECKING:
    from rich.console import Console

WORDS = {
    "holds": "holds",
    "does-not-hold": "does not hold",
    "cannot-be-judged": "cannot be judged here",
}
NOT_GIVEN = "none given"
"""What stands in a study file for a number that the paper does not tell."""
STYLES = {"holds": "green", "does-not-hold": "red", "cannot-be-judged": "yellow"}


def print_claims(found: Reproduction, console: Console) -> None:
    """Print every claim with its verdict, ours with the reason, and the paper's."""
    from rich.padding import Padding
    from rich.text import Text

    for study in found.studies:
        console.print()
        console.print(Text(f"{study.file.name}: {study.file.title}", style="bold"))
        for claim in study.claims:
            verdict = Text(WORDS[claim.verdict], style=STYLES[claim.verdict])
            head = Text.assemble(f"{claim.id}  ", verdict, f"  {claim.text}")
            console.print(Padding(head, (0, 0, 0, 2)))
            for said in (claim.reason, f"the paper's: {theirs(claim)}"):
                console.print(Padding(Text(said, style="dim"), (0, 0, 0, 6)))
    console.print()
    console.print(counted(found), soft_wrap=True, markup=False)


def counted(found: Reproduction) -> str:
    """Return how many claims hold, do not, and cannot be judged."""
    counts: Counter[str] = Counter(claim.verdict for claim in found.claims)
    said = ", ".join(f"{words}: {counts[v]}" for v, words in WORDS.items() if counts[v])
    return f"{len(found.claims)} claims; {said}"


def ours(claim: Judged) -> str:
    """Return our numbers, one after the other; where there is none, why."""
    said = [
        estimate_text(f.ours, "%" if "%" in f.bounds else "")
        for f in claim.findings
        if f.ours is not None
    ]
    first = claim.findings[0]
    return "; ".join(said) or first.reason.removeprefix(f"{first.says}: ")


def theirs(claim: Judged) -> str:
    """Return the paper's numbers: by the same rule from its data, and as it words them."""
    said = [
        value_text(f.paper, "%" if "%" in f.bounds else "")
        for f in claim.findings
        if f.paper is not None
    ]
    worded = f"{claim.number} ({claim.where})"
    if not said:
        return worded
    words = f", {claim.number} in words" if claim.number != NOT_GIVEN else ""
    return f"{'; '.join(said)} by its data{words} ({claim.where})"
