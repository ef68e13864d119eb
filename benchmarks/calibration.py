"""Can `compare` be trusted: false alarms, slowdowns found, coverage, the right line of the bill?

    python benchmarks/calibration.py [--quick] [--out FILE] [--only PART] [--sessions 20] [--judge]

Sessions of one quick model are recorded one after the other, each point with the time it has at the
default budget. Each holds eager several times under several names, and really slowed, by a spin of
5 and of 10 % of each call. From them come pairs whose truth is known: within a session (every two
names: such pairs share processes, so their number is not that of independent trials), of
neighbouring sessions, of any two, of one series. All go through the rule that `frameworktax compare
--gate 5%` applies. Its constants for two sessions were chosen on the first half of each series, its
form in view of both; the second halves are judged on their own, also with constants that
``frameworktax doctor --calibrate`` would find in the first half of their series. And each session's
interval of each point's latency is held against the mean of the sessions around it. Recordings are
kept in ``benchmarks/.calibration`` and taken up where they stopped; what the rule needs of them is
kept as ``results/calibration-sessions.json``, and ``--judge`` judges that anew without measuring.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import combinations, permutations
from pathlib import Path
from statistics import fmean, linear_regression, median, stdev, variance
from typing import Any

from scipy.special import stdtr

from common import RESULTS, ROOT, Bench, BenchmarkError, Row, measure, options, percent, say
from frameworktax import store
from frameworktax.analysis.compare.comparison import Comparison, compare
from frameworktax.analysis.compare.contrasts import (
    BLOCK_NOISE,
    ELSEWHERE,
    Constants,
    Sample,
    constants_of,
    moved,
    quartile,
)
from frameworktax.analysis.document import build
from frameworktax.records import Measurement, Run, Workload
from frameworktax.stats import t_quantile

GATE = 0.05
ALARMS_TARGET = 0.02
FOUND_TARGETS = {"cal-slow10": 0.95, "cal-slow5": 0.80}
COVERAGE_TARGET = 0.90
COVERAGE_SHORT = 0.05
"""Two standard errors of the coverage of 80 intervals."""
AROUND = 2
"""Sessions before and after one, in whose mean its interval is looked for."""
PLACED_TARGET = 0.8
TRUTH = {"cal-alias": 1.0, "cal-slow5": 1.05, "cal-slow10": 1.10}
"""What a session holds beside ``cal-base``, and how much slower that is."""
MORE = {
    "cal-alias": ("cal-alias2", "cal-alias3", "cal-alias4", "cal-alias5"),
    "cal-slow5": ("cal-slow5b",),
    "cal-slow10": ("cal-slow10b",),
}
"""The same again under other names, in sessions recorded with ``--wide``."""
APART_S = 1800
"""Sessions further apart than this are of different series."""
POINT_BUDGET_S = 15.0
"""A point's share of the default budget in a session of four."""
WORKLOAD = Workload(model="bert-tiny", length=32, batch=1)
POINT = ("bert-tiny", "--length", "32", "--batch", "1", "--twin", "none", "--quiet")
SESSIONS = 20
BILL_SESSIONS = 4
SESSION_LIMIT_S = 300
BASELINES = (2, 3)
"""Sessions of one program, one after the other, that are used together as the side before."""
RECORDINGS = ROOT / "benchmarks" / ".calibration"
KEPT = RESULTS / "calibration-sessions.json"
RESULT = RESULTS / "calibration.json"


