"""A program that is observed: what it notes, what is read from that, and what is made of it."""

import ast
import ctypes
import importlib.util
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from _thread import start_new_thread
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import MagicMock, Mock

import jsonschema
import numpy as np
import pytest

from frameworktax.attribution.threads import TreeSampler, TreeSamples
from frameworktax.errors import UsageError
from frameworktax.host.machine import stat_fields
from frameworktax.programs import calls, inputs, launch, observed, running
from frameworktax.programs.blocks import program_blocks
from frameworktax.programs.document import Kind, Part, Program, Section
from frameworktax.records import Estimate, Note
from frameworktax.report import json_document
from frameworktax.report.blocks import Notes, Table

MS = 1_000_000


class Ticking:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.ns = 1_000 * MS

    def __call__(self):
        return self.ns

    def pass_ms(self, ms):
        self.ns += round(ms * MS)


def make_torch():
    """Return as much of torch as is watched."""

    class Module:
        _compiled_call_impl = None

        def __init__(self, *inner):
            self.inner = inner

        def __call__(self, *args):  # as torch's own
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args)
            return self._call_impl(*args)

        def _call_impl(self, *args):
            return self.forward(*args)

        def forward(self, *args):
            for one in self.inner:
                one(*args)

        def named_modules(self, prefix=""):
            yield prefix, self
            for number, one in enumerate(self.inner):
                yield from one.named_modules(f"{prefix}.{number}".strip("."))

        def parameters(self):
            return iter(())

    class Optimizer:
        @staticmethod
        def profile_hook_step(function):
            return function

    torch = types.ModuleType("torch")
    torch.nn = types.SimpleNamespace(Module=Module)
    torch.compiler = types.SimpleNamespace(is_dynamo_compiling=lambda: False)
    torch._C = MagicMock()
    torch.autograd = types.SimpleNamespace(backward=lambda run: run(), grad=lambda: None)
    torch.optim = types.SimpleNamespace(Optimizer=Optimizer)
    return torch


@pytest.fixture
def watched(tmp_path, monkeypatch, request):
    """Return (torch, clock, what was noted): calls of its modules are noted.

    With the parameter ``replaced`` another tool had replaced how a module is called before.
    """
    for number, thread in list(threading._active.items()):  # of other tests, and ended
        if isinstance(thread, threading._DummyThread):
            del threading._active[number]
    clock = Ticking()
    spec = importlib.util.spec_from_file_location("observing", calls.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "now", clock)
    torch = make_torch()
    if getattr(request, "param", None) == "replaced":
        own = torch.nn.Module.__call__
        torch.nn.Module.__call__ = lambda self, *args: own(self, *args)
    recorder = module.Recorder(str(tmp_path), "module", "")
    torch.forked, torch.threads = recorder.reset, recorder.threads
    torch.modules, torch.recorder = recorder.modules, recorder
    module.watch_torch(recorder, torch)
    return torch, clock, lambda: observed.read_notes(tmp_path)[0]


def timed(torch, clock, ms, *inner):
    class Takes(torch.nn.Module):
        def forward(self):
            clock.pass_ms(ms)
            super().forward()

    return Takes(*inner)


def test_only_outermost_calls_are_calls_and_inner_ones_are_noted_inside(watched):
    torch, clock, read = watched
    leaf = timed(torch, clock, 3)
    net = timed(torch, clock, 1, leaf, leaf)
    net()
    leaf()
    found = read()
    (thread,) = found.threads.values()
    assert [(row[1] - row[0]) / MS for row in thread.rows] == [7, 3]
    assert [found.roots[row[2]]["class"] for row in thread.rows] == ["Takes", "Takes"]
    assert [one["path"] for one in found.roots[thread.rows[0][2]]["modules"]] == ["", "0", "1"]
    first = thread.details[0]
    assert list(first.notes[1::2]) == [2, -1, 2, -1]
    assert list(first.notes[::2] - first.begin_ns) == [1 * MS, 4 * MS, 4 * MS, 7 * MS]


