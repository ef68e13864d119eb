"""The cache: this user's alone, by last use, and never what a store from elsewhere brings along."""

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from frameworktax import store
from frameworktax.errors import UsageError
from frameworktax.host import cache
from frameworktax.host.cache import (
    VARIABLE,
    alone,
    cache_folder,
    entries,
    holding,
    is_own,
    keep_from_pruning,
    own_entry,
    private_file,
    prune_cache,
    temporary_folder,
)
from frameworktax.measure import orphans
from frameworktax.measure.known import KnownModels
from frameworktax.measure.plan import Plan
from frameworktax.measure.series import series_of
from frameworktax.measure.session import MeasuringSession
from frameworktax.records import Point, Workload
from frameworktax.runtimes.torch_common import use_directory


def prepared(folder: Path, entry: str, size: int, used: float) -> None:
    path = folder / entry / "artifact"
    path.mkdir(parents=True)
    (path / "model").write_bytes(b"x" * size)
    for one in (path / "model", path, path.parent):
        os.utime(one, (used, used))


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not to be used, says its specification
    assert cache_folder() == tmp_path / ".cache" / "frameworktax"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "frameworktax"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named" / "here"))
    assert cache_folder() == tmp_path / "named" / "here"
    assert cache_folder().stat().st_mode & 0o777 == 0o700
    assert Plan(points=()).folder == tmp_path / "named" / "here"


def test_what_is_not_this_users_alone_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=rf"cache is not .*{VARIABLE}"):
        cache_folder()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").chmod(0o770)
    with pytest.raises(UsageError, match=rf"others .*remove it.*{VARIABLE}"):
        cache_folder()
    (tmp_path / "elsewhere").chmod(0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(UsageError, match=rf"elsewhere is not .*{VARIABLE}"):
        cache_folder()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=rf"Not a directory; .*{VARIABLE}"):
        cache_folder()


def test_a_folder_that_others_may_replace_is_refused(tmp_path, monkeypatch):
    above = tmp_path / "above"
    above.mkdir()
    monkeypatch.setenv(VARIABLE, str(above / "cache"))
    above.chmod(0o777)
    with pytest.raises(UsageError, match=rf"{above} is not .*{VARIABLE}"):
        cache_folder()
    above.chmod(0o1777)  # as /tmp: nobody renames what is another's
    assert cache_folder() == above / "cache"


def foreign_file(entry: Path) -> None:
    (entry / "artifact" / "model").chmod(0o666)


def foreign_folder(entry: Path) -> None:
    (entry / "artifact").chmod(0o770)


def foreign_link(entry: Path) -> None:
    (entry / "link").symlink_to("artifact/model")


def linked_entry(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    entry.symlink_to("elsewhere")


@pytest.mark.parametrize("change", [foreign_file, foreign_folder, foreign_link, linked_entry])
def test_an_entry_that_another_could_have_written_is_removed(tmp_path, change):
    prepared(tmp_path, "entry", 1, 1)
    assert own_entry(tmp_path / "entry").exists()
    change(tmp_path / "entry")
    assert not own_entry(tmp_path / "entry").exists()


def test_an_entry_of_another_user_is_removed(tmp_path, monkeypatch):
    prepared(tmp_path, "entry", 1, 1)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert not is_own(tmp_path / "entry")
    assert not own_entry(tmp_path / "entry").exists()


def test_no_session_loads_what_another_could_have_written(tmp_path):
    point = Point(workload=Workload(model="mlp", batch=1), runtime="torchscript")
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    known = KnownModels(cache)
    opens = (
        lambda: series_of([point], Plan(points=(), folder=cache), scratch)[0].folder,
        lambda: known._folder(point),
    )
    for folder in opens:
        folder().mkdir(mode=0o700, parents=True)
        planted = folder() / "planted.py"
        planted.touch(mode=0o600)
        assert folder().exists()
        planted.chmod(0o666)
        assert not folder().exists()


def test_what_is_kept_is_closed_to_others_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        entry = tmp_path / "entry"
        with alone(entry, 1, threading.Event()), private_file(entry / "file") as partial:
            partial.write_text("x")
    finally:
        os.umask(before)
    assert is_own(tmp_path / "entry")


def test_headers_of_inductor_lie_in_it_wherever_that_was_imported(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path / "cache"))
    for name in ("CXX", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # given back at the end
    imported = SimpleNamespace(_HEADER_DIR="/tmp/torchinductor_me/precompiled_headers")
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", imported)
    for _ in range(2):
        use_directory(tmp_path / "made", in_cpp=False)
        headers = tmp_path / "cache/inductor-common/torchinductor_me/precompiled_headers"
        assert str(headers) == imported._HEADER_DIR
        assert str(headers / "locks") == imported._HEADER_LOCK_DIR


def test_what_a_dead_session_left_is_removed_and_a_living_ones_is_not(tmp_path):
    dead, alive = tmp_path / "scratch-dead", tmp_path / "scratch-alive"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "file").write_text("x")
    with holding(alive):
        orphans.end_of_dead(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == ["scratch-alive"]
        assert (alive / "file").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_of_a_killed_command_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, other, named = (tmp_path / name for name in (f"x-{'0d' * 8}", "y-dead", "x-results"))
    for folder in (dead, other, named):
        folder.mkdir()
        (folder / "file").write_text("x")
    with temporary_folder("x-") as first, temporary_folder("x-") as second:
        assert {*tmp_path.iterdir()} == {first, second, other, named}
        assert first.stat().st_mode & 0o077 == 0
    assert {*tmp_path.iterdir()} == {other, named}


def test_it_loses_what_was_not_used_for_longest(tmp_path):
    for entry, used in (("new", 300), ("old", 100), ("middle", 200)):
        prepared(tmp_path, entry, 100, used)
    assert [(e.path.name, e.bytes) for e in entries(tmp_path)] == [
        ("old", 100),
        ("middle", 100),
        ("new", 100),
    ]
    assert prune_cache(tmp_path, 300) == []
    assert [e.path.name for e in prune_cache(tmp_path, 150, dry_run=True)] == ["old", "middle"]
    assert len(entries(tmp_path)) == 3
    assert [e.path.name for e in prune_cache(tmp_path, 250)] == ["old"]
    assert [e.path.name for e in entries(tmp_path)] == ["middle", "new"]


def test_links_are_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"x" * 1000)
    folder = tmp_path / "cache"
    prepared(folder, "model", 10, 100)
    (folder / "link").symlink_to(precious)
    (folder / "model" / "link").symlink_to(precious)
    prune_cache(folder, 0)
    assert entries(folder) == []
    assert (precious / "file").stat().st_size == 1000


