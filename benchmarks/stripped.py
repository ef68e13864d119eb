"""Is kernel time by machine code that by symbols? torch's libraries, with their symbols hidden.

    python benchmarks/stripped.py           six minutes
    python benchmarks/stripped.py --quick   a second for each model, proves nothing

Each model runs in inference mode while its program counter is sampled; the very same samples are
then classified twice, so that a busy host changes nothing. ``RULES`` were looked at while the rules
were written, ``HELD_OUT`` were not.

Then, in each of ``RUNTIMES``, with symbols and without: products of 64 × 512 by 512 × 512,
tanh and softmax of two numbers in turn, which no fuser makes one, and mixtures of both. Eight
products pay at most 10 % tax, 200 small operators at least 60 %, and kernel time of mixtures has to
grow by what a product takes in a graph of products alone, within 10 %.

Whether the tax of the products is true is asked without samples where the kernels are known: C code
calls the same products of MKL on the same sizes into memory that is there, in turn with the call,
and the processor time of the call beyond that is its tax. That tax depends on the host, since
dispatch is slow after products have evicted it from the caches.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean, median

import torch

from common import Bench, Row, options
from frameworktax import models, runtimes
from frameworktax.analysis.bill import MISJUDGED
from frameworktax.attribution.buckets import classify
from frameworktax.attribution.perf_event import Drained, PerfEventSampler, placed
from frameworktax.clock import REAL
from frameworktax.models.base import model_of, normal
from frameworktax.records import Workload
from frameworktax.runtimes.base import Loaded, Target
from known_answers import SAMPLED_NS, Part, interval, judge, lines, native

RULES = (
    Workload(model="bert-tiny", length=32),
    Workload(model="bert-tiny", length=32, batch=16),
    Workload(model="bert-mini", length=32),
    Workload(model="mobilenet-v2", image_size=224),
    Workload(model="resnet-18", image_size=224),
    Workload(model="lstm", length=32),
    Workload(model="densenet-121", image_size=64),
    Workload(model="unet"),
)
HELD_OUT = (
    Workload(model="gpt2", length=32, depth=0.5),
    Workload(model="squeezebert", length=32, depth=0.5),
    Workload(model="convnext-tiny", image_size=64),
    Workload(model="swin-tiny", image_size=224),
    Workload(model="recommender", batch=8),
    Workload(model="gnn"),
    Workload(model="googlenet", image_size=64),
    Workload(model="fnet", length=32, depth=0.5),
    Workload(model="shufflenet-v2", image_size=64),
    Workload(model="poolformer", image_size=64),
)
WARM_UP = 20
PERIOD_NS = 793_000
NEAR, LIMIT = 0.02, 0.04
RUNTIMES = ("eager", "torchscript-frozen", "onnxruntime", "openvino")
PRODUCTS, SMALL, ALONE = (0, 2, 4, 8), 200, (2, 8)
LITTLE, MUCH = 0.10, 0.60
"""Tax of products, at most, and of operators on two numbers, at least."""
SLOPE_WITHIN = 0.10
BY_MKL = {"eager": 0, "torchscript-frozen": 1}
"""Runtimes whose products are MKL's, by the argument of ``layers`` in ``native_code.PRODUCTS``."""
BLOCKS, BLOCK_CALLS = 12, 12
TRUE_POINTS, TRUE_WITHIN = 0.02, 0.10
"""By how much a tax may differ from that by clocks: the larger of points and a part of it."""


def is_torch(library: str) -> bool:
    """Return whether a library is one of torch's own."""
    return library.startswith(("libtorch", "libc10"))


def shares(workload: Workload, seconds: float) -> Row:
    """Return the kernel share of one model's samples by symbols and by machine code."""
    with tempfile.TemporaryDirectory() as folder:
        model = models.build(workload, "cpu")
        loaded = runtimes.get("inference-mode").load(model, Target(), Path(folder))
        call = loaded.bind(workload.batch)
        for _ in range(WARM_UP):
            call()
        drained = sampled(call, seconds)
    by_symbol, by_code = (
        [classify(leaf) for part in placed(drained, hidden) for leaf in part]
        for hidden in (lambda library: False, is_torch)
    )
    total = len(by_symbol)
    return {
        "model": workload.model,
        "batch": workload.batch,
        "samples": total,
        "by_symbols": sum(bucket == "kernel" for bucket, _ in by_symbol) / total,
        "by_code": sum(bucket == "kernel" for bucket, _ in by_code) / total,
        "copying": by_code.count(("kernel", "copying")) / total,
    }


