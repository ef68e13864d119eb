"""The rule of `compare`: pairing, environments, verdicts, the gate, what is refused."""

import json
import math
import re
from dataclasses import replace

import comparison_records as made
import pytest
import sample_records as data

import frameworktax as ft
from frameworktax import api, comparing
from frameworktax.analysis.compare import contrasts
from frameworktax.analysis.compare.comparison import compare
from frameworktax.analysis.document import build
from frameworktax.analysis.estimates import share_interval
from frameworktax.errors import StoreError, UsageError
from frameworktax.host import cache
from frameworktax.records import Block, Estimate, Layer, LeftOut, Note, Run
from frameworktax.store.read import point_key

OLD = build(made.session())


def after(**more):
    return build(made.session(made.NEW, **more))


def by_runtime(comparison):
    return {change.runtime: change for change in comparison.points}


# --- verdicts -----------------------------------------------------------------------------------


def test_each_point_gets_its_verdict():
    found = compare(OLD, after(factors={"eager": 1.10, "inference-mode": 0.8}), gate=0.05)
    points = by_runtime(found)
    assert {name: c.verdict for name, c in points.items()} == {
        "eager": "slower",
        "inference-mode": "faster",
        "torchscript-frozen": "same",
    }
    assert points["eager"].ratio.value == pytest.approx(1.10, rel=1e-6)
    assert points["eager"].before.value == pytest.approx(4_400_000)
    assert points["eager"].after.value == pytest.approx(4_840_000)
    assert [points[n].gate for n in points] == ["regressed", "passed", "passed"]
    assert found.exit_code == 1
    assert "1 slower, 1 faster, 1 same" in found.headline and "+10.0 %" in found.headline
    assert all(c.p_adjusted >= c.p_value for c in found.points)


def test_the_headline_has_the_worst_of_several():
    found = compare(OLD, after(factors={"eager": 1.30, "inference-mode": 1.10}), gate=0.05)
    assert [c.gate for c in found.points].count("regressed") == 2
    assert "+30.0 %" in found.headline and "+10.0 %" not in found.headline


def test_a_proven_change_within_the_gate_passes():
    found = compare(OLD, after(factors={"eager": 1.06}), gate=0.10)
    assert by_runtime(found)["eager"].verdict == "slower"
    assert found.exit_code == 0


def test_the_same_code_on_a_host_that_drifts_is_not_slower():
    found = compare(OLD, after(host=1.04), gate=0.05)
    assert {c.verdict for c in found.points} == {"cannot tell"}
    change = found.points[0]
    assert change.ratio.value == pytest.approx(1.0, abs=0.002)
    assert change.host_ratio == pytest.approx(1.04, abs=0.002)
    assert change.measured_ratio == pytest.approx(1.04, rel=1e-5)
    assert "+4.0 % as measured" in change.reason
    assert found.exit_code == 3
    assert compare(OLD, after(host=1.04), gate=0.10).exit_code == 0


def test_the_same_code_on_a_host_that_stays_is_the_same():
    found = compare(OLD, after(), gate=0.05)
    assert {c.verdict for c in found.points} == {"same"}
    assert found.exit_code == 0


def loaded(run, threads=1):
    note = Note("wall-over-cpu", "wall time is 1.40 × the CPU time")
    told = tuple(replace(m, notes=(note,), threads=threads) for m in run.measurements)
    return replace(run, measurements=told)


def test_a_session_that_shared_its_processor_is_not_compared_with_another():
    found = compare(OLD, loaded(after(factors={"eager": 3.0})), gate=0.05)
    assert {c.verdict for c in found.points} == {"cannot tell"}
    assert {c.ratio for c in found.points} == {None}
    assert re.search(r"other load .*\bafter\b", found.points[0].reason)
    assert found.exit_code == 3
    same_session = compare(loaded(OLD), loaded(OLD), gate=0.05)
    assert {c.verdict for c in same_session.points} == {"same"}
    # more threads wait for one another, which is no other load
    many = compare(loaded(OLD, 4), loaded(after(factors={"eager": 3.0}), 4), gate=0.05)
    assert by_runtime(many)["eager"].verdict == "slower"


