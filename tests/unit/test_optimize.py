"""Who wins a race and why, on measurements whose truth is known."""

import errno
import io
import math
import os
import random
from collections import namedtuple
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console

from frameworktax import runtimes, store
from frameworktax.analysis.document import build
from frameworktax.analysis.estimates import paired_ratio
from frameworktax.errors import UsageError, WorkerError
from frameworktax.measure import orphans
from frameworktax.measure.parity import compare
from frameworktax.measure.protocol import Drawn
from frameworktax.measure.reporter import Reporter
from frameworktax.measure.template import Templates
from frameworktax.models.user import Live
from frameworktax.optimize import blocks, delivery, race, run
from frameworktax.optimize.delivery import Delivery, Proof, Prover
from frameworktax.optimize.run import Asked, deliverable
from frameworktax.records import (
    Block,
    Effort,
    Environment,
    Estimate,
    LeftOut,
    Measurement,
    Note,
    Outcome,
    OwnTax,
    Parity,
    Run,
    Session,
    Subject,
    Workload,
)
from frameworktax.report.html import write_page
from frameworktax.report.render_terminal import print_blocks
from frameworktax.report.words import factor
from frameworktax.runtimes import deployment
from frameworktax.runtimes.artifacts import Artifact
from frameworktax.runtimes.base import Target
from frameworktax.runtimes.deployment import Interface, Shape

STARTED = datetime(2026, 11, 23, 5, 0, 1, tzinfo=UTC)
W1 = Workload(model="m", batch=1)
W4 = Workload(model="m", batch=4)


def measured(runtime, ns, *, workload=W1, size=10, noise=0.001, equal=True, **fields):
    """Return a point of three processes and six rounds; eager takes 100 ns."""
    drawn = random.Random(runtime)
    blocks = tuple(
        (process, number, ns * drawn.gauss(1, noise)) for process in range(3) for number in range(6)
    )
    ratio = ns / 100
    parity = Parity(
        session="s",
        point="p",
        reference="r",
        max_abs_difference=0.1,
        max_relative_difference=1e-6 if equal else 0.3,
        tolerance=1e-3,
        within_tolerance=equal,
    )
    fields.setdefault("status", "ok")
    return Measurement(
        workload=workload,
        runtime=runtime,
        paradigm="ahead-of-time",
        platform="cpu",
        threads=1,
        session="s",
        blocks_ns=blocks,
        latency_ns=estimate(ns, noise),
        ratio_to_eager=estimate(ratio, noise),
        artifact_bytes=size,
        parity=parity,
        **fields,
    )


def estimate(value, noise):
    low, high = value * (1 - 2 * noise), value * (1 + 2 * noise)
    return Estimate(value=value, low=low, high=high, confidence=0.95, method="m", n=3)


def raced(*ms, pairs=None, starts=None):
    wanted = pairs or [(m.workload, m.runtime) for m in ms]
    return race.candidates(wanted, Run(measurements=ms), starts or {})


def won(found):
    return {one.workload.batch: one.runtime for one in found if one.won}


def test_the_fastest_with_equal_outputs_wins():
    found = raced(
        measured("openvino", 20),
        measured("onnxruntime", 30),
        measured("torchscript", 10, equal=False),
        measured("aot-inductor", 1, status="crashed", reason="SIGSEGV"),
    )
    decided = race.decide(race.after_final(found))
    assert won(decided) == {1: "openvino"}
    reasons = {one.runtime: one.reason for one in decided}
    assert "1.50" in reasons["onnxruntime"]  # takes 30 / 20 as long
    assert "0.3" in reasons["torchscript"]
    assert "SIGSEGV" in reasons["aot-inductor"]


def test_one_that_no_interval_separates_from_the_winner_lost_by_its_gain():
    """It was said to take 0.95 times as long as the winner."""
    found = raced(measured("openvino", 20, noise=0.3), measured("onnxruntime", 21, noise=0.3))
    lost = next(one for one in race.decide(found) if not one.won)
    assert not lost.is_in
    for one in found:
        assert factor(one.gain) in lost.reason


def test_ties_go_to_what_needs_fewer_packages_and_then_to_the_smaller_artifact():
    tied = [
        measured("openvino", 20.0, noise=0.005, size=5),
        measured("torchscript", 20.02, noise=0.005, size=2),
        measured("torchscript-frozen", 20.05, noise=0.005, size=1),
    ]
    assert won(race.decide(raced(*tied))) == {1: "torchscript-frozen"}
    apart = [measured("openvino", 20, size=5), measured("torchscript", 20.1, size=2)]
    assert won(race.decide(raced(*apart))) == {1: "openvino"}  # 0.5 %, and proven
    # where another shape needs openvino anyway, it is the simpler one
    elsewhere = measured("openvino", 20, workload=W4)
    assert won(race.decide(raced(*tied, elsewhere))) == {1: "openvino", 4: "openvino"}


def test_among_equal_packages_and_sizes_the_faster_start_wins():
    tied = [measured("torchscript", 20), measured("torchscript-frozen", 20)]
    starts = {m.point.key(): ns for m, ns in zip(tied, (9, 5), strict=True)}
    assert won(race.decide(raced(*tied, starts=starts))) == {1: "torchscript-frozen"}


@pytest.mark.parametrize(
    ("aim", "wanted"),
    [("latency", "openvino"), ("memory", "onnxruntime"), ("startup", "torchscript"),
     ("throughput", "aot-inductor")],
)  # fmt: skip
def test_a_race_may_be_for_something_else_than_latency(aim, wanted):
    ms = [
        measured("openvino", 10, peak_memory_bytes=300),
        measured("onnxruntime", 30, peak_memory_bytes=100),
        measured("torchscript", 40, peak_memory_bytes=200),
        measured("aot-inductor", 50, pipelined_ns=estimate(5, 0.1)),
        measured("torchscript-frozen", 130, peak_memory_bytes=1),  # slower than eager
    ]
    starts = {m.point.key(): ns for m, ns in zip(ms, (3e9, 2e9, 1e9, 4e9, 1), strict=True)}
    decided = race.decide(race.after_final(raced(*ms, starts=starts), aim), aim)
    assert won(decided) == {1: wanted}
    # two of the heats are enough: three runtimes go on whatever the race is for
    left = race.after_heats(raced(*ms, starts=starts), aim)
    assert wanted in [one.runtime for one in left if one.is_in]


@pytest.mark.parametrize("code", ["precision-differs", "values-fixed"])
def test_what_computes_something_else_than_was_asked_for_is_out(code):
    note = Note(code, "OpenVINO computes in f32, asked for bf16")
    (one,) = raced(measured("openvino@bfloat16", 5, notes=(note,)))
    assert one.reason == note.text


def test_a_wide_interval_alone_is_no_tie():
    found = raced(
        measured("openvino", 20, noise=0.4, size=5), measured("torchscript", 25, noise=0.4, size=1)
    )
    assert won(race.decide(found)) == {1: "openvino"}


def test_what_is_no_faster_than_eager_wins_nothing():
    found = raced(measured("openvino", 100, noise=0.05), measured("torchscript", 120))
    assert won(race.decide(race.after_final(found))) == {}


def test_what_is_not_proven_faster_may_prove_it_as_delivered_once():
    ms = [
        measured("openvino", 70, noise=0.3),  # 28 to 112 % of eager's time
        measured("aot-inductor", 75, noise=0.3),
        measured("onnxruntime", 85),
        measured("openvino", 70, noise=0.3, workload=W4),
        measured("torchscript", 75, noise=0.3, workload=W4),
    ]
    found = race.after_final(raced(*ms))
    assert won(race.decide(found)) == {1: "openvino", 4: "openvino"}
    left = race.after_proof(found, {(W1, "openvino"): "not proven"})
    assert won(race.decide(left)) == {1: "onnxruntime", 4: "openvino"}
    assert won(race.decide(race.after_proof(left, {(W4, "openvino"): "no"}))) == {1: "onnxruntime"}


