"""When a point is done, what is asked of whom, and what a dying process leaves behind."""

import json
import math
import random
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fake_workers import made_bench, timed
from sample_records import to_json

from frameworktax import store
from frameworktax.analysis.grouping import gather
from frameworktax.errors import WorkerError
from frameworktax.measure import protocol
from frameworktax.measure.plan import Plan
from frameworktax.measure.protocol import Described, Facts
from frameworktax.measure.rounds import DEVICE_SHARE, Rounds
from frameworktax.measure.schedule import (
    DEVICE_FIRST_S,
    DEVICE_S,
    MAX_BLOCKS,
    by_place,
    cost_s,
    has_converged,
    has_tax,
    is_narrow,
    narrowing,
    next_try,
    placed_in,
    processes_differ,
)
from frameworktax.measure.series import PointRun, Series
from frameworktax.measure.setup import Setup
from frameworktax.measure.timing import BLOCK_NS, calls_for
from frameworktax.measure.worker import Server
from frameworktax.records import (
    Attribution,
    Block,
    Environment,
    Outcome,
    Point,
    Session,
    Workload,
)
from frameworktax.store import upkeep
from frameworktax.testing import FakeRuntime

DIFFERENT = [[100.0] * 3, [150.0] * 3, [200.0] * 3]
SAME = [[80.0, 120.0, 100.0], [120.0, 80.0, 100.0], [80.0, 120.0, 101.0]]
HERE = Environment(host="h", system="Linux", python="3", cpu="c", cores=1)


class FakeWorker:
    """Answers blocks with scripted medians; ``None`` in the script is a crash."""

    def __init__(self, script):
        self.script = list(script)
        self.alive = True
        self.asked = []
        self.sampled = {"kernel": 1}
        self.printed_bytes = 0
        self.started, self.notes = "started", []

    def request(self, method, *_, **given):
        do = method.__name__
        self.asked.append(do)
        if do == "block":
            value = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if value is None:
                self.alive = False
                raise WorkerError("crashed", "SIGSEGV during block")
            return timed(value, 5)
        if do in ("sample", "device"):
            return protocol.attribution(
                {
                    "method": "perf-event",
                    "calls": 1,
                    "wall_ns": 10,
                    "latency_ns": 10,
                    "samples": (self.sampled,),
                    "notes": [("a-code", "a text")],
                }
            )
        if do == "places":
            fields = {"method": given["by"], "calls": 1, "latency_ns": 10, "wall_ns": 10}
            return protocol.places({**fields, "modules": (), "notes": []})
        return None

    def kill(self):
        self.alive = False


def series_of(tmp_path, point, scripts):
    """One point in a process per script."""
    series = Series(runtime=FakeRuntime(), points={1: point}, folder=tmp_path)
    for process, script in enumerate(scripts):
        series.workers[process] = FakeWorker(script)
        series.runs[1, process] = series.bound[1, process] = PointRun(
            series, 1, process, calls=5, call_ns=1
        )
    return series


@contextmanager
def rounds_of(tmp_path, series, *, until=0.03, budget_s=1e6, sampler=None, by="none"):
    plan = Plan(points=(), folder=tmp_path, until=until, budget_s=budget_s, by=by)
    with store.Writer(tmp_path / "s", "session") as writer:
        bench = made_bench(plan, series, writer, tmp_path, sampler)
        with bench.effort.spending("measuring"):
            yield Rounds(bench, cpus=[0], seed="seed")


def run(tmp_path, scripts, *, until=0.03):
    """Run one point with a process per script; return (records, workers)."""
    point = Point(workload=Workload(model="m", batch=1), runtime="fake")
    series = series_of(tmp_path, point, scripts)
    workers = dict(series.workers)
    with rounds_of(tmp_path, [series], until=until, sampler="perf-event") as rounds:
        rounds.precise()
    records, notes = store.read(tmp_path / "s")
    assert notes == []
    return records, workers


def noise(share):
    """Three processes of one speed, blocks that vary by ``share``."""
    rng = random.Random(3)
    return [[round(10_000 * (1 + rng.gauss(0, share))) for _ in range(20)] for _ in range(3)]


