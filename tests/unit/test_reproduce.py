"""The paper's claims: rules on exact numbers, verdicts that follow the data."""

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import paper_records as made
import pytest
import sample_records as data
from pydantic import ValidationError
from sample_records import write

from frameworktax.analysis.document import build
from frameworktax.analysis.estimates import exactly, percent
from frameworktax.errors import NothingMeasuredError, StoreError, UsageError
from frameworktax.records import Estimate, LeftOut
from frameworktax.report import vega
from frameworktax.report.html import write_page
from frameworktax.report.render_markdown import markdown
from frameworktax.reproduce import claims, figures, page, paper, results, studies
from frameworktax.reproduce.claims import judge, verdict_of
from frameworktax.reproduce.results import evaluate_studies, reproduce
from frameworktax.reproduce.rows import AXES, NotEvaluable, Row, axes_of, of_measurement, select
from frameworktax.reproduce.studies import Part, chosen, planned_points, study_data
from frameworktax.stats import CONFIDENCE, process_interval
from frameworktax.store.read import point_key

MS = 1_000_000


def row(latency=None, half=0.0, *, model="m", runtime="eager", batch=1, **more):
    numbers = {}
    if latency is not None:
        numbers["latency"] = Estimate(value=latency, low=latency - half, high=latency + half, n=3)
    numbers |= {name: exactly(value, "counted") for name, value in more.pop("counts", {}).items()}
    return Row(at={"model": model, "runtime": runtime, "batch": batch, **more}, numbers=numbers)


def part(rule, **more):
    return Part(rule=rule, says="it", **({"above": 0.0} | more))


def verdicts(found):
    return {claim.id: claim.verdict for claim in found.claims}


# --- the files ------------------------------------------------------------------------------------


