"""The same grid measured with optimum-benchmark: how long it takes, how wide the intervals are.

    python benchmarks/peer.py [--quick] [--fresh] [--out FILE]

Makes a virtual environment of its own in ``benchmarks/.peer`` and installs the peer and this
project there, so that both measure with the same torch and transformers; nothing else is touched.
Versions are tried in order, and why some do not work together is in the result file,
``benchmarks/results/peer.json``.

The peer measures each point once, in one process, for ten seconds. That gives no interval that
holds: calls of one process are correlated and the spread between processes is not in them. So its
grid is run three times, each time in fresh processes, and the interval is Student's t over the
three medians, as ours is over three processes. What its single run would claim is shown as well.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, stdev

from common import (
    ROOT,
    Bench,
    BenchmarkError,
    Row,
    half_width,
    measure,
    options,
    percent,
    plain,
    run_command,
    say,
    shown,
)
from frameworktax import host, stats

PEER = "optimum-benchmark==0.6.0"
HOME = ROOT / "benchmarks" / ".peer"
VENV = HOME / "venv"
PYTHON = VENV / "bin" / "python"
INSTALLED = HOME / "installed.json"

MODEL, LENGTH, BATCHES = "bert-mini", 32, (1, 4, 16)
OURS = {"pytorch": "inference-mode", "torch.compile": "inductor", "onnxruntime": "onnxruntime"}
"""The peer's runtimes → ours that do the same; its pytorch runs under inference_mode."""
PASSES = 3
SESSIONS = ((3, 60), (5, 120))
"""Processes and seconds of ours: as many as the peer has passes, and more of both."""
FASTER_TARGET = 2.0


def main() -> int:
    parser = options(str(__doc__).partition("\n")[0])
    parser.add_argument("--fresh", action="store_true", help="install the peer anew")
    given = parser.parse_args()
    quick = given.quick
    batches = BATCHES[:1] if quick else BATCHES
    passes = 2 if quick else PASSES
    sessions = ((passes, 30),) if quick else SESSIONS
    scenario = {"duration": 1} if quick else {}
    if given.fresh:
        shutil.rmtree(HOME, ignore_errors=True)
    points = len(batches) * 2
    run_s = passes * points * (12 if quick else 22) + sum(budget_s for _, budget_s in sessions)
    bench = Bench("peer", given, (5 if INSTALLED.exists() else 180, run_s))
    installed = bench.part("install", "installing the peer", install)
    if installed:
        for what, why in installed["refused"].items():
            bench.row(f"cannot: {what}", why)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            found = bench.part(
                "grid",
                f"{MODEL}, length {LENGTH}, batch {', '.join(map(str, batches))}",
                lambda: grid(folder, installed["runtimes"], batches, scenario, passes, sessions),
            )
        if found:
            tell(bench, found)
    return bench.finish()


# --- installing ---------------------------------------------------------------------------------


def pin(package: str) -> str:
    """Return ``package==version`` as this project is tested with."""
    text = (ROOT / "constraints.txt").read_text()
    found = re.search(rf"^{package}==\S+", text, re.MULTILINE)
    if found is None:
        raise BenchmarkError(f"constraints.txt pins no {package}")
    return found[0]


def install() -> Row:
    """Install the peer with the newest versions that it works with; say which do not."""
    if INSTALLED.exists():
        return dict(json.loads(INSTALLED.read_text()))
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / ".gitignore").write_text("*\n")
    run_command([sys.executable, "-m", "venv", "--clear", str(VENV)], 120)
    pip(pin("torch"))  # first: asked for by another package, pip may take a CUDA build
    refused: Row = {}
    for transformers in (pin("transformers"), "transformers<5"):
        pip(pin("torch"), transformers, PEER, "-e", str(ROOT))
        reason = probe("pytorch")
        if reason is None:
            break
        refused[f"{PEER} with {transformers}"] = reason
    else:
        raise BenchmarkError(f"{PEER} does not run: {refused}")
    runtimes = ["pytorch", "torch.compile"]
    extra = PEER.replace("==", "[onnxruntime]==")
    try:
        pip(pin("torch"), transformers, pin("onnxruntime"), extra, "onnxscript", "-e", str(ROOT))
        reason = probe("onnxruntime")
    except BenchmarkError as error:
        reason = shown(error)
    if reason is None:
        runtimes.append("onnxruntime")
    else:
        refused[f"{extra} with {transformers} and {pin('torch')}"] = reason
    found = {"peer": PEER, "runtimes": runtimes, "refused": refused}
    INSTALLED.write_text(json.dumps(found))
    return found


