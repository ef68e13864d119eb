"""The lock on the host: who comes second waits, and nothing stale can be left."""

import errno
import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from frameworktax.errors import UsageError
from frameworktax.host import lock
from frameworktax.host.lock import NAME, VARIABLE, host_lock, runtime_folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "run"))
    return tmp_path / "run"


def _hold(pipe) -> None:
    with host_lock(["sweep", "a b.toml"]):
        pipe.send("held")
        pipe.recv()


def _wait(pipe) -> None:
    with host_lock(["measure"], pipe.send):
        pipe.send("mine")


def start(work):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    return process, ours


def test_the_second_waits_and_says_for_whom():
    first, to_first = start(_hold)
    assert to_first.recv() == "held"
    second, to_second = start(_wait)
    text = to_second.recv()
    assert f"waiting for process {first.pid} (frameworktax sweep 'a b.toml', since" in text
    assert not to_second.poll()
    to_first.send("go")
    assert to_second.recv() == "mine"
    first.join()
    second.join()


def test_who_has_the_lock_may_have_no_command(tmp_path):
    path = tmp_path / "lock"
    for command, shown in (
        ("", "(frameworktax, since "),
        ("compare d", "(frameworktax compare d,"),
    ):
        path.write_text(json.dumps({"pid": 7, "command": command, "since": 0}))
        with path.open() as file:
            assert lock._holder(file.fileno()).startswith(f"process 7 {shown}")


def test_a_killed_holder_leaves_nothing_stale():
    first, to_first = start(_hold)
    assert to_first.recv() == "held"
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    said: list[str] = []
    with host_lock(["x"], said.append):
        pass
    assert said == []


def test_processes_that_are_started_do_not_hold_it(folder):
    with host_lock(["x"]):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    said: list[str] = []
    with host_lock(["y"], said.append):
        pass
    assert said == []
    child.communicate(b"\n")


def test_what_the_file_says_is_only_for_messages(folder):
    """Threads wait as processes do: each opens the file anew."""
    unnamed = "another measurement"
    texts = dict.fromkeys([b"", b"{", b'{"pid": "x"}', b"[1]", b"\xff"], unnamed)
    texts[b'{"pid": 1, "command": "", "since": 1e99}'] = unnamed
    texts[b'{"pid": 1, "command": "", "since": 1e17}'] = unnamed
    texts[b'{"pid": 1, "command": "a\\u001b[31m", "since": 0}'] = "(frameworktax a [31m, since"
    said = queue.SimpleQueue()

    def wait():
        with host_lock(["measure"], said.put):
            pass

    with ThreadPoolExecutor(len(texts)) as pool, host_lock(["x"]):
        for text, expected in texts.items():
            (folder / NAME).write_bytes(text)
            waiting = pool.submit(wait)
            assert expected in said.get(timeout=600)
            assert not waiting.done()


def test_the_folder_is_private(folder):
    assert runtime_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_in_its_place_is_refused(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=VARIABLE):
        runtime_folder()


def test_a_full_disk_only_hides_who_holds_it(folder, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with host_lock(["sweep"]):
        assert (folder / NAME).read_bytes() == b""