def test_every_claim_of_the_paper_is_in_a_study_and_every_study_has_both_scales():
    every = [studies.load(name) for name in studies.every_name()]
    wanted = {f"figure-{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)}
    assert {s.name for s in every} == wanted | {"table-1", "table-3", "text"}
    claims = [claim for study in every for claim in study.claim]
    assert {claim.claim for claim in claims} == set(paper.claims())
    assert set(paper.claims()) == {f"C{n}" for n in range(1, 18)}
    ids = [claim.id for claim in claims]
    assert len(set(ids)) == len(ids)
    for study in every:
        small, full = (planned_points(study.name, scale) for scale in ("small", "full"))
        models = {p.workload.model for p in small}
        assert models <= {p.workload.model for p in full}
        assert all(p.workload.width < 1 for p in small)
        assert {"claim", "panel", "line"} & set(study.model_fields_set)


def test_all_studies_together_ask_for_each_point_once():
    every = chosen(["all"])
    points = [p for study in every for p in planned_points(study.name, "small")]
    together = study_data(every, "small")
    assert len(together["point"]) == sum(len(study.small) for study in every)
    from frameworktax.sweep.study import load

    assert set(load(together).points) == set(points)
    assert len(load(together).points) == len(set(points)) < len(points)


def test_what_takes_long_is_measured_last_with_the_time_that_is_left():
    rules_ = study_data(chosen(["all"]), "small")["priority"]
    assert rules_ == [{"models": ["gpt2", "wavlm"], "value": -1}]
    assert study_data(chosen(["figure-1"]), "small")["priority"] == []


def test_on_a_gpu_onnx_runtime_runs_there():
    data_ = study_data([studies.load("figure-4")], "full", "cuda:0")
    assert "onnxruntime-cuda" in data_["point"][0]["runtimes"]
    assert "onnxruntime" not in data_["point"][0]["runtimes"]


def test_an_unknown_study_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'figure-4'"):
        chosen(["figur-4"])


def test_studies_name_rules_axes_and_quantities_that_there_are():
    measured = build(data.sample_records()).measurements
    known = {name for m in measured for name in of_measurement(m, {}).numbers}
    known |= {*claims.PROXIES, "flops_per_second", "sm_active", "warp_occupancy"}
    parts = [p for s in chosen(["all"]) for claim in s.claim for p in claim.part]
    for one in parts:
        assert one.rule in claims.RULES
        assert {*one.of, *one.to, *one.each, one.axis} <= {*AXES}
        assert {one.quantity, one.proxy, one.than} - {None} <= known
        assert one.above is not None or one.below is not None
        assert one.proxy or not one.rule.startswith("rank")
        assert one.than or one.rule != "rank_advantage"


# --- the paper's numbers --------------------------------------------------------------------------


def test_no_file_sets_the_confidence_of_a_verdict():
    part = {"rule": "value", "says": "tax share"}
    assert Part.model_validate(part).confidence == CONFIDENCE
    for other in (0.5, 0.9499, 0.99):
        with pytest.raises(ValidationError, match="confidence"):
            Part.model_validate({**part, "confidence": other})


def test_the_papers_numbers_are_the_papers():
    first = select(paper.rows("figure-3"), {"batch": 1})[0].numbers
    assert first["latency"].value == pytest.approx(16.437 * MS)
    assert first["tax_share"].value == pytest.approx(1 - 2.892 / 16.437)
    assert len(paper.rows("figure-1")) == 6
    assert len(paper.rows("figure-4")) == 2 * 2 * 3 * 8 + 3 * 8
    assert [p["gpu"] for p in paper.platforms()][-1] == "A100"
    widest = select(paper.rows("table-1"), {"width": "last"})[0]
    assert widest.numbers["latency"].value == pytest.approx(0.0134e9)
    graphs = select(paper.rows("table-3"), {"runtime": "cuda-graph"})[0]
    assert graphs.numbers["sm_active"].value == pytest.approx(0.57)
    assert paper.rows("figure-7") == ()
    for kind in ("figures", "tables"):
        assert paper.provenance()[kind]


def test_what_a_study_says_of_figure_1_follows_from_it():
    rows = paper.rows("figure-1")
    layers = [float(paper.models()[row.at["model"]]["layers"]) for row in rows]
    rho = claims.spearman(
        [(r.numbers["latency"].value, n) for r, n in zip(rows, layers, strict=True)]
    )
    number = {claim.id: claim.number or "" for s in chosen(["all"]) for claim in s.claim}
    assert f"{rho.value:.2f} over the six models of figure 1" in number["C12.layers"]
    by_model = {row.at["model"]: row.numbers for row in rows}
    for name, claim in (("macs", "C8.macs"), ("latency", "C8.small")):
        scale = 1e9 if name == "macs" else MS
        said = [f"{by_model[m][name].value / scale:g}" for m in ("squeezebert", "mobilebert")]
        assert number[claim].startswith(" and ".join(said))


def test_the_same_rules_on_the_papers_own_numbers():
    found = {}
    for name in ("figure-1", "figure-3", "figure-4", "table-1", "text"):
        found |= {c.id: judge(name, c, ()) for c in studies.load(name).claim}
    assert found["C1"].findings[0].paper == pytest.approx(2.61 / 10.86)
    assert found["C2"].findings[1].paper == pytest.approx(1 - 32.648 / 33.372)
    assert {f.paper_verdict for f in found["C11"].findings} == {"holds"}
    saved = 1 - (6.148 / 10.541 + 5.936 / 12.366) / 2
    assert found["C4.torchscript"].findings[0].paper == pytest.approx(saved)
    # by the paper's own points ONNX Runtime is not flat from batch 1 on
    flat = {f.says.partition("(")[2]: f.paper_verdict for f in found["C3.flat"].findings}
    assert flat["resnet-50, eager)"] == "holds"
    assert flat["bert-base, onnxruntime)"] == "does-not-hold"
    # no number of theirs stands among ours
    assert all(f.ours is None for claim in found.values() for f in claim.findings)


# --- the rules ------------------------------------------------------------------------------------


def test_a_verdict_needs_the_whole_interval():
    x = Estimate(value=2.0, low=1.5, high=2.5)
    assert verdict_of(x, 1.4, None) == "holds"
    assert verdict_of(x, 1.0, 2.6) == "holds"
    assert verdict_of(x, 1.5, None) == verdict_of(x, 1.0, 2.5) == "cannot-be-judged"
    assert verdict_of(x, 1.6, None) == "cannot-be-judged"
    assert verdict_of(x, None, 2.4) == "cannot-be-judged"
    assert verdict_of(x, 2.6, None) == "does-not-hold"
    assert verdict_of(x, None, 1.4) == "does-not-hold"


PARTS, UNDER = 13, 4 * (1 - claims.EXCLUDED / 2)  # between 4 and what is not yet free at 4


def in_world(truth, rule, rng, spread=0.03):
    """Return the verdict that latencies, or free batches, are at most 4 where 4 / truth is due."""
    curve = ((1, 1.0), (4, 1.1 * truth), (8, 2.0)) if rule == "free" else ((1, UNDER / truth),)
    rows, parts = [], []
    for name in map(str, range(PARTS)):
        parts.append(part(rule, of={"model": name}, above=None, below=UNDER))
        for batch, level in curve:
            times = {(p, 0): level * math.exp(rng.normal(0, spread)) for p in range(3)}
            latency = process_interval([[ns] for ns in times.values()])
            rows.append(replace(row(model=name, batch=batch), columns=times))
            rows[-1] = replace(rows[-1], numbers={"latency": latency})
    claim = studies.Claim(id="it", claim="C1", text="", part=parts)
    return judge("figure-1", claim, rows).verdict


@pytest.mark.parametrize("rule", ["value", "free"])
def test_a_claim_of_many_parts_errs_no_more_often_than_one(rule):
    """All are just true: one in 40 lies outside by chance. All are just false: none lies inside."""
    rng = np.random.default_rng(3)
    assert [in_world(1 + 1e-9, rule, rng) for _ in range(100)].count("does-not-hold") <= 6
    assert "holds" not in [in_world(1 - 1e-9, rule, rng) for _ in range(20)]
    assert in_world(0.85, rule, rng, spread=0.003) == "does-not-hold"
    assert in_world(1.3, rule, rng, spread=0.003) == "holds"


def test_ratio_and_slope_carry_both_intervals():
    a, b = row(20.0, 1.0, batch=4), row(10.0, 0.5)
    ratio = claims.RULES["ratio"](part("ratio", of={"batch": 4}, to={"batch": 1}), [a, b])
    spread = math.hypot(*[max(math.log(1.05), -math.log(0.95))] * 2)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2.0 * math.exp(spread))
    slope = claims.RULES["slope"](part("slope"), [a, b])
    assert slope.value == pytest.approx(0.5)
    assert slope.low == pytest.approx(math.log(2.0 * math.exp(-spread)) / math.log(4))


def test_first_and_last_are_taken_among_what_matches():
    rows = [row(1.0, batch=1), row(2.0, batch=8), row(3.0, batch=64, model="other")]
    found = claims.RULES["value"](part("value", of={"model": "m", "batch": "last"}), rows)
    assert found.value == 2.0


def test_slope_at_the_end_mean_reduction_and_spread():
    rows = [row(v, batch=b) for v, b in ((1.0, 1), (1.1, 4), (4.4, 16))]
    assert claims.RULES["slope"](part("slope", at="end"), rows).value == pytest.approx(1.0)
    pairs = [row(10.0, model="a"), row(20.0, model="b")]
    pairs += [row(5.0, model="a", runtime="x"), row(18.0, model="b", runtime="x")]
    saved = claims.RULES["mean_reduction"](
        part("mean_reduction", of={"runtime": "x"}, to={"runtime": "eager"}), pairs
    )
    assert saved.value == pytest.approx((0.5 + 0.1) / 2)
    assert claims.RULES["spread"](part("spread", of={}), pairs).value == pytest.approx(4.0)


