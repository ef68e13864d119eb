"""The reference of the public Python names: where mkdocstrings is to put what docstrings say."""

from __future__ import annotations

from importlib.util import find_spec

PYTHON = """# Python

`import frameworktax as ft`. Nothing heavy is imported until it is used. Words and their order are
those of the command line; [how to use it](../python.md) has examples.
"""
RECORDS = """# Records

The nouns that results are made of: frozen, raw where they are stored, derived where they are shown.
"""
BEHIND = {
    "BlockTax": "frameworktax.block.BlockTax",
    "Watch": "frameworktax.integrations.watch.Watch",
    "SweepResults": "frameworktax.sweep.run.SweepResults",
    "WhatIf": "frameworktax.analysis.whatif.formulas.WhatIf",
    "Comparison": "frameworktax.analysis.compare.comparison.Comparison",
    "Change": "frameworktax.analysis.compare.comparison.Change",
}
"""What the public functions take and return that has no public name of its own."""


def _place(name: str) -> str:
    """Return where mkdocstrings finds a public name; some packages are named like a function."""
    import frameworktax

    if find_spec(f"frameworktax.{name}") is None:
        return f"frameworktax.{name}"
    return f"{getattr(frameworktax, name).__module__}.{name}"


def pages() -> dict[str, str]:
    """Return the pages under their names."""
    import frameworktax

    names = sorted(frameworktax.__all__, key=lambda name: (name[0].isupper(), name))
    public = [_place(name) for name in names if name != "__version__"]
    parts = [PYTHON, *(f"::: {name}" for name in (*public, *BEHIND.values()))]
    records = [RECORDS, "::: frameworktax.records\n    options:\n      show_root_heading: false"]
    return {
        "reference/python.md": "\n\n".join(parts) + "\n",
        "reference/records.md": "\n\n".join(records) + "\n",
    }