def test_several_baselines_are_one_side_each_session_once():
    new = after(factors={"eager": 1.05})
    other = replace(
        OLD, measurements=tuple(replace(m, session="another") for m in OLD.measurements)
    )
    alone = by_runtime(compare(OLD, new))["eager"]
    twice = by_runtime(compare([OLD, OLD], new))["eager"]
    two = by_runtime(compare([OLD, other], new))["eager"]
    assert (twice.ratio, twice.method) == (alone.ratio, alone.method)
    assert two.ratio.value == pytest.approx(alone.ratio.value)
    assert two.ratio.high < alone.ratio.high and two.ratio.low > alone.ratio.low
    assert two.before.value == pytest.approx(alone.before.value)
    assert "2 sessions" in two.method and "2 sessions" in two.before.method
    # One that shared its processor is left out, and one of the same session is paired alone.
    assert by_runtime(compare([OLD, loaded(other)], new))["eager"].ratio == alone.ratio
    bare = tuple(replace(m, calibrator_ns=()) for m in other.measurements)
    assert compare([replace(other, measurements=bare), new], new).notes == ()
    own = by_runtime(compare([other, new], new))["eager"]
    assert own.ratio.value == 1 and own.method.startswith("paired")


def test_baselines_need_both_sides():
    with pytest.raises(UsageError, match="both sides"):
        comparing.compare(OLD, baselines=[OLD])


def test_a_changed_program_on_a_host_that_drifts_is_found():
    found = compare(OLD, after(host=1.04, factors={"eager": 1.15}), gate=0.05)
    assert by_runtime(found)["eager"].ratio.value == pytest.approx(1.15, rel=2e-3)
    assert by_runtime(found)["eager"].gate == "regressed"


@pytest.mark.parametrize(("host", "factor", "listed"), [(1.04, 1.04, False), (1.0, 1.5, True)])
def test_a_host_that_drifts_changes_the_tax_of_no_place(host, factor, listed):
    """All layers take 4 % more, and each is known to 0.1 %."""

    def with_layer(run, ns):
        time = Estimate(value=ns, low=0.999 * ns, high=1.001 * ns, n=3)
        about = {"path": "encoder", "class_": "Encoder", "file": None, "line": None, "calls": 1.0}
        one = Layer(**about, time_ns=time, bill_ns={"python": ns})
        return replace(run, measurements=[replace(m, layers=(one,)) for m in run.measurements])

    found = compare(with_layer(OLD, 1e6), with_layer(after(host=host), factor * 1e6))
    assert [bool(change.moved) for change in found.points] == [listed] * 3
    paired = compare(with_layer(OLD, 1e6), with_layer(OLD, 1.04e6))  # of one session
    assert all(change.moved for change in paired.points)


def test_noise_wider_than_the_gate_cannot_be_told():
    found = compare(OLD, after(host=1.2), gate=0.05)
    assert {c.verdict for c in found.points} == {"cannot tell"}
    assert {c.gate for c in found.points} == {"undecided"}
    assert found.exit_code == 3
    assert "3 may be" in found.headline
    wide = compare(OLD, after(host=1.2), gate=0.50)
    assert wide.exit_code == 0  # the same noise is well within 50 %


def test_an_estimate_beyond_the_gate_that_is_not_proven_does_not_fail():
    new = after()
    m = new.measurements[0]
    factors = (0.9, 1.1, 1.3)
    shaken = replace(m, blocks_ns=tuple((p, r, ns * factors[p]) for p, r, ns in m.blocks_ns))
    found = compare(OLD, replace(new, measurements=(shaken,)), gate=0.05)
    assert found.points[0].ratio.value > 1.05 and found.points[0].p_value > 0.05
    assert (found.points[0].gate, found.exit_code) == ("undecided", 3)


def test_without_a_gate_slower_is_told_and_does_not_fail():
    found = compare(OLD, after(factors={"eager": 1.3}))
    assert by_runtime(found)["eager"].verdict == "slower"
    assert (found.exit_code, found.gate, found.points[0].gate) == (0, None, None)
    assert found.margin == 0.05