def main() -> int:
    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--sessions", type=int, help="how many to record")
    parser.add_argument("--wide", type=int, default=0, help="sessions of ten names to record")
    parser.add_argument("--judge", action="store_true", help="judge the committed recordings")
    given = parser.parse_args()
    count = given.sessions or (4 if given.quick else SESSIONS)
    bills = 1 if given.quick else BILL_SESSIONS
    seconds = 20 if given.quick else 40
    # read now: the result file is written anew from the first part on
    kept = json.loads(RESULT.read_text())["parts"] if given.judge else {}
    bench = Bench(
        "calibration",
        given,
        (
            0 if given.judge else (count + 3 * given.wide) * seconds,
            0 if given.judge else bills * seconds,
        ),
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if given.quick else RECORDINGS
        found = bench.part(
            "pairs",
            "pairs of sessions whose truth is known",
            lambda: judge(
                json.loads(KEPT.read_text())["sessions"]
                if given.judge
                else record(folder, count, given.wide, given.quick)
            ),
        )
        if found:
            tell_pairs(bench, found)
        found = bench.part(
            "bill",
            "work added to the host or to kernels",
            lambda: kept["bill"] if given.judge else bill(folder, bills),
        )
        if found:
            tell_bill(bench, found)
    return bench.finish()


# --- recording ----------------------------------------------------------------------------------


def session(folder: Path, names: Sequence[str], budget: Sequence[str] = ()) -> Path:
    """Record one session unless it is there already; return its folder."""
    from variants import ENTRY_POINTS

    if (folder / "run.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    package = folder.parent / "package"
    about = package / "frameworktax_variants-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: frameworktax-variants\nVersion: 1.0\n"
    )
    lines = [f"{name} = {where}" for name, where in ENTRY_POINTS.items()]
    (about / "entry_points.txt").write_text("\n".join(["[frameworktax.runtimes]", *lines, ""]))
    paths = (package, ROOT / "benchmarks", ROOT / "src")
    measure(
        [*POINT, "--runtimes", ",".join(names), *budget],
        folder,
        SESSION_LIMIT_S,
        env={"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    return folder


def record(folder: Path, count: int, wide: int, quick: bool) -> list[Row]:
    narrow_names = ("cal-base", *TRUTH)
    names = {"pairs": narrow_names, "wide": (*narrow_names, *sum(MORE.values(), ()))}
    asked = [("pairs", number) for number in range(count)]
    asked += [("wide", number) for number in range(wide)]
    sessions = []
    for number, (kind, own) in enumerate(asked):
        budget = "20s" if quick else f"{POINT_BUDGET_S * len(names[kind]):.0f}s"
        words = (folder / f"{kind}-{own:02}", names[kind], ("--time-budget", budget))
        try:
            at = session(*words)
        except BenchmarkError as error:
            say(f"  {number + 1} of {len(asked)}: {error}; once more")
            at = session(*words)
        sessions.append(compact(at))
        say(f"  {number + 1} of {len(asked)}: {brief(sessions[-1])}")
    if not quick:
        KEPT.parent.mkdir(exist_ok=True)
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in sessions)
        KEPT.write_text('{"sessions": [\n' + rows + "\n]}\n", encoding="utf-8")
    return sessions


def compact(folder: Path) -> Row:
    """Return what the rule needs of a session: blocks, calibrator, the interval it reported."""
    records, _ = store.read(folder / "store")
    told = [m for m in build(records).measurements if m.runtime.startswith("cal-")]
    missing = {"cal-base", *TRUTH} - {m.runtime for m in told if m.blocks_ns and m.latency_ns}
    if missing:
        raise BenchmarkError(f"{folder.name} lacks {', '.join(sorted(missing))}; delete it, go on")
    return {
        "session": told[0].session,
        "calibrator_ns": told[0].calibrator_ns,
        "points": {
            m.runtime: {
                "blocks_ns": [(p, r, round(ns)) for p, r, ns in m.blocks_ns],
                "latency_ns": [m.latency_ns.value, m.latency_ns.low, m.latency_ns.high],
            }
            for m in told
            if m.latency_ns is not None
        },
    }


def brief(row: Row) -> str:
    base = row["points"]["cal-base"]
    calibrator = median(ns for _, ns in row["calibrator_ns"])
    return (
        f"{base['latency_ns'][0] / 1e3:.0f} us, {len(base['blocks_ns'])} blocks, "
        f"calibrator {calibrator / 1e3:.0f} us"
    )


# --- pairs whose truth is known ----------------------------------------------------------------


def run_of(row: Row) -> Run:
    """Return a recorded session as the document that ``compare`` reads."""
    return Run(
        measurements=tuple(
            Measurement(
                workload=WORKLOAD,
                runtime=name,
                paradigm="eager",
                platform="cpu",
                threads=1,
                status="ok",
                session=row["session"],
                blocks_ns=tuple((p, r, float(ns)) for p, r, ns in point["blocks_ns"]),
                calibrator_ns=tuple((r, float(ns)) for r, ns in row["calibrator_ns"]),
            )
            for name, point in row["points"].items()
        )
    )


def against(
    before: Run | Sequence[Run],
    after: Run,
    name: str,
    base: str = "cal-base",
    constants: Constants = ELSEWHERE,
) -> Comparison:
    """Compare a point of one or more sessions with a variant of another, at the gate."""
    return compare(before, after, gate=GATE, runtimes={base: name}, constants=constants)


def within(run: Run, kind: str) -> list[Comparison]:
    """Compare what is of one code, under all its names, with one kind of variant."""
    have = {m.runtime for m in run.measurements}
    same = [name for name in ("cal-base", "cal-alias", *MORE["cal-alias"]) if name in have]
    if kind == "cal-alias":
        pairs = list(combinations(same, 2))
    else:
        slowed = [name for name in (kind, *MORE[kind]) if name in have]
        pairs = [(base, name) for base in same for name in slowed]
    return [against(run, run, name, base) for base, name in pairs]


def judge(recorded: Sequence[Row]) -> Row:
    rows = sorted(recorded, key=lambda row: row["session"])
    runs = [run_of(row) for row in rows]

    def chosen(before: int | tuple[int, ...]) -> list[Run]:
        return [runs[at] for at in (before if isinstance(before, tuple) else (before,))]

    ways: dict[str, list[tuple[Any, int]]] = {
        "neighbouring sessions": [
            pair for i in range(len(runs) - 1) for pair in ((i, i + 1), (i + 1, i))
        ],
        "any two sessions": list(permutations(range(len(runs)), 2)),
    }
    parts = series(rows)
    measured: dict[str, Constants] = {}
    for number, one in enumerate(parts):
        own = places(rows, one)
        first, second = own[: len(own) // 2], own[len(own) // 2 :]
        if len(first) >= 3:
            way = f"second half of series {number + 1}, constants of its first"
            ways[way] = list(permutations(second, 2))
            measured[way] = constants_of([sample(rows[at], "cal-base") for at in first])
        ways[f"series {number + 1}"] = list(permutations(own, 2))
        for count in BASELINES:
            windows = [tuple(own[at : at + count]) for at in range(len(own) - count + 1)]
            ways[f"series {number + 1}, {count} baselines"] = [
                (window, at) for window in windows for at in own if at not in window
            ]
    halves = [(one[: len(one) // 2], one[len(one) // 2 :]) for one in parts]
    for name, number in (("first halves", 0), ("second halves, held out", 1)):
        some = [at for both in halves for at in places(rows, both[number])]
        ways[name] = list(permutations(some, 2))
    return {
        "sessions": len(runs),
        "blocks_per_point": median(len(p["blocks_ns"]) for s in rows for p in s["points"].values()),
        "sd_between_sessions": deviations(rows),
        "components": [components(one) for one in parts if len(one) > 1],
        "ways": {
            "within a session": {
                name: outcome([found for run in runs for found in within(run, name)], true)
                for name, true in TRUTH.items()
            }
        }
        | {
            way: {
                name: outcome(
                    [
                        against(chosen(i), runs[j], name, constants=measured.get(way, ELSEWHERE))
                        for i, j in pairs
                    ],
                    true,
                )
                for name, true in TRUTH.items()
            }
            for way, pairs in ways.items()
            if pairs
        },
        "constants": {way: asdict(constants) for way, constants in measured.items()},
        "latency_interval_coverage": interval_coverage(rows),
    }


def places(rows: Sequence[Row], some: Sequence[Row]) -> list[int]:
    names = {row["session"] for row in some}
    return [at for at, row in enumerate(rows) if row["session"] in names]


def outcome(found: Sequence[Comparison], true: float) -> Row:
    changes = [comparison.points[0] for comparison in found]
    ratios = [change.ratio for change in changes if change.ratio is not None]
    return {
        "pairs": len(found),
        "true_ratio": true,
        "alarms": share_of([c.exit_code == 1 for c in found]),
        "inconclusive": share_of([c.exit_code == 3 for c in found]),
        "slower": share_of([change.verdict == "slower" for change in changes]),
        "faster": share_of([change.verdict == "faster" for change in changes]),
        "same": share_of([change.verdict == "same" for change in changes]),
        "coverage": share_of([r.low <= true <= r.high for r in ratios]),
        "median_ratio": median(r.value for r in ratios),
        "median_half_width": median((r.high - r.low) / 2 / r.value for r in ratios),
    }


def share_of(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def deviations(sessions: Sequence[Row]) -> Row:
    """Return how far apart sessions of one code lie: as they are, and over the calibrator."""
    latency = [row["points"]["cal-base"]["latency_ns"][0] for row in sessions]
    host = [median(ns for _, ns in row["calibrator_ns"]) for row in sessions]
    found = {
        "latency": latency,
        "calibrator": host,
        "their_ratio": [a / b for a, b in zip(latency, host, strict=True)],
    }
    return {name: stdev(values) / fmean(values) for name, values in found.items()}


def components(rows: Sequence[Row]) -> Row:
    """Return what the parts of the rule are in one series, for ``cal-base``, log scale.

    ``level_sd`` is what sessions differ by, ``block_noise`` the median over sessions of the spread
    of their blocks, ``host_sd`` the spread of the calibrators' quartile and ``host_noise`` its own
    error, ``drift_slope`` that of level on quartile: the quartile's noise draws it towards zero.
    """
    samples = [sample(row, "cal-base") for row in rows]
    levels = [fmean(s.processes) for s in samples]
    hosts, noises = zip(*(quartile(s.calibrator.values()) for s in samples), strict=True)
    noises = [found[0] for s in samples if (found := s.block_noise) is not None]
    return {
        "sessions": len(rows),
        "process_sd": math.sqrt(median(variance(s.processes) for s in samples)),
        "block_noise": median(noises),
        "level_sd": stdev(levels),
        "host_sd": stdev(hosts),
        "host_noise": math.sqrt(fmean(noises)),
        "drift_slope": linear_regression(hosts, levels).slope,
    }


def sample(row: Row, name: str) -> Sample:
    return Sample(
        blocks={(p, r): float(ns) for p, r, ns in row["points"][name]["blocks_ns"]},
        calibrator={r: float(ns) for r, ns in row["calibrator_ns"]},
    )


def series(sessions: Sequence[Row]) -> list[list[Row]]:
    """Split sessions where more than ``APART_S`` lies between two: the host has changed by then."""
    found: list[list[Row]] = []
    last = None
    for row in sorted(sessions, key=lambda row: row["session"]):
        begun = datetime.strptime(row["session"][:15], "%Y%m%dT%H%M%S")
        if last is None or (begun - last).total_seconds() > APART_S:
            found.append([])
        found[-1].append(row)
        last = begun
    return found


def interval_coverage(sessions: Sequence[Row]) -> Row:
    """Return how often a session's own 95 % interval holds the mean of the sessions around it.

    ``coverage`` is of latencies as they are, ``at_its_speed`` of that mean at the speed which the
    host had in the session, as far as ``compare`` believes calibrators. ``should`` is how often an
    interval holds the mean of m others if it is right: the mean is itself off by 1 / √m as much.
    """
    hits, moved_hits, should, widths, spreads = [], [], [], [], []
    for one in series(sessions):
        if len(one) < 3:
            continue
        speeds = [quartile(dict(row["calibrator_ns"]).values()) for row in one]
        for name in ("cal-base", *TRUTH):
            own = [row["points"][name]["latency_ns"] for row in one]
            spreads.append(stdev(value for value, _, _ in own) / fmean(v for v, _, _ in own))
            for at, (value, low, high) in enumerate(own):
                near = [i for i in range(len(own)) if 0 < abs(i - at) <= AROUND]
                mean = fmean(own[i][0] for i in near)
                host, _ = moved([speeds[i] for i in near], speeds[at])
                hits.append(low <= mean <= high)
                moved_hits.append(low <= mean * math.exp(host) <= high)
                widths.append((high - low) / 2 / value)
                processes = len({p for p, _, _ in one[at]["points"][name]["blocks_ns"]})
                should.append(expected_coverage(processes, len(near)))
    if not hits:
        raise BenchmarkError("no three sessions within half an hour: nothing is around one")
    return {
        "series": [len(one) for one in series(sessions)],
        "intervals": len(hits),
        "coverage": share_of(hits),
        "at_its_speed": share_of(moved_hits),
        "should": fmean(should),
        "half_width": median(widths),
        "sd_between_sessions": fmean(spreads),
    }


def expected_coverage(processes: int, others: int) -> float:
    """Return how often Student's t over processes holds the mean of so many other sessions."""
    degrees = processes - 1
    t = t_quantile(0.95, degrees) / math.sqrt(1 + 1 / others)
    return float(2 * stdtr(degrees, t) - 1)


def peer_spread() -> Row:
    """Return what ``peer.py`` found of passes of optimum-benchmark: their spread, and where."""
    found = json.loads((RESULTS / "peer.json").read_text(encoding="utf-8"))
    points = found["parts"]["grid"]["peer"]["points"]
    spread = median(point["process_spread"] for point in points)
    return {"spread": spread, "cpu": found["environment"]["cpu"]}


def tell_pairs(bench: Bench, found: Row) -> None:
    spread = found["sd_between_sessions"]
    bench.row(
        f"{found['sessions']} sessions, blocks a point",
        f"{found['blocks_per_point']:.0f}; standard deviation between sessions: latency "
        f"{percent(spread['latency'])}, calibrator {percent(spread['calibrator'])}, their ratio "
        f"{percent(spread['their_ratio'])}",
    )
    for part in found["components"]:
        bench.row(
            f"a series of {part['sessions']}",
            f"levels differ by {percent(part['level_sd'])}, processes by "
            f"{percent(part['process_sd'])}, blocks by {percent(part['block_noise'])} (of "
            f"which the rule takes {BLOCK_NOISE:g}); the host by {percent(part['host_sd'])}, its "
            f"noise {percent(part['host_noise'])}, slope {part['drift_slope']:.2f}",
        )
    for way, cases in found["ways"].items():
        same = cases["cal-alias"]
        bench.check(
            f"{way}: false alarms at the gate of {GATE:.0%}",
            same["alarms"],
            f"{100 * same['alarms']:.1f} % of {same['pairs']} pairs of the same code; "
            f"{100 * same['inconclusive']:.0f} % inconclusive",
            f"at most {ALARMS_TARGET:.0%}",
            same["alarms"] <= ALARMS_TARGET,
        )
        for name, target in FOUND_TARGETS.items():
            case = cases[name]
            ten = name == "cal-slow10"
            hit = case["alarms"] if ten else case["slower"]
            bench.check(
                f"{way}: a true {case['true_ratio'] - 1:.0%} is "
                + (f"beyond the gate of {GATE:.0%}" if ten else "slower"),
                hit,
                f"{100 * hit:.1f} % of {case['pairs']} pairs; half-width of the ratio "
                f"{percent(case['median_half_width'])}, median ratio {case['median_ratio']:.3f}",
                f"at least {target:.0%}",
                hit >= target,
            )
        bench.check(
            f"{way}: 95 % intervals of the same code that hold 1",
            same["coverage"],
            f"{100 * same['coverage']:.1f} % of {same['pairs']}",
            f"at least {COVERAGE_TARGET:.0%}",
            same["coverage"] >= COVERAGE_TARGET,
        )
    own, peer = found["latency_interval_coverage"], peer_spread()
    least = own["should"] - COVERAGE_SHORT
    bench.check(
        "95 % intervals of latency that hold the mean of the sessions around",
        own["at_its_speed"],
        f"{percent(own['at_its_speed'])} of {own['intervals']} at the host's speed in the session, "
        f"{percent(own['coverage'])} as measured; {percent(own['should'])} if they are right",
        f"at least {least:.0%}",
        own["at_its_speed"] >= least,
    )
    bench.row(
        "half-width of latency; standard deviation between sessions",
        f"{percent(own['half_width'])}; {percent(own['sd_between_sessions'])}; passes of "
        f"optimum-benchmark: {percent(peer['spread'])} (on {peer['cpu']})",
    )


# --- the right line of the bill -----------------------------------------------------------------


def bill(folder: Path, count: int) -> Row:
    """Return how much of the added time each line of the bill shows, per kind of work."""
    found = []
    for number in range(count):
        at = session(folder / f"bill-{number:02}", ("cal-base", "cal-host", "cal-kernel"))
        run = build(store.read(at / "store")[0])
        told = {m.runtime: m for m in run.measurements}
        for name, line in (("cal-host", "python"), ("cal-kernel", "kernel")):
            found.append(
                {"session": number, "work": name, **placed(told["cal-base"], told[name], line)}
            )
        for metric in ("kernel", "tax"):
            for name in ("cal-host", "cal-kernel"):
                renamed = {"cal-base": name}
                (change,) = compare(run, run, metric=metric, gate=GATE, runtimes=renamed).points
                found.append(
                    {
                        "session": number,
                        "work": name,
                        "metric": metric,
                        "verdict": change.verdict,
                        "reason": change.reason,
                    }
                )
        say(f"  {number + 1} of {count}")
    return {"added": found}


def placed(base: Measurement, more: Measurement, line: str) -> Row:
    if None in (base.latency_ns, more.latency_ns, base.bill_ns, more.bill_ns):
        raise BenchmarkError("a point has no bill; frameworktax doctor says what sampling lacks")
    assert base.latency_ns and more.latency_ns and base.bill_ns and more.bill_ns
    added = more.latency_ns.value - base.latency_ns.value
    lines = {
        name: more.bill_ns.get(name, 0.0) - base.bill_ns.get(name, 0.0)
        for name in more.bill_ns.keys() | base.bill_ns.keys()
    }
    return {
        "line": line,
        "added_ns": added,
        "added_share": added / base.latency_ns.value,
        "on_its_line": lines[line] / added,
        "lines_ns": lines,
    }


def tell_bill(bench: Bench, found: Row) -> None:
    for name, line in (("cal-host", "python"), ("cal-kernel", "kernel")):
        rows = [r for r in found["added"] if r["work"] == name and "line" in r]
        shares = [row["on_its_line"] for row in rows]
        centre = median(shares)
        bench.check(
            f"work added to {'the host' if line == 'python' else 'kernels'}, on the line {line}",
            centre,
            f"{100 * centre:.0f} % ({100 * min(shares):.0f} to {100 * max(shares):.0f} %) of "
            f"+{100 * median(r['added_share'] for r in rows):.0f} % of latency, "
            f"{len(rows)} sessions",
            f"within {PLACED_TARGET:.0%} and {2 - PLACED_TARGET:.0%}",
            PLACED_TARGET <= centre <= 2 - PLACED_TARGET,
        )
    for metric, own, other in (
        ("tax", "cal-host", "cal-kernel"),
        ("kernel", "cal-kernel", "cal-host"),
    ):
        verdicts = {
            name: [
                r["verdict"]
                for r in found["added"]
                if r["work"] == name and r.get("metric") == metric
            ]
            for name in (own, other)
        }
        bench.row(
            f"--metric {metric}",
            f"{own}: {', '.join(verdicts[own])}; {other}: {', '.join(verdicts[other])}",
        )


if __name__ == "__main__":
    sys.exit(main())
