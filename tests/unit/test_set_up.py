"""Set-up: what cannot run is said before it is tried, what was prepared is used again and timed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from fake_workers import FakeHost, made_bench

from frameworktax import host, store
from frameworktax.errors import WorkerError
from frameworktax.host.cache import alone
from frameworktax.measure import series as series_module
from frameworktax.measure.plan import Plan
from frameworktax.measure.protocol import Bound, Described, Facts
from frameworktax.measure.recorder import OutputChecks, Recorder, comparison_notes
from frameworktax.measure.series import PointRun, Series, artifact_key, series_of
from frameworktax.measure.session import MeasuringSession
from frameworktax.measure.setup import Setup, SetupProcess
from frameworktax.measure.worker import Server
from frameworktax.records import Note, Outcome, Parity, Point, Subject, Workload
from frameworktax.testing import FakeClock, FakeRuntime

POINT = Point(workload=Workload(model="m", batch=1), runtime="fake")
EAGER = replace(POINT, runtime="eager")


def bound(first_ns):
    return Bound(calls=1, call_ns=5, settled=True, first_ns=first_ns, peak_memory_bytes=1)


class FakeWorker:
    """Prepares in 41 s and leaves a file; its first call takes 30 s."""

    def __init__(self, folder):
        self.folder = folder
        self.asked = []
        self.alive = True
        self.printed_bytes = 0
        self.started, self.notes = "started", []

    def request(self, method, *_, **given):
        self.asked.append(method)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "program.bin").write_bytes(b"x" * 2_000)
        if method is Server.prepare:
            return 41_000_000_000
        return bound(first_ns=30_000_000_000)

    def kill(self):
        self.alive = False


class Prepares(FakeRuntime):
    prepares = True


class Compiles(FakeRuntime):
    compiles = True


def series(folder, runtime, **workload):
    point = replace(POINT, workload=replace(POINT.workload, **workload))
    return Series(runtime=runtime(), points={point.workload.batch: point}, folder=folder)


def setup_of(tmp_path, **plan):
    """Set-up without a session."""
    plan = Plan(points=(POINT,), folder=tmp_path / "cache", **plan)
    return Setup(made_bench(plan, [], Mock(), tmp_path / "t", None), None, None)


def test_what_an_export_took_and_left_is_told_again_in_later_sessions(tmp_path):
    folder = tmp_path / "made"
    first, worker = series(folder, Prepares), FakeWorker(folder)
    setup_of(tmp_path).prepare(first, lambda: worker)
    assert (first.setup_ns, first.artifact_bytes, first.notes) == (41_000_000_000, 2_000, [])
    later, idle = series(folder, Prepares), FakeWorker(folder)
    setup_of(tmp_path).prepare(later, lambda: idle)
    assert idle.asked == []
    assert (later.setup_ns, later.artifact_bytes) == (41_000_000_000, 2_000)
    assert [note.code for note in later.notes] == ["set-up-reused"]


def test_what_compiles_at_its_first_call_is_timed_by_it(tmp_path):
    folder = tmp_path / "made"
    first = series(folder, Compiles)
    first.workers[0] = FakeWorker(folder)
    setup_of(tmp_path).bind(first, 0, 1)
    assert (first.setup_ns, first.artifact_bytes) == (30_000_000_000, 2_000)
    later = series(folder, Compiles)
    later.workers[0] = FakeWorker(folder)
    later.workers[0].request = lambda *_, **given: bound(first_ns=7)
    setup_of(tmp_path).bind(later, 0, 1)
    assert later.setup_ns == 30_000_000_000  # what it took when nothing was there
    assert [note.code for note in later.notes] == ["set-up-reused"]


def test_time_in_which_blocks_of_others_are_timed_is_no_set_up(tmp_path, monkeypatch):
    """A process that sets up is stopped meanwhile, and its own clock goes on."""
    setup = setup_of(tmp_path)
    monkeypatch.setattr(setup._gate, "quiet_ns", lambda begin_ns, end_ns: (end_ns - begin_ns) // 2)
    exported, compiled = (series(tmp_path / kind.__name__, kind) for kind in (Prepares, Compiles))
    setup.prepare(exported, lambda: FakeWorker(exported.folder))
    assert exported.setup_ns == 20_500_000_000
    compiled.workers[0] = FakeWorker(compiled.folder)
    setup.bind(compiled, 0, 1)
    assert compiled.setup_ns == 15_000_000_000


def test_what_neither_exports_nor_compiles_has_no_set_up(tmp_path):
    plain = series(tmp_path, FakeRuntime)
    plain.workers[0] = FakeWorker(tmp_path)
    setup_of(tmp_path).bind(plain, 0, 1)
    assert (plain.setup_ns, plain.artifact_bytes) == (None, None)


def test_another_library_or_processor_prepares_anew(monkeypatch):
    here = {"torch": "2.0"}
    key = artifact_key(EAGER, [1, 2], here)
    assert artifact_key(EAGER, [1, 2], dict(here)) == key
    assert artifact_key(EAGER, [1], here) != key
    other = artifact_key(EAGER, [1, 2], {"torch": "2.1"})
    monkeypatch.setattr(host, "cpu_model", lambda: "another one")
    third = artifact_key(EAGER, [1, 2], here)
    monkeypatch.setattr(series_module, "_own_code", lambda: "another export")
    assert len({key, other, third, artifact_key(EAGER, [1, 2], here)}) == 4


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        ("mlp", True),
        ("torchvision:resnet18", True),
        ("timm:resnet18", True),
        ("hf:some/model", False),
        ("onnx:model.onnx", False),
        ("my_code.py:build", False),
        ("from-another-package", False),
    ],
)
def test_only_what_versions_tell_whole_is_kept(tmp_path, model, kept):
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    point = Point(workload=Workload(model=model, batch=1), runtime="torchscript")
    (found,) = series_of([point], Plan(points=(), folder=cache), scratch)
    assert found.folder.parent == (cache if kept else scratch)
    (live,) = series_of([point], Plan(points=(), folder=cache, live="module.pkl"), scratch)
    assert live.folder.parent == scratch


def test_what_nothing_is_prepared_for_leaves_nothing_in_the_cache(tmp_path):
    (found,) = series_of([EAGER], Plan(points=(), folder=tmp_path / "cache"), tmp_path / "scratch")
    assert found.folder.parent == tmp_path / "scratch"


def test_what_a_killed_session_left_is_no_part_of_what_is_prepared(tmp_path):
    folder = tmp_path / "made"
    (folder / "partial-1").mkdir(parents=True)
    (folder / "partial-1" / "half").write_bytes(b"x" * 500)
    made = series(folder, Prepares)
    setup_of(tmp_path).prepare(made, lambda: FakeWorker(folder))
    assert made.artifact_bytes == 2_000
    assert sorted(path.name for path in folder.iterdir()) == ["program.bin", "ready.json"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: cut(folder / "program.bin"),
        lambda folder: (folder / "program.bin").unlink(),
        lambda folder: cut(folder / "ready.json"),
        lambda folder: (folder / "ready.json").write_bytes(b""),
        lambda folder: (folder / "ready.json").write_text('{"setup_ns": 1, "artifact_bytes": 2}'),
    ],
)
def test_what_is_damaged_in_the_cache_is_prepared_anew(tmp_path, damage):
    def found():
        point = Point(workload=Workload(model="bert-tiny", batch=1), runtime="torchscript")
        return series_of([point], Plan(points=(), folder=tmp_path), tmp_path / "scratch")[0]

    setup, made = setup_of(tmp_path), found()
    setup.prepare(made, lambda: FakeWorker(made.folder))
    assert not found().is_to_be_prepared
    damage(made.folder)
    again, worker = found(), FakeWorker(made.folder)
    assert again.is_to_be_prepared and not again.folder.exists()
    setup.prepare(again, lambda: worker)
    assert worker.asked == [Server.prepare] and not again.notes
    assert found().is_ready()


def test_two_sessions_that_want_the_same_prepare_it_once(tmp_path):
    folder = tmp_path / "made"
    first, second, idle = series(folder, Prepares), series(folder, Prepares), FakeWorker(folder)
    begun, waits, setup = threading.Event(), threading.Event(), setup_of(tmp_path)

    class Slow(FakeWorker):
        def request(self, *asked, **given):
            begun.set()
            assert waits.wait(600)
            return super().request(*asked, **given)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(setup.prepare, first, lambda: Slow(folder))
        assert begun.wait(600)
        with pytest.raises(WorkerError, match="another session still prepares"):
            setup_of(tmp_path, setup_limit_s=1e-9).prepare(second, lambda: idle)
        two = pool.submit(setup.prepare, second, lambda: idle)
        waits.set()
        one.result()
        two.result()
    assert idle.asked == []
    assert [note.code for note in second.notes] == ["set-up-reused"]


def test_the_end_of_a_session_ends_the_wait_for_another(tmp_path):
    folder, setup = tmp_path / "made", setup_of(tmp_path)
    setup.end()
    with alone(folder, 600, threading.Event()), pytest.raises(WorkerError, match="is ending"):
        setup.prepare(series(folder, Prepares), Mock())


def set_up(tmp_path, *made, spawn=None, **plan):
    """Run set-up where no process can start; return the series and the records."""

    def refuse(label, *arguments):
        raise WorkerError("failed", "no process in this test")

    spawn = spawn or refuse
    plan = Plan(points=(POINT,), folder=tmp_path / "cache", **plan)
    everything = list(made)
    with store.Writer(tmp_path / "s", "session") as writer, ThreadPoolExecutor(2) as pool:
        bench = made_bench(plan, everything, writer, tmp_path / "t", "perf-event")
        running = Setup(bench, spawn, pool)
        running.begin()
        while running.is_running():
            running.show(block=True)
        running.write_subjects()
    return everything, store.read(tmp_path / "s")[0]


class PreparesToo(Prepares):
    name = "too"


class PreparesAndCompiles(Prepares):
    name, compiles = "slow", True


def test_two_processes_export_and_one_compiles(tmp_path, monkeypatch):
    both, asked = threading.Barrier(2, timeout=600), []

    def prepare(self, series, process):
        asked.append((series.runtime.name, process is self._second))
        if not series.runtime.compiles:
            both.wait()
        return False

    monkeypatch.setattr(Setup, "_describe", lambda *_: Described(facts={}, has_twin=False))
    monkeypatch.setattr(Setup, "_has_room_for_two", lambda _: True)
    monkeypatch.setattr(Setup, "_prepare", prepare)
    set_up(
        tmp_path, *(series(tmp_path, kind) for kind in (PreparesAndCompiles, Prepares, PreparesToo))
    )
    assert {second for _, second in asked[:2]} == {True, False}
    assert {name for name, _ in asked[:2]} == {"fake", "too"}
    assert asked[2:] == [("slow", False)]


@pytest.mark.parametrize(("parameters", "room"), [(1, True), (10**9, False), (None, False)])
def test_a_second_export_needs_memory(tmp_path, monkeypatch, parameters, room):
    monkeypatch.setattr(host, "memory_available_bytes", lambda: 8 << 30)
    monkeypatch.setattr(host, "usable_cpus", lambda: (0, 1))
    plan = Plan(points=(POINT,), folder=tmp_path)
    with store.Writer(tmp_path / "s", "session") as writer:
        bench = made_bench(plan, [], writer, tmp_path / "t", None)
        setup = Setup(bench, None, None)
    assert not setup._has_room_for_two()
    setup._described[POINT.workload] = Described(
        facts={1: Facts(parameters=parameters)}, has_twin=False
    )
    assert setup._has_room_for_two() == room


class ForwardOnly(FakeRuntime):
    kv_caches = ()


def test_what_a_runtime_cannot_run_is_unavailable_with_its_reason(tmp_path):
    asked = series(tmp_path, ForwardOnly, phase="generate", new_tokens=4, kv_cache="dynamic")
    _, records = set_up(tmp_path, asked)
    key = next(iter(asked.points.values())).key()
    (told,) = [r for r in records if isinstance(r, Outcome) and r.point == key]
    assert told.status == "unavailable"
    assert "leave out --phase generate" in told.reason
    assert "fake" in [r.point.runtime for r in records if isinstance(r, Subject)]


@pytest.mark.parametrize(
    ("precision", "reference"), [("int8", "float32"), ("bfloat16", "bfloat16")]
)
def test_the_reference_of_int8_is_eager_in_float32(tmp_path, precision, reference):
    everything, _ = set_up(tmp_path, series(tmp_path, FakeRuntime, precision=precision))
    (eager,) = [s for s in everything if s.runtime.name == "eager"]
    assert (eager.timed, eager.workload.precision) == (False, reference)
    assert eager.config == everything[0].reference


def test_a_timed_eager_is_the_reference_of_int8_too(tmp_path):
    points = tuple(
        replace(POINT, runtime=name, workload=replace(POINT.workload, precision=precision))
        for name, precision in (("eager", "float32"), ("null", "float32"))
    )
    eager, floor = series_of(points, Plan(points=(), folder=tmp_path), tmp_path)
    quantised = series(tmp_path, FakeRuntime, precision="int8")
    everything, _ = set_up(tmp_path, eager, floor, quantised)
    assert [s.runtime.name for s in everything].count("eager") == 1


def test_what_is_compared_with_less_than_eagers_whole_output_says_so():
    def codes(**fields):
        return [note.code for note in comparison_notes(Workload(model="m", **fields))]

    assert codes() == []
    assert codes(input="ragged") == ["padding-not-compared"]
    assert codes(precision="int8") == ["quantised-reference"]


@pytest.mark.parametrize(("paradigm", "share"), [("eager", 0.75), ("sparse-input", 0.0)])
def test_what_computes_no_padding_has_none(tmp_path, paradigm, share):
    made = series(tmp_path, FakeRuntime, input="ragged")
    made.runtime.paradigm = paradigm
    described = Described(facts={1: Facts(padding_share=0.75)}, has_twin=False)
    with store.Writer(tmp_path / "s", "session") as writer:
        Recorder(writer).subjects(made, described)
    (subject,) = store.read(tmp_path / "s")[0]
    assert subject.padding_share == share
    assert Note("padding-not-compared", comparison_notes(made.workload)[0].text) in subject.notes


class Exports(FakeRuntime):
    prepares = True


@pytest.mark.parametrize("option", ["--setup-limit", "study.setup_limit"])
def test_what_took_too_long_names_what_to_give_more_of(tmp_path, option):
    def spawn(label, *arguments):
        raise WorkerError("timeout", "prepare not done after 6 s, ended")

    made = series(tmp_path / "made", Exports)
    set_up(tmp_path, made, spawn=spawn, setup_limit_s=6.0, setup_option=option)
    assert made.dead.status == "timeout"
    assert str(made.dead).endswith(f"give a longer {option}")


def test_what_cannot_be_described_in_time_is_measured_all_the_same(tmp_path):
    def spawn(label, *arguments):
        raise WorkerError("timeout", "describe not done after 60 s, ended")

    _, records = set_up(tmp_path, series(tmp_path, FakeRuntime), spawn=spawn)
    subjects = [r for r in records if isinstance(r, Subject) and r.point.runtime == "fake"]
    (subject,) = [r for r in subjects if r.final]
    assert subject.flops is None
    assert [note.code for note in subject.notes] == ["not-described"]


# --- outputs are compared once eager's are there --------------------------------------------------


def swept(tmp_path, monkeypatch, outputs):
    """A sweep over eager and another, whose outputs come as scripted: (runtime) → path or None."""
    plan = Plan(points=(replace(POINT, runtime="eager"), POINT), folder=tmp_path / "cache")
    monkeypatch.setattr("frameworktax.runtimes.get", lambda name: _named(name))
    writer = store.Writer(tmp_path / "s", "session")
    writer.__enter__()
    sweep = MeasuringSession(plan, writer)

    def output(asked, batch):
        if not outputs[asked.runtime.name]:
            return None
        path = tmp_path / f"{asked.runtime.name}.npz"
        np.savez(path, np.ones(3))
        return path

    monkeypatch.setattr(sweep._outputs, "_output", output)
    return sweep, writer


def _named(name):
    runtime = FakeRuntime()
    runtime.name = name
    return runtime


def parities(tmp_path, writer):
    writer.__exit__(None, None, None)
    return [r for r in store.read(tmp_path / "s")[0] if isinstance(r, Parity)]


def test_outputs_wait_for_eagers(tmp_path, monkeypatch):
    outputs = {"eager": False, "fake": True}
    sweep, writer = swept(tmp_path, monkeypatch, outputs)
    sweep._outputs.compare([(sweep._series[1], 1)])
    outputs["eager"] = True
    sweep._outputs.compare()
    (found,) = parities(tmp_path, writer)
    assert found.within_tolerance is True


def test_outputs_without_eagers_prove_nothing_and_say_why(tmp_path, monkeypatch):
    sweep, writer = swept(tmp_path, monkeypatch, {"eager": False, "fake": True})
    sweep._outputs.compare([(sweep._series[1], 1)])
    sweep._outputs.compare(last=True)
    (found,) = parities(tmp_path, writer)
    assert found.within_tolerance is None
    assert found.reason is not None and "eager" in found.reason


def test_outputs_of_calls_that_take_minutes_are_waited_for(tmp_path):
    made, limits = series(tmp_path, FakeRuntime), []
    made.ready = True
    made.bound[1, 0] = PointRun(made, 1, 0, calls=5, call_ns=100_000_000_000)
    made.workers[0] = Mock(request=lambda method, timeout_s, **given: limits.append(timeout_s))
    plan = Plan(points=(POINT,), folder=tmp_path / "cache")
    with store.Writer(tmp_path / "s", "session") as writer:
        bench = made_bench(plan, [made], writer, tmp_path / "t", None)
        OutputChecks(bench).compare([(made, 1)])
    assert len(limits) == 1 and limits[0] > 2 * 100.0


def test_runtimes_with_other_batch_sizes_left_are_described_and_compared_at_each(tmp_path):
    """An interrupted session goes on with what it has left of each."""
    asked = []

    def request(method, *_, **given):
        if method is Server.describe:
            asked.append(given["batches"])
        raise WorkerError("failed", "no process in this test")

    points = {b: replace(POINT, workload=replace(POINT.workload, batch=b)) for b in (1, 2)}
    eager = series(tmp_path / "eager", FakeRuntime, batch=2)
    eager.is_eager = True
    made = (
        Series(FakeRuntime(), points, tmp_path / "all"),
        series(tmp_path / "too", PreparesToo, batch=2),
    )
    worker = Mock(alive=True, request=request, notes=[], printed_bytes=0, started="started")
    everything, _ = set_up(tmp_path, eager, *made, spawn=lambda *_: worker)
    assert asked == [(1, 2)]
    assert [sorted(s.points) for s in everything if s.is_eager] == [[2], [1]]


def test_where_eager_has_another_batch_size_left_nothing_is_proven(tmp_path):
    eager, made = series(tmp_path, FakeRuntime, batch=2), series(tmp_path, FakeRuntime)
    eager.is_eager = made.ready = True
    made.workers[0], made.bound[1, 0] = Mock(), PointRun(made, 1, 0, calls=5, call_ns=1)
    plan = Plan(points=(POINT,), folder=tmp_path / "cache")
    with store.Writer(tmp_path / "s", "session") as writer:
        bench = made_bench(plan, [eager, made], writer, tmp_path / "t", None)
        OutputChecks(bench).compare([(made, 1)])
    (found,) = [r for r in store.read(tmp_path / "s")[0] if isinstance(r, Parity)]
    assert found.within_tolerance is None
    assert found.reason is not None and "eager" in found.reason


# --- the set-up process: one at a time, and nothing of it stays -----------------------------------


class FakeProcess:
    def __init__(self, label, variables, libraries):
        self.temporary = Path(variables["TMPDIR"])
        self.alive = True

    def kill(self):
        self.alive = False


@pytest.fixture
def setup_process(tmp_path):
    return SetupProcess(tmp_path / "cache", FakeProcess, [])


def test_it_is_kept_until_it_is_closed(setup_process):
    first = setup_process.get("m")
    assert setup_process.get("m") is first
    assert first.temporary.stat().st_mode & 0o777 == 0o700
    setup_process.close()
    assert not first.alive and not first.temporary.exists()
    setup_process.close()


@pytest.mark.parametrize("change", ["fresh", "ended", "another model"])
def test_what_is_not_wanted_or_not_well_is_ended(setup_process, change):
    first = setup_process.get("m")
    first.alive = change != "ended"
    second = setup_process.get(change if " " in change else "m", fresh=change == "fresh")
    assert second is not first
    assert not first.alive and not first.temporary.exists()


# --- a batch size that ends its process -----------------------------------------------------------


class Ending:
    """A series of batch sizes 1, 2 and 4 in fake processes; 4 ends the one that it is bound in."""

    def __init__(self, tmp_path, writer):
        points = {b: replace(POINT, workload=replace(POINT.workload, batch=b)) for b in (1, 2, 4)}
        self.series = Series(FakeRuntime(), points, tmp_path / "f", ready=True)
        self.host, self.fails = FakeHost(FakeClock()), {("bind", 4)}
        self.host.before = self.before
        plan = Plan(points=tuple(points.values()), folder=tmp_path)
        bench = made_bench(plan, [self.series], writer, tmp_path / "t", None)
        self.setup = Setup(bench, self.host.process, None)

    def before(self, worker, request):
        if (request.step, getattr(request, "batch", None)) in self.fails:
            worker.alive = request.step != "bind"
            raise WorkerError("crashed" if request.step == "bind" else "failed", "SIGSEGV")

    def bind(self, process, *batches):
        """Return what was asked of the process meanwhile."""
        self.host.asked.clear()
        for batch in batches:
            self.setup.bind(self.series, process, batch)
        return [(step, batch) for _, step, batch, n in self.host.asked if n == process]


@pytest.fixture
def ending(tmp_path):
    with store.Writer(tmp_path / "s", "session") as writer:
        yield Ending(tmp_path, writer)


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_a_batch_size_ended_is_started_anew_with_what_was_warm(ending, process):
    series, other = ending.series, 1 - process
    for each in (0, 1):
        ending.setup.start(series, each)
    ending.bind(other, 2)
    ending.bind(process, 1)
    assert ending.bind(process, 4) == [("bind", 4), ("load", None), ("bind", 1)]
    assert series.workers[process].alive
    assert set(series.runs) == set(series.bound) == {(1, process), (2, other)}
    assert series.failed == ({4} if process == 0 else set())


def test_a_first_process_in_which_nothing_was_warm_is_started_for_the_next_batch_size(ending):
    ending.fails = {("bind", 1)}
    ending.setup.start(ending.series, 0)
    assert ending.bind(0, 1) == [("bind", 1)]
    assert ending.bind(0, 1, 2) == [("load", None), ("bind", 2)]  # what failed is not tried again


def test_a_further_process_is_started_anew_at_once_or_never(ending):
    ending.setup.start(ending.series, 1)
    assert ending.bind(1, 4) == [("bind", 4), ("load", None)]
    ending.series.workers[1].alive = False
    assert ending.bind(1, 1) == []


def test_a_batch_size_that_waits_for_its_turn_does_not_fail_with_the_one_before(ending, tmp_path):
    ending.setup.start(ending.series, 1)
    waits = threading.Thread(target=ending.setup.bind, args=(ending.series, 1, 1), daemon=True)
    crashed = threading.Event()

    def before(worker, request):
        if request.step == "bind" and request.batch == 4:
            waits.start()
            waits.join(0.1)
            worker.alive = False
            crashed.set()
            raise WorkerError("crashed", "SIGSEGV")
        if request.step == "bind":  # a process answers one request at a time
            assert crashed.wait(600)
            if not worker.alive:
                raise WorkerError("crashed", "SIGSEGV")

    ending.host.before = before
    ending.setup.bind(ending.series, 1, 4)
    waits.join()
    assert set(ending.series.runs) == {(1, 1)}
    ended = [one.point for one in store.read(tmp_path / "s")[0] if isinstance(one, Outcome)]
    assert ended == [ending.series.points[4].key()]


def test_a_process_that_cannot_be_started_anew_fails_with_what_was_warm(ending, tmp_path):
    ending.setup.start(ending.series, 1)
    ending.bind(1, 1)
    ending.fails.add(("load", None))
    ending.bind(1, 4)
    assert not ending.series.workers and not ending.series.runs
    assert not any(worker.alive for worker in ending.host.workers)  # they would hold memory
    ended = [one for one in store.read(tmp_path / "s")[0] if isinstance(one, Outcome)]
    assert [(one.process, one.status) for one in ended] == [(1, "crashed"), (1, "failed")]


def test_a_process_that_cannot_be_started_fails_at_every_batch_size_and_is_ended(ending, tmp_path):
    ending.fails = {("load", None)}
    ending.setup.start(ending.series, 1)
    assert not ending.series.workers and not ending.host.workers[0].alive
    ended = [one for one in store.read(tmp_path / "s")[0] if isinstance(one, Outcome)]
    assert [(one.process, one.status) for one in ended] == [(1, "failed")] * 3


def test_nothing_is_started_anew_in_a_series_that_was_ended(ending):
    def before(worker, request):
        if request.step == "bind":
            ending.series.stop()
            raise WorkerError("crashed", "ended")

    ending.setup.start(ending.series, 1)
    ending.host.before = before
    assert ending.bind(1, 1) == [("bind", 1)]


@pytest.mark.parametrize(("timed", "ready"), [(True, True), (True, False), (False, True)])
def test_only_what_is_asked_for_and_ready_is_timed(ending, timed, ready):
    ending.series.timed, ending.series.ready = timed, ready
    ending.setup.start(ending.series, 0)
    ending.bind(0, 1)
    assert set(ending.series.bound) == {(1, 0)}
    assert bool(ending.series.runs) == (timed and ready)
