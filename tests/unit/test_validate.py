"""The checks of predictions: on made-up records whose truth the formulas know, and on others."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import sample_records as data
from two_queues import Program, busy_ns, play, random_program

import prediction_checks as checks_of
import validate
from frameworktax.analysis.document import build
from frameworktax.analysis.whatif import formulas
from frameworktax.errors import NothingMeasuredError
from frameworktax.records import Attribution, Session, Subject

TAX, KERNEL, MATRIX = 2_000_000, 4_000_000, 0.75
OVERHEAD = {"eager": 1_000_000, "inference-mode": 700_000, "torchscript": 400_000}
"""Warm overheads."""


def in_situ(runtime):
    """Among real kernels eager pays twice its warm overhead, and others what is half way."""
    own, shared = 2 * OVERHEAD[runtime], OVERHEAD["eager"] + OVERHEAD[runtime]
    return (own + shared) / 2


def truth_ns(point):
    """Latency of a made-up model: everything the formulas assume holds exactly."""
    w = point.workload
    if w.twin:
        return OVERHEAD[point.runtime]
    return in_situ(point.runtime) + KERNEL * (0.5 + 0.5 * w.batch)


def session(name="s", started="2026-11-20T10:00:00+00:00"):
    return Session(
        session=name, started=started, version="1", command=(), environment=data.ENVIRONMENT
    )


def cpu_records(name="s"):
    made = [session(name)]
    for at in validate.grid("mlp", "cpu"):
        latency = truth_ns(at)
        made.append(Subject(session=name, point=at, paradigm="eager"))
        made += data.blocks(at, latency, session=name)
        if at.workload.twin:
            continue
        tax = round(10_000 * in_situ(at.runtime) / latency)
        stretch = {"kernel": 10_000 - tax, "dispatch": tax}
        made.append(
            Attribution(
                session=name,
                point=at.key(),
                process=0,
                method="perf-event",
                calls=100,
                wall_ns=round(100 * latency),
                latency_ns=round(latency),
                off_cpu_ns=0,
                samples=(stretch,) * 5,
                detail={"gemm": round(5e4 * MATRIX), "vectorised": round(5e4 * (1 - MATRIX))},
            )
        )
    return made


def judged(records):
    return checks_of.judge(records, build(records).measurements)


def test_what_a_quick_model_leaves_goes_to_the_later_ones(monkeypatch, tmp_path):
    clock, asked = [0.0], []

    def run_plan(plan, place, **_):
        asked.append(plan.budget_s)
        clock[0] += 10.0 if len(asked) == 1 else plan.budget_s + 45.0  # the second overruns
        raise NothingMeasuredError("nothing here")

    monkeypatch.setattr(validate.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(validate.api, "run_plan", run_plan)
    with pytest.raises(NothingMeasuredError):
        validate.validate(["mlp"] * 3, time_budget=90.0, folder=tmp_path, device="cpu")
    assert asked == [30.0, 40.0, validate.LEAST_S]


def test_formulas_that_hold_are_found_without_error():
    checks, refused = judged(cpu_records())
    assert refused == []
    assert len({(c.formula, c.subject, c.change) for c in checks}) == len(checks)
    assert {c.formula for c in checks} == {formulas.RUNTIME}
    for c in checks:
        assert c.error == pytest.approx(0, abs=2e-3), c
        assert c.counted


def scripted(records, factor):
    """Return the records with blocks of TorchScript at batch 4 ``factor(block)`` as long."""
    (at,) = (
        p
        for p in validate.grid("mlp", "cpu")
        if (p.runtime, p.workload.batch) == ("torchscript", 4)
    )
    return [
        replace(r, cpu_ns=round(r.cpu_ns * factor(r)))
        if getattr(r, "point", None) == at.key() and hasattr(r, "pipelined_ns")
        else r
        for r in records
    ]


def test_what_is_predicted_is_hidden_from_the_prediction():
    """A runtime that is slower by half is missed by as much."""
    checks, _ = judged(scripted(cpu_records(), lambda block: 1.5))
    (found,) = [c for c in checks if "batch 4" in c.subject and "torchscript" in c.change]
    assert found.error == pytest.approx(1 / 1.5 - 1, abs=1e-3)


def test_uncertain_truths_are_kept_and_not_counted():
    checks, _ = judged(scripted(cpu_records(), lambda block: 0.7 + 0.3 * block.process))
    (found,) = [c for c in checks if "batch 4" in c.subject and "torchscript" in c.change]
    assert not found.counted and found.uncertainty > checks_of.TRUTH
    whole = validate.Validation(
        checks=tuple(checks), refused=(), environment=data.ENVIRONMENT, made="now"
    )
    assert whole.formulas[formulas.RUNTIME]["n"] == len(checks) - 1


@pytest.mark.parametrize(
    ("error", "uncertainty", "counted"),
    [(0.01, 0.02, True), (0.08, 0.02, True), (0.08, 0.1, False), (-0.59, 0.1, True)],
)
def test_no_miss_is_left_out_for_an_uncertain_truth(error, uncertainty, counted):
    assert checks_of.counts(error, uncertainty) == counted


def test_the_committed_errors_are_those_of_its_checks():
    document = json.loads(validate.TABLE.read_text())
    for check in document["checks"]:
        assert check["counted"] == checks_of.counts(check["error"], check["uncertainty"])
    for name, shown in document["formulas"].items():
        errors = [c["error"] for c in document["checks"] if c["formula"] == name and c["counted"]]
        assert shown == validate.summary(errors)
    assert validate.PAGE.read_text() == validate.markdown(document)


def test_only_the_last_session_is_judged():
    late = [
        replace(r, started="2026-11-21T10:00:00+00:00") if isinstance(r, Session) else r
        for r in cpu_records("late")
    ]
    kept = validate.newest([*late, *cpu_records("early")])
    assert {r.session for r in kept} == {"late"}


def gpu_program(seed, point):
    """A call whose kernels grow with the batch, captured or not."""
    base = random_program(np.random.default_rng(seed), launches=120, host_ns=6_000, kernel_ns=900)
    w = point.workload
    scale = 0.5 + 0.5 * w.batch
    slower = {"eager": 1.0, "inference-mode": 0.85, "torchscript": 0.6, "cuda-graph": 1.0}
    return Program(
        **{
            **base.__dict__,
            "kernel": [round(k * scale) for k in base.kernel],
            "host": [round(h * slower[point.runtime]) for h in base.host],
        }
    )


def gpu_records(seed):
    made = [session()]
    for at in validate.grid("mlp", "cuda:0"):
        program = gpu_program(seed, at)
        graphs = at.runtime == "cuda-graph"
        step = play(program, graphs=graphs)
        host = int(step.launch_start_ns[-1]) + program.return_
        span = sum(program.kernel) + program.gap * (len(program.kernel) - 1)
        made.append(Subject(session="s", point=at, paradigm="eager"))
        made += [
            replace(b, enqueue_ns=(host,) * len(b.latency_ns))
            for b in data.blocks(at, step.end_ns, session="s")
        ]
        made.append(
            Attribution(
                session="s",
                point=at.key(),
                process=0,
                method="device-profile",
                calls=10,
                wall_ns=10 * step.end_ns,
                latency_ns=step.end_ns,
                kernel_ns=(busy_ns(step),) * 10,
                kernels=(120,) * 10,
                copies=(0,) * 10,
                launches=(1 if graphs else 120,) * 10,
                span_ns=(span,) * 10,
            )
        )
    return made


@pytest.mark.parametrize("seed", range(3))
def test_a_simulated_device_is_predicted_in_every_kind(seed):
    checks, _ = judged(gpu_records(seed))
    assert {c.formula for c in checks} == {formulas.GRAPHED}
    for c in checks:
        assert abs(c.error) < 0.15, c


def test_the_document_and_its_page():
    checks, _ = judged(cpu_records())
    whole = validate.Validation(
        checks=tuple(checks) * 2, refused=("a | b",), environment=data.ENVIRONMENT, made="now"
    )
    document = json.loads(json.dumps(whole.document(), allow_nan=False))
    assert document["schema"] == "frameworktax.validation"
    assert document["formulas"][formulas.RUNTIME]["n"] == 2 * len(checks)
    page = validate.markdown(document)
    assert "AMD EPYC 9R14" in page and "a \\| b" in page
    assert page.count("\n| mlp") == 2 * len(checks)
    assert "| 8 | predicts |" in page


def test_the_grid_has_every_point_once():
    for device in ("cpu", "cuda:0"):
        points = validate.grid("mlp", device)
        assert len({p.key() for p in points}) == len(points)
        assert {p.platform for p in points} == {device}


def test_errors_are_summed_up_by_rank():
    assert validate.summary([-0.1]) == {"median": 0.1, "p95": 0.1, "n": 1}
    found = validate.summary([i / 100 for i in range(1, 21)])
    assert found == {"median": pytest.approx(0.105), "p95": 0.19, "n": 20}
