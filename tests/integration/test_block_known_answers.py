"""Code measured in place whose tax is known: all of it, or next to none."""

import numpy as np
import pytest

import frameworktax as ft
from frameworktax.attribution import available_samplers

needs_sampler = pytest.mark.skipif(
    ("perf-event", True) not in [(name, ok) for name, ok, _ in available_samplers()],
    reason="perf_event_open is not allowed here",
)


@needs_sampler
def test_a_loop_of_the_interpreter_is_all_tax():
    with ft.tax("loop") as loop:
        sum(i & 7 for i in range(2_000_000))
    found = loop.result()
    assert found.share.value > 0.95
    assert found.bill_ns["python"] > 0.8 * found.latency.value


@pytest.mark.timing
@needs_sampler
def test_sines_of_large_arrays_are_next_to_none():
    a = np.ones(1_000_000)

    @ft.tax("sines")
    def sines():
        for _ in range(8):
            np.sin(a, out=a)

    for _ in range(8):
        sines()
    found = sines.block.result()
    assert found.calls == 8
    assert found.share.value < 0.1
