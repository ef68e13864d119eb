"""The model's latency beside its other tests."""

import model


def test_latency(frameworktax):
    frameworktax.assert_latency_within(*model.build(), gate=0.10, time_budget=20)
