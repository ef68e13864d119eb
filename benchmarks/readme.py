"""Fill in what the documents say was measured, so that no number in them is typed by hand.

    python benchmarks/readme.py [RUN_JSON]     take this run, or redraw the one kept in docs/
    python benchmarks/readme.py --check        exit 1 where a document differs

README.md's first block and picture come from a run of ``make demo``, kept in ``docs/results/demo``
with everything the tool printed about it (the README has the first lines and the latencies);
docs/results/checks.md from the files that ``make bench`` and ``make gpu`` leave in
``benchmarks/results``, with layers beside torch.profiler's from ``benchmarks/layers.py``.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from frameworktax.records import Environment, Run
from frameworktax.report.charts import figure
from frameworktax.report.json_document import load
from frameworktax.report.render_terminal import print_blocks
from frameworktax.report.run_blocks import run_blocks

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
CHECKS = ROOT / "docs" / "results" / "checks.md"
KEPT = ROOT / "docs" / "results" / "demo"
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ("latency", "bill")
SHOWN = 5
"""Layers of a model beside torch.profiler's."""
WIDTH = 80
README_WIDTH = 110
"""Wide enough for the latency table in one piece."""
ENGINES = ("frameworktax", "torch", "onnxruntime", "openvino")


def printed(run: Run, width: int = WIDTH) -> str:
    """Return what the command line prints about a run, without colour."""
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None, highlight=False)
    print_blocks(run_blocks(run), console)
    lines = text.getvalue().strip("\n").splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def beginning(run: Run) -> str:
    """Return the headline, the latency table and the line that explains its letters."""
    parts = [part.splitlines() for part in re.split(r"\n\s*\n", printed(run, README_WIDTH))]
    names = tuple(dict.fromkeys(m.runtime for m in run.measurements if m.latency_ns))
    rows = next(p for p in parts if sum(line.startswith(names) for line in p) > 1)
    last = max(i for i, line in enumerate(rows) if line.startswith(names))
    return "\n".join([*parts[0], "", *rows[: last + 2]]) + "\n"


def where(found: Environment | None) -> str:
    """Return the machine and the versions in a line."""
    if found is None:
        return ""
    place = f", {found.virtualization}" if found.virtualization else ""
    versions = [f"{name} {found.libraries[name]}" for name in ENGINES if name in found.libraries]
    return f"Measured on {found.cpu}, {found.cores} processors{place}; {', '.join(versions)}.\n"


def demo(run: Run) -> str:
    return f"```text\n{beginning(run)}```\n\n{where(run.environment)}"


def checks(results: Path) -> str:
    """Return a page with every check that a benchmark compared with a target."""
    title = (
        "# Measured checks\n\nMade by `benchmarks/readme.py`; [how it measures](../method.md).\n\n"
    )
    head = ["| from | check | found | target | met |", "|---|---|---|---|---|"]
    return title + "\n".join([*head, *_rows(results), *_layers(results)]) + "\n"


def _rows(results: Path) -> Iterator[str]:
    for path in sorted(results.glob("*.json")):
        data: dict[str, Any] = json.loads(path.read_text())
        for check in data.get("checks", []):
            value = check.get("shown") or check["value"]
            found = f"{value:.4g}" if isinstance(value, float) else str(value)
            met = "yes" if check["ok"] else "**no**"
            link = f"[{path.stem}](../../benchmarks/results/{path.name})"
            yield f"| {link} | {check['check']} | {found} | {check['target']} | {met} |"


def _layers(results: Path) -> Iterator[str]:
    """Yield the layers of models by themselves as both tools have them, the largest of each."""
    parts: dict[str, Any] = json.loads((results / "layers.json").read_text())["parts"]
    models = {model: part for model, part in parts.items() if "layers" in part}
    if not models:
        return
    yield ""
    yield "## Layers beside torch.profiler"
    yield ""
    yield "Share of a call that a layer has by itself, and the processor time of a call under each"
    yield "tool over that without, at the median (`python benchmarks/layers.py`)."
    yield ""
    yield "| model | layer | class | frameworktax | torch.profiler |"
    yield "|---|---|---|---|---|"
    for model, part in models.items():
        slower = {tool: f"{median(ratios):.2f} ×" for tool, ratios in part["slower"].items()}
        under = f"{slower['profiler']}, naming modules {slower['profiler, modules']}"
        yield f"| {model} | a call | | {slower['clocks']} | {under} |"
        for path, kind, share, other in sorted(part["layers"], key=lambda one: -one[2])[:SHOWN]:
            yield f"| | {path or '(itself)'} | {kind} | {share:.1%} | {other:.1%} |"


def filled(document: Path, name: str, block: str) -> str:
    """Return the document with what stands between its marks replaced."""
    start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
    pattern = re.compile(f"{re.escape(start)}.*{re.escape(end)}", re.DOTALL)
    text, found = pattern.subn(lambda _: start + block + end, document.read_text())
    if found != 1:
        raise SystemExit(f"{document.name} needs one pair of {name}:start and {name}:end")
    return text


def texts() -> dict[Path, str]:
    """Return every file made of results, as it should be."""
    run = load(KEPT / "run.json")
    return {
        README: filled(README, "demo", demo(run)),
        CHECKS: checks(RESULTS),
        KEPT / "demo.txt": printed(run),
    }


def main() -> None:
    words = sys.argv[1:]
    if words == ["--check"]:
        stale = [p for p, text in texts().items() if not p.exists() or p.read_text() != text]
        sys.exit(f"stale: {', '.join(p.name for p in stale)}; run make readme" if stale else 0)
    KEPT.mkdir(parents=True, exist_ok=True)
    if words and Path(words[0]).resolve() != KEPT / "run.json":
        shutil.copyfile(words[0], KEPT / "run.json")
    for path, text in texts().items():
        path.write_text(text)
    run = load(KEPT / "run.json")
    for name in PICTURES:
        figure(run, name, KEPT / f"{name}.svg")
    print(f"README.md begins with: {run.headline}")


if __name__ == "__main__":
    main()
