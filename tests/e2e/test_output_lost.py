"""Output that nobody reads, or that has no room: one line at most, and its exit code."""

import os
import subprocess
import sys

import pytest

COMMANDS = [["schema"], ["list", "models"], ["list", "models", "--json"]]


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
