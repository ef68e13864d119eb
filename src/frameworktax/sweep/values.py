"""Numbers, times and shares as people write them, on the command line and in studies."""

from __future__ import annotations

import re

from frameworktax.errors import UsageError

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}
DIGITS = r"\d{1,18}"


def numbers(text: str, name: str) -> list[int]:
    """Return ``1,2,4`` as numbers and ``1..64`` as the powers of two from 1 to 64.

    Args:
        text: what was written.
        name: what it was written for, for messages: ``--batch``, ``batch``.

    Raises:
        UsageError: no such list, an empty range, a zero.
    """
    found: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(rf"\s*({DIGITS})\s*(?:\.\.\s*({DIGITS})\s*)?", part)
        if span is None:
            raise UsageError(f"{name} '{text}' is no list of numbers; write 1,2,4 or 1..64")
        low, high = int(span[1]), int(span[2] or span[1])
        if span[2] and not 1 <= low <= high:
            raise UsageError(f"{name} {part.strip()} is no range; write it as 1..64")
        if not low:
            raise UsageError(f"{name} 0 cannot be; give 1 or more, as in {name} 1,2,4")
        while low <= high:
            found.append(low)
            low *= 2
    return found


def seconds(text: str, name: str) -> float:
    """Return ``60s``, ``10min``, ``1h`` or ``90`` in seconds; raises UsageError for no time."""
    found = re.fullmatch(rf"\s*({DIGITS}(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if not found or float(found[1]) == 0:
        raise UsageError(f"{name} '{text}' is no time; write 60s, 10min or 1h")
    return float(found[1]) * UNITS[found[2]]


def share(text: str, name: str) -> float:
    """Return ``3%`` or ``0.03`` as a fraction; raises UsageError for no share."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < value < 1:
        meant = value if found and not found[2] and 1 <= value < 100 else 3
        raise UsageError(
            f"{name} '{text}' is no share; write {meant:g}% or {f'{meant / 100:.4f}'.rstrip('0')}"
        )
    return value


def words(text: str) -> list[str]:
    """Return the words of a list with commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


def duration(seconds: float) -> str:
    """Return a time for people: ``40 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
