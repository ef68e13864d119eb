"""Texts of the command line as numbers, seconds and shares."""

from __future__ import annotations

import re
from datetime import timedelta

from frameworktax.errors import UsageError

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def parse_numbers(text: str, option: str) -> list[int]:
    """Return ``1,2,4`` as numbers and ``1..64`` as the powers of two from 1 to 64."""
    numbers: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", part)
        if span:
            low, high = int(span[1]), int(span[2])
            if not 1 <= low <= high:
                raise UsageError(f"{option} {part.strip()} is no range; write it as 1..64")
            numbers += _doubling(low, high)
        elif re.fullmatch(r"\s*\d+\s*", part):
            numbers.append(int(part))
        else:
            raise UsageError(f"{option} '{text}' is no list of numbers; write 1,2,4 or 1..64")
    if not all(numbers):
        raise UsageError(f"{option} 0 cannot be; give 1 or more, as in {option} 1,2,4")
    return numbers


def _doubling(low: int, high: int) -> list[int]:
    found = [low]
    while found[-1] * 2 <= high:
        found.append(found[-1] * 2)
    return found


def parse_seconds(text: str) -> float:
    """Return ``60s``, ``10min``, ``1h`` or ``90`` in seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if not found or float(found[1]) == 0:
        raise UsageError(f"--time-budget '{text}' is no time; write 60s, 10min or 1h")
    return float(found[1]) * UNITS[found[2]]


def parse_share(text: str, option: str = "--until") -> float:
    """Return ``3%`` or ``0.03`` as a fraction."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise UsageError(f"{option} '{text}' is no share; write 3% or 0.03")
    return share


def parse_input(text: str) -> tuple[str, float | None, float | None]:
    """Return ``ragged:20.92,10.18`` as kind, mean and standard deviation; the last two may lack."""
    kind, colon, moments = text.strip().partition(":")
    if not colon:
        return kind, None, None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*,\s*(\d+(?:\.\d+)?)\s*", moments)
    if not found:
        raise UsageError(f"--input '{text}' names no lengths; write ragged:MEAN,SD")
    return kind, float(found[1]), float(found[2])


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_pairs(texts: list[str], option: str) -> dict[str, str]:
    """Return ``before=after`` texts, commas between or one an option, as a mapping."""
    pairs: dict[str, str] = {}
    for text in texts:
        for word in words(text):
            before, sign, after = (part.strip() for part in word.partition("="))
            if not (sign and before and after):
                raise UsageError(f"{option} '{word}' names no pair; write {option} BEFORE=AFTER")
            if pairs.get(before, after) != after:
                raise UsageError(f"{option} pairs '{before}' twice; name each once")
            pairs[before] = after
    return pairs


def parse_age(text: str, option: str) -> timedelta:
    """Return ``30d``, ``12h`` or ``2w`` as a time span."""
    found = re.fullmatch(r"\s*(\d+)\s*([hdw])\s*", text)
    if not found:
        raise UsageError(f"{option} '{text}' is no age; write 12h, 30d or 2w")
    return timedelta(hours=int(found[1]) * {"h": 1, "d": 24, "w": 168}[found[2]])


def parse_size(text: str, option: str) -> int:
    """Return ``2GB``, ``500 MB`` or a number of bytes in bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)B?\s*", text)
    if not found:
        raise UsageError(f"{option} '{text}' is no size; write 2GB or 500MB")
    return int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " "))
