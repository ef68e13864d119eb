"""What the golden files hold: commands that read committed stores and files, and measure nothing.

    python tests/golden/cases.py          # write every golden file anew, from the code as it is

A change of text is a deliberate commit of these files; a change of a number is a bug.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FILES = Path(__file__).with_name("files")
PAPER = "docs/results/paper-store"
ABLATION = "docs/results/ablation/store"
ARCHITECTURES = "docs/results/architectures/store"
OPERATORS = "docs/results/operators/store"
A100, H100 = "tests/data/a100-alexnet.json", "tests/data/h100-bert-small-step.json"
CUDA_13 = "tests/data/h100-cuda-13.json.gz"
FIGURES_CSV = "tests/data/other_tools/framework_tax_figures.csv"
OPTIMUM = "tests/data/other_tools/optimum_benchmark"
PYTEST = "tests/data/other_tools/pytest_benchmark.json"

CASES: dict[str, list[str]] = {
    "report-ablation.json": ["report", ABLATION, "--json", "-"],
    "report-ablation.txt": ["report", ABLATION],
    "report-ablation.md": ["report", ABLATION, "-o", "{out}.md"],
    "report-architectures.json": ["report", ARCHITECTURES, "--json", "-"],
    "report-architectures.txt": ["report", ARCHITECTURES, "--verbose"],
    "report-architectures.md": ["report", ARCHITECTURES, "-o", "{out}.md"],
    "report-operators.json": ["report", OPERATORS, "--json", "-"],
    "report-operators.txt": ["report", OPERATORS],
    "report-operators.csv": ["report", OPERATORS, "-o", "{out}.csv"],
    "report-paper.json": ["report", PAPER, "--json", "-"],
    "report-paper.txt": ["report", PAPER],
    "report-paper.md": ["report", PAPER, "-o", "{out}.md"],
    "explain-a100.json": ["explain", A100, "--json", "-"],
    "explain-a100.txt": ["explain", A100, "--device-speed", "2", "--host-speed", "2", "--graphs"],
    "explain-h100.json": ["explain", H100, "--graphs", "--json", "-"],
    "explain-h100.txt": ["explain", H100, "--graphs"],
    "explain-cuda-13.txt": ["explain", CUDA_13, "--graphs"],
    "explain-figures.json": ["explain", FIGURES_CSV, "--json", "-"],
    "explain-figures.txt": ["explain", FIGURES_CSV],
    "explain-optimum.json": ["explain", OPTIMUM, "--json", "-"],
    "explain-pytest.json": ["explain", PYTEST, "--json", "-"],
    "explain-pytest.txt": ["explain", PYTEST],
    "explain-store.json": [
        "explain", ARCHITECTURES, "--host-speed", "1.5", "--runtime", "onnxruntime",
        "--json", "-",
    ],
    "explain-store.txt": ["explain", OPERATORS, "--host-speed", "1.5", "--runtime", "onnxruntime"],
    "compare-runtimes.json": [
        "compare", ARCHITECTURES, "--runtime", "eager=onnxruntime", "--json", "-",
    ],
    "compare-runtimes.txt": ["compare", ARCHITECTURES, "--runtime", "eager=onnxruntime"],
    "compare-runtimes.md": [
        "compare", ARCHITECTURES, "--runtime", "eager=onnxruntime", "-o", "{out}.md",
    ],
    "compare-stores.json": ["compare", OPERATORS, ABLATION, "--across", "--json", "-"],
    "compare-stores.txt": ["compare", OPERATORS, ABLATION, "--across", "--gate", "5%"],
    "reproduce.json": ["reproduce", "all", "--redraw", "--store", PAPER, "--json", "-"],
    "reproduce.txt": ["reproduce", "all", "--redraw", "--store", PAPER],
    "ablate.json": [
        "ablate", "bert-base", "--length", "16", "--redraw", "--store", ABLATION, "--json", "-",
    ],
    "ablate.txt": ["ablate", "bert-base", "--length", "16", "--redraw", "--store", ABLATION],
}  # fmt: skip
COMPRESSED = 100_000
"""Bytes above which a golden file is kept gzipped."""


def output(name: str) -> str:
    """Return what the command of a case prints, or the file it writes, with its exit code."""
    from frameworktax.cli import main

    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "out"))
        arguments = [word.replace("{out}", out) for word in CASES[name]]
        stdout = io.StringIO()
        code: object = 0
        before = dict(os.environ), sys.argv, Path.cwd()
        os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        os.chdir(REPOSITORY)
        sys.argv = ["frameworktax", *arguments]
        try:
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(io.StringIO()):
                main()
        except SystemExit as ended:
            code = ended.code
        finally:
            os.environ.clear()
            os.environ.update(before[0])
            sys.argv = before[1]
            os.chdir(before[2])
        written = "".join(p.read_text(encoding="utf-8") for p in sorted(Path(folder).glob("out.*")))
    return f"exit code {code or 0}\n{written or stdout.getvalue()}"


def golden(name: str) -> str:
    """Return the golden text of a case."""
    packed = FILES / f"{name}.gz"
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode()
    return (FILES / name).read_text(encoding="utf-8")


def write(name: str) -> None:
    """Write the golden file of a case from the code as it is; one that is the same stays."""
    text = output(name)
    FILES.mkdir(exist_ok=True)
    path, packed = FILES / name, FILES / f"{name}.gz"
    if (path.exists() or packed.exists()) and golden(name) == text:
        return
    path.unlink(missing_ok=True)
    packed.unlink(missing_ok=True)
    if len(text.encode()) > COMPRESSED:
        packed.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        write(case)
