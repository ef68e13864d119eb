import math
import random
from dataclasses import replace
from itertools import product
from statistics import stdev

import pytest

from frameworktax.analysis import bill, estimates
from frameworktax.records import BILL, Attribution, Estimate
from frameworktax.stats import mean_interval, process_interval

LATENCY = Estimate(value=4_000_000.0, low=3_960_000.0, high=4_040_000.0, n=3)


def cpu(*samples, off_cpu_ns=0, **more):
    fields = {"latency_ns": 4_080_000, "wall_ns": 1_000_000_000, "calls": 250} | more
    return Attribution(
        session="s", point="p", process=0, method="perf-event",
        off_cpu_ns=off_cpu_ns, samples=samples, **fields,
    )  # fmt: skip


def test_exact_bill_without_noise():
    stretch = {"kernel": 500, "dispatch": 300, "python": 150, "remainder": 50}
    found = bill.from_samples(LATENCY, [cpu(stretch, stretch)], mean_ns=lambda: 4_000_000 / 1.02)
    assert found.method == "program-counter-sampling (perf-event)"
    assert found.lines == pytest.approx(
        {"kernel": 2e6, "dispatch": 1.2e6, "python": 6e5, "wait": 0.0, "remainder": 2e5}
    )
    assert found.kernel.value == 2_000_000
    # the shares do not vary: what is left is the error of 2000 counts, and the latency's own ± 1 %
    error = math.sqrt(0.5 * 0.5 / 2000)
    half = 2e6 * math.hypot(0.01, error / 0.5)
    for part in (found.kernel, found.tax):
        assert (part.low, part.high) == pytest.approx((2e6 - half, 2e6 + half))
    assert (found.share.low, found.share.high) == pytest.approx((0.5 - error, 0.5 + error))
    assert found.inflation == pytest.approx(0.02)


def test_time_off_the_cpu_is_a_line_and_part_of_the_tax():
    stretch = {"kernel": 500, "python": 500}
    found = bill.from_samples(LATENCY, [cpu(stretch, stretch, off_cpu_ns=200_000_000)])
    assert found.lines["wait"] == pytest.approx(800_000)
    assert found.lines["kernel"] == pytest.approx(1_600_000)
    assert found.share.value == pytest.approx(0.6)


def test_lines_add_up_where_time_off_the_cpu_is_known_of_one_process_alone():
    stretch = {"kernel": 500, "python": 500}
    known = cpu(stretch, stretch, off_cpu_ns=200_000_000)
    other = replace(known, process=1, off_cpu_ns=None)
    found = bill.from_samples(LATENCY, [known, other])
    assert found.lines["wait"] == pytest.approx(400_000)
    assert sum(found.lines.values()) == pytest.approx(LATENCY.value)


def test_time_off_the_cpu_that_is_known_of_part_of_a_process_is_not_taken_for_all_of_it():
    stretch = {"kernel": 500, "python": 500}
    known = cpu(stretch, off_cpu_ns=200_000_000)
    found = bill.from_samples(LATENCY, [known, replace(known, off_cpu_ns=None)])
    assert found.lines["wait"] == 0
    assert "no-off-cpu" in [note.code for note in found.notes]


def test_time_in_which_others_held_the_processor_is_nobodys_cost():
    stretch = {"kernel": 500, "python": 500}
    attribution = cpu(stretch, stretch, off_cpu_ns=500_000_000, queued_ns=500_000_000)
    found = bill.from_samples(LATENCY, [attribution])
    assert found.lines["wait"] == 0
    assert found.share.value == pytest.approx(0.5)
    # 0.2 s blocked of the 0.5 s that were the program's own
    attribution = cpu(stretch, stretch, off_cpu_ns=700_000_000, queued_ns=500_000_000)
    found = bill.from_samples(LATENCY, [attribution])
    assert found.lines["wait"] == pytest.approx(0.4 * LATENCY.value)


def test_lines_add_up_to_the_latency_and_foreign_buckets_are_remainder():
    found = bill.from_samples(
        LATENCY,
        [
            cpu(
                {"kernel": 333, "martian": 71, "remainder": 4, "venusian": 3, "python": 7},
                {"kernel": 340, "python": 9},
            )
        ],
    )
    assert math.fsum(found.lines.values()) == pytest.approx(LATENCY.value, abs=1e-6)
    assert found.lines["remainder"] == pytest.approx(4e6 * 78 / 767)
    assert list(found.lines) == [name for name in BILL if name in found.lines]