def test_free_width_is_told_like_free_batch():
    printed = [row(v, width=w) for v, w in ((10.0, 0.5), (10.0, 1.0), (20.0, 2.0))]
    found, bound = claims.free_value(printed, "width")
    assert found.value == pytest.approx(2 ** (math.log(1.1) / math.log(2)))
    assert not bound
    blocks = [
        replace(r, columns={(p, i): r.numbers["latency"].value for p in range(2) for i in range(5)})
        for r in printed
    ]
    measured, _ = claims.free_value(blocks, "width")
    assert measured.value == pytest.approx(found.value)
    _, flat = claims.free_value(printed[:2], "width")
    assert flat
    at_least = claims.RULES["free"](part("free", axis="width", of={}), printed[:2])
    assert at_least.high == math.inf


def test_a_curve_without_any_latency_cannot_be_judged():
    lost = [row(1.0, width=w) for w in (0.5, 1.0)]
    lost = [replace(r, numbers={}) for r in lost]
    with pytest.raises(claims.NotEvaluable, match="no blocks"):
        claims.free_value(lost, "width")


def curve_of(name, latencies, batches=(1, 4, 16)):
    return [row(v, batch=b, model=name) for b, v in zip(batches, latencies, strict=True)]


def test_free_values_between_the_same_measured_values_have_no_order():
    """Flat to 3 and then 1.5 is freer than a steady rise to 1.45; at 1 and 4 both look alike."""
    ratio = part("free_ratio", of={"model": "a"}, to={"model": "b"}, above=None, below=1.0)
    alike = curve_of("a", (1.0, 1.5, 6.0)) + curve_of("b", (1.0, 1.45, 5.8))
    found = claims.RULES["free_ratio"](ratio, alike)
    assert found.value < 1
    assert (found.low, found.high) == pytest.approx((1 / 4, 4.0))
    apart = curve_of("a", (1.0, 1.5, 6.0)) + curve_of("b", (1.0, 1.05, 2.0))
    found = claims.RULES["free_ratio"](ratio, apart)
    assert (found.low, found.high) == pytest.approx((1 / 16, 1.0))
    assert verdict_of(found, None, 1.0) == "holds"
    assert verdict_of(found, 1.0, None) == "does-not-hold"
    free = claims.RULES["free"](part("free", of={"model": "a"}), apart)
    assert (free.low, free.high) == pytest.approx((1.0, 4.0))
    assert 1 < free.value < 4


def test_what_noise_may_leave_free_at_the_last_value_has_no_upper_end():
    noisy = [
        replace(r, columns={(p, i): r.numbers["latency"].value * x for i in range(5)
                            for p, x in enumerate((1.0, 1.0, 1.0 + 0.1 * (r.at["batch"] == 4)))})
        for r in curve_of("a", (1.0, 1.12), (1, 4))
    ]  # fmt: skip
    _, bound = claims.free_value(noisy, "batch")
    assert bound
    assert claims.RULES["free"](part("free", of={}), noisy).high == math.inf


def test_a_curve_may_lie_higher_and_rise_no_faster():
    growth = part("growth_ratio", of={"model": "a"}, to={"model": "b"}, above=1.0)
    rows = curve_of("a", (31.0, 34.0, 46.0)) + curve_of("b", (11.0, 14.0, 26.0))
    assert claims.RULES["growth_ratio"](growth, rows).value == 1.0
    rows = curve_of("a", (11.0, 18.0, 46.0)) + curve_of("b", (11.0, 14.0, 26.0))
    assert claims.RULES["growth_ratio"](growth, rows).value == pytest.approx(28 / 12)
    with pytest.raises(NotEvaluable, match="other values of batch"):
        claims.RULES["growth_ratio"](growth, rows[:-1])
    with pytest.raises(NotEvaluable, match="not above zero"):
        claims.RULES["growth_ratio"](growth, rows[:3] + curve_of("b", (1.0, 1.0, 1.0)))


def test_a_noisy_point_may_be_the_slowest():
    rows = [row(1.0, 0.01), row(1.2, 0.01, model="b"), row(1.1, 0.5, model="c")]
    found = claims.RULES["spread"](part("spread", of={}), rows)
    assert found.value == pytest.approx(1.2)
    assert verdict_of(found, None, 1.25) == "cannot-be-judged"
    assert verdict_of(claims.RULES["spread"](part("spread"), rows[:2]), None, 1.25) == "holds"


def test_pairs_may_differ_in_what_a_claim_sets_apart():
    half = [row(6.0, precision="float16", batch=b) for b in (1, 16)]
    single = [row(v, precision="float32", batch=b) for b, v in ((1, 6.0), (16, 24.0), (64, 96.0))]
    of, to = {"precision": "float16", "batch": "last"}, {"precision": "float32"}
    saved = claims.RULES["mean_reduction"](part("mean_reduction", of=of, to=to), half + single)
    assert saved.value == pytest.approx(0.75)


def test_a_curve_with_too_few_blocks_is_in_the_page_with_the_reason():
    rows = [replace(row(10.0, width=w), columns={(0, 0): 10.0}) for w in (1.0, 2.0)]
    curves = results._free(rows, "width")
    assert [(one["value"], one["at"]) for one in curves] == [(None, "m in eager")]
    study = replace(told_of("figure-9", hardware()).studies[0], free=curves)
    texts = [cell.text for table in page._tables(study) for row in table.rows for cell in row]
    assert "too few blocks" in curves[0]["reason"] and curves[0]["reason"] in texts


def test_a_ratio_without_bounds_is_no_lower_bound():
    wide = claims.quotient(*(row(4.0, half).numbers["latency"] for half in (5.0, 1.0)))
    assert (wide.low, wide.high) == (0.0, math.inf)
    assert claims.estimate_text(wide) == "1 (0 to no bound)"
    assert claims.estimate_text(replace(wide, low=0.5)).startswith("at least 1 ")


