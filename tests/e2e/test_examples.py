"""The examples are true: their commands run in a copy of their folder, their numbers were measured.

Sessions measure nothing here (`tests/data/fake_measuring.py`). What an example quotes of a real
one's output stands in ``output.txt`` beside it, as it was printed.
"""

import functools
import re
import shutil
from pathlib import Path

import fake_measuring
import markdown_blocks
import pytest

ROOT = Path(__file__).parents[2] / "examples"
PAGES = sorted(ROOT.glob("*/README.md"))
BLOCKS = [block for page in PAGES for block in markdown_blocks.blocks(page)]
RUN = [block for block in BLOCKS if block.language == "bash"]
QUOTED = [block for block in BLOCKS if block.language == "text"]
LEFT_OUT = "…"
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def name(block) -> str:
    return f"{block.document.parent.name}-{block.line}"


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return a copy of an example's folder."""

    @functools.cache
    def copied(page: Path) -> Path:
        folder = tmp_path_factory.mktemp(page.parent.name) / page.parent.name
        return shutil.copytree(page.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))

    return copied


@pytest.mark.parametrize("block", RUN, ids=name)
def test_example(block, folder_of):
    if block.not_run is not None:
        pytest.skip(f"not run: {block.not_run}")
    words = ["bash", "-euo", "pipefail", "-c", block.text]
    ran = fake_measuring.run(words, folder_of(block.document))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_every_case_is_in_the_list():
    listed = re.findall(r"\]\(([\w-]+)/README\.md\)", (ROOT / "README.md").read_text())
    assert listed == list(dict.fromkeys(listed))
    assert sorted(listed) == [page.parent.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_file_is_named(page):
    text = page.read_text()
    paths = [p.relative_to(page.parent) for p in page.parent.rglob("*") if p.is_file()]
    for path in paths:
        if path.name != "README.md" and "__pycache__" not in path.parts:
            assert path.name in text or f"{path.parts[0]}/" in text, path


# --- what was measured --------------------------------------------------------------------------


def output(page: Path) -> str:
    return (page.parent / "output.txt").read_text()


@pytest.mark.parametrize("block", QUOTED, ids=name)
def test_quotes_stand_in_the_output(block):
    lines = [line.rstrip() for line in block.text.splitlines()]
    printed = {line.rstrip() for line in output(block.document).splitlines()}
    assert [line for line in lines if line != LEFT_OUT and line not in printed] == []


@pytest.mark.parametrize("case", ["two-machines", "vision-batch"])
def test_outputs_of_stores_that_are_here_are_those_of_today(case, tmp_path):
    page = ROOT / case / "README.md"
    folder = shutil.copytree(page.parent, tmp_path / "examples" / case)
    (tmp_path / "docs").symlink_to(ROOT.parent / "docs")
    for part in re.split(r"^\$ ", output(page), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        ran = fake_measuring.run(["bash", "-c", command], folder)
        assert NUMBER.findall(ran.stdout + ran.stderr) == NUMBER.findall(shown), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_numbers_of_the_decision_were_measured(page):
    """A number with a unit is one that was printed, or one of the question's own in a command."""
    known = output(page) + "".join(b.text for b in markdown_blocks.blocks(page))
    known += "".join(p.read_text() for p in page.parent.glob("*.toml"))
    quoted = re.findall(r"(\d+(?:\.\d+)?) (?:×|ms|µs|%)", markdown_blocks.prose(page))
    assert quoted, "a decision has numbers"
    numbers = set(re.findall(r"(?<![\d.])\d+(?:\.\d+)?(?!\d)", known))
    assert [number for number in quoted if number not in numbers] == []
