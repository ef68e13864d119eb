import io
import math
import pickle
import re
from dataclasses import asdict, replace
from statistics import stdev

import pytest
import sample_records as data
from rich.console import Console

from frameworktax.analysis import bill, grouping
from frameworktax.analysis.advice import headline
from frameworktax.analysis.document import build
from frameworktax.records import (
    EVERY_THREAD,
    LINEAR_REASON,
    Attribution,
    Effort,
    LeftOut,
    Outcome,
    Point,
    Points,
    Session,
    Subject,
    Workload,
)
from frameworktax.report.render_terminal import print_blocks
from frameworktax.report.run_blocks import run_blocks


@pytest.fixture(scope="module")
def run():
    return build(data.sample_records())


def at(run, runtime, batch=1):
    (found,) = [m for m in run.measurements if (m.runtime, m.workload.batch) == (runtime, batch)]
    return found


def test_latencies_are_the_truth(run):
    for runtime, latencies in data.LATENCY_NS.items():
        for batch, truth in zip(data.BATCHES, latencies, strict=True):
            estimate = at(run, runtime, batch).latency_ns
            assert estimate.value == pytest.approx(truth, abs=1)
            assert estimate.low < truth < estimate.high


def test_every_bill_adds_up_and_agrees_with_kernel_and_tax(run):
    billed = [m for m in run.measurements if m.bill_ns is not None]
    assert len(billed) == 30
    for m in billed:
        assert math.fsum(m.bill_ns.values()) == pytest.approx(m.latency_ns.value, abs=1e-6)
        assert m.kernel_ns.value + m.tax_ns.value == pytest.approx(m.latency_ns.value, abs=1e-6)
        assert m.bill_ns["kernel"] == pytest.approx(m.kernel_ns.value)
        assert m.tax_share.value == pytest.approx(m.tax_ns.value / m.latency_ns.value)


def test_what_no_table_shows_is_computed_when_it_is_asked_for(monkeypatch):
    shown = build(data.sample_records())
    whole = asdict(shown)
    lazy = build(data.sample_records())

    def asked(*_):
        raise AssertionError("computed for a table")

    with monkeypatch.context() as patched:
        patched.setattr(grouping, "samples", asked)
        patched.setattr(bill.SampledBill, "_spent", asked)
        print_blocks(run_blocks(lazy, folded=False), Console(file=io.StringIO(), width=80))
        with pytest.raises(AssertionError, match="computed"):
            asdict(at(lazy, "eager"))
    assert asdict(lazy) == whole
    eager = at(lazy, "eager")
    assert eager.samples_ns and eager.symbols_ns and eager.process_spread is not None
    same = pickle.loads(pickle.dumps(eager)), replace(eager), at(shown, "eager")
    assert all(one == eager and eager == one for one in same)
    assert replace(eager, samples_ns=()) != eager


def test_sampled_and_twin_points_name_their_method(run):
    eager = at(run, "eager")
    assert eager.bill_method == "program-counter-sampling (perf-event)"
    assert eager.tax_share.value == pytest.approx(1 - 0.39 * 0.98)
    assert eager.warm_overhead_ns is None
    assert eager.sampler_inflation == pytest.approx(0.02)
    ort = at(run, "onnxruntime")
    assert ort.bill_method == "width-shrunk-twin"
    assert ort.warm_overhead_ns.value == pytest.approx(130_000)
    assert ort.tax_share.value == pytest.approx(0.065)
    assert "twin-tax" in {n.code for n in ort.notes}


def test_twins_are_no_measurements(run):
    assert not any(m.workload.twin for m in run.measurements)


def test_a_sampled_point_keeps_its_twin_as_the_warm_overhead():
    twin = data.point("eager", twin=True)
    records = data.sample_records()
    records += [Subject(session=data.SESSION, point=twin, paradigm="eager")]
    records += data.blocks(twin, 1_910_000)
    m = at(build(records), "eager")
    assert m.bill_method.startswith("program-counter-sampling")
    assert m.warm_overhead_ns.value == pytest.approx(1_910_000)


