"""Attaching, with a fake /proc and scripted events: refusals, shares, and what is said of them."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from rich.console import Console

from frameworktax.attribution import perf_event, py_spy
from frameworktax.attribution.perf_event import RefusedError, refusal
from frameworktax.attribution.symbols import KERNEL, Leaf
from frameworktax.attribution.threads import Events
from frameworktax.cli import progress, run
from frameworktax.errors import NothingMeasuredError, UsageError
from frameworktax.host.machine import read
from frameworktax.programs import attach, document, target
from frameworktax.programs.attach import Observation, Seen, tax_share
from frameworktax.programs.blocks import collapsed, program_blocks, symbol_table
from frameworktax.report import json_document
from frameworktax.report.blocks import Items, Table

PID = 1 << 26  # above any pid
KERNEL_CODE, ELSEWHERE = 0x1800, 0x9000
MAPS = "1000-2000 r-xp 00000000 00:00 0\n3000-4000 r-xp 00000000 08:01 7 /opt/{}\n"


class FakeEvents(Events):
    """Threads that give at each reading three samples in a kernel and one elsewhere."""

    kernel = True
    refuses = 0
    has_processors = False

    def __init__(self, period_ns, *, processors=False):
        if processors and not self.has_processors:
            raise RefusedError(errno.EACCES, "no privileges")
        super().__init__(period_ns)
        self.ran = {}

    def open(self, samples):
        thread = samples.thread
        if self.refuses:
            raise RefusedError(self.refuses, refusal(self.refuses, self.root, thread))
        self.sees_kernel = self.kernel
        self.threads[thread], self.ran[thread] = samples, 0

    def read(self):
        for thread, samples in self.threads.items():
            samples.user.extend([KERNEL_CODE] * 3 + [ELSEWHERE])
            samples.system += self.kernel
            self.ran[thread] += 6 * self.period_ns

    def cpu_ns(self, thread):
        return self.ran[thread]

    def close(self, thread):
        self.threads.pop(thread, None)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A fake machine with one process of two threads; ``write`` changes its files."""

    def write(pid=PID, **files):
        for name, text in files.items():
            path = tmp_path / "proc" / str(pid) / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def process(
        pid=PID, *, parent=1, flags=0, state="S", user=0, name="server", tgid=None, start=77
    ):
        stat = f"{pid} ({name} (x) {state} {parent} 0 0 0 0 {flags} " + "0 " * 12 + f"{start} 0\n"
        status = f"Name:\t{name}\nTgid:\t{tgid or pid}\nUid:\t{user}\t{user}\t{user}\t{user}\n"
        write(
            pid,
            stat=stat,
            status=f"{status}NSpid:\t{pid}\t9\n",
            cmdline=f"/bin/{name}\0--port\0",
            maps=MAPS.format(name),
            task__1__comm="one\n",
            task__2__comm="two\n",
            task__1__children="",
        )

    monkeypatch.setattr(attach, "Events", FakeEvents)
    monkeypatch.setattr(FakeEvents, "root", tmp_path, raising=False)
    monkeypatch.setattr(attach, "INTERVAL_S", 1e6)  # looks when it is asked
    process()
    return SimpleNamespace(root=tmp_path, write=write, process=process)


def test_code_of_another_program_at_the_same_address_is_that_ones(machine):
    stat = (machine.root / "proc" / str(PID) / "stat").read_text().strip()

    def execute(library, stack):
        maps = f"{ELSEWHERE:x}-a000 r-xp 00000000 08:01 7 /opt/{library}\n"
        machine.write(maps=maps, stat=f"{stat} 0 0 1 2 {stack}\n")

    execute("first", 5)
    with Observation(PID, root=machine.root) as observed:
        seen = []
        for library, stack in (("first", 5), ("second", 6), ("second", 0)):
            execute(library, stack)
            for one in observed._processes.values():
                one.sampler.look()
            seen.append({name for _, name, _, _ in observed.update().processes[0].symbols_ns})
    assert "second" not in seen[0] and {"first", "second"} <= seen[1] == seen[2]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["nginx", "", "-5", "12.5", "1e3", "٣", "4 7", "9" * 10])
def test_what_is_no_number_is_no_process(text):
    with pytest.raises(UsageError, match="pgrep"):
        target.parse_pid(text)


