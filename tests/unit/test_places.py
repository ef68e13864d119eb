import json
import math
from statistics import stdev

import pytest
from sample_records import to_json

from frameworktax.analysis.places import layers, source_lines
from frameworktax.records import (
    Estimate,
    Measurement,
    Module,
    Places,
    Point,
    Run,
    Workload,
)
from frameworktax.report.json_document import dump, parse
from frameworktax.store.shards import decode_line

LATENCY = Estimate(value=4e6, low=3.9e6, high=4.1e6, n=3)
BILL = {"kernel": 2e6, "python": 1.6e6, "system": 0.1e6, "wait": 0.3e6}
MODULES = (
    Module(path="", type="Net", file="net.py", line=3, calls=10),
    Module(path="a", type="Linear", file="linear.py", line=7, calls=10),
    Module(path="b", type="Linear", file="linear.py", line=7, calls=30),
    Module(path="never", type="Dropout"),
)


def run(process=0, method="module", **more):
    fields = {"calls": 10, "latency_ns": 4_100_000, "modules": MODULES} | more
    return Places(session="s", point="p", process=process, method=method, **fields)


def stretch(spin):
    """Of 100 kernel samples b has 60; python is the model's own but for what ``b`` spins."""
    return (
        (1, "", "kernel", 40),
        (2, "", "kernel", 60),
        (0, "", "python", 40),
        (2, "", "python", spin),
        (-1, "", "python", 10),
    )


def by_path(found):
    return {layer.path: layer for layer in found}


def test_layers_add_up_to_the_breakdown_line_by_line():
    found = layers(LATENCY, BILL, [run(p, ticks=(stretch(30),) * 5) for p in range(3)])
    assert [layer.path for layer in found] == ["", "a", "b", None]
    for line, ns in BILL.items():
        assert sum(layer.bill_ns.get(line, 0.0) for layer in found) == pytest.approx(ns)
    assert sum(layer.time_ns.value for layer in found) == pytest.approx(LATENCY.value)


def test_a_layer_gets_its_share_of_each_line():
    found = by_path(layers(LATENCY, BILL, [run(p, ticks=(stretch(30),) * 5) for p in range(3)]))
    assert found["b"].bill_ns == pytest.approx({"kernel": 1.2e6, "python": 0.6e6})
    assert (found["b"].calls, found["b"].class_, found["b"].line) == (3.0, "Linear", 7)
    # nothing varies between stretches: what is left is the error of 15 times 180 counts, of which
    # the place has a half, and the latency's own ± 2.5 %
    half = LATENCY.value * math.hypot(0.025 * 0.5, 0.5 / math.sqrt(15 * 180))
    assert found["b"].time_ns.low == pytest.approx(1.8e6 - half)
    # no sample shows waiting, and none of these runs sees the operating system
    assert found[None].bill_ns == pytest.approx(
        {"kernel": 0.0, "python": 0.2e6, "system": 0.1e6, "wait": 0.3e6}
    )


def test_operators_split_what_the_layer_has():
    ticks = ((2, "aten::addmm", "kernel", 30), (2, "aten::gelu", "kernel", 10),
             (2, "", "python", 5), (2, "aten::addmm", "dispatch", 9))  # fmt: skip
    found = layers(
        LATENCY, BILL, [run(ticks=(stretch(30),) * 5), run(method="operator", ticks=(ticks,) * 5)]
    )
    b = by_path(found)["b"]
    inside = {one.name: one.bill_ns for one in b.operators}
    assert inside["aten::addmm"] == pytest.approx({"kernel": 0.9e6})
    assert inside["aten::gelu"] == pytest.approx({"kernel": 0.3e6})
    assert inside[""] == pytest.approx({"kernel": 0.0, "python": 0.6e6})
    assert by_path(found)["a"].operators == ()


def test_nothing_is_left_where_operators_have_all_of_a_line():
    """In floats three thirds of 0.7 ms are not 0.7 ms."""
    ticks = tuple((0, f"aten::op{i}", "kernel", 1) for i in range(3))
    run_of = run(method="operator", ticks=(ticks,) * 5)
    for kernel in (0.7e6, 1.1e6, 0.3e6 / 7):
        net, *_ = layers(LATENCY, {"kernel": kernel}, [run_of])
        assert {one.name: one.bill_ns for one in net.operators}[""] == {"kernel": 0.0}


