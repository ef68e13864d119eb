"""A sweep over nodes that crash, hang, leave and join: simulated, on a clock that jumps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_cluster import DriverKilled, Faults, SimulatedCluster, Truth, faults_of

from frameworktax.errors import NothingMeasuredError, StoreError
from frameworktax.measure.plan import Plan
from frameworktax.measure.reporter import Reporter
from frameworktax.records import Outcome, Point, Workload, device_of
from frameworktax.store import read
from frameworktax.sweep.executor import Done, Job, Platform
from frameworktax.sweep.grid import Planned
from frameworktax.sweep.plan import plan, scan, summary
from frameworktax.sweep.run import AWAY_S, Sweep
from frameworktax.sweep.schedule import Group, Queue, Retries, groups, halves
from frameworktax.sweep.status import Estimator, find_statuses
from frameworktax.sweep.study import load
from frameworktax.testing import FakeClock

NODES = {"big": 12, "small": 8}
RUNTIMES = ["eager", "inference-mode", "torchscript-frozen", "onnxruntime"]


def study(widths=5, runtimes=4, batches=5, **settings_):
    grid = {
        "models": ["mlp"],
        "runtimes": RUNTIMES[:runtimes],
        "batch": [2**i for i in range(batches)],
        "width": [1 + i for i in range(widths)],
        "depth": [1, 2],
        "platform": list(NODES),
    }
    return load({"study": settings_, "grid": grid}, platforms=dict.fromkeys(NODES, "cpu"))


class Listener(Reporter):
    def __init__(self):
        self.said = []
        self.begun = []

    def say(self, text):
        self.said.append(text)

    def session(self, number, total, name, left_s):
        self.begun.append((number, total))


def sweep(planned, folder, cluster, clock, listener=None):
    reporter = listener or Listener()
    return Sweep(planned, folder, cluster, reporter, ("x",), resume=True, clock=clock)


def everything(planned, seed, **more):
    drawn = random.Random(seed).sample(planned.points, len(planned.points) // 20)
    part = max(1, len(drawn) // 4)
    return Faults(
        crash=0.05, hang=0.03, twice=0.1, late=0.3, node_s=60.0, joining=(100.0, 200.0),
        poison=frozenset(drawn[:part]), failing=frozenset(drawn[part : 2 * part]),
        flaky=frozenset(drawn[2 * part :]), **more,
    )  # fmt: skip


def test_four_hundred_points_over_twenty_nodes_and_two_drivers(tmp_path):
    planned, truth, clock, listener = study(), Truth(), FakeClock(), Listener()
    store = tmp_path / "store"
    first = SimulatedCluster(store, clock, NODES, everything(planned, 5, driver_s=90.0), 5, truth)
    with pytest.raises(DriverKilled):
        sweep(planned, store, first, clock).run()
    assert 0 < len(truth.measured) < 400
    drawn = everything(planned, 5)
    cluster = SimulatedCluster(store, clock, NODES, drawn, 6, truth)
    results = sweep(planned, store, cluster, clock, listener).run()
    assert faults_of(results, truth, drawn, attempts=2) == []
    assert len(results.statuses) == 400
    assert {"node left", "its node left", "poison", "reported twice", "records twice"} <= set(
        truth.happened
    )
    assert listener.said[0].startswith("resuming: ")
    assert any("result ignored" in text for text in listener.said)
    assert any(" in halves" in text for text in listener.said)
    given_up = [text for text in summary(results) if text.startswith("given up: ")]
    assert len(given_up) == sum(one.status == "given-up" for one in results.statuses.values()) > 0
    left = plan(planned, scan(store)).groups
    assert {point for one in left for point in one.points} <= drawn.failing


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_whatever_happens(tmp_path, seed):
    planned, clock = study(widths=2, runtimes=2, batches=2), FakeClock()
    drawn = everything(planned, seed)
    cluster = SimulatedCluster(tmp_path, clock, {"big": 2, "small": 1}, drawn, seed)
    results = sweep(planned, tmp_path, cluster, clock).run()
    assert faults_of(results, cluster.truth, drawn, attempts=2) == []


def test_what_is_lost_doubled_or_invented_is_seen(tmp_path):
    planned, clock = study(widths=1, runtimes=1, batches=2), FakeClock()
    cluster = SimulatedCluster(tmp_path, clock, NODES, Faults(), 1)
    run = sweep(planned, tmp_path, cluster, clock)
    results = run.run()
    assert faults_of(results, cluster.truth, Faults(), 2) == []
    point, sessions = next(iter(cluster.truth.measured.items()))
    cluster.truth.measured[point] = []
    assert any(
        text.startswith("invented") for text in faults_of(results, cluster.truth, Faults(), 2)
    )
    cluster.truth.measured[point] = ["another"]
    assert any("not as measured" in text for text in faults_of(results, cluster.truth, Faults(), 2))
    cluster.truth.measured[point] = sessions
    shard = next(tmp_path.glob("*.jsonl"))
    shard.write_bytes(b"".join(shard.read_bytes().splitlines(keepends=True)[:-4]))
    assert any(
        "blocks in the store" in text for text in faults_of(results, cluster.truth, Faults(), 2)
    )


def test_what_kills_its_session_is_found_and_those_beside_it_are_measured(tmp_path):
    planned, clock, listener = study(widths=1, runtimes=2, batches=2), FakeClock(), Listener()
    culprit = planned.points[3]
    cluster = SimulatedCluster(
        tmp_path, clock, dict.fromkeys(NODES, 1), Faults(poison=frozenset([culprit])), 1
    )
    results = sweep(planned, tmp_path, cluster, clock, listener).run()
    standings = {point: one.status for point, one in results.statuses.items()}
    assert standings.pop(culprit) == "given-up"
    assert set(standings.values()) == {"measured"}
    assert cluster.truth.lost_alone == {culprit: 2}
    records, _ = read(tmp_path)
    faults = [r for r in records if isinstance(r, Outcome) and r.status != "ok"]
    assert [(f.point, f.status) for f in faults] == [(culprit.key(), "out-of-memory")] * 2
    (line,) = [text for text in summary(results) if text.startswith("given up")]
    assert "out-of-memory in 2 sessions" in line and line.endswith("poison")
    assert (
        results.run.environment.host == "simulated"
    )  # and not the driver, which wrote the failure
    names = [job.name for job in cluster.jobs]
    assert len(names) == len(set(names))  # a late end of the first try is not the second's
    assert listener.begun[-1] == (len(names), len(names))


def test_a_session_lost_once_is_run_again_whole(tmp_path):
    planned, clock = study(widths=1, runtimes=2, batches=2), FakeClock()
    cluster = SimulatedCluster(tmp_path, clock, dict.fromkeys(NODES, 1), Faults(), 2)

    def shot():
        run = next(run for run in cluster._running.values() if run.job.platform == "big")
        cluster._lose(run, "crashed", "SIGKILL")

    cluster._at(2.0, shot)
    results = sweep(planned, tmp_path, cluster, clock).run()
    assert {one.status for one in results.statuses.values()} == {"measured"}
    first, again = (job for job in cluster.jobs if job.platform == "big")
    assert set(again.points) < set(first.points)  # the points that it had measured stay measured
    assert all(len(cluster.truth.measured[point]) == 1 for point in first.points)
    assert cluster.recoveries[0][0] == 0  # its place is the first that is free


def test_the_last_point_of_a_lost_session_was_not_alone_in_it():
    planned = study(widths=1, runtimes=1, batches=2)
    group = Group(name="g", planned=planned.planned[:3], estimate_s=3.0)
    outcomes = [
        Outcome(session="a", point=p.key(), process=0, status="failed") for p in group.points
    ]

    def after(group, outcomes):
        statuses, queue = find_statuses(group.points, outcomes, 2), Queue()
        blamed, _ = Retries(queue, {}, attempts=2).after(group, statuses, lost=True)
        return blamed, list(queue)

    blamed, (first, *_) = after(group, outcomes[:2])
    assert blamed is None
    assert (first.points, first.losses) == ((group.points[2],), 1)
    blamed, (later,) = after(first, [])
    assert blamed == group.points[2] and later.failed
    assert not any(one.losses for one in after(group, outcomes)[1])


def leave_all(cluster, label):
    """Let every node of a label go for good."""
    for node in [node for node, its in cluster._label.items() if its == label]:
        cluster._gone(node)


def test_a_platform_without_nodes_is_waited_for_and_then_left_out(tmp_path):
    planned, clock, listener = study(widths=1, runtimes=1, batches=2), FakeClock(), Listener()
    cluster = SimulatedCluster(tmp_path, clock, NODES, Faults(), 1)
    leave_all(cluster, "small")
    results = sweep(planned, tmp_path, cluster, clock, listener).run()
    by_platform = {point.platform: one.status for point, one in results.statuses.items()}
    assert by_platform == {"cpu@big": "measured", "cpu@small": "open"}
    assert any("platform 'small'" in text for text in listener.said)
    assert any("platform 'small'" in text for text in results.run.left_out)
    assert AWAY_S <= clock.now_ns / 1e9 < AWAY_S + 60


class Unaware(SimulatedCluster):
    """Offers nodes that are dead, as a cluster does that has not noticed yet."""

    def platforms(self):
        assert self._clock.now_ns < 1000e9, "the sweep goes on long after its budget"
        return [replace(place, slots=1) for place in super().platforms()]


def test_the_budget_ends_what_an_executor_could_not_begin(tmp_path):
    planned, clock = study(widths=1, runtimes=1, batches=2, time_budget="100s"), FakeClock()
    cluster = Unaware(tmp_path, clock, NODES, Faults(), 1)
    leave_all(cluster, "small")
    results = sweep(planned, tmp_path, cluster, clock).run()
    by_platform = {point.platform: one.status for point, one in results.statuses.items()}
    assert by_platform == {"cpu@big": "measured", "cpu@small": "open"}
    assert any("time budget of 100 s" in text for text in results.run.left_out)
    assert clock.now_ns / 1e9 <= 110


def test_a_platform_that_comes_back_is_measured(tmp_path):
    planned, clock = study(widths=1, runtimes=1, batches=2), FakeClock()
    cluster = SimulatedCluster(tmp_path, clock, NODES, Faults(), 1)
    leave_all(cluster, "small")
    cluster._at(AWAY_S - 60, lambda: cluster._join("small"))
    results = sweep(planned, tmp_path, cluster, clock).run()
    assert {one.status for one in results.statuses.values()} == {"measured"}


class Scripted:
    """An executor that returns what a script says."""

    def __init__(self, ends):
        self.ends = list(ends)
        self.jobs = []

    def platforms(self):
        return [Platform(label="local", device="cpu", slots=2)]

    def submit(self, job):
        self.jobs.append(job)

    def next_done(self, wait_s):
        return self.ends.pop(0)(self.jobs) if self.ends else None

    def cancel(self, name):
        return False


def test_a_node_that_joins_takes_one_session(tmp_path):
    clock, hosts, running, counts = FakeClock(), ["a"], [], []

    class Growing(Scripted):
        def platforms(self):
            host = "+".join(hosts)
            return [Platform(label="local", device="cpu", host=host, slots=len(hosts))]

        def submit(self, job):
            running.append(job)

        def next_done(self, wait_s):
            counts.append(len(running))
            clock.sleep(wait_s)
            if len(hosts) == 1:
                hosts.append("b")
                return None
            return Done(job=running.pop(0), session="", wall_ns=10**9)

    models = ["mlp", "lstm", "gpt2", "bert-tiny"]
    data = {"grid": {"models": models, "runtimes": ["eager"], "batch": [1]}}
    with pytest.raises(NothingMeasuredError):
        sweep(load(data), tmp_path, Growing([]), clock).run()
    assert counts == [1, 2, 2, 2, 1]


def test_an_unknown_end_is_ignored_and_a_job_without_one_is_an_error(tmp_path):
    data = {"grid": {"models": ["mlp"], "runtimes": ["eager"], "batch": [1]}}
    other = Job(name="other", platform="local", plan=Plan(points=()))
    executor = Scripted([lambda jobs: Done(job=other, session="", wall_ns=0)])
    listener = Listener()
    with pytest.raises(StoreError, match="lost a job"):
        sweep(load(data), tmp_path, executor, FakeClock(), listener).run()
    assert [said.partition(": ")[0] for said in listener.said] == ["other"]


def test_two_labels_of_one_device_are_two_points():
    planned = study(widths=1, runtimes=1, batches=1)
    assert {p.platform for p in planned.points} == {"cpu@big", "cpu@small"}
    assert {device_of(p.platform) for p in planned.points} == {"cpu"}
    assert len({p.key() for p in planned.points}) == len(planned.points) == 4
    here = load({"grid": {"models": ["mlp"], "platform": ["local", "cpu"]}})
    assert {p.platform for p in here.points} == {"cpu"}


def test_what_a_node_does_not_have_is_not_asked_for_twice_in_one_sweep():
    point = Point(workload=Workload(model="mlp"), runtime="onnxruntime", platform="cpu@big")
    outcome = Outcome(
        session="a", point=point.key(), process=0, status="unavailable", reason="none"
    )
    assert find_statuses([point], [outcome], 2, sessions={"a"})[point].status == "unavailable"
    later = find_statuses([point], [outcome], 2)[point]
    assert (later.status, later.reason) == ("open", "none")


def cut(planned, slots):
    platforms = [Platform(label="big", device="cpu", host="big", slots=slots)]
    return groups(
        [one for one in planned.planned if one.platform == "big"], Estimator(), processes=3,
        together=(), memory_bytes=1e15, platforms=platforms,
    )  # fmt: skip


def test_many_nodes_share_a_model_by_its_workloads():
    planned = study(widths=5)
    (whole,) = cut(planned, 1)
    parts = cut(planned, 40)
    assert len(parts) == 10  # five widths of two depths, each with its runtimes and batches
    assert sum(part.estimate_s for part in parts) == pytest.approx(whole.estimate_s)
    for part in parts:
        assert len({(p.workload.width, p.workload.depth) for p in part.points}) == 1
        assert len({p.without_batch() for p in part.points}) == 4 and len(part.points) == 20


def test_a_plan_counts_nodes_that_work_side_by_side():
    planned = study(widths=5)

    def places(slots):
        return [
            Platform(label="big", device="cpu", host="a", slots=slots),
            Platform(label="small", device="cpu", host="b"),
        ]

    one, many = (plan(planned, [], platforms=places(slots)) for slots in (1, 5))
    total = sum(group.estimate_s for group in one.groups)
    assert one.whole_s == pytest.approx(total / 2) == pytest.approx(many.whole_s)
    same = plan(planned, [], platforms=[Platform(label=n, device="cpu") for n in NODES])
    assert same.whole_s == pytest.approx(total)


def test_halves_cut_workloads_then_runtimes_then_batches():
    planned = study(widths=2, runtimes=2, batches=2)
    big = [one for one in planned.planned if one.platform == "big"]
    found = [Group(name="g", planned=tuple(big), estimate_s=16.0, losses=1)]
    seen = []
    while len(found[0].planned) > 1:
        found = halves(found[0])
        seen.append([len(side.planned) for side in found])
        assert sum(side.estimate_s for side in found) == pytest.approx(
            len(found[0].planned) + len(found[1].planned)
        )
    assert seen == [[8, 8], [4, 4], [2, 2], [1, 1]]
    first = halves(Group(name="g", planned=tuple(big), estimate_s=1.0))[0]
    widths = {(p.workload.width, p.workload.depth) for p in first.points}
    rest = {(p.workload.width, p.workload.depth) for p in halves(first)[1].points}
    assert len(widths) == 2 and len(rest) == 1


def group(label, seconds):
    point = Point(workload=Workload(model="mlp"), runtime="eager")
    return Group(name="g", planned=(Planned(point=point, platform=label),), estimate_s=seconds)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans()), min_size=1, max_size=40
    )
)
def test_a_queue_gives_what_came_first(steps):
    queue, model = Queue(), []
    for label, seconds, takes in steps:
        if takes and model:
            found = queue.take([name for name in "abc" if name != label])
            first = next((one for one in model if one.platform != label), None)
            assert found is first
            if first is not None:
                model.remove(first)
                if seconds == 9:  # lost: it is the next one again
                    queue.appendleft(first)
                    model.insert(0, first)
        else:
            queue.append(one := group(label, float(seconds)))
            model.append(one)
    assert list(queue) == model
    assert list(queue.drain("abc")) == model and not queue


def test_time_is_shared_among_places(tmp_path):
    planned, clock = study(widths=5, runtimes=1, batches=2, time_budget="300s"), FakeClock()
    cluster = SimulatedCluster(tmp_path, clock, {"big": 2, "small": 1}, Faults(), 3)
    found = plan(planned, [], platforms=cluster.platforms()).groups
    big = [one.estimate_s for one in found if one.platform == "big"]
    assert len(big) > 2 and len(found) == len(big) + 1
    sweep(planned, tmp_path, cluster, clock).run()
    first = next(job for job in cluster.jobs if job.platform == "big")
    alone = next(job for job in cluster.jobs if job.platform == "small")
    assert first.plan.budget_s == pytest.approx(300 * 2 * big[0] / sum(big))
    assert alone.plan.budget_s == pytest.approx(300)
    assert clock.now_ns / 1e9 <= 300.0