def test_an_interval_below_the_gate_passes_though_same_cannot_be_told():
    # 2 % faster, not proven among the points, never 3 % slower
    found = compare(OLD, after(factors={"eager": 0.98}), gate=0.03)
    change = by_runtime(found)["eager"]
    assert change.verdict == "cannot tell" and change.gate == "passed"
    assert found.exit_code == 0


def test_identical_documents_are_the_same():
    found = compare(OLD, OLD, gate=0.01)
    assert {c.verdict for c in found.points} == {"same"}
    assert found.points[0].method == "paired blocks of one session"


# --- metrics ------------------------------------------------------------------------------------


def test_tax_and_kernel_follow_their_shares():
    changed = after(factors={"eager": 1.2})
    latency = by_runtime(compare(OLD, changed))["eager"]
    for metric in ("tax", "kernel"):
        change = by_runtime(compare(OLD, changed, metric=metric))["eager"]
        assert change.ratio.value == pytest.approx(1.2, rel=1e-6)  # shares are as they were
        assert "perf-event" in change.method
        assert change.ratio.high - change.ratio.low > latency.ratio.high - latency.ratio.low
    assert change.before.value == pytest.approx(OLD.measurements[0].kernel_ns.value)


@pytest.mark.parametrize("metric", ["tax", "kernel"])
def test_a_share_that_moved_is_in_the_ratio(metric):
    new = after()
    m = new.measurements[0]
    share = m.tax_share
    less = share.at(0.9 * share.value, 0.9 * share.low, 0.9 * share.high)
    new = replace(new, measurements=(replace(m, tax_share=less), *new.measurements[1:]))
    change = by_runtime(compare(OLD, new, metric=metric))[m.runtime]
    kernel = (1 - less.value) / (1 - share.value)
    assert change.ratio.value == pytest.approx(0.9 if metric == "tax" else kernel, rel=1e-6)


def test_a_share_around_zero_gives_no_ratio():
    m = OLD.measurements[0]
    share = Estimate(value=0.01, low=-0.01, high=0.03, n=10)
    around = replace(OLD, measurements=(replace(m, tax_share=share),))
    (change,) = compare(around, around, metric="tax", gate=0.05).points
    assert (change.verdict, change.gate, change.ratio) == ("cannot tell", "undecided", None)
    assert "no interval" in change.reason


def test_a_share_of_one_stretch_is_as_uncertain_as_its_binomial():
    m = OLD.measurements[0]
    one = replace(OLD, measurements=(replace(m, tax_share=share_interval([34], [67], "m")),))
    (change,) = compare(one, one, metric="tax").points
    error = math.sqrt(33 / 67 / 34)  # of the log of a share, on each side
    assert math.log(change.ratio.high) > 1.96 * math.hypot(error, error)


def gpu(launches, session=made.OLD, kernel=300_000):
    run = build(data.gpu_records(1_000_000, (kernel, kernel + 100) * 6))
    m = replace(run.measurements[0], launches=launches, session=session)
    return replace(run, measurements=(m,))


def test_kernel_time_of_a_device_is_compared_by_itself():
    found = compare(gpu(60), gpu(60, made.NEW, kernel=400_000), metric="kernel", gate=0.05)
    (change,) = found.points
    assert change.ratio.value == pytest.approx(400_050 / 300_050)
    assert change.method == "kernel time of the device, by call"
    assert change.gate == "regressed"


def test_counts_that_changed_are_named():
    new = after()
    changed = replace(new, measurements=tuple(replace(m, operators=490) for m in new.measurements))
    assert compare(OLD, changed).points[0].counts == {"operators": (480, 490)}
    assert compare(OLD, new).points[0].counts is None


# --- pairing ------------------------------------------------------------------------------------


def test_points_pair_by_workload_and_the_rest_is_listed():
    found = compare(build(made.session(batches=(1, 2))), after(batches=(2, 4)))
    assert {c.workload.batch for c in found.points} == {2}
    assert found.unpaired_before[0].startswith(data.MODEL) and "batch 1" in found.unpaired_before[0]
    assert len(found.unpaired_before) == len(found.unpaired_after) == 3