def test_what_the_final_proves_slower_is_out_and_comes_back_where_all_others_fail():
    found = race.after_final(raced(measured("openvino", 10), measured("onnxruntime", 20)))
    assert [one.runtime for one in found if one.is_in] == ["openvino"]
    assert "2.00" in {one.runtime: one.reason for one in found}["onnxruntime"]
    left = race.after_proof(found, {(W1, "openvino"): "lied"})
    assert [one.runtime for one in left if one.is_in] == ["onnxruntime"]


@pytest.mark.parametrize(
    ("other_ns", "noise", "wanted"),
    [(20.2, 0.05, ["openvino", "torchscript"]), (20.2, 0.001, []), (20.02, 0.005, []),
     (40, 0.05, [])],
)  # fmt: skip
def test_a_run_off_is_where_another_may_be_faster_by_more_than_a_tie(other_ns, noise, wanted):
    near = [measured("openvino", 20, noise=noise), measured("torchscript", other_ns, noise=noise)]
    far = [measured("onnxruntime", 40), measured("openvino", 20, workload=W4)]
    left = race.undecided(race.after_final(raced(*near, *far)))
    assert left == [(W1, name) for name in wanted]


def test_all_stages_of_a_race_count_together_and_what_failed_in_the_last_has_failed(tmp_path):
    """The final reached one process for two rounds: what the heats saw decides."""
    mine = asked(tmp_path, workloads=(W1,))
    mine.store = tmp_path / "store"

    def stage(name, rounds, failed=(), **took_ns):
        with store.Writer(mine.store, name) as writer:
            for runtime, ns in took_ns.items():
                point = mine.point(W1, runtime if runtime == "eager" else f"{runtime}@deployed")
                of = {"session": name, "point": point.key()}
                writer.write(Subject(session=name, point=point, paradigm="eager"))
                writer.write(replace(measured(runtime, 1).parity, **of))
                if runtime in failed:
                    reason = "killed by SIGSEGV"
                    writer.write(Outcome(**of, process=0, status="crashed", reason=reason))
                    continue
                writer.write(Outcome(**of, process=0, status="ok", load_ns=5, first_ns=ns))
                for number in range(rounds):
                    times = {"latency_ns": (ns + number,) * 5, "pipelined_ns": 5 * ns}
                    times |= {"pipelined_calls": 5, "cpu_ns": 5 * ns}
                    writer.write(Block(**of, process=0, round=number, **times))
        return build(store.read(writer.path)[0])

    pairs = [(W1, "openvino"), (W1, "onnxruntime")]
    stages = [
        stage("20261123T000000-a", 4, eager=100_000, openvino=50_000, onnxruntime=60_000),
        stage("20261123T000001-b", 2, eager=100_000, openvino=56_001, onnxruntime=56_000),
    ]
    found = race.candidates(pairs, *run._together(mine, stages))
    expected = [1e5 / math.sqrt(50_000 * 56_001), 1e5 / math.sqrt(60_000 * 56_000)]
    assert [one.gain.value for one in found] == pytest.approx(expected, rel=1e-3)
    assert [one.gain.n for one in found] == [2, 2]
    assert found[0].start_ns == (50_005 + 56_006) / 2
    assert paired_ratio(found[1].measured, found[0].measured).value > 1.08
    took_ns = {"eager": 100_000, "openvino": 0, "onnxruntime": 60_000}
    stages.append(stage("20261123T000002-c", 2, failed=["openvino"], **took_ns))
    crashed, left = race.candidates(pairs, *run._together(mine, stages))
    assert "SIGSEGV" in crashed.reason and left.gain.n == 3


def test_a_gain_as_delivered_counts_where_intervals_do_not_meet():
    found = raced(measured("openvino", 20, noise=0.1))
    for took_ns, gain in ((25, 5), (40, 2.5), (10, 5)):
        (left,) = race.as_delivered(found, raced(measured("openvino", took_ns, noise=0.1)))
        assert left.gain.value == gain
    found = race.after_final(raced(measured("openvino", 20), measured("onnxruntime", 30)))
    assert race.as_delivered(found, raced(measured("openvino", 20))) == found  # reserves stay out


class Slower:
    """Delivers; what it delivers takes other times than it took in the race."""

    manifest, failures, took_ns, again_ns, fields, made = None, {}, {}, 0, {}, []

    def __init__(self, *_):
        self.measured = []

    def make(self, decided):
        self.made += [one.runtime for one in decided if one.won]

    def points(self):
        return ()

    def confirm(self, proof):
        again_ns = self.again_ns if self.made.count(self.made[-1]) > 1 else 0
        took = measured("deployed", again_ns or self.took_ns[self.made[-1]], **self.fields)
        self.measured += raced(took, pairs=[(W1, "deployed")])
        self.measured[-1] = replace(self.measured[-1], runtime=self.made[-1])

    def finish(self, proof):
        pass


@pytest.fixture
def slower(monkeypatch):
    """Deliveries that are slower than the race."""
    monkeypatch.setattr(run, "Delivery", Slower)
    monkeypatch.setattr(run, "_measured", lambda *_, **__: None)
    for name in ("took_ns", "again_ns", "fields", "made"):
        monkeypatch.setattr(Slower, name, getattr(Slower, name))
    return Slower


def test_a_race_of_engines_alone_is_not_decided_by_what_a_delivered_call_takes(tmp_path, slower):
    pairs = [("openvino", 60), ("onnxruntime", 70)]
    ms = [measured(name, 20, peak_memory_bytes=mb * 10**6) for name, mb in pairs]
    slower.took_ns = {"openvino": 40, "onnxruntime": 20}
    slower.fields = {"peak_memory_bytes": 260 * 10**6}
    slower.made = []
    mine = asked(tmp_path, aim="memory")
    made = run._deliver(mine, tmp_path, Run(measurements=()), raced(*ms), (), None)
    assert slower.made == ["openvino"]
    reasons = {one.runtime: one.reason for one in made.candidates}
    assert reasons == {"openvino": "", "onnxruntime": "needs 70 MB, openvino needs 60 MB"}


def test_what_is_slower_as_delivered_than_others_were_in_the_race_gives_way_to_them(
    tmp_path, slower
):
    found = race.after_final(raced(measured("openvino", 20), measured("onnxruntime", 30)))
    for others_took_ns, wanted in (
        (30, ["openvino", "onnxruntime"]),
        (50, ["openvino", "onnxruntime", "openvino"]),
    ):
        slower.took_ns = {"openvino": 40, "onnxruntime": others_took_ns}
        slower.made = delivered = []
        made = run._deliver(asked(tmp_path), tmp_path, Run(measurements=()), found, (), None)
        assert delivered == wanted
        assert won(made.candidates) == {1: wanted[-1]}
    assert [one.gain.value for one in made.candidates if one.won] == [2.5]
    # the last attempt is of the best that was delivered
    names = ["openvino", "onnxruntime", "torchscript", "torchscript-frozen", "aot-inductor"]
    slower.took_ns = dict(zip(names, (60, 55, 70, 80, 90), strict=True))
    found = race.after_final(raced(*(measured(n, 20 + 5 * i) for i, n in enumerate(names))))
    for slower.again_ns in (0, 75):  # whatever it takes then
        slower.made = delivered = []
        made = run._deliver(asked(tmp_path), tmp_path, Run(measurements=()), found, (), None)
        assert delivered == [*names[:3], "onnxruntime"]
        assert made.folder == tmp_path / "deploy"


