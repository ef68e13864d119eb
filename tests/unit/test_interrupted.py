"""A session ended by Ctrl-C or its budget: what was measured, and how many points of how many."""

import json
from pathlib import Path

import fake_measuring
import pytest
import sample_records

from frameworktax import api, store
from frameworktax.errors import FrameworktaxError, NothingMeasuredError
from frameworktax.measure.plan import Plan, points_for
from frameworktax.records import LeftOut, Outcome, Subject, Workload
from frameworktax.report.words import milliseconds

WORDS = ["measure", "bert-tiny", "--runtimes", "eager,inference-mode", "--batch", "1,2,4"]


class Interrupted(fake_measuring.FakeSession):
    """Ctrl-C comes after four of six points."""

    after = 4

    def _point(self, point):
        if self.after == 0:
            raise KeyboardInterrupt
        type(self).after -= 1
        super()._point(point)


class Halfway(Interrupted):
    """Ctrl-C comes when the fifth of six points has a block."""

    def _point(self, point):
        if self.after == 0:
            self._write(Subject(session="", point=point, paradigm="eager"))
            self._write(sample_records.blocks(point, 7_654_321)[0])
        super()._point(point)


class CutShort(Interrupted):
    """The budget is spent after four of six points."""

    def run(self):
        try:
            super().run()
        except KeyboardInterrupt:
            for point in self._plan.points[4:]:
                self._write(LeftOut(session="", point=point, reason="the time budget was spent"))


@pytest.fixture
def run(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(Interrupted, "after", 4)
    monkeypatch.setattr(CutShort, "after", 4)
    monkeypatch.setattr(Halfway, "after", 4)

    def measured(session, *words):
        monkeypatch.setattr(api, "MeasuringSession", session)
        return command(*words)

    return measured


def left_out():
    records, _ = store.read(Path("frameworktax-results"))
    return [r.point for r in records if isinstance(r, LeftOut)]


def test_an_interrupt_leaves_table_document_and_store(run):
    code, out, err = run(Interrupted, *WORDS, "--json", "run.json")
    assert code == 130
    rows = [line.split() for line in out.splitlines() if line.startswith(("eager", "inference-"))]
    assert [row.count("–") for row in rows[:2]].count(0) == 1  # one runtime was measured in full
    assert out.splitlines()[-1].startswith("4 of 6 points, samples in frameworktax-results")
    assert err.splitlines()[-1].startswith("frameworktax: interrupted")
    assert len(left_out()) == 2
    said = [line.split(":")[0].strip() for line in err.splitlines()]
    assert [name for name in said if name in ("eager", "inference-mode")] == ["eager"]
    document = json.loads(Path("run.json").read_text())
    assert document["points"] == {"asked": 6, "measured": 4}
    assert len(document["left_out"]) == 1
    code, out, _ = run(fake_measuring.FakeSession, *WORDS, "--resume")
    assert code == 0
    assert out.splitlines()[-1].startswith("6 points, samples in")


def test_a_point_of_a_single_block_is_measured_again(run):
    code, _, _ = run(Halfway, *WORDS)
    assert code == 130
    code, out, _ = run(fake_measuring.FakeSession, *WORDS, "--resume")
    assert code == 0
    assert out.splitlines()[-1].startswith("6 points, samples in")


class AtTheEnd(fake_measuring.FakeSession):
    """Ctrl-C comes when every point is measured."""

    def run(self):
        super().run()
        raise KeyboardInterrupt


def test_resume_is_offered_only_where_points_are_left(run):
    code, _, err = run(Halfway, *WORDS)
    assert code == 130 and "go on: frameworktax measure" in err.splitlines()[-1]
    code, _, err = run(AtTheEnd, *WORDS)
    assert code == 130 and "frameworktax report" in err.splitlines()[-1]
    assert "--resume" not in err


@pytest.mark.parametrize("after", [0, 4])
def test_the_value_of_a_single_block_stays_in_the_table(run, monkeypatch, after):
    monkeypatch.setattr(Halfway, "after", after)
    code, out, _ = run(Halfway, *WORDS, "--json", "run.json")
    assert code == 130
    document = json.loads(Path("run.json").read_text())
    (cut,) = [m for m in document["measurements"] if len(m["blocks_ns"]) == 1]
    assert cut["latency_ns"] is None
    lines = [line.split() for line in out.splitlines()]
    assert any(milliseconds(cut["blocks_ns"][0][2]) in line[1:] for line in lines)


def test_an_interrupt_before_any_point_leaves_no_table(run, monkeypatch):
    monkeypatch.setattr(Interrupted, "after", 0)
    code, out, err = run(Interrupted, *WORDS)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("frameworktax: interrupted")
    assert len(left_out()) == 6


def test_python_has_the_results_of_an_interrupted_session(tmp_path, monkeypatch):
    monkeypatch.setattr(Interrupted, "after", 4)
    monkeypatch.setattr(api, "MeasuringSession", Interrupted)
    with pytest.raises(api.Interrupted) as stopped:
        api.measure("bert-tiny", runtimes=["eager", "inference-mode"], batch=[1, 2, 4],
                    store=tmp_path / "store")  # fmt: skip
    assert stopped.value.results.run.points.measured == 4


def test_a_run_cut_short_says_so_even_if_quiet(run):
    code, out, err = run(CutShort, *WORDS)
    assert code == 0
    assert out.splitlines()[-1].startswith("4 of 6 points, samples in frameworktax-results")
    CutShort.after = 4
    code, out, err = run(CutShort, *WORDS, "--quiet")
    assert (code, out) == (0, "")
    assert err.startswith("frameworktax: 4 of 6 points") and err.count("\n") == 1


class Nothing(fake_measuring.FakeSession):
    """Every point fails."""

    def run(self):
        for point in self._plan.points:
            self._write(Outcome(session="", point=point.key(), process=0, status="crashed",
                                reason="SIGSEGV"))  # fmt: skip
            self._write(Subject(session="", point=point, paradigm="eager"))
        raise NothingMeasuredError("nothing could be measured; eager: SIGSEGV")


def test_a_document_says_why_nothing_was_measured(run):
    code, out, err = run(Nothing, *WORDS, "--json", "run.json")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].endswith("eager: SIGSEGV")
    document = json.loads(Path("run.json").read_text())
    assert document["points"] == {"asked": 6, "measured": 0}
    assert {(m["status"], m["reason"]) for m in document["measurements"]} == {
        ("crashed", "SIGSEGV")
    }


