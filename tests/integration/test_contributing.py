"""CONTRIBUTING's samples, each in one file and one entry: a copy of the tree passes its checks.

The files and entries are taken from the document and put where it says. Then ruff, mypy, the import
contracts and the contract tests run on the copy, with this interpreter.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import markdown_blocks
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "CONTRIBUTING.md"
COPIED = (
    ".importlinter", "pyproject.toml", "constraints.txt", "benchmarks/tables.py",
    "docs/runtimes.md", "docs/models.md", "tests/unit/test_registries.py",
    "tests/integration/test_models_counts.py",
    "tests/unit/test_versions.py", "tests/integration/test_models_families.py",
    "tests/integration/test_runtimes.py",
)  # fmt: skip
SAMPLES = {
    "example-runtime": ("example_plugin/runtime.py", "runtimes/example.py"),
    "example-model": ("example_plugin/model.py", "models/example.py"),
}
"""Name → file in the document, its place in the package."""
REGISTRIES = ("runtimes/__init__.py", "models/models.toml")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    source = folder / "src" / "frameworktax"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "frameworktax", source, ignore=ignored)
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    blocks = markdown_blocks.blocks(DOCUMENT)
    for written, place in SAMPLES.values():
        (sample,) = [block.text for block in blocks if block.file == written]
        (source / place).write_text(sample)
    lines, table = (source / registry for registry in REGISTRIES)
    (line,) = [block.text for block in blocks if block.text.startswith('"example-runtime":')]
    head, begin, rest = lines.read_text().partition("\nBUILT_IN: dict")
    entries, end, tail = rest.partition("\n}\n")
    assert begin and end
    lines.write_text(f"{head}{begin}{entries}\n    {line.strip()}{end}{tail}")
    (entry,) = [block.text for block in blocks if block.file == "models.toml"]
    table.write_text(f"{table.read_text()}\n{entry}")
    run(folder, "benchmarks.tables")
    return folder


def run(tree: Path, *words: str) -> str:
    """Run a module in the copy; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_ruff(tree):
    pytest.importorskip("ruff")
    run(tree, "ruff", "check", "--no-cache", ".")
    run(tree, "ruff", "format", "--no-cache", "--check", ".")


def test_types(tree):
    """With what mypy remembers of the tree, where it was checked before: it goes by contents."""
    pytest.importorskip("mypy")
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", tree / ".mypy_cache")
    places = [place for _, place in SAMPLES.values()]
    files = [f"src/frameworktax/{place}" for place in (*places, REGISTRIES[0])]
    run(tree, "mypy", *files)


def test_imports(tree):
    pytest.importorskip("importlinter")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    (tree / "lint.py").write_text(code)
    run(tree, "lint")
    (tree / "lint.py").unlink()


def test_the_documentation_follows(tree):
    for page, name in (("runtimes.md", "example-runtime"), ("models.md", "example-model")):
        before, after = (
            set((root / "docs" / page).read_text().splitlines()) for root in (ROOT, tree)
        )
        (row,) = after - before
        assert f"`{name}`" in row


def test_contracts(tree):
    pytest.importorskip("torch")
    tests = (
        "tests/unit/test_registries.py",
        "tests/unit/test_versions.py::test_what_a_class_names_is_listed",
        "tests/integration/test_models_families.py::test_family[example-model]",
        "tests/integration/test_models_counts.py::test_every_name_has_a_count",
        "tests/integration/test_models_counts.py::test_counted_by_hand[example-model]",
        "tests/integration/test_runtimes.py::"
        "test_in_process_runtimes_agree_with_eager[example-runtime-mlp]",
    )
    run(tree, "pytest", "-q", "-p", "no:cacheprovider", *tests)
