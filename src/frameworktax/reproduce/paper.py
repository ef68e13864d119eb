"""The paper's numbers, as data that ships with the package and says where it comes from."""

from __future__ import annotations

import csv
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from frameworktax.records import Estimate
from frameworktax.reproduce.rows import Row, exactly

SAME = {"text": "figure-4"}
"""Studies without numbers of their own that speak of another's."""
MODELS = {
    "BERT-Base": "bert-base",
    "ALBERT": "albert",
    "DistilBERT": "distilbert",
    "Funnel Transformer": "funnel",
    "MobileBERT": "mobilebert",
    "SqueezeBERT": "squeezebert",
    "ResNet-50": "resnet-50",
}
RUNTIMES = {"PyTorch": "eager", "TorchScript": "torchscript", "ONNX Runtime": "onnxruntime"}
PRECISIONS = {"fp32": "float32", "fp16": "float16"}
NOT_STATED = "float32"
"""Precision under which rows stand whose precision the paper does not state."""
LENGTH = 128
LENGTH_BATCH = 128
"""Batch of the panel over sequence lengths."""
PRINTED = "as the paper gives it"


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper asserts.

    Attributes:
        where: section and figure.
        number: as the paper gives it, in words.
    """

    id: str
    where: str
    text: str
    number: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A line of table 2; ``peak_tflops`` is the peak as printed."""

    gpu: str
    bandwidth_gb_per_s: float
    peak_tflops: float


@cache
def claims() -> dict[str, Claim]:
    """Return the paper's claims by id."""
    data = tomllib.loads(_text("claims.toml"))
    return {name: Claim(id=name, **entry) for name, entry in data.items()}


@cache
def provenance() -> dict[str, Any]:
    """Return where the numbers come from."""
    return tomllib.loads(_text("provenance.toml"))


@cache
def platforms() -> tuple[Platform, ...]:
    """Return table 2."""
    return tuple(
        Platform(
            gpu=line["gpu"],
            bandwidth_gb_per_s=float(line["memory_bandwidth_gb_per_s"]),
            peak_tflops=float(line["fp16_tflops"]),
        )
        for line in _lines("platforms.csv")
    )


@cache
def layers() -> dict[str, int]:
    """Return model → layers, as the models' authors count them."""
    return {line["model"]: int(line["layers"]) for line in _lines("layers.csv")}


@cache
def rows(study: str) -> tuple[Row, ...]:
    """Return the paper's numbers for a figure or table; empty where it gives none as numbers."""
    return tuple(_figure(SAME.get(study, study)) or _table(study))


def _figure(study: str) -> list[Row]:
    found: dict[tuple[tuple[str, Any], ...], dict[str, Estimate]] = defaultdict(dict)
    for line in _lines("figures.csv"):
        if line["source"] != study:
            continue
        at: dict[str, Any] = {
            "model": MODELS[line["model"]],
            "runtime": RUNTIMES[line["runtime"]],
            "precision": PRECISIONS.get(line["precision"], NOT_STATED),
            "batch": 1,
            "length": LENGTH if "BERT" in line["model"] or line["source"] == "figure-1" else None,
            "width": 1.0,
            "depth": 1.0,
            "input": "dense",
        }
        value = float(line["axis_value"])
        numbers: dict[str, Estimate] = {}
        if line["axis"] == "batch_size":
            at |= {"batch": int(value), "panel": "batch"}
        elif line["axis"] == "sequence_length":
            at |= {"batch": LENGTH_BATCH, "length": int(value), "panel": "length"}
        else:
            numbers["macs"] = exactly(value * 1e9, PRINTED)
        name = {"total_latency": "latency", "kernel_time": "kernel"}[line["quantity"]]
        numbers[name] = exactly(float(line["milliseconds"]) * 1e6, PRINTED)
        found[tuple(at.items())] |= numbers
    return [Row(at=dict(at), numbers=_with_tax(numbers)) for at, numbers in found.items()]


def _with_tax(numbers: dict[str, Estimate]) -> dict[str, Estimate]:
    latency, kernel = numbers.get("latency"), numbers.get("kernel")
    if latency is None or kernel is None:
        return numbers
    tax = latency.value - kernel.value
    return {
        **numbers,
        "tax": exactly(tax, PRINTED),
        "tax_share": exactly(tax / latency.value, PRINTED),
    }


def _table(study: str) -> Iterator[Row]:
    found: dict[tuple[tuple[str, Any], ...], dict[str, Estimate]] = defaultdict(dict)
    for line in _lines("tables.csv"):
        if f"table-{line['table']}" == study:
            at: dict[str, Any] = {
                "model": "bert-base",
                "runtime": line["runtime"],
                "precision": NOT_STATED,
                "batch": int(line["batch"]),
                "length": int(line["length"]),
                "width": float(line["width"]),
                "depth": 1.0,
                "input": "dense",
            }
            scale = {"s": 1e9, "ms": 1e6, "percent": 0.01}[line["unit"]]
            value = float(line["value"]) * scale
            found[tuple(at.items())][line["quantity"]] = exactly(value, PRINTED)
    for key, numbers in found.items():
        yield Row(at=dict(key), numbers=numbers)


def _lines(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(name).splitlines()))


def _text(name: str) -> str:
    return files("frameworktax.reproduce").joinpath("numbers", name).read_text(encoding="utf-8")