def test_the_time_of_a_race_goes_to_what_is_undecided(tmp_path, monkeypatch):
    stages, took_s, ended = [], [], []

    def raced_in(
        asked, pairs, budget_s, reporter, before, *, processes=3, until=None, precise_s=None
    ):
        stages.append((len(pairs), round(budget_s, 3), processes))
        assert precise_s == (25 if processes == 1 else None)
        tax = OwnTax(
            share=0.5, wall_ns=1, setup_ns=1, calls_ns=1, measuring_ns=int(took_s[-1] * 1e9)
        )
        return Run(
            measurements=tuple(measured(n, 20, noise=0.1, workload=w) for w, n in pairs),
            own_tax=tax,
        )

    monkeypatch.setattr(run, "_race", raced_in)
    monkeypatch.setattr(run, "_together", lambda _, stages: (stages[-1], {}))
    monkeypatch.setattr(run, "_deliver", lambda *given: ended.append(given[3]))
    monkeypatch.setattr(run, "refuse_unavailable", list)
    monkeypatch.setattr(run, "_refuse_unfit", lambda _: None)
    names = ["openvino", "onnxruntime", "torchscript", "torchscript-frozen"]
    monkeypatch.setattr(run, "deliverable", lambda *_: (names, []))
    mine = asked(tmp_path, time_budget=100.0, workloads=(W1,))
    mine.store = tmp_path / "store"
    follow = []
    show = type("Seen", (Reporter,), {"follows": lambda _, s, besides: follow.append((s, besides))})
    for each_s in (5.0, 40.0, 100.0):
        took_s.append(each_s)
        run.optimize_model(mine, show())
    finalists = len(race.with_tunings([(W1, name) for name in names[:3]], Target()))
    assert {len({(o.workload, o.runtime) for o in found}) for found in ended} == {finalists + 1}
    assert {len(found) for found in ended} == {finalists + 1}
    assert stages == [
        (4, 45, 1), (finalists, 65, 3), (finalists, 60, 6),
        (4, 45, 1), (finalists, 30, 3),  # no time is left for a run-off
        (4, 45, 1), (finalists, 25, 3),  # the final has as much as the heats were to have
    ]  # fmt: skip
    # of 100 s after the 25 of the heats, and after the final: its session has an estimate
    assert follow == [(75.0, run.ON_TOP), (30.0, run.ON_TOP)] * 3


def test_a_session_of_measure_stands_for_the_heats_and_is_in_no_later_stage(tmp_path, monkeypatch):
    names = ["openvino", "onnxruntime", "torchscript", "torchscript-frozen"]
    pairs = [(W1, name) for name in names]
    mine = asked(tmp_path, workloads=(W1,), time_budget=100.0)
    told, raced_with, together_of = {}, [], []
    measure = Run(measurements=tuple(measured(n, 20 * (i + 1)) for i, n in enumerate(names)))
    final = Run(measurements=(measured("openvino@deployed", 21),))

    def race_of(asked, pairs, budget_s, *_, **given):
        raced_with.append(([name for _, name in pairs], budget_s, given))
        return final

    def together(_, stages):
        together_of.append(stages)
        return stages[-1], {}

    monkeypatch.setattr(run, "_known", lambda _, points, processes: told.get((points, processes)))
    monkeypatch.setattr(run, "_race", race_of)
    monkeypatch.setattr(run, "_together", together)
    told[run._points(mine, pairs), 1] = measure
    run._raced(mine, names, None)
    assert raced_with == [(["openvino"], 70.0, {})]  # the final has all time but the proof's
    assert together_of == [[measure], [final]]

    assert run._stored(asked(tmp_path, resume=False), pairs) is None
    assert run._stored(asked(tmp_path, aim="memory"), pairs) is None, "its stages are bare anyway"
    called = [(W1, runtimes.deployed(name)) for name in names]
    told[run._points(mine, called), 1] = final
    assert run._stored(mine, pairs) is None, "heats of a race come first"


def test_losers_leave_after_the_heats_and_come_back_where_all_others_fail():
    ms = [measured("openvino", 10), measured("onnxruntime", 11), measured("torchscript", 40)]
    found = race.after_heats(raced(*ms, measured("torchscript-frozen", 120)))
    left = [one.runtime for one in found if one.is_in]
    assert left == ["openvino", "onnxruntime"]
    reasons = {one.runtime: one.reason for one in found}
    assert "2.50" in reasons["torchscript"] and "0.83" in reasons["torchscript-frozen"]
    failed = race.after_proof(found, {(W1, name): "lied" for name in left})
    assert [one.runtime for one in failed if one.is_in] == ["torchscript"]
    assert not any(one.is_reserve for one in failed if one.gain.value < 1)


def test_the_heats_are_coarse_and_leave_in_what_may_be_as_good():
    wide = [measured("openvino", 30, noise=0.2), measured("onnxruntime", 40, noise=0.2)]
    maybe = measured("openvino", 104, noise=0.05, workload=W4)  # slower than eager or faster
    assert all(one.is_in for one in race.after_heats(raced(*wide, maybe)))


def test_no_more_than_the_best_few_are_measured_finely():
    names = ["openvino", "onnxruntime", "torchscript", "torchscript-frozen", "aot-inductor"]
    found = race.after_heats(raced(*(measured(n, 10 + i / 10) for i, n in enumerate(names))))
    assert sum(one.is_in for one in found) == race.FINALISTS


def unconfirmed(m):
    return delivery.unconfirmed(race.candidate(W1, "deployed", m, {}))


@pytest.mark.parametrize(
    ("ns", "noise", "is_confirmed", "more_time"),
    [(50, 0.001, True, False), (95, 0.05, False, True), (104, 0.05, False, True),
     (120, 0.001, False, False)],
)  # fmt: skip
def test_a_gain_that_may_be_there_is_not_proven_and_more_time_may_prove_it(
    ns, noise, is_confirmed, more_time
):
    found = unconfirmed(measured("deployed", ns, noise=noise))
    assert (not found, "--time-budget" in found) == (is_confirmed, more_time)
    assert is_confirmed or f"{100 / ns:.2f}" in found


def test_what_was_not_measured_or_not_proven_equal_is_not_confirmed():
    assert "--time-budget" in unconfirmed(None)
    assert "SIGSEGV" in unconfirmed(measured("deployed", 50, status="crashed", reason="SIGSEGV"))
    assert "0.3" in unconfirmed(measured("deployed", 50, equal=False))
    few = replace(measured("deployed", 50), ratio_to_eager=None)
    assert "--time-budget" in unconfirmed(few)


def test_what_failed_or_is_slower_than_eager_takes_no_place_in_the_final():
    found = race.after_heats(
        raced(
            measured("inductor", 50, peak_memory_bytes=1, equal=False),
            measured("torchscript-frozen", 130, peak_memory_bytes=2),  # slower than eager
            measured("openvino", 10, peak_memory_bytes=30),
            measured("onnxruntime", 20, peak_memory_bytes=40),
            measured("torchscript", 30, peak_memory_bytes=50),
            measured("aot-inductor", 40, peak_memory_bytes=60),
        ),
        "memory",
    )
    left = [one.runtime for one in found if one.is_in]
    assert left == ["openvino", "onnxruntime", "torchscript"]


def test_what_was_not_reached_says_so():
    (one,) = race.decide(raced(pairs=[(W1, "openvino")]))
    assert not one.won
    assert "--time-budget" in one.reason


def test_tunings_race_with_what_they_tune():
    def names(*runtimes, threads=1, allowed=()):
        pairs = [(W1, name) for name in runtimes]
        return [name for _, name in race.with_tunings(pairs, Target(threads=threads), allowed)]

    onnx = ["onnxruntime", "onnxruntime@2", "onnxruntime@fused"]
    assert names("onnxruntime", "openvino") == [*onnx, "openvino"]
    both = names("onnxruntime", "openvino", threads=2)
    assert both == [*onnx, "onnxruntime@serial", "openvino", "openvino@serial"]
    lower = names("onnxruntime", "openvino", allowed=("bfloat16", "int8"))
    assert lower == [*onnx, "onnxruntime@int8", "openvino", "openvino@bfloat16"]
    assert names("onnxruntime@2") == ["onnxruntime@2"]


def test_what_needs_the_model_does_not_race():
    racing, others = deliverable("all", Target(), W1)
    assert "torchscript" in racing
    assert not {"eager", "inference-mode", "inductor", "deployed", "null"} & set(racing)
    assert "code" in dict(others)["inductor"]
    assert "code" not in dict(others)["executorch"]
    with pytest.raises(UsageError, match="inductor cannot"):
        deliverable("inductor", Target(), W1)
    with pytest.raises(UsageError, match="eager is"):
        deliverable("eager", Target(), W1)


def test_a_model_that_eager_cannot_run_is_refused_before_the_race():
    with pytest.raises(UsageError, match="torch modules") as error:
        deliverable("all", Target(), Workload(model="onnx:model.onnx"))
    assert "choose" not in str(error.value)


