"""Microseconds as text to integer nanoseconds, many at a time and exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frameworktax.traces import kineto

WIDEST = 24
"""Signs of a number that is read as digits; others are read one by one."""
EXACT_BELOW_US = 2.0**41
"""Microseconds below this, as a binary float, still tell every nanosecond: half a unit in the last
place times 1,000, and the rounding of that product, make a quarter of one."""
_MAX_US = 2**62 // 1000

Ns = NDArray[np.int64]
Flags = NDArray[np.bool_]


def from_numbers(values: Sequence[Any]) -> tuple[Ns, Flags] | None:
    """Return nanoseconds, and which of the numbers are a time; None if only the text can tell.

    Args:
        values: integers and floats, microseconds.
    """
    us = np.array(values)
    if us.dtype.kind not in "if":
        return None
    if us.dtype.kind == "i":
        good = np.abs(us) < _MAX_US
        return np.where(good, us, 0) * 1000, good
    good = np.isfinite(us)
    us = np.where(good, us, 0.0)
    if (np.abs(us) >= EXACT_BELOW_US).any():
        return None
    return np.rint(us * 1000).astype(np.int64), good


def from_text(texts: Sequence[bytes]) -> tuple[Ns, Flags]:
    """Return nanoseconds, and which of the texts are a time; digits past those are rounded."""
    signs = np.array(texts, dtype=bytes)
    width = signs.dtype.itemsize
    table = signs.view(np.uint8).reshape(len(texts), width)[:, :WIDEST]
    digit = (table >= 48) & (table <= 57)
    point = table == 46
    # Epoch times have 16 digits before the point; 18 in all still fit 64 bits.
    plain = (digit | point | (table == 0)).all(axis=1) & (point.sum(axis=1) <= 1)
    plain &= digit[:, 0] & (digit.sum(axis=1) <= 18)
    if width > WIDEST:
        plain &= np.char.str_len(signs) <= WIDEST
    value = np.zeros(len(texts), np.int64)
    decimals = np.full(len(texts), -1)
    up = np.zeros(len(texts), bool)
    for column in range(table.shape[1]):
        is_digit = digit[:, column]
        after = (decimals >= 0) & is_digit
        up |= after & (decimals == 3) & (table[:, column] >= 53)
        take = is_digit & (decimals < 3)
        value = np.where(take, value * 10 + table[:, column] - 48, value)
        decimals = np.where(after | point[:, column], decimals + 1, decimals)
    ns = value * 10 ** (3 - np.clip(decimals, 0, 3)) + up
    good = plain & (ns < kineto.LIMIT)
    for row in np.flatnonzero(~plain).tolist():
        single = kineto.text_to_ns(texts[row])
        if single is not None:
            ns[row], good[row] = single, True
    return np.where(good, ns, 0), good
