"""Colours and shapes of the pictures: one palette for pages, figures and the paper's layouts.

Colours can be distinguished with any of the common colour deficiencies (after Okabe and Ito) and
are legible on white and on near-black. Regimes differ in shape, because colour belongs to the
runtimes.
"""

from __future__ import annotations

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
"""Colours that are reserved for a runtime; every other one gets its colour from its name."""
OTHERS = (
    *("#8c6d31", "#17a2a2", "#c0504d", "#6f7f2f", "#9467bd", "#ad7fa8"),
    *("#2f7f9f", "#b0643c", "#4f8f5b", "#c2568b", "#6a74c9", "#948a1f"),
)
SHAPES = {
    "framework-bound": "circle",
    "mixed": "diamond",
    "compute-bound": "square",
    "memory-bound": "triangle-up",
    "kernel-flat": "triangle-down",
    "not known": "cross",
}
UNKNOWN = "not known"
BANDS = {
    "framework-bound": "#d55e00",
    "mixed": "#e3b341",
    "compute-bound": "#0f7fc4",
    "memory-bound": "#8a6fd1",
    "kernel-flat": "#17a2a2",
}
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

    A familiar runtime has its own in every report; the name of another one leads to a place in
    ``OTHERS``, from which the first free colour is taken.
    """
    taken = {FAMILIAR[name] for name in runtimes if name in FAMILIAR}
    found = []
    for name in runtimes:
        colour = FAMILIAR.get(name)
        if colour is None:
            first = crc32(name.encode()) % len(OTHERS)
            turned = (*OTHERS[first:], *OTHERS[:first], *FAMILIAR.values())
            colour = next((one for one in turned if one not in taken), turned[0])
            taken.add(colour)
        found.append(colour)
    return found
