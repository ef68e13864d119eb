"""Every test run has a lock and a cache of its own: it neither waits for others nor uses theirs.

Tests that run two at a time have a lock each: what needs the processor to itself runs alone anyway.
Examples of properties are the same in every run and may take long: ``--hypothesis-profile=default``
looks for further ones.
"""

import gc
import os
import shutil
import signal
import sys
import tempfile

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]
settings.load_profile("ci")

# A shell that starts this in the background has it ignored, and so would every process begun here.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until everything is collected: it would look through each import time and again
made: list[str] = []
is_beside_others = "PYTEST_XDIST_WORKER" in os.environ
for variable, is_shared in (("FRAMEWORKTAX_RUNTIME_DIR", False), ("FRAMEWORKTAX_CACHE", True)):
    if variable not in os.environ or (is_beside_others and not is_shared):
        os.environ[variable] = tempfile.mkdtemp(prefix="frameworktax-tests-")
        made.append(os.environ[variable])
if is_beside_others:
    # A thread that spins for its next piece of work takes the processor from another test.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Let tests have Python's own collection of garbage."""
    gc.enable()


def pytest_unconfigure() -> None:
    """Remove the folders made for this run."""
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def collect_only_what_is_new():
    """Leave what is imported to no collection: each timed block makes one, of seconds otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs the command line in this process: (exit code, output, errors)."""
    from frameworktax import cli

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["frameworktax", *words])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        return leaving.value.code or 0, *capsys.readouterr()

    return run