def pip(*packages: str) -> None:
    say(f"  pip install {' '.join(packages)}")
    run_command([str(PYTHON), "-m", "pip", "install", "--quiet", *packages], 600)


def probe(runtime: str) -> str | None:
    """Return why the peer cannot measure in this runtime here, or None if it can."""
    with tempfile.TemporaryDirectory() as temporary:
        scenario = {"duration": 0, "iterations": 2, "warmup_runs": 1}
        try:
            found = run_peer(Path(temporary), [runtime], [1], scenario)
        except BenchmarkError as error:
            return shown(error)
    reason = found["points"][0].get("error")
    return None if reason is None else shown(reason)


# --- measuring ----------------------------------------------------------------------------------


def run_peer(folder: Path, runtimes: Sequence[str], batches: Sequence[int], scenario: Row) -> Row:
    """Let the peer measure the grid once; return its settings, points and wall time."""
    spec = {
        "model": MODEL,
        "length": LENGTH,
        "folder": str(folder / "model"),
        "runtimes": list(runtimes),
        "batches": list(batches),
        "scenario": scenario,
    }
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    env = {
        **host.worker_environment(1),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # kept from pass to pass
        "HF_HUB_OFFLINE": "1",
        "LOG_LEVEL": "ERROR",
        "LOG_TO_FILE": "0",
    }
    driver = Path(__file__).with_name("peer_driver.py")
    text, wall_s = run_command([str(PYTHON), str(driver), str(path)], 600, env=env, folder=folder)
    rows = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("PEER ")]
    return {**rows[0], "points": rows[1:], "wall_s": wall_s}


def grid(
    folder: Path,
    runtimes: Sequence[str],
    batches: Sequence[int],
    scenario: Row,
    passes: int,
    sessions: Sequence[tuple[int, int]],
) -> Row:
    """Run the peer's passes with our sessions between them, so that both see the host drift."""
    peer: list[Row] = []
    ours: list[Row] = []
    arguments = [MODEL, "--length", str(LENGTH), "--batch", ",".join(map(str, batches))]
    arguments += ["--runtimes", ",".join(OURS[runtime] for runtime in runtimes)]
    waiting = list(sessions)
    (folder / "peer").mkdir()
    for number in range(passes):
        peer.append(run_peer(folder / "peer", runtimes, batches, scenario))
        say(f"  peer, pass {number + 1} of {passes}: {peer[-1]['wall_s']:.0f} s")
        if waiting:
            count, budget_s = waiting.pop(0)
            command = [*arguments, "--processes", str(count), "--time-budget", f"{budget_s}s"]
            session = measure(
                [*command, "--quiet"], folder / f"ours-{count}", budget_s + 120, python=str(PYTHON)
            )
            cells = {
                (cell["runtime"], cell["workload"]["batch"]): cell
                for cell in session.document["measurements"]
            }
            ours.append(
                {
                    "command": "frameworktax measure " + " ".join(command),
                    "processes": count,
                    "wall_s": session.wall_s,
                    "versions": session.document["environment"]["libraries"],
                    "host_drift": session.document["host_drift"],
                    "points": [
                        our_point(cells.get((OURS[runtime], batch)), runtime, batch)
                        for runtime in runtimes
                        for batch in batches
                    ],
                }
            )
            say(f"  ours, {count} processes: {session.wall_s:.0f} s")
    peer_wall_s = sum(run["wall_s"] for run in peer)
    peer_points = peer_intervals(peer)
    return {
        "settings": peer[0]["settings"],
        "versions": peer[0]["versions"],
        "peer": {
            "passes": passes,
            "wall_s": peer_wall_s,
            "wall_one_pass_s": [run["wall_s"] for run in peer],
            "points": peer_points,
        },
        "ours": [{**run, "against_peer": against(run["points"], peer_points)} for run in ours],
    }


def our_point(cell: Row | None, runtime: str, batch: int) -> Row:
    latency = cell["latency_ns"] if cell else None
    if cell is None or latency is None:
        why = cell["reason"] if cell else "left out"
        return {"runtime": runtime, "batch": batch, "error": why or "too few blocks"}
    return {
        "runtime": runtime,
        "batch": batch,
        "latency_ns": latency,
        "half_width": half_width(latency),
        "process_spread": cell["process_spread"],
        "notes": [note["code"] for note in cell["notes"]],
    }


