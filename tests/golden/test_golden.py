"""Documents and texts from committed stores stay what they are, byte for byte.

Floats may differ from the ninth digit on: another processor sums in another order, and an older
scipy ends its searches sooner. A document may gain fields.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from cases import CASES, golden, output

NUMBER = re.compile(r"(-?\d+\.\d{6,}(?:e[+-]?\d+)?)")


@pytest.mark.parametrize("name", CASES)
def test_as_committed(name: str) -> None:
    now, then = output(name), golden(name)
    if now == then:
        return
    if name.endswith(".json"):
        (code, document), (golden_code, golden_document) = now.split("\n", 1), then.split("\n", 1)
        assert code == golden_code
        holds(json.loads(document), json.loads(golden_document), name)
    else:
        parts, golden_parts = NUMBER.split(now), NUMBER.split(then)
        assert parts[::2] == golden_parts[::2]
        assert list(map(float, parts[1::2])) == pytest.approx(
            list(map(float, golden_parts[1::2])), rel=1e-8
        )


def holds(now: Any, then: Any, where: str) -> None:
    """Assert that everything of ``then`` is in ``now``; objects may have more fields."""
    if isinstance(then, dict):
        assert isinstance(now, dict), where
        for key, value in then.items():
            assert key in now, f"{where}.{key} is gone"
            holds(now[key], value, f"{where}.{key}")
    elif isinstance(then, list):
        assert isinstance(now, list), where
        assert len(now) == len(then), where
        for index, (new, old) in enumerate(zip(now, then, strict=True)):
            holds(new, old, f"{where}[{index}]")
    elif isinstance(then, float) and isinstance(now, int | float):
        assert now == pytest.approx(then, rel=1e-8, abs=1e-12), where
    else:
        assert now == then, where