def test_what_is_missing_is_a_reason():
    rows = [row(1.0), Row(at={"model": "m", "runtime": "x", "batch": 1}, reason="no such engine")]
    with pytest.raises(NotEvaluable, match="m in x, batch 1: no such engine"):
        claims.RULES["ratio"](part("ratio", of={"runtime": "x"}, to={"runtime": "eager"}), rows)
    with pytest.raises(NotEvaluable, match="runtime y"):
        claims.RULES["value"](part("value", of={"runtime": "y"}), rows)
    with pytest.raises(NotEvaluable, match="names 2 points"):
        claims.RULES["value"](part("value", of={"batch": 1}), rows)


def test_rank_correlations_have_intervals_that_know_how_few_points_there_are():
    perfect = claims.spearman([(x, 2.0 * x) for x in range(1, 7)])
    assert perfect.value == 1.0 == perfect.high
    assert 0.3 < perfect.low < 1.0
    many = claims.spearman([(x, 2.0 * x) for x in range(1, 31)])
    assert many.low > perfect.low
    # 1 2 3 4 5 against 2 1 4 3 5: sum of squared differences 4, rho = 1 - 6 * 4 / (5 * 24)
    swapped = claims.spearman(list(zip((1, 2, 3, 4, 5), (2, 1, 4, 3, 5), strict=True)))
    assert swapped.value == pytest.approx(0.8)
    assert swapped.low == pytest.approx(math.tanh(math.atanh(0.8) - 1.959964 * math.sqrt(1.32 / 2)))
    # equal counts share a rank: 1 2.5 2.5 4 5 against 1 2 3 4 5 gives 9.5 / sqrt(9.5 * 10)
    tied = claims.spearman(list(zip((1, 2, 3, 4, 5), (1, 2, 2, 4, 5), strict=True)))
    assert tied.value == pytest.approx(9.5 / math.sqrt(95))
    with pytest.raises(NotEvaluable, match="4 points"):
        claims.spearman([(x, x) for x in range(4)])
    with pytest.raises(NotEvaluable, match="same for every point"):
        claims.spearman([(x, 1.0) for x in range(6)])


def test_the_better_proxy_is_told_from_the_worse():
    latency = list(range(1, 13))
    good = [(t, t * t) for t in latency]
    bad = [(t, (5 * t) % 13) for t in latency]
    found = claims.advantage(good, bad)
    assert found.low > 0
    assert claims.advantage(bad, good).high < 0


def test_of_two_proxies_that_order_all_models_alike_neither_is_the_better():
    rows = [row(2.0**n, model=str(n), counts={"operators": n, "flops": n * n}) for n in range(1, 7)]
    claim = studies.Claim(
        id="it",
        claim="C12",
        text="",
        part=(part("rank_advantage", proxy="operators", than="flops"),),
    )
    found = judge("text", claim, rows)
    assert found.findings[0].ours.low == found.findings[0].ours.high == 0.0
    assert found.verdict == "cannot-be-judged"


def test_two_proxies_are_compared_at_the_same_points_only():
    rank = part("rank_advantage", proxy="operators", than="flops")
    rows = [
        row(float(t), model=f"m{t}", counts={"operators": t, "flops": -t}) for t in range(1, 13)
    ]
    assert claims.RULES["rank_advantage"](rank, rows).value == 2.0
    for at, lacks in ((0, "operators"), (1, "flops")):  # as many of each, of other points
        kept = {name: n for name, n in rows[at].numbers.items() if name != lacks}
        rows[at] = replace(rows[at], numbers=kept)
    with pytest.raises(NotEvaluable, match="same points"):
        claims.RULES["rank_advantage"](rank, rows)


def test_proxies_are_told_per_regime_and_both_macs_are_named():
    rows = [
        row(
            float(t),
            model=f"m{t}",
            regime="framework-bound" if t % 2 else "compute-bound",
            counts={"operators": t, "macs": -t, "full_macs": t},
        )
        for t in range(1, 13)
    ]
    told = {(p["proxy"], p["regime"]): p for p in claims.proxies(rows, {"batch": 1})}
    assert told["operators", "framework-bound"]["rho"].value == 1.0
    assert told["macs", "compute-bound"]["rho"].value == -1.0
    assert told["full_macs", "all"]["n"] == 12
    assert told["launches", "all"]["rho"] is None
    assert told["launches", "all"]["reason"] == "not counted here"


@pytest.mark.parametrize("scale", ["small", "full"])
def test_proxies_are_over_points_of_one_precision(scale):
    """In half precision the same operations take a quarter of the time."""
    for study in chosen(["all"]):
        if study.proxies is not None:
            points = planned_points(study.name, scale)
            rows = [Row(at=axes_of(p.workload, p.runtime)) for p in points]
            assert {row.at["precision"] for row in select(rows, study.proxies)} == {"float32"}


# --- claims follow the data -----------------------------------------------------------------------


WORLD = {
    "bert-base": (200, 22),
    "albert": (205, 22),
    "distilbert": (100, 11),
    "funnel": (450, 14),
    "mobilebert": (900, 5),
    "squeezebert": (230, 7),
    "fnet": (60, 15),
    "gpt2": (250, 30),
    "wavlm": (300, 250),
    "vit-base": (190, 35),
    "resnet-18": (70, 3.6),
    "resnet-34": (125, 7.2),
    "resnet-50": (175, 8.2),
    "resnet-101": (345, 15.6),
    "mobilenet-v2": (150, 0.6),
    "poolformer": (160, 3.6),
}
"""Model → operators, GFLOPS of one sample at full scale, about."""
LESS = {"torchscript": 0.6, "onnxruntime": 0.35, "cuda-graph": 0.25, "onnxruntime-cuda-graph": 0.2}
INEFFICIENT = {"mobilebert": 2, "squeezebert": 1.6, "funnel": 3, "mobilenet-v2": 3, "poolformer": 2}


