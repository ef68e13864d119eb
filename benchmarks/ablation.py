"""Which optimisation buys what, for models of the paper: the ladder of ``frameworktax ablate``.

python benchmarks/ablation.py [--quick | --redraw]
"""

from __future__ import annotations

from dataclasses import replace

from frameworktax.ablate import ablate, read
from frameworktax.ablate.blocks import ablation_blocks, waterfall
from frameworktax.errors import FrameworktaxError
from frameworktax.records import Workload
from frameworktax.report import vega
from frameworktax.report.blocks import Chart
from frameworktax.report.render_markdown import markdown
from question import Place, bar, place

MODELS = {
    Workload(model="bert-base", length=16): 600.0,
    Workload(model="resnet-50", image_size=64): 420.0,
}
"""Workload → time budget, s: exports and compilers take half of it."""
QUICK = {Workload(model="mlp", width=0.1): 90.0}


def page(at: Place, failed: dict[str, str]) -> str:
    """Return the page, and draw the pictures beside it."""
    lines = [
        "# Which optimisation buys what",
        "",
        "Written by `make ablate` from the store beside it; how to read it: "
        "[ablate.md](../ablate.md). Batch 1, small inputs, one thread unless it says otherwise.",
    ]
    for workload in QUICK if at.quick else MODELS:
        if workload.model in failed:
            lines += ["", f"## {workload.model}", "", f"Not measured: {failed[workload.model]}"]
            continue
        found = read(at.store, workload.model)
        picture = at.folder / f"{workload.model}.svg"
        vega.write(waterfall(found), picture)
        title = "Latency after each step, kernel time and tax"
        answer, *rest = ablation_blocks(found)
        chart = Chart(title, file=f"{at.folder.name}/{picture.name}")
        blocks = [replace(answer, level=2), chart, *rest]
        lines += ["", markdown(blocks).rstrip()]
    return "\n".join(lines) + "\n"


def main() -> None:
    at = place("ablation", __doc__ or "")
    failed: dict[str, str] = {}
    if not at.redraw:
        for workload, budget in (QUICK if at.quick else MODELS).items():
            try:
                with bar() as shown:
                    ablate(
                        workload.model,
                        workload,
                        paths=["eager"] if at.quick else ["torchscript", "inductor", "onnxruntime",
                                                           "device"],
                        time_budget=budget,
                        processes=1 if at.quick else 3,
                        folder=at.store,
                        reporter=shown,
                        command=("ablate", workload.model),
                    )  # fmt: skip
            except FrameworktaxError as error:  # the other model's ladder is measured nevertheless
                failed[workload.model] = str(error)
    at.write(page(at, failed))


if __name__ == "__main__":
    main()
