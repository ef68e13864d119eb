"""The errors that formulas have shown, as ``benchmarks/validate.py`` measured them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

FILE = "formula_errors.json"
MEDIAN = 0.05
"""Median relative error up to which a formula is trusted."""
P95 = 0.15
"""The same for the 95th percentile."""
ENOUGH = 5
"""Checks below which nothing is refused: one disturbed measurement is no verdict."""


@cache
def table() -> Mapping[str, Mapping[str, float]]:
    """Return formula → ``{"median", "p95", "n"}`` of the committed validation."""
    text = (resources.files("frameworktax.analysis.whatif") / FILE).read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, float]] = json.loads(text)["formulas"]
    return found


def distrust(shown: Mapping[str, float] | None) -> str | None:
    """Return why a formula is refused: the error it has shown. None where it is trusted.

    A formula that was never checked, or fewer than ``ENOUGH`` times, is not refused; its
    prediction says so.
    """
    if shown is None or shown["n"] < ENOUGH:
        return None
    if shown["median"] <= MEDIAN and shown["p95"] <= P95:
        return None
    return (
        f"this formula was off by {shown['median']:.1%} at the median and {shown['p95']:.1%} at "
        f"the 95th percentile of {shown['n']:.0f} checks; measure, do not predict"
    )