def test_two_runtimes_of_one_session_are_paired_by_block():
    (change,) = compare(OLD, OLD, runtimes={"eager": "inference-mode"}).points
    assert change.ratio.value == pytest.approx(3.9 / 4.4)
    assert change.method == "paired blocks of one session"
    assert (change.runtime, change.against) == ("inference-mode", "eager")
    assert change.host_ratio is None


def test_two_names_before_are_not_paired_with_one_after():
    with pytest.raises(UsageError, match="'inference-mode'"):
        compare(OLD, OLD, runtimes={"eager": "inference-mode", "inference-mode": "inference-mode"})


def test_two_models_stand_for_one_another():
    old = build(made.session(model="a.py:build"))
    new = build(made.session(made.NEW, model="b.py:build", factors={"eager": 1.5}))
    found = compare(old, new, models={"a.py:build": "b.py:build"})
    assert by_runtime(found)["eager"].verdict == "slower"
    assert found.points[0].against == "a.py:build"


def test_nothing_in_common_is_refused_with_what_there_is():
    with pytest.raises(UsageError, match="--model BEFORE=AFTER") as refused:
        compare(OLD, after(batches=(7,)))
    assert "batch 7" in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="before has no such point; after has"):
        compare(Run(), OLD)


def test_a_point_that_crashes_now_cannot_be_told_and_does_not_pass():
    found = compare(OLD, after(lost=("eager",)), gate=0.05)
    change = by_runtime(found)["eager"]
    assert "crashed after: signal 11" in change.reason
    assert (change.verdict, change.gate, found.exit_code) == ("cannot tell", "undecided", 3)


def test_counts_are_of_the_sessions_that_are_compared():
    noisy = loaded(build(made.session(factors={"eager": 2.0})))
    other = tuple(replace(m, operators=1, session="noisy") for m in noisy.measurements)
    found = compare([replace(noisy, measurements=other), OLD], after())
    assert by_runtime(found)["eager"].before.value == pytest.approx(4_400_000)
    assert {c.counts for c in found.points} == {None}


def test_a_point_that_was_not_measured_again_does_not_pass_a_gate():
    late = data.point("eager", 2)
    records = made.session(made.NEW, batches=(1,))
    records.append(LeftOut(session=made.NEW, point=late, reason="the time budget was spent"))
    old, new = build(made.session(batches=(1, 2))), build(records)
    found = compare(old, new, gate=0.05)
    assert {c.gate for c in found.points} == {"passed"}
    assert (len(found.unpaired_before), found.exit_code) == (3, 3)
    assert compare(old, new).exit_code == 0
    assert compare(new, old, gate=0.05).exit_code == 0  # a new point has no side before


def test_a_document_without_blocks_is_compared_by_its_samples_with_more_doubt():
    bare = replace(
        OLD,
        measurements=tuple(replace(m, blocks_ns=(), calibrator_ns=()) for m in OLD.measurements),
    )
    found = compare(bare, after(), gate=0.05)
    assert found.exit_code == 3  # the host's own drift is not known
    assert [n.code for n in found.notes] == ["no-calibrator", "constants-of-another-host"]
    assert compare(bare, after(factors={"eager": 1.3}), gate=0.05).exit_code == 1


# --- environments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", [{"cpu": "Intel"}, {"host": "node-2"}, {"cores": 64}, {"gpus": ({"name": "H100"},)}]
)
def test_another_machine_is_refused_for_timings_unless_across(field):
    other = after(environment=replace(data.ENVIRONMENT, **field))
    (name,) = field
    with pytest.raises(UsageError, match="--across") as refused:
        compare(OLD, other)
    assert name in str(refused.value)
    found = compare(OLD, other, across=True)
    assert found.environment[0].field == name and found.environment[0].machine
    assert found.notes[0].code == "across-machines"


def test_points_of_several_hosts_are_refused_unless_across_or_of_one_session():
    """The newest session is of the same host on both sides; of eager it is not."""
    there = replace(data.ENVIRONMENT, host="node-2")
    away = made.session("20261119T100000-aaaa", environment=there)
    here = [r for r in made.session() if point_key(r) != data.point("eager").key()]
    mixed = build([*away, *here])
    assert "several-hosts" in {n.code for n in mixed.notes}
    with pytest.raises(UsageError, match="several hosts"):
        compare(mixed, after())
    found = compare(mixed, after(), across=True)
    assert not found.environment and found.notes[0].code == "across-machines"
    assert compare(mixed, mixed).points  # paired with themselves
    assert compare(build([*away, *made.session()]), after()).points  # none is of the other host