def asked(tmp_path, **derived):
    """Return what is asked of a made-up model; what is derived from its name is given."""
    made = Asked(
        model="mlp",
        device="cpu",
        output=tmp_path / "deploy",
        store=tmp_path,
        resume=True,
        command="c",
    )
    for name, value in ({"workloads": (W1, W4)} | derived).items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("aim", "wanted"),
    [("latency", "onnxruntime@2-deployed"), ("throughput", "onnxruntime@2-deployed"),
     ("memory", "onnxruntime@2"), ("startup", "onnxruntime@2")],
)  # fmt: skip
def test_candidates_race_as_they_will_be_called(tmp_path, monkeypatch, aim, wanted):
    mine, plans = asked(tmp_path, aim=aim, resume=False), []
    monkeypatch.setattr(run, "_measured", lambda *_, **given: plans.append(given))
    run._race(mine, [(W1, "onnxruntime@2")], 9.0, None, (), processes=1)
    assert [p.runtime for p in plans[0]["points"]] == ["eager", wanted]
    assert (plans[0]["budget_s"], plans[0]["processes"]) == (9.0, 1)


def test_sessions_and_the_proof_of_one_run_share_templates_that_end_with_it(tmp_path, monkeypatch):
    seen, ended = [], []
    mine = asked(tmp_path, output=tmp_path / "out", workloads=(W1,), resume=False)

    def session(plan, folder, *, templates, **given):
        seen.append((templates, list(ended)))
        return Mock()

    monkeypatch.setattr(run.api, "run_plan", session)
    monkeypatch.setattr(run, "refuse_unavailable", list)
    monkeypatch.setattr(run, "_refuse_unfit", lambda _: None)
    monkeypatch.setattr(run, "_raced", lambda *_: [run._measured(mine, None, points=())] * 2)
    monkeypatch.setattr(run, "_deliver", lambda *_: run._measured(mine, None, points=()))
    monkeypatch.setattr(mine.templates, "close", lambda: ended.append(True))
    run.optimize_model(mine)
    assert seen == [(mine.templates, [])] * 2
    assert ended == [True]


def test_the_candidate_that_is_faster_as_delivered_wins(tmp_path):
    bare = [measured("openvino", 20), measured("onnxruntime", 30)]
    delivered = [measured("openvino@deployed", 60), measured("onnxruntime@deployed", 50)]
    pairs = [(W1, "openvino"), (W1, "onnxruntime")]
    decided = race.decide(race.after_final(raced(*delivered, pairs=pairs)))
    assert won(decided) == {1: "onnxruntime"}
    assert won(race.decide(raced(*bare))) == {1: "openvino"}
    assert [one.measured.runtime for one in decided if one.won] == ["onnxruntime@deployed"]
    mixed = [*raced(delivered[0], pairs=pairs[:1]), *raced(bare[1], pairs=pairs[1:])]
    titles = [blocks.candidates_table(some).title for some in (decided, raced(*bare), mixed)]
    assert ["as delivered" in title for title in titles] == [True, False, True]
    assert ["engines alone" in title for title in titles] == [False, True, True]


def test_shapes_are_every_length_with_every_batch_size(tmp_path):
    made = Asked(model="bert-tiny", batch=[4, 1, 4], length=[32, 16], device="cpu")
    shapes = [(w.model, w.length, w.batch) for w in made.workloads]
    assert shapes == [("bert-tiny", n, b) for n in (16, 32) for b in (1, 4)]
    for wrong in ({"batch": []}, {"batch": 0}, {"length": []}, {"aim": "fame"}, {"allow": "int1"}):
        with pytest.raises(UsageError):
            Asked(model="bert-tiny", device="cpu", **wrong)


def test_only_a_whole_session_is_taken_from_the_store(tmp_path, monkeypatch):
    mine = asked(tmp_path)
    (tmp_path / "session.jsonl").touch()
    points = [mine.point(w, name) for w in (W1, W4) for name in ("eager", "openvino")]
    here = {"cpu": run.host.cpu_model(), "libraries": run.host.libraries(runtimes.distributions())}
    places = {"elsewhere": here | {"cpu": "another"}, "older": here | {"libraries": {"torch": "1"}}}
    told = {  # points, processes
        "old": (points, 3),
        "killed": (points, 3),
        "partial": (points[:3], 3),
        "elsewhere": (points, 3),
        "older": (points, 3),
        "heats": (points, 1),
    }
    ends = [
        Outcome(session=session, point=point.key(), process=process, status="ok")
        for session, (some, processes) in told.items()
        for point in some
        for process in range(processes)
    ]
    sessions = [
        Session(
            session=session,
            started=STARTED.isoformat(timespec="seconds"),
            version="0",
            command=(),
            environment=Environment(
                host="h", system="s", python="3", cores=2, **places.get(session, here)
            ),
        )
        for session in told
    ]
    efforts = [
        Effort(session=session, wall_ns=1, setup_ns=1, measuring_ns=1, calls_ns=1)
        for session in told
        if session != "killed"
    ]
    monkeypatch.setattr(run.store, "read", lambda folder: ([*sessions, *ends, *efforts], []))
    monkeypatch.setattr(run, "build", lambda records, **_: {r.session for r in records})
    assert run._known(mine, points, 3) == {"old"}
    assert run._known(mine, points, 1) == {"heats"}
    assert run._known(mine, points, 1, {"heats"}) == {"old"}
    assert run._known(mine, [*points, mine.point(W1, "torchscript")], 3) is None
    assert run._known(asked(tmp_path, live=Live("Net", None, None)), points, 3) is None
    mine.model = f"{tmp_path / 'mine.py'}:build"
    (tmp_path / "mine.py").touch()
    os.utime(tmp_path / "mine.py", (STARTED.timestamp() - 1,) * 2)
    assert run._known(mine, points, 3) == {"old"}
    os.utime(tmp_path / "mine.py", (STARTED.timestamp(),) * 2)
    assert run._known(mine, points, 3) is None, "the file was changed since"


@pytest.mark.parametrize("why", ["timeout", "left out"])
def test_what_the_time_was_too_short_for_is_measured_again_by_another_command(
    tmp_path, monkeypatch, why
):
    mine = asked(tmp_path, command="frameworktax optimize m")
    (tmp_path / "session.jsonl").touch()
    eager, slow = (mine.point(W1, name) for name in ("eager", "openvino"))
    here = {"cpu": run.host.cpu_model(), "libraries": run.host.libraries(runtimes.distributions())}
    records = [
        Session(session="s", started=STARTED.isoformat(), version="0", command=("optimize", "m"),
                environment=Environment(host="h", system="s", python="3", cores=2, **here)),
        Outcome(session="s", point=eager.key(), process=0, status="ok"),
        Effort(session="s", wall_ns=1, setup_ns=1, measuring_ns=1, calls_ns=1),
        LeftOut(session="s", point=slow, reason="too short a time") if why == "left out"
        else Outcome(session="s", point=slow.key(), process=0, status="timeout"),
    ]  # fmt: skip
    monkeypatch.setattr(run.store, "read", lambda folder: (records, []))
    monkeypatch.setattr(run, "build", lambda records, **_: "taken")
    assert run._known(mine, [eager, slow], 1) == "taken"
    mine.command += " --time-budget 20min --setup-limit 20min"
    assert run._known(mine, [eager, slow], 1) is None
    assert run._known(mine, [eager], 1) == "taken"


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("mine.py:build", "mine.py"),
        ("own.inner.net:build", "own/inner/net.py"),
        ("own.inner:build", "own/inner/__init__.py"),
        ("hf:./saved", "saved/model.safetensors"),
    ],
)
def test_the_last_change_of_a_model_is_that_of_its_file(tmp_path, monkeypatch, model, file):
    monkeypatch.chdir(tmp_path)
    assert run._last_change(model) == ""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (STARTED.timestamp(),) * 2)
    assert run._last_change(model) == "2026-11-23T05:00:01+00:00"
    assert run._last_change("bert-base") == ""


def test_a_store_without_a_session_has_no_stage(tmp_path):
    mine = asked(tmp_path)
    assert run._known(mine, [mine.point(W1, "eager")], 1) is None