def in_a_world(point, host_ns, *, host=1.0, device=1.0):
    """Return a row of a world of two queues: ``host_ns`` an operator, 13 TFLOPS in float32."""
    w = point.workload
    size = w.depth * w.width**1.7 * w.batch
    size *= 1 if w.image_size or w.model == "wavlm" else w.length / 128
    operators, gflops = WORLD[w.model]
    operators, flops = operators * w.depth, gflops * size * 1e9
    kernel = flops * INEFFICIENT.get(w.model, 1) / (13e3 * device)
    kernel *= 0.25 if w.precision == "float16" else 1
    kernel *= 0.18 if point.runtime == "nested" else 1
    launched = operators * host_ns * host * LESS.get(point.runtime, 1)
    latency = max(launched, kernel)
    share = 1 - kernel / latency
    values = {
        "latency": latency,
        "kernel": kernel,
        "host": launched,
        "tax": latency - kernel,
        "flops_per_second": flops * 1e9 / latency,
        "sm_active": 0.6 * (1 - share),
        "warp_occupancy": 0.2 * (1 - share),
    }
    numbers = {k: Estimate(value=v, low=0.99 * v, high=1.01 * v, n=3) for k, v in values.items()}
    numbers["tax_share"] = Estimate(value=share, low=share - 0.01, high=share + 0.01)
    layers = float(paper.models()[w.model]["layers"]) * w.depth
    counts = {"macs": flops / 2, "flops": flops, "layers": layers, "operators": operators}
    numbers |= {name: exactly(count, "counted") for name, count in counts.items()}
    regime = "framework-bound" if share > 0.35 else "compute-bound" if share < 0.15 else "mixed"
    columns = {(p, r): latency * (1 + 0.001 * p * (-1) ** r) for p in range(3) for r in range(4)}
    at = {**axes_of(w, point.runtime), "regime": regime}
    return Row(at=at, numbers=numbers, columns=columns)


def judged_in_a_world(host_ns):
    found = {}
    for study in chosen(["all"]):
        planned = planned_points(study.name, "full")
        rows = []
        devices = [0.7 * 1.7**i for i in range(7)] if study.name == "figure-9" else [1.0]
        for i, device in enumerate(devices):
            more = {"machine": f"m{i}", "peaks": (10.0 * device, None)}
            for point in planned:
                one = in_a_world(point, host_ns, host=1 + 0.3 * i, device=device)
                rows.append(replace(one, at={**one.at, **more}))
        found |= {c.id: judge(study.name, c, rows).verdict for c in study.claim}
    return found


def test_every_claim_holds_in_the_world_that_the_paper_describes():
    found = judged_in_a_world(50e3)
    open_ = {name for name, verdict in found.items() if verdict == "cannot-be-judged"}
    assert open_ <= {"C12.layers", "C12.compute"}  # seven models, and whatever kernels do
    assert {verdict for name, verdict in found.items() if name not in open_} == {"holds"}


def test_no_claim_of_overhead_holds_in_a_world_without_any():
    found = judged_in_a_world(1.0)
    overhead = {
        *("C1", "C2", "C3.flat", "C3.length", "C3.fp16", "C3.half", "C4.torchscript"),
        *("C4.onnxruntime", "C5.graphs", "C6.width", "C6.knee", "C8.small", "C9.floor", "C11"),
        *("C12.operators", "C12.layers", "C12.flops", "C13.compiled", "C13.serialised", "C14"),
        *("C13.utilisation", "C13.utilisation-onnxruntime"),
        *("C15.depth", "C15.width", "C15.low-flop", "C16", "C17"),
    }
    assert {name for name in overhead if found[name] == "holds"} == set()
    surely = {"C1", "C2", "C3.flat", "C3.length", "C3.half", "C6.width", "C9.floor", "C11", "C14"}
    assert {found[name] for name in surely} == {"does-not-hold"}


def by_model(factors):
    return lambda point: factors.get(point.workload.model, 1.0) * 4 * MS


def told_of(name, records, scale="small"):
    return evaluate_studies([studies.load(name)], records, Path("made"), scale)


def test_flipped_data_flip_the_verdict():
    study = studies.load("figure-1")
    slow = told_of("figure-1", made.made(study, by_model({"mobilebert": 3.6})))
    fast = told_of("figure-1", made.made(study, by_model({"mobilebert": 0.5})))
    between = told_of("figure-1", made.made(study, by_model({"mobilebert": 3.0})))
    assert verdicts(slow)["C1"] == "holds"
    assert verdicts(fast)["C1"] == "does-not-hold"
    assert verdicts(between)["C1"] == "cannot-be-judged"
    assert "across the bound" in between.claims[0].reason
    assert slow.claims[0].findings[0].ours.value == pytest.approx(0.25)
    assert slow.claims[0].findings[1].ours.value == pytest.approx(3.6, rel=1e-3)


def test_other_points_of_the_store_are_in_no_part_of_the_document():
    study, other = studies.load("figure-1"), studies.load("figure-13")
    records = made.made(study, by_model({}))
    alone = told_of("figure-1", records).run
    newer = "20261120T130000-0001"
    planned = planned_points("figure-1", "small")
    left = [LeftOut(session=newer, point=planned[0], reason="no time was left")]
    elsewhere = replace(data.ENVIRONMENT, cpu="another")
    late = made.made(other, by_model({}), session=f"{newer}0", environment=elsewhere)
    found = told_of("figure-1", [*records, data.session(newer, 13), *left, *late])
    assert found.machines == (data.ENVIRONMENT.cpu,)
    assert found.run == alone
    lost = [r for r in records if point_key(r) != planned[0].key()]
    found = told_of("figure-1", [*lost, data.session(newer, 13), *left, *late])
    assert "no time was left" in [row.reason for row in found.studies[0].rows]