def test_what_an_earlier_session_measured_is_shown_where_the_rest_fails(run):
    code, _, _ = run(Interrupted, *WORDS)
    assert code == 130
    code, out, _ = run(Nothing, *WORDS, "--resume")
    assert code == 0 and "SIGSEGV" in out
    assert out.splitlines()[-1].startswith("4 of 6 points, samples in")


def test_a_live_module_of_which_nothing_is_left_to_measure_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "MeasuringSession", fake_measuring.FakeSession)
    points = points_for(Workload(model="own"), batches=[1], runtimes=["eager"])
    for name in ("first", "again"):
        sent = tmp_path / name
        sent.touch()
        plan = Plan(points=points, folder=tmp_path / "cache", live=str(sent))
        api.run_plan(plan, tmp_path / "s", resume=True)
        assert not sent.exists()
    assert len(list((tmp_path / "s").iterdir())) == 1


def test_a_store_that_cannot_be_written_leaves_no_file_of_a_live_module(tmp_path):
    sent, store = tmp_path / "sent", tmp_path / "file"
    sent.touch()
    store.touch()
    points = points_for(Workload(model="own"), batches=[1], runtimes=["eager"])
    with pytest.raises(FrameworktaxError):
        api.run_plan(Plan(points=points, folder=tmp_path / "cache", live=str(sent)), store)
    assert not sent.exists()


def test_what_a_killed_session_left_torn_is_noted_by_the_one_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "MeasuringSession", fake_measuring.FakeSession)
    one, two = points_for(Workload(model="bert-tiny"), batches=[1, 2], runtimes=["eager"])
    api.run_plan(Plan(points=(one,), folder=tmp_path), tmp_path / "s")
    (shard,) = (tmp_path / "s").iterdir()
    shard.write_bytes(shard.read_bytes() + b'{"record": "blo')
    for points in ((one, two), (one,)):
        found = api.run_plan(Plan(points=points, folder=tmp_path), tmp_path / "s", resume=True)
        assert [note.code for note in found.run.notes].count("torn-line") == 1


@pytest.mark.parametrize(("ended", "shards"), [(False, 2), (True, 1)])
def test_what_a_killed_session_had_begun_is_measured_again(tmp_path, monkeypatch, ended, shards):
    """As a sweep does it, and as the report says it: two blocks of one round each are no end."""

    class Killed(fake_measuring.FakeSession):
        def _point(self, point):
            self._write(Subject(session="", point=point, paradigm="eager"))
            for block in sample_records.blocks(point, 1000)[:2]:
                self._write(block)
            if ended:
                key = point.key()
                self._write(Outcome(session="", point=key, process=0, status="ok"))

    plan = Plan(
        points=points_for(Workload(model="bert-tiny"), batches=[1], runtimes=["eager"]),
        folder=tmp_path,
    )
    for session in (Killed, fake_measuring.FakeSession):
        monkeypatch.setattr(api, "MeasuringSession", session)
        found = api.run_plan(plan, tmp_path / "s", resume=True)
    assert len(list((tmp_path / "s").iterdir())) == shards
    assert found.run.points.measured == 1