def sampled(call: Callable[[], object], seconds: float) -> list[Drained]:
    """Return samples while a call runs over and over."""
    found = []
    end = REAL.wall_ns() + int(seconds * 1e9)
    with PerfEventSampler(2_000_000_000, period_ns=PERIOD_NS) as event:
        while (now := REAL.wall_ns()) < end:
            event.resume()
            while REAL.wall_ns() < min(end, now + 500_000_000):
                call()
            event.pause()
            found.append(event.drain())
    return found


class Mixed(torch.nn.Module):
    """Products of 512 × 512, then operators on two numbers, of which no two become one.

    OpenVINO makes one loop of element-wise operators, so that each second one is none.
    """

    def __init__(self, products: int, small: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(products))
        self.small = small

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = x[:1, :2]
        for layer in self.layers:
            x = layer(x)
        for _ in range(self.small // 2):
            z = torch.softmax(torch.tanh(z), -1)
        return x * 1.0, z


def mixture(runtime: str, products: int, small: int, folder: Path) -> tuple[Loaded, Part]:
    """Return a call of products and small operators in a runtime, warmed up.

    Its inputs are what was loaded's: an engine reads freed memory where that is given up.
    """
    chosen, target = runtimes.get(runtime), Target()
    model = model_of(Mixed(products, small).eval(), normal(512))
    folder.mkdir(parents=True)
    chosen.prepare(model, [64], target, folder)
    loaded = chosen.load(model if chosen.needs_model else None, target, folder)
    call = loaded.bind(64)
    for _ in range(20):
        call()
    return loaded, call


def without_samples(call: Part, products: Part) -> float:
    """Return the tax of a call, by clocks, beyond the products in it; both in turn."""
    took: dict[Part, list[int]] = {call: [], products: []}
    for _ in range(BLOCKS):
        for part, times in took.items():
            part()  # evicts what the other left
            for _ in range(BLOCK_CALLS):
                begin = time.thread_time_ns()
                part()
                times.append(time.thread_time_ns() - begin)
    return 1 - median(took[products]) / median(took[call])


def mixtures(runtime: str, rounds: int) -> Row:
    """Return slopes of kernel time over products, by the time of a product alone, and taxes.

    Samples are short and rounds many: what is compared is then measured at one speed of the host.
    """
    with tempfile.TemporaryDirectory() as folder:
        graphs = {(n, SMALL): n for n in PRODUCTS} | {(n, 0): n for n in ALONE}
        calls = {key: mixture(runtime, *key, Path(folder, f"{key[0]}-{key[1]}")) for key in graphs}
        slopes, products, small, clocked = [], [], [], []
        if runtime in BY_MKL:
            alone = partial(native("layers", Path(folder)), BY_MKL[runtime])
        for _ in range(rounds):
            found = {
                key: lines(call, sampled_ns=SAMPLED_NS // 4)[0] for key, (_, call) in calls.items()
            }
            kernel = {key: one["kernel"] for key, one in found.items()}
            middle = fmean(PRODUCTS)
            slope = sum((n - middle) * kernel[n, SMALL] for n in PRODUCTS)
            slope /= sum((n - middle) ** 2 for n in PRODUCTS)
            least, most = ALONE
            slopes.append(slope / ((kernel[most, 0] - kernel[least, 0]) / (most - least)))
            products.append(1 - kernel[most, 0] / found[most, 0].total())
            small.append(1 - kernel[0, SMALL] / found[0, SMALL].total())
            if runtime in BY_MKL:
                clocked.append(without_samples(calls[most, 0][1], alone))
    return {"slopes": slopes, "products": products, "small": small, "clocked": clocked}


def main() -> int:
    """Measure, print and write."""
    chosen = options(__doc__ or "").parse_args()
    seconds = 1.0 if chosen.quick else 4.0
    workloads = [(one, False) for one in RULES] + [(one, True) for one in HELD_OUT]
    torch.set_num_threads(1)
    rounds = 2 if chosen.quick else 12
    each = [*[seconds + 2] * len(workloads), *[rounds * 4] * len(RUNTIMES)]
    bench = Bench("stripped", chosen, each)
    rows = []
    for workload, held_out in workloads:
        name = f"{workload.model}-{workload.batch}"
        title = f"{workload.model}, batch {workload.batch}"
        row = bench.part(name, title, lambda w=workload: shares(w, seconds))
        if row is None:
            continue
        rows.append({**row, "held_out": held_out})
        bench.row(
            f"{title}{', held out' if held_out else ''}",
            f"by symbols {row['by_symbols']:.1%}, by machine code {row['by_code']:.1%}, of it "
            f"copying {row['copying']:.1%}",
        )
    if rows:
        tell(bench, rows)
    for runtime in RUNTIMES:
        title = f"products and small operators in {runtime}"
        found = bench.part(runtime, title, lambda r=runtime: mixtures(r, rounds))
        if found is None:
            continue
        judge(bench, f"slope of mixtures in {runtime}", found["slopes"], SLOPE_WITHIN)
        tax, half = interval(found["products"])
        shown = f"{tax:.1%} ± {half:.1%}"
        name = f"tax of eight products in {runtime}"
        bench.check(name, tax, shown, f"at most {LITTLE:.0%}", tax <= LITTLE)
        if found["clocked"]:
            true, half = interval(found["clocked"])
            allowed = max(TRUE_POINTS, TRUE_WITHIN * true)
            bench.check(
                f"{name}, beyond that by clocks without samples",
                tax - true,
                f"{tax - true:+.1%}: {tax:.1%} where clocks say {true:.1%} ± {half:.1%}",
                f"within {TRUE_POINTS:.0%}, or {TRUE_WITHIN:.0%} of it",
                abs(tax - true) <= allowed,
            )
        tax, half = interval(found["small"])
        shown = f"{tax:.1%} ± {half:.1%}"
        name = f"tax of {SMALL} operators on two numbers in {runtime}"
        bench.check(name, tax, shown, f"at least {MUCH:.0%}", tax >= MUCH)
    return bench.finish()


def tell(bench: Bench, rows: list[Row]) -> None:
    """Compare what was found with what is wanted, of all models and of those held out."""
    for kind, some in (
        ("models", rows),
        ("models that were held out", [row for row in rows if row["held_out"]]),
    ):
        if not some:
            continue
        errors = [abs(row["by_code"] - row["by_symbols"]) for row in some]
        near = sum(error <= NEAR for error in errors)
        bench.check(
            f"kernel share by machine code within {NEAR:.0%} of that by symbols",
            near / len(errors),
            f"{near} of {len(errors)} {kind}",
            "ten of twelve",
            near / len(errors) >= 10 / 12,
        )
        bench.check(
            "kernel share by machine code, the farthest from that by symbols",
            max(errors),
            f"{max(errors):.1%} of the samples, of {len(errors)} {kind}",
            f"at most {LIMIT:.0%}",
            max(errors) <= LIMIT,
        )
        outside = [beyond(row) for row in some]
        bench.check(
            "kernel share by symbols, beyond what the interval of machine code reaches to",
            max(outside),
            f"{max(outside):.1%} of the samples at most, {sum(o > 0 for o in outside)} of "
            f"{len(outside)} {kind}",
            "none",
            not any(o > 0 for o in outside),
        )


def beyond(row: Row) -> float:
    """Return by how much the share by symbols lies outside of what machine code gives, or 0."""
    low, high = row["by_code"] - row["copying"] - MISJUDGED, row["by_code"] + MISJUDGED
    return float(max(low - row["by_symbols"], row["by_symbols"] - high, 0.0))


if __name__ == "__main__":
    sys.exit(main())
