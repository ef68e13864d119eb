"""The ladder and what its steps are worth, on records whose truth is known."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sample_records as data
from ladder_records import BASE, LATENCY_MS, MS, RUNGS, records, write
from rich.console import Console

from frameworktax import ablate, runtimes
from frameworktax.ablate import blocks, steps
from frameworktax.ablate.ladder import base_point, chosen, ladder
from frameworktax.ablate.steps import build, effect
from frameworktax.errors import UsageError
from frameworktax.records import Estimate, LeftOut, Note, Session, Subject
from frameworktax.report import render_markdown, render_terminal, vega
from frameworktax.report.blocks import Notes
from frameworktax.runtimes import variants


@pytest.fixture(scope="module")
def found():
    return build(records())


def step(ablation, name):
    return next(s for s in ablation.steps if s.rung.name == name)


def test_every_rung_names_a_runtime_and_hangs_on_one_before_it():
    for base in (BASE, base_point(data.point("eager"), attention=False)):
        rungs = ladder(base, images=True, processors=2)
        names = [rung.name for rung in rungs]
        assert len(set(names)) == len(names)
        assert {rung.path for rung in rungs} == set(ablate.PATHS)
        for at, rung in enumerate(rungs):
            assert (rung.after is None) if at == 0 else (rung.after in names[:at])
            assert rung.alone is not None or rung.why or at == 0
            for point in (rung.point, rung.alone):
                if point is not None:
                    assert runtimes.get(point.runtime).name == point.runtime


def test_a_model_without_a_choice_of_attention_has_no_such_step():
    base = base_point(data.point("eager"), attention=False)
    rungs = ladder(base, images=False, processors=1)
    said = {rung.name for rung in rungs}
    assert not said & {"fused-attention", "attention-operator", "memory-layout", "threads"}
    assert not any("unfused" in rung.point.runtime for rung in rungs)
    assert next(r for r in rungs if r.name == "no-python").after == "inference-mode"


def test_paths():
    assert chosen(["device", "torchscript"]) == ("eager", "torchscript", "device")
    with pytest.raises(UsageError, match=r"'onnx'.*'onnxruntime'"):
        chosen(["onnx"])


def test_who_may_choose_attention():
    assert steps.may_choose_attention("bert-base")
    assert steps.may_choose_attention("hf:bert")
    assert steps.may_choose_attention("mine.py:build")
    assert not steps.may_choose_attention("resnet-50")
    assert not steps.may_choose_attention("timm:resnet18")


def test_what_a_step_adds_and_what_it_gives_alone(found):
    python = step(found, "no-python")
    assert python.added.against == "fused-attention"
    assert python.added.ratio.value == pytest.approx(4 / 6)
    assert python.added.latency_ns.value == pytest.approx(-2 * MS, rel=1e-3)
    # tax: 0.4 of 4 ms after half of 6 ms; kernel time: 0.6 of 4 ms after half of 6 ms
    assert python.added.tax_ns.value == pytest.approx((0.4 * 4 - 0.5 * 6) * MS, rel=0.05)
    assert python.added.kernel_ns.value == pytest.approx((0.6 * 4 - 0.5 * 6) * MS, rel=0.05)
    for estimate in (python.added.ratio, python.added.tax_ns, python.added.kernel_ns):
        assert estimate.low < estimate.value < estimate.high
    assert python.alone.against == "base"
    assert python.alone.ratio.value == pytest.approx(0.8)
    assert python.total.ratio.value == pytest.approx(0.4)
    autograd = step(found, "no-autograd")
    assert autograd.added.ratio.value == pytest.approx(0.8)
    assert autograd.added.tax_ns.value == pytest.approx((0.6 * 8 - 0.7 * 10) * MS, rel=0.05)
    assert autograd.alone == autograd.added


def test_a_pair_that_is_a_step_added_alone_and_in_total_counts_once(monkeypatch):
    counted, moderate = [], steps.moderate
    monkeypatch.setattr(steps, "moderate", lambda given: counted.extend(given) or moderate(given))
    pairs = set()
    for one in build(records()).steps:
        for effect_, point in (
            (one.added, one.rung.point),
            (one.total, one.rung.point),
            (one.alone, one.rung.alone),
        ):
            if effect_ is not None:
                pairs.add((effect_.against, point))
    assert len(counted) == len(pairs)


def test_paired_differences_hold_no_drift_that_both_sides_share(found):
    # every block of a process and round is off by one factor on both sides
    ratio = step(found, "no-autograd").added.ratio
    assert (ratio.high - ratio.low) / ratio.value < 0.01
    latency = step(found, "no-autograd").measured.latency_ns
    assert (latency.high - latency.low) / latency.value > 0.02


def test_levels_hang_on_the_executor_and_cannot_be_had_alone(found):
    basic = step(found, "basic")
    assert (basic.added.against, basic.alone) == ("static-memory", None)
    assert basic.alone_reason == basic.rung.why
    assert basic.added.tax_ns.value == pytest.approx(0.2 * (3.0 - 3.5) * MS, rel=0.05)
    executor = step(found, "executor")
    assert executor.added.ratio.value == pytest.approx(5 / 6)
    assert executor.added.tax_ns is None, "sampled before, by the twin after"
    assert "inference-mode" in executor.added.reason and "its twin" in executor.added.reason


def test_what_was_not_measured_says_why_and_the_next_hangs_one_lower(found):
    jemalloc = step(found, "jemalloc")
    assert (jemalloc.reason, jemalloc.added, jemalloc.alone) == ("no time", None, None)
    lost = build(records(lost=("inference-mode@unfused",)))
    assert step(lost, "inference-mode").reason == "signal 11"
    assert step(lost, "fused-attention").added.against == "no-autograd"
    assert step(lost, "fused-attention").added.ratio.value == pytest.approx(6 / 8)
    rootless = build(records(lost=("eager@autograd-unfused",)))
    assert step(rootless, "no-autograd").added is None
    assert blocks.headline(rootless).endswith("not measured: signal 11")


def test_a_model_that_turns_out_to_have_one_attention_is_not_credited_with_two():
    fixed = build(records(notes=(Note("attention-as-it-is", "one way"),)))
    assert step(fixed, "fused-attention").added is None
    assert "attention" in step(fixed, "fused-attention").reason
    assert step(fixed, "no-python").added.against == "inference-mode"


def test_the_best_has_equal_outputs_and_one_thread(found):
    assert found.best.rung.name == "basic"  # frozen is as fast, and its outputs differ
    headline = blocks.headline(found)
    for part in ("10.0 ms", "3.33 × (3.32 to 3.34)", "basic: constants folded", "(traced graph)"):
        assert part in headline


def test_the_largest_step_has_equal_outputs(found):
    python = step(found, "no-python")
    other = replace(python.measured.parity, within_tolerance=False)
    wrong = replace(python, measured=replace(python.measured, parity=other))
    ablation = replace(found, steps=tuple(wrong if s is python else s for s in found.steps))
    assert "(traced graph)" not in blocks.headline(ablation)
    assert "largest single step" in blocks.headline(ablation)


def test_where_every_step_is_slower_none_is_called_faster(monkeypatch):
    monkeypatch.setitem(LATENCY_MS, "eager@autograd-unfused", 1.0)
    said = blocks.headline(build(records()))
    assert "1.00 ms" in said and "×" not in said


def test_a_step_whose_interval_reaches_one_is_not_called_faster(found):
    def with_ratio(one, value, half):
        ratio = replace(one.total.ratio, value=value, low=value - half, high=value + half)
        return replace(one, total=replace(one.total, together=ratio))

    first, *others = found.steps
    noisy = [with_ratio(s, 0.7, 0.4) if s.total and s.total.ratio else s for s in others]
    ablation = replace(found, steps=(first, *noisy))
    assert "×" not in blocks.headline(ablation)
    at = next(i for i, s in enumerate(noisy) if s.rung.name == found.best.rung.name)
    noisy[at] = with_ratio(noisy[at], 0.9, 0.05)
    ablation = replace(found, steps=(first, *noisy))
    assert ablation.best is noisy[at]
    assert "1.11 × (1.05 to 1.18)" in blocks.headline(ablation)


def test_no_step_is_called_faster_for_being_the_best_of_many(found):
    """Every step takes as long as the base; processes differ by 1 %, blocks by 1 %."""
    rng = np.random.default_rng(11)
    rungs = [one.rung for one in found.steps]
    named = 0
    for _ in range(100):
        same = []
        for m in found.run.measurements:
            own = dict(enumerate(rng.normal(1, 0.01, 5)))
            noisy = [(p, r, 1e6 * own[p] * rng.normal(1, 0.01)) for p in own for r in range(4)]
            same.append(replace(m, blocks_ns=tuple(noisy)))
        made = replace(found, steps=steps._steps(rungs, same, {}))
        named += "×" in blocks.headline(made)
    assert named <= 8


def test_no_common_rounds_is_no_number(found):
    m = found.base.measured
    apart = effect("base", m, m, None)
    assert apart.ratio is None and "two rounds" in apart.reason
    bare = replace(m, tax_share=None, runtime="x")
    change = Estimate(value=0.5, low=0.4, high=0.6)
    unsampled = effect("base", m, bare, change, change)
    assert unsampled.tax_ns is None and "kernel time of x" in unsampled.reason


def test_the_document_is_plain_json_without_made_up_numbers(found):
    document = json.loads(json.dumps(blocks.document(found), allow_nan=False))
    assert (document["schema"], document["best"]) == ("frameworktax.ablation", "basic")
    steps = {s["name"]: s for s in document["steps"]}
    assert steps["jemalloc"]["latency_ns"] is None and steps["jemalloc"]["reason"] == "no time"
    assert steps["frozen"]["same_outputs"] is False
    assert steps["no-python"]["added"]["tax_ns"]["value"] < 0


def test_tables_hold_what_was_found(found):
    page = render_markdown.markdown(blocks.ablation_blocks(found))
    assert page.startswith("# bert-mini")
    rows = {r[0].text: [c.text for c in r[1:]] for r in blocks.steps_table(found).rows}
    assert rows["no Python (traced graph)"][0] == "4.00"
    assert rows["no Python (traced graph)"][3].startswith("−33 % (−33 to −33)")
    assert rows["constants folded, frozen ≠"][0] == "3.00"
    assert rows["jemalloc"][0] == "–"
    codes = {note.code for note in blocks.reasons(found).notes}
    assert codes == {"not-measured", "not-alone", "no-difference"}
    out = io.StringIO()
    render_terminal.print_blocks(blocks.ablation_blocks(found), Console(file=out, width=80))
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_names_from_outside_cannot_break_the_page():
    odd = [
        replace(r, point=_named(r.point)) if isinstance(r, Subject | LeftOut) else
        replace(r, point=KEYS[r.point]) if hasattr(r, "point") else r
        for r in records()
    ]  # fmt: skip
    page = render_markdown.markdown(blocks.ablation_blocks(build(odd)))
    assert "<script>" not in page and "a\\|b&lt;script>" in page


def _named(point):
    return replace(point, workload=replace(point.workload, model="a|b<script>.py:f"))


KEYS = {
    p.key(): _named(p).key()
    for r in RUNGS
    for q in (r.point, r.alone)
    if q is not None
    for p in (q, replace(q, workload=replace(q.workload, twin=True)))
}


def test_the_waterfall_shows_every_measured_step_once(found):
    bars = {bar["step"]: bar for bar in blocks.waterfall(found)["data"]["values"]}
    assert len(bars) == len([s for s in found.steps if s.reason is None])
    bar = bars["TorchScript: no Python (traced graph)"]
    assert bar["kernel time"] == pytest.approx(2.4, rel=0.05)
    assert (bar["before"], bar["latency"]) == (pytest.approx(6.0), pytest.approx(4.0))
    assert bar["colour"] == blocks.FASTER
    assert "fused attention" in vega.svg(blocks.waterfall(found))


def test_a_store_gives_back_its_newest_ladder(tmp_path):
    for name, lost in (("20261120T100000-aaaa", ()), ("20261121T100000-bbbb", ("torchscript",))):
        write(tmp_path, records(lost=lost, session=name))
    assert step(ablate.read(tmp_path), "no-python").reason == "signal 11"
    assert ablate.read(tmp_path, data.MODEL).session == "20261121T100000-bbbb"
    with pytest.raises(UsageError, match=r"gpt2; frameworktax ablate MODEL"):
        ablate.read(tmp_path, "gpt2")


def test_a_precision_that_the_base_does_not_have_is_refused_before_anything_is_measured(tmp_path):
    int8 = replace(data.point("eager").workload, precision="int8")
    with pytest.raises(UsageError, match=r"can run here: .*int8"):
        ablate.ablate(data.MODEL, int8, folder=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_ladder_of_another_workload_or_without_a_path_is_not_given_back(tmp_path):
    write(tmp_path, records())
    own = BASE.workload
    assert ablate.read(tmp_path, model=own.model, batch=own.batch, platform="cpu").best is not None
    for wanted in ({"batch": 8}, {"length": 16}, {"precision": "bfloat16"}, {"platform": "cuda:0"}):
        ((name, value),) = wanted.items()
        with pytest.raises(UsageError, match=f"no ladder with {name} {value}"):
            ablate.read(tmp_path, **wanted)
    with pytest.raises(UsageError, match="no path 'onnx'"):
        ablate.read(tmp_path, paths=["onnx"])
    some = ablate.read(tmp_path, paths=["torchscript"])
    assert {one.rung.path for one in some.steps} == {"eager", "torchscript"}
    assert some.best.rung.name == "no-python"


def test_a_measurement_of_the_base_is_no_newer_ladder(tmp_path):
    write(tmp_path, records())
    later = "20991231T000000-ffff"
    some = [r for r in records(session=later)
            if isinstance(r, Session) or (isinstance(r, Subject) and r.point == BASE)]  # fmt: skip
    write(tmp_path, [replace(r, command=("measure", data.MODEL)) if isinstance(r, Session) else r
                     for r in some])  # fmt: skip
    assert ablate.read(tmp_path).session != later
    with pytest.raises(UsageError, match="no ladder"):
        ablate.read(tmp_path / f"{later}.jsonl")


def test_what_a_store_lost_is_in_every_form_of_its_ladder(tmp_path):
    write(tmp_path, records())
    (shard,) = tmp_path.glob("*.jsonl")
    shard.write_bytes(shard.read_bytes() + b'{"torn": ')
    read = ablate.read(tmp_path)
    (code,) = {note.code for note in read.run.notes} - {
        note.code for note in build(records()).run.notes
    }
    assert code in {note["code"] for note in blocks.document(read)["notes"]}
    shown = [note.code for block in blocks.ablation_blocks(read) if isinstance(block, Notes)
             for note in block.notes]  # fmt: skip
    assert code in shown


def test_the_plan_of_a_ladder_holds_every_point_once_and_its_session_is_read(tmp_path, monkeypatch):
    plans = []

    def measured(plan, folder, **_):
        plans.append(plan)
        write(folder, records())
        # begun by another, who waited for the host
        write(folder, records(lost=("eager@autograd-unfused",), session="20991231T000000-ffff"))
        return [SimpleNamespace(session=r.session) for r in records() if isinstance(r, Session)]

    monkeypatch.setattr(steps.api, "run_plan", measured)
    monkeypatch.setattr(steps.host, "usable_cpus", lambda: [0, 1])
    workload = data.point("eager").workload
    found, _ = ablate.ablate(data.MODEL, workload, folder=tmp_path, time_budget=60.0)
    assert found.base.rung.point == BASE
    assert found.session == next(r.session for r in records() if isinstance(r, Session))
    (plan,) = plans
    wanted = {r.point for r in RUNGS} | {r.alone for r in RUNGS if r.alone is not None}
    assert set(plan.points) == wanted
    assert len(plan.points) == len(wanted)
    assert (plan.points[0], plan.budget_s) == (BASE, 60.0)
    ablate.ablate(data.MODEL, workload, folder=tmp_path / "some", paths=["torchscript"])
    assert not any(p.runtime.startswith(("onnxruntime", "inductor")) for p in plans[1].points)
    assert max(p.threads for p in plans[1].points) == 2
    ablate.ablate(data.MODEL, workload, folder=tmp_path / "one", threads=1, processes=5)
    assert max(p.threads for p in plans[2].points) == 1
    assert [(p.processes, p.most_processes) for p in plans] == [(3, 12), (3, 12), (5, 0)]


@pytest.mark.parametrize(
    ("option", "value"), [("processes", 0), ("threads", 0), ("time_budget", 0.0)]
)
def test_numbers_that_cannot_be(option, value, tmp_path):
    with pytest.raises(UsageError, match="above zero"):
        ablate.ablate(data.MODEL, folder=tmp_path, **{option: value})


def test_jemalloc_is_found_where_distributions_put_it(tmp_path):
    assert variants.jemalloc(tmp_path) is None
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    assert variants.jemalloc(tmp_path) == library
    assert variants.variables("autograd-malloc")["MALLOC_MMAP_MAX_"] == "0"
    assert variants.variables("autograd") == {}
