"""The paper's numbers, as data that ships with the package and says where it comes from."""

from __future__ import annotations

import csv
import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from frameworktax.analysis.estimates import exactly
from frameworktax.records import Estimate
from frameworktax.reproduce.rows import Row

SAME = {"text": "figure-4"}
"""Studies without numbers of their own that speak of another's."""
NOT_STATED = "float32"
"""Precision under which rows stand whose precision the paper does not state."""
UNITS = {"s": 1e9, "ms": 1e6, "giga": 1e9, "percent": 0.01}
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


@dataclass(frozen=True, slots=True)
class Platform:
    """A line of table 2; ``peak_tflops`` is the peak as printed."""

    gpu: str
    host: str
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
    return tuple(
        Platform(line["gpu"], line["host_cpu"], *(float(line[name]) for name in numbers))
        for line in lines
    )


def platform_of(name: str) -> Platform | None:
    """Return the line of table 2 for a GPU by the name that ``nvidia-smi`` gives; None for others.

    The table writes ``2080Ti`` and ``RTX-8000`` for *RTX 2080 Ti* and *Quadro RTX 8000*.
    """
    for platform in platforms():
        part = re.sub(r"(?<=\d)(?=Ti)|-", "[ -]?", platform.gpu.split()[-1])
        if re.search(rf"\b{part}\b(?!.*\b(Ti|Laptop|MIG)\b)", name):
            return platform
    return None


@cache
def models() -> dict[str, dict[str, str]]:
    """Return model → ``layers`` as its authors count them, its name as ``drawn``."""
    return {line["model"]: line for line in _lines("models.csv")}


@cache
def rows(study: str) -> tuple[Row, ...]:
    """Return the paper's numbers for a figure or table; empty where it gives none as numbers."""
    found: dict[tuple[tuple[str, Any], ...], dict[str, Estimate]] = defaultdict(dict)
    for line in _lines("points.csv"):
        if line["study"] == SAME.get(study, study):
            number = float(line["value"]) * UNITS[line["unit"]]
            found[tuple(_axes(line).items())][line["quantity"]] = exactly(number, PRINTED)
    for numbers in found.values():
        if "latency" in numbers and "kernel" in numbers:
            latency = numbers["latency"].value
            tax = latency - numbers["kernel"].value
            numbers |= {"tax": exactly(tax, PRINTED), "tax_share": exactly(tax / latency, PRINTED)}
    return tuple(Row(at=dict(at), numbers=numbers) for at, numbers in found.items())


def _axes(line: dict[str, str]) -> dict[str, Any]:
    at = {
        "model": line["model"],
        "runtime": line["runtime"],
        "precision": line["precision"] or NOT_STATED,
        "batch": int(line["batch"]),
        "length": int(line["length"]) if line["length"] else None,
        "width": float(line["width"]),
        "depth": 1.0,
        "input": "dense",
    }
    return {**at, "panel": line["panel"]} if line["panel"] else at


def _lines(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(name).splitlines()))


def _text(name: str) -> str:
    return files("frameworktax.reproduce").joinpath("numbers", name).read_text(encoding="utf-8")