def peer_intervals(passes: Sequence[Row]) -> list[Row]:
    """Return per point the interval between passes, and what each pass alone would claim."""
    found = []
    for runs in zip(*(run["points"] for run in passes), strict=True):
        head = {"runtime": runs[0]["runtime"], "batch": runs[0]["batch"]}
        broken = [run["error"] for run in runs if "error" in run]
        if broken:
            found.append({**head, "error": broken[0]})
            continue
        medians_ns = [1e9 * run["median_s"] for run in runs]
        between = plain(stats.mean_interval(medians_ns, "process-medians"))
        naive = [naive_half_width(run) for run in runs]
        means = [run["mean_s"] for run in runs]
        found.append(
            {
                **head,
                "latency_ns": between,
                "half_width": half_width(between),
                "process_spread": stdev(medians_ns) / fmean(medians_ns),
                "naive_half_widths": naive,
                "naive_pairs": math.comb(len(runs), 2),
                "naive_pairs_disjoint": sum(
                    abs(means[a] - means[b]) > naive[a] * means[a] + naive[b] * means[b]
                    for a, b in combinations(range(len(runs)), 2)
                ),
                "lag1": median(run["lag1"] for run in runs),
                "calls": [run["calls"] for run in runs],
                "wall_s": [run["wall_s"] for run in runs],
            }
        )
    return found


def naive_half_width(run: Row) -> float:
    """Return the half-width, as a share, of a t interval over single calls as if independent."""
    n = run["calls"]
    return float(stats.t_quantile(0.95, n - 1) * run["stdev_s"] / math.sqrt(n) / run["mean_s"])


def against(ours: Sequence[Row], peer: Sequence[Row]) -> Row:
    """Compare widths and values point by point, where both have them."""
    both = [
        (a, b) for a, b in zip(ours, peer, strict=True) if "error" not in a and "error" not in b
    ]
    if not both:
        raise BenchmarkError("no point was measured by both")
    ratios = [a["half_width"] / b["half_width"] for a, b in both]
    return {
        "points": len(both),
        "points_asked": len(peer),
        "narrower": sum(ratio <= 1 for ratio in ratios),
        "width_ratio_median": median(ratios),
        "width_ratio_geometric_mean": math.exp(fmean(map(math.log, ratios))),
        "value_ratios": [a["latency_ns"]["value"] / b["latency_ns"]["value"] for a, b in both],
    }


def tell(bench: Bench, found: Row) -> None:
    peer = found["peer"]
    settings = ", ".join(f"{key} {value}" for key, value in found["settings"].items())
    bench.row("the peer's settings", settings)
    bench.row("versions", ", ".join(f"{k} {v}" for k, v in found["versions"].items()))
    for number, point in enumerate(peer["points"]):
        mine = [run["points"][number] for run in found["ours"]]
        bench.row(
            f"{point['runtime']}, batch {point['batch']}",
            "; ".join(
                [
                    "peer " + tell_point(point),
                    *(
                        f"ours ({run['processes']} processes) {tell_point(one)}"
                        for run, one in zip(found["ours"], mine, strict=True)
                    ),
                ]
            ),
        )
    good = [point for point in peer["points"] if "error" not in point]
    if good:
        claims = [width for point in good for width in point["naive_half_widths"]]
        bench.row(
            "what single passes of the peer would claim",
            f"±{percent(median(claims))} at the median, and "
            f"{sum(p['naive_pairs_disjoint'] for p in good)} of "
            f"{sum(p['naive_pairs'] for p in good)} pairs of passes then exclude each other",
        )
    one = median(peer["wall_one_pass_s"])
    bench.row(
        "wall time of the peer",
        f"{peer['wall_s']:.0f} s for {peer['passes']} passes, {one:.0f} each",
    )
    for run in found["ours"]:
        compared = run["against_peer"]
        faster = peer["wall_s"] / run["wall_s"]
        width = compared["width_ratio_median"]
        whole = compared["points"] == compared["points_asked"]
        what = f"ours against optimum-benchmark, {run['processes']} processes"
        told = (
            f"{run['wall_s']:.0f} s: {faster:.1f} × as fast as {peer['passes']} passes "
            f"({one / run['wall_s']:.1f} × one), widths {width:.2f} × the peer's at the median, "
            f"narrower at {compared['narrower']} of {compared['points_asked']}"
        )
        if run["processes"] != peer["passes"]:
            bench.row(what, told)  # not like for like: more processes, narrower intervals
            continue
        bench.check(
            what,
            faster,
            told,
            f"{FASTER_TARGET:.0f} × as fast, widths at most 1 × at the median",
            whole and faster >= FASTER_TARGET and width <= 1,
        )


def tell_point(point: Row) -> str:
    if "error" in point:
        return str(point["error"])
    return f"{point['latency_ns']['value'] / 1e6:.3f} ms ±{percent(point['half_width'])}"


if __name__ == "__main__":
    sys.exit(main())