def test_an_upgrade_is_named_and_compared():
    libraries = {**data.ENVIRONMENT.libraries, "torch": "2.14.0+cpu"}
    found = compare(OLD, after(environment=replace(data.ENVIRONMENT, libraries=libraries)))
    (difference,) = found.environment
    assert (difference.field, difference.machine) == ("libraries.torch", False)
    assert (difference.before, difference.after) == ("2.13.0+cpu", "2.14.0+cpu")


def test_another_numpy_is_another_calibrator():
    libraries = {**data.ENVIRONMENT.libraries, "numpy": "3.0"}
    found = compare(OLD, after(environment=replace(data.ENVIRONMENT, libraries=libraries)))
    assert "calibrator-differs" in [n.code for n in found.notes]
    assert found.points[0].host_ratio is None


# --- stores, documents, baselines ---------------------------------------------------------------


def test_a_store_alone_is_compared_with_its_session_before(tmp_path):
    store = made.write(
        tmp_path / "s", made.session(), made.session(made.NEW, factors={"eager": 1.5})
    )
    found = ft.compare(store, gate=0.05)
    assert by_runtime(found.comparison)["eager"].ratio.value == pytest.approx(1.5)
    assert found.exit_code == 1
    with pytest.raises(UsageError, match="--runtime BEFORE=AFTER"):
        ft.compare(made.write(tmp_path / "one", made.session()))
    shards = sorted(store.glob("*.jsonl"))
    assert ft.compare(*shards, gate=0.05).comparison.points == found.comparison.points


def test_a_point_that_failed_in_the_newest_session_has_failed_after(tmp_path):
    store = made.write(tmp_path / "s", made.session(), made.session(made.NEW, lost=("eager",)))
    found = ft.compare(store, gate=0.05)
    lost = by_runtime(found.comparison)["eager"]
    assert (lost.before.value, lost.after) == (pytest.approx(4_400_000), None)
    assert found.exit_code == 3
    shards = sorted(store.glob("*.jsonl"))
    assert ft.compare(*shards, gate=0.05).comparison.points == found.comparison.points


def test_the_session_before_has_its_own_environment(tmp_path):
    libraries = {**data.ENVIRONMENT.libraries, "torch": "2.14.0+cpu"}
    upgraded = replace(data.ENVIRONMENT, libraries=libraries)
    newer = made.session(made.NEW, environment=upgraded)
    store = made.write(tmp_path / "s", made.session(), newer)
    (difference,) = ft.compare(store).comparison.environment
    assert (difference.before, difference.after) == ("2.13.0+cpu", "2.14.0+cpu")
    elsewhere = made.session("20261122T100000-cccc", environment=replace(upgraded, host="node-2"))
    with pytest.raises(UsageError, match="--across"):
        ft.compare(made.write(store, elsewhere))


def test_a_session_that_was_cut_off_later_is_not_the_one_before(tmp_path):
    cut = [
        r for r in made.session(made.NEW) if not isinstance(r, Block) or r.process == r.round == 0
    ]
    with pytest.raises(UsageError, match=r"two sessions; .*--runtime BEFORE=AFTER"):
        ft.compare(made.write(tmp_path / "s", made.session(), cut))


def test_a_baseline_tells_what_its_store_tells(tmp_path):
    store = made.write(tmp_path / "s", made.session())
    kept = tmp_path / "git" / "baseline.json"
    comparing.save_baseline(store, kept)
    assert kept.stat().st_size < 5000 * 3
    new = made.write(tmp_path / "n", made.session(made.NEW, factors={"eager": 1.1}))
    by_baseline, by_store = ft.compare(kept, new, gate=0.05), ft.compare(store, new, gate=0.05)
    assert by_baseline.comparison.points == by_store.comparison.points
    assert json.loads(kept.read_text())["schema"] == "frameworktax.run"
    with pytest.raises(UsageError, match="has a latency"):
        comparing.save_baseline(Run(), kept)


