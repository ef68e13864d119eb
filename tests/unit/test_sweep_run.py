"""What a sweep decides: the status of points, their order, how long, where the time went."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import fake_measuring
import pytest

import frameworktax as ft
from frameworktax import host
from frameworktax.cli import app
from frameworktax.clock import REAL
from frameworktax.errors import NothingMeasuredError, UsageError
from frameworktax.measure.plan import Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.records import (
    Attribution,
    Block,
    Calibration,
    Effort,
    Environment,
    LeftOut,
    Note,
    Outcome,
    Point,
    Session,
    Subject,
    Workload,
)
from frameworktax.store import Writer, read
from frameworktax.sweep.executor import Done, Job, LocalExecutor, Platform
from frameworktax.sweep.grid import Planned
from frameworktax.sweep.plan import forecast, plan_blocks, plan_sweep, resumed, summary
from frameworktax.sweep.plan import plan as plan_of
from frameworktax.sweep.run import Sweep
from frameworktax.sweep.schedule import groups
from frameworktax.sweep.status import LOAD_S, POINT_S, Estimator, PointStatus, find_statuses
from frameworktax.sweep.study import load
from frameworktax.testing import FakeClock

HOST = Environment(host="h", system="s", python="3", cpu="c", cores=2, sampler="perf-event")


def point(model="mlp", runtime="eager", batch=1, **more) -> Point:
    return Point(workload=Workload(model=model, batch=batch, **more), runtime=runtime)


def session(name="a", sampler="perf-event") -> Session:
    where = replace(HOST, sampler=sampler)
    return Session(session=name, started=name, version="0", command=(), environment=where)


def block(of: Point, process=0, round_=0, session="a", ns=1000) -> Block:
    return Block(
        session=session, point=of.key(), process=process, round=round_, latency_ns=(ns,) * 5,
        pipelined_ns=5 * ns, pipelined_calls=5, cpu_ns=5 * ns,
    )  # fmt: skip


def attribution(of: Point, session="a") -> Attribution:
    return Attribution(
        session=session, point=of.key(), process=0, method="perf-event", calls=1, wall_ns=1,
        latency_ns=1,
    )  # fmt: skip


def outcome(of: Point, status="ok", session="a", process=0, reason=None, **more) -> Outcome:
    return Outcome(
        session=session, point=of.key(), process=process, status=status, reason=reason, **more
    )


EAGER, ORT = point(), point(runtime="onnxruntime")
SIX = [(p, r) for p in range(3) for r in range(2)]


@pytest.mark.parametrize(
    ("records", "status"),
    [
        ([], "open"),
        ([block(EAGER, p, r) for p, r in SIX], "open"),  # killed before it was asked where
        ([*(block(EAGER, p, r) for p, r in SIX), attribution(EAGER)], "measured"),
        ([block(EAGER), block(EAGER, 1), attribution(EAGER), outcome(EAGER)], "open"),  # one round
        ([block(EAGER), block(EAGER, round_=1), attribution(EAGER), outcome(EAGER)], "measured"),
        (
            [*(block(EAGER, p, r) for p, r in SIX),
             outcome(EAGER, notes=(Note("not-attributed", "x"),))],
            "measured",
        ),
        ([outcome(EAGER, "crashed", reason="SIGSEGV")], "open"),
        ([outcome(EAGER, "crashed"), outcome(EAGER, "failed", "b")], "given-up"),
        ([outcome(EAGER, "crashed", process=1), outcome(EAGER, "crashed", "b", 2)], "open"),
        ([LeftOut(session="a", point=EAGER, reason="the time budget")], "open"),
        ([outcome(EAGER, "unavailable", reason="not installed then")], "open"),
    ],
)  # fmt: skip
def test_the_status_of_a_point(records, status):
    assert (
        find_statuses([EAGER], [session(), session("b"), *records], attempts=2)[EAGER].status
        == status
    )


def test_without_a_sampler_or_symbols_blocks_are_enough():
    six = [block(EAGER, p, r) for p, r in SIX]
    assert find_statuses([EAGER], [session(sampler=None), *six], 2)[EAGER].status == "measured"
    six = [block(ORT, p, r) for p, r in SIX]
    assert find_statuses([ORT], [session(), *six], 2)[ORT].status == "measured"


def test_blocks_of_two_sessions_are_not_added_up():
    records = [session(), session("b"), *(block(ORT, p, 0) for p in range(3)),
               *(block(ORT, p, 0, "b") for p in range(3))]  # fmt: skip
    found = find_statuses([ORT], records, 2)[ORT]
    assert found.status == "open" and found.cut_off


def test_what_is_still_unavailable_is_not_tried_again():
    graph = point(runtime="cuda-graph")
    found = find_statuses([graph], [session(), outcome(graph, "unavailable", reason="none")], 2)[
        graph
    ]
    assert found.status == "unavailable" and found.reason


def test_a_workload_that_a_runtime_does_not_take_is_not_tried_again():
    nested = point(runtime="nested")
    records = [session(), outcome(nested, "unavailable", reason="ragged input only")]
    found = find_statuses([nested], records, 2)[nested]
    assert found.status == "unavailable" and "ragged" in found.reason


def test_what_only_the_model_shows_is_unavailable_in_this_sweep_and_asked_for_by_the_next():
    records = [session(), outcome(EAGER, "unavailable", reason="no such operator")]
    now = find_statuses([EAGER], records, 2, sessions=["a"])[EAGER]
    assert (now.status, now.reason) == ("unavailable", "no such operator")
    assert find_statuses([EAGER], records, 2)[EAGER].status == "open"


def test_a_sweep_that_resumes_says_from_where():
    points = [point(batch=n) for n in (1, 2, 4, 8)]
    records = [
        session(), session("b"), block(points[1]), outcome(points[2], "crashed"),
        *(outcome(points[3], "timeout", s) for s in "ab"),
        *(block(points[0], p, r) for p, r in SIX), attribution(points[0]),
    ]  # fmt: skip
    text = resumed(find_statuses(points, records, 2))
    assert re.findall(r"\d+", text) == ["1", "4", "1", "1", "1"]
    assert resumed(find_statuses(points, [], 2)) == ""


def plan(*points: Point, **more) -> list[Planned]:
    return [Planned(point=p, **more) for p in points]


def grouped(planned, memory=1e12, together=(), processes=3):
    found = groups(
        planned, Estimator(), processes=processes, together=together, memory_bytes=memory
    )
    return [(g.name, len(g.points)) for g in found]


def test_what_shares_a_session():
    planned = plan(
        *(point(m, r, b) for m in ("m1", "m2") for r in ("eager", "null") for b in (1, 2))
    ) + plan(point("m3", "eager", 1))
    assert grouped(planned) == [("m3", 1), ("m1", 4), ("m2", 4)]  # the cheaper first
    assert grouped(planned, together=[["m1", "m3"]]) == [("m2", 4), ("m1, m3", 5)]
    assert grouped(planned, together=[["m1", "m3"], ["m2", "m3"]]) == [("m1, m2, m3", 9)]
    urgent = [replace(p, priority=p.point.workload.model == "m2") for p in planned]
    assert grouped(urgent)[0] == ("m2", 4)


def test_a_workload_is_not_split_however_little_memory_there_is():
    planned = plan(*(point(runtime=r, length=n) for n in (1, 2) for r in ("eager", "onnxruntime")))
    assert grouped(planned, memory=1.0) == [("mlp (1 of 2)", 2), ("mlp (2 of 2)", 2)]
    assert grouped(planned, memory=1e12) == [("mlp", 4)]


def test_threads_are_not_mixed():
    planned = plan(EAGER, replace(EAGER, threads=2))
    assert len(grouped(planned)) == 2


def test_an_estimate_rests_on_the_store_where_it_can(monkeypatch):
    monkeypatch.setattr("frameworktax.host.usable_cpus", lambda: [0, 1])
    unknown = Estimator()
    assert unknown.seconds([EAGER], 3) == pytest.approx(3 * LOAD_S / 2 + 3 * POINT_S)
    assert not unknown.knows(EAGER)
    known = Estimator()
    for record in (
        Subject(session="a", point=EAGER, paradigm="eager"),
        block(EAGER, ns=10_000_000),
        outcome(EAGER, load_ns=2_000_000_000, peak_memory_bytes=123),
    ):
        known.add(record)
    assert known.knows(point(batch=64)) and not known.knows(ORT)
    assert known.memory_bytes(point(batch=64)) == 123
    # 5 blocks of 15 ms + 6 calls of 10 ms, each with a sample of 50 ms; 10 calls of warm-up; 2 s
    # to load
    assert known.seconds([EAGER], 1) == pytest.approx(2 / 2 + 5 * (0.075 + 0.05) + 0.1)
    # four times the batch, four times the call
    assert known.seconds([point(batch=4)], 1) == pytest.approx(2 / 2 + 5 * (0.255 + 0.05) + 0.4)


class FakeExecutor:
    """Measures by writing what a script says; knows what it was asked."""

    def __init__(self, folder, script=None):
        self.folder = folder
        self.script = script or (lambda job, p: "ok")
        self.jobs = []
        self.queue = []

    def platforms(self):
        return [Platform(label="local", device="cpu")]

    def submit(self, job):
        self.jobs.append(job)
        self.queue.append(job)

    def next_done(self, wait_s):
        if self.queue:
            job = self.queue.pop(0)
            name = f"s{len(list(self.folder.glob('*.jsonl'))) if self.folder.exists() else 0}"
            with Writer(self.folder, name) as writer:
                writer.write(session(name, sampler=None))
                for p in job.points:
                    status = self.script(job, p)
                    writer.write(Subject(session=name, point=p, paradigm="eager"))
                    writer.write(outcome(p, status, name, reason=None if status == "ok" else "why"))
                    for process, round_ in SIX if status == "ok" else []:
                        writer.write(block(p, process, round_, name))
            return Done(job=job, session=name, wall_ns=10**9)
        return None

    def cancel(self, name):
        return False

    def close(self):
        pass


class Listener(Reporter):
    def __init__(self):
        self.said = []
        self.counted = []

    def counts(self, counts):
        self.counted.append(counts)

    def session(self, number, total, name, left_s):
        self.said.append(f"{number}/{total} {name}")

    def say(self, text):
        self.said.append(text)


STUDY = {"grid": {"models": ["mlp", "bert-tiny"], "runtimes": ["eager"], "batch": [1, 2]}}


def sweep(tmp_path, executor, data=STUDY, resume=True, listener=None, clock=REAL):
    devices = {place.label: place.device for place in executor.platforms()}
    study = load(data, platforms=devices)
    reporter = listener or Listener()
    return Sweep(study, tmp_path, executor, reporter, ("x",), resume=resume, clock=clock)


def test_a_study_is_measured_once(tmp_path):
    executor, listener = FakeExecutor(tmp_path), Listener()
    results = sweep(tmp_path, executor, listener=listener).run()
    assert len(results) == 4 and len(executor.jobs) == 2
    assert listener.said == ["1/2 mlp", "2/2 bert-tiny"]
    again = FakeExecutor(tmp_path)
    results = sweep(tmp_path, again, listener=listener).run()
    assert again.jobs == [] and len(results) == 4
    assert listener.said[-1].startswith("resuming: 4 of 4 ")


def test_a_dry_run_that_does_not_resume_estimates_by_the_store(tmp_path):
    sweep(tmp_path, FakeExecutor(tmp_path)).run()
    found = plan_sweep(STUDY, store=tmp_path, resume=False)
    assert {one.status for one in found.statuses.values()} == {"open"} and found.known == 4


def test_without_resuming_everything_is_measured_anew(tmp_path):
    sweep(tmp_path, FakeExecutor(tmp_path)).run()
    executor = FakeExecutor(tmp_path)
    results = sweep(tmp_path, executor, resume=False).run()
    assert len(executor.jobs) == 2 and len(results) == 4


def test_without_resuming_no_result_is_of_an_earlier_sweep(tmp_path):
    sweep(tmp_path, FakeExecutor(tmp_path)).run()
    executor = FakeExecutor(tmp_path, lambda job, p: "failed" if p.workload.batch == 2 else "ok")
    results = sweep(tmp_path, executor, resume=False).run()
    assert {m.workload.batch: m.status for m in results} == {1: "ok", 2: "failed"}
    assert (results.run.points.measured, results.run.points.asked) == (2, 4)
    clock = FakeClock()
    budget = STUDY | {"study": {"time_budget": 60}}
    executor = FakeExecutor(tmp_path, lambda job, p: clock.wait(10**11) or "ok")
    results = sweep(tmp_path, executor, budget, resume=False, clock=clock).run()
    assert results.run.points.measured == 2 and any(
        "time budget" in t for t in results.run.left_out
    )


def test_a_crash_is_tried_again_and_then_given_up(tmp_path):
    executor = FakeExecutor(tmp_path, lambda job, p: "crashed" if p.workload.batch == 2 else "ok")
    results = sweep(tmp_path, executor).run()
    assert [len(job.points) for job in executor.jobs] == [2, 2, 1, 1]
    assert (
        sorted(s.status for s in results.statuses.values()) == ["given-up"] * 2 + ["measured"] * 2
    )
    executor = FakeExecutor(tmp_path)
    sweep(tmp_path, executor).run()
    assert executor.jobs == []


def test_a_plain_failure_is_tried_again_only_by_another_run(tmp_path):
    executor = FakeExecutor(tmp_path, lambda job, p: "failed" if p.workload.batch == 2 else "ok")
    listener = Listener()
    sweep(tmp_path, executor, listener=listener).run()
    assert listener.counted == [
        {"open": 4},
        {"measured": 1, "failed": 1, "open": 2},
        {"measured": 2, "failed": 2},
    ]
    assert len(executor.jobs) == 2
    executor = FakeExecutor(tmp_path)
    sweep(tmp_path, executor).run()
    assert [len(job.points) for job in executor.jobs] == [1, 1]


def test_what_a_node_does_not_have_is_counted_when_its_session_has_ended(tmp_path):
    class Node(FakeExecutor):
        def platforms(self):
            return [Platform(label="big", device="cpu", host="a")]

    executor = Node(tmp_path, lambda job, p: "unavailable" if p.workload.batch == 2 else "ok")
    data = {"grid": {**STUDY["grid"], "models": ["mlp"], "platform": ["big"]}}
    listener = Listener()
    sweep(tmp_path, executor, data, listener=listener).run()
    assert listener.counted == [{"open": 2}, {"measured": 1, "unavailable": 1}]


def test_budgets_are_shared_by_estimates_and_end(tmp_path):
    clock = FakeClock()
    data = {**STUDY, "study": {"time_budget": "100s"}}

    def slow(job, p):
        clock.wait(49 * 10**9)
        return "ok"

    executor = FakeExecutor(tmp_path, slow)
    results = sweep(tmp_path, executor, data, clock=clock).run()
    assert executor.jobs[0].plan.budget_s == pytest.approx(50.0)  # two jobs of one estimate
    assert len(executor.jobs) == 1  # 98 of 100 s are gone
    (left,) = results.run.left_out
    assert re.match(r"bert-tiny, eager, batch 1, 2: .*time budget of 100 s\b", left)
    assert {s.status for s in results.statuses.values()} == {"measured", "open"}


def test_notes_of_a_study_are_said(tmp_path):
    data = {**STUDY, "exclude": [{"batch": [99]}]}
    listener = Listener()
    sweep(tmp_path, FakeExecutor(tmp_path), data, listener=listener).run()
    assert listener.said[0].startswith("study: exclude.0 ")


def test_nothing_measured(tmp_path):
    executor = FakeExecutor(tmp_path, lambda job, p: "failed")
    with pytest.raises(NothingMeasuredError, match="why"):
        sweep(tmp_path, executor).run()


def test_a_store_may_hold_other_things(tmp_path):
    sweep(tmp_path, FakeExecutor(tmp_path)).run()
    one = {"grid": {"models": ["mlp"], "runtimes": ["eager"], "batch": [2]}}
    results = sweep(tmp_path, FakeExecutor(tmp_path), one).run()
    assert [(m.workload.model, m.workload.batch) for m in results] == [("mlp", 2)]


def test_a_document_is_of_the_sessions_that_measured_its_points(tmp_path):
    sweep(tmp_path, FakeExecutor(tmp_path)).run()
    where = replace(HOST, host="elsewhere")
    other, floor = point("lstm"), point("null", "null")
    with Writer(tmp_path, "z") as writer:
        writer.write(replace(session("z"), environment=where))
        for p in (other, floor):
            writer.write(Subject(session="z", point=p, paradigm="eager"))
            for process, round_ in SIX:
                writer.write(block(p, process, round_, "z"))
        for round_ in range(9):
            writer.write(Calibration(session="z", round=round_, latency_ns=(1000 << round_,)))
        writer.write(Effort(session="z", wall_ns=9, setup_ns=0, measuring_ns=9, calls_ns=1))
    run = sweep(tmp_path, FakeExecutor(tmp_path)).run().run
    assert run.environment.host == HOST.host
    assert (run.host_drift, run.own_tax, run.harness_floor_ns) == (None, None, None)
    assert len(run.measurements) == 4 and not run.notes


def test_the_environment_is_looked_up_once_a_sweep(tmp_path, monkeypatch):
    fake_measuring.install(monkeypatch.setattr)
    loads = iter((1.0, 2.0))
    monkeypatch.setattr(
        sys.modules["frameworktax.sweep.executor"],
        "this_environment",
        lambda: replace(HOST, load_1min=next(loads)),
    )
    for name, load_1min in (("a", 1.0), ("b", 2.0)):
        folder = tmp_path / name
        sweep(folder, LocalExecutor(folder, "cpu", Reporter(), ("x",))).run()
        records, _ = read(folder)
        sessions = [r.environment for r in records if isinstance(r, Session)]
        assert [one.load_1min for one in sessions] == [load_1min] * 2


def test_the_executor_of_this_host_takes_jobs_back_before_they_begin(tmp_path):
    executor = LocalExecutor(tmp_path, "cuda:0", Reporter(), ("x",))
    assert [(p.label, p.device) for p in executor.platforms()] == [
        ("local", "cuda:0"), ("cpu", "cpu"), ("cuda:0", "cuda:0"),
    ]  # fmt: skip
    assert {p.host for p in executor.platforms()} == {"here"}  # one job at a time
    for name in "abc":
        executor.submit(Job(name=name, platform="local", plan=Plan(points=(EAGER,))))
    assert executor.cancel("b") and not executor.cancel("b")
    executor.close()
    assert executor.next_done(0.0) is None


def test_a_study_may_name_every_device_of_this_host(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "gpus", lambda: ({"index": 0},) * 3)
    for device, more in (("cuda:0", {"cuda:0", "cuda:1", "cuda:2"}), ("cpu", set())):
        executor = LocalExecutor(tmp_path, device, Reporter(), ("x",))
        found = {place.label: place.device for place in executor.platforms()}
        assert found == {"local": device, "cpu": "cpu", **{name: name for name in more}}


def test_more_threads_than_processors_are_refused_unless_forced(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "usable_cpus", lambda: (0, 1))
    three = {"grid": {"models": ["mlp"], "runtimes": ["eager"], "batch": [1], "threads": [1, 3]}}
    for begin in (plan_sweep, ft.sweep):
        with pytest.raises(UsageError, match=r"3 threads on 2 processors .* --force-threads"):
            begin(three, store=tmp_path)
    assert not any(tmp_path.iterdir())
    assert len(plan_sweep(three, store=tmp_path, force_threads=True).groups) == 2
    executor = FakeExecutor(tmp_path)
    run = sweep(tmp_path, executor, three)
    run.force_threads = True
    run.run()
    assert [job.plan.force_threads for job in executor.jobs] == [True, True]


def test_a_node_refuses_more_threads_than_it_has_processors(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "usable_cpus", lambda: (0, 1))
    executor = LocalExecutor(tmp_path, "cpu", Reporter(), ("x",))
    three = replace(EAGER, threads=3)
    done = executor.run(Job(name="a", platform="local", plan=Plan(points=(three,))))
    executor.close()
    assert "3 threads on 2 processors" in str(done.error)
    ends = [r for r in read(tmp_path)[0] if isinstance(r, Outcome)]
    assert [(r.point, r.status, r.reason) for r in ends] == [
        (three.key(), "failed", str(done.error))
    ]


def test_a_dry_run_and_a_summary_in_words(tmp_path):
    data = {**STUDY, "study": {"time_budget": "5s"}}
    before = plan_of(load(data), [])
    first = plan_blocks(before)[0].rows[0]
    assert [cell.text for cell in first] == ["1", "mlp", "eager", "batch 1", "open"]
    text = forecast(before)
    assert re.findall(r"\d+", text[0]) == ["4", "4", "2", "0"]
    assert "store" not in text[1] and text[2].startswith("time budget 5 s; ")
    assert "2 of 4 points" in forecast(replace(before, known=2))[1]
    every = forecast(replace(before, known=4))[1]
    assert "store" in every and " of 4 " not in every
    executor = FakeExecutor(tmp_path, lambda job, p: "crashed" if p.workload.batch == 2 else "ok")
    done = sweep(tmp_path, executor).run()
    done.wall_ns = 12_000_000_000
    lines = summary(done)
    assert any(re.search(r"mlp, eager, batch 2: crashed .*\b2\b.*: why$", one) for one in lines)
    assert lines[-1] == "2 of 4 points measured, 2 given up; took 12 s"
    lacking = {p: "unavailable" if one.status == "given-up" else one.status
               for p, one in done.statuses.items()}  # fmt: skip
    done.statuses = {p: PointStatus(status) for p, status in lacking.items()}
    assert summary(done)[-1] == "2 points measured, 2 not available here; took 12 s"
    done.plan = replace(before, statuses={**before.statuses, EAGER: PointStatus("measured")})
    assert EAGER in before.statuses
    assert summary(done)[-1].startswith("2 points measured, 1 of them before, 2 not ")
    json.dumps(before.as_data())


def test_a_sweep_that_resumes_says_which_intervals_are_wider_than_the_study_asks_now(tmp_path):
    with Writer(tmp_path, "a") as writer:
        blocks = [block(EAGER, p, r, ns=1000 + 50 * p) for p, r in SIX]
        subject = Subject(session="a", point=EAGER, paradigm="eager")
        for record in (session(sampler=None), subject, *blocks, outcome(EAGER)):
            writer.write(record)
    data = {"grid": {"models": "mlp", "runtimes": "eager", "batch": 1}}
    for until, wide in (("1%", True), ("90%", False)):
        executor = FakeExecutor(tmp_path)
        done = sweep(tmp_path, executor, data | {"study": {"until": until}}).run()
        assert not executor.jobs and ("--no-resume" in summary(done)[-1]) is wide


def test_a_sweep_without_a_result_writes_its_document(tmp_path, monkeypatch):
    executor = FakeExecutor(tmp_path, lambda job, p: "failed")
    monkeypatch.setattr(
        sys.modules["frameworktax.sweep.run"],
        "sweep",
        lambda *a, **k: sweep(tmp_path, executor).run(),
    )
    path = tmp_path / "sweep.json"
    with pytest.raises(NothingMeasuredError) as nothing:
        app(["sweep", "study.toml", "--quiet", "--json", str(path)], standalone_mode=False)
    assert nothing.value.exit_code == 1
    document = json.loads(path.read_text())
    assert document["points"]["measured"] == 0 < document["points"]["asked"]
    assert {(m["status"], m["reason"]) for m in document["measurements"]} == {("failed", "why")}


def test_a_quiet_sweep_says_how_many_points_are_missing(tmp_path, monkeypatch, capsys):
    executor = FakeExecutor(tmp_path, lambda job, p: "crashed" if p.workload.batch == 2 else "ok")
    monkeypatch.setattr(
        sys.modules["frameworktax.sweep.run"],
        "sweep",
        lambda *a, **k: sweep(tmp_path, executor).run(),
    )
    app(["sweep", "study.toml", "--quiet"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("frameworktax: 2 of 4 points") and err.count("\n") == 1