def test_a_session_on_another_card_or_driver_is_not_taken(tmp_path, monkeypatch):
    mine = asked(tmp_path, device="cuda:0")
    (tmp_path / "session.jsonl").touch()
    points = [mine.point(W1, "torchscript")]
    libraries = run.host.libraries(runtimes.distributions())
    card = {"name": "H200", "driver": "580", "sm_clock_mhz": 345}
    found = Environment(host="h", system="s", python="3", cores=2, cpu=run.host.cpu_model(),
                        libraries=libraries, gpus=(card,))  # fmt: skip
    session = Session(session="s", started=STARTED.isoformat(), version="0", command=(),
                      environment=found)  # fmt: skip
    outcome = Outcome(session="s", point=points[0].key(), process=0, status="ok")
    effort = Effort(session="s", wall_ns=1, setup_ns=1, measuring_ns=1, calls_ns=1)
    monkeypatch.setattr(run.store, "read", lambda folder: ([session, outcome, effort], []))
    monkeypatch.setattr(run, "build", lambda records, **_: "taken")
    taken = []
    for here in (card | {"sm_clock_mhz": 1980}, card | {"name": "H100"}, card | {"driver": "570"}):
        monkeypatch.setattr(run.host, "gpus", lambda here=here: (here,))
        taken.append(run._known(mine, points, 1))
    assert taken == ["taken", None, None]


class Delivers:
    """A delivery in which nothing fails."""

    manifest, measured = None, ()

    def __init__(self, *_):
        self.failures = {}

    def make(self, decided):
        pass

    def points(self):
        return ()

    def confirm(self, proof):
        return proof

    def finish(self, proof):
        pass


def test_what_is_exchanged_for_a_proof_lies_where_a_later_session_removes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path / "cache"))
    seen = []
    prover = type("Seen", (Prover,), {"__init__": lambda self, *given: seen.append(given[2])})
    monkeypatch.setattr(prover, "__exit__", lambda *_: None)
    monkeypatch.setattr(run, "Prover", prover)
    run._deliver(asked(tmp_path), tmp_path, Run(measurements=()), [], (), None)
    assert [(one.parent, one.name.startswith(orphans.NAME)) for one in seen] == [
        (tmp_path / "cache", True)
    ]
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_shape_that_fails_again_is_left_to_eager_and_the_others_are_delivered(
    tmp_path, monkeypatch
):
    class AtFourNone(Delivers):
        """A delivery in which whatever serves batch 4 fails."""

        def make(self, decided):
            winners = [(one.workload, one.runtime) for one in decided if one.won]
            self.failures = {key: "differs" for key in winners if key[0] == W4}

    monkeypatch.setattr(run, "Delivery", AtFourNone)
    monkeypatch.setattr(run, "_measured", lambda *_, **__: None)
    names = ["openvino", "onnxruntime", "torchscript", "torchscript-frozen", "aot-inductor"]
    found = raced(
        *(measured(n, 10 + 5 * i, workload=w) for i, n in enumerate(names) for w in (W1, W4))
    )
    made = run._deliver(asked(tmp_path), tmp_path, Run(measurements=()), found, (), None)
    assert made.folder == tmp_path / "deploy"
    assert won(made.candidates) == {1: "openvino"}
    fate = {one.runtime: one.reason for one in made.candidates if one.workload == W4}
    assert [fate[name] for name in names] == ["differs"] * 3 + [run.EXHAUSTED] * 2
    monkeypatch.setattr(AtFourNone, "make", lambda self, decided: self.failures.update(
        {(one.workload, one.runtime): "differs" for one in decided if one.won}
    ))  # fmt: skip
    made = run._deliver(asked(tmp_path), tmp_path, Run(measurements=()), found, (), None)
    assert made.folder is None
    assert won(made.candidates) == {}
    assert not any(one.is_in for one in made.candidates)


@pytest.mark.parametrize(("given", "most"), [(None, 12), (3, 0), (5, 0)])
def test_a_proof_takes_more_processes_where_no_number_was_given(tmp_path, monkeypatch, given, most):
    plans = []
    monkeypatch.setattr(run, "Delivery", Delivers)
    monkeypatch.setattr(run, "_measured", lambda *_, **of_plan: plans.append(of_plan))
    found = raced(measured("openvino", 10))
    mine = asked(tmp_path, processes=given)
    run._deliver(mine, tmp_path, Run(measurements=()), found, (), None)
    assert [(plan["processes"], plan["most_processes"]) for plan in plans] == [(given or 3, most)]


def test_who_left_after_the_heats_comes_back_where_all_finalists_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "Delivery", Delivers)
    monkeypatch.setattr(run, "_measured", lambda *_, **__: None)
    heats = race.after_heats(raced(measured("openvino", 10), measured("torchscript", 40)))
    final = raced(measured("openvino", 10, status="crashed", reason="SIGSEGV"))
    found = race.after_final([*(one for one in heats if not one.is_in), *final])
    made = run._deliver(asked(tmp_path), tmp_path, Run(measurements=()), found, (), None)
    assert won(made.candidates) == {1: "torchscript"}


def test_a_shape_that_fails_in_the_last_attempt_takes_no_other_with_it(tmp_path, monkeypatch):
    class Late(Delivers):
        """A delivery in which batch 4 fails, and in the last attempt batch 1."""

        attempts = 0

        def make(self, decided):
            self.attempts += 1
            failing = W4 if self.attempts < run.ATTEMPTS else W1
            winners = [(one.workload, one.runtime) for one in decided if one.won]
            self.failures = {key: "differs" for key in winners if key[0] == failing}

    monkeypatch.setattr(run, "Delivery", Late)
    monkeypatch.setattr(run, "_measured", lambda *_, **__: None)
    names = ["openvino", "onnxruntime", "torchscript", "torchscript-frozen", "aot-inductor"]
    workloads = (W1, replace(W1, batch=2), W4)
    found = raced(
        *(measured(n, 10 + 5 * i, workload=w) for i, n in enumerate(names) for w in workloads)
    )
    made = run._deliver(asked(tmp_path), tmp_path, Run(measurements=()), found, (), None)
    assert made.folder == tmp_path / "deploy"
    assert won(made.candidates) == {2: "openvino"}


def test_what_a_killed_run_left_is_removed_and_the_old_deployment_stays(tmp_path):
    output = tmp_path / "deploy"
    output.mkdir()
    (output / "kept").touch()
    (tmp_path / ".deploy.partial").mkdir()
    with pytest.raises(KeyboardInterrupt), delivery.staged(output) as folder:
        assert [p for p in tmp_path.iterdir() if p.name.startswith(".deploy")] == [folder]
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [output]
    assert (output / "kept").exists()
    with pytest.raises(UsageError, match="no deployment"):
        delivery.check_output(output, tmp_path)


def test_what_is_replaced_as_a_whole_holds_neither_the_store_nor_the_command(tmp_path, monkeypatch):
    empty = tmp_path / "deploy"
    empty.mkdir()
    delivery.check_output(empty, tmp_path)
    for kept in (empty, empty / "store"):
        with pytest.raises(UsageError, match="store"):
            delivery.check_output(empty, kept)
    monkeypatch.chdir(empty)
    for here in (Path(), Path("..")):
        with pytest.raises(UsageError, match="command"):
            delivery.check_output(here, tmp_path.parent)


