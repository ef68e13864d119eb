"""The paper's numbers, as data that ships with the package and says where it comes from."""

from __future__ import annotations

import csv
import re
import tomllib
from collections import defaultdict
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


@cache
def claims() -> dict[str, dict[str, str]]:
    """Return id → what the paper asserts: ``where``, ``text``, ``number`` as it words it."""
    return tomllib.loads(_text("claims.toml"))


@cache
def provenance() -> dict[str, Any]:
    """Return where the numbers come from."""
    return tomllib.loads(_text("provenance.toml"))


@cache
def platforms() -> list[dict[str, str]]:
    """Return table 2 as printed: ``gpu``, ``host_cpu``, ``fp16_tflops`` (the peak), …."""
    return _lines("platforms.csv")


def peak_tflops(name: str) -> float | None:
    """Return the peak in table 2 of a GPU by the name that ``nvidia-smi`` gives; None for others.

    The table writes ``2080Ti`` and ``RTX-8000`` for *RTX 2080 Ti* and *Quadro RTX 8000*.
    """
    for platform in platforms():
        part = re.sub(r"(?<=\d)(?=Ti)|-", "[ -]?", platform["gpu"].split()[-1])
        if re.search(rf"\b{part}\b(?!.*\b(Ti|Laptop|MIG)\b)", name):
            return float(platform["fp16_tflops"])
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