@pytest.mark.parametrize(
    ("is_what", "asked", "says"),
    [
        ({"pid": 1}, 1, "container"),
        ({"pid": 2, "flags": 0x00208040, "parent": 0}, 2, "kernel"),
        ({"state": "Z"}, PID, "ended"),
        ({"user": 4242}, PID, "user 4242"),
        ({"pid": PID + 1, "tgid": PID}, PID + 1, f"attach to {PID}"),
        ({}, PID + 5, "pgrep"),
    ],
)
def test_a_process_that_is_not_attached_to_is_one_line_of_wrong_use(
    machine, monkeypatch, is_what, asked, says
):
    machine.process(**is_what)
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if "user" in is_what else 0)
    with pytest.raises(UsageError, match=says) as refused:
        target.find(asked, machine.root)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_another_user_may_attach_to_their_own_and_root_to_all(machine, monkeypatch):
    machine.process(user=4242)
    for user in (4242, 0):
        monkeypatch.setattr(os, "geteuid", partial(int, user))
        found = target.find(PID, machine.root)
    assert (found.pid, found.inner_pid, found.parent, found.start) == (PID, 9, 1, 77)
    assert found.command == ("/bin/server", "--port")


def test_a_name_that_the_kernel_cut_within_a_letter_is_read(machine):
    path = machine.root / "proc" / str(PID) / "status"
    path.write_bytes(path.read_bytes().replace(b"server", "lösö".encode()[:-1]))
    machine.write(cmdline="")
    assert target.find(PID, machine.root).command == ("lös\N{REPLACEMENT CHARACTER}",)


