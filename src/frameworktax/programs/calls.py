"""What an observed program notes about itself: when the calls of its modules begin and end.

Loaded by path into every Python process of the program, before the program (``launch`` writes the
``sitecustomize`` that does). So it needs nothing but the standard library, imports next to nothing
until torch is imported, and then replaces a few of torch's functions:

- ``Module.__call__``: a call with no other call under way in its thread is a call of the program;
- ``Tensor.backward``, ``autograd.backward``, ``autograd.grad`` and the steps of optimisers;
- the next batch of a ``DataLoader``, and the tokenisers of ``transformers``.

Each call is one row in a file that is mapped into memory: what was written stays, however the
process ends. Two budgets bound what that costs:

- some calls are noted in detail: CPU time, time in the run queue, and when each module inside was
  entered and left. They are chosen so that this costs ``DETAIL`` of the calls' time;
- where rows would cost more than ``ROWS`` of the time, only stretches of consecutive calls have
  rows. Those between are counted, all of them; how many they are varies by a seeded draw, so that
  a program with a rhythm of its own is not met at the same places. In a thread all kinds of calls
  that come often pause together.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from _random import Random
from _thread import RLock, _local, get_ident, get_native_id
from array import array
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import count
from math import inf
from resource import RUSAGE_THREAD, getrusage

TYPE_CHECKING = False  # typing takes 5 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

now = time.perf_counter_ns

DETAIL = 0.005
"""Share of the time in calls that notes in detail may cost."""
BASE_NS, MODULE_NS = 75_000, 5_000
"""What detail is taken to cost a call, and for each module called in it: in a program, whose model
fills the caches between two calls. In a loop it costs a third of that."""
FIRST = 2
"""Calls of each module that are noted in detail whatever it costs."""
ROWS, ROW_NS = 0.005, 15_000
"""Share of a thread's time that rows may cost, and what one is taken to cost. What it all comes to
is measured by ``benchmarks/run_cost.py``."""
STRETCH, MOST_COUNTED = 8, 128
"""Calls with rows in a stretch, and calls after it that are counted only, at most on average: how
many are left is one byte."""
CHUNK_WORDS = 1 << 13
"""The most of a chunk. A thread's first one is a page: a server may start one for each request."""
MOST_WORDS = 1 << 26
"""Of one process; further calls are not noted, and the file says so."""
KINDS = ("calls", "names", "values")
"""Of a process's files; ``unwritten`` is of all programs that it executes."""
LIGHT, DETAILED, COUNTED = 1, 2, 3
"""Kinds of chunks; each begins with its length in words, kind and thread."""
HEAD = 3
COUNTED_WORDS, LEFT = 6, 3
"""Begin, when it is expected to end, how many calls, how many of them are to come, end, root."""
__tracebackhide__ = True
"""pytest prints no frames of this module: with an error they would be on standard output."""
MAP_FIXED = 0x10
"""Of Linux: in the place of what is mapped there."""
LOW_BYTE = 0 if sys.byteorder == "little" else 7
MOST_BYTES, MOST_INPUTS = 1 << 26, 64
"""Values of inputs that a process keeps, and calls that they are of."""
NOT_COUNTED = -1 << 63
"""Time in the run queue that the system does not count."""
OWN = __file__.rpartition("/programs/")[0]
STANDARD = os.__file__.rpartition("/")[0] + "/"
"""Where the standard library is."""