def test_lines_hold_their_share_of_python():
    lines = (
        ("net.py", 9, "forward", "python", 75),
        ("net.py", 9, "forward", "kernel", 50),
        ("net.py", 4, "forward", "python", 25),
        ("net.py", 4, "forward", "kernel", 50),
    )
    found = source_lines(LATENCY, BILL, [run(p, "line", lines=lines) for p in range(3)])
    assert [one.line for one in found] == [9, 4]
    assert found[0].bill_ns == pytest.approx({"kernel": 1e6, "python": 1.2e6})
    assert found[0].time_ns.value == pytest.approx(2.2e6)


def test_without_such_a_run_there_are_none():
    assert layers(LATENCY, BILL, []) == ()
    assert layers(LATENCY, BILL, [run(ticks=((),))]) == ()  # too short for a sample
    assert layers(LATENCY, BILL, [run(ticks=(((1, "", "kernel", 4),),))]) == ()  # or for a share
    few = run(method="line", lines=(("net.py", 4, "forward", "python", 4),))
    assert source_lines(LATENCY, BILL, [few]) == ()
    assert source_lines(LATENCY, BILL, [run(ticks=(stretch(1),))]) == ()


def test_a_record_is_read_back():
    record = run(ticks=(stretch(3),), lines=(("net.py", 9, "forward", "python", 75),))
    assert decode_line(json.dumps(to_json(record)).encode()) == record


def test_a_document_has_them_and_is_read_back():
    found = layers(LATENCY, BILL, [run(ticks=(stretch(30),) * 5)])
    point = Point(workload=Workload(model="m"), runtime="eager")
    document = Run(
        measurements=(
            Measurement(
                workload=point.workload, runtime="eager", paradigm="eager", platform="cpu",
                threads=1, status="ok", layers=found,
            ),
        )
    )  # fmt: skip
    data = dump(document)
    assert data["measurements"][0]["layers"][2]["class"] == "Linear"
    assert parse(data, "it").measurements[0].layers == found


def test_the_interval_is_over_processes_where_there_are_several():
    """Two states of a process: stretches of one agree with each other, and say nothing of that."""
    spins = (10, 30, 60)
    runs = [run(p, ticks=(stretch(spin),) * 5) for p, spin in enumerate(spins)]
    found = by_path(layers(LATENCY, BILL, runs))["b"].time_ns
    assert found.n == 3
    shares = [(60 + spin) / (150 + spin) for spin in spins]
    half = 4.30265 * stdev(shares) / math.sqrt(3) * LATENCY.value
    assert found.high - found.value == pytest.approx(half, rel=0.1)  # and the latency's own
    alone = by_path(layers(LATENCY, BILL, runs[:1]))["b"].time_ns
    assert alone.high - alone.value < half / 5


@pytest.mark.parametrize("change", [{"calls": 0}, {"ticks": (((4, "", "kernel", 1),),)}])
def test_what_no_run_by_place_writes_is_no_record(change):
    line = json.dumps(to_json(run(ticks=(stretch(30),)))).encode()
    assert decode_line(line) is not None
    assert decode_line(json.dumps(to_json(run(**change))).encode()) is None


def test_samples_that_cancel_out_show_no_layer_and_no_line():
    nothing = run(ticks=(((1, "", "kernel", 2), (2, "", "kernel", -2)),))
    assert layers(LATENCY, BILL, [nothing]) == ()
    assert (
        source_lines(LATENCY, BILL, [run(method="line", lines=(("f.py", 1, "f", "python", 0),))])
        == ()
    )
    within = run(ticks=(((1, "", "kernel", 9), (2, "", "kernel", -9), (1, "", "python", 5)),))
    found = by_path(layers(LATENCY, BILL, [within]))
    assert found["a"].bill_ns == {"python": BILL["python"]}
    assert found[None].bill_ns["kernel"] == BILL["kernel"]