def test_regimes(run):
    assert at(run, "eager", 1).regime == "framework-bound"
    assert at(run, "eager", 2).regime == "mixed"
    assert at(run, "inductor", 16).regime == "compute-bound"
    assert at(run, "openvino", 16).regime == "mixed"  # 4 × its twin's share is over 0.15
    assert at(run, "onnxruntime", 16).regime == "compute-bound"


def test_ratio_to_eager_is_paired(run):
    ratio = at(run, "onnxruntime").ratio_to_eager
    assert ratio.value == pytest.approx(2.0 / 4.4, rel=1e-6)
    assert ratio.high - ratio.low < 1e-6  # processes differ by 1 %, their ratios do not
    assert at(run, "eager").ratio_to_eager is None


def test_what_failed_has_a_reason_and_no_numbers(run):
    m = at(run, "aot-inductor")
    assert (m.status, m.reason) == ("crashed", "segmentation fault (signal 11) in load")
    assert m.latency_ns is m.kernel_ns is m.bill_ns is m.regime is None
    assert at(run, "cuda-graph").status == "unavailable"


def test_curves(run):
    (curve,) = [c for c in run.curves if c.runtime == "eager"]
    truth = 4 * 2 ** (math.log(4.84 / 4.8) / math.log(7.2 / 4.8))
    assert curve.free_batch.value == pytest.approx(truth)
    assert (curve.free_batch.low, curve.free_batch.high) == (4, 8)
    assert not curve.free_is_lower_bound
    assert curve.values == (1, 2, 4, 8, 16)
    assert curve.regimes[0] == "framework-bound"
    assert "null" not in {c.runtime for c in run.curves}


def test_floor_and_drift(run):
    rounds = (1.0, 1.01, 1.02, 1.03, 1.01)
    assert run.harness_floor_ns.value == pytest.approx(200)
    assert run.host_drift == pytest.approx(1.96 * stdev(map(math.log, rounds)))
    assert run.environment == data.ENVIRONMENT


def test_headline(run):
    parts = run.headline.split("; ")
    wanted = [r"bert-mini .*\(1 thread\): eager .*\b61\.8 ±0\.7 % .*batch 1", r".*between 4 and 7",
              r"onnxruntime .*\b2\.2 × .*batch 1", r".*\bat most 1\.7 ×"]  # fmt: skip
    assert len(parts) == len(wanted)
    for part, pattern in zip(parts, wanted, strict=True):
        assert re.fullmatch(pattern, part)


def test_a_headline_claims_no_more_than_its_intervals(run):
    eager, fast = at(run, "eager"), at(run, "onnxruntime")
    share = replace(eager.tax_share, value=0.04, low=-0.33, high=0.41)
    wide = replace(fast.ratio_to_eager, value=0.17, low=0.08, high=0.34)
    said = headline([replace(eager, tax_share=share), replace(fast, ratio_to_eager=wide)], ())
    assert "not determined (-33 to 41 %)" in said
    assert "4 %" not in said and "at most" not in said
    assert "2.9 to 12 ×" in said
    unknown = headline([replace(eager, tax_share=None)], ())
    assert "4.4 ms (4.29 ms to 4.51 ms)" in unknown


@pytest.mark.parametrize(
    ("low", "high", "is_bound", "said"),
    [
        (1, 2, False, "; no larger batch is free"),
        (1, 8, False, "; the largest free batch is between 1 and 7"),
        (4, 5, False, "; batch 4 is free"),
        (4, 8, True, "; batch 4 is free"),
        (1, 8, True, "; the largest free batch is not determined"),
        (1, 1.8, False, "; no larger batch is free"),  # of a document of an earlier version
    ],
)
def test_the_headline_says_of_no_batch_size_that_was_not_measured_whether_it_is_free(
    run, low, high, is_bound, said
):
    eager = at(run, "eager")
    curve = next(one for one in run.curves if one.runtime == "eager")
    found = replace(curve.free_batch, value=low, low=low, high=high)
    curve = replace(curve, free_batch=found, free_is_lower_bound=is_bound)
    assert f"{said};" in headline([eager], [curve])