def blocks(records):
    return [r for r in records if isinstance(r, Block)]


def test_each_block_is_followed_by_a_sample_of_the_same_process_and_round(tmp_path):
    point = Point(workload=Workload(model="m", batch=1), runtime="fake")
    series = series_of(tmp_path, point, [[100], [101]])
    with rounds_of(tmp_path, [series], sampler="perf-event") as rounds:
        rounds.first(list(series.runs.values()))
    for worker in series.workers.values():
        assert [do for do in worker.asked if do != "pin"] == ["block", "sample"] * 2
    records, _ = store.read(tmp_path / "s")
    (found, *_) = [r for r in records if isinstance(r, Attribution)]
    assert found.samples == ({"kernel": 1},) and found.notes[0].code == "a-code"
    timed = [(r.process, r.round) for r in records if isinstance(r, Block)]
    assert [(r.process, r.round) for r in records if isinstance(r, Attribution)] == timed


def test_a_session_killed_after_any_record_is_a_whole_store(tmp_path):
    """A point is described before anything is said of it, and once more when more is known."""
    point = Point(workload=Workload(model="m", batch=1), runtime="fake")
    series = series_of(tmp_path, point, [[100], [101]])
    with rounds_of(tmp_path, [series]) as rounds:
        rounds.first(list(series.runs.values()))
        rounds._bench.recorder.subjects(
            series, Described(facts={1: Facts(flops=7)}, has_twin=False)
        )
        rounds._bench.recorder.outcome(series, 1, 0, None, series.runs[1, 0])
    (shard,) = (tmp_path / "s").iterdir()
    header, *lines = shard.read_bytes().splitlines(keepends=True)
    session = Session(session="session", started="", version="", command=(), environment=HERE)
    begin = header + json.dumps(to_json(session)).encode() + b"\n"
    for count in range(len(lines) + 1):
        shard.write_bytes(begin + b"".join(lines[:count]))
        assert upkeep.check(shard.parent).damage == ()
        points, _ = gather(store.read(shard)[0])
        kinds = [json.loads(line)["record"] for line in lines[:count]]
        assert sum(len(p.blocks) for p in points) == kinds.count("block")
    assert kinds.count("subject") == 2
    assert points[0].subject.final and points[0].subject.flops == 7