def test_overhead_follows_the_kernels():
    study = studies.load("figure-3")

    def share(point):
        return 200 if point.workload.batch == 1 else 880

    paper_like = told_of("figure-3", made.made(study, by_model({}), kernel_of_1000=share))
    busy = told_of("figure-3", made.made(study, by_model({}), kernel_of_1000=lambda p: 880))
    assert verdicts(paper_like) == {"C2": "holds"}
    assert verdicts(busy) == {"C2": "does-not-hold"}


def test_a_missing_runtime_leaves_the_other_claims_judged():
    study = studies.load("table-3")
    speed = {"eager": 4.0, "torchscript": 3.0, "onnxruntime": 2.0, "cuda-graph": 1.0}
    records = made.made(
        study,
        lambda point: speed.get(point.runtime, 1.0) * MS,
        lost={"cuda-graph": "runs on cuda only", "onnxruntime-cuda-graph": "runs on cuda only"},
    )
    found = told_of("table-3", records)
    assert {name for name, verdict in verdicts(found).items() if verdict == "holds"} == {
        "C13.compiled"
    }
    assert set(verdicts(found).values()) == {"holds", "cannot-be-judged"}
    reasons = {claim.id: claim.reason for claim in found.claims}
    assert "runs on cuda only" in reasons["C13.serialised"]
    assert "runs on cuda only" in reasons["C13.utilisation"]


def test_table_3_has_how_full_the_device_was_beside_the_papers():
    study = studies.load("table-3")
    speed = {"eager": 4.0, "torchscript": 3.0, "onnxruntime": 2.0, "cuda-graph": 1.0}
    records = made.made(
        study,
        lambda point: speed.get(point.runtime, 1.0) * MS,
        scale="full",
        platform="cuda:0",
        kernel_ns=0.8 * MS,
        environment=machine("H200", "Intel Xeon"),
    )
    found = evaluate_studies([study], records, Path("store"), "full")
    (result,) = found.studies
    by_runtime = {row.at["runtime"]: row.numbers for row in result.rows}
    assert by_runtime["eager"]["sm_active"].value == pytest.approx(0.1)
    assert by_runtime["cuda-graph"]["sm_active"].value == pytest.approx(0.4)
    assert by_runtime["cuda-graph"]["warp_occupancy"].value == pytest.approx(0.1)
    assert verdicts(result)["C13.utilisation"] == "holds"
    table = page.lines(result)
    assert len(table.columns) == 8
    cells = next(
        row for row in table.rows if "CUDA graphs" in row[0].text and "ONNX" not in row[0].text
    )
    assert [cell.text for cell in cells[3:5]] == ["40 %", "10 %"]
    assert [cell.text for cell in cells[6:]] == ["57 %", "9.2 %"]


def test_table_1_has_what_a_sample_takes_beside_the_papers():
    made_ = made.made(studies.load("table-1"), lambda p: MS * (8.0 if p.workload.batch > 1 else 6))
    table = page.lines(told_of("table-1", made_).studies[0])
    ours, theirs = (i for i, c in enumerate(table.columns) if "a sample" in c.title)
    said = [(row[ours].text, row[theirs].text) for row in table.rows]
    # table 1: TP 0.0136, 0.0034, 0.0134 and 0.0134 s
    assert said == [("6", "13.6"), ("2", "3.35"), ("6", "13.4"), ("6", "13.4")]


@pytest.mark.parametrize(("share", "text"), [(-0.003, "0 %"), (-0.02, "-2 %"), (0.0051, "1 %")])
def test_a_share_that_rounds_to_zero_has_no_sign(share, text):
    assert percent(share) == text


def test_a_page_says_which_point_runs_other_kernels():
    store = Path(__file__).parents[2] / "docs/results/gpu/paper-store"
    found = reproduce(["table-3"], store=store, scale="full", redraw=True)
    text = markdown(page.page(found, "x"))
    said = re.findall(r"^bert-base in (\S+), .*: runs other kernels than eager, (\d+) ", text, re.M)
    assert said == [("torchscript", "370"), ("cuda-graph", "376")]


def machine(gpu, host):
    return replace(data.ENVIRONMENT, cpu=host, gpus=({"index": 0, "name": f"NVIDIA {gpu}"},))


def hardware(*, faster_is_freer=True, host_bound=True, platform="cuda:0"):
    """Two machines: the A100 has more than twice the V100's peak, and a slower host."""
    study = studies.load("figure-9")
    records = []
    machines_ = (("V100", "Intel Xeon Gold 6242", 4.0), ("A100", "Intel Xeon 8339HC", 5.0))
    for number, (gpu, host, floor) in enumerate(machines_):
        fast = gpu == "A100"
        free = 16 if fast == faster_is_freer else 4

        def latency_ns(point, floor=floor, free=free):
            return floor * MS * max(1.0, point.workload.batch / free)

        records += made.made(
            study,
            latency_ns,
            session=f"2026112{number}T120000-000{number}",
            environment=machine(gpu, host),
            platform=platform,
            enqueue_ns=(floor if host_bound else 3.0) * 0.9 * MS,
            kernel_ns=(0.5 if host_bound else 0.5 * floor) * (0.4 if fast else 1.0) * MS,
        )
    return records


def test_machines_are_told_apart_and_compared():
    found = told_of("figure-9", hardware())
    assert len(found.machines) == 2
    free, floor = found.claims
    assert {f.reason for f in (*free.findings, *floor.findings) if f.ours is None} == set()
    shares = {f.says: f.ours.value for f in (*free.findings, *floor.findings)}
    assert set(shares.values()) == {1.0}
    second = [e for e in found.studies[0].effects if e["machine"].startswith("NVIDIA A100")]
    assert {round(e["host_ratio"], 3) for e in second} == {1.25}
    assert {round(e["device_ratio"], 3) for e in second} == {0.4}
    assert "host × 1.25, device × 0.40" in markdown(page.page(found, "x"))
    curves = [curve["at"] for curve in found.studies[0].free]
    assert len(set(curves)) == len(curves) == 4
    flipped = told_of("figure-9", hardware(faster_is_freer=False))
    assert {f.ours.value for f in flipped.claims[0].findings} == {0.0}