def test_order_of_records_does_not_matter(run):
    turned = build(list(reversed(data.sample_records())))
    assert {m.latency_ns for m in turned.measurements} == {m.latency_ns for m in run.measurements}


def test_nothing_and_only_failures():
    empty = build([])
    assert (empty.measurements, empty.headline) == ((), "nothing was measured")
    point = data.point("eager")
    failed = build(
        [
            Subject(session="s", point=point, paradigm="eager"),
            Outcome(session="s", point=point.key(), process=0, status="timeout", reason="hung"),
        ]
    )
    assert failed.headline == "nothing could be measured"
    assert failed.measurements[0].reason == "hung"


def test_without_kernel_time_there_is_no_regime_and_a_note():
    point = data.point("eager")
    records = [Subject(session="s", point=point, paradigm="eager")]
    m = build(records + data.blocks(point, 1_000_000, session="s")).measurements[0]
    assert m.regime is None
    assert m.bill_ns is None
    assert "no-kernel-time" in {n.code for n in m.notes}


def test_gpu_point():
    run = build(data.gpu_records(4_000_000, (1_000_000,) * 8, (1_200_000,) * 8))
    (m,) = run.measurements
    assert m.bill_method == "device-profile"
    assert (m.kernel_ns.value, m.span_ns.value, m.launches) == (1_000_000, 1_200_000, 61)
    assert m.bill_ns == pytest.approx(
        {"kernel": 1_000_000, "device_gap": 200_000, "remainder": 2_800_000}
    )
    assert m.regime == "framework-bound"
    assert "at most 1.4 ×" in run.headline
    busy = build(data.gpu_records(4_000_000, (3_800_000,) * 8))
    assert busy.measurements[0].regime == "compute-bound"


@pytest.mark.parametrize(
    ("counted", "expected"), [((300, 500), 40.0), ((None, 500), 50.0), ((None, None), None)]
)
def test_page_faults_are_a_mean_over_the_calls_that_were_sampled(counted, expected):
    at = data.point("eager")
    records = [Subject(session=data.SESSION, point=at, paradigm="eager"), *data.blocks(at, 1e6)]
    for process, faults in enumerate(counted):
        found = data.sampled(at, 1e6, {"kernel": 90, "system": 10})
        records.append(replace(found, process=process, calls=10, page_faults=faults))
    (m,) = build(records).measurements
    assert m.page_faults == expected


def on_gpu(runtime, kernel_ns, names):
    """A point's records, its kernels by name."""
    records = data.gpu_records(4_000_000, (kernel_ns,) * 8)
    (at,) = [record.point for record in records if isinstance(record, Subject)]
    mine = replace(at, runtime=runtime)
    made = []
    for record in records:
        if isinstance(record, Subject):
            record = replace(record, point=mine)
        elif not isinstance(record, Session):
            record = replace(record, point=mine.key())
        if isinstance(record, Attribution):
            record = replace(record, kernel_names=names)
        made.append(record)
    return made


@pytest.mark.parametrize(
    ("runtime", "kernel_ns", "names", "noted"),
    [
        ("cuda-graph", 1_800_000, {"softmax": 12, "gemm": 60}, "72 a call instead of 60"),
        ("cuda-graph", 1_010_000, {"softmax": 12, "gemm": 60}, ""),  # as long as eager's
        ("cuda-graph", 1_800_000, {"attention": 12, "gemm": 48}, ""),  # the same ones
        ("cuda-graph", 1_800_000, {}, ""),  # not known
        ("inductor", 1_800_000, {"triton": 12}, ""),  # said to have its own
    ],
)
def test_a_graph_of_other_kernels_than_eagers_is_noted(runtime, kernel_ns, names, noted):
    eager = on_gpu("eager", 1_000_000, {"attention": 12, "gemm": 48})
    run = build([*eager, *on_gpu(runtime, kernel_ns, names)])
    texts = [n.text for n in at(run, runtime).notes if n.code == "other-kernels"]
    assert len(texts) == bool(noted)
    if noted:
        assert noted in texts[0] and "80% more" in texts[0]
    assert "other-kernels" not in {n.code for n in at(run, "eager").notes}


