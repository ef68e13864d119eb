from dataclasses import replace

import numpy as np
import pytest

from frameworktax.analysis.estimates import product, scaled, share_interval
from frameworktax.analysis.where import (
    MOST,
    by_operator,
    layer_tax,
    moved,
    numbered,
    tax_ns,
    where,
)
from frameworktax.errors import UsageError
from frameworktax.records import Estimate, Layer, Operator
from frameworktax.stats import mean_interval, t_quantile


def layer(path, python, kernel=0.0, name="Block", half=0.1):
    value = python + kernel
    return Layer(
        path=path, class_=name, file="net.py" if name else None, line=7, calls=1.0,
        time_ns=Estimate(value=value, low=value * (1 - half), high=value * (1 + half), n=3),
        bill_ns={"kernel": kernel, "python": python, "dispatch": 0.0},
    )  # fmt: skip


def stack(spin=0.0):
    """Six blocks of two layers; the third block may spin by itself."""
    found = [layer("", 10.0, name="Net")]
    for i in range(6):
        found.append(layer(f"layers.{i}", 20.0 + (spin if i == 2 else 0.0)))
        found.append(layer(f"layers.{i}.a", 30.0, 50.0, "Linear"))
        found.append(layer(f"layers.{i}.b", 40.0, 50.0, "Linear"))
    return [*found, layer(None, 5.0, name="")]


def test_equal_layers_are_one_place_and_all_places_are_the_tax():
    found = where(stack())
    assert [(one.name, one.tax_ns.value, one.alone) for one in found] == [
        ("layers.0–5.b", 240.0, False),
        ("layers.0–5.a", 180.0, False),
        ("layers.0–5", 120.0, True),
        ("", 10.0, True),
        ("outside the model", 5.0, False),
    ]
    assert sum(one.share for one in found) == pytest.approx(1)
    assert found[0].source == "net.py:7"
    # as all are known to 10 %, that may be what they have in common
    assert found[0].tax_ns.high - 240.0 == pytest.approx(24.0)


def test_a_layer_that_pays_more_than_its_siblings_stands_alone():
    found = {(one.name, one.alone): one.tax_ns.value for one in where(stack(spin=400.0))}
    assert found["layers.2", True] == 420.0
    assert found["layers.0,1,3,4,5", True] == 100.0
    assert sum(found.values()) == pytest.approx(sum(one.bill_ns["python"] for one in stack(400.0)))


def test_a_spread_within_the_intervals_does_not_separate_layers():
    found = [layer(f"l.{i}", 30.0 if i == 2 else 18.0, half=0.6) for i in range(6)]
    assert [one.name for one in where(found)] == ["l.0–5"]


def test_nodes_of_a_graph_that_differ_in_a_number_are_one_place():
    found = [layer(f"/Add_{i}", 20.0, name="Add") for i in range(200)]
    found.append(layer("/MatMul_0", 20.0, name="MatMul"))
    assert [one.name for one in where(found)] == ["/Add_0–199", "/MatMul_0"]


def test_a_name_with_a_sign_is_not_one_with_a_number():
    assert {one.name for one in where([layer("a.#", 1.0), layer("a.1", 1.0)])} == {"a.#", "a.1"}


def test_the_rest_is_one_place():
    found = where([layer(name, 100.0 - i, name=name) for i, name in enumerate("abcdefghijkl")])
    assert len(found) == MOST
    assert found[-1].name == "5 other places"
    assert sum(one.share for one in found) == pytest.approx(1)
    found = where([layer(name, 100.0, name=name) for name in "abcdefghi"])
    assert (len(found), found[-1].name) == (MOST, "2 other places")


def test_a_tax_that_noise_puts_below_zero_has_its_ends_in_order():
    waits = replace(layer("a", 0.0, 100.0), bill_ns={"kernel": 102.0, "wait": -2.0})
    found = layer_tax([waits, layer("b", 50.0)], "a")
    assert found.tax_ns.value == -2.0
    assert found.tax_ns.low == pytest.approx(-2.2) and found.tax_ns.high == pytest.approx(-1.8)
    turned = scaled(Estimate(value=2.0, low=1.0, high=4.0), -0.5)
    assert (turned.low, turned.value, turned.high) == (-2.0, -1.0, -0.5)


def test_no_layers_no_places():
    assert where([]) == []


def test_paths_with_several_numbers():
    assert numbered(["a.0.b.1", "a.1.b.1", "a.3.b.1"]) == "a.0,1,3.b.1"
    assert numbered(["/conv2d/Add_9", "/conv2d/Add_10"]) == "/conv2d/Add_9–10"
    assert numbered([f"Add_{number}" for number in range(0, 20, 2)]) == "Add_0…18"


def test_where_the_tax_changed_between_two_results():
    before = stack()
    after = [layer("", 60.0, name="Net"), *stack()[1:], layer("new", 90.0, name="Extra")]
    found = {one.name: one for one in moved(before, after)}
    assert list(found) == ["new", "Net"]  # all else is equal
    assert (found["new"].before.value, found["new"].change.value) == (0.0, 90.0)
    assert found["Net"].change.low == pytest.approx(50.0 - (6.0**2 + 1.0**2) ** 0.5)
    assert moved(before, []) == []