@pytest.mark.parametrize(
    ("scripts", "until", "count"),
    [([[100], [101], [100]], 0.03, 6), ([[100], [150], [200]], 0.03, 6), ([[100]], 0.03, 5),
     (noise(0.2), 0.03, MAX_BLOCKS), (noise(0.2), 0.0001, MAX_BLOCKS), (noise(0.2), 0.9, 6)],
    ids=["steady", "processes differ", "one process", "noisy", "narrow target", "wide target"],
)  # fmt: skip
def test_a_point_is_done_once_it_has_blocks_enough(tmp_path, scripts, until, count):
    found = blocks(run(tmp_path, scripts, until=until)[0])
    assert len(found) == count
    assert {r.round for r in found} == set(range(-(-count // len(scripts))))


@pytest.mark.parametrize(("processes", "count"), [(1, 30), (3, 30), (12, 120)])
def test_the_most_blocks_of_a_point_go_with_its_processes(processes, count):
    rng = random.Random(1)
    medians = [[rng.gauss(1, 0.3) for _ in range(count // processes)] for _ in range(processes)]
    assert has_converged(medians, 0.001) and not is_narrow(medians, 0.001)
    medians[0].pop()
    assert not has_converged(medians, 0.001)


def test_a_process_that_dies_is_recorded_and_the_others_go_on(tmp_path):
    records, _ = run(tmp_path, [[100], [100, None], [100], [100]])
    assert {r.process for r in blocks(records) if r.round == 1} == {0, 2, 3}
    (lost,) = [r for r in records if isinstance(r, Outcome)]
    assert (lost.process, lost.status) == (1, "crashed")
    assert "SIGSEGV" in lost.reason


def test_points_that_are_compared_leave_together(tmp_path):
    """A steady runtime stays in until the noisy one beside it is told as well."""
    series = [
        series_of(tmp_path, Point(workload=Workload(model="m", batch=1), runtime=name), scripts)
        for name, scripts in (("steady", [[100]] * 3), ("noisy", noise(0.2)))
    ]
    with rounds_of(tmp_path, series) as rounds:
        rounds.precise()
    asked = [[worker.asked.count("block") for worker in s.workers.values()] for s in series]
    assert asked == [[MAX_BLOCKS // 3] * 3] * 2


def test_the_smallest_batch_is_in_every_round_of_a_larger_one(tmp_path):
    """The free batch is read off ratios to it, and only blocks of one round are pairs."""
    small = Point(workload=Workload(model="m", batch=1), runtime="f")
    large = replace(small, workload=replace(small.workload, batch=8))
    series = series_of(tmp_path, small, noise(0.2))
    series.points[8] = large
    for process in series.workers:
        series.runs[8, process] = series.bound[8, process] = PointRun(
            series, 8, process, calls=5, call_ns=1
        )
    with rounds_of(tmp_path, [series], sampler="perf-event") as rounds:
        rounds.precise()
    records, _ = store.read(tmp_path / "s")
    timed = {p.key(): [b for b in blocks(records) if b.point == p.key()] for p in (small, large)}
    rounds_of_small = {(b.process, b.round) for b in timed[small.key()]}
    assert timed[large.key()]
    assert {(b.process, b.round) for b in timed[large.key()]} <= rounds_of_small


def test_groups_are_joined_where_every_process_takes_part(tmp_path):
    """One round for all batches, in which the smallest is timed once; long ones stay apart.

    The smallest is in the rounds of the others too, and has two blocks sooner.
    """
    small = Point(workload=Workload(model="m", batch=1), runtime="f")
    large = [replace(small, workload=replace(small.workload, batch=batch)) for batch in (8, 16)]
    for call_ns, rounds_wanted in ((1, 2), (3_000_000_000, 5)):
        folder = tmp_path / str(call_ns)
        series = series_of(folder, small, [[100] * 9] * 2)
        for point in large:
            batch = point.workload.batch
            series.points[batch] = point
            for process in series.workers:
                run = PointRun(series, batch, process, calls=5, call_ns=call_ns)
                series.runs[batch, process] = series.bound[batch, process] = run
        with rounds_of(folder, [series]) as rounds:
            rounds.all_processes()
        records, _ = store.read(folder / "s")
        found = blocks(records)
        assert len({b.round for b in found}) == rounds_wanted
        keys = [(b.point, b.process, b.round) for b in found]
        assert len(keys) == len(set(keys))
        assert {key for key, *_ in keys} == {p.key() for p in (small, *large)}


def test_what_a_process_has_measured_alone_counts(tmp_path):
    """All processes have two blocks then, pairs of both runtimes, and a twin takes part in each."""
    everything = [
        series_of(tmp_path, Point(workload=Workload(model="m", twin=twin), runtime=name), scripts)
        for name, twin, scripts in (
            ("one", False, [[100]] * 3),
            ("two", False, [[100]] * 3),
            ("one", True, [[100]]),
        )
    ]
    with rounds_of(tmp_path, everything) as rounds:
        rounds.first([series.runs[1, 0] for series in everything])
        rounds.all_processes()
    found = defaultdict(list)
    for block in blocks(store.read(tmp_path / "s")[0]):
        found[block.point].append((block.process, block.round))
    one, two, twin = (sorted(found[series.points[1].key()]) for series in everything)
    assert one == two == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 2), (2, 3)]
    assert twin == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_what_is_compared_is_timed_side_by_side_in_an_order_drawn_anew(tmp_path):
    """A host changes its speed within a round of seconds, and a ratio is of two blocks of it."""
    everything = []
    for name in ("one", "two", "three"):
        point = Point(workload=Workload(model="m", batch=1), runtime=name)
        series = series_of(tmp_path, point, [[100] * 9] * 2)
        for batch in (2, 4):
            series.points[batch] = replace(point, workload=replace(point.workload, batch=batch))
            for process in series.workers:
                run = PointRun(series, batch, process, calls=5, call_ns=1)
                series.runs[batch, process] = series.bound[batch, process] = run
        everything.append(series)
    with rounds_of(tmp_path, everything) as rounds:
        for _ in range(4):
            rounds.first([run for s in everything for run in s.runs.values()])
    named = {p.key(): (p.workload.batch, s.runtime) for s in everything for p in s.points.values()}
    assert len(named) == 9
    orders = {}
    for b in blocks(store.read(tmp_path / "s")[0]):
        orders.setdefault(b.round, []).append((b.process, named[b.point][0], b.point))
    drawn = [order for number, order in orders.items() if number % 2]  # every other is in order
    assert len({tuple(order) for order in drawn}) == len(drawn) == 4
    for order in drawn:
        assert len(order) == len(set(order)) == 18
        assert all(len({one[:2] for one in order[i : i + 3]}) == 1 for i in range(0, 18, 3))
        assert [len({one[0] for one in half}) for half in (order[:9], order[9:])] == [1, 1]


def test_a_noisy_twin_does_not_make_a_session_longer(tmp_path):
    series = [
        series_of(
            tmp_path, Point(workload=Workload(model="m", batch=1, twin=twin), runtime="f"), scripts
        )
        for twin, scripts in ((False, [[100]] * 3), (True, noise(0.2)[:1]))
    ]
    with rounds_of(tmp_path, series) as rounds:
        rounds.precise()
    workers = [worker for made in series for worker in made.workers.values()]
    assert [worker.asked.count("block") for worker in workers] == [2, 2, 2, 5]


def test_a_device_is_asked_when_nothing_is_timed_any_more(tmp_path):
    """A device profile slows down what is timed after it, in any later batch of points."""
    workload = Workload(model="m", batch=1)
    point = Point(workload=workload, runtime="fake", platform="cuda:0")
    series = series_of(tmp_path, point, [[100], [101]])
    with rounds_of(tmp_path, [series], sampler="perf-event") as rounds:
        rounds.precise()
        larger = replace(point, workload=replace(workload, batch=2))
        series.points[2] = larger
        for process in series.workers:
            series.runs[2, process] = series.bound[2, process] = PointRun(
                series, 2, process, calls=5, call_ns=1
            )
        rounds.precise()
        rounds.profile()
        rounds.profile()
    told = [
        [do for do in worker.asked if do in ("block", "sample", "device")]
        for worker in series.workers.values()
    ]
    # Each point in one process: the device does the same in all of them.
    assert told[0][-2:] == ["device", "device"] and "device" not in told[0][:-2]
    assert "device" not in told[1]


def on_device(tmp_path, batches, script=(100,)):
    point = Point(workload=Workload(model="m"), runtime="fake", platform="cuda:0")
    series = series_of(tmp_path, point, [script])
    series.runs.clear()
    for batch in batches:
        series.points[batch] = replace(point, workload=replace(point.workload, batch=batch))
        series.runs[batch, 0] = series.bound[batch, 0] = PointRun(
            series, batch, 0, calls=5, call_ns=1
        )
    return series


def test_telling_batches_are_profiled_first_and_the_budget_ends_it(tmp_path):
    series = on_device(tmp_path, [1, 2, 4, 8, 16, 64])
    asked = []
    with rounds_of(tmp_path, [series], budget_s=10.0) as rounds:
        answer = series.workers[0].request

        def request(method, timeout_s, *_, **given):
            if method is Server.device:
                asked.append(given["batch"])
                rounds._clock.work(3_000_000_000)
            return answer(method, timeout_s, **given)

        series.workers[0].request = request
        rounds.profile()
    assert asked == [1, 8, 64, 2]
    left = {run.point.workload.batch: [n.code for n in run.notes] for run in series.runs.values()}
    assert {batch for batch, codes in left.items() if "not-profiled" in codes} == {4, 16}


def test_a_point_on_a_device_is_priced_with_what_asking_the_device_takes(tmp_path):
    there, here = on_device(tmp_path, [1, 8]), on_device(tmp_path, [1, 8])
    here.points = {b: replace(p, platform="cpu") for b, p in here.points.items()}
    for series in (there, here):
        series.call_ns[1] = 1_000_000
    assert cost_s(there, 8) - cost_s(here, 8) == pytest.approx(DEVICE_S)
    first_s = DEVICE_S + DEVICE_FIRST_S  # the profiler starts in each process
    assert cost_s(there, 1) - cost_s(here, 1) == pytest.approx(first_s)
    assert cost_s(there, 8, process=1) == cost_s(here, 8, process=1)  # one process is asked


def priced(tmp_path, call_ns, name="eager", *, twin=False):
    """Batches 1 and 4 on a CPU, of which only 1 is known."""
    series = on_device(tmp_path, [1, 4])
    series.points = {b: replace(p, platform="cpu") for b, p in series.points.items()}
    series.call_ns[1] = call_ns
    series.bound.clear()
    series.is_eager, series.is_twin = name == "eager", twin
    return series


def test_a_point_is_priced_with_the_calls_whose_outputs_are_compared(tmp_path):
    series = priced(tmp_path, 2_000_000_000)
    assert cost_s(series, 4) == 8 * (4 + 2 + 2 * 2)  # warm-up, outputs, two blocks and samples
    assert cost_s(series, 4, process=1) == 8 * (4 + 2 * 2)


def test_what_is_tried_can_be_warmed_up_in_time_and_was_asked_for(tmp_path):
    eager, fast = (priced(tmp_path, 2_000_000_000, name) for name in ("eager", "fast"))
    short, twin = priced(tmp_path, 1_000_000, "short"), priced(tmp_path, 1_000, twin=True)
    ready = [(twin, 4), (short, 4), (fast, 4), (eager, 4)]
    assert next_try(ready, 32.0) == [(eager, 4)]  # 4 calls of 8 s
    assert next_try(ready, 31.0) == [(short, 4)]
    assert next_try(ready, 0.01) == []
    eager.bound[4, 0] = PointRun(eager, 4, 0, calls=1, call_ns=1)
    assert next_try([(eager, 4)], 1e9) == []  # it is known what it takes


def test_calls_of_a_block_on_a_device_follow_the_first_block_and_not_a_crowded_warm_up(tmp_path):
    series = on_device(tmp_path, [1], [1_000_000])
    series.runs[1, 0].call_ns = series.call_ns[1] = 40_000_000
    with rounds_of(tmp_path, [series]) as rounds:
        rounds.first(rounds.groups()[0])
    run = series.runs[1, 0]
    assert (run.call_ns, run.calls) == (1_000_000, calls_for(1_000_000, BLOCK_NS))
    assert run.calls > 5
    assert series.call_ns == {1: 1_000_000}  # which prices the larger batches


@pytest.mark.parametrize(("processes", "others"), [(2, 0), (4, 2), (None, 0)])
def test_processes_of_others_on_the_device_are_noted(tmp_path, processes, others):
    series = on_device(tmp_path, [1])
    state = {} if processes is None else {"processes": processes}
    found = Attribution(
        session="", point="", process=0, method="device-profile", calls=1, wall_ns=1, latency_ns=1,
        device_state=state,
    )  # fmt: skip
    series.workers[0].request = lambda *_, **given: found
    with rounds_of(tmp_path, [series]) as rounds:
        # The budget ended before the set-up did.
        setting_up = Mock()
        rounds._bench.gate._at_work.add(setting_up)
        rounds.profile()
    records, _ = store.read(tmp_path / "s")
    (written,) = [r for r in records if isinstance(r, Attribution)]
    assert [n.code for n in written.notes] == ["device-shared"] * bool(others)
    assert not others or written.notes[0].text.startswith(f"{others} other")


def test_time_is_kept_for_asking_devices_but_not_all_of_it(tmp_path):
    point = Point(workload=Workload(model="m", batch=1), runtime="fake", platform="cuda:0")
    series = series_of(tmp_path, point, [[100], [101]])
    with rounds_of(tmp_path, [series], budget_s=60.0) as rounds:
        # Both processes hold the same point; one is asked.
        assert rounds.left_s == 60.0 - DEVICE_S - DEVICE_FIRST_S
        for cell in series.runs.values():
            cell.profiled = True
        assert rounds.left_s == 60.0
    series = on_device(tmp_path, range(1, 101))
    with rounds_of(tmp_path / "many", [series], budget_s=60.0) as rounds:
        assert rounds.left_s == pytest.approx(60.0 - DEVICE_SHARE * 60.0)


def test_a_batch_may_take_longer_to_warm_up_on_a_device(tmp_path):
    """TorchScript compiles its fused kernels there for each new shape."""
    there, here = on_device(tmp_path, [1, 8]), on_device(tmp_path, [1, 8])
    here.points = {b: replace(p, platform="cpu") for b, p in here.points.items()}
    setup = SimpleNamespace(_plan=Plan(points=(), folder=tmp_path))
    limits = []
    for series in (there, here):
        series.call_ns[1] = 1_000_000
        limits.append(Setup._bind_limit_s(setup, series, 8))
    assert limits == [30.0, 5.0]
    there.runtime = SimpleNamespace(compiles=True)  # each batch size anew
    assert Setup._bind_limit_s(setup, there, 8) == setup._plan.setup_limit_s


@pytest.mark.parametrize(
    ("points", "differ"),
    [
        ([DIFFERENT], True),
        ([SAME], False),
        ([[[100.0, 101.0, 102.0]]], False),
        ([[[100.0], [200.0]]], False),
        ([], False),
        ([DIFFERENT, SAME, DIFFERENT], True),  # the middle one decides
        ([DIFFERENT, [[100.0], [200.0]]], False),  # one has too few blocks
    ],
)
def test_whether_more_rounds_would_help(points, differ):
    assert processes_differ(points) is differ


def test_two_blocks_of_a_process_that_disagree_get_a_third_and_what_is_compared_with_them(tmp_path):
    scripts = {
        "eager": [[100, 101, 102], [160, 100, 101], [100, 104, 100]],
        "other": [[50, 50, 51], [51, 50, 50], [50, 50, 51]],
    }
    everything = [
        series_of(tmp_path / name, Point(workload=Workload(model="m", batch=1), runtime=name), two)
        for name, two in scripts.items()
    ]
    with rounds_of(tmp_path, everything, sampler="perf-event") as rounds:
        rounds.all_processes()
        rounds.settle()
        rounds.settle()
    counts = [
        [len(series.runs[1, process].medians) for process in range(3)] for series in everything
    ]
    assert counts == [[2, 3, 2]] * 2
    for series in everything:
        assert [worker.asked.count("sample") for worker in series.workers.values()] == [2] * 3
    found = [b for b in blocks(store.read(tmp_path / "s")[0]) if b.process == 1]
    assert len({b.round for b in found}) == 3  # pairs of both


def test_what_disagrees_at_several_batch_sizes_is_settled_in_one_round(tmp_path):
    small = Point(workload=Workload(model="m", batch=1), runtime="f")
    series = series_of(tmp_path, small, [[100] * 3 + [160] * 3 + [100] * 9] * 2)
    for batch in (8, 16):
        series.points[batch] = replace(small, workload=replace(small.workload, batch=batch))
        for process in series.workers:
            series.runs[batch, process] = series.bound[batch, process] = PointRun(
                series, batch, process, calls=5, call_ns=1
            )
    with rounds_of(tmp_path, [series]) as rounds:
        rounds.all_processes()
        rounds.settle()
    assert {len(run.medians) for run in series.runs.values()} == {3}
    found = blocks(store.read(tmp_path / "s")[0])
    assert len({b.round for b in found}) == 3


@pytest.mark.parametrize(
    ("blocks", "shares", "known"),
    [
        (2, [[0.5], [0.51], [0.52]], True),
        (2, [[0.4], [0.5], [0.6]], False),  # ±25 points by Student's t
        (2, [[0.4, 0.5, 0.6], [0.5], [0.51]], True),  # the middle one of each process
        (10, [[0.4], [0.5], [0.6]], True),  # it has all its blocks
        (3, [[0.3]] * 6 + [[0.7]] * 6, False),  # 36 of 120
        (2, [[], [], []], True),  # it is not sampled
        (2, [[0.5], [], []], False),  # nothing is known of how samples differ
    ],
)
def test_whether_the_tax_is_known(blocks, shares, known):
    assert has_tax([[100.0] * blocks] * len(shares), shares) is known


@pytest.mark.parametrize(("spread", "rounds_made"), [(0.01, 2), (0.3, 10)])
def test_rounds_go_on_until_the_tax_is_known_too(tmp_path, spread, rounds_made):
    point = Point(workload=Workload(model="m", batch=1), runtime="fake")
    series = series_of(tmp_path, point, noise(0.001))
    for process, worker in series.workers.items():
        kernel = round(1000 * (0.5 + spread * (process - 1)))
        worker.sampled = {"kernel": kernel, "python": 1000 - kernel}
    with rounds_of(tmp_path, [series], sampler="perf-event") as rounds:
        rounds.precise()
    assert {len(run.medians) for run in series.runs.values()} == {rounds_made}


@pytest.mark.parametrize("share", [0.50, 0.58])
def test_rounds_end_where_as_many_again_would_narrow_by_less_than_a_tenth(share):
    """``share``: what blocks add to the variance of three process medians.

    Half of all sets of three show more than 1 / 0.702 of it, so that the limit is 0.38 / 0.702.
    """
    between, blocks = 0.02, 100
    within = between * math.sqrt(share * blocks / 1.571)
    half = [1 + within * x for x in (-1, 1)] * (blocks // 2)
    processes = [[1 + shift + one - 1 for one in half] for shift in (-between, 0, between)]
    medians = [[100 * one for one in process] for process in processes]
    assert processes_differ([medians]) is (share < 0.541)


def test_a_wide_interval_of_few_blocks_gains_most():
    wide, narrow = [[100.0, 130.0, 110.0, 90.0, 120.0]], [[100.0, 101.0, 100.0, 101.0, 100.0]]
    assert narrowing(wide) > narrowing(narrow) > 0
    assert narrowing([[100.0]]) == pytest.approx(1 - 0.5**0.5)  # few blocks: not known at all
    assert narrowing([wide[0] * 3]) < narrowing(wide)


class Modular(FakeRuntime):
    places = ("module",)


@pytest.mark.parametrize(("by", "asked"), [("module", 1), ("operator", 2), ("none", 0)])
def test_on_a_device_one_process_is_asked_by_place_and_no_sampler_is_needed(tmp_path, by, asked):
    point = Point(workload=Workload(model="mlp"), runtime="eager", platform="cuda:0")
    series = series_of(tmp_path, point, [[10], [10]])
    series.runtime = Modular()
    for run in series.runs.values():
        run.medians.append(10.0)
    with rounds_of(tmp_path, [series], budget_s=60.0, sampler=None, by=by) as rounds:
        rounds.place()
    assert [series.workers[p].asked for p in (0, 1)] == [["places"] * asked, []]


@pytest.mark.parametrize(
    ("platform", "by", "call_s", "measured_s", "asked"),
    [
        ("cuda:0", "auto", 0.01, 59.0, ["device", "places"]),
        ("cuda:0", "auto", 0.01, 60.0, []),
        ("cuda:0", "module", 0.01, 60.0, ["places"]),
        ("cpu", "auto", 0.7, 60.0, ["places"]),
        ("cpu", "auto", 0.8, 59.0, ["places"]),
        ("cpu", "auto", 0.8, 60.0, []),
        ("cpu", "module", 0.8, 60.0, ["places"]),
    ],
)
def test_a_spent_budget_ends_what_is_long_and_not_asked_for(
    tmp_path, platform, by, call_s, measured_s, asked
):
    point = Point(workload=Workload(model="mlp"), runtime="eager", platform=platform)
    series = series_of(tmp_path, point, [[10]])
    series.runtime = Modular()
    series.runs[1, 0].medians.append(10.0)
    series.runs[1, 0].call_ns = round(call_s * 1e9)
    fixture = rounds_of(tmp_path, [series], budget_s=60.0, sampler="perf-event", by=by)
    with fixture as rounds:
        rounds._clock.work(round(measured_s * 1e9))
        rounds.profile()
        rounds.place()
        rounds.place()
    assert series.workers[0].asked == asked


@pytest.mark.parametrize("step", ["profile", "place"])
def test_a_process_that_ends_where_its_time_goes_is_asked_for_no_other_batch_size(tmp_path, step):
    series, asked = on_device(tmp_path, [1, 8]), []
    series.runtime, worker = Modular(), series.workers[0]
    for run in series.runs.values():
        run.medians.append(10.0)

    def crash(method, *_, **given):
        asked.append(given["batch"])
        worker.alive = False
        raise WorkerError("crashed", f"SIGSEGV during {method.__name__}")

    worker.request = crash
    with rounds_of(tmp_path, [series], by="module") as rounds:
        getattr(rounds, step)()
    assert asked == [1]
    ended = [r.status for r in store.read(tmp_path / "s")[0] if isinstance(r, Outcome)]
    assert ended == ["crashed", "crashed"]


def test_what_has_no_latency_is_not_broken_down_by_place(tmp_path):
    point = Point(workload=Workload(model="mlp"), runtime="eager")
    series = series_of(tmp_path, point, [[10]])
    series.runtime = Modular()
    with rounds_of(tmp_path, [series], sampler="perf-event", by="module") as rounds:
        rounds.place()
    assert series.workers[0].asked == []


@pytest.mark.parametrize(
    ("by", "budget_s", "asked"),
    [
        ("none", 60.0, {}),
        ("module", 60.0, {1: 3_000_000_000, 64: 3_000_000_000}),  # 1 s in each of three processes
        ("auto", 60.0, {1: 500_000_000, 64: 500_000_000}),  # 1 s for two points
        ("auto", 10.0, {1: 500_000_000}),  # a twentieth of the budget, enough for one
        ("auto", 5.0, {}),
    ],
)
def test_unasked_the_breakdown_by_module_takes_little(tmp_path, by, budget_s, asked):
    batches = {b: Point(workload=Workload(model="mlp", batch=b), runtime="eager") for b in (64, 1)}
    modular = Series(runtime=Modular(), points=batches, folder=tmp_path)
    other = Series(runtime=FakeRuntime(), points=batches, folder=tmp_path)
    plan = Plan(points=(), folder=tmp_path, by=by, budget_s=budget_s)
    found = by_place(plan, [other, modular])
    assert all(series is modular and kind == "module" for series, _, kind, _ in found)
    assert {batch: ns for _, batch, _, ns in found} == asked


@pytest.mark.parametrize(
    ("platform", "alive", "ns", "chosen", "each_ns"),
    [
        ("cpu", 3, 1_000_000_000, 3, 333_333_333),
        ("cpu", 12, 1_000_000_000, 6, 166_666_666),  # no shorter than the shortest
        ("cpu", 12, 3_000_000_000, 12, 250_000_000),
        ("cpu", 1, 1_000_000_000, 1, 333_333_333),  # the others come in another shift
        ("cuda:0", 3, 1_000_000_000, 1, 333_333_333),
    ],
)
def test_places_are_sampled_in_as_many_processes_as_the_time_allows(
    tmp_path, platform, alive, ns, chosen, each_ns
):
    point = Point(workload=Workload(model="mlp"), runtime="eager", platform=platform)
    runs = list(series_of(tmp_path, point, [[10]] * alive).runs.values())
    assert placed_in(runs, ns, 3) == (runs[:chosen], each_ns)


def test_places_are_asked_once_in_every_process_and_their_time_is_kept_for_them(tmp_path):
    point = Point(workload=Workload(model="mlp"), runtime="eager")
    series = series_of(tmp_path, point, [[10], [10]])
    series.runtime = Modular()
    for run in series.runs.values():
        run.medians.append(10.0)
    fixture = rounds_of(tmp_path, [series], budget_s=9.0, sampler="perf-event", by="module")
    with fixture as rounds:
        assert rounds.left_s == pytest.approx(9.0 - 2.0)
        rounds.place()
        rounds.place()
        assert rounds.left_s == pytest.approx(9.0)
    assert [series.workers[p].asked for p in (0, 1)] == [["places"], ["places"]]
    for run in series.runs.values():
        run.placed.clear()
    other = rounds_of(tmp_path / "b", [series], budget_s=9.0, sampler=None, by="module")
    with other as rounds:
        assert rounds.left_s == pytest.approx(9.0)  # there is no sampler