def test_points_that_were_left_out_are_told_together_unless_they_were_measured():
    def left(batch, runtime="eager", twin=False, length=128):
        point = data.point(runtime, batch, twin=twin)
        point = replace(point, workload=replace(point.workload, length=length))
        return LeftOut(session=data.SESSION, point=point, reason="time budget")

    more = [left(64), left(32), left(32, "inductor"), left(1), left(64, twin=True)]
    assert build([*data.sample_records(), *more, left(16, length=512)]).left_out == (
        "bert-mini, eager, length 128, batch 32, 64: time budget",
        "bert-mini, inductor, length 128, batch 32: time budget",
        "bert-mini, eager, length 512, batch 16: time budget",
    )


def test_a_busy_gpu_of_known_peaks_that_moves_weights_is_memory_bound():
    gpu = {"index": 0, "name": "NVIDIA H100 80GB HBM3"}
    at = replace(data.point("eager"), platform="cuda:0")
    at = replace(at, workload=replace(at.workload, precision="float16"))
    kernel = 80_000
    made = []
    other = {"index": 1, "name": "NVIDIA L4"}
    for gpus in (
        [gpu],
        [gpu, {**gpu, "index": 1}],
        [{**gpu, "name": "NVIDIA Unheard-of"}],
        [gpu, other],  # by the bus; CUDA may call either of them cuda:0
        [{**gpu, "mig_mode": "Enabled"}, {**gpu, "index": 1}],
    ):
        records = [
            r
            for r in data.sample_records()
            if not isinstance(r, Subject) and getattr(r, "point", None) is None
        ]
        records[0] = replace(records[0], environment=replace(data.ENVIRONMENT, gpus=tuple(gpus)))
        records.append(
            Subject(
                session=data.SESSION,
                point=at,
                paradigm="eager",
                parameters=110_000_000,
                flops=10**9,
            )
        )
        records += data.blocks(at, kernel / 0.95)
        records.append(
            Attribution(
                session=data.SESSION,
                point=at.key(),
                process=0,
                method="device-profile",
                calls=10,
                wall_ns=10**6,
                latency_ns=90_000,
                kernel_ns=(kernel,) * 10,
                kernels=(5,) * 10,
                copies=(0,) * 10,
                launches=(5,) * 10,
            )
        )
        made.append(build(records).measurements[0].regime)
    assert made == ["memory-bound"] * 2 + ["compute-bound"] * 3


def test_points_of_several_hosts_are_told():
    records = data.sample_records()
    assert "several-hosts" not in {note.code for note in build(records).notes}
    first = next(r for r in records if isinstance(r, Session))
    elsewhere = replace(first.environment, host="elsewhere")
    more = replace(first, session="20990101T000000-0", environment=elsewhere)
    assert "several-hosts" not in {note.code for note in build([*records, more]).notes}
    again = data.point("eager")
    subject = Subject(session=more.session, point=again, paradigm="eager")
    timed = [subject, *data.blocks(again, 4e6, session=more.session)]
    told = {note.code: note.text for note in build([*records, more, *timed]).notes}
    assert told["several-hosts"].startswith("measured on 2 hosts")


