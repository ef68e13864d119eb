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
RUNTIMES = {"PyTorch": "eager", "TorchScript": "torchscript", "ONNX Runtime": "onnxruntime"}
PRECISIONS = {"fp32": "float32", "fp16": "float16"}
NOT_STATED = "float32"
"""Precision under which rows stand whose precision the paper does not state."""
LENGTH = 128
LENGTH_BATCH = 128
"""Batch of the panel over sequence lengths."""
UNITS = {"s": 1e9, "ms": 1e6, "percent": 0.01}
QUANTITIES = {"total_latency": "latency", "kernel_time": "kernel"}
PRINTED = "as the paper gives it"
POINT = {"precision": NOT_STATED, "batch": 1, "width": 1.0, "depth": 1.0, "input": "dense"}
Printed = tuple[dict[str, Any], str, Estimate]
"""Axes of a point, a quantity, its number."""


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


@dataclass(frozen=True, slots=True)
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
    numbers = ("memory_bandwidth_gb_per_s", "fp16_tflops")
    lines = _lines("platforms.csv")
    return tuple(Platform(line["gpu"], *(float(line[name]) for name in numbers)) for line in lines)


@cache
def models() -> dict[str, dict[str, str]]:
    """Return model → ``layers`` as its authors count them, its name ``printed`` and ``drawn``."""
    return {line["model"]: line for line in _lines("models.csv")}


@cache
def rows(study: str) -> tuple[Row, ...]:
    """Return the paper's numbers for a figure or table; empty where it gives none as numbers."""
    found: dict[tuple[tuple[str, Any], ...], dict[str, Estimate]] = defaultdict(dict)
    name = SAME.get(study, study)
    for at, quantity, number in (*_figure(name), *_table(name)):
        found[tuple(at.items())][quantity] = number
    for numbers in found.values():
        if "latency" in numbers and "kernel" in numbers:
            latency = numbers["latency"].value
            tax = latency - numbers["kernel"].value
            numbers |= {"tax": exactly(tax, PRINTED), "tax_share": exactly(tax / latency, PRINTED)}
    return tuple(Row(at=dict(at), numbers=numbers) for at, numbers in found.items())


def _figure(study: str) -> Iterator[Printed]:
    ours = {model["printed"]: name for name, model in models().items()}
    for line in _lines("figures.csv"):
        if line["source"] != study:
            continue
        at: dict[str, Any] = {
            **POINT,
            "model": ours[line["model"]],
            "runtime": RUNTIMES[line["runtime"]],
            "precision": PRECISIONS.get(line["precision"], NOT_STATED),
            "length": LENGTH if "BERT" in line["model"] or study == "figure-1" else None,
        }
        value = float(line["axis_value"])
        if line["axis"] == "batch_size":
            at |= {"batch": int(value), "panel": "batch"}
        elif line["axis"] == "sequence_length":
            at |= {"batch": LENGTH_BATCH, "length": int(value), "panel": "length"}
        else:
            yield at, "macs", exactly(value * 1e9, PRINTED)
        time_ns = float(line["milliseconds"]) * UNITS["ms"]
        yield at, QUANTITIES[line["quantity"]], exactly(time_ns, PRINTED)


def _table(study: str) -> Iterator[Printed]:
    for line in _lines("tables.csv"):
        if f"table-{line['table']}" != study:
            continue
        at = {
            **POINT,
            "model": "bert-base",
            "runtime": line["runtime"],
            "batch": int(line["batch"]),
            "length": int(line["length"]),
            "width": float(line["width"]),
        }
        yield at, line["quantity"], exactly(float(line["value"]) * UNITS[line["unit"]], PRINTED)


def _lines(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(name).splitlines()))


def _text(name: str) -> str:
    return files("frameworktax.reproduce").joinpath("numbers", name).read_text(encoding="utf-8")
