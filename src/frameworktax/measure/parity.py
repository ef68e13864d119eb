"""Do two runtimes compute the same? Outputs compared relatively, and only where that proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from frameworktax.records import Parity

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOLERANCE: Mapping[str, float] = {
    "float32": 1e-3,
    "float16": 2e-2,
    "bfloat16": 5e-2,
    "int8": 1e-1,
}
"""Largest difference allowed, as a share of the output's largest reference value. Reordered sums
differ by 1e-6 to 1e-4 in float32; computing in bfloat16 where float32 was asked by 5e-3 and more.
int8, compared with eager in float32, gave 0.002 to 0.04: six models, two ways to quantise."""
DEGENERATE_BELOW = 1e-6
"""A reference whose largest value is below this agrees with anything."""
SMALL = 1e-4
"""Share of the largest output as which a smaller one is judged: rounding may have left it."""


REAL = "real"
"""Name of the array that marks real tokens, not padding, in the outputs of ragged input."""
REPEATS = "repeats"
"""Name of the array that says whether a second call gave the same outputs."""


def read_outputs(path: Path) -> list[NDArray[np.generic]]:
    """Return the arrays a worker wrote, in order; nothing is unpickled."""
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[f"arr_{i}"] for i in range(len(set(arrays.files) - {REAL, REPEATS}))]


def read_extra(path: Path, name: str) -> NDArray[np.bool_] | None:
    """Return ``REAL``, (batch, tokens), None for dense input; or ``REPEATS``, None if not known."""
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[name].astype(bool) if name in arrays.files else None


def without_padding(
    outputs: list[NDArray[np.generic]], real: NDArray[np.bool_]
) -> list[NDArray[np.generic]]:
    """Return outputs with what belongs to padded tokens set to zero.

    Outputs of shape (batch, tokens, features …) have such positions; others stay as they are, a
    (batch, features) one among them, of whatever size. These values are never read, and what
    computes no padding has none.
    """
    kept = []
    for array in outputs:
        if array.ndim >= 3 and array.shape[:2] == real.shape:
            array = array.copy()
            array[~real] = 0
        kept.append(array)
    return kept


def compare_files(own: Path, reference: Path, precision: str) -> Parity:
    """Compare the outputs in two files, for ragged input at the real tokens alone.

    Nothing is proven where one of both was not the same from call to call.
    """
    expected, actual = read_outputs(reference), read_outputs(own)
    real = read_extra(reference, REAL)
    if real is not None:
        expected, actual = without_padding(expected, real), without_padding(actual, real)
    found = compare(expected, actual, precision)
    for path, whose in ((reference, "eager's"), (own, "its")):
        if (repeats := read_extra(path, REPEATS)) is not None and not repeats:
            reason = f"{whose} own output differs from call to call"
            return replace(found, within_tolerance=None, reason=reason)
    return found


def compare(
    reference: list[NDArray[np.generic]], other: list[NDArray[np.generic]], precision: str
) -> Parity:
    """Compare outputs with the reference's, element by element; session and point are left empty.

    Whole numbers, such as the ids of generated tokens, must be equal; the first that is not, along
    the last dimension, is named. Infinity, as of a logit that is masked, equals itself.

    Returns:
        ``within_tolerance`` is None where the reference proves nothing: with NaN, with infinity
        where the other has none, all but zero, or empty; False where shapes or values differ.
    """
    exact = bool(reference) and all(_is_whole(a) for a in reference)
    tolerance = 0.0 if exact else TOLERANCE[precision]

    def found(
        largest: float | None, verdict: bool | None, share: float | None = None, **why: str
    ) -> Parity:
        return Parity(
            session="",
            point="",
            reference="eager",
            max_abs_difference=largest,
            max_relative_difference=share,
            tolerance=tolerance,
            within_tolerance=verdict,
            **why,
        )

    def unproven(reason: str, verdict: bool | None = None) -> Parity:
        return found(None, verdict, reason=reason)

    if not reference or not sum(a.size for a in reference):
        return unproven("eager returned no numbers")
    masks = [np.isinf(a) for a in reference]
    pairs = list(zip(reference, other, masks, strict=False))
    is_same = all(a.shape == b.shape and np.array_equal(a[at], b[at]) for a, b, at in pairs)
    if is_same and any(at.any() for at in masks):
        reference = [np.where(at, 0, a) for a, at in zip(reference, masks, strict=True)]
        other = [*(np.where(at, 0, b) for _, b, at in pairs), *other[len(pairs) :]]
    if not all(np.isfinite(a).all() for a in reference):
        return unproven("eager's own output holds NaN or infinity")
    sizes = [float(np.abs(a).max(initial=0)) for a in reference]
    if max(sizes) < DEGENERATE_BELOW:
        return unproven(f"eager's largest output is {max(sizes):.1e}: equality would prove nothing")
    numbers = [n for n, a in zip(sizes, reference, strict=True) if exact or not _is_whole(a)]
    least = max(SMALL * max(numbers), DEGENERATE_BELOW)
    shapes = [a.shape for a in reference], [a.shape for a in other]
    if shapes[0] != shapes[1]:
        return unproven(f"output shapes differ: {shapes[1]} against eager's {shapes[0]}", False)
    worst_difference, worst_share, worst = 0.0, -1.0, ""
    for number, (a, b, size) in enumerate(zip(reference, other, sizes, strict=True)):
        if not a.size:
            continue
        if not np.isfinite(b).all():
            return unproven(f"output {number} holds NaN or infinity, eager's does not", False)
        difference = np.abs(np.subtract(a, b, dtype=np.float64))
        at = np.unravel_index(int(difference.argmax()), difference.shape)
        share = float(difference[at]) / max(size, least)
        if share > worst_share:
            worst_difference, worst_share = float(difference[at]), share
            index = ", ".join(map(str, at))
            worst = f"output {number} [{index}]: {float(b[at]):.6g}, eager {float(a[at]):.6g}"
    wrong = _first_unequal(reference, other)
    is_close = wrong is None and worst_share <= tolerance
    return found(worst_difference, is_close, worst_share, worst=wrong or worst)


def _is_whole(array: NDArray[np.generic]) -> bool:
    return np.issubdtype(array.dtype, np.integer)


def _first_unequal(
    reference: list[NDArray[np.generic]], other: list[NDArray[np.generic]]
) -> str | None:
    """Return where outputs of whole numbers first differ, along their last dimension, or None."""
    for number, (a, b) in enumerate(zip(reference, other, strict=True)):
        if not _is_whole(a) or np.array_equal(a, b):
            continue
        at = min(map(tuple, np.argwhere(a != b).tolist()), key=lambda index: index[::-1])
        found = f"output {number} [{', '.join(map(str, at))}]: {b[at]:.6g}, eager {a[at]:.6g}"
        return f"{found}; {int((a != b).sum())} of {a.size} differ"
    return None
