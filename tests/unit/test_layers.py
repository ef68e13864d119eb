"""The contracts of .importlinter cover every package of the project and every engine."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import frameworktax
from frameworktax import runtimes

ROOT = Path(__file__).parents[2]
PACKAGE = Path(frameworktax.__file__).parent
ABOVE_ALL = {"__init__", "__main__", "testing"}
"""Modules that may import any other: entry points, and fakes for tests."""


def contract(name: str) -> dict[str, set[str]]:
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter")
    section = parser[f"importlinter:contract:{name}"]
    return {key: set(value.replace("|", " ").split()) for key, value in section.items()}


def top(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("frameworktax.")}


def packages() -> set[str]:
    found = {p.stem for p in PACKAGE.glob("*.py")} - ABOVE_ALL
    return found | {p.parent.name for p in PACKAGE.glob("*/__init__.py")}


def test_every_package_has_a_layer():
    assert top(contract("layers")["layers"]) == packages()


def test_engines_are_forbidden_wherever_they_are_not_at_home():
    engines = contract("engines")
    assert top(engines["source_modules"]) == packages() - {
        "attribution",
        "models",
        "runtimes",
        "version",
    }


def test_every_engine_of_a_runtime_is_forbidden():
    needed = {
        package.partition(".")[0]
        for name in runtimes.BUILT_IN
        for package in runtimes.get(name).packages
    }
    assert needed <= contract("engines")["forbidden_modules"]


def test_at_most_a_dozen_modules_lie_loose_at_the_top():
    assert len([p for p in PACKAGE.glob("*.py") if "__" not in p.stem]) <= 12
