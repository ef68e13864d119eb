"""Runs optimum-benchmark over a grid; started by peer.py with the interpreter that has it.

    python peer_driver.py SPEC.json

Prints one JSON line about its settings and one a point. Imports the peer; frameworktax only to
build the same model, which is left as a folder for the peer to load.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

Row = dict[str, Any]

PACKAGES = ("optimum-benchmark", "optimum", "optimum-onnx", "torch", "transformers", "onnxruntime")


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    from optimum_benchmark import InferenceConfig, ProcessConfig

    scenario = InferenceConfig()
    emit(
        {
            "versions": versions(),
            "settings": {
                "launcher": ProcessConfig().name,
                "start_method": ProcessConfig().start_method,
                "warmup_runs": scenario.warmup_runs,
                "iterations": scenario.iterations,
                "duration": scenario.duration,
                **spec["scenario"],
            },
        }
    )
    folder = Path(spec["folder"])
    if not folder.exists():
        save_model(spec["model"], spec["length"], folder)
    for runtime in spec["runtimes"]:
        for batch in spec["batches"]:
            emit(measure(spec, runtime, batch))


def emit(row: Row) -> None:
    print("PEER " + json.dumps(row), flush=True)


def versions() -> Row:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def save_model(name: str, length: int, folder: Path) -> None:
    """Leave the model that frameworktax measures under this name, weights and all."""
    from frameworktax import models
    from frameworktax.records import Workload

    models.build(Workload(model=name, length=length), "cpu").module.save_pretrained(folder)


def measure(spec: Row, runtime: str, batch: int) -> Row:
    """Measure one point in a process of its own, which is what the peer calls isolation."""
    from optimum_benchmark import Benchmark, BenchmarkConfig, InferenceConfig, ProcessConfig

    begin = time.monotonic()
    try:
        config = BenchmarkConfig(
            name=f"{runtime}-{batch}",
            launcher=ProcessConfig(),
            scenario=InferenceConfig(
                input_shapes={"batch_size": batch, "sequence_length": spec["length"]},
                **spec["scenario"],
            ),
            backend=backend(runtime, spec["folder"]),
        )
        seconds = Benchmark.launch(config).forward.latency.values
    except Exception as error:  # noqa: BLE001 - the boundary to the peer: any failure is a row
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        return {"runtime": runtime, "batch": batch, "error": reason}
    return {
        "runtime": runtime,
        "batch": batch,
        "wall_s": time.monotonic() - begin,
        "calls": len(seconds),
        "mean_s": fmean(seconds),
        "stdev_s": stdev(seconds) if len(seconds) > 1 else None,
        "median_s": median(seconds),
        "lag1": lag1(seconds),
    }


def backend(runtime: str, folder: str) -> Any:
    from optimum_benchmark import ORTConfig, PyTorchConfig

    common: Row = {
        "model": folder,
        "task": "feature-extraction",
        "library": "transformers",
        "model_type": "bert",
        "device": "cpu",
        # Both: version 0.6.0 gives the one named inter to torch's intra-operator threads.
        "inter_op_num_threads": 1,
        "intra_op_num_threads": 1,
    }
    if runtime == "onnxruntime":
        return ORTConfig(**common, export=True)
    return PyTorchConfig(**common, torch_compile=runtime == "torch.compile")


def lag1(values: list[float]) -> float | None:
    """Return the correlation of neighbouring calls: what an interval over calls leaves out."""
    if len(values) < 3:
        return None
    mean = fmean(values)
    around = [value - mean for value in values]
    total = sum(x * x for x in around)
    return sum(x * y for x, y in pairwise(around)) / total if total else None


if __name__ == "__main__":
    main()