def test_a_platform_may_have_a_label():
    found = told_of("figure-9", hardware(platform="cuda:0@lab"))
    assert [name.partition(" with")[0] for name in found.machines] == ["NVIDIA V100", "NVIDIA A100"]


@pytest.mark.parametrize(
    ("index", "platform"), [("1", "cuda:1"), ("0", "cuda:1"), ("x", "cuda:0"), ([], "cuda:x")]
)
def test_a_device_of_any_number_has_a_name(index, platform):
    """By its kind: the number that the driver gives it is another one than CUDA's."""
    gpus = ({"index": index, "name": "NVIDIA A100"},)
    environment = replace(data.ENVIRONMENT, gpus=gpus)
    study = studies.load("figure-9")
    records = made.made(
        study, by_model({}), environment=environment, platform=platform, kernel_ns=MS
    )
    assert told_of("figure-9", records).machines == (f"NVIDIA A100 with {data.ENVIRONMENT.cpu}",)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", 22.78),
        ("Tesla V100-SXM2-32GB", 28.26),
        ("NVIDIA GeForce RTX 2080 Ti", 26.90),
        ("Quadro RTX 8000", 32.62),
        ("NVIDIA GeForce RTX 3090", 35.89),
        ("NVIDIA RTX A6000", 38.71),
        ("NVIDIA A100-SXM4-40GB", 77.97),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce GTX 1080", None),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None),
        ("NVIDIA H100 80GB HBM3", None),
    ],
)
def test_the_papers_devices_are_found_by_the_names_that_drivers_give(name, peak):
    gpu = {"index": 0, "name": name}
    _, (printed, _) = results._device(replace(data.ENVIRONMENT, gpus=(gpu,)), "cuda:0")
    assert printed == peak
    parted = replace(data.ENVIRONMENT, gpus=({**gpu, "mig_mode": "Enabled"},))
    assert results._device(parted, "cuda:0")[1] == (None, None)
    # CUDA may call either of two kinds cuda:0
    mixed = replace(data.ENVIRONMENT, gpus=(gpu, {"index": 1, "name": "NVIDIA L4"}))
    assert results._device(mixed, "cuda:0")[1] == (None, None)


def test_a_point_that_is_missing_leaves_the_peaks_of_its_machine_known():
    lost = replace(planned_points("figure-9", "small")[0], platform="cuda:0").key()
    kept = [record for record in hardware() if point_key(record) != lost]
    (bert, resnet) = told_of("figure-9", kept).claims[0].findings
    assert bert.ours is None
    assert resnet.ours.value == 1.0


def on(machine, peak, batch, latency, **counts):
    at = {"machine": machine, "peaks": (peak, None)}
    return row(latency, batch=batch, counts=counts, **at)


def test_a_slower_device_that_is_free_as_far_as_it_was_measured_separates_nothing():
    fast = [on("fast", 2.0, batch, 4.0 * max(1, batch / 16)) for batch in (1, 4, 16, 64)]
    slow = [on("slow", 1.0, batch, 4.0) for batch in (1, 4)]
    free = part("free_on_faster")
    with pytest.raises(NotEvaluable, match="two machines"):
        claims.RULES["free_on_faster"](free, [*fast, *slow])
    slow.append(on("slow", 1.0, 16, 16.0))
    assert claims.RULES["free_on_faster"](free, [*fast, *slow]).value == 1.0


def test_a_time_that_noise_puts_below_zero_is_a_reason():
    rows = [on("a", 1.0, 1, 4.0, host=-0.1, kernel=4.1), on("b", 2.0, 1, 5.0, host=1.0, kernel=4.0)]
    with pytest.raises(NotEvaluable, match="not above zero"):
        claims.RULES["floor_follows_host"](part("floor_follows_host"), rows)


