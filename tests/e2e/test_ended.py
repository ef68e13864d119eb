"""A measuring command that is ended from outside leaves a whole store and nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from frameworktax import store
from frameworktax.measure import orphans
from frameworktax.records import Block
from frameworktax.store import upkeep


def begin(folder: Path) -> tuple[subprocess.Popen, Path]:
    """Start to measure, every warning an error; return it and its cache once a block is stored."""
    cache = folder / "cache"
    command = [sys.executable, "-W", "error", "-m", "frameworktax", "measure", "mlp"]
    options = ["--runtimes", "eager", "--batch", "1", "--time-budget", "1800s", "--until", "0.01%"]
    running = subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env={**os.environ, "FRAMEWORKTAX_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shards = folder / "frameworktax-results"
    while running.poll() is None:
        if list(shards.glob("*.jsonl")) and any(
            isinstance(record, Block) for record in store.read(shards)[0]
        ):
            return running, cache
        time.sleep(0.05)
    raise AssertionError(running.communicate()[1])


def test_ended_by_a_scheduler(tmp_path):
    running, cache = begin(tmp_path)
    assert list(cache.glob(f"{orphans.NAME}*"))
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate()
    assert running.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err and "Warning" not in err
    assert err.splitlines()[-1].startswith("frameworktax: ended by SIGTERM; what was measured")
    assert list(cache.glob(f"{orphans.NAME}*")) == []
    assert upkeep.check(tmp_path / "frameworktax-results").damage == ()


def test_killed(tmp_path):
    running, cache = begin(tmp_path)
    running.kill()
    running.communicate()
    assert upkeep.check(tmp_path / "frameworktax-results").damage == ()
    assert list(cache.glob(f"{orphans.NAME}*"))
    while any(one.kept for one in orphans._all(cache)):  # they die with their parent
        time.sleep(0.05)
    orphans.end_of_dead(cache)
    assert list(cache.glob(f"{orphans.NAME}*")) == []
