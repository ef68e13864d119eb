"""The tables of runtimes and models in the documentation, made of the registries.

    python benchmarks/tables.py        # or: make tables

Replaces what stands between two comments in docs/runtimes.md and docs/models.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from frameworktax import models, runtimes
from frameworktax.models import Entry
from frameworktax.records import PRECISIONS
from frameworktax.runtimes.base import Runtime

BEGIN, END = "<!-- begin table: make tables -->", "<!-- end table -->"
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def main() -> int:
    for page, table in (("runtimes", runtimes_table()), ("models", models_table())):
        path = ROOT / "docs" / f"{page}.md"
        path.write_text(replaced(path.read_text(encoding="utf-8"), table), encoding="utf-8")
    return 0


def replaced(text: str, table: str) -> str:
    """Return a page with its table replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def runtimes_table() -> str:
    tested = pinned()
    rows = [row_of(runtimes.get(name), tested) for name in runtimes.BUILT_IN]
    return markdown(["name", "paradigm", "on", "precisions", "install", "tested", "options"], rows)


def row_of(runtime: Runtime, tested: dict[str, str]) -> list[str]:
    install = f"`frameworktax[{runtime.extra}]`" if runtime.extra else "–"
    named = sorted(name for name in runtime.distributions() - {"torch"} if name in tested)
    versions = ", ".join(f"{name} {tested[name]}" for name in named)
    is_all = set(runtime.precisions) == set(PRECISIONS)
    precisions = "all" if is_all else " ".join(SHORT.get(p, p) for p in runtime.precisions)
    options = " ".join(f"`@{option}`" for option in runtime.options)
    return [
        f"`{runtime.name}`", runtime.paradigm, " ".join(runtime.devices), precisions, install,
        versions or "–", options or "–",
    ]  # fmt: skip


def pinned() -> dict[str, str]:
    """Return package → version of what the tests run with."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([\w.-]+)==([\w.+-]+)", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def models_table() -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for name, entry in models.BUILT_IN.items():
        groups.setdefault((entry.family, takes(entry)), []).append(name)
    order = list(dict.fromkeys(entry.family for entry in models.BUILT_IN.values()))
    rows = [
        [family, " ".join(f"`{name}`" for name in names), what]
        for (family, what), names in sorted(groups.items(), key=lambda row: order.index(row[0][0]))
    ]
    return markdown(["family", "names", "takes"], rows)


def takes(entry: Entry) -> str:
    found = []
    if entry.has_length:
        found.append(f"`--length` (default: {entry.default_length})")
    if entry.has_image_size:
        found.append(f"`--image-size` (default: {entry.default_image_size})")
    if entry.generates:
        found.append("`--phase generate`")
    return ", ".join(found) or "–"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