class Recorder:
    """Everything that one process notes."""

    def __init__(self, folder: str, by: str, inputs: str) -> None:
        self.folder, self.by, self.inputs = folder, by, inputs
        self.roots: dict[Any, Root] = {}
        """By a hash of what modules have in common, see ``known``; else by their name."""
        self.modules: dict[int, Known] = {}
        self.threads: dict[int, Thread] = {}
        self.calls: dict[Any, Calls] = {}
        """The main thread's."""
        self.latest = [Calls(Root(0))]
        """Of these, the module's that was called last: a look at it is cheaper than finding it."""
        self.inside: list[bool | None] = [False]
        """Whether the only thread is in a call of which nothing is noted inside; None where the
        main thread is in another one."""
        self.unwritten: Any = bytearray(1)
        """Not 0 where something could not be written."""
        self.reset()

    def reset(self) -> None:
        """Begin anew: at the start, and in a forked child, whose file is its own."""
        self.pid = os.getpid()
        self.lock = RLock()  # a signal's handler may call a module while one is registered
        for thread in self.threads.values():
            thread.last = 0  # calls that are under way are the parent's to keep
        self.local = _local()
        self.threads.clear()
        self.calls.clear()
        self.home: Thread | None = None
        self.latest[0], self.inside[0] = Calls(Root(0)), False
        self.roots.clear()
        self.numbers = count(1)
        self.modules.clear()
        self.words = 0
        self.is_new = True
        self.kept: set[tuple[int, str]] = set()
        self.kept_bytes = 0
        self.full = False

    # --- files ---

    def open(self, kind: str) -> int:
        """Return a descriptor of a file of this process: its calls, names or values.

        It is closed after each use: a program may close numbers that it did not open, as a daemon
        does, and get the same ones for files of its own.
        """
        if self.is_new and kind in KINDS:
            self.is_new = False
            self.forget()
        path = f"{self.folder}/{self.pid}.{kind}"
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def forget(self) -> None:
        """Remove the files of the program that this process was before an exec, and say so."""
        paths = (f"{self.folder}/{self.pid}.{kind}" for kind in KINDS)
        earlier = [path for path in paths if os.path.exists(path)]
        for path in earlier:  # all at once: names of one are none of the other's calls
            os.unlink(path)
        if earlier:
            self.say({"full": "its calls before it executed another program are left out"})

    def append(self, kind: str, data: bytes) -> int:
        """Write at the end of such a file; return how many bytes were written."""
        file = self.open(kind)
        try:
            return os.write(file, data)
        finally:
            os.close(file)

    def share(self) -> None:
        """Let what is forked from this process say in its file that something is not written.

        Of a server that goes on as another user nothing can be: the file is mapped before that.
        """
        from contextlib import suppress

        with suppress(OSError):
            self.unwritten = self.mapped("unwritten", mmap.PAGESIZE, 0)

    def mapped(self, kind: str, size: int, offset: int) -> mmap.mmap:
        """Return new memory that is a part of a file of this process.

        ``mmap`` would keep a descriptor of the file, so memory without one is made its part.
        """
        import ctypes

        made = mmap.mmap(-1, size)
        at = ctypes.addressof(ctypes.c_char.from_buffer(made))
        number, long, address = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
        call = ctypes.CDLL(None, use_errno=True).mmap
        call.restype, call.argtypes = address, (address, long, number, number, number, long)
        file = self.open(kind)
        try:
            os.posix_fallocate(file, offset, size)  # a full disk is found here
            access = mmap.PROT_READ | mmap.PROT_WRITE
            if call(at, size, access, mmap.MAP_SHARED | MAP_FIXED, file, offset) != at:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(file)
        return made

    def chunk(self, kind: int, words: int) -> memoryview:
        """Return new room for so many words of this thread at least.

        Where the file has none it is in memory, and what is noted there is lost.
        """
        page = mmap.PAGESIZE // 8
        words = -(-words // page) * page
        room: Any
        with self.lock:
            at = self.words
            self.words = until = at + words  # now: a signal's handler may need room next
            try:
                if until > MOST_WORDS:
                    raise OSError("there are more than are noted of one process")
                room = self.mapped("calls", 8 * words, 8 * at)
            except OSError as error:
                self.words = at if self.words == until else self.words
                room = bytearray(8 * words)
                if not self.full:
                    self.full = True
                    reason = error.strerror or str(error)
                    self.say({"full": f"its later calls are missing: {reason}"})
        found = memoryview(room).cast("q")
        found[1], found[2] = kind, get_native_id()
        found[0] = words
        return found

    def say(self, known: dict[str, Any]) -> None:
        """Write a line of what words are needed for, or where it cannot be, that it is missing."""
        import json

        try:
            self.append("names", (json.dumps(known) + "\n").encode())
        except OSError:  # a full disk, too many open files, another user: the program goes on
            self.unwritten[0] = 1

    # --- calls ---

    def thread(self) -> Thread:
        """Return what the calling thread notes with from here on."""
        tid = get_ident()
        # First: one that a signal's handler left forgets its own.
        self.local.leaving = Leaving(self.threads, tid)
        made = self.threads[tid] = Thread(self)
        threading = sys.modules["threading"]  # torch imports it
        name = threading.current_thread().name
        if threading.main_thread().ident == tid:
            self.home, made.calls = made, self.calls
        known = {"thread": get_native_id(), "name": name}
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None:
            known["process"] = processes.current_process().name
        with self.lock:
            self.say(known)
        return made

    def known(self, module: Any) -> Known:
        """Return what is known of a module that the program calls.

        Those of one structure that are called from one place are one kind: an ensemble, or a model
        that is made anew for each request.
        """
        from contextlib import suppress
        from weakref import ref

        key = id(module)
        if key in self.modules:
            return self.modules[key]
        like: Any = object()  # as none
        known: dict[str, Any] = {"kind": "module", "class": type(module).__name__}
        inside: list[tuple[str, Any]] = []
        with suppress(Exception):  # whatever a class of the program raises, its call goes on
            known |= {**about(module), "called": caller(), "device": device(module)}
            inside = list(getattr(module, "_orig_mod", module).named_modules())
            like = hash((*known.values(), *structure(module, inside)))
        if self.by == "none":
            inside = []
        root = self.roots.get(like)
        if root is None:
            if self.inputs:
                known["script"] = getattr(sys.modules["__main__"], "__file__", None)
            with suppress(Exception):
                known["modules"] = [{"path": path, **about(one)} for path, one in inside]
                if self.inputs:
                    known |= construction(module)
            root = self.register(like, known)

        def forget(_: Any) -> None:  # before another module can have the number
            self.modules.pop(key, None)
            for thread in list(self.threads.values()):
                thread.calls.pop(key, None)

        indices = {id(one): index for index, (_, one) in enumerate(inside)}
        with self.lock:  # another thread may have been here
            return self.modules.setdefault(key, Known(root, indices, ref(module, forget)))

    def see(self, root: Root, given: tuple[Any, Any]) -> None:
        """Note what a module is called with; values of the first call with such shapes, if asked.

        Values that are no tensors, numbers or text, or too many, are not kept.
        """
        from contextlib import suppress

        if is_tracing():
            return
        with suppress(Exception):  # whatever an object of the program raises, its call goes on
            seen = shapes(given)
            known = {"inputs": root.index, "seen": seen}
            key = (root.index, str(seen))
            if self.inputs == "values" and key not in self.kept and len(self.kept) < MOST_INPUTS:
                self.kept.add(key)
                with self.lock:
                    known["values"] = shapes(given, self.keep)
            self.say(known)

    def keep(self, value: Any) -> dict[str, Any]:
        """Return a value, or where a tensor's bytes lie in the file; empty for neither."""
        if isinstance(value, (int, float, str)):
            return {"value": value} if len(str(value)) < 1000 else {}
        torch = sys.modules["torch"]
        size = value.numel() * value.element_size()
        # Another class, such as one of functorch's, may have no bytes of its own.
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            return {}
        if self.kept_bytes + size > MOST_BYTES:
            return {"left_out": size}
        import ctypes

        plain = value.detach().cpu().contiguous()
        data = ctypes.string_at(plain.data_ptr(), size) if size else b""
        try:
            written = self.append("values", data)
        except OSError:  # a full disk
            written = 0
        at, self.kept_bytes = self.kept_bytes, self.kept_bytes + written
        return {"kept": [self.pid, at, size]} if written == size else {"left_out": size}

    def register(self, key: Any, known: dict[str, Any]) -> Root:
        """Return a kind of calls; if it is new, write what it is."""
        with self.lock:
            made = self.roots.get(key)
            if made is None:
                new = Root(next(self.numbers))
                made = self.roots.setdefault(key, new)
                if made is new:  # else a signal's handler was here
                    self.say({"root": made.index, **known})
        return made


class Root:
    """Modules of one structure, or a function such as backward, that the program calls.

    Attributes:
        modules: how many of them were called.
        owed: what detail may cost by now, and ``cost`` what it is taken to cost a call: the next
            one is noted in detail where the former is not less.
    """

    __slots__ = ("cost", "detailed", "index", "modules", "owed")

    def __init__(self, index: int) -> None:
        self.index = index
        self.modules = self.detailed = 0
        self.owed = inf
        self.cost = BASE_NS


class Known:
    """A module that the program calls.

    Attributes:
        inside: index of each module inside.
        number: among those of its kind, from 1 on.
    """

    __slots__ = ("inside", "number", "ref", "root")

    def __init__(self, root: Root, inside: dict[int, int], ref: Callable[[], Any]) -> None:
        root.modules += 1
        self.root, self.inside, self.ref, self.number = root, inside, ref, root.modules


class Calls:
    """The calls of one root in one thread.

    Attributes:
        left: so many are counted before the next one with a row.
        file, byte: where that number stands too.
        ref: the first of the modules.
        room, at: where those that are counted are noted; ``at`` is 0 if there are none.
        share: of the time of a call with a row that detail may cost, with that of the calls which
            it stands for.
    """

    __slots__ = ("at", "byte", "file", "left", "noted", "ref", "room", "root", "share")

    def __init__(self, root: Root, ref: Callable[[], Any] = lambda: None) -> None:
        self.root, self.ref = root, ref
        self.room = memoryview(b"")
        self.file: Any = None
        self.at = self.left = self.noted = self.byte = 0
        self.share = DETAIL


class Thread:
    """The notes of one thread.

    ``state`` is None while no call is under way, True in one in which calls are calls of their own,
    False in one of which nothing is noted inside, and the index of each module inside with what is
    noted in one that is noted in detail.

    Attributes:
        rows, at: where the next row goes; ``last`` is the last place with room for one.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.pid = recorder, recorder.pid
        self.alive = sys.modules["threading"]._active
        self.state: tuple[dict[int, int], list[int]] | bool | None = None
        self.calls: dict[Any, Calls] = {}
        self.rooms: dict[int, tuple[memoryview, int]] = {}
        self.rows = memoryview(b"")
        self.at = self.last = 0
        self.stretch: list[Calls] = []
        self.since = self.noted = 0
        self.draw = Random(0).random

    def enter(self, state: tuple[dict[int, int], list[int]] | bool | None) -> None:
        """Let a call begin, or be as before it."""
        self.state = state
        if self is not self.recorder.home:
            return
        if state is None:
            self.recorder.inside[0] = False
        else:
            self.recorder.inside[0] = (state is False and len(self.alive) == 1) or None

    def of(self, module: Any) -> Calls:
        """Return the calls that those of a module are of; a row without an end has its number."""
        known = self.recorder.known(module)
        made = self.calls.get(known.root) or Calls(known.root, known.ref)
        self.calls[known.root] = self.calls[id(module)] = made
        if self.at < self.last or self.more_rows():
            self.rows[self.at], self.rows[self.at + 2] = known.number, known.root.index
            self.at += 3
        return made

    def call(
        self, calls: Calls, is_open: bool, function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Make a call of the program: it is counted, noted in detail, or timed."""
        state = self.state
        if calls.left and state is None:
            calls.left = calls.file[calls.byte] = calls.left - 1
            self.enter(is_open)
            try:
                return function(*args, **kwargs)
            finally:
                self.enter(None)
        if calls.root.owed >= calls.root.cost:
            known = self.recorder.modules.get(id(args[0])) if args else None
            if self.recorder.inputs and known is not None:
                self.recorder.see(calls.root, (args[1:], kwargs))
            begun = self.begin_detail(calls.root, known.inside if known is not None else {})
            if is_open:
                self.enter(True)
            try:
                return function(*args, **kwargs)
            finally:
                self.end_detail(calls, begun)
        self.enter(is_open)
        begin = now()
        try:
            return function(*args, **kwargs)
        finally:
            end = now()
            self.enter(state)
            self.note(begin, end, calls)

    def queued(self) -> int:
        """Return ns this thread was ready while others had the processor, or NOT_COUNTED."""
        try:
            file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(file, 128).split()[1])
            finally:
                os.close(file)
        except (OSError, IndexError, ValueError):
            return NOT_COUNTED

    def room(self, kind: int, words: int) -> tuple[memoryview, int]:
        """Return where so many further words of a kind go."""
        found, at = self.rooms.get(kind) or (memoryview(b""), 0)
        if at + words > len(found):
            larger = min(2 * len(found), CHUNK_WORDS)
            found, at = self.recorder.chunk(kind, max(HEAD + words, larger)), HEAD
        self.rooms[kind] = found, at + words
        return found, at

    def note(self, begin: int, end: int, calls: Calls) -> None:
        """Keep a call; in a child that was forked in it, it is the parent's to keep.

        As in ``module_call`` it is the objects that are touched, not yet in any cache, that cost.
        """
        at, root = self.at, calls.root
        if at >= self.last:
            if not self.more_rows():
                return
            at = self.at
        rows = self.rows
        rows[at] = begin
        rows[at + 1] = end
        rows[at + 2] = root.index  # last: a row without it is none
        self.at = at + 3
        root.owed += calls.share * (end - begin)
        noted = calls.noted
        if not noted and not self.is_first(begin, calls):
            return
        self.noted += 1
        calls.noted = noted = noted + 1
        if noted == STRETCH:
            self.end_stretch(end)

    def more_rows(self) -> bool:
        """Make room for rows; return whether this is no child that was forked in a call."""
        if self.pid != self.recorder.pid:
            return False
        words = max(HEAD + 3, min(2 * len(self.rows), CHUNK_WORDS))
        self.rows, self.at = self.recorder.chunk(LIGHT, words), HEAD
        self.last = len(self.rows) - 2
        return True

    def is_first(self, begin: int, calls: Calls) -> bool:
        """Return whether a call without one before it in its stretch is the first one there."""
        if calls.at and not calls.left:  # those before it that were counted
            calls.room[calls.at + LEFT + 1] = begin
            calls.at = 0
        if self.state is True:
            return False
        self.stretch.append(calls)
        if not self.noted:
            self.since = begin
        return True

    def end_stretch(self, end: int) -> None:
        """Decide how many of the next calls are counted only."""
        took = end - self.since
        allowed = ROWS * took / ROW_NS  # rows in that time
        more = self.noted / allowed - 1 if allowed else MOST_COUNTED
        drawn = 0.5 + self.draw()
        for calls in self.stretch:
            # Beyond the bound rows cost more than their share: the time without any stays short.
            count = round(drawn * min(MOST_COUNTED, more * calls.noted))
            calls.share = DETAIL
            if count > 0 and 2 * calls.noted >= STRETCH:
                calls.share += DETAIL * count / calls.noted
                self.count_only(calls, count, end, end + took * count // calls.noted)
            calls.noted = 0
        self.stretch.clear()
        self.noted = 0

    def count_only(self, calls: Calls, count: int, begin: int, end: int) -> None:
        """Let the next calls be counted; ``end`` is when the last of them is expected to end."""
        room, at = self.room(COUNTED, COUNTED_WORDS)
        words = begin, end, count, count, 0, calls.root.index
        for number, word in enumerate(words, at):  # the root last, as of a row
            room[number] = word
        calls.room, calls.at, calls.left = room, at, count
        calls.file, calls.byte = room.obj, 8 * (at + LEFT) + LOW_BYTE

    def note_detail(self, head: tuple[int, ...], notes: list[int]) -> None:
        """Keep what else is known of a call."""
        words = array("q", (*head, *notes))
        size = 1 + len(words)
        room, at = self.room(DETAILED, size)
        room[at + 1 : at + size] = words
        room[at] = size  # last: a part without it is none

    def begin_detail(self, root: Root, inside: dict[int, int]) -> tuple[Any, ...]:
        """Begin a call that is noted in detail; what is returned is for ``end_detail``."""
        root.detailed += 1
        root.owed = 0.0 if root.detailed >= FIRST else inf
        notes: list[int] = []
        before = self.state
        self.enter((inside, notes))
        # The same order at both ends: what lies between two readings is then in none of the three.
        # Others get the processor as a system call returns, which is after its number is read.
        waited = getrusage(RUSAGE_THREAD).ru_nvcsw
        begin = now()
        queued = self.queued()
        return before, notes, waited, begin, queued, time.thread_time_ns()

    def end_detail(self, calls: Calls, begun: tuple[Any, ...]) -> None:
        """End a call that is noted in detail and keep it."""
        end = now()
        before, notes, waited, begin, queued, cpu = begun
        queued_then = self.queued()
        cpu = time.thread_time_ns() - cpu
        if NOT_COUNTED in (queued, queued_then):
            queued = NOT_COUNTED
        elif waited == getrusage(RUSAGE_THREAD).ru_nvcsw:
            queued = end - begin - cpu  # others had the processor: see ``clock.others_ns``
        else:
            queued = queued_then - queued
        self.enter(before)
        calls.root.cost = BASE_NS + MODULE_NS * len(notes) // 4
        if self.pid == self.recorder.pid:
            self.note_detail((calls.root.index, begin, end, cpu, queued), notes)
        self.note(begin, end, calls)


class Leaving:
    """Forgets a thread as it ends, before another one can have its number."""

    def __init__(self, threads: dict[int, Thread], tid: int) -> None:
        self.threads, self.tid = threads, tid

    def __del__(self) -> None:
        self.threads.pop(self.tid, None)


# --- what is replaced in torch --------------------------------------------------------------------


def watch_torch(recorder: Recorder, torch: Any) -> None:
    """Let torch's calls be noted from here on."""
    recorder.share()
    module, compiling = torch.nn.Module, torch.compiler.is_dynamo_compiling
    is_skipped = skip_frames(torch)
    module.__call__ = module_call(recorder, module.__call__, None if is_skipped else compiling)
    autograd = torch.autograd
    for name in ("backward", "grad"):  # Tensor.backward calls autograd.backward by its name
        made = phase(recorder, "backward", getattr(autograd, name), name, compiling=compiling)
        setattr(autograd, name, made)
    optimizer = torch.optim.Optimizer
    hook = optimizer.profile_hook_step

    def profile_hook_step(function: Any) -> Any:
        return phase(recorder, "step", hook(function), is_open=True, compiling=compiling)

    optimizer.profile_hook_step = staticmethod(profile_hook_step)


def skip_frames(torch: Any) -> bool:
    """Let torch.compile begin with what is called from here, as it does with torch's own frames.

    Else all compiled modules of a program were compiled as one function, of which it keeps eight.

    Returns:
        Whether it can be; not before torch 2.7.
    """
    own = [module_call, phase, *vars(Recorder).values(), *vars(Thread).values()]
    codes = [one.__code__ for one in own if hasattr(one, "__code__")]
    known = torch._C._dynamo.eval_frame
    if not hasattr(known, "_FrameExecStrategy"):
        return False
    skip = known._FrameExecStrategy(known._FrameAction.SKIP, known._FrameAction.DEFAULT)
    while codes:
        known.set_code_exec_strategy(code := codes.pop(), skip)
        codes += [one for one in code.co_consts if hasattr(one, "co_consts")]
    return True


def watch_loader(recorder: Recorder, module: Any) -> None:
    """Let the wait for the next batch be noted."""
    loader = module._BaseDataLoaderIter

    def name(args: tuple[Any, ...]) -> str:
        return f"DataLoader, {args[0]._num_workers} workers"

    loader.__next__ = phase(recorder, "data", loader.__next__, name, is_open=True)


def watch_tokenizer(recorder: Recorder, module: Any) -> None:
    """Let calls of tokenisers be noted."""
    base = module.PreTrainedTokenizerBase
    base.__call__ = phase(recorder, "tokenise", base.__call__)


WATCHED = {
    "torch": watch_torch,
    "torch.utils.data.dataloader": watch_loader,
    "transformers.tokenization_utils_base": watch_tokenizer,
}
"""Module → what is to be done once it has been imported."""


def module_call(recorder: Recorder, call: Any, compiling: Any = None) -> Any:
    """Return what takes the place of ``Module.__call__``.

    torch.compile sees ``call`` where a compiled function calls a module. Where it may begin with a
    frame of this as well, ``compiling`` says whether it does.

    Every call of every module comes here, with caches that the model's own work has filled, so that
    each object and each instruction costs: a variable of the function around it is touched twice in
    every call, whether it is used or not. So what passes through has a function with few of them,
    and what torch's own function does is done in its place where it is the one that is known. A
    call in the only thread that begins where none is under way is counted in ``outermost`` or timed
    in ``timed``; all else is in ``noted``.
    """
    from functools import update_wrapper

    threads_get, inside = recorder.threads.get, recorder.inside
    counted, latest = recorder.calls.get, recorder.latest
    alive = sys.modules["threading"]._active
    code = getattr(call, "__code__", None)
    known = ("_compiled_call_impl", "_call_impl"), ()  # a wrapper has variables of its own
    is_known = code is not None and (code.co_names, code.co_freevars) == known

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - stands for it
        if inside[0]:
            return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
        return outermost(self, args, kwargs)

    def unknown_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (compiling and compiling()) or inside[0]:  # torch.compile reads the former as True
            return call(self, *args, **kwargs)
        return noted(self, args, kwargs)

    def outermost(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if inside[0] is None or len(alive) != 1:
            thread = threads_get(get_ident())
            if thread is None or thread.state is not False:
                return noted(self, args, kwargs)
            return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
        calls = latest[0]
        if calls.ref() is not self:
            found = counted(id(self))
            if found is None:
                return noted(self, args, kwargs)
            latest[0] = calls = found
        if not calls.left:
            root = calls.root
            return (noted if root.owed >= root.cost else timed)(self, args, kwargs)
        calls.left = calls.file[calls.byte] = calls.left - 1
        inside[0] = True
        try:
            return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
        finally:
            inside[0] = False

    def timed(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls, thread = latest[0], threads_get(get_ident())
        if thread is None:
            return noted(self, args, kwargs)  # Python did not start it, and does not list it yet
        inside[0] = True
        begin = now()
        try:
            return (self._compiled_call_impl or self._call_impl)(*args, **kwargs)
        finally:
            end = now()
            inside[0] = False
            thread.note(begin, end, calls)

    def noted(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = threads_get(get_ident()) or recorder.thread()
        state = thread.state
        if state is False:
            return call(self, *args, **kwargs)
        if state is None or state is True:
            calls = thread.calls.get(id(self))
            if calls is None:
                if is_tracing():
                    return call(self, *args, **kwargs)
                calls = thread.of(self)
            return thread.call(calls, False, call, (self, *args), kwargs)
        index = state[0].get(id(self))
        if index is None:  # made in the call: part of the module around it
            return call(self, *args, **kwargs)
        note = state[1].append
        note(now())
        note(index)
        try:
            return call(self, *args, **kwargs)
        finally:
            note(now())
            note(-1)

    made: Any = update_wrapper(__call__ if is_known and compiling is None else unknown_call, call)
    made._torchdynamo_inline = call  # as torch's own wrappers say what is compiled in their place
    return made


def is_tracing() -> bool:
    """Return whether ``torch.jit.trace`` makes what is asked of tensors a part of its graph."""
    jit = sys.modules.get("torch.jit")
    return jit is not None and bool(jit.is_tracing())


def _compiling() -> bool:
    compiler = sys.modules.get("torch.compiler")
    return compiler is not None and bool(compiler.is_dynamo_compiling())


def phase(
    recorder: Recorder,
    kind: str,
    function: Any,
    name: str | Callable[[tuple[Any, ...]], str] = "",
    is_open: bool = False,
    compiling: Callable[[], bool] = _compiling,
) -> Any:
    """Return a function whose calls are noted, unless another call is under way in the thread.

    ``name`` is that of such calls, or returns it for the arguments; empty for the first one's
    class. ``is_open``: calls of modules inside are calls of their own, as in the closure of an
    optimiser. As in ``module_call`` a call that is counted only touches as little as possible.
    """
    from functools import update_wrapper

    threads_get, inside, counted = recorder.threads.get, recorder.inside, recorder.calls.get
    alive = sys.modules["threading"]._active
    constant = name if isinstance(name, str) else ""

    def observed(*args: Any, **kwargs: Any) -> Any:
        if inside[0] or compiling():
            return function(*args, **kwargs)
        if inside[0] is None or len(alive) != 1 or (is_open and len(args) + len(kwargs) > 1):
            return noted(args, kwargs)
        calls, home = counted(constant or args[0].__class__.__name__), recorder.home
        if calls is None or home is None or not calls.left:
            return noted(args, kwargs)
        calls.left = calls.file[calls.byte] = calls.left - 1
        if is_open:  # a step within this one is part of it
            home.state = True
        inside[0] = None if is_open else True
        try:
            return function(*args, **kwargs)
        finally:
            home.state, inside[0] = None, False

    def noted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = threads_get(get_ident()) or recorder.thread()
        if thread.state is not None and (is_open or thread.state is not True):
            return function(*args, **kwargs)
        key = name(args) if callable(name) else name or args[0].__class__.__name__
        calls = thread.calls.get(key)
        if calls is None:
            root = recorder.register(key, {"kind": kind, "class": key})
            calls = thread.calls[key] = Calls(root)
        return thread.call(calls, is_open, function, args, kwargs)

    return update_wrapper(observed, function)


# --- what words are needed for --------------------------------------------------------------------


def about(module: Any) -> dict[str, Any]:
    """Return class, file and line of what runs when a module is called."""
    from inspect import unwrap

    original = getattr(module, "_orig_mod", module)
    compiled = original is not module or getattr(module, "_compiled_call_impl", None) is not None
    kind = type(original)
    code = getattr(unwrap(getattr(kind, "forward", kind)), "__code__", None)
    name = kind.__name__ + (" (compiled)" if compiled else "")
    if kind.__module__.startswith("torch.jit."):  # one class for all that are scripted or traced
        name = f"{getattr(original, 'original_name', kind.__name__)} (TorchScript)"
    return {
        "class": name,
        "import": f"{kind.__module__}:{kind.__qualname__}",
        "file": code.co_filename if code else None,
        "line": code.co_firstlineno if code else None,
    }


def structure(module: Any, inside: list[tuple[str, Any]]) -> list[Any]:
    """Return path and class of everything in a module, and the shapes of its parameters."""
    found: list[Any] = [
        (path, type(one).__module__, type(one).__qualname__) for path, one in inside
    ]
    return found + [(tuple(one.shape), str(one.dtype)) for one in module.parameters()]


def device(module: Any) -> str | None:
    """Return where a module's parameters lie, None where it has none."""
    first = next(iter(module.parameters()), None)
    return None if first is None else str(first.device.type)


def caller() -> str:
    """Return file:line of the program where a module is called, empty where there is none.

    Of a library that calls it, such as a trainer, the place where the program called the library;
    its own in a thread that it started.
    """
    frame: FrameType | None = sys._getframe(2)
    nearest = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", OWN)) and "-packages/torch/" not in file:
            place = f"{file}:{frame.f_lineno}"
            if "-packages/" not in file and not file.startswith(STANDARD):
                return place
            nearest = nearest or place
        frame = frame.f_back
    return nearest


def shapes(value: Any, keep: Callable[[Any], dict[str, Any]] | None = None) -> Any:
    """Return what a call was given: shapes and types, no values but True, False and None.

    ``keep`` returns what else is to be said of a tensor, a number or a text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (tuple, list)):
        return [shapes(one, keep) for one in value]
    if isinstance(value, dict):
        return {str(key): shapes(one, keep) for key, one in value.items()}
    found: dict[str, Any] = {"type": type(value).__name__}
    if isinstance(value, sys.modules["torch"].Tensor):
        found = {"shape": list(value.shape), "dtype": str(value.dtype)}
    elif not isinstance(value, (int, float, str)):
        return found
    return found if keep is None else {**found, **keep(value)}


def construction(module: Any) -> dict[str, Any]:
    """Return what is known of how a module was made, and how its forward is called.

    ``make`` is source that makes it, as far as attributes have the arguments' names; ``missing``
    are the others.
    """
    import inspect

    module = getattr(module, "_orig_mod", module)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    forward = inspect.signature(module.forward).parameters.values()
    imports: set[str] = set()
    missing: list[str] = []

    def source(value: Any) -> str:
        kind = type(value)
        inside_torch = kind.__module__.startswith("torch.nn.")
        if not inside_torch:
            imports.add(kind.__module__)
        name = f"{'torch.nn' if inside_torch else kind.__module__}.{kind.__qualname__}"
        if kind.__qualname__ == "Sequential":
            return f"{name}({', '.join(map(source, value))})"
        attributes = {**vars(value), **getattr(value, "_parameters", {})}  # None for bias=False
        arguments = []
        for one in list(inspect.signature(kind.__init__).parameters.values())[1:]:
            attribute = attributes.get(one.name, one.empty)
            if hasattr(attribute, "to_diff_dict"):  # a configuration of transformers
                made = type(attribute)
                imports.add(made.__module__)
                given = ", ".join(f"{k}={v!r}" for k, v in attribute.to_diff_dict().items())
                arguments.append(f"{one.name}={made.__module__}.{made.__qualname__}({given})")
            elif is_plain(attribute):
                arguments.append(f"{one.name}={attribute!r}")
            elif one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                missing.append(f"{one.name} of {kind.__qualname__}")
        return f"{name}({', '.join(arguments)})"

    return {
        "make": source(module),
        "imports": sorted(imports),
        "missing": missing,
        "forward": [one.name for one in forward if one.kind in positional],
        "parameters": sum(one.numel() for one in module.parameters()),
    }


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, None or a tuple of those."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


# --- start ----------------------------------------------------------------------------------------


class Finder:
    """Finds nothing itself: lets something be done after some modules were imported."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.waiting = dict(WATCHED)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the spec that the other finders have, for the modules that are waited for."""
        act = self.waiting.pop(name, None)
        if act is None:
            return None
        spec = find_spec(name)  # this finder is asked again, and has nothing any more
        loader: Any = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is not None:

            def exec_module(module: Any) -> None:
                execute(module)
                act(self.recorder, module)

            loader.exec_module = exec_module
        return spec


def start(folder: str, by: str, inputs: str) -> None:
    """Note what this process does from here on; ``folder`` holds the notes."""
    while folder in sys.path:
        sys.path.remove(folder)
    recorder = Recorder(folder, by, inputs)
    os.register_at_fork(after_in_child=recorder.reset)  # also of one that imports torch later
    sys.meta_path.insert(0, Finder(recorder))
    # The sitecustomize that started this hides one of the user's own.
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        own = sys.modules["sitecustomize"]
        own.__file__, own.__spec__ = spec.origin, spec
        spec.loader.exec_module(own)