def test_share_interval_is_student_t_over_stretches():
    found = estimates.share_interval([40, 50, 60], [100, 100, 100], "m")
    half = 4.302652729911275 * 0.1 / math.sqrt(3)
    assert (found.value, found.n) == (0.5, 3)
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half))


@pytest.mark.parametrize(("share", "covered"), [(0.4, 0.9675), (0.2, 0.9519)])
def test_counts_of_two_stretches_that_are_alike_by_chance_are_no_certainty(share, covered):
    same = estimates.share_interval([20, 20], [100, 100], "m")
    error = math.sqrt(0.2 * 0.8 / 200)
    assert (same.low, same.high) == pytest.approx((0.2 - error, 0.2 + error))
    # All pairs of counts that there can be, each as often as it is.
    chances = [math.comb(33, n) * share**n * (1 - share) ** (33 - n) for n in range(34)]
    hits = 0.0
    for parts in product(range(34), repeat=2):
        found = estimates.share_interval(parts, [33, 33], "m")
        hits += (found.low <= share <= found.high) * math.prod(chances[part] for part in parts)
    assert hits == pytest.approx(covered, abs=1e-4)


def two_states(kernel, latency_ns, *, processes=3, slowed=1.02):
    """Samples and timed calls of processes: kernel samples of 1000, ns of a call."""
    attributions, timed = [], {}
    for process in range(processes):
        stretch = {"kernel": kernel[process], "python": 1000 - kernel[process]}
        call_ns = latency_ns[process]
        found = cpu(stretch, stretch, wall_ns=round(250 * call_ns * slowed))
        attributions.append(replace(found, process=process, detail={"gemm": 2 * kernel[process]}))
        timed[process] = call_ns, call_ns
    return attributions, timed


def test_tax_and_share_are_of_a_process_and_their_interval_is_over_processes():
    kernel, latency_ns = (950, 560, 620), (2_000_000, 3_000_000, 4_000_000)
    attributions, timed = two_states(kernel, latency_ns)
    latency = process_interval([[float(ns)] * 3 for ns in latency_ns])
    found = bill.from_samples(latency, attributions, timed)
    taxes = [(1 - k / 1000) * ns for k, ns in zip(kernel, latency_ns, strict=True)]
    expected = mean_interval(taxes, "m")
    assert (found.tax.value, found.tax.low, found.tax.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )
    assert found.tax.n == found.share.n == 3
    assert found.share.value == pytest.approx(sum(taxes) / sum(latency_ns))
    assert found.kernel.value + found.tax.value == pytest.approx(latency.value)
    assert math.fsum(found.lines.values()) == pytest.approx(latency.value)
    assert sum(found.detail.values()) == pytest.approx(found.lines["kernel"])
    # what one process is twice as long in, counts twice as much: residuals T_p − share · L_p
    left = [t - found.share.value * ns for t, ns in zip(taxes, latency_ns, strict=True)]
    half = 4.302652729911275 * stdev(left) / 3e6 / math.sqrt(3)
    assert found.share.high - found.share.value == pytest.approx(half)
    assert not found.notes