def test_attaching_is_for_linux(machine, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(UsageError, match="attach needs Linux"):
        target.find(PID, machine.root)


@pytest.mark.parametrize(
    ("number", "paranoid", "says"),
    [
        (errno.EACCES, 3, "perf_event_paranoid=2"),
        (errno.EPERM, 2, "--cap-add PERFMON"),
        (errno.EACCES, 2, "as root"),
        (errno.ENOSYS, 2, "CONFIG_PERF_EVENTS"),
        (errno.EMFILE, 2, "ulimit -n"),
    ],
)
def test_what_the_kernel_refuses_is_one_line_with_a_remedy(
    machine, monkeypatch, number, paranoid, says
):
    level = machine.root / "proc/sys/kernel/perf_event_paranoid"
    level.parent.mkdir(parents=True)
    level.write_text(f"{paranoid}\n")
    monkeypatch.setattr(FakeEvents, "refuses", number)
    with pytest.raises(NothingMeasuredError, match=says) as refused:
        Observation(PID, root=machine.root).__enter__()
    assert "\n" not in str(refused.value)


def test_a_process_that_protects_itself_is_one_line_with_a_remedy(machine, monkeypatch):
    def refuse(**_):  # as /proc/PID/maps does, which belongs to root then
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(attach, "Resolver", refuse)
    with pytest.raises(NothingMeasuredError, match="sudo") as refused:
        Observation(PID, root=machine.root).__enter__()
    assert "\n" not in str(refused.value)


def test_an_errno_of_the_system_call_is_the_reason(monkeypatch):
    libc = SimpleNamespace(syscall=lambda *arguments: -1)
    monkeypatch.setattr(perf_event.ctypes, "CDLL", lambda *a, **k: libc)
    monkeypatch.setattr(perf_event.ctypes, "get_errno", lambda: errno.ENOSYS)
    monkeypatch.setattr(perf_event.platform, "machine", lambda: "x86_64")
    with pytest.raises(RefusedError) as refused:
        perf_event.PerfEventSampler(10**9, thread=PID)
    assert refused.value.errno == errno.ENOSYS


def test_only_one_attaches_at_a_time_and_no_file_is_made_for_it(machine):
    before = sorted(machine.root.rglob("*"))
    found = target.find(PID, machine.root)
    with target.only_one(found, machine.root):
        with (
            pytest.raises(UsageError, match=str(PID)),
            target.only_one(found, machine.root),
        ):
            pass
        assert sorted(machine.root.rglob("*")) == before
    with pytest.raises(BlockingIOError), target.only_one(found, machine.root):
        raise BlockingIOError  # of what was done meanwhile
    with pytest.raises(UsageError, match="no process"):
        target.only_one(found, machine.root / "elsewhere").__enter__()


def test_a_process_whose_first_thread_has_ended_is_read_by_another(machine):
    machine.process(state="Z")
    machine.write(maps="", task__1__comm="one\n", task__2__comm="two\n")
    machine.write(1, stat="1 (one) Z 1 " + "0 " * 17)
    with pytest.raises(UsageError, match="has ended"):
        target.find(PID, machine.root)
    machine.process(2, name="worker")
    machine.process(state="Z")
    machine.write(maps="")
    with Observation(PID, root=machine.root) as observed:
        observed._processes[PID, 77].sampler.look()
        (found,) = observed.finish().processes
    assert {library for _, library, *_ in found.symbols_ns} == {"[kernel]", "[jit]", "[unknown]"}


def test_what_a_process_had_mapped_is_known_while_it_ends(machine):
    with Observation(PID, root=machine.root) as observed:
        observed._processes[PID, 77].sampler.look()
        machine.write(maps="")
        (found,) = observed.finish().processes
    assert {library for _, library, *_ in found.symbols_ns} == {"[kernel]", "[jit]", "[unknown]"}


def test_a_process_that_executed_another_program_was_python(machine):
    machine.process(name="python3.11")
    machine.write(maps=MAPS.format("python3.11").replace("3000-4000", f"{ELSEWHERE:x}-a000"))
    with Observation(PID, root=machine.root) as observed:
        observed._processes[PID, 77].sampler.look()
        observed.place()
        machine.write(maps="5000-6000 r-xp 00000000 08:01 7 /bin/sh\n")
        observed._processes[PID, 77].resolver.resolve([0x5000])
        (found,) = observed.finish().processes
    assert found.is_python
    assert "not-python" not in {note.code for note in found.notes}


def test_py_spy_is_not_taken_from_the_current_folder(tmp_path, monkeypatch):
    found = tmp_path / "py-spy"
    found.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(py_spy.sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert py_spy._executable() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert py_spy._executable() == str(found)


@pytest.mark.parametrize(
    ("scope", "user", "allowed"),
    [(0, 1000, True), (1, 1000, False), (1, 0, True), (2, 0, True), (3, 0, False)],
)
def test_yama_decides_about_functions_of_python(tmp_path, monkeypatch, scope, user, allowed):
    (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    monkeypatch.setattr(py_spy, "_executable", lambda: "py-spy")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    reason = py_spy.probe(tmp_path)
    assert (reason is None) == allowed
    if reason:
        assert "kernel.yama.ptrace_scope=0" in reason


# --- shares ---------------------------------------------------------------------------------------


def test_the_share_of_windows_is_pooled_and_its_interval_is_that_of_a_ratio():
    found = tax_share([(60, 100), (10, 20), (0, 0), (30, 80)])
    assert found.value == 0.5
    # Residuals 40 - 50, 10 - 10, 50 - 40; Student's t of 2 degrees is 4.303.
    half = 4.303 * (3 / 2 * 200) ** 0.5 / 200
    assert (found.high - found.value, found.n) == (pytest.approx(half, rel=1e-3), 3)
    assert tax_share([(0, 0)]) is None
    assert tax_share([(36, 40)]).high == pytest.approx(0.1 + 1.96 * (0.09 / 40) ** 0.5)


def test_a_share_of_few_samples_is_not_known_better_than_they_allow():
    alike = tax_share([(5, 10), (10, 20)])  # by chance: the standard error of 30 samples
    assert alike.high - alike.value == pytest.approx((0.25 / 30) ** 0.5)
    for windows in ([(0, 1)], [(0, 3), (0, 4)]):  # none in a kernel: the rule of three
        found = tax_share(windows)
        assert (found.value, found.low) == (1.0, 1 - 3 / sum(n for _, n in windows))


def test_the_share_reaches_to_where_copying_loops_are_no_kernels_and_unknown_code_is():
    seen = attach.Seen()
    copies, rest = Leaf("libx.so", "sub_1", "copy"), Leaf("libx.so", "sub_2", "other")
    unread = Leaf("libx.so", "sub_4", "unknown")
    for _ in range(2):
        seen.add(
            Counter({copies: 20, Leaf("libx.so", "sub_3", "kernel"): 40, rest: 30, unread: 10})
        )
    found = seen.tax_share()
    error = (0.4 * 0.6 / 200) ** 0.5  # of 200 samples
    assert (found.low, found.value, found.high) == pytest.approx((0.3 - error, 0.4, 0.6 + error))


def test_windows_are_bounded_and_lose_no_sample():
    seen = Seen()
    for number in range(1, 1001):
        seen.add(Counter({Leaf("[jit]", ""): number, Leaf(KERNEL, ""): 1}))
    assert len(seen.windows) <= attach.MOST_WINDOWS
    assert [sum(column) for column in zip(*seen.windows, strict=True)] == [500500, 501500]
    assert tax_share(seen.windows).value == pytest.approx(1000 / 501500)


# --- an observation -------------------------------------------------------------------------------


def observed(machine, **options):
    with Observation(PID, root=machine.root, period_ns=1000, **options) as found:
        found.update()
        return found.finish()


def test_an_observation_of_two_threads(machine):
    found = observed(machine)
    (process,) = found.processes
    # Each look at each thread: three samples in kernels, one elsewhere, one in the system.
    assert found.tax_share.value == pytest.approx(0.4)
    assert [(one.tid, one.name) for one in found.sections] == [(1, "one"), (2, "two")]
    one = found.sections[0]
    assert one.tax_share.value == pytest.approx(0.4)
    assert one.bill_ns == pytest.approx(
        {"kernel": 0.6 * one.cpu_ns, "remainder": 0.2 * one.cpu_ns, "system": 0.2 * one.cpu_ns}
    )
    assert process.cpu_ns == sum(section.cpu_ns for section in found.sections) > 0
    assert sum(ns for *_, ns in process.symbols_ns) == pytest.approx(process.cpu_ns)
    assert {note.code for note in process.notes} == {"not-python", "code-made-while-running"}
    written = json_document.dump(found)
    assert written["sections"][1]["tid"] == 2
    jsonschema.validate(written, json_document.schema(document.Program))


@pytest.mark.parametrize(("lost", "codes"), [(10, set()), (30, {"samples-lost"})])
def test_samples_that_processors_lost_are_of_no_thread(machine, monkeypatch, lost, codes):
    monkeypatch.setattr(FakeEvents, "has_processors", True)
    with Observation(PID, root=machine.root, period_ns=1000) as observation:
        events = observation._processors
        events.due, events.lost = 1000, lost
        found = observation.finish()
    assert [section.lost for section in found.sections] == [None, None]
    assert {note.code for note in found.notes} == codes
    assert "samples-lost" not in {note.code for note in found.processes[0].notes}
    jsonschema.validate(json_document.dump(found), json_document.schema(document.Program))


def test_where_kernel_mode_gives_no_samples_the_system_is_what_is_missing(machine, monkeypatch):
    monkeypatch.setattr(FakeEvents, "kernel", False)
    found = observed(machine)
    # Six periods of processor time, four samples.
    assert found.sections[0].bill_ns["system"] == pytest.approx(found.sections[0].cpu_ns / 3)
    assert "system-from-missing-ticks" in {note.code for note in found.processes[0].notes}


def test_a_process_that_ends_before_it_ran_has_no_share(machine, monkeypatch):
    monkeypatch.setattr(FakeEvents, "read", lambda self: None)
    with Observation(PID, root=machine.root) as observation:
        shutil.rmtree(machine.root / "proc" / str(PID))
        assert not observation.is_ended
        observation._first.sampler.look()
        assert observation.is_ended
        found = observation.finish()
    (process,) = found.processes
    assert (process.ended, process.tax_share, process.bill_ns) == (True, None, {})
    assert program_blocks(found)


def test_a_reader_that_fails_is_an_error_and_no_smaller_number(machine, monkeypatch):
    monkeypatch.setattr(attach, "INTERVAL_S", 0.001)
    monkeypatch.setattr(attach, "WINDOW_S", 1e6)
    with Observation(PID, root=machine.root) as observation:
        monkeypatch.setattr(FakeEvents, "read", lambda self: 1 // 0)
        observation._reader.join()
        monkeypatch.setattr(FakeEvents, "read", lambda self: None)
        with pytest.raises(ZeroDivisionError):
            observation.update()


def test_children_are_followed(machine):
    child, grandchild = PID + 10, PID + 20
    machine.write(task__1__children=f"{child} ")
    machine.process(child, parent=PID)
    machine.write(child, task__2__children=f"{grandchild}")
    machine.process(grandchild, parent=child)
    machine.write(child, task__2__children=f"{grandchild}")
    assert target.children(PID, machine.root) == [child, grandchild]
    with Observation(PID, root=machine.root) as observation:
        observation._find_children()
        found = observation.finish()
    assert [one.pid for one in found.processes] == [PID, child, grandchild]
    assert {one.pid for one in found.sections} == {PID, child, grandchild}


def test_a_child_with_the_number_of_one_that_ended_is_followed(machine):
    child = PID + 10
    machine.write(task__1__children=f"{child} ")
    machine.process(child, parent=PID)
    with Observation(PID, root=machine.root) as observation:
        observation._find_children()
        shutil.rmtree(machine.root / f"proc/{child}")
        machine.process(child, parent=PID, name="other", start=78)
        machine.write(child, task__3__comm="three\n")
        for one in observation._processes.values():
            one.sampler.look()
        observation._find_children()
        found = observation.finish()
    assert [(one.pid, one.command[0], one.ended) for one in found.processes] == [
        (PID, "/bin/server", False),
        (child, "/bin/server", True),
        (child, "/bin/other", False),
    ]


def test_what_a_child_starts_is_followed_where_its_own_parent_has_ended(machine):
    child, grandchild = PID + 10, PID + 20
    machine.write(task__1__children=f"{child} ")
    machine.process(child, parent=PID)
    with Observation(PID, root=machine.root) as observation:
        observation._find_children()
        shutil.rmtree(machine.root / f"proc/{PID}")
        observation._first.sampler.look()
        machine.write(child, task__2__children=f"{grandchild}")
        machine.process(grandchild, parent=child)
        observation._find_children()
        found = observation.finish()
    assert [(one.pid, one.ended) for one in found.processes] == [
        (PID, True),
        (child, False),
        (grandchild, False),
    ]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("-u", "/opt/serve.py", "x"), "python serve.py"),
        (("-X", "perf", "-W", "ignore", "serve.py"), "python serve.py"),
        (("-c", "import a\nopen('/b/c')"), "python"),
        (("-m", "package"), "python package"),
    ],
)
def test_a_process_is_named_by_its_program_and_script(words, name):
    found = target.Target(PID, PID, 1, 77, ("/usr/bin/python", *words))
    assert f"({name}):" in attach._headline(found, None, 0, 1)


@pytest.mark.parametrize("step", ["communicate", "take"])
def test_what_runs_on_after_the_observation_is_no_part_of_it(
    machine, fake_py_spy, monkeypatch, step
):
    monkeypatch.setattr(attach, "probe", lambda: None)
    machine.process(name="python3.12")
    stat = (machine.root / f"proc/{PID}/stat").read_text()
    ran = stat.replace("0 " * 5 + "77", "300 " + "0 " * 4 + "77")
    ended_ns = []

    def slow(self, *_, **__):
        machine.write(stat=ran)
        ended_ns.append(time.perf_counter_ns())
        return original(self)

    place = {"communicate": FakePySpy, "take": attach._Observed}[step]
    original = getattr(place, step)
    with Observation(PID, root=machine.root) as observation:
        monkeypatch.setattr(place, step, slow)
        found = observation.finish()
    assert not found.notes
    assert observation._begin_ns + found.wall_ns < ended_ns[0]


@pytest.mark.parametrize(("ticks", "unseen"), [(3, False), (300, True)])
def test_time_of_children_that_ended_unseen_is_said(machine, ticks, unseen):
    stat = (machine.root / f"proc/{PID}/stat").read_text()
    ran = stat.replace("0 " * 5 + "77", f"{ticks} " + "0 " * 4 + "77")  # in those it waited for
    with Observation(PID, root=machine.root) as observation:
        assert not observation.update().notes
        machine.write(stat=ran)
        found = observation.update()
    assert ["unseen-processes" in note.code for note in found.notes] == [True] * unseen


def test_children_that_cannot_be_sampled_are_said(machine, monkeypatch):
    child = PID + 10
    with Observation(PID, root=machine.root) as observation:
        machine.write(task__1__children=f"{child} ")
        machine.process(child, parent=PID)
        monkeypatch.setattr(FakeEvents, "refuses", errno.EMFILE)
        observation._find_children()
        (note,) = observation.update().notes
        assert note.code == "threads-not-sampled" and "ulimit -n" in note.text
        monkeypatch.setattr(FakeEvents, "refuses", 0)
        observation._find_children()
        found = observation.finish()
    assert (found.notes, len(found.processes)) == ((), 2)


def test_children_of_another_user_are_said(machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    child = PID + 10
    machine.process(user=1000)
    machine.write(task__1__children=f"{child} ")
    machine.process(child, parent=PID, user=0)
    with Observation(PID, root=machine.root) as observation:
        observation._find_children()
        (note,) = observation.finish().notes
    assert note.code == "threads-not-sampled" and "belongs to user root" in note.text


@pytest.mark.parametrize("since", ["before", "meanwhile"])
def test_a_process_with_a_gpu_is_said_to_be_its_host_side(machine, since):
    maps = MAPS.format("server") + "5000-6000 rw-s 00000000 00:05 9 /dev/nvidia0\n"
    if since == "before":
        machine.write(maps=maps)
    with Observation(PID, root=machine.root) as observation:
        machine.write(maps=maps)
        found = observation.finish()
    assert "host-side-only" in {note.code for note in found.processes[0].notes}
    shares = [one.tax_share for one in (found, *found.processes, *found.sections)]
    assert shares and not any(shares)
    assert "%" not in found.headline


def test_a_python_process_without_py_spy_says_that_functions_are_missing(machine, monkeypatch):
    machine.process(name="python3.12")
    monkeypatch.setattr(py_spy, "_executable", lambda: None)
    (process,) = observed(machine).processes
    assert process.is_python
    assert {note.code for note in process.notes} == {"no-python-functions"}


def test_threads_that_have_ended_are_bounded(machine, monkeypatch):
    monkeypatch.setattr(attach, "MOST_ENDED", 3)
    with Observation(PID, root=machine.root) as observation:
        for number in range(10, 20):
            machine.write(**{f"task__{number}__comm": "request\n"})
            observation._first.sampler.look()
            (machine.root / f"proc/{PID}/task/{number}/comm").unlink()
            (machine.root / f"proc/{PID}/task/{number}").rmdir()
            observation._first.sampler.look()
            observation.update()
        before = observation.update()
    assert [one.samples for one in before.sections if one.ended] == [10, 10, 10]
    counted = sum(one.samples for one in before.sections)
    assert before.processes[0].cpu_ns > counted * before.period_ns  # seven more are in this


def test_a_later_thread_with_the_number_of_one_that_ended_is_another(machine):
    comm = machine.root / f"proc/{PID}/task/2/comm"
    with Observation(PID, root=machine.root) as observation:
        comm.unlink()
        comm.parent.rmdir()
        observation._first.sampler.look()
        observation.update()
        machine.write(task__2__comm="another\n")
        observation._first.sampler.look()
        found = observation.finish()
    named = {(one.name, one.ended): one.samples for one in found.sections if one.tid == 2}
    assert named.keys() == {("two", True), ("another", False)}
    assert all(named.values())


def test_the_page_and_the_stacks_have_every_thread_and_place(machine):
    found = observed(machine)
    blocks = program_blocks(found)
    assert not [block for block in blocks if isinstance(block, Items)]  # there is nothing to do
    tables = {block.title: block for block in blocks if isinstance(block, Table)}
    assert [row[0].text for row in tables["Threads"].rows] == ["1 one", "2 two"]
    assert [row[0].text for row in tables["Kernels"].rows] == ["kernel"]
    assert {row[0].text for row in tables["Where the tax is"].rows} == {"remainder", "system"}
    weights = [int(line.rpartition(" ")[2]) for line in collapsed(found).splitlines()]
    assert sum(weights) == pytest.approx(found.cpu_ns, abs=len(weights))


def test_places_of_a_process_whose_clock_has_not_moved_yet_are_shown():
    (row,) = symbol_table("", [("python", "libpython3.so", "f", 0.0)], 0).rows
    assert row[-1].text == "0.0 %"


def test_py_spys_functions_of_several_processes_are_read():
    text = (
        'process 7:"python -c a;b";thread (7): main;<module> (/a.py:1);f (/a.py:2) 5\n'
        'process 7:"python";process 8:"python";thread (8);<module> (/a.py:1);f (/a.py:2) 3\n'
        'process 7:"python";thread (9);f (/a.py:2);g (/b.py:3);f (/a.py:2) 2\n'
    )
    assert py_spy.parse_functions(text, 7) == {
        7: {("<module>", "/a.py:1"): (0, 5), ("f", "/a.py:2"): (7, 7), ("g", "/b.py:3"): (0, 2)},
        8: {("<module>", "/a.py:1"): (0, 3), ("f", "/a.py:2"): (3, 3)},
    }


class FakePySpy:
    """py-spy: writes ``stacks`` when it is interrupted, unless it hangs or wrote nothing."""

    stacks, said, hangs = None, b"", False

    def __init__(self, command, **_):
        self.command, self.signals, self.code = command, [], None
        self.output = Path(command[command.index("--output") + 1])
        self.rate = int(command[command.index("--rate") + 1])
        FakePySpy.last = self

    def send_signal(self, number):
        self.signals.append(number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def poll(self):
        return self.code

    def communicate(self, timeout=None):
        if self.hangs and self.signals == [signal.SIGINT]:
            raise subprocess.TimeoutExpired(self.command, timeout)
        if self.stacks is not None and self.signals == [signal.SIGINT]:
            self.output.write_text(self.stacks)
        self.code = 0
        return self.said, None


@pytest.fixture
def fake_py_spy(monkeypatch):
    monkeypatch.setattr(py_spy, "_executable", lambda: "py-spy")
    monkeypatch.setattr(py_spy.subprocess, "Popen", FakePySpy)
    return partial(monkeypatch.setattr, FakePySpy)


def recorded(machine):
    with py_spy.FunctionRecording(PID, machine.root) as recording:
        found = recording.stop()
    assert not FakePySpy.last.output.parent.exists()
    return found


@pytest.mark.parametrize(("threads", "rate"), [(1, 10), (2, 10), (3, 6), (5, 4), (20, 1), (64, 1)])
def test_py_spy_reads_many_threads_less_often(machine, fake_py_spy, threads, rate):
    for number in range(3, threads + 1):
        machine.write(**{f"task__{number}__comm": "one\n"})
    if threads == 1:
        shutil.rmtree(machine.root / f"proc/{PID}/task/2")
    recorded(machine)
    assert FakePySpy.last.rate == rate
    assert FakePySpy.last.command[FakePySpy.last.command.index("--pid") + 1] == str(PID)


def test_a_recording_of_functions_is_read_when_it_ends(machine, fake_py_spy):
    fake_py_spy("stacks", f'process {PID}:"python";thread (1);main (/a.py:1);f (/a.py:2) 3\n')
    functions = {("main", "/a.py:1"): (0, 3), ("f", "/a.py:2"): (3, 3)}
    assert recorded(machine) == ({PID: functions}, None)
    assert FakePySpy.last.signals == [signal.SIGINT]


@pytest.mark.parametrize(
    ("stacks", "said", "hangs", "reason"),
    [
        (None, b"\nno permission\nsudo\n", False, "py-spy: no permission"),
        (None, b"", False, "py-spy: no answer"),
        (None, b"stuck\n", True, "py-spy: stuck"),
        ("", b"", False, "py-spy .*no thread"),
    ],
)
def test_a_recording_without_functions_has_a_reason(
    machine, fake_py_spy, stacks, said, hangs, reason
):
    for name, value in {"stacks": stacks, "said": said, "hangs": hangs}.items():
        fake_py_spy(name, value)
    functions, found = recorded(machine)
    assert functions == {} and re.match(reason, found)
    assert FakePySpy.last.signals == [signal.SIGINT] + [signal.SIGKILL] * hangs


def test_a_recording_that_is_left_is_killed(machine, fake_py_spy, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"frameworktax-py-spy-{'0d' * 8}").mkdir()
    with py_spy.FunctionRecording(PID, machine.root):
        (folder,) = tmp_path.glob("frameworktax-py-spy-*")
        assert FakePySpy.last.output.parent == folder
    assert FakePySpy.last.signals == [signal.SIGKILL]


def test_each_process_has_its_own_functions_most_time_first(machine, fake_py_spy, monkeypatch):
    monkeypatch.setattr(attach, "probe", lambda: None)
    child = PID + 10
    machine.process(name="python3.12")
    machine.write(task__1__children=f"{child} ")
    machine.process(child, parent=PID, name="python3.12")
    stacks = f'process {PID}:"python";thread (1);f (/a.py:1) 1\n'
    stacks += f'process {PID}:"python";thread (1);g (/a.py:2) 4\n'
    stacks += f'process {PID}:"python";process {child}:"python";thread (2);h (/a.py:3) 2\n'
    fake_py_spy("stacks", stacks)
    with Observation(PID, root=machine.root) as observation:
        observation._find_children()
        found = observation.finish()
    assert [[one.name for one in process.functions] for process in found.processes] == [
        ["g", "f"],
        ["h"],
    ]
    fake_py_spy("stacks", "")
    with Observation(PID, root=machine.root) as observation:
        (note,) = observation.finish().processes[0].notes
    assert (note.code, "no thread of Python" in note.text) == ("no-python-functions", True)


# --- how often ------------------------------------------------------------------------------------


def test_rings_are_emptied_so_seldom_that_it_takes_its_share(machine, monkeypatch):
    """Looks take 0.5 % of a processor at most and come ten times a second at most; a ring holds
    what 0.4 s give. Processes that were started are looked for less often.
    """
    monkeypatch.setattr(attach, "INTERVAL_S", 0.1)
    monkeypatch.setattr(attach, "WINDOW_S", 0.35)
    costs_s = [0.0001, 0.001, 0.0015, 0.01]
    now_s, cpu_s, waits, looked, stopped, children = 0.0, 0.0, [], [], [], []

    def wait(wait_s):
        nonlocal now_s
        waits.append(wait_s)
        now_s += wait_s
        return len(waits) > len(costs_s)

    def look():
        nonlocal cpu_s
        cpu_s += costs_s[len(looked)]
        looked.append(now_s)

    def stop():
        stopped.append(now_s)

    living = SimpleNamespace(is_ended=False, look=look)
    ended = SimpleNamespace(is_ended=True, stop=stop)
    observation = Observation(PID, root=machine.root)
    observation._stopping = SimpleNamespace(wait=wait)
    observation._processes = {n: SimpleNamespace(sampler=s) for n, s in enumerate((living, ended))}
    observation._find_children = lambda: children.append(now_s)
    monkeypatch.setattr(attach.time, "thread_time", lambda: cpu_s)
    monkeypatch.setattr(attach.time, "monotonic", lambda: now_s)
    observation._read()
    assert observation._fault is None
    assert waits == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4])
    assert looked == stopped == pytest.approx([0.1, 0.2, 0.4, 0.7])
    assert children == pytest.approx([0.4])


@pytest.mark.parametrize(
    ("cost_s", "expected"), [(0.001, [1, 2, 3, 4]), (0.02, [1, 3, 5, 7]), (5, [1, 4, 7, 10])]
)
@pytest.mark.parametrize("quiet", [True, False])
def test_samples_are_placed_so_seldom_that_it_takes_a_hundredth_of_a_processor(
    monkeypatch, quiet, cost_s, expected
):
    now_s = cpu_s = 0.0
    placed, shown = [], []

    def sleep(wait_s):
        nonlocal now_s
        now_s += wait_s

    time_of = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep, thread_time=lambda: cpu_s)
    monkeypatch.setattr(run, "time", time_of)
    monkeypatch.setattr(progress, "time", time_of)

    class Observed:
        is_ended = False

        def place(self):
            nonlocal cpu_s
            cpu_s += cost_s
            placed.append(now_s)

        def update(self):
            self.place()
            shown.append(now_s)
            return SimpleNamespace(headline="none")

    view = progress.AttachView(Console(file=StringIO()), quiet=quiet)
    run._observe(Observed(), 40, [], view)
    assert placed[:4] == pytest.approx(expected, abs=0.3)
    assert len(shown) == (0 if quiet else 3)  # of a log's lines, every ten seconds


def test_reading_a_file_of_the_kernel_makes_no_paths(tmp_path):
    (tmp_path / "comm").write_bytes(b"name \xff\n")
    called = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.append(event))
    try:
        text = read(tmp_path, "comm")
    finally:
        sys.setprofile(before)
    assert text == "name \ufffd"
    assert called.count("call") < 8
    assert read(tmp_path, "none") is None