@pytest.mark.parametrize("place", ["say", "mapped"])
@pytest.mark.parametrize("is_same", [True, False])
def test_a_signals_handler_may_call_a_module_while_one_is_registered(
    watched, monkeypatch, place, is_same
):
    torch, clock, read = watched
    net, other = timed(torch, clock, 3), timed(torch, clock, 5, timed(torch, clock, 1))
    recorder, handled = torch.recorder, []
    interrupted = getattr(recorder, place)

    def during(*arguments):
        assert recorder.lock.acquire(blocking=False)  # else the handler would wait for ever
        recorder.lock.release()
        if not handled:
            handled.append(True)
            (net if is_same else other)()
        return interrupted(*arguments)

    monkeypatch.setattr(recorder, place, during)
    for _ in range(3):
        net()
    found = read()
    (thread,) = found.threads.values()
    took = [(end - begin) // MS for begin, end, _ in thread.rows.tolist()]
    assert sorted(took) == [3, 3, 3, 3 if is_same else 6]
    roots = [found.roots[root] for root in thread.rows[:, 2].tolist()]
    assert len({one["root"] for one in roots}) == 2 - is_same
    assert all(len(numbers) == 1 for numbers in thread.modules.values())
    assert recorder.threads.keys() == {threading.get_ident()}


def test_a_run_in_a_run_has_every_call_too(watched, tmp_path):
    torch, clock, read = watched
    outer = tmp_path / "outer"
    outer.mkdir()
    calls.watch_torch(calls.Recorder(str(outer), "module", ""), torch)
    net = timed(torch, clock, 5)
    for _ in range(50):
        net()
    for noted in (read(), *observed.read_notes(outer)):
        (thread,) = noted.threads.values()
        assert len(thread.rows) + thread.counted[:, 3].sum() == 50


def test_a_child_that_is_forked_in_a_call_leaves_the_parents_notes_alone(watched):
    torch, clock, read = watched
    parent = os.getpid()
    wait, go_on = os.pipe()

    class Forks(torch.nn.Module):
        def forward(self):
            clock.pass_ms(2)
            self.child = os.fork()
            if not self.child:
                os.close(go_on)
                os.read(wait, 1)  # until the parent has noted its call
                torch.forked()
                clock.pass_ms(5)

    timed(torch, clock, 1)()
    net = Forks()
    try:
        net()
    finally:
        if os.getpid() != parent:
            os._exit(0)
    os.close(go_on)
    os.close(wait)
    assert os.waitpid(net.child, 0)[1] == 0
    (thread,) = read().threads.values()
    assert [(row[1] - row[0]) / MS for row in thread.rows] == [1, 2]
    assert [(one.end_ns - one.begin_ns) / MS for one in thread.details] == [1, 2]


def test_calls_that_raise_and_backward_and_steps_are_kept(watched):
    torch, clock, read = watched

    class Fails(torch.nn.Module):
        def forward(self):
            clock.pass_ms(2)
            raise ValueError

    class Sgd(torch.optim.Optimizer):
        def step(self, closure):
            clock.pass_ms(1)
            closure()

    Sgd.step = torch.optim.Optimizer.profile_hook_step(Sgd.step)
    net = timed(torch, clock, 5)
    with pytest.raises(ValueError):
        Fails()()
    torch.autograd.backward(net)  # a module called in backward is part of it
    Sgd().step(net)  # one called in a closure is a call of its own
    found = read()
    (thread,) = found.threads.values()
    said = [(found.roots[r[2]]["kind"], (r[1] - r[0]) / MS) for r in thread.rows]
    assert said == [("module", 2), ("backward", 5), ("module", 5), ("step", 6)]


def test_where_a_library_calls_a_module_is_where_the_program_called_the_library(watched, tmp_path):
    torch, clock, read = watched
    library = str(tmp_path / "site-packages/trainer/train.py")
    own: dict = {}
    exec(compile("def train(net):\n    return net()\n", library, "exec"), own)
    own["train"](timed(torch, clock, 1))
    line = sys._getframe().f_lineno - 1
    thread = threading.Thread(target=own["train"], args=(timed(torch, clock, 1),))
    thread.start()
    thread.join()
    called = [one["called"] for one in read().roots.values()]
    assert called == [f"{__file__}:{line}", f"{library}:2"]


def test_copies_called_from_one_place_are_one_kind_with_the_sum_of_their_calls(watched):
    """Fifty of them in turn; three of another structure, and one that is called elsewhere too."""
    torch, clock, read = watched

    def takes(*inside):
        return timed(torch, clock, 0.01, *inside)

    copies = [takes(torch.nn.Module()) for _ in range(50)]

    def call(modules):
        for net in modules:
            net()

    for _ in range(40):
        call(copies)
    call([takes() for _ in range(3)])
    copies[0]()
    takes(torch.nn.Module())()
    found = read()
    (section,) = program_of(found, {})
    kinds = {kind.calls: (kind.name, kind.modules, kind.wall_ns) for kind in section.kinds}
    assert kinds == {
        2001: ("Takes", 50, 20.01 * MS),
        3: ("Takes #2", 3, 0.03 * MS),
        1: ("Takes #3", 1, 0.01 * MS),
    }  # fmt: skip
    (thread,) = found.threads.values()
    assert len(thread.details) < 10 and len(thread.rows) < 1000


def test_modules_made_anew_for_each_call_are_one_kind_in_each_of_many_threads(watched):
    torch, clock, read = watched
    shared = timed(torch, clock, 1)

    def work(shared):
        for _ in range(3):
            timed(torch, clock, 1, torch.nn.Module())()
        shared()

    for _ in range(40):
        thread = threading.Thread(target=work, args=(shared,))
        thread.start()
        thread.join()
    (section,) = program_of(read(), {})
    assert section.threads == 40
    assert {kind.modules: kind.calls for kind in section.kinds} == {120: 120, 1: 40}
    assert not torch.modules.keys() - {id(shared)}


@pytest.mark.parametrize("broken", ["parameters", "named_modules", "__hash__"])
def test_a_module_whose_structure_cannot_be_read_is_a_kind_of_its_own(watched, broken):
    torch, _, read = watched

    class Net(torch.nn.Module):
        def forward(self):
            return 5

        def named_modules(self):
            return iter({self: ""}.items())

    setattr(Net, broken, Mock(side_effect=ValueError))
    assert [net() for net in (Net(), Net())] == [5, 5]
    assert [one["class"] for one in read().roots.values()] == ["Net", "Net"]


def test_a_scripted_module_has_the_name_of_its_class():
    class Scripted:
        original_name = "Encoder"

        def forward(self):
            pass

    Scripted.__module__ = "torch.jit._script"
    assert calls.about(Scripted())["class"] == "Encoder (TorchScript)"


def test_threads_note_their_own_calls(watched):
    torch, clock, read = watched
    net = timed(torch, clock, 1)
    threads = [threading.Thread(target=net, name=f"worker {i}") for i in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    found = read()
    assert sorted(found.names.values()) == ["worker 0", "worker 1", "worker 2"]
    assert [len(one.rows) for one in found.threads.values()] == [1, 1, 1]


def test_detail_keeps_to_its_share_of_the_time(watched):
    torch, clock, read = watched
    net = timed(torch, clock, 4)
    for _ in range(1000):
        net()
    (thread,) = read().threads.values()
    assert len(thread.rows) == 1000
    most = calls.FIRST + 4000 * MS * calls.DETAIL / calls.BASE_NS
    assert most / 2 < len(thread.details) <= most


def test_many_calls_fill_chunk_after_chunk(watched):
    torch, clock, read = watched
    net = timed(torch, clock, 4)
    for _ in range(2 * calls.CHUNK_WORDS):
        net()
    (thread,) = read().threads.values()
    assert len(thread.rows) == 2 * calls.CHUNK_WORDS and not len(thread.counted)
    assert (thread.rows[:, 1] - thread.rows[:, 0] == 4 * MS).all()


def test_a_thread_for_each_call_takes_a_page_and_many_calls_of_one_large_chunks(watched, tmp_path):
    torch, clock, read = watched
    net = timed(torch, clock, 4)
    for _ in range(3):  # two of them are noted in detail
        net()
    (file,) = tmp_path.glob("*.calls")
    before = file.stat().st_size
    for _ in range(50):
        thread = threading.Thread(target=net)
        thread.start()
        thread.join()
    pages = (file.stat().st_size - before) / mmap.PAGESIZE
    assert 50 <= pages < 75  # another one for a call in detail
    for _ in range(10_000):
        net()
    found = read()
    assert (
        len(found.threads) == 51 and sum(len(one.rows) for one in found.threads.values()) == 10_053
    )
    words = np.fromfile(file, np.int64)
    sizes, at = [], 0
    while at < len(words):
        sizes.append(int(words[at]))
        at += sizes[-1]
    assert max(sizes) == calls.CHUNK_WORDS


@pytest.mark.parametrize("watched", ["own", "replaced"], indirect=True)
def test_a_row_takes_few_instructions_more_than_a_call_that_is_counted(watched):
    torch, clock, _ = watched
    net = timed(torch, clock, 0.001)  # so short that most calls are counted only
    taken = []

    def trace(frame, event, _):
        if frame.f_code.co_filename != calls.__file__:
            return None
        frame.f_trace_opcodes = True
        taken[-1] += event == "opcode"
        return trace

    for _ in range(400):
        taken.append(0)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            net()
        finally:
            sys.settrace(before)
    (counted, _), (row, often) = Counter(taken).most_common(2)
    assert often > 10
    assert counted < row < counted + 120


def counted_of(thread, root):
    return thread.counted[thread.counted[:, 2] == root]


def test_every_thread_has_its_number_of_calls_whatever_has_a_row(watched):
    torch, clock, read = watched
    net, other = timed(torch, clock, 0.001), timed(torch, clock, 0.001)

    def work(calls):
        for _ in range(calls):
            net()
            other()

    def unseen():  # by Python: such a thread has no name, and may be one of a library's
        work(300)
        done.set()

    work(1000)
    done = threading.Event()
    start_new_thread(unseen, ())
    done.wait()
    thread = threading.Thread(target=work, args=(3000,))
    thread.start()
    thread.join()
    work(11)
    found = []
    for one in read().threads.values():
        for root in (1, 2):
            of = counted_of(one, root)
            rows = one.rows[one.rows[:, 2] == root]
            numbers, total = observed._numbers(rows, of)
            assert total == len(rows) + of[:, 3].sum() and list(numbers) == sorted(set(numbers))
            assert len(rows) < total / 5 or total < 400
            found.append(total)
    # Until it has a row, a thread that Python did not start is taken for the main one.
    assert [sum(found[:4]), *found[4:]] == [2 * 1311, 3000, 3000]


@pytest.mark.skipif(sys.platform != "linux", reason="waits of a thread are counted on Linux")
@pytest.mark.parametrize("waits", [False, True])
def test_time_off_the_processor_of_a_call_that_never_waits_is_of_others(watched, waits):
    torch, clock, read = watched

    class Takes(torch.nn.Module):
        def forward(self):
            clock.pass_ms(1000)
            if waits:
                time.sleep(0.001)

    Takes()()
    ((detail,),) = [thread.details for thread in read().threads.values()]
    off_ns = detail.end_ns - detail.begin_ns - detail.cpu_ns
    assert (detail.queued_ns == off_ns) is not waits


def test_others_are_known_less_than_nothing_where_the_queue_is_not_counted_at_all(watched):
    """By clocks that are read one after the other, a call can be off the processor for −1 ns."""
    torch, clock, read = watched
    queue = iter([5, 5, calls.NOT_COUNTED, 5, 5, calls.NOT_COUNTED])

    def call(modules):
        inside = [torch.nn.Module() for _ in range(modules)]
        timed(torch, clock, 0, *inside)()  # by this clock no time passes, by the thread's own some

    call(0)
    (thread,) = torch.threads.values()
    thread.queued = lambda: next(queue)
    for modules in (1, 2, 3):
        call(modules)
    details = read().threads.popitem()[1].details[1:]
    assert [one.queued_ns for one in details] == [-details[0].cpu_ns] + [calls.NOT_COUNTED] * 2


@pytest.mark.parametrize("watched", ["own", "replaced"], indirect=True)
def test_modules_whose_calls_are_counted_are_inner_ones_inside_of_other_calls(watched):
    torch, clock, read = watched
    leaf = timed(torch, clock, 0.001)
    first, second = timed(torch, clock, 0.001, leaf), timed(torch, clock, 0.001, leaf, leaf)

    class Joins(torch.nn.Module):
        def forward(self):
            late.set()
            beside.join()
            leaf()  # the main thread is the only one again, in a call that began beside another

    class Sgd(torch.optim.Optimizer):
        def step(self, closure):
            closure()

    Sgd.step = torch.optim.Optimizer.profile_hook_step(Sgd.step)
    joins, own, late = Joins(), 0, threading.Event()
    deep = timed(torch, clock, 0, timed(torch, clock, 0, leaf))
    for number in range(3000):
        leaf()
        (first, second)[number % 7 == 0]()
        own += 1
        if number % 100 == 50:
            late.clear()
            beside = threading.Thread(target=late.wait)
            beside.start()
            joins()
            torch.autograd.backward(first)
            Sgd().step(leaf)
            own += 1
        if number in (1000, 1001, 1002):  # two of these are noted in detail
            deep()
    found = read()
    (thread,) = found.threads.values()

    def calls_of(root):
        rows = thread.rows[thread.rows[:, 2] == root]
        return observed._numbers(rows, counted_of(thread, root))[1]

    made = [calls_of(root) for root, about in found.roots.items() if about["kind"] == "module"]
    assert made == [own, 429, 2571, 30, 3]
    assert len(thread.rows) < 3000 and len(thread.counted)


def test_backward_and_steps_that_are_counted_are_all_there(watched):
    torch, clock, read = watched
    leaf, inner = timed(torch, clock, 0.001), timed(torch, clock, 0.001)

    class Sgd(torch.optim.Optimizer):
        def step(self, closure):
            clock.pass_ms(0.001)
            closure()

    Sgd.step = torch.optim.Optimizer.profile_hook_step(Sgd.step)

    class Learns(torch.nn.Module):
        def forward(self):
            torch.autograd.backward(leaf)

    def fails():
        leaf()
        raise ValueError

    def closure():
        inner()
        torch.autograd.backward(leaf)

    def train(steps):
        for number in range(steps):
            torch.autograd.backward(leaf)  # the module is part of it
            Sgd().step(closure)  # in a closure it is not
            leaf()
            if number % 10 == 0:
                for raises in (torch.autograd.backward, Sgd().step):
                    with pytest.raises(ValueError):
                        raises(fails)
                leaf()

    train(1000)
    learns = Learns()
    learns()
    learns()  # both in detail: backward in a module is part of it
    thread = threading.Thread(target=train, args=(200,))
    thread.start()
    thread.join()
    train(100)
    found = read()

    def calls_of(thread, kind, index=0):
        roots = [root for root, about in found.roots.items() if about["kind"] == kind]
        rows = thread.rows[thread.rows[:, 2] == roots[index]]
        return observed._numbers(rows, counted_of(thread, roots[index]))[1]

    for steps, thread in zip((1100, 200), found.threads.values(), strict=True):
        assert calls_of(thread, "backward") == 2 * steps + steps // 10
        assert calls_of(thread, "step") == steps + steps // 10
        modules = [calls_of(thread, "module", index) for index in (0, 1)]
        assert sorted(modules) == [steps, steps + 2 * (steps // 10)]
        assert len(thread.rows) < 4 * steps


def test_steps_without_a_closure_and_what_their_hooks_call_are_all_there(watched):
    torch, clock, read = watched
    hook, leaf = timed(torch, clock, 0.001), timed(torch, clock, 0.001)

    class Sgd(torch.optim.Optimizer):
        def step(self, fails=False):
            clock.pass_ms(0.001)
            hook()
            if fails:
                raise ValueError

    class Adam(Sgd):
        pass

    class Ahead(torch.optim.Optimizer):
        def step(self):
            Inner().step()  # part of it
            hook()
            Inner().step()

    class Inner(Sgd):
        pass

    for cls in (Sgd, Ahead):
        cls.step = torch.optim.Optimizer.profile_hook_step(cls.step)
    for number in range(1000):
        leaf()
        Sgd().step()
        Ahead().step()
        if number % 10 == 0:
            Adam().step()  # its own kind of step
            with pytest.raises(ValueError):
                Sgd().step(fails=True)
    found = read()
    (thread,) = found.threads.values()
    made = {}
    for root, about in found.roots.items():
        rows = thread.rows[thread.rows[:, 2] == root]
        kind = about["kind"], about["class"]
        made.setdefault(kind, []).append(observed._numbers(rows, counted_of(thread, root))[1])
    assert made == {
        ("module", "Takes"): [1000, 4200],
        ("step", "Sgd"): [1100],
        ("step", "Ahead"): [1000],
        ("step", "Adam"): [100],
    }
    assert len(thread.counted)


def test_each_of_two_short_calls_in_a_closure_has_a_row(watched):
    torch, clock, read = watched
    net = timed(torch, clock, 0.001)

    class Sgd(torch.optim.Optimizer):
        def step(self, closure):
            closure()

    Sgd.step = torch.optim.Optimizer.profile_hook_step(Sgd.step)

    def rows():
        found = read()
        (root,) = (root for root, about in found.roots.items() if about["kind"] == "module")
        (thread,) = found.threads.values()
        return int((thread.rows[:, 2] == root).sum())

    for _ in range(50):
        net()
    before = rows()
    assert before < 50  # the next ones are counted
    Sgd().step(lambda: (net(), net()))
    assert rows() == before + 2


def test_no_descriptor_stays_open_that_a_program_could_close_and_get_for_a_file_of_its_own(watched):
    torch, clock, read = watched
    before = os.listdir("/proc/self/fd")
    net = timed(torch, clock, 4)
    for _ in range(calls.CHUNK_WORDS):  # in chunk after chunk, the first ones in detail
        net()
    assert os.listdir("/proc/self/fd") == before
    (thread,) = read().threads.values()
    assert len(thread.rows) == calls.CHUNK_WORDS and len(thread.details) > 1


def test_a_program_goes_on_without_room_for_notes(watched, monkeypatch):
    torch, clock, read = watched
    net = timed(torch, clock, 1)
    module = sys.modules[calls.__name__]
    monkeypatch.setattr(module.os, "posix_fallocate", _no_room)
    net()
    net()
    found = read()
    assert found.full.endswith(": no room") and not found.threads


def test_a_program_goes_on_where_no_file_can_be_made(watched, monkeypatch):
    torch, clock, read = watched
    net = timed(torch, clock, 1)
    begin = clock()
    with monkeypatch.context() as without:
        without.setattr(os, "open", _no_room)
        for _ in range(20):
            net()
    assert clock() - begin == 20 * MS
    assert read().full and not read().threads


def test_what_a_forked_child_cannot_write_is_said_of_its_parent(watched):
    torch, clock, read = watched
    net = timed(torch, clock, 1)
    net()
    assert read().full is None
    child = os.fork()
    if child == 0:  # as one that goes on as another user
        torch.forked()
        os.open = _no_room
        try:
            net()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    found = read()
    (thread,) = found.threads.values()
    assert found.full and len(thread.rows) == 1


def test_calls_of_which_nothing_could_be_written_but_their_times_are_left_out_and_said(
    watched, tmp_path
):
    torch, clock, read = watched
    net, other = timed(torch, clock, 1), timed(torch, clock, 1)
    net()
    other()
    (names,) = tmp_path.glob("*.names")
    assert read().full is None
    lines = names.read_text().splitlines()
    names.write_text("\n".join(line for line in lines if '"root": 2' not in line))
    found = read()
    assert found.full
    (section,) = program_of(found, {})
    assert [kind.calls for kind in section.kinds] == [1]


def _no_room(*_):
    raise OSError(28, "no room")


# --- samples --------------------------------------------------------------------------------------


def record(kind, body, misc=2):
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def trailer(time_ns, pid=1):
    return struct.pack("<IIQ", pid, pid, time_ns)


def mapped(pid, start, length, path, time_ns):
    name = path.encode() + b"\0" * (8 - len(path) % 8)
    body = struct.pack("<IIQQQIIQQII", pid, pid, start, length, 0, 0, 0, 0, 0, 0, 0) + name
    return record(10, body + trailer(time_ns))


def test_samples_and_maps_of_processes_that_fork_and_execute():
    seen = TreeSamples()
    seen.take(
        mapped(1, 0x1000, 0x1000, "/old", 1)
        + record(3, struct.pack("<II", 1, 1) + b"python\0\0" + trailer(2), misc=1 << 13)
        + mapped(1, 0x1000, 0x3000, "/lib", 3)
        + record(7, struct.pack("<IIIIQ", 2, 1, 2, 1, 4) + trailer(4))
        + mapped(2, 0x2000, 0x1000, "/new", 5)
        + record(7, struct.pack("<IIIIQ", 1, 1, 9, 1, 6) + trailer(6))  # a thread
        + record(9, struct.pack("<QIIQ", 0x1010, 1, 9, 7))
        + record(9, struct.pack("<QIIQ", 0xFFFF, 2, 2, 8), misc=1)
    )
    assert list(zip(seen.pid, seen.tid, seen.address, seen.time_ns, strict=True)) == [
        (1, 9, 0x1010, 7), (2, 2, 0, 8),
    ]  # fmt: skip
    assert seen.maps() == {
        1: "1000-4000 r-xp 0 00:00 0 /lib\n",
        2: "2000-3000 r-xp 0 00:00 0 /new\n",
    }
    assert (seen.parents, seen.names) == ({2: 1}, {1: "python"})


KERNEL_LEAF = observed.Leaf("libopenblas.so", "sgemm_kernel")
PYTHON_LEAF = observed.Leaf("libpython3.11.so", "_PyEval_EvalFrameDefault")


def program_of(watched_notes, samples, period_ns=MS, **more):
    """Return the sections of a process whose samples are (time, leaf)."""
    pid = watched_notes.pid
    seen = TreeSamples(pid=array("i", [pid]))
    ended = launch.Ended(pid, 0, 0, 10_000 * MS, seen, True, period_ns, None)
    leaves = [leaf for own in samples.values() for _, leaf in own]  # an entry for each address
    found, at = {}, 0
    for tid, own in samples.items():
        times = np.array([t for t, _ in own], np.int64)
        places = np.arange(at, at + len(own))
        found[pid, tid] = observed.Samples(times, places, leaves, period_ns, True)
        at += len(own)
    return observed.sections([watched_notes], ended, found, **more)


def test_a_known_program_comes_back_as_it_was(watched):
    """40 calls of 10 ms: 4 in a kernel of the layer, 6 in Python outside of it; 5 ms between."""
    torch, clock, read = watched
    layer = timed(torch, clock, 4)
    net = timed(torch, clock, 6, layer)
    begins = []
    for _ in range(40):
        begins.append(clock())
        net()
        clock.pass_ms(5)
    found = read()
    (tid,) = found.threads
    for number, detail in enumerate(
        found.threads[tid].details
    ):  # the real clocks mean nothing here
        found.threads[tid].details[number] = detail._replace(
            cpu_ns=detail.end_ns - detail.begin_ns, queued_ns=0
        )
    samples = [
        (begin + at * MS + MS // 2, KERNEL_LEAF if 6 <= at < 10 else PYTHON_LEAF)
        for begin in begins
        for at in range(12)  # two of the five between calls are on the processor
    ]
    (section,) = program_of(found, {tid: samples})
    (kind,) = section.kinds
    assert (kind.calls, kind.p50_ns, kind.wall_ns) == (40, 10 * MS, 400 * MS)
    assert kind.tax_share.value == pytest.approx(0.6)
    assert sum(kind.bill_ns.values()) == pytest.approx(kind.latency_ns.value) == 10 * MS
    assert {one.path: round(one.time_ns.value / MS, 6) for one in kind.layers} == {
        "": 6, "0": 4, None: 0,
    }  # fmt: skip
    assert kind.layers[0].line == net.forward.__code__.co_firstlineno
    between = {part.name: part.time_ns for part in section.between}
    assert between == {"python": 78 * MS, "off the processor": 117 * MS}
    assert section.wall_ns == 40 * 15 * MS - 5 * MS

    (section,) = program_of(found, {tid: samples}, skip_first=30)
    assert (section.kinds[0].skipped, section.kinds[0].samples) == (30, 100)
    assert section.kinds[0].wall_ns == 100 * MS
    left_out = {"calls left out": 300 * MS}
    assert {part.name: part.time_ns for part in section.between} == between | left_out
    (section,) = program_of(found, {tid: samples}, skip_first=40)
    assert section.kinds[0].latency_ns is None and section.kinds[0].reason
    assert section.kinds[0].wall_ns == 0 and section.between[0].time_ns == 400 * MS
    (section,) = program_of(found, {tid: samples}, only=running.re.compile("Other"))
    assert section.hidden == 1
    assert section.kinds == ()
    (section,) = program_of(found, {})
    assert section.kinds[0].tax_share is None and section.kinds[0].reason

    last = [one for one in samples if one[0] > begins[-1]]
    for count in (4, 5):  # fewer than five say nothing of where the time goes
        (section,) = program_of(found, {tid: last[:count]})
        (kind,) = section.kinds
        assert (kind.samples, kind.tax_share is None, kind.reason is None) == (
            count, count < 5, count == 5,
        )  # fmt: skip

    (section,) = program_of(found, {tid: samples}, cost=(100_000, 250_000))
    assert [note.code for note in section.kinds[0].notes] == ["observer-cost"]  # 0.35 of 10 ms
    (section,) = program_of(found, {tid: samples}, cost=(100_000, 50_000))
    assert section.kinds[0].notes == ()

    # A thread without calls that computes while they run: their tax is not known.
    helper = [(time_ns, KERNEL_LEAF) for time_ns, _ in samples]
    one, _ = program_of(found, {tid: samples, tid + 1: helper})
    assert one.kinds[0].tax_share is None and "60%" in one.kinds[0].reason


@pytest.mark.parametrize("beside", [False, True])
def test_short_calls_come_back_though_few_of_them_are_timed(watched, beside):
    """12,000 calls of 10 µs, 80 % of them kernel, then 8,000 of 60 µs, 20 % of them; 10 µs between,
    of which 5 on the processor. The former have fewer rows, and count as often all the same.
    """
    torch, clock, read = watched
    done = threading.Event()
    if beside:
        threading.Thread(target=done.wait).start()
    short, long = timed(torch, clock, 0.004), timed(torch, clock, 0.006)

    class Net(torch.nn.Module):
        def forward(self, repeats):
            for _ in range(repeats):
                short()
                long()

    net, spans, begin_ns = Net(short, long), [], clock()
    for number in range(20_000):
        begin = clock()
        net(1 if number < 12_000 else 6)
        spans.append((begin, clock()))
        clock.pass_ms(0.010)
    done.set()
    found = read()
    (tid,) = found.threads
    thread = found.threads[tid]
    thread.details = [
        one._replace(cpu_ns=one.end_ns - one.begin_ns, queued_ns=0) for one in thread.details
    ]
    begins, ends = np.array(spans).T
    samples, period_ns = [], 7_919
    for at in range(begin_ns, clock(), period_ns):
        call = np.searchsorted(begins, at, "right") - 1
        kernel_ns = (0.8 if call < 12_000 else 0.2) * (ends[call] - begins[call])
        if at < ends[call] + 5_000:
            samples.append((at, KERNEL_LEAF if at < begins[call] + kernel_ns else PYTHON_LEAF))
    (section,) = program_of(found, {tid: samples}, period_ns)
    (kind,) = section.kinds
    assert (kind.calls, kind.timed) == (20_000, len(thread.rows))
    assert 0.02 < kind.timed / kind.calls < 0.2
    assert kind.wall_ns == pytest.approx(600 * MS, rel=0.01)
    assert (kind.p50_ns, kind.p90_ns) == (10_000, 60_000)
    assert kind.latency_ns.value == pytest.approx(30_000, rel=0.05)
    assert kind.tax_share.value == pytest.approx(1 - (96 + 96) / 600, abs=0.02)
    between = {part.name: part.time_ns for part in section.between}
    assert between["python"] == pytest.approx(100 * MS, rel=0.1)
    assert sum(between.values()) == pytest.approx(200 * MS, rel=0.03)
    assert "calls-timed-in-part" in {note.code for note in kind.notes}


def standing(numbers, total, cuts=(), begins=None, took=1):
    """Return what calls of a length stand for, in a program that does nothing else."""
    begins = np.array(numbers if begins is None else begins)
    rows = np.column_stack((begins, begins + took))
    return observed._standing(rows, rows[:, 1] - begins, np.array(numbers), total, cuts)


def test_calls_stand_for_those_before_them():
    weights = standing([0, 1, 2, 8, 9], 14).weights
    # Five between the stretches are as those after them, four at the end as all but the first.
    assert weights.tolist() == [1, 2, 2, 1 + 5 / 2 + 1, 1 + 5 / 2 + 1]
    assert standing([2, 3], 4).weights.tolist() == [2, 2]  # of two before them
    assert standing(range(5), 5).weights.tolist() == [1] * 5
    # One that is known stands for all.
    for number, total in ((0, 1), (0, 5), (3, 5)):
        assert standing([number], total).weights.tolist() == [total]
    assert standing([], 0).weights.tolist() == []


def test_stretches_stand_for_the_time_that_passed():
    """Two stretches of 2 calls after 10 that have no row: of 1 ns and of 3, nothing between."""
    took = np.array([1, 1, 1, 1, 3, 3])
    numbers = [0, 1, 12, 13, 24, 25]
    for between, expected in ((20, [10, 10]), (15, [15, 5]), (25, [5, 15])):
        begins = np.array([0, 1, 2 + between, 3 + between, 4 + 2 * between, 7 + 2 * between])
        found = standing(numbers, 26, (), begins, took)
        assert 2 * (found.weights[[2, 4]] - 1) == pytest.approx(expected)
        assert found.weights @ took == pytest.approx(10 + 2 * between)
    # Longer than the longest stretch: the program may have done something else.
    found = standing(numbers, 26, (), [0, 1, 1002, 1003, 2004, 2007], took)
    assert found.weights @ took == pytest.approx(10 + 60)
    assert (found.below_ns, found.above_ns) == pytest.approx((60, 2000 - 60))
    # No more than there was, where calls with a row take longer than the others.
    found = standing(numbers, 26, (), [0, 3, 16, 19, 32, 35], 3)
    assert found.weights @ np.full(6, 3) == pytest.approx(18 + 2 * 10)
    # One that took longer than all of that time stands for no other.
    took[-1] = 5000
    found = standing(numbers, 26, (), [0, 1, 22, 23, 44, 47], took)
    assert found.weights[-1] == pytest.approx(1, abs=0.01)


def test_samples_are_there_as_often_as_their_calls_count():
    assert observed._resampled(np.array([1.0, 3.0])).tolist() == [0, 1]
    assert observed._resampled(np.array([1.0, 1.0, 4.0])).tolist() == [0, 2, 2]
    assert observed._resampled(np.array([])).tolist() == []
    again = observed._resampled(np.array([1, 1, 4, 1, 1, 1]) * 1.7)
    assert len(again) == 6 and (again == 2).sum() in (2, 3)
    assert observed._resampled(np.full(7, 0.3)).tolist() == list(range(7))
    assert observed._percentile(np.array([5, 1, 3, 2]), np.array([1.0, 1, 1, 97]), 0.5) == 2
    hundred = [observed._percentile(np.arange(1, 101), np.ones(100), p) for p in (0, 0.5, 0.99, 1)]
    assert hundred == [1, 51, 100, 100]  # of two the higher one


@pytest.mark.parametrize("slow", [2000, 2010])  # without a row, and with one
def test_one_slow_call_stands_for_none_of_those_that_took_less_time_together(watched, slow):
    torch, clock, read = watched

    class Compiles(torch.nn.Module):
        calls = 0

        def forward(self):
            clock.pass_ms(5000 if self.calls == slow else 0.05)
            self.calls += 1

    net = Compiles()
    for _ in range(4000):
        net()
    found = read()
    (thread,) = found.threads.values()
    numbers, total = observed._numbers(thread.rows, thread.counted)
    took = thread.rows[:, 1] - thread.rows[:, 0]
    weights = observed._standing(thread.rows, took, numbers, total).weights
    assert weights.sum() == pytest.approx(4000)
    (section,) = program_of(found, {})
    # Where it has no row it is time between calls.
    expected = 200 * MS if slow == 2000 else 5200 * MS
    assert section.kinds[0].wall_ns == pytest.approx(expected, rel=0.1)


def test_the_time_of_calls_without_rows_has_the_share_that_calls_with_rows_have(watched):
    torch, clock, read = watched

    class Varies(torch.nn.Module):
        calls = spent = 0

        def forward(self):
            self.calls += 1
            ms = 2 if self.calls % 37 == 0 else 0.2
            self.spent += round(ms * MS)
            clock.pass_ms(ms)

    net = Varies()
    for _ in range(3000):
        net()
        clock.pass_ms(0.02)
    (section,) = program_of(read(), {})
    assert section.kinds[0].timed < 1500
    assert section.kinds[0].wall_ns == pytest.approx(net.spent, rel=0.01)


@pytest.mark.parametrize("rare", ["calls", "pauses", "both"])
@pytest.mark.parametrize("times", [30, 300])
def test_rare_slow_calls_are_in_the_time_of_all_and_rare_pauses_are_not(watched, rare, times):
    """One in a hundred takes as many times as long, of 20,000 calls of about 50 µs each."""
    torch, clock, read = watched
    random = Random(1)

    class Serves(torch.nn.Module):
        spent = 0

        def forward(self, ms):
            self.spent += round(ms * MS)
            clock.pass_ms(ms)

    net = Serves()
    for _ in range(20_000):
        call, pause = random.uniform(0.04, 0.06), random.uniform(0.02, 0.08)
        slow = [random.random() < 0.01, random.random() < 0.01]
        net(call * (times if rare != "pauses" and slow[0] else 1))
        clock.pass_ms(pause * (times if rare != "calls" and slow[1] else 1))
    found = read()
    (section,) = program_of(found, {})
    (kind,) = section.kinds
    assert kind.timed < kind.calls / 10
    assert kind.wall_ns == pytest.approx(net.spent, rel=0.15 if rare == "both" else 0.03)
    (thread,) = found.threads.values()
    numbers, total = observed._numbers(thread.rows, thread.counted)
    took = thread.rows[:, 1] - thread.rows[:, 0]
    standing = observed._standing(thread.rows, took, numbers, total)
    assert -standing.below_ns < net.spent - kind.wall_ns < standing.above_ns


@pytest.mark.parametrize(
    ("call_ms", "rare", "times", "long_pause"),
    [
        (0.05, 0.002, 100, 0),
        (0.05, 0.0005, 300, 0),
        (0.02, 0.01, 30, 0),
        (0.01, 0.0005, 100, 0.002),
    ],
)
def test_their_time_is_in_the_range_however_few_slow_calls_have_a_row(
    watched, call_ms, rare, times, long_pause
):
    """In 29 of 30 programs at least, where noting a call takes 3 µs after it."""
    torch, clock, read = watched
    spent = {}

    class Serves(torch.nn.Module):
        def forward(self, ms):
            spent[threading.get_native_id()] += round(ms * MS)
            clock.pass_ms(ms)

    net = Serves()

    def serve(seed):
        random = Random(seed)
        spent[threading.get_native_id()] = 0
        for _ in range(3000):
            net(call_ms * random.uniform(0.8, 1.2) * (times if random.random() < rare else 1))
            if next(iter(torch.threads.values())).noted:
                clock.pass_ms(0.003)
            pause_ms = 0.01 if long_pause else random.uniform(0.01, 0.03)
            clock.pass_ms(5.0 if random.random() < long_pause else pause_ms)

    for seed in range(30):
        thread = threading.Thread(target=serve, args=(seed,))
        thread.start()
        thread.join()
    found = {}
    for tid, thread in read().threads.items():
        numbers, total = observed._numbers(thread.rows, thread.counted)
        took = thread.rows[:, 1] - thread.rows[:, 0]
        standing = observed._standing(thread.rows, took, numbers, total)
        off_ns = spent[tid] - standing.weights @ took
        found[tid] = -standing.below_ns - 1 <= off_ns <= standing.above_ns + 1
    assert len(found) == 30 and sum(found.values()) >= 29


def test_calls_estimated_to_take_more_than_there_was_leave_no_library_a_negative_time():
    leaves = [PYTHON_LEAF]
    beside = observed.Samples(np.array([1, 2]), np.zeros(2, int), leaves, MS, sees_kernel=True)
    parts = observed._between(beside, 100 * MS, -5 * MS, 10 * MS)
    assert [(part.name, part.time_ns) for part in parts] == [("not sampled", -5 * MS)]


@pytest.mark.parametrize("total", [60, 100, 150])
def test_slow_calls_of_the_beginning_say_nothing_of_those_after_the_last_row(watched, total):
    torch, clock, read = watched

    class Warms(torch.nn.Module):
        calls = spent = 0

        def forward(self):
            self.calls += 1
            ms = 20 if self.calls <= 30 else 0.2
            self.spent += round(ms * MS)
            clock.pass_ms(ms)

    net = Warms()
    for _ in range(total):
        net()
    found = read()
    (section,) = program_of(found, {})
    (kind,) = section.kinds
    assert kind.timed < kind.calls == total
    assert kind.p50_ns == pytest.approx((0.2 if total > 60 else 20) * MS)
    assert kind.wall_ns == pytest.approx(net.spent, rel=0.02)
    assert section.wall_ns == pytest.approx(net.spent, rel=0.02)


def test_calls_that_are_counted_end_where_they_were_expected_or_the_next_row_begins():
    records = [  # begin, expected end, planned, left, begin of the next row, root
        (1000, 1100, 10, 0, 1150, 1),
        (1000, 1100, 10, 0, 1900, 1),  # the program did something else in between
        (1000, 1100, 10, 0, 0, 1),
        (1000, 1100, 10, 4, 0, 2),
        (1000, 1100, 10, 10, 1050, 1),  # none of them came
        (1000, 1100, 10, 0, 1050, 0),  # not written whole
    ]
    found = observed._counted(np.array([*np.ravel(records), 7, 7], np.int64))
    assert found.tolist() == [
        [1000, 1150, 1, 10], [1000, 1200, 1, 10], [1000, 1100, 1, 10], [1000, 1060, 2, 6],
    ]  # fmt: skip


@pytest.mark.parametrize(("detailed", "p50_ms"), [(20, 10), (21, 12)])
def test_calls_without_detail_are_the_latency_where_there_are_enough(watched, detailed, p50_ms):
    """Detail makes a call longer: 10 ms and 12 ms with it."""
    torch, clock, read = watched
    net = timed(torch, clock, 10)
    for _ in range(40):
        net()
        clock.pass_ms(5)
    found = read()
    (thread,) = found.threads.values()
    thread.details = thread.details[:detailed]
    thread.rows[:detailed, 1] += 2 * MS
    (section,) = program_of(found, {})
    assert (section.kinds[0].detailed, section.kinds[0].p50_ns) == (detailed, p50_ms * MS)


def test_time_in_a_closure_is_not_the_steps(watched):
    torch, clock, read = watched

    class Sgd(torch.optim.Optimizer):
        def step(self, closure):
            clock.pass_ms(1)
            closure()

    Sgd.step = torch.optim.Optimizer.profile_hook_step(Sgd.step)
    Sgd().step(timed(torch, clock, 5))
    (section,) = program_of(read(), {})
    assert {kind.kind: kind.wall_ns for kind in section.kinds} == {"module": 5 * MS, "step": MS}
    assert sum(part.time_ns for part in section.between) == 0


@pytest.mark.parametrize("device", ["cpu", "meta", "cuda"])
def test_what_has_no_parameters_runs_where_other_modules_do(watched, device):
    torch, clock, read = watched
    net, loss = timed(torch, clock, 10), timed(torch, clock, 10)
    net()
    begin = clock()
    for _ in range(10):
        loss()
        torch.autograd.backward(net)
    found = read()
    found.roots[1]["device"] = device
    (tid,) = found.threads
    thread = found.threads[tid]
    thread.details = [
        one._replace(cpu_ns=one.end_ns - one.begin_ns, queued_ns=0) for one in thread.details
    ]
    samples = [(at, PYTHON_LEAF) for at in range(begin, clock(), MS)]
    (section,) = program_of(found, {tid: samples})
    assert [(kind.kind, kind.calls) for kind in section.kinds] == [
        ("module", 10), ("backward", 10), ("module", 1),
    ]  # fmt: skip
    assert [kind.tax_share is not None for kind in section.kinds[:2]] == [device != "cuda"] * 2


def test_the_cost_of_noting_is_that_of_the_calls_noted(tmp_path):
    outer_ns, inner_ns = observed.measure_cost(tmp_path)
    assert outer_ns > inner_ns  # which one is larger does not depend on the machine
    assert len(observed.read_notes(tmp_path)[0].roots) == 2


# --- what is executed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "module"),
    [
        ("absent.py", None, False),
        ("no-such-program", None, False),
        ("no_such_module", None, True),
        ("json.no_such_module", None, True),
        ("table.csv", "a,b\n1,2 3\n", False),
        ("script", "#!/bin/sh\necho\n", False),
        ("/bin/ls", None, False),
        ("/dev/null", None, False),  # as a pipe, which can be read once
        ("/proc/self/mem", None, False),  # a file that cannot be read
        ("ls", None, False),
    ],
)
def test_what_is_no_python_program_is_refused(tmp_path, monkeypatch, name, content, module):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(UsageError):
        launch.command(name, [], module=module)


def test_a_module_that_a_finder_of_its_own_finds_is_executed(monkeypatch):
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            is_own = name == "installed_in_place"
            return importlib.util.spec_from_loader(name, None) if is_own else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    name = "installed_in_place"
    assert launch.command(name, [], module=True) == [sys.executable, "-m", name]
    with pytest.raises(UsageError):
        launch.command(f"{name}.nothing", [], module=True)


def test_what_is_executed(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    Path("odd").write_text("1 is 1")  # Python warns of it, once it is run
    assert launch.command("odd", [], module=False) == [sys.executable, "odd"]
    assert not recwarn
    Path("broken.py").write_text("(")  # Python says what is wrong with it
    Path("app").mkdir()
    Path("app/__main__.py").write_text("")
    python = sys.executable
    monkeypatch.setenv("PATH", str(Path(python).parent))
    assert launch.command("broken.py", ["-m"], module=False) == [python, "broken.py", "-m"]
    assert launch.command("app", [], module=False) == [python, "app"]
    assert launch.command("json.tool", ["-"], module=True) == [python, "-m", "json.tool", "-"]
    assert launch.command("pytest", ["-q"], module=False)[1:] == ["-q"]


def test_a_program_is_run_by_the_python_that_it_names_and_a_script_by_this_one(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("tool", "tool.py"):
        Path(name).write_text("#!/other/bin/python3\n")
    assert launch.command("tool", [], module=False) == [sys.executable, "tool"]
    for name in ("tool", "tool.py"):
        Path(name).chmod(0o700)
    assert launch.command("tool", ["-v"], module=False) == [str(tmp_path / "tool"), "-v"]
    assert launch.command("tool.py", [], module=False) == [sys.executable, "tool.py"]


def test_an_interpreter_is_executed_by_its_path_and_beside_a_folder_of_its_name(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("bin").mkdir()
    own = Path("bin/python")
    own.symlink_to(sys.executable)
    assert launch.command("bin/python", ["a.py"], module=False) == ["bin/python", "a.py"]
    assert launch.command(str(own.absolute()), [], module=False) == [str(own.absolute())]
    Path("python").mkdir()
    monkeypatch.setenv("PATH", str(Path("bin").absolute()))
    assert launch.command("python", ["a.py"], module=False) == [str(own.absolute()), "a.py"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"by": "layer"}, {"only": "("}, {"record": Path("inputs.txt")}, {"values": True}),
        {"record": Path(os.path.relpath(__file__))},
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(wrong):
    with pytest.raises(UsageError):
        running.run_program(__file__, [], **wrong)


# --- the answer -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="signals are waited for on Linux")
def test_an_alarm_of_the_command_is_the_programs():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(3600)"],
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
    )
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        assert launch._wait(child.pid, None, {signal.SIGALRM}) == -signal.SIGALRM
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.wait()


STOPPED = """
import sys
from pathlib import Path
from frameworktax.programs import launch

command = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()"]
raise SystemExit(launch.run(command, Path(sys.argv[1]), by="none", inputs="").status)
"""


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="signals are waited for on Linux")
@pytest.mark.parametrize("is_sent_to_both", [False, True])
def test_the_command_stops_and_goes_on_with_its_program(tmp_path, is_sent_to_both):
    send = os.killpg if is_sent_to_both else os.kill
    command = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # with a parent of another group of its session: signals stop it
    )
    pid = int(command.stdout.readline())
    try:
        for _ in range(3):
            send(command.pid, signal.SIGTSTP)
            _, status = os.waitpid(command.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTSTP
            if not is_sent_to_both:  # else either may be the first to stop
                assert stat_fields(Path(f"/proc/{pid}"))[0] == "T"
            send(command.pid, signal.SIGCONT)
            _, status = os.waitpid(command.pid, os.WCONTINUED)
            assert os.WIFCONTINUED(status)
            while stat_fields(Path(f"/proc/{pid}"))[0] == "T":
                time.sleep(0.001)
    finally:
        os.killpg(command.pid, signal.SIGCONT)
        command.communicate("on")
    assert command.returncode == 0


def kind_with(inputs, tmp_path, **construction):
    return observed.Kind(
        kind="module", name="Net", source=f"{tmp_path}/net.py:3", called_from="", calls=1,
        skipped=0, import_name="__main__:Net", wall_ns=1, inputs=((inputs, 1),), detailed=1,
        construction=construction,
    )  # fmt: skip


def test_inputs_become_a_function_that_makes_them(tmp_path):
    seen = [[{"shape": [2, 3], "dtype": "torch.int64"}, [True, None]], {}]
    script = tmp_path / "net.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\n# \xfc\nnet = Net()")
    kind = kind_with(seen, tmp_path, script=str(script))
    said = inputs.write(kind, tmp_path / "inputs.py", tmp_path)
    source = (tmp_path / "inputs.py").read_text()
    compile(source, "inputs.py", "exec")
    assert "torch.ones([2, 3], dtype=torch.int64), [True, None]" in source
    assert "import net\n" in source and "net.Net()" in source
    assert len(said) == 2  # how Net was made is not known, and importing net.py runs it
    assert inputs.batch(kind) == 2
    assert not (tmp_path / "inputs.npz").exists()


def test_inputs_are_a_part_of_all_calls_whose_inputs_were_noted(tmp_path):
    many, few = ([[{"shape": [n, 3], "dtype": "torch.int64"}], {}] for n in (2, 4))
    kind = replace(kind_with(many, tmp_path), inputs=((many, 19), (few, 4)), detailed=17)
    inputs.write(kind, tmp_path / "inputs.py", tmp_path)
    assert "as in 19 of 23 calls" in (tmp_path / "inputs.py").read_text()


def test_inputs_replace_those_of_an_earlier_run_and_no_other_file(tmp_path):
    path = tmp_path / "inputs.py"
    assert inputs.is_replaceable(path)
    kind = kind_with([[{"shape": [2, 3], "dtype": "torch.int64"}], {}], tmp_path)
    inputs.write(kind, path, tmp_path)
    assert inputs.is_replaceable(path)
    path.write_text("import torch\n")
    with pytest.raises(UsageError, match="other content"):
        running.run_program(__file__, [], record=path)
    assert path.read_text() == "import torch\n"


@pytest.mark.parametrize(
    ("script", "name", "said"),
    [
        ("train.py", "train", 0),
        ("train-net.py", "train_net", 1),
        ("3d", "_3d", 1),
        (None, "_", 1),  # python -c
    ],
)
def test_a_class_is_imported_from_the_program_wherever_its_forward_is(tmp_path, script, name, said):
    at = script and tmp_path / script
    if at:
        at.write_text("if __name__ == '__main__': Net()")
    kind = kind_with(
        [[{"type": "float", "value": 0.5}], {}], "torch/nn/modules", script=script and str(at),
        make="__main__.Net(width=3)", imports=["__main__"], missing=[], forward=["x"],
    )  # fmt: skip
    assert len(inputs.write(kind, tmp_path / "inputs.py", tmp_path)) == said
    source = (tmp_path / "inputs.py").read_text()
    compile(source, "inputs.py", "exec")
    assert f"    import {name}\n" in source and f"module = {name}.Net(width=3)" in source


def test_what_has_no_source_is_left_out_and_said(tmp_path):
    given = [{"type": "float", "value": 0.5}] * 3
    made = {"make": "net.main.<locals>.Net()", "imports": ["net"], "missing": []}
    kind = kind_with([given, {"y": {"type": "Cache"}}], tmp_path, forward=["x"], **made)
    assert len(inputs.write(kind, tmp_path / "inputs.py", tmp_path)) == 3
    source = (tmp_path / "inputs.py").read_text()
    compile(source, "inputs.py", "exec")
    assert "return module.eval(), {'x': 0.5}" in source


@pytest.mark.parametrize(
    ("dtype", "made"),
    [("bfloat16", "randn"), ("float64", "randn"), ("float8_e5m2", "ones"), ("bool", "ones")],
)
def test_tensors_are_drawn_of_types_that_torch_draws(tmp_path, dtype, made):
    given = [[{"shape": [2], "dtype": f"torch.{dtype}"}], {}]
    inputs.write(kind_with(given, tmp_path, make="net.Net()"), tmp_path / "i.py", tmp_path)
    assert f"torch.{made}([2], dtype=torch.{dtype})" in (tmp_path / "i.py").read_text()


def test_names_beyond_16_bits_are_the_same_in_the_source(tmp_path):
    folder = tmp_path / "\N{GRINNING FACE}"
    folder.mkdir()
    script = folder / "net.py"
    script.write_text("if __name__ == '__main__': Net()")
    given = [[{"\N{GRINNING FACE}": True}], {}]
    made = {"make": "__main__.Net()", "imports": ["__main__"], "missing": []}
    kind = kind_with(given, tmp_path, script=str(script), **made)
    inputs.write(kind, tmp_path / "i.py", tmp_path)
    tree = ast.parse((tmp_path / "i.py").read_bytes())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert {str(folder), "\N{GRINNING FACE}"} <= texts


def test_values_are_arrays_without_pickle_and_what_is_left_out_is_said(tmp_path):
    (tmp_path / "7.values").write_bytes(struct.pack("<2f", 9, 9) + struct.pack("<4H", 1, 2, 3, 4))
    seen = [
        [{"shape": [2, 2], "dtype": "torch.bfloat16", "kept": [7, 8, 8]}, {"type": "Cache"}],
        {"scale": {"type": "float", "value": 0.5}, "big": {
            "shape": [1], "dtype": "torch.float32", "left_out": 4}},
    ]  # fmt: skip
    made = {"make": "torch.nn.Linear(bias=None)", "imports": [], "missing": ["n of Linear"]}
    kind = kind_with(seen, tmp_path, forward=["x", "cache"], parameters=3, **made)
    said = inputs.write(kind, tmp_path / "inputs.py", tmp_path)
    source = (tmp_path / "inputs.py").read_text()
    compile(source, "inputs.py", "exec")
    assert "torch.nn.Linear(bias=None)" in source
    assert "'x': torch.from_numpy(values[\"0\"]).view(torch.bfloat16), 'scale': 0.5" in source
    assert "'cache'" not in source
    assert len(said) == 3  # n, the cache, the large tensor
    with np.load(tmp_path / "inputs.npz", allow_pickle=False) as values:
        assert values["0"].tolist() == [[1, 2], [3, 4]]


def test_a_type_that_a_package_gives_numpy_is_kept_as_integers():
    pytest.importorskip("ml_dtypes")  # numpy.save would write it as bytes without a type
    assert inputs._numpy_type("torch.bfloat16", 2) == np.int16
    assert inputs._numpy_type("torch.float16", 2) == np.float16
    assert inputs._numpy_type("torch.float8_e5m2", 0) == np.int8


def test_values_are_kept_within_a_bound(watched, tmp_path, monkeypatch):
    torch, *_ = watched
    data = (ctypes.c_char * 24)(*b"abcdefghijklmnopqrstuvwx")

    class Tensor:
        layout = 0

        def __getattr__(self, name):
            known = {"numel": 6, "element_size": 4, "data_ptr": ctypes.addressof(data)}
            return lambda: known.get(name, self)

    torch.Tensor, torch.strided, torch.nn.Parameter = Tensor, 0, object
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(calls, "MOST_BYTES", 50)
    recorder = calls.Recorder(str(tmp_path), "none", "values")
    kept = [recorder.keep(Tensor()) for _ in range(3)]
    assert kept == [{"kept": [recorder.pid, 24 * n, 24]} for n in (0, 1)] + [{"left_out": 24}]
    assert (tmp_path / f"{recorder.pid}.values").read_bytes() == data.raw * 2
    assert [recorder.keep(one) for one in (3, "a", "a" * 1000)] == [
        {"value": 3},
        {"value": "a"},
        {},
    ]


def test_many_threads_that_call_the_same_are_as_one_that_makes_all_their_calls(watched):
    torch, clock, read = watched
    net = timed(torch, clock, 6, timed(torch, clock, 4))
    for _ in range(40):
        net()
    found = read()
    (tid,) = found.threads
    alone = found.threads[tid]
    alone.details = [
        one._replace(cpu_ns=one.end_ns - one.begin_ns, queued_ns=0) for one in alone.details
    ]
    caught = [
        (begin + at * MS + MS // 2, KERNEL_LEAF if at % 10 >= 6 else PYTHON_LEAF)
        for begin in alone.rows[:, 0].tolist()
        for at in range(10)
    ]
    (one,) = program_of(found, {tid: caught})

    found.threads, samples = {}, {}
    for number, row in enumerate(alone.rows):
        move = number * 3 * MS - int(row[0])  # the next one begins while three of them run
        thread = tid + 1 + number
        found.names[thread] = f"Thread-{number} (work)"
        found.threads[thread] = observed.ThreadNotes(
            rows=row[None] + np.array([move, move, 0]),
            details=[d.moved(move) for d in alone.details if d.begin_ns == row[0]],
            modules=alone.modules,
        )
        samples[thread] = [
            (time_ns + move, leaf) for time_ns, leaf in caught[10 * number : 10 * number + 10]
        ]
    (many,) = program_of(found, samples)
    assert (many.tid, many.threads, many.name) == (None, 40, "40 threads, Thread-N (work)")
    assert many.kinds == one.kinds
    assert len(many.kinds[0].layers) > 1 and many.kinds[0].tax_share.value == pytest.approx(0.6)
    assert (many.wall_ns, many.cpu_ns) == (40 * 10 * MS, 40 * 10 * MS)

    # Samples of a thread before its first call are its processor time, and none of a call.
    early = {thread: [(-MS, PYTHON_LEAF), *own] for thread, own in samples.items()}
    (more,) = program_of(found, early)
    assert (more.cpu_ns, more.kinds, more.between) == (440 * MS, many.kinds, many.between)

    # What another thread computes meanwhile is said of these as of one.
    helper = {tid + 100: [(at * MS, KERNEL_LEAF) for at in range(120)]}
    sections = program_of(found, samples | helper)
    assert [len(section.kinds) for section in sections] == [1, 0]
    assert sections[0].kinds[0].tax_share is None and "60%" in sections[0].kinds[0].reason

    # A thread that calls something else, and the main one, have their own section.
    other = found.roots[1] | {"root": 2, "class": "Other"}
    found.roots[2] = other
    for thread in (tid + 200, found.pid):
        rows = alone.rows[:1] + np.array([0, 0, int(thread != found.pid)])
        found.threads[thread] = observed.ThreadNotes(rows=rows)
    sections = program_of(found, {})
    assert [section.threads for section in sections] == [40, 1, 1]
    assert {section.tid for section in sections} == {None, tid + 200, found.pid}
    assert sum(kind.calls for section in sections for kind in section.kinds) == 42


def test_calls_without_a_row_are_like_those_of_their_own_thread(monkeypatch):
    """Of 40 threads: the first call of each is slow, four more have rows, and ten are counted."""
    found = observed.ProcessNotes(1, roots={1: {"kind": "module", "class": "Net"}})
    for number in range(40):
        begins = 100 * MS * number + np.array([0, 50, 52, 54, 56]) * MS
        ends = begins + np.array([50, 1, 1, 1, 1 + number]) * MS
        counted = np.array([[ends[-1], ends[-1] + 20 * MS, 1, 10]])
        rows = np.column_stack((begins, ends, np.ones(5, int)))
        found.threads[2 + number] = observed.ThreadNotes(rows=rows, counted=counted)
    (joined,) = program_of(found, {})
    monkeypatch.setattr(observed, "MANY", 40)
    alone = program_of(found, {})
    assert (joined.threads, len(alone)) == (40, 40)
    for name in ("calls", "timed", "wall_ns"):
        assert getattr(joined.kinds[0], name) == sum(getattr(one.kinds[0], name) for one in alone)
    assert joined.wall_ns == sum(one.wall_ns for one in alone)
    weights = standing([0, 1, 5, 9], 12, [5, 7, 8, 12]).weights
    assert weights.tolist() == [1, 4, 2, 5]  # none is known of 8 to 12 but 9, of 7 to 8 none


def test_the_headline_counts_all_threads_that_call(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("")
    kind = kind_with([], tmp_path)
    many = [
        Section(pid=1, tid=tid, threads=threads, name="", wall_ns=1, cpu_ns=0, kinds=(kind,))
        for tid, threads in ((None, 40), (1, 1))
    ]
    ended = launch.Ended(1, 0, 0, 10, None, True, 0, "not allowed")
    monkeypatch.setattr(launch, "run", lambda *_, **__: ended)
    monkeypatch.setattr(observed, "sections", lambda *_, **__: many)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"frameworktax-run-{'0d' * 8}").mkdir()
    program = running.run_program(str(tmp_path / "a.py"), [])
    assert not list(tmp_path.glob("frameworktax-run-*"))
    assert program.sections == tuple(many)
    assert "in 40 of 41 threads" in program.headline


def test_the_share_of_lost_samples_is_said(tmp_path, monkeypatch):
    sampler = TreeSampler.__new__(TreeSampler)  # opens no event
    sampler.samples = TreeSamples(pid=array("i", [1] * 30))
    ring = Mock(take=lambda: b"", newly_lost=lambda data: 5)
    sampler._rings = [ring, ring]
    sampler.drain()
    (tmp_path / "a.py").write_text("")
    ended = launch.Ended(1, 0, 0, 10, sampler.samples, True, 10, None)
    monkeypatch.setattr(launch, "run", lambda *_, **__: ended)
    monkeypatch.setattr(observed, "samples_of", lambda _: {})
    monkeypatch.setattr(observed, "sections", lambda *_, **__: [])
    notes = {note.code: note.text for note in running.run_program(str(tmp_path / "a.py"), []).notes}
    assert notes["samples-lost"].startswith("10 of 40 ")


def test_what_a_thread_without_calls_waits_is_no_part_of_its_processor_time():
    parts = [
        Part(name=name, time_ns=ns, share=ns / 500)
        for name, ns in (("python", 100), ("waits", 400))
    ]
    section = Section(pid=1, tid=1, name="", wall_ns=500, cpu_ns=100, between=tuple(parts))
    program = Program(
        verb="run", command=("a",), headline="a", wall_ns=500, cpu_ns=100, period_ns=1,
        sections=(section,),
    )  # fmt: skip
    (found,) = [block for block in program_blocks(program) if isinstance(block, Table)]
    assert found.rows[0][-1].text == "python 100 %"


@pytest.mark.parametrize(("hidden", "tables"), [(0, 1), (2, 0)])
def test_a_thread_whose_calls_were_not_asked_for_is_none_without_calls(hidden, tables):
    part = Part(name="python", time_ns=4, share=0.8)
    section = Section(
        pid=1, tid=1, name="", wall_ns=5, cpu_ns=5, hidden=hidden, between=(part, part)
    )  # fmt: skip
    program = Program(
        verb="run", command=("a",), headline="a", wall_ns=5, cpu_ns=5, period_ns=1,
        sections=(section,),
    )  # fmt: skip
    found = [block for block in program_blocks(program) if isinstance(block, Table)]
    assert len(found) == tables


def test_a_module_made_for_each_call_is_few_rows_and_one_note():
    kinds = tuple(
        Kind(
            kind="module", name=f"ReLU #{n}", source="", called_from="", import_name="", calls=1,
            skipped=0, wall_ns=1000, p50_ns=1000, p90_ns=1000, p99_ns=1000, reason="too short",
        )
        for n in range(3000)
    )  # fmt: skip
    program = Program(
        verb="run", command=("a",), status=0, headline="a", wall_ns=9, cpu_ns=None, period_ns=None,
        sections=(Section(pid=1, tid=1, name="", wall_ns=9, cpu_ns=0, kinds=kinds),),
    )  # fmt: skip
    blocks = program_blocks(program)
    tables = [block for block in blocks if isinstance(block, Table) and block.rows]
    assert [(len(one.rows), one.folded) for one in tables] == [(10, False), (190, True)]
    (notes,) = [block for block in blocks if isinstance(block, Notes)]
    assert [note.who for note in notes.notes] == ["ReLU #0, ReLU #1, ReLU #2 and 2,997 more"]


def test_a_program_without_calls_says_so():
    program = Program(
        verb="run", command=("a",), status=0, headline="a", wall_ns=1, cpu_ns=None, period_ns=None,
        notes=(Note("no-calls", "none"),),
    )  # fmt: skip
    blocks = program_blocks(program)
    assert not [block for block in blocks if isinstance(block, Table)]
    (notes,) = [block for block in blocks if isinstance(block, Notes)]
    assert [(note.code, note.severity) for note in notes.notes] == [("no-calls", "warning")]
    assert json_document.dump(program)["schema"] == "frameworktax.program"
    jsonschema.validate(json_document.dump(program), json_document.schema(Program))


@pytest.mark.parametrize(
    ("calls", "said"), [(1, "1 time,"), (2, "2 times,"), (3000, "3,000 times,")]
)
def test_how_often_it_was_called_is_counted_in_words_that_fit(calls, said):
    top = types.SimpleNamespace(
        kind="module", name="Net", calls=calls + 5, skipped=5, wall_ns=10, tax_share=None
    )
    ((advice, _),) = running._advice([], top, None, Path())
    assert f" {said}" in advice


def section_with(*kinds):
    return Section(pid=1, tid=1, name="", wall_ns=20, cpu_ns=0, kinds=kinds)


def test_what_lies_between_calls_is_no_time_of_calls():
    made = {
        kind: Mock(kind=kind, wall_ns=ns, tax_share=None, calls=2, skipped=0)
        for kind, ns in {"module": 3, "backward": 2, "step": 1, "data": 9, "tokenise": 8}.items()
    }
    both, waits = section_with(*made.values()), section_with(made["data"])
    assert "calls took 6 ns of 20 ns;" in running._headline("a", 20, [waits, both], made["module"])
    for only, said in ((None, "no calls of torch modules"), ("Data", "no calls with 'Data'")):
        assert said in running._headline("a", 20, [waits], None, only)


def test_where_all_calls_are_left_out_the_headline_says_how_many_there_were():
    left_out = Mock(kind="module", calls=20, skipped=20, wall_ns=0, tax_share=None)
    section = section_with(left_out)
    assert running.most_tax([section]) is None
    said = running._headline("a.py", 9, [section], None)
    assert "--skip-first leaves out all of its 20 calls" in said
    left_out.kind = "data"
    assert "no calls of torch modules" in running._headline("a.py", 9, [section], None)


def share_of(value, half):
    return Estimate(value=value, low=value - half, high=value + half, method="", n=3)


@pytest.mark.parametrize(
    ("half", "said", "unsaid"),
    [(0.199, "30 ±20 % of its time", "determined"), (0.201, "(10 to 50 %)", "30")],
)
def test_a_tax_that_is_not_determined_is_no_number_of_the_headline(half, said, unsaid):
    top = types.SimpleNamespace(
        kind="module", name="Net", calls=2, skipped=0, wall_ns=10, tax_share=share_of(0.3, half)
    )
    section = section_with(top)
    headline = running._headline("a.py", 20, [section], top)
    assert said in headline and unsaid not in headline
    ((advice, _),) = running._advice([section], top, None, Path())
    assert ("30 %" in advice) == ("pays most" in advice) == (half < 0.2)


@pytest.mark.parametrize(
    ("share", "other_ns", "said"),
    [
        (None, 10, []),
        (share_of(0.3, 0.1), 2, ["pays most:"]),
        (share_of(0.3, 0.1), 4, ["pays most of those whose tax is known:"]),
    ],
)
def test_a_module_pays_most_only_where_none_of_unknown_tax_may_pay_more(share, other_ns, said):
    top = Mock(kind="module", calls=2, skipped=0, wall_ns=10, tax_share=share)
    other = Mock(kind="module", wall_ns=other_ns, tax_share=None, calls=2, skipped=0)
    section = section_with(top, other)
    headline = running._headline("a.py", 20, [section], top)
    ((advice, _),) = running._advice([section], top, None, Path())
    for text in (headline, advice):
        assert re.findall("pays most.*?:", text) == said


@pytest.mark.parametrize("libraries", [6, 7, 8])
def test_one_library_more_than_are_named_is_named_too(libraries):
    leaves = [observed.Leaf(f"lib{number}.so", "") for number in range(libraries)]
    samples = observed.Samples(np.arange(libraries), np.arange(libraries), leaves, 10, True)
    found = observed._between(samples, 100, 100, None)
    names = [f"lib{n}.so" for n in range(libraries if libraries < 8 else 6)]
    others = [] if libraries < 8 else ["2 other libraries"]
    assert [part.name for part in found] == [*names, *others, "off the processor"]
    assert sum(part.time_ns for part in found) == 100


def test_calls_that_are_left_out_are_not_among_those_of_a_row():
    kind = Kind(
        kind="module", name="Net", source="", called_from="", import_name="", calls=375,
        skipped=100, wall_ns=1000, p50_ns=4, p90_ns=4, p99_ns=4, reason="too short",
    )  # fmt: skip
    loader = replace(kind, kind="data", name="DataLoader")
    section = Section(pid=1, tid=1, name="", wall_ns=9, cpu_ns=0, kinds=(kind, loader))
    program = Program(
        verb="run", command=("a",), status=0, headline="a", wall_ns=9, cpu_ns=None, period_ns=None,
        sections=(section,),
    )  # fmt: skip
    tables = [block for block in program_blocks(program) if isinstance(block, Table)]
    assert [one.rows[0][1].text for one in tables] == ["275", "275"]
