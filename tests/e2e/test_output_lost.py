"""Output that nobody reads, or that has no room: one line at most, and its exit code."""

import os
import subprocess
import sys

import pytest

COMMANDS = [["list", "models"], ["list", "models", "--json"]]


def run(words, stdout) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "frameworktax", *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_reader_that_left_is_no_fault_and_no_success(words):
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "w") as closed:
        done = run(words, closed)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_below_the_output_is_one_line(words):
    with open("/dev/full", "w") as full:
        done = run(words, full)
    assert done.returncode == 2
    said = "frameworktax: cannot write the output: No space left on device; free space"
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [
        (">&-", "run ok.py", 0),
        ("2>&-", "run ok.py", 0),
        (">&- 2>&-", "run ok.py", 0),
        ("2>&-", "report absent", 2),
        (">&-", "list models", 0),
    ],
)
def test_a_closed_output_is_no_fault_and_its_words_go_nowhere_else(tmp_path, closed, words, code):
    (tmp_path / "ok.py").write_text("")
    command = f"{sys.executable} -m frameworktax {words} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (code, b"")


def test_a_study_that_has_no_room_is_no_empty_file(tmp_path):
    command = f"ulimit -f 0; {sys.executable} -m frameworktax init"
    done = subprocess.run(command, shell=True, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_early_interrupt_is_said():
    """Ctrl-C while a command still imports what it needs."""
    early = (
        "import sys\n"
        "from frameworktax.cli import app, main\n"
        "@app.command()\n"
        "def slow() -> None:\n"
        "    raise KeyboardInterrupt\n"
        "sys.argv = ['frameworktax', 'slow']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", early], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert done.stderr.strip() == "frameworktax: interrupted"