@pytest.mark.parametrize(("samples", "is_enough"), [(1, False), (4, False), (5, True)])
def test_a_few_samples_are_no_tax(samples, is_enough):
    """One is a share of 100 % with an interval from −200 to 400 %, and was "mixed"."""
    at = data.point("eager")
    seen = replace(
        data.sampled(at, 4e6, data.SHARES["eager"]), samples=({"kernel": samples},), detail={}
    )
    subject = Subject(session=data.SESSION, point=at, paradigm="eager")
    found = build([data.session(), subject, *data.blocks(at, 4e6), seen])
    (m,) = found.measurements
    assert (m.tax_share is not None, m.regime is not None) == (is_enough, is_enough)
    assert ("too-few-samples" in {note.code for note in m.notes}) is not is_enough
    assert "no-kernel-time" not in {note.code for note in m.notes}


def test_a_twin_of_another_session_is_not_the_points():
    """It may be of another machine, or of a slower hour."""
    records = [r for r in data.sample_records() if not isinstance(r, Attribution)]
    later = "20990101T000000-0"
    twin, point = data.point("onnxruntime", twin=True), data.point("onnxruntime")
    assert at(build(records), "onnxruntime").warm_overhead_ns.value == pytest.approx(130_000)
    records += [
        data.session(later, environment=replace(data.ENVIRONMENT, host="elsewhere")),
        Subject(session=later, point=twin, paradigm="ahead-of-time"),
        *data.blocks(twin, 1_000_000, session=later),
    ]
    m = at(build(records), "onnxruntime")
    assert (m.warm_overhead_ns, m.tax_share) == (None, None)
    records.append(Subject(session=later, point=point, paradigm="ahead-of-time"))
    records += data.blocks(point, 4_000_000, session=later)
    assert at(build(records), "onnxruntime").tax_share.value == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("change", "is_one_kind"), [({"host": "elsewhere"}, True), ({"cpu": "another"}, False)]
)
def test_a_curve_of_two_kinds_of_machines_has_no_free_batch(change, is_one_kind):
    """Of two nodes of one kind it has: a cluster measures on many."""
    elsewhere = replace(data.ENVIRONMENT, **change)
    later = "20261121T100000-bbbb"
    records = [data.session(), data.session(later, environment=elsewhere)]
    for session, batch in ((data.SESSION, 1), (later, 8)):
        at = data.point("eager", batch)
        found = [
            Subject(session=data.SESSION, point=at, paradigm="eager"),
            *data.blocks(at, 1e6 * batch),
        ]
        records += [replace(record, session=session) for record in found]
    (curve,) = build(records).curves
    assert curve.values == (1, 8)
    assert (curve.free_batch is not None) == is_one_kind
    assert [slope is not None for slope in curve.elasticity] == [is_one_kind] * 2


@pytest.mark.parametrize(
    ("later", "is_known"), [(data.SESSION, True), ("20261121T100000-b", False)]
)
def test_a_batch_of_another_session_is_free_or_not_as_far_as_sessions_are_alike(later, is_known):
    """13 % of latency, known to 0.2 % in each session, may be the host's."""
    records = [data.session(name) for name in dict.fromkeys((data.SESSION, later))]
    for session, batch, ns in ((data.SESSION, 1, 1e6), (later, 2, 1.13e6)):
        at = data.point("eager", batch)
        records.append(Subject(session=session, point=at, paradigm="eager"))
        records += data.blocks(at, ns, session=session, processes=(0.999, 1.0, 1.001))
    (curve,) = build(records).curves
    assert curve.free_is_lower_bound is not is_known
    assert curve.free_batch.low == 1


def test_the_tools_own_tax_is_over_all_sessions_and_shown_with_everything():
    records = data.sample_records()
    assert build(records).own_tax is None
    for session, calls_ns in (("a", 30), ("b", 40)):
        records.append(
            Effort(session=session, wall_ns=100, setup_ns=40, measuring_ns=50, calls_ns=calls_ns)
        )
    run = build(records)
    own = run.own_tax
    assert (own.wall_ns, own.setup_ns, own.measuring_ns, own.calls_ns) == (200, 80, 100, 70)
    assert own.share == pytest.approx(0.65)
    for full in (False, True):
        out = io.StringIO()
        print_blocks(run_blocks(run), Console(file=out, width=80), full=full)
        rows = [line.split() for line in out.getvalue().splitlines()]
        assert (["own", "tax", "65", "%"] in rows) is full