def test_what_cannot_be_written_is_said_before_the_race(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", full)
    monkeypatch.setattr(run, "deliverable", lambda *_: pytest.fail("it was asked what can race"))
    with pytest.raises(UsageError, match="Read-only"):
        run.optimize_model(asked(tmp_path))


def test_a_module_that_no_deployment_stands_in_for_is_refused_before_the_race(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "refuse_unavailable", list)
    monkeypatch.setattr(run, "_raced", lambda *_: pytest.fail("it raced"))
    monkeypatch.setattr(
        Prover, "look", Mock(side_effect=WorkerError("unavailable", "it writes into its input"))
    )
    with pytest.raises(UsageError, match="cannot be delivered: it writes into its input"):
        run.optimize_model(asked(tmp_path, output=tmp_path / "out", store=tmp_path / "store"))


@pytest.mark.parametrize("status", ["failed", "timeout", "crashed"])
def test_what_fails_otherwise_before_the_race_is_in_the_race(tmp_path, monkeypatch, status):
    raced = []
    monkeypatch.setattr(run, "refuse_unavailable", list)
    monkeypatch.setattr(run, "_raced", lambda *given: raced.append(given) or (None, None))
    monkeypatch.setattr(run, "_deliver", lambda *_: None)
    monkeypatch.setattr(Prover, "look", Mock(side_effect=WorkerError(status, "x")))
    run.optimize_model(asked(tmp_path, output=tmp_path / "out", store=tmp_path / "store"))
    assert len(raced) == 1


def test_what_another_output_of_a_similar_name_left_is_its_own(tmp_path):
    others = [tmp_path / f".deploy-a.{end}" for end in ("partial", "replaced")]
    for other in others:
        other.mkdir()
    with delivery.staged(tmp_path / "deploy"):
        pass
    assert sorted(tmp_path.iterdir()) == others


def test_a_shape_that_was_left_to_eager_is_not_served_between_two_others(tmp_path):
    mine = asked(tmp_path, workloads=tuple(replace(W1, batch=batch) for batch in (1, 2, 4)))
    made = Artifact(
        folder=tmp_path / "model/openvino/artifact",
        names=["x"],
        dtypes=["float32"],
        files={1: "model.xml", 4: "model.xml"},
    )
    made.folder.mkdir(parents=True)
    made.write()

    class Asks:
        def look(self, w):
            return None, ((w.batch, 4),), ()

    winners = [race.Candidate(workload=replace(W1, batch=b), runtime="openvino") for b in (1, 4)]
    found = Delivery(mine, tmp_path, Asks())._between(winners)
    assert [shape.batch for shape in found] == [3]


def test_what_was_exported_for_other_batch_sizes_is_exported_anew(tmp_path):
    made = Artifact(folder=tmp_path / "model/openvino/artifact", names=["x"], dtypes=["float32"],
                    files={1: "m", 4: "m"})  # fmt: skip
    exported = []

    class Exports:
        def export(self, w, runtime, batches, to):
            exported.append(batches)
            (to / "artifact").mkdir(parents=True)

    one = [race.Candidate(workload=replace(W1, batch=b), runtime="openvino") for b in (1, 4)]
    for winners, wanted in ((one, []), (one[:1], [[1]])):
        made.folder.mkdir(parents=True, exist_ok=True)
        made.write()
        assert list(Delivery(asked(tmp_path), tmp_path, Exports())._export(winners)) == []
        assert exported == wanted


def test_what_the_model_and_its_exports_say_is_on_the_page_of_the_deployment(tmp_path):
    cast = "what the model has in bfloat16 is computed in float32"

    class Exports(Sizes):
        def look(self, w):
            interface = Interface(
                parameters=[("x", "POSITIONAL_OR_KEYWORD", False)],
                inputs=["args.0"],
                dtypes=["float32"],
                output={"tensor": "float32"},
            )
            return interface, ((w.batch, 4),), ((w.batch, 4),)

        def export(self, w, runtime, batches, to):
            folder = to / "artifact"
            folder.mkdir(parents=True)
            files = dict.fromkeys(batches, "model.onnx")
            notes = [("precision-cast", cast), ("exported-per-batch", f"once for {runtime}")]
            Artifact(
                folder=folder, names=["x"], dtypes=["float32"], files=files, notes=notes
            ).write()

    mine = asked(tmp_path)
    mine.output.mkdir()
    made = Delivery(mine, mine.output, Exports())
    runs = {W1: "onnxruntime", W4: "onnxruntime@2"}
    made.make([race.Candidate(workload=w, runtime=name, won=True) for w, name in runs.items()])
    assert made.failures == {}
    manifest = deployment.parse(mine.output)
    assert manifest.notes == [cast, "once for onnxruntime", "once for onnxruntime@2"]
    assert cast in blocks.readme(manifest)


def test_a_shape_between_that_is_not_proven_is_not_served(tmp_path):
    workloads = tuple(replace(W1, batch=s.batch, length=s.length) for s in text_shapes())
    mine = asked(tmp_path, workloads=workloads)
    mine.output.mkdir()
    made = described(mine, mine.output, Sizes((16, 3)), batches=(1, 3, 4))
    made._prove()
    left = [(s.length, s.batch) for s in made.manifest.shapes]
    assert made.failures == {}
    assert left == [(16, 1), (16, 4), (20, 1), (20, 3), (20, 4)]


def test_what_was_delivered_is_judged_by_the_tolerance_of_its_precision():
    for equal, tolerance, verdict in ((True, 1e-9, False), (False, 0.5, True), (False, 0.1, False)):
        one = delivery._judged(measured("deployed", 50, equal=equal), tolerance)
        assert one.parity.within_tolerance is verdict


def test_what_proves_nothing_and_what_is_judged_by_the_same_tolerance_stays_as_it_was():
    """Outputs that differ from call to call, and whole numbers that are not equal."""
    m = measured("deployed", 50)
    for verdict, tolerance in ((None, 0.5), (False, m.parity.tolerance)):
        one = replace(m, parity=replace(m.parity, within_tolerance=verdict))
        assert delivery._judged(one, tolerance) == one


def test_shapes_between():
    assert delivery.between([1, 4, 6]) == [2, 3, 5]
    assert delivery.between([1, 2]) == []
    spread = delivery.between([1, 64])
    assert len(spread) == delivery.MOST_BETWEEN
    assert spread[0] == 2
    assert max(spread) > 50
    assert delivery.draws_between(2) == 16
    assert delivery.draws_between(13) == delivery.LEAST_BETWEEN


class Sizes:
    """A prover of a model that takes ids and a mask; what it proves is scripted."""

    def __init__(self, *failures):
        self.failures, self.asked = set(failures), []

    def look(self, w):
        outputs = ((w.batch, w.length, 8), (w.batch, 8))
        return None, ((w.batch, w.length), (w.batch, w.length)), outputs

    def rest(self, *labels):
        pass

    def prove(self, folder, w, output, wanted, precision):
        self.asked.append((w.length, w.batch))
        failure = "differ" if (w.length, w.batch) in self.failures else ""
        return Proof(wanted, 1e-6, 1e-3, failure)


def text_shapes(batches=(1, 4)):
    return tuple(
        Shape(batch=b, length=n, sizes=((b, n), (b, n)), runtime="onnxruntime", folder="f",
              is_between=b in (2, 3))
        for n in (16, 20)
        for b in batches
    )  # fmt: skip


def described(mine, folder, prover, names=("input_ids", "attention_mask"), batches=(1, 4)):
    """Return a delivery that has its manifest."""
    interface = Interface(
        parameters=[(name, "KEYWORD_ONLY", False) for name in names],
        inputs=[f"kwargs.{name}" for name in names],
        dtypes=["int64"] * 2,
    )
    made = Delivery(mine, folder, prover)
    made._describe(interface, text_shapes(batches))
    return made


def padded(tmp_path, prover, **fields):
    shapes = tuple(replace(W1, batch=s.batch, length=s.length) for s in text_shapes())
    mine = asked(tmp_path, workloads=shapes)
    mine.output.mkdir(parents=True)
    made = described(mine, mine.output, prover, **fields)
    made._pad()
    return made.manifest


def test_padding_is_proven_at_the_sizes_between(tmp_path):
    prover = Sizes()
    manifest = padded(tmp_path, prover)
    found = manifest.padding
    assert (found.batch, found.length, manifest.unpadded) == (True, True, None)
    assert found.inputs == ((0, 1), (0, 1))
    assert found.outputs == ((0, 1), (0, None))
    between = {(n, b) for n in (16, 17, 18, 19, 20) for b in (1, 2, 3, 4)}
    asked = {(16, 1), (16, 4), (20, 1), (20, 4)}
    assert set(prover.asked) == between - asked
    assert found.together
    assert found.draws == 4 * 8 + 6 * 6 + 6 * 6  # 32 and more of each kind


@pytest.mark.parametrize(
    ("failure", "axis", "left"),
    [((16, 3), "batch", (False, True, False)), ((17, 4), "length", (True, False, False)),
     ((18, 3), "together", (True, True, False))],
)  # fmt: skip
def test_what_differs_once_is_not_padded_along_its_axis_and_the_manifest_says_where(
    tmp_path, failure, axis, left
):
    manifest = padded(tmp_path, Sizes(failure))
    found = manifest.padding
    assert (found.batch, found.length, found.together) == left
    assert found.draws == {"batch": 36, "length": 32, "together": 32 + 36}[axis]
    assert manifest.unpadded == f"{axis}: batch {failure[1]}, length {failure[0]}: differ"
    assert manifest.unpadded in blocks.shapes_table(manifest).hint


def test_where_rows_and_tokens_differ_nothing_is_padded_and_both_at_once_is_not_tried(tmp_path):
    prover = Sizes((16, 3), (17, 4))
    manifest = padded(tmp_path, prover)
    assert manifest.padding is None
    assert all(f"batch {b}, length {n}: differ" in manifest.unpadded for n, b in prover.failures)
    assert not any(n in (17, 18, 19) and b in (2, 3) for n, b in prover.asked)


def test_a_model_that_takes_no_other_size_is_not_padded_and_the_manifest_says_so(tmp_path):
    prover = Sizes()

    def look(w):
        raise WorkerError("failed", "batch 2 only")

    prover.look = look
    manifest = padded(tmp_path, prover)
    assert (manifest.padding, manifest.unpadded) == (None, "batch 2 only")


def test_a_size_is_not_padded_where_no_gap_of_its_kind_was_proven(tmp_path, monkeypatch):
    def left_to_eager(manifest, sizes):  # wherever rows would be added
        shape = padded_to(manifest, sizes)
        return shape if shape and shape.batch == sizes[0][0] else None

    padded_to = deployment.padded_to
    monkeypatch.setattr(deployment, "padded_to", left_to_eager)
    found = padded(tmp_path, Sizes()).padding
    assert (found.batch, found.length, found.together) == (False, True, False)


def test_lengths_are_padded_only_under_a_mask(tmp_path):
    found = padded(tmp_path, Sizes(), names=("input_ids", "token_type_ids")).padding
    assert (found.batch, found.length, found.together) == (True, False, False)


def test_rows_and_tokens_at_once_are_proven_where_artifacts_serve_all_batches_between(tmp_path):
    prover = Sizes()
    found = padded(tmp_path, prover, batches=(1, 2, 3, 4)).padding
    assert (found.batch, found.length, found.together) == (False, True, True)
    assert {b for n, b in prover.asked} == {1, 2, 3, 4}
    failing = padded(tmp_path / "failing", Sizes((18, 3)), batches=(1, 2, 3, 4)).padding
    assert (failing.batch, failing.length, failing.together) == (False, True, False)


def test_sizes_that_artifacts_between_leave_out_are_padded(tmp_path):
    sizes = (1, 40, *delivery.between([1, 40]))
    shapes = [
        Shape(batch=b, length=None, sizes=((b, 4),), runtime="onnxruntime", folder="f",
              is_between=b not in (1, 40))
        for b in sizes
    ]  # fmt: skip
    prover = Sizes()
    prover.look = lambda w: (None, ((w.batch, 4),), ((w.batch, 8),))
    mine = asked(tmp_path, workloads=(W1, replace(W1, batch=40)))
    mine.output.mkdir()
    made = Delivery(mine, mine.output, prover)
    parameters = [("x", "POSITIONAL_OR_KEYWORD", False)]
    made._describe(Interface(parameters=parameters, inputs=["args.0"], dtypes=["float32"]), shapes)
    made._pad()
    assert made.manifest.padding.batch
    assert not {batch for _, batch in prover.asked} & {*sizes}


def test_a_model_with_a_tensor_for_each_sample_is_not_padded(tmp_path):
    prover = Sizes()
    prover.look = lambda w: (None, ((w.batch, w.length),) * 2, ((8,),) * w.batch)
    manifest = padded(tmp_path, prover)
    assert manifest.padding is None and "for each sample" in manifest.unpadded


def test_an_axis_that_is_not_clear_is_none():
    assert delivery._axis((2, 8), (3, 8), (2, 3)) == 0
    assert delivery._axis((8,), (8,), (2, 3)) is None
    for small, large in (((2, 2), (3, 3)), ((4, 8), (6, 8)), ((2,), (3, 1))):
        with pytest.raises(WorkerError, match="not clear"):
            delivery._axis(small, large, (2, 3))


def test_shapes_between_are_shown_with_their_lengths(tmp_path):
    mine = asked(tmp_path)
    mine.output.mkdir()
    made = described(mine, mine.output, Sizes(), batches=(1, 2, 4))
    hint = blocks.shapes_table(made.manifest).hint
    assert "batch 2, length 16; batch 2, length 20." in hint


def test_what_a_deployment_leaves_out_of_the_output_is_named(tmp_path):
    manifest = padded(tmp_path, Sizes())
    output = {"mapping": {}, "class": "Output", "none": [], "left_out": ["past_key_values"]}
    named = replace(manifest, interface=replace(manifest.interface, output=output))
    assert "past_key_values" in blocks.shapes_table(named).hint
    assert "Left out" in blocks.readme(named)
    assert "Left out" not in blocks.readme(manifest)


def test_what_makes_a_deployment_anew_is_a_command_or_the_callers_python(tmp_path):
    manifest = padded(tmp_path, Sizes())
    for command, language in (("frameworktax optimize m", "bash"), ("ft.optimize(m)", "python")):
        page = blocks.readme(replace(manifest, command=command))
        assert f"```{language}\n{command}\n" in page
    given = {"batch": 4, "length": [64, 16], "threads": 2, "allow": ["int8"], "until": 0.1}
    named = Asked(model="bert-tiny", output=Path("it's"), resume=True, **given)
    assert named.command == (
        "ft.optimize('bert-tiny', batch=[4], length=[16, 64], threads=2, until=0.1, "
        """allow=['int8'], output="it's")"""
    )
    made = []
    fake = Mock(optimize=lambda model, **options: made.append(Asked(model=model, **options)))
    eval(named.command, {"ft": fake})
    assert made[0].workloads == named.workloads and made[0].command == named.command


def test_the_page_of_a_race_has_every_candidate_its_reason_and_a_picture(tmp_path):
    bill = {"kernel": 15.0, "dispatch": 5.0}
    share = estimate(0.25, 0.01)
    ms = [
        measured("openvino", 20, bill_ns=bill, tax_share=share),
        measured("onnxruntime", 30),
        measured("torchscript", 10, equal=False),
    ]
    found = run.Optimized(
        folder=None,
        manifest=None,
        candidates=tuple(race.decide(raced(*ms))),
        undeliverable=(("inductor", "needs the model's own code"),),
        final=Run(measurements=tuple(ms)),
    )
    page = blocks.headline(found), blocks.optimized_blocks(found)
    write_page(tmp_path / "race.html", *page)
    html = (tmp_path / "race.html").read_text()
    for name in ("openvino", "onnxruntime", "torchscript", "inductor"):
        assert name in html
    assert "outputs differ by 0.3" in html
    assert html.count("<svg") == 1
    assert "dispatch 25" in html
    write_page(tmp_path / "race.md", *page)
    assert "outputs differ by 0.3" in (tmp_path / "race.md").read_text()
    document = blocks.document(found)["candidates"]
    assert [one["breakdown_ns"] for one in document if one["won"]] == [bill]
    with pytest.raises(UsageError, match="name another"):
        write_page(tmp_path / "race.md" / "below.md", *page)


def test_a_candidate_is_named_in_each_part_of_a_table_too_wide_for_the_page():
    shape = replace(W4, length=128)
    ms = [measured(name, 20, workload=shape, noise=0.4) for name in ("openvino", "onnxruntime@2")]
    out = io.StringIO()
    print_blocks([blocks.candidates_table(raced(*ms))], Console(file=out, width=60))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    rows = [line for line in lines if line.startswith("batch 4, length 128")]
    assert [line.split()[4] for line in rows] == ["openvino", "onnxruntime@2"] * 2


def test_the_headline_has_both_ends_in_the_same_digits(tmp_path):
    mine = asked(tmp_path)
    mine.output.mkdir()
    manifest = described(mine, mine.output, Sizes()).manifest
    said = []
    for gains in ((1.23, 1.24), (1.1, 1.24), (4.73, 8.77)):
        pairs = zip(manifest.shapes, gains, strict=False)
        shapes = tuple(replace(shape, gain=(g, g, g)) for shape, g in pairs)
        found = run.Optimized(
            folder=mine.output,
            manifest=replace(manifest, shapes=shapes),
            candidates=tuple(raced(measured("openvino", 20))),
            undeliverable=(),
            final=Run(measurements=()),
        )
        said.append(blocks.headline(found))
    spans = ["is 1.2 × faster", "is 1.10 to 1.24 × faster", "is 4.7 to 8.8 × faster"]
    assert [span in text for span, text in zip(spans, said, strict=True)] == [True] * 3
    assert not any("by shape" in text for text in said)
    shapes = tuple(replace(shape, gain=(4.7, 1.8, 12)) for shape in manifest.shapes[:2])
    said = blocks.headline(replace(found, manifest=replace(manifest, shapes=shapes)))
    assert "is 4.7 × faster than eager by shape, with intervals 1.8 to 12 ×, outputs" in said


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason"),
    [("crashed", "SIGSEGV"), ("timeout", "not done after 300 s"), ("out-of-memory", "leaks")],
)
def test_a_candidate_that_fails_is_out_with_its_reason(status, reason):
    found = raced(measured("openvino", 5, status=status, reason=reason), measured("torchscript", 9))
    decided = race.decide(race.after_final(race.after_heats(found)))
    assert won(decided) == {1: "torchscript"}
    assert {one.runtime: one.reason for one in decided}["openvino"] == f"{status}: {reason}"