def test_each_process_waits_for_itself():
    """2 ms of which a quarter waits and 4 ms of which nothing does: 0.25 of 3 ms in the mean."""
    attributions, timed = two_states((600, 500), (2_000_000, 4_000_000), processes=2, slowed=1.0)
    wall_ns = attributions[0].wall_ns
    attributions[0] = replace(attributions[0], off_cpu_ns=wall_ns // 2, queued_ns=wall_ns // 3)
    latency = Estimate(value=3e6, low=3e6, high=3e6, n=2)
    found = bill.from_samples(latency, attributions, timed)
    assert found.lines == pytest.approx(
        {"kernel": 1.45e6, "python": 1.3e6, "wait": 0.25e6, "remainder": 0.0}
    )
    assert found.kernel.value == pytest.approx(1.45e6)
    assert found.share.value == pytest.approx(1 - 1.45 / 3)
    assert found.detail == pytest.approx({"gemm": 1.45e6})
    # a sampler's own line of waiting is added to, not replaced
    waits = [replace(one, samples=({"wait": 100, "kernel": 900},)) for one in attributions]
    own = (0.75 * 2e6 + 4e6) / 2 * 0.1
    assert bill.from_samples(latency, waits, timed).lines["wait"] == pytest.approx(0.25e6 + own)


def test_where_one_process_was_not_timed_all_count_alike():
    attributions, timed = two_states((800, 400), (2_000_000, 4_000_000), processes=2)
    latency = Estimate(value=3e6, low=3e6, high=3e6, n=2)
    found = bill.from_samples(latency, attributions, {0: timed[0]})
    assert found.lines["kernel"] == pytest.approx(0.6 * 3e6)
    assert found.share.value == pytest.approx(0.4)
    assert found.kernel.value + found.tax.value == pytest.approx(3e6)


def test_samples_of_a_second_sampler_are_left_out():
    stretch = {"kernel": 500, "python": 500}
    other = replace(cpu({"python": 1000}, {"python": 1000}), method="py-spy")
    found = bill.from_samples(LATENCY, [cpu(stretch, stretch), other])
    assert (found.share.value, found.method[-12:]) == (0.5, "(perf-event)")


def test_a_process_sampled_in_another_state_than_it_was_timed_in_is_flagged():
    attributions, timed = two_states((500, 510, 490), (2_000_000,) * 3, slowed=1.04)
    assert not bill.from_samples(LATENCY, attributions, timed).notes
    faster = replace(attributions[1], wall_ns=round(0.90 * attributions[1].wall_ns))
    for one in (faster, replace(faster, wall_ns=round(1.3 * attributions[1].wall_ns))):
        (note,) = bill.from_samples(LATENCY, [attributions[0], one], timed).notes
        assert note.code == "sampler-inflation"


def test_processes_of_which_one_was_slower_and_one_faster_are_not_put_together():
    attributions, timed = two_states((500, 510, 490), (2_000_000,) * 3)
    paces = (1.0, 0.8, 1.3)
    used = [
        replace(one, wall_ns=round(pace * one.wall_ns))
        for one, pace in zip(attributions, paces, strict=True)
    ]
    texts = [note.text for note in bill.from_samples(LATENCY, used, timed).notes]
    assert len(texts) == 2
    assert "1 of 3" in texts[0] and "longer" in texts[0]
    assert "1 of 3" in texts[1] and "shorter" in texts[1]


def test_samples_of_one_of_several_processes_say_so():
    attributions, timed = two_states((500, 510, 490), (2_000_000,) * 3)
    found = bill.from_samples(LATENCY, attributions[:1], timed)
    assert [note.code for note in found.notes] == ["sampled-in-one-process"]
    found = bill.from_samples(LATENCY, attributions[:1], {0: timed[0]})
    assert not found.notes
    # ± 1 % of the latency, and the error of 1,000 of 2,000 samples
    half = 2_000_000 * math.hypot(0.01, math.sqrt(0.25 / 2000) / 0.5)
    for time in (found.kernel, found.tax):
        assert (time.low, time.high) == pytest.approx((2_000_000 - half, 2_000_000 + half))


def test_the_share_covers_processes_in_two_states():
    """Page faults in some processes and not in others: 95 % must mean 95 %, about."""
    rng = random.Random(5)
    hits = pooled = 0
    for _ in range(600):
        slow = [rng.random() < 0.5 for _ in range(5)]
        kernel = [round(rng.gauss(700 if s else 800, 15)) for s in slow]
        ns = [2_300_000 if s else 2_000_000 for s in slow]
        attributions, timed = two_states(kernel, ns, processes=5)
        found = bill.from_samples(LATENCY, attributions, timed).share
        truth = (0.3 * 2.3 + 0.2 * 2.0) / 4.3
        hits += found.low <= truth <= found.high
        stretches = [k for k in kernel for _ in range(2)]
        flat = estimates.share_interval(stretches, [1000] * 10, "pooled")
        pooled += flat.low <= 1 - truth <= flat.high
    assert hits / 600 > 0.90
    assert pooled / 600 < hits / 600 - 0.05  # what ignoring the processes claims


@pytest.mark.parametrize("stretches", [1, 4])
@pytest.mark.parametrize("share", [0, 1])
def test_a_line_of_all_samples_or_none_is_no_certainty(share, stretches):
    found = estimates.share_interval([5 * share] * stretches, [5] * stretches, "m")
    half = 3 / (5 * stretches)
    assert (found.value, found.low, found.high) == pytest.approx(
        (share, share - half, share + half)
    )


@pytest.mark.parametrize("kernels", [0, 1000])
def test_processes_that_saw_kernels_alone_or_none_are_no_certainty(kernels):
    """Though their latencies differ, and the little time for which they wait."""
    attributions, timed = two_states([kernels] * 3, [1_941_000, 2_020_000, 2_203_000], processes=3)
    attributions = [replace(a, off_cpu_ns=a.wall_ns // 10**6 * a.process) for a in attributions]
    found = bill.from_samples(LATENCY, attributions, timed)
    half = 3 / sum(sum(s.values()) for a in attributions for s in a.samples)
    share = found.share if kernels else estimates.one_minus(found.share)
    assert (share.value, share.low, share.high) == pytest.approx((0, -half, half), abs=2e-6)
    time = found.tax if kernels else found.kernel
    ends = (time.low / LATENCY.value, time.high / LATENCY.value)
    assert ends == pytest.approx((-half, half), abs=2e-6)


def test_samples_in_the_operating_system_below_zero_are_no_error():
    """They are CPU time less the samples seen, where only those in user mode are allowed."""
    found = bill.from_samples(LATENCY, [cpu({"kernel": 60, "system": -1}, {"kernel": 61})])
    assert found.share.value == pytest.approx(-1 / 120)
    assert found.share.low == pytest.approx(1 - 121 / 120 - 12.7062 * (1 / 59) / 2)
    assert found.memory.high == pytest.approx(-1 / 120 + 12.7062 * (1 / 59) / 2)
    one = estimates.share_interval([-1], [120], "m")
    assert (one.low, one.high) == pytest.approx((-4 / 120, 2 / 120))
    assert sum(found.lines.values()) == pytest.approx(LATENCY.value)


def test_a_process_whose_samples_come_to_nothing_has_no_share():
    none = cpu({"python": 1, "system": -1})
    assert bill.from_samples(LATENCY, [none]) is None
    other = replace(cpu({"kernel": 50, "python": 50}), process=1)
    assert bill.from_samples(LATENCY, [none, other]).share.value == 0.5


def test_one_stretch_gives_a_binomial_interval_and_says_so():
    found = estimates.share_interval([50], [100], "m")
    assert found.method == "m, binomial"
    assert found.high - found.value == pytest.approx(1.96 * 0.05)


def test_intervals_of_share_and_latency_add_in_squares():
    a = Estimate(value=100.0, low=97.0, high=103.0)
    b = Estimate(value=0.5, low=0.48, high=0.52)
    found = estimates.product(a, b, "m")
    assert found.high - 50 == pytest.approx(50 * math.hypot(0.03, 0.04))
    found = estimates.difference(a, Estimate(value=40.0, low=36.0, high=44.0), "m")
    assert (found.value, found.low, found.high) == (60, 55, 65)
    found = estimates.quotient(Estimate(value=50.0, low=48.0, high=52.0), a, "m")
    assert found.high - 0.5 == pytest.approx(0.5 * math.hypot(0.04, 0.03))


def test_no_samples_no_bill():
    assert bill.from_samples(LATENCY, []) is None
    assert bill.from_samples(LATENCY, [cpu()]) is None
    assert bill.from_samples(LATENCY, [cpu({}, {"kernel": 0})]) is None


def test_what_shakes_the_trust_is_noted():
    stretch = {"kernel": 50, "python": 50}
    shaky = cpu(stretch, stretch, off_cpu_ns=None, calls=220, lost=10)
    codes = {note.code for note in bill.from_samples(LATENCY, [shaky]).notes}
    assert codes == {"samples-lost", "no-off-cpu", "sampler-inflation"}


def test_kernel_detail_is_a_part_of_kernel_time():
    stretch = {"kernel": 500, "python": 500}
    found = bill.from_samples(
        LATENCY, [cpu(stretch, stretch, detail={"gemm": 600, "packing": 400})]
    )
    assert found.detail == pytest.approx({"gemm": 1_200_000, "packing": 800_000})
    assert sum(found.detail.values()) == pytest.approx(found.lines["kernel"])


def test_packing_and_memory_are_shares_of_the_whole_latency():
    stretch = {"kernel": 500, "allocator": 100, "system": 150, "python": 250}
    detail = {"gemm": 500, "copying": 100, "packing": 400}
    found = bill.from_samples(
        LATENCY, [cpu(stretch, stretch, detail=detail, off_cpu_ns=250_000_000)]
    )
    assert found.memory.value == pytest.approx(0.75 * 0.25)
    assert found.packing.value == pytest.approx(0.75 * 0.2)
    half = 1.96 * math.sqrt(0.2 * 0.8 / 2000)
    assert found.packing.high - found.packing.value == pytest.approx(0.75 * half, rel=1e-3)


def test_intervals_reach_to_where_loops_that_only_move_data_are_no_kernels():
    stretch = {"kernel": 500, "runtime": 500}
    latency = Estimate(value=4e6, low=4e6, high=4e6, n=3)
    found = bill.from_samples(
        latency, [cpu(stretch, stretch, detail={"unnamed": 800, "copying": 200})]
    )
    error = math.sqrt(0.5 * 0.5 / 2000) + bill.MISJUDGED
    share = found.share
    assert (share.low, share.value, share.high) == pytest.approx((0.5 - error, 0.5, 0.6 + error))
    assert (found.kernel.low, found.kernel.high) == pytest.approx(
        (4e6 * (0.4 - error), 4e6 * (0.5 + error))
    )
    assert (found.tax.low, found.tax.high) == pytest.approx(
        (4e6 * (0.5 - error), 4e6 * (0.6 + error))
    )
    assert found.lines == pytest.approx(
        {"kernel": 2e6, "runtime": 2e6, "remainder": 0.0, "wait": 0.0}
    )


def test_no_more_is_misjudged_than_was_judged():
    stretch = {"kernel": 500, "runtime": 500}
    latency = Estimate(value=4e6, low=4e6, high=4e6, n=3)
    detail = {"unnamed": 10, "copying": 10}  # of 2000 samples
    plain, found = (
        bill.from_samples(latency, [cpu(stretch, stretch, detail=d)]).share for d in ({}, detail)
    )
    assert plain.low - found.low == pytest.approx(0.01)
    assert found.high - plain.high == pytest.approx(0.01 + 0.005)


def test_intervals_reach_to_where_unknown_code_is_kernels():
    """As without a disassembler: kernels take at least what lies outside of all functions."""
    stretch = {"kernel": 400, "runtime": 100, "remainder": 500}
    latency = Estimate(value=4e6, low=4e6, high=4e6, n=3)
    known, found = (
        bill.from_samples(latency, [cpu(stretch, stretch, detail={"jit": 800, **more})])
        for more in ({}, {"unread": 1000})
    )
    assert found.share.value == pytest.approx(0.6)
    assert found.share.high == known.share.high
    assert found.share.low == pytest.approx(known.share.low - 0.5)
    assert found.kernel.low == known.kernel.low
    assert found.kernel.high == pytest.approx(known.kernel.high + 2e6)
    assert found.tax.low == pytest.approx(known.tax.low - 2e6)
    assert found.detail == pytest.approx({"jit": 1.6e6})


def test_twin_is_the_warm_overhead_and_the_difference_is_signed():
    twin = Estimate(value=500_000.0, low=470_000.0, high=530_000.0, n=3)
    found = bill.from_twin(LATENCY, twin, estimates.quotient(twin, LATENCY, bill.TWIN))
    assert found.method == "width-shrunk-twin"
    assert found.lines == {"kernel": 3_500_000, "runtime": 500_000, "remainder": 0}
    assert found.kernel.high - found.kernel.value == pytest.approx(50_000)
    assert found.share.value == 0.125
    slow = bill.from_twin(twin, LATENCY, estimates.quotient(LATENCY, twin, bill.TWIN))
    assert slow.kernel.value == -3_500_000


def device(kernel_ns, span_ns=(), **more):
    return Attribution(
        session="s", point="p", process=0, method="device-profile", calls=len(kernel_ns),
        wall_ns=1, latency_ns=1, kernel_ns=kernel_ns, span_ns=span_ns, **more,
    )  # fmt: skip


def test_gpu_bill_splits_starvation_and_gaps():
    found = bill.from_device(
        LATENCY,
        [
            device((1_000_000,) * 6, (1_500_000,) * 6, launches=(61,) * 6, kernels=(60,) * 6),
            cpu({"python": 30, "dispatch": 50, "launch": 20, "wait": 900}),
        ],
    )
    # starvation 2.5 ms, shared as 30 : 50 : 20; waiting for the device is not host work
    assert found.lines == pytest.approx(
        {"kernel": 1e6, "dispatch": 1.25e6, "python": 7.5e5, "launch": 5e5,
         "device_gap": 5e5, "remainder": 0.0}
    )  # fmt: skip
    assert found.tax.value == 3_000_000
    assert found.share.value == 0.75
    assert found.span.value == 1_500_000
    assert found.launches == 61
    assert found.notes == ()


def test_beside_a_device_arithmetic_of_the_host_is_dispatch_and_waiting_is_no_launching():
    host = cpu({"kernel": 200, "dispatch": 300, "launch": 500}, calls=10, wall_ns=10_000_000)
    found = bill.from_device(
        LATENCY, [device((1_000_000,) * 6, (2_000_000,) * 6, wait_ns=(400_000,) * 6), host]
    )
    # 0.4 of the host's 1 ms waits inside libcuda: 400 of the 500 samples there
    assert found.lines == pytest.approx(
        {"kernel": 1e6, "dispatch": 2e6 * 500 / 600, "launch": 2e6 * 100 / 600,
         "device_gap": 1e6, "remainder": 0.0},
        abs=1e-6,
    )  # fmt: skip


def test_how_full_the_device_was_is_by_the_whole_latency():
    found = bill.from_device(
        LATENCY, [device((1_000_000,) * 6, sm_active_ns=(800_000,) * 6, warp_ns=(100_000,) * 6)]
    )
    assert found.sm_activity.value == 0.2
    assert found.warp_occupancy.value == 0.025
    assert found.sm_activity.low < 0.2 < found.sm_activity.high
    unknown = bill.from_device(LATENCY, [device((1_000_000,) * 6)])
    assert (unknown.sm_activity, unknown.warp_occupancy) == (None, None)


@pytest.mark.parametrize(("span_ns", "codes"), [(1_003_000, []), (1_001_000, ["gaps-below-floor"])])
def test_gaps_below_what_two_events_take_are_said_to_be(span_ns, codes):
    host = cpu({"dispatch": 10})
    measured = device((1_000_000,) * 6, (span_ns,) * 6, empty_span_ns=2_000)
    found = bill.from_device(LATENCY, [measured, host])
    assert [note.code for note in found.notes] == codes


def test_gpu_bill_without_span_or_host_samples_says_so():
    found = bill.from_device(LATENCY, [device((1_000_000,) * 6, kernels=(60,) * 5 + (59,))])
    assert found.lines == {"kernel": 1_000_000, "remainder": 3_000_000}
    codes = {note.code for note in found.notes}
    assert codes == {"starvation-not-split"}
    assert bill.from_device(LATENCY, [device((1_000_000,) * 5)]) is None


@pytest.mark.parametrize(
    ("samples", "wait_ns", "is_split"),
    [
        ({"python": 4}, 0, False),
        ({"python": 5}, 0, True),
        ({"launch": 2, "python": 8}, 200_000, True),  # 5 % of the latency
        ({"launch": 9, "python": 1}, 900_000, False),
    ],
)
def test_a_few_samples_of_the_host_do_not_split_starvation(samples, wait_ns, is_split):
    host = cpu(samples, calls=10, wall_ns=10_000_000)
    profiled = device((1_000_000,) * 6, wait_ns=(wait_ns,) * 6)  # of 1 ms a call
    found = bill.from_device(LATENCY, [profiled, host])
    assert found.lines.get("python", 0.0) == (3_000_000 if is_split else 0.0)
    assert found.lines["remainder"] == (0.0 if is_split else 3_000_000)
    codes = ["waits-inside"] * (wait_ns > 200_000) + ["starvation-not-split"] * (not is_split)
    assert [note.code for note in found.notes] == codes


@pytest.mark.parametrize(
    ("n", "rank"), [(6, 0), (8, 0), (9, 1), (20, 5), (2000, 955), (100_000, 49_689)]
)
def test_order_statistics_around_the_median(n, rank):
    found = estimates.median_interval(list(range(n)), "m")
    assert (found.low, found.high) == (rank, n - 1 - rank)
