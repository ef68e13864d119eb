"""Is kernel time by machine code that by symbols? torch's libraries, with their symbols hidden.

    python benchmarks/stripped.py [--seconds 4] [--out FILE]

Each model runs in inference mode while its program counter is sampled; the very same samples are
then classified twice. ``RULES`` were looked at while the rules were written, ``HELD_OUT`` were not.
Known answers follow in ONNX Runtime and OpenVINO, which have no symbols: products are work,
operators on one element are not. Results go to ``benchmarks/results/stripped.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import ROOT, environment, say
from frameworktax import models, runtimes
from frameworktax.attribution import attribute_cpu
from frameworktax.attribution.buckets import classify
from frameworktax.attribution.perf_event import PerfEventSampler
from frameworktax.attribution.symbols import Resolver
from frameworktax.clock import REAL
from frameworktax.records import Workload
from frameworktax.runtimes.base import Target

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
TARGET = 0.02
LIMIT = 0.04


def is_torch(library: str) -> bool:
    """Return whether a library is one of torch's own."""
    return library.startswith(("libtorch", "libc10"))


def shares(workload: Workload, seconds: float) -> dict[str, Any]:
    """Return the kernel share of one model's samples by symbols and by machine code."""
    with tempfile.TemporaryDirectory() as folder:
        model = models.build(workload, "cpu")
        loaded = runtimes.get("inference-mode").load(model, Target(), Path(folder))
        call = loaded.bind(workload.batch)
        for _ in range(WARM_UP):
            call()
        addresses = sampled(call, seconds)
    by_symbol = Resolver().resolve(addresses)
    by_code = Resolver(hidden=is_torch).resolve(addresses)
    total = len(addresses)
    symbols = sum(classify(by_symbol[at])[0] == "kernel" for at in addresses)
    places = Counter(classify(by_code[at]) for at in addresses)
    high = sum(count for (bucket, _), count in places.items() if bucket == "kernel")
    return {
        "model": workload.model,
        "batch": workload.batch,
        "samples": total,
        "by_symbols": symbols / total,
        "by_code": high / total,
        "copying": places["kernel", "copying"] / total,
        "in_torch": sum(is_torch(by_symbol[at].library) for at in addresses) / total,
    }


def sampled(call: Callable[[], object], seconds: float) -> list[int]:
    """Return program counters in user mode while a call runs over and over."""
    found: list[int] = []
    end = REAL.wall_ns() + int(seconds * 1e9)
    with PerfEventSampler(2_000_000_000, period_ns=PERIOD_NS) as event:
        while (now := REAL.wall_ns()) < end:
            event.resume()
            while REAL.wall_ns() < min(end, now + 500_000_000):
                call()
            event.pause()
            found += event.drain()[0]
    return found


def known_answers(seconds: float) -> list[dict[str, Any]]:
    """Return tax shares of products and of tiny operators in runtimes without symbols."""
    import onnxruntime
    import openvino
    import torch

    class Products(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    class Small(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(100):
                x = torch.tanh(x + 1.5)
            return x

    rows = []
    cases: tuple[tuple[str, torch.nn.Module, torch.Tensor], ...] = (
        ("eight 512-wide products at batch 64", Products(), torch.randn(64, 512)),
        ("200 operators on one element", Small(), torch.zeros(1, 1)),
    )
    for name, module, inputs in cases:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.onnx")
            torch.onnx.export(module.eval(), (inputs,), path, dynamo=False)
            array = inputs.numpy()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
            feed = {session.get_inputs()[0].name: array}
            settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
            request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
            calls: dict[str, Callable[[], object]] = {
                "onnxruntime": lambda session=session, feed=feed: session.run(None, feed),
                "openvino": lambda request=request, array=array: request.infer({0: array}),
            }
            for runtime, call in calls.items():
                for _ in range(WARM_UP):
                    call()
                found = attribute_cpu(call, duration_ns=int(seconds * 1e9))
                buckets: Counter[str] = Counter()
                for stretch in found["samples"]:
                    buckets.update(stretch)
                total = sum(buckets.values())
                rows.append(
                    {
                        "case": name,
                        "runtime": runtime,
                        "latency_ns": found["latency_ns"],
                        "tax_share": 1 - buckets["kernel"] / total,
                        "copying": found["detail"].get("copying", 0) / total,
                    }
                )
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of sampling for each model")
    out = ROOT / "benchmarks/results/stripped.json"
    parser.add_argument("--out", type=Path, default=out)
    asked = parser.parse_args()
    rows = []
    for held_out, workloads in ((False, RULES), (True, HELD_OUT)):
        for workload in workloads:
            row = {**shares(workload, asked.seconds), "held_out": held_out}
            rows.append(row)
            say(
                f"{row['model']:16} batch {row['batch']:3}  by symbols {row['by_symbols']:6.1%}  "
                f"by machine code {row['by_code']:6.1%}, of it copying {row['copying']:5.1%}"
                f"{'  (held out)' if held_out else ''}"
            )
    errors = [abs(row["by_code"] - row["by_symbols"]) for row in rows]
    say(
        f"within {TARGET:.0%}: {sum(e <= TARGET for e in errors)} of {len(errors)}; "
        f"worst {max(errors):.1%}, wanted at most {LIMIT:.0%}"
    )
    answers = known_answers(asked.seconds)
    for answer in answers:
        say(f"{answer['case']:38} {answer['runtime']:12} tax share {answer['tax_share']:6.1%}")
    asked.out.write_text(
        json.dumps({"environment": environment(), "models": rows, "known": answers}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