PEAK = {"value": 1.0}


class Talker:
    """A process of the prover: the model, and a deployment that fails at one input.

    Outputs stay in these processes.
    """

    at, how, number = 0, "", 0
    alive = True

    def __init__(self, label, **given):
        self.label = label

    def request(self, method, limit_s, *, number=0, precision="", **given):
        if self.label == "model":
            Talker.number = number
            if self.how == "untaken" and number % 2 >= self.at:
                raise WorkerError("failed", "IndexError: x")
            is_other = number == self.at and self.how == "another"
            output = {"value": 2.0} if is_other else PEAK
            return Drawn(interface={"output": output}, sizes=(), made=())
        if Talker.number == self.at and self.how not in ("lie", "another"):
            raise WorkerError(self.how, "it ended")
        lies = Talker.number == self.at and self.how == "lie"
        made = [np.ones(3) * (1.01 if lies else 1.0)]
        return compare([np.ones(3)], made, precision)

    def kill(self):
        pass


@pytest.mark.parametrize("how", ["lie", "another", "crashed", "timeout", "out-of-memory"])
@pytest.mark.parametrize("at", [0, 31])
def test_one_input_in_32_is_enough_to_fail_the_proof(tmp_path, monkeypatch, at, how):
    monkeypatch.setattr(delivery, "Worker", Talker)
    monkeypatch.setattr(Talker, "at", at)
    monkeypatch.setattr(Talker, "how", how)
    prover = Prover(Target(), None, tmp_path, 1.0, Templates())
    found = prover.prove(tmp_path, W1, PEAK)
    assert found.draws == at
    assert f"input {at + 1}" in found.failure
    monkeypatch.setattr(Talker, "at", 32)
    assert prover.prove(tmp_path, W1, PEAK) == Proof(32, 0.0, 1e-3)
    assert prover.prove(tmp_path, W1, PEAK, precision="int8").tolerance == 0.1
    # a hundredth is within int8's tolerance, and far beyond float32's
    monkeypatch.setattr(Talker, "at", at)
    assert bool(prover.prove(tmp_path, W1, PEAK, precision="int8").failure) == (how != "lie")