def test_one_machine_alone_cannot_be_judged_and_two_say_too_little():
    alone = hardware()[: len(hardware()) // 2]
    found = told_of("figure-9", alone)
    assert set(verdicts(found).values()) == {"cannot-be-judged"}
    assert "one machine" in found.claims[0].reason
    assert all("machine" not in curve["at"] for curve in found.studies[0].free)
    # one pair of machines: its interval reaches across the bound
    assert verdicts(told_of("figure-9", hardware()))["C9.free"] == "cannot-be-judged"


def test_pairs_of_machines_are_not_independent():
    """Of machines in any order at most one in 20 says that a claim of pairs holds, or that not."""
    for n in (4, 5, 6, 7):
        orders = [*itertools.permutations(range(n))]
        pairs = [*itertools.combinations(range(n), 2)]
        agreeing = Counter(sum(x[i] < x[j] for i, j in pairs) for x in orders)
        holds = fails = 0
        for number, times in agreeing.items():
            agree = {(str(i), str(j)): k < number for k, (i, j) in enumerate(pairs)}
            found = claims.share(agree)
            assert found.low <= found.value == number / len(pairs) <= found.high
            holds += times * (found.low > 0.5)
            fails += times * (found.high < 0.5)
        assert 0 < holds <= 0.05 * len(orders)
        assert 0 < fails <= 0.05 * len(orders)
    # of machines that are much alike no pair counts, so that most others share one
    pairs = [(i, j) for i, j in itertools.combinations(range(7), 2) if j - i > 1]
    orders = [*itertools.permutations(range(7))]
    agreeing = Counter(sum(x[i] < x[j] for i, j in pairs) for x in orders)
    holds = 0
    for number, times in agreeing.items():
        agree = {(str(i), str(j)): k < number for k, (i, j) in enumerate(pairs)}
        holds += times * (claims.share(agree).low > 0.5)
    assert 0 < holds <= 0.05 * len(orders)
    star = {("slow", str(i)): True for i in range(5)}  # one slow machine says this five times
    assert claims.share(star).low < 0.5
    apart = {(f"a{i}", f"b{i}"): True for i in range(6)}  # these share none
    assert claims.share(apart).low == pytest.approx(6 / (6 + 3.8414588))
    with pytest.raises(NotEvaluable):
        claims.share({})


@pytest.mark.parametrize(("latency", "agrees"), [(2.0, 1.0), (0.55, 0.0), (1.0, None)])
def test_a_latency_half_way_between_host_and_kernels_goes_with_neither(latency, agrees):
    rows = [on("a", 1.0, 1, 4.0, host=3.6, kernel=1.0)]
    second = on("b", 2.0, 1, 4.0 * latency, host=7.2, kernel=0.5)
    wide = Estimate(value=4.0 * latency, low=3.8 * latency, high=4.2 * latency)
    rows.append(replace(second, numbers={**second.numbers, "latency": wide}))
    rule = claims.RULES["floor_follows_host"]
    if agrees is None:
        with pytest.raises(NotEvaluable, match="differ enough"):
            rule(part("floor_follows_host"), rows)
    else:
        assert rule(part("floor_follows_host"), rows).value == agrees


def test_a_data_sheet_is_read_at_the_precision_of_the_point():
    study = studies.load("figure-9")
    for scale, rate in (("small", 91.6), ("full", 362.0)):
        records = made.made(
            study, by_model({}), scale=scale, platform="cuda:0", environment=machine("L40S", "x")
        )
        (result,) = evaluate_studies([study], records, Path("made"), scale).studies
        (peaks,) = {row.at["peaks"] for row in result.rows}
        assert peaks == (None, pytest.approx(rate))


# --- pages and stores -----------------------------------------------------------------------------


def test_a_page_is_redrawn_from_a_store_and_shows_both(tmp_path):
    study = studies.load("figure-1")
    folder = write(tmp_path / "store", made.made(study, by_model({"mobilebert": 3.6})))
    found = reproduce(["figure-1"], store=folder, redraw=True)
    page.write(found, tmp_path / "paper.md")
    text = (tmp_path / "paper.md").read_text()
    assert re.search(r"\| \[figure-1\]\(#figure-1-\S+\) \| .* \| holds \|", text)
    assert "(paper/figure-1.svg)" in text
    picture = (tmp_path / "paper" / "figure-1.svg").read_text()
    assert picture.count(">MobileBERT<") == 1
    assert "in the paper" in picture
    page.write(found, tmp_path / "paper.html")
    whole = (tmp_path / "paper.html").read_text()
    assert "<script" not in whole
    assert "<svg" in whole
    again = reproduce(["figure-1"], store=folder, redraw=True)
    assert markdown(page.page(again, "paper")) == text
    document = page.document(found)
    assert document["schema"] == "frameworktax.run"
    assert {c["id"]: c["verdict"] for c in document["claims"]} == verdicts(found)
    assert set(document["claims"][0]) >= {"id", "verdict", "ours", "paper", "reason"}


def test_what_of_a_store_could_not_be_read_is_in_the_document(tmp_path):
    study = studies.load("figure-1")
    folder = write(tmp_path / "store", made.made(study, by_model({})))
    (shard,) = folder.glob("*.jsonl")
    with shard.open("a") as file:
        file.write("{}\n")
    notes = page.document(reproduce(["figure-1"], store=folder, redraw=True))["notes"]
    assert "bad-line" in {note["code"] for note in notes}


def test_a_measured_store_is_told():
    found = reproduce(
        ["figure-10"], store=Path(__file__).parents[1] / "data/paper-store", redraw=True
    )
    (claim,) = found.claims
    share, slope = claim.findings
    assert (share.verdict, slope.verdict) == ("holds", "cannot-be-judged")
    assert share.ours.value == pytest.approx(0.622, abs=5e-4)
    assert "150 s" in slope.reason
    text = markdown(page.page(found, "x"))
    assert "| 62.2 % (61.7 % to 62.7 %) |" in text
    assert "AMD EPYC, 2 processors; torch 2.13.0+cpu" in text
    assert "GPT-2, 16 new tokens" in vega.svg(figures.figure(found.studies[0]))


def test_a_store_of_the_other_scale_is_named_in_the_refusal(tmp_path):
    study = studies.load("table-1")
    folder = write(tmp_path, made.made(study, by_model({}), scale="full"))
    assert reproduce(["table-1"], store=folder, scale="full", redraw=True).claims
    with pytest.raises(NothingMeasuredError, match="the other --scale"):
        reproduce(["table-1"], store=folder, scale="small", redraw=True)


def test_names_from_outside_are_no_markup(tmp_path):
    study = studies.load("figure-1")
    hostile = replace(data.ENVIRONMENT, cpu="<script>alert(1)</script>")
    found = told_of("figure-1", made.made(study, by_model({}), environment=hostile))
    write_page(tmp_path / "page.html", "", list(page.page(found)))
    assert "<script" not in (tmp_path / "page.html").read_text()
    assert not re.search(r"(?<!\\)<", markdown(page.page(found, "x")))


def test_stores_that_cannot_be_redrawn_say_so(tmp_path):
    with pytest.raises(StoreError, match="no store at"):
        reproduce(["figure-1"], store=tmp_path / "none", redraw=True)
    (tmp_path / "20261120T120000-0001.jsonl").write_text(
        '{"schema": "frameworktax.store", "version": 99}\n'
    )
    with pytest.raises(StoreError, match="99"):
        reproduce(["figure-1"], store=tmp_path, redraw=True)
