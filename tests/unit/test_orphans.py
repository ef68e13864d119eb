"""Processes that left the group of their measuring process: found by their TMPDIR, and ended."""

import os
import subprocess
import sys

from frameworktax.measure import orphans


def begin(folder, *words: str) -> subprocess.Popen:
    """Start a sleeper in a session of its own, called as the words say."""
    waits = "import sys; print(flush=True); sys.stdin.read()"
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
