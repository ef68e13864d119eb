"""Processes that left the group of their measuring process: found by their TMPDIR, and ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworktax import store
from frameworktax.errors import UsageError
from frameworktax.host.cache import prune_cache
from frameworktax.measure import orphans
from frameworktax.measure.plan import Plan
from frameworktax.measure.session import MeasuringSession
from frameworktax.records import Point, Workload


def begin(folder, *words: str, renames: str = "") -> subprocess.Popen:
    """Start a sleeper in a session of its own, called as the words say."""
    waits = f"{renames}import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", waits, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    child.stdout.readline()
    return child


def ends_by_itself(child: subprocess.Popen) -> bool:
    """Let it end; return whether nobody else had ended it."""
    child.stdin.close()
    return child.wait() == 0


def test_what_left_its_group_is_found_and_ended(tmp_path):
    mine, other = tmp_path / "scratch-a", tmp_path / "scratch-b"
    child, elsewhere = begin(mine, "a-daemon"), begin(other)
    (found,) = orphans.find(mine)
    assert found.number == child.pid and found.command.startswith(sys.executable)
    orphans.end(mine)
    assert child.wait() == -9
    assert ends_by_itself(elsewhere)


def test_a_process_may_be_called_anything(tmp_path):
    mine = tmp_path / "scratch-a"
    renames = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'gr\\xc3) Z 1'); "
    child = begin(mine, renames=renames)
    try:
        assert [one.number for one in orphans.find(mine)] == [child.pid]
    finally:
        assert ends_by_itself(child)


def test_a_measuring_process_and_its_group_are_kept(tmp_path):
    mine = tmp_path / "scratch-a"
    worker, daemon = begin(mine, "frameworktax.measure.worker"), begin(mine)
    assert [one.number for one in orphans.find(mine)] == [daemon.pid]
    orphans.end_of_dead(tmp_path)  # its session lives
    assert ends_by_itself(worker)
    assert daemon.poll() is None
    orphans.end_of_dead(tmp_path)
    assert daemon.wait() == -9


def test_other_folders_are_no_sessions(tmp_path):
    child = begin(tmp_path / "mine")
    orphans.end_of_dead(tmp_path)
    assert ends_by_itself(child)


HOLDS = """
import signal, sys
from pathlib import Path
from frameworktax.measure import orphans
with orphans.scratch(Path(sys.argv[1])) as folder:
    (folder / "live.pkl").touch()
    print(folder, flush=True)
    signal.pause()
"""


def test_a_folder_of_one_who_was_killed_is_removed_by_the_next_session(tmp_path):
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        made = Path(child.stdout.readline().strip())
        orphans.end_of_dead(tmp_path)
        assert list(tmp_path.iterdir()) == [made]  # its maker lives
        assert list(made.iterdir()) == [made / "live.pkl"]
        with pytest.raises(UsageError):
            prune_cache(tmp_path, 0)
        child.kill()
    assert made.exists()
    orphans.end_of_dead(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_temporary_files_goes_with_what_runs_in_it(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "real")  # as home folders are on clusters
    with orphans.scratch(tmp_path / "cache") as folder:
        daemon = begin(folder)
    assert daemon.wait() == -9
    assert list((tmp_path / "real").iterdir()) == []


def test_a_session_with_a_cache_behind_a_link_ends_what_left_its_group(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "real")
    plan = Plan(
        points=(Point(workload=Workload(model="mlp"), runtime="null"),), folder=tmp_path / "cache"
    )
    with store.Writer(tmp_path / "store", "s") as writer:
        folder = MeasuringSession(plan, writer)._bench.scratch  # the TMPDIR of its processes
    daemon = begin(folder)
    assert [one.number for one in orphans.find(folder)] == [daemon.pid]
    orphans.end_of_dead(tmp_path / "cache")
    assert daemon.wait() == -9
