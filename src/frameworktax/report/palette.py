"""Colours and shapes of the pictures: one palette for pages, figures and the paper's layouts.

Colours can be distinguished with any of the common colour deficiencies (after Okabe and Ito) and
are legible on white and on near-black. Regimes differ in shape, because colour belongs to the
runtimes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from zlib import crc32

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"

FAMILIAR = {
    "eager": "#7b8494",
    "inference-mode": "#b8860b",
    "torchscript": "#a05a8c",
    "torchscript-frozen": "#cc79a7",
    "inductor": "#0f7fc4",
    "aot-inductor": "#45b0e6",
    "onnxruntime": "#009e73",
    "openvino": "#d55e00",
    "cuda-graph": "#8a6fd1",
    "onnxruntime-cuda": "#5fae2e",
}
"""Colours that are reserved for a runtime; every other one gets one that is unlike these."""
OTHERS = (
    *("#8c6d31", "#17a2a2", "#c0504d", "#6f7f2f", "#9467bd", "#ad7fa8"),
    *("#2f7f9f", "#b0643c", "#4f8f5b", "#c2568b", "#6a74c9", "#948a1f"),
)
UNLIKE = 100
"""Distance from which two colours are not taken for each other as lines of a picture."""
SHAPES = {
    "framework-bound": "circle",
    "mixed": "diamond",
    "compute-bound": "square",
    "memory-bound": "triangle-up",
    "kernel-flat": "triangle-down",
    "not known": "cross",
}
UNKNOWN = "not known"
LINE_COLOURS = {
    "kernel": ("#3f6fa8", "#ffffff"),
    "dispatch": ("#e0702a", "#1a1a1a"),
    "python": ("#f2b134", "#1a1a1a"),
    "allocator": ("#d98cb3", "#1a1a1a"),
    "runtime": ("#b5483a", "#ffffff"),
    "threading": ("#a98467", "#1a1a1a"),
    "system": ("#7a57a0", "#ffffff"),
    "launch": ("#d9c83c", "#1a1a1a"),
    "device_gap": ("#7fb0b8", "#1a1a1a"),
    "wait": ("#9aa3ad", "#1a1a1a"),
    "remainder": ("#cfd4da", "#1a1a1a"),
}
"""Line of the breakdown → (fill, text on it): kernel time is cool, what is paid on top is warm."""
VERDICTS = {"slower": "#d55e00", "faster": "#009e73", "same": "#7b8494", "cannot tell": "#b8860b"}


def colours(runtimes: Sequence[str]) -> list[str]:
    """Return a colour for each runtime, all different as long as there are enough.

    A familiar runtime has its own in every report. Another one gets the first of ``OTHERS`` that is
    ``UNLIKE`` all that are taken, beginning at a place that its name leads to; if none is, the one
    that is least alike.
    """
    taken = [FAMILIAR[name] for name in runtimes if name in FAMILIAR]
    found = []
    for name in runtimes:
        colour = FAMILIAR.get(name)
        if colour is None:
            first = crc32(name.encode()) % len(OTHERS)
            turned = (*OTHERS[first:], *OTHERS[:first], *FAMILIAR.values())
            away = {one: min((distance(one, t) for t in taken), default=UNLIKE) for one in turned}
            colour = next(
                (c for c in turned if away[c] >= UNLIKE), max(turned, key=away.__getitem__)
            )
            taken.append(colour)
        found.append(colour)
    return found


def distance(a: str, b: str) -> float:
    """Return how different two colours look, from 0 to about 765 for black and white.

    The weighted Euclidean distance "redmean" of https://www.compuphase.com/cmetric.htm.
    """
    one, other = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (a, b))
    red = (one[0] + other[0]) / 2
    weights = (2 + red / 256, 4, 2 + (255 - red) / 256)
    return math.sqrt(sum(w * (x - y) ** 2 for w, x, y in zip(weights, one, other, strict=True)))