def drawn(rng, places, processes=3, changed=0.0):
    """Return layers of which each is the mean of processes, with Student's t interval."""
    found = []
    for place in range(places):
        ns = rng.normal(100.0 + (changed if place == 0 else 0.0), 2.0, processes)
        half = t_quantile(0.95, processes - 1) * ns.std(ddof=1) / processes**0.5
        found.append(layer(f"place{place}x", ns.mean(), half=half / ns.mean(), name="Net"))
    return found


@pytest.mark.parametrize("points", [1, 10])
def test_chance_moves_a_place_in_one_of_twenty_comparisons_at_most(points):
    rng, comparisons = np.random.default_rng(5), 200
    wrong = sum(
        any(moved(drawn(rng, 40), drawn(rng, 40), points) for _ in range(points))
        for _ in range(comparisons // points)
    )
    assert wrong <= 0.05 * comparisons / points
    (found,) = moved(drawn(rng, 40), drawn(rng, 40, changed=1e3), points)
    assert found.name == "place0x" and found.change.confidence == 0.95


def test_of_half_widths_what_is_the_latencys_adds_up_and_the_rest_in_squares():
    sure = layer("sure", 1.0, half=0.03)
    first, second = (layer(f"a.{i}", 100.0, half=0.05) for i in range(2))
    (found, _) = where([first, second, sure])
    assert found.tax_ns.high - 200.0 == pytest.approx((6.0**2 + 2 * 4.0**2) ** 0.5)


@pytest.mark.parametrize(("samples", "spread"), [(100_000, 0.03), (3_000, 0.1), (1_000, 0.03)])
def test_the_interval_of_a_place_of_many_layers_covers_what_they_pay(samples, spread):
    rng, layers, processes, runs = np.random.default_rng(7), 12, 5, 300
    shares = np.array([0.4, *[0.6 / layers] * layers])  # of what is outside and of each layer
    held = 0
    for _ in range(runs):
        levels = rng.normal(1_000.0, 1_000.0 * spread, processes)
        latency = mean_interval(levels, "")
        counts = rng.multinomial(samples // processes, shares, processes)
        found = []
        for i, own in enumerate(counts.T.tolist()):
            share = share_interval(own, counts.sum(axis=1).tolist(), "")
            time = product(latency, share, "")
            one = layer(f"layer.{i}" if i else "", time.value, name="Layer" if i else "Net")
            found.append(replace(one, time_ns=time))
        place = where(found)[0]
        assert place.name == "layer.1–12"
        held += place.tax_ns.low <= 600.0 <= place.tax_ns.high
    assert held >= 0.93 * runs


def test_operators_add_up_over_layers_and_to_the_call():
    def operator(name, kernel, dispatch, half):
        ns = kernel + dispatch
        time = Estimate(value=ns, low=ns - half, high=ns + half, n=3)
        return Operator(name=name, time_ns=time, bill_ns={"kernel": kernel, "dispatch": dispatch})

    first = replace(
        layer("a", 50.0),
        operators=(operator("aten::linear", 60.0, 20.0, 8.0), operator("", 0.0, 10.0, 1.0)),
    )
    second = replace(layer("b", 50.0), operators=(operator("aten::linear", 60.0, 20.0, 8.0),))
    outside = layer(None, 30.0)
    rows = {one.name: one for one in by_operator([first, second, outside])}
    assert list(rows) == ["aten::linear", ""]
    assert rows["aten::linear"].kernel_ns == 120.0
    assert rows["aten::linear"].places == 2
    tax = rows["aten::linear"].tax_ns
    # as all layers have 10 % these two have it in common; the tax has its quarter
    assert (tax.value, tax.high) == pytest.approx((40.0, 44.0))
    assert rows[""].tax_ns.value == pytest.approx(10.0 + tax_ns(outside))
    assert by_operator([layer("a", 50.0)]) == []


def test_a_tax_below_zero_has_its_ends_in_order():
    time = Estimate(value=80.0, low=72.0, high=88.0, n=3)
    gap = Operator(name="", time_ns=time, bill_ns={"kernel": 100.0, "device_gap": -20.0})
    (found,) = by_operator([replace(layer("b", 0.0), operators=(gap,))])
    assert (found.tax_ns.low, found.tax_ns.high) == pytest.approx((-22.0, -18.0))


def test_a_layer_pays_with_those_inside_it():
    found = layer_tax(stack(), "layers.2")
    whole = sum(map(tax_ns, stack()))
    assert (found.time_ns, found.tax_ns.value) == (190.0, 90.0)
    assert found.tax_share == pytest.approx(90.0 / whole)
    assert found.tax_share_high - found.tax_share == pytest.approx(0.1 * 90 / whole)
    assert layer_tax(stack(), "").tax_ns.value == pytest.approx(whole - 5.0)  # not what is outside
    with pytest.raises(UsageError, match=r"did you mean 'layers\.3'"):
        layer_tax(stack(), "layer.3")
    with pytest.raises(UsageError, match="as named_modules"):
        layer_tax(stack(), "q")