def test_points_asked_for_and_measured():
    records = data.sample_records()
    before = build(records).points  # 30 measured, one crashed, one that is unavailable
    assert before == Points(asked=31, measured=30)
    records += [
        LeftOut(session=data.SESSION, point=data.point("openvino", batch), reason=reason)
        for batch, reason in ((32, "the time budget was spent"), (64, f"{LINEAR_REASON}: 0.99"))
    ]
    records.append(
        LeftOut(session=data.SESSION, point=data.point("openvino", 32, twin=True), reason="time")
    )
    assert build(records).points == Points(asked=32, measured=30)
    asked = [data.point("eager", batch) for batch in (1, 32)]
    assert build(records, asked=asked).points == Points(asked=33, measured=30)
    assert build([]).points is None
    floor = Point(workload=Workload(model="null"), runtime="null")
    assert floor in {r.point for r in records if isinstance(r, Subject)}  # beside everything
    assert build(records, asked=[floor]).points == Points(asked=33, measured=31)


def on_threads(threads, environment=data.ENVIRONMENT, platform="cpu", method="perf-event"):
    """Return the document of eager and a faster runtime, both sampled, on so many threads."""
    records = [data.session()]
    records[0] = replace(records[0], environment=environment)
    for runtime, latency in (("eager", 1_000_000), ("torchscript-frozen", 500_000)):
        point = replace(data.point(runtime), threads=threads, platform=platform)
        stretch = {"kernel": 500, "threading": 400, "python": 100}
        records += [
            Subject(session=data.SESSION, point=point, paradigm="eager"),
            *data.blocks(point, latency),
            Attribution(
                session=data.SESSION, point=point.key(), process=0, method=method,
                calls=1, wall_ns=10**9, latency_ns=latency, off_cpu_ns=0,
                samples=(stretch, stretch),
            ),
            data.Parity(
                session=data.SESSION, point=point.key(), reference="eager",
                max_abs_difference=0.0, max_relative_difference=0.0, tolerance=1e-4,
                within_tolerance=True,
            ),
        ]  # fmt: skip
    return build(records)


def test_samples_of_one_thread_are_the_tax_of_one_thread_only():
    alone, beside = on_threads(1), on_threads(2)
    assert at(alone, "eager").tax_share.value == pytest.approx(0.5)
    for m in beside.measurements:
        assert m.latency_ns is not None
        assert (m.tax_share, m.tax_ns, m.kernel_ns, m.bill_ns, m.regime) == (None,) * 5
        assert "one-thread-sampled" in {note.code for note in m.notes}
    assert "one-thread-sampled" not in {note.code for m in alone.measurements for note in m.notes}
    assert [advice.kind for advice in beside.advice] == ["measured"]


def test_samples_of_every_thread_are_the_tax_of_several():
    for m in on_threads(2, method=EVERY_THREAD).measurements:
        assert m.tax_share.value == pytest.approx(0.5)
        assert m.kernel_ns.value == pytest.approx(0.5 * m.latency_ns.value)
        assert m.regime is not None
        assert "one-thread-sampled" not in {note.code for note in m.notes}


def test_more_threads_than_processors_get_no_advice():
    assert data.ENVIRONMENT.affinity == (0, 1)
    assert on_threads(2).advice != ()
    crowded = on_threads(3)
    assert crowded.advice == ()
    assert "crowded" in {note.code for note in crowded.notes}
    assert "faster" in on_threads(2).headline and "faster" not in crowded.headline
    assert crowded.headline.endswith("; more threads than processors")
    assert on_threads(3, replace(data.ENVIRONMENT, affinity=(0, 1, 2))).advice != ()