def test_results_in_memory_are_compared(tmp_path):
    found = ft.compare(OLD, after(factors={"eager": 2.0}))
    assert "results in memory" in (found.comparison.before, found.comparison.after)
    with pytest.raises(UsageError, match="name a second"):
        ft.compare(OLD)


@pytest.mark.parametrize(
    ("option", "said"),
    [*(({"gate": gate}, "gate") for gate in (0, -0.1, 1, 5.0, math.nan)),
     ({"metric": "latancy"}, "'latency'")],
)  # fmt: skip
def test_an_impossible_gate_or_metric(option, said):
    with pytest.raises(UsageError, match=said):
        ft.compare(OLD, OLD, **option)


def test_constants_of_another_host_are_named_where_an_interval_has_them():
    """Between sessions, and in one with too few processes; not where all was measured here."""
    within = {"runtimes": {"eager": "inference-mode"}}
    (between,) = compare(OLD, after()).notes
    assert between.code == "constants-of-another-host" and "sessions" in between.text
    assert compare(OLD, OLD, **within).notes == ()
    one = build([r for r in made.session() if getattr(r, "process", 0) == 0])
    (few,) = compare(one, one, **within).notes
    assert few.code == between.code and "--processes" in few.text


def test_constants_of_this_host_are_measured_once_and_taken_for_it_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    levels = iter((1.0, 1.03, 0.98))

    def measured(*_, **options):
        run = build(made.session(factors={"eager": next(levels)}))
        assert options["device"] == "cpu"
        return api.Results(replace(run, measurements=run.measurements[:1]), tmp_path)

    monkeypatch.setattr(api, "measure", measured)
    monkeypatch.setattr(comparing, "CALIBRATION_SESSIONS", 3)
    constants, path = comparing.calibrate(print)
    assert (constants.sessions, constants.session_sd > 0.006) == (3, True)
    found = ft.compare(OLD, after()).comparison
    assert [n.code for n in found.notes] == ["constants-of-this-host"]
    wider = found.points[0].ratio.high
    assert wider > compare(OLD, after()).points[0].ratio.high
    elsewhere = replace(data.ENVIRONMENT, host="node-2")
    there = [build(made.session(name, environment=elsewhere)) for name in (made.OLD, made.NEW)]
    assert "constants-of-another-host" in [n.code for n in ft.compare(*there).comparison.notes]
    across = ft.compare(OLD, there[1], across=True).comparison
    assert "constants-of-another-host" in [n.code for n in across.notes]
    # Of a host that is not known these may be another's; of other software they are the same.
    unknown = replace(OLD, environment=None)
    for before in ([unknown], [OLD, unknown], [OLD, there[0]]):
        assert comparing._constants(before, after()) == contrasts.ELSEWHERE
    assert comparing._constants([OLD], unknown) == contrasts.ELSEWHERE
    newer = replace(data.ENVIRONMENT, libraries={"torch": "99"}, python="9.9")
    assert comparing._constants([OLD], after(environment=newer)) == constants
    path.write_text('{"sessions": "many"}')
    with pytest.raises(UsageError, match="calibrate again"):
        ft.compare(OLD, after())


def test_a_host_with_other_load_is_not_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    run = loaded(OLD)
    one = api.Results(replace(run, measurements=run.measurements[:1]), tmp_path)
    monkeypatch.setattr(api, "measure", lambda *_, **__: one)
    with pytest.raises(UsageError, match="other load"):
        comparing.calibrate(print)
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_session_of_too_few_processes_calibrates_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    run = build([r for r in made.session() if getattr(r, "process", 0) < 2])
    one = api.Results(replace(run, measurements=run.measurements[:1]), tmp_path)
    monkeypatch.setattr(api, "measure", lambda *_, **__: one)
    with pytest.raises(UsageError, match="2 of 3 processes"):
        comparing.calibrate(print)


def test_a_baseline_that_is_missing_is_named_as_a_file(tmp_path):
    with pytest.raises(StoreError, match="--save-baseline"):
        comparing.compare(tmp_path / "baseline.json", tmp_path / "baseline.json")
