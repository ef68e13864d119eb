"""Ragged input: sentences of drawn lengths, padded to one length, marked by a mask.

The lengths of a batch follow the distribution of largest entropy among all on 1 … L with the mean
and standard deviation asked for: p(k) ∝ exp(a k + b k²). It assumes nothing but these two
moments, has them exactly after truncation at the padded length L, and exists wherever any
distribution of that kind does. The default moments are those of the Penn Treebank's sentences,
which the paper pads to 128.

Sentence i of n has the length at the quantile (i + ½) / n, in an order that is shuffled by a seed:
every batch stands for the whole distribution as well as n sentences can, so that a curve over
batch sizes does not show the luck of the draw. A single sentence has the median length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from frameworktax.errors import UsageError
from frameworktax.models.base import SEED, Inputs, Model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from frameworktax.records import Workload

MEAN, SD = 20.92, 10.18
"""Tokens of a Penn Treebank sentence, as the paper gives them (arXiv:2302.06117)."""
LEAST_SD = 1.0
"""Below it the distribution is two neighbouring lengths, and its parameters run off."""
STEPS = 200
EXACT = 1e-9
"""How far the moments may be off, in standard deviations."""
ROUNDING = 1e-13
IDS, MASK = "input_ids", "attention_mask"


def moments(workload: Workload) -> tuple[float, float]:
    """Return the mean and standard deviation of a workload's lengths, tokens."""
    mean, sd = workload.length_mean, workload.length_sd
    return (MEAN if mean is None else mean), (SD if sd is None else sd)


def check(mean: float, sd: float, length: int) -> None:
    """Raise UsageError for moments that no lengths from 1 to ``length`` have.

    The bound is Bhatia and Davis's: sd² < (mean − 1)(length − mean).
    """
    if not 1 < mean < length:
        raise UsageError(
            f"--input ragged:{mean:g},{sd:g}: the mean must lie between 1 and the padded length "
            f"{length}; choose another mean, or another --length"
        )
    if not (sd >= LEAST_SD and sd * sd < (mean - 1) * (length - mean)):
        most = ((mean - 1) * (length - mean)) ** 0.5
        raise UsageError(
            f"--input ragged:{mean:g},{sd:g}: lengths from 1 to {length} with mean {mean:g} have a "
            f"standard deviation between {LEAST_SD:g} and {most:.4g}; choose one there"
        )


def distribution(mean: float, sd: float, length: int) -> NDArray[np.float64]:
    """Return the probabilities of the lengths 1 … ``length``.

    Newton's method on the convex dual, in z = (k − mean) / sd: minimise
    log Σ exp(a z + b z²) − b, halving steps that do not descend.

    Raises:
        UsageError: no such lengths have these moments.
    """
    import numpy as np

    check(mean, sd, length)
    z = (np.arange(1, length + 1) - mean) / sd
    features, wanted = np.stack([z, z * z]), np.array([0.0, 1.0])

    def dual(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        energy = theta @ features
        weights = np.exp(energy - energy.max())
        total = weights.sum()
        return float(np.log(total) + energy.max() - theta @ wanted), weights / total

    theta = np.array([0.0, -0.5])  # the normal density of these moments; truncation shifts it
    value, p = dual(theta)
    for _ in range(STEPS):
        reached = features @ p
        if np.abs(reached - wanted).max() < EXACT:
            return p
        deviation = features - reached[:, None]
        step = np.linalg.solve((deviation * p) @ deviation.T, reached - wanted)
        share = 1.0
        tried, weights = dual(theta - step)
        while tried > value + ROUNDING * abs(value) and share > EXACT:
            share /= 2
            tried, weights = dual(theta - share * step)
        theta, value, p = theta - share * step, tried, weights
    raise UsageError(
        f"--input ragged:{mean:g},{sd:g}: no distribution found; choose a smaller deviation"
    )


def lengths(batch: int, mean: float, sd: float, length: int) -> NDArray[np.int64]:
    """Return the lengths of a batch, tokens, shape (batch,); the same in every process.

    Raises:
        UsageError: no lengths from 1 to ``length`` have these moments.
    """
    import numpy as np

    upto = np.cumsum(distribution(mean, sd, length))
    at = (np.arange(batch) + 0.5) / batch
    drawn = 1 + np.searchsorted(upto, at * upto[-1])
    return np.random.default_rng(SEED).permutation(drawn).astype(np.int64)


def apply(model: Model, mean: float, sd: float, nominal: int | None = None) -> Model:
    """Return the model with ragged inputs.

    Args:
        model: takes ``input_ids`` and an ``attention_mask`` of the same shape, (batch, length), by
            name; its dense sentences are cut to the drawn lengths and padded.
        mean: of the lengths, tokens.
        sd: their standard deviation.
        nominal: padded length that the moments are for; a model with fewer tokens (a twin) gets
            lengths scaled down. None: the model's own.

    Raises:
        UsageError: the model takes no mask, or no lengths have these moments.
    """
    import numpy as np
    import torch

    given = model.inputs(1).kwargs
    mask, ids = given.get(MASK), given.get(IDS)
    if mask is None or ids is None or mask.dim() != 2 or mask.shape != ids.shape:
        raise UsageError(
            f"--input ragged: {type(model.module).__name__} takes no {IDS} with an {MASK} of the "
            "same shape (batch, length) by name, so padding cannot be marked; leave out --input"
        )
    padded = int(mask.shape[1])
    whole = nominal or padded
    check(mean, sd, whole)
    # Less than 0 stands for none; its neighbour must be in the vocabulary, whose last id it may be.
    pad = max(getattr(getattr(model.module, "config", None), "pad_token_id", None) or 0, 0)
    neighbour = pad - 1 if pad else 1

    def real(batch: int) -> NDArray[np.bool_]:
        drawn = lengths(batch, mean, sd, whole)
        upto = drawn if padded == whole else -(-drawn * padded // whole)
        is_real: NDArray[np.bool_] = np.arange(padded) < upto[:, None]
        return is_real

    def inputs(batch: int) -> Inputs:
        dense = model.inputs(batch)
        old: Any = dense.kwargs[IDS]
        kept = torch.from_numpy(real(batch)).to(old.device)
        # Models that number positions from the ids must not meet the padding token in a sentence.
        words = torch.where(old == pad, torch.full_like(old, neighbour), old)
        new = torch.where(kept, words, torch.full_like(old, pad))
        kwargs = {**dense.kwargs, IDS: new, MASK: kept.to(dense.kwargs[MASK].dtype)}
        return Inputs(dense.args, kwargs)

    return replace(model, inputs=inputs, real=real)
