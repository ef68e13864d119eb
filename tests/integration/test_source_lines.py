"""Which line of Python a sample belongs to: joined by time exactly, and with real samples once."""

import sys
import sysconfig
import threading
import time

import pytest
import torch

from frameworktax.attribution import layers, probe
from frameworktax.attribution.layers import attribute_lines, by_line
from frameworktax.attribution.symbols import JIT, Leaf
from frameworktax.errors import WorkerError

KERNEL, OUTSIDE = Leaf(JIT, ""), ("", 0, "")
A, B = ("a.py", 1, "f"), ("b.py", 2, "g")

needs_samples = pytest.mark.skipif(
    probe() is not None, reason="perf_event_open is not allowed here"
)


def test_a_sample_goes_to_the_first_signal_that_was_handled_after_it():
    """Three samples in a long call into C are handled once, when it has returned."""
    notes = [(100, A), (500, B)]
    ticks = [(90, KERNEL), (110, KERNEL), (300, KERNEL), (499, KERNEL), (501, KERNEL)]
    assert by_line(notes, ticks) == {
        (A, "kernel"): 1,
        (B, "kernel"): 3,
        (OUTSIDE, "kernel"): 1,
    }


@pytest.mark.parametrize(
    ("file", "passed"),
    [
        (torch.nn.modules.linear.__file__, True),
        (time.__name__ + ".py", False),
        (threading.__file__, True),
        (layers.__file__, True),
        ("<frozen importlib>", True),
        (f"{sysconfig.get_path('purelib')}/transformers/models/bert/modeling_bert.py", False),
        ("/home/user/net.py", False),
        ("/usr/src/app/net.py", False),
        ("/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", True),
    ],
)
def test_lines_are_those_of_the_user_and_the_model_library(file, passed):
    assert layers.is_passed(file) is passed


def spin(ns):
    end = time.thread_time_ns() + ns
    while time.thread_time_ns() < end:
        pass


class Net(torch.nn.Module):
    def forward(self):
        spin(300_000)
        spin(900_000)


@needs_samples
def test_lines_hold_what_they_spend():
    found = attribute_lines(Net(), duration_ns=600_000_000)
    counts = {}
    for file, number, function, _, count in found["lines"]:
        assert file.endswith("test_source_lines.py") or count < 20
        counts[function] = counts.get(function, 0) + count
        if function == "spin":
            assert number - sys.modules[__name__].spin.__code__.co_firstlineno in (0, 1, 2, 3)
    assert counts["spin"] > 0.8 * sum(counts.values())
    assert found["lost"] == 0


@needs_samples
def test_signals_are_the_main_threads():
    raised = []

    def elsewhere():
        try:
            attribute_lines(Net(), duration_ns=1_000_000)
        except WorkerError as error:
            raised.append(error.status)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert raised == ["unavailable"]