@pytest.mark.parametrize("at", [0, 1])
def test_inputs_that_the_module_does_not_take_prove_nothing(tmp_path, monkeypatch, at):
    """Boxes with a corner before the other, for one, ended the proof at the first."""
    monkeypatch.setattr(delivery, "Worker", Talker)
    monkeypatch.setattr(Talker, "at", at)
    monkeypatch.setattr(Talker, "how", "untaken")
    found = Prover(Target(), None, tmp_path, 1.0, Templates()).prove(tmp_path, W1, PEAK)
    if at == 1:
        assert found == Proof(32, 0.0, 1e-3)
    else:
        assert found.draws == 0 and found.failure.startswith("input 1: IndexError")


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    output = tmp_path / "deploy"
    for code, kind, said in ((errno.ENOSPC, UsageError, "--resume"), (errno.EPIPE, OSError, "x")):
        with pytest.raises(kind, match=said), delivery.staged(output), delivery.writing(output):
            raise OSError(code, "x")
    assert list(tmp_path.iterdir()) == []


def test_two_runs_do_not_make_the_same_folder_and_leave_each_other_s_alone(tmp_path):
    output = tmp_path / "deploy"
    with delivery.staged(output) as folder:
        (folder / "half").touch()
        with pytest.raises(UsageError, match=folder.name) as error, delivery.staged(output):
            pass
        assert "\n" not in str(error.value)
        with delivery.staged(tmp_path / "another"):
            pass
        assert (folder / "half").exists()
    with delivery.staged(output):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_from_before_the_race_to_the_end_of_its_delivery(tmp_path, monkeypatch):
    mine, seen = asked(tmp_path / "out", workloads=(W1,)), []
    mine.store = tmp_path / "store"

    def noted(*given):
        with pytest.raises(UsageError, match="another run"), delivery.staged(mine.output):
            pass
        seen.append([path for path in given if isinstance(path, Path)])
        return given, given

    monkeypatch.setattr(run, "refuse_unavailable", list)
    monkeypatch.setattr(run, "_refuse_unfit", lambda _: None)
    monkeypatch.setattr(run, "_raced", noted)
    monkeypatch.setattr(run, "_deliver", noted)
    run.optimize_model(mine)
    assert seen[0] == []
    assert [path.name.startswith(".deploy") for path in seen[1]] == [True]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "free", "ends"),
    [("OSError: [Errno 28] No space left on device", 1 << 30, True), ("SIGABRT", 4096, True),
     ("SIGABRT", 1 << 30, False)],
)  # fmt: skip
def test_an_export_that_fills_the_disk_ends_the_delivery_and_no_candidate(
    tmp_path, monkeypatch, said, free, ends
):
    class Fills:
        def export(self, *_):
            raise WorkerError("crashed", said)

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(delivery.shutil, "disk_usage", lambda _: usage(1 << 40, 0, free))
    one = race.Candidate(workload=W1, runtime="openvino")
    failing = Delivery(asked(tmp_path), tmp_path, Fills())._export([one])
    if ends:
        with pytest.raises(OSError, match="No space left"):
            list(failing)
    else:
        assert [key for key, _ in failing] == [(W1, "openvino")]


def test_an_older_deployment_survives_a_run_that_ends_while_it_is_replaced(tmp_path, monkeypatch):
    older = tmp_path / ".deploy.replaced"
    older.mkdir()
    (older / "kept").touch()
    with delivery.staged(tmp_path / "deploy"):
        assert (tmp_path / "deploy" / "kept").exists()
    mine = asked(tmp_path, store=tmp_path / "store")
    described(mine, mine.output, Sizes())
    monkeypatch.setattr(delivery.comparing, "save_baseline", lambda _, path: path.touch())
    folder = tmp_path / ".deploy.partial"
    folder.mkdir()
    made = described(mine, folder, Sizes())
    moved = Path.replace

    def full(path, to):
        if path == folder:
            raise OSError(errno.ENOSPC, "No space left on device")
        return moved(path, to)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="space"):
        made.finish(Run(measurements=()))
    assert (tmp_path / "deploy" / "kept").exists()
    monkeypatch.setattr(Path, "replace", moved)
    made.finish(Run(measurements=()))
    names = {path.name for path in (tmp_path / "deploy").iterdir()}
    assert names == {"manifest.json", *deployment.parse(tmp_path / "deploy").files}
    assert names == {"manifest.json", "README.md", "requirements.txt", "proof.json"}
    assert list(tmp_path.iterdir()) == [tmp_path / "deploy"]