def test_what_another_program_is_writing_ends_no_pruning(tmp_path, monkeypatch):
    """A partial file gets its name between the list of a folder and the look at each in it."""
    prepared(tmp_path, "model", 10, 100)
    for name in ("iterdir", "rglob"):
        real = getattr(Path, name)

        def and_a_partial(path, *pattern, real=real):
            return [*real(path, *pattern), path / ".gone-1.partial"]

        monkeypatch.setattr(Path, name, and_a_partial)
    assert [(e.path.name, e.bytes) for e in entries(tmp_path)] == [("model", 10)]
    assert [e.path.name for e in prune_cache(tmp_path, 0, dry_run=True)] == ["model"]


def test_a_running_session_keeps_it(tmp_path):
    prepared(tmp_path, "model", 10, 100)
    refused = pytest.raises(UsageError, match="a session is running")
    with keep_from_pruning(tmp_path), keep_from_pruning(tmp_path), refused:
        prune_cache(tmp_path, 0)
    assert [e.path.name for e in prune_cache(tmp_path, 0)] == ["model"]


def test_a_session_uses_nothing_that_lies_in_its_store(tmp_path, monkeypatch):
    point = Point(workload=Workload(model="mlp", batch=1), runtime="torchscript")
    foreign = tmp_path / "foreign"
    with store.Writer(foreign, "session") as writer:
        session = MeasuringSession(Plan(points=(point,)), writer)
        folders = [series.folder for series in session._series] + [session._scratch]
        assert all(cache_folder() in folder.parents for folder in folders)
        monkeypatch.setattr(session, "_measure", lambda: None)
        session.run()
    assert [p.name for p in foreign.iterdir()] == ["session.jsonl"]


def test_a_session_leaves_the_cache_within_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT_BYTES", 150)
    point = Point(workload=Workload(model="mlp", batch=1), runtime="null")
    folder = tmp_path / "cache"
    for entry, used in (("new", 300), ("old", 100)):
        prepared(folder, entry, 100, used)
    with store.Writer(tmp_path / "store", "session") as writer:
        session = MeasuringSession(Plan(points=(point,), folder=folder), writer)
        monkeypatch.setattr(session, "_measure", lambda: None)
        session.run()
    assert [e.path.name for e in entries(folder)] == ["new"]


def test_a_folder_that_is_removed_before_it_is_held_is_made_again(tmp_path, monkeypatch):
    locked, folder, calls = cache.locked, tmp_path / "run", []

    def removed_first(path, how):
        calls.append(path)
        if len(calls) == 1:
            path.rmdir()
        return locked(path, how)

    monkeypatch.setattr(cache, "locked", removed_first)
    with holding(folder):
        assert folder.is_dir()
    assert len(calls) == 2
