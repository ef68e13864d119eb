"""Measuring processes on this machine: started, asked, and ended with everything they started.

Where a template (``measure.template``) can fork one it is forked, otherwise an interpreter is
started; both answer alike. A worker's faults end as ``WorkerError`` with a status and a reason: a
crash with its signal and Python line, an out-of-memory kill, a hang. Its stdout and stderr are
drained into a bounded tail, however much it prints. ``Gate`` stops set-up while something is timed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args, get_type_hints

import msgspec

from frameworktax.errors import Fault, UsageError, UserModelError, WorkerError
from frameworktax.measure.protocol import Failure
from frameworktax.measure.template import Forked, Interpreter, Order, Template, Templates
from frameworktax.measure.worker import MODULE, Server
from frameworktax.records import Note, Started

KEEP_BYTES = 64 * 1024
"""How much of a worker's output is kept, from the end."""
LEAST_S, MOST_S = 1e-3, 86_400.0
"""What a wait takes at least, and after how long it is begun again: the system counts no years."""
GRACE_S = 10.0
"""How long a worker whose connection is closed may take to end by itself."""
TOO_MANY_OPEN = "too many open files; run ulimit -n 1024 first"
SETS_UP = ("describe", "prepare", "load", "draw")
"""Steps whose wrong use is the user's to mend and ends the session; later it is a failed step."""

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
Step = Callable[Concatenate[Server, P], A]
"""A method of ``Server``: its name is that of the step in messages."""


class Tail:
    """Drains a pipe on a thread and keeps its end: a model may print without bound.

    Raises:
        OSError: no thread can be started, as under a small ``ulimit -v``.
    """

    def __init__(self, descriptor: int) -> None:
        self.total_bytes = 0
        self._end = bytearray()
        self._thread = threading.Thread(target=self._drain, args=(descriptor,), daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            os.close(descriptor)
            raise OSError(errno.EAGAIN, f"{error}; raise ulimit -v or -u") from error

    def _drain(self, descriptor: int) -> None:
        while chunk := os.read(descriptor, KEEP_BYTES):
            self.total_bytes += len(chunk)
            self._end += chunk
            del self._end[:-KEEP_BYTES]
        os.close(descriptor)

    def text(self) -> str:
        """Return the end of what was written; a writer that lives is waited for, a second long."""
        self._thread.join(1.0)
        return bytes(self._end).decode("utf-8", "replace")


@dataclass(eq=False, repr=False)
class Worker:
    """One measuring process, begun by the first request.

    Attributes:
        label: for messages.
        memory_bytes: anonymous memory it may hold, 0 for no limit.
        environment: variables, on top of this process's.
        templates: one of them forks it; None starts an interpreter.
        libraries: the template has imported, one after the other.
    """

    label: str
    memory_bytes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    templates: Templates | None = None
    libraries: tuple[str, ...] = ()
    notes: list[Note] = field(default_factory=list)
    _process: Interpreter | Forked | None = None
    _channel: socket.socket = field(init=False)
    _output: Tail = field(init=False)
    _is_stopped: bool = False
    _changing: threading.Lock = field(default_factory=threading.Lock)
    """Held where one is begun, stopped or ended, so that none is begun after the end."""
    _end: WorkerError | None = None
    """Why it takes no requests any more; a later one raises it again."""
    _asking: threading.RLock = field(default_factory=threading.RLock)
    """Held while an answer is awaited: the descriptor is not closed under that thread."""

    def __post_init__(self) -> None:
        self.environment = {**os.environ, **self.environment}

    @property
    def started(self) -> Started | None:
        """How the process came to be, None where there is none."""
        if self._process is None or self._process.number is None:
            return None
        return "forked" if isinstance(self._process, Forked) else "started"

    @property
    def alive(self) -> bool:
        """Whether it still takes requests."""
        return self._end is None

    @property
    def printed_bytes(self) -> int:
        """How much it has printed."""
        return self._output.total_bytes if self._process is not None else 0

    def request(
        self,
        method: Step[P, A],
        timeout_s: float,
        clock: Callable[[], int] = time.monotonic_ns,
        *_: P.args,
        **given: P.kwargs,
    ) -> A:
        """Ask and wait for the answer.

        The time limit is by ``clock``, in ns: a gate's stands still while the process is stopped.

        Raises:
            WorkerError: the worker crashed, hung, ran out of memory, or the step failed.
            UsageError: what was asked for cannot be, in the worker's own words.
        """
        step = method.__name__
        with self._asking:
            if self._end is not None:
                raise WorkerError(self._end.status, str(self._end))
            end_ns = clock() + round(timeout_s * 1e9)  # from here: another may have been asked for

            def left_s() -> float:  # 0 would mean not to wait
                return min(max(LEAST_S, (end_ns - clock()) / 1e9), MOST_S)

            with self._faults(step, timeout_s):
                if self._process is None:
                    self._begin(left_s)
                self._channel.settimeout(left_s())
                self._channel.sendall(pickle.dumps((step, given)))
                line = b""
                while not line.endswith(b"\n"):
                    _patiently(self._hear, left_s)
                    chunk = self._channel.recv(1 << 20)
                    if not chunk:
                        raise ConnectionResetError("the other end is closed")
                    line += chunk
        try:
            found = _answers(method).decode(line)
        except msgspec.DecodeError as error:  # no JSON, as of NaN or half a character; or another
            raise WorkerError("failed", f"{step} gave a wrong answer: {error}") from error
        if found.failure is not None:
            if found.failure.is_end:
                self.kill()
            raise _problem(step, found.failure)
        if found.answer is msgspec.UNSET:
            raise WorkerError("failed", f"{step} gave no answer")
        answer: A = found.answer
        return answer

    def _hear(self, timeout_s: float) -> None:
        """Wait until the process says something, or its end is closed."""
        heard = select.poll()
        heard.register(self._channel, select.POLLIN)
        if not heard.poll(1000 * timeout_s):
            raise TimeoutError

    @contextlib.contextmanager
    def _faults(self, step: str, timeout_s: float) -> Iterator[None]:
        """Keep as the reason why it takes no more requests what goes wrong inside, and raise it."""
        try:
            yield
        except TimeoutError as error:
            self.kill()
            text = f"{step} not done after {timeout_s:.0f} s, ended"
            self._end = WorkerError("timeout", text)
            raise self._end from error
        except ConnectionError as error:
            self._end = self._cause(step)
            raise self._end from error
        except OSError as error:  # no process, no memory or no descriptor is left
            self.kill()
            why = TOO_MANY_OPEN if error.errno == errno.EMFILE else error.strerror
            self._end = WorkerError("failed", f"no process could be started for {step}: {why}")
            raise self._end from error

    def _begin(self, left_s: Callable[[], float]) -> None:
        """Have a template fork the process; start an interpreter where none can."""
        template = None
        if self.templates is not None:
            template = self.templates.get(self.environment, self.libraries)
        process = self._made(template)
        if not _patiently(process.begun, left_s):
            process.end()
            self._channel.close()
            text = f"started, and not forked: {process.refusal or 'the template ended'}"
            self.notes.append(Note("not-forked", text))
            process = self._made(None)
        with self._changing:
            if self._is_stopped and self.alive:
                process.signal(signal.SIGSTOP)

    def _made(self, template: Template | None) -> Interpreter | Forked:
        """Return a process that a template forks, or that is started where there is none."""
        with self._changing:
            if not self.alive:
                raise ConnectionAbortedError("ended before it was there")
            self._channel, theirs = socket.socketpair()
            memory, variables = self.memory_bytes, self.environment
            ours, output = os.pipe()
            try:
                with theirs:
                    self._output = Tail(ours)
                    channel = theirs.fileno()
                    if template is None:
                        words = MODULE, str(channel), str(memory)
                        self._process = Interpreter(words, variables, channel, output)
                    else:
                        order = Order(temporary=variables.get("TMPDIR", ""), memory_bytes=memory)
                        self._process = template.fork(order, (channel, output))
            finally:
                os.close(output)
            return self._process

    def _cause(self, step: str) -> WorkerError:
        """Return why the process ended."""
        process = self._process
        if not self.alive or process is None:
            return WorkerError("failed", f"ended from outside during {step}")
        try:
            code = process.wait(GRACE_S)
        except TimeoutError:
            self.kill()
            return WorkerError("crashed", f"closed its pipe during {step}")
        where = _python_line(self._output.text())
        self.kill()
        if code is None:
            return WorkerError("crashed", f"ended with the template it was forked of during {step}")
        if code == -signal.SIGKILL:
            return WorkerError(
                "out-of-memory", f"killed by the kernel during {step}, most likely out of memory"
            )
        if code >= 0 and not where:
            text = f"ended itself with exit code {code} during {step}"
            raised = "os._exit in the model or a library; remove that call"
            return WorkerError("crashed", f"{text}: {raised}")
        how = f"exited with code {code}" if code >= 0 else signal.Signals(-code).name
        return WorkerError("crashed", f"{how} during {step}{where}")

    def signal(self, which: signal.Signals) -> None:
        """Have its whole process group take no processor time (SIGSTOP) or go on (SIGCONT)."""
        with self._changing:
            self._is_stopped = which == signal.SIGSTOP
            if self._process is not None and self.alive:  # else its number may be another's
                self._process.signal(which)

    def kill(self) -> None:
        """End the whole process group now; a thread that awaits its answer is woken."""
        with self._changing:
            if not self.alive:
                return
            self._end = WorkerError("crashed", f"{self.label}: the measuring process has ended")
        if self._process is None:
            return
        self._process.end()
        with contextlib.suppress(OSError):  # its end is closed already
            self._channel.shutdown(socket.SHUT_RDWR)
        with self._asking:
            self._channel.close()


def _patiently(wait: Callable[[float], R], left_s: Callable[[], float]) -> R:
    """Wait for as long as is left by a clock that may stand still meanwhile."""
    while True:
        try:
            return wait(left_s())
        except TimeoutError:
            if left_s() <= LEAST_S:
                raise


class Gate:
    """Lets set-up run beside measuring, and never at the moment of a timed block.

    Whatever starts, loads, exports or compiles is *at work*. While a block is timed or sampled, all
    that is at work is stopped (SIGSTOP to its process group) and nothing new begins; a step's time
    limit does not count that time. The imports of templates are set-up, too.
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._turn = threading.RLock()
        self._at_work: set[Worker] = set()
        self._quiet: list[list[int]] = []
        """Begin and end of each time in which blocks were timed, ns of the monotonic clock."""

    def ask(
        self,
        worker: Worker,
        method: Step[P, A],
        timeout_s: float,
        *arguments: P.args,
        **given: P.kwargs,
    ) -> A:
        """Ask for something that may run beside set-up, but not beside a timed block."""
        with self._turn:
            self._at_work.add(worker)
        try:
            return worker.request(method, timeout_s, self.clock, *arguments, **given)
        finally:
            with self._turn:
                self._at_work.discard(worker)

    def at_work(self) -> set[Worker]:
        """Return the processes that set something up now."""
        with self._turn:
            return set(self._at_work)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Stop what is at work until the end of the block."""
        with self._turn:
            span = [time.monotonic_ns(), sys.maxsize]
            self._quiet.append(span)
            stopped = list(self._at_work)
            try:
                for worker in stopped:
                    worker.signal(signal.SIGSTOP)
                with self._templates.paused():
                    yield
            finally:
                for worker in stopped:
                    worker.signal(signal.SIGCONT)
                span[1] = time.monotonic_ns()

    def quiet_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return for how long blocks were timed between two moments of the monotonic clock."""
        overlaps = (min(end_ns, end) - max(begin_ns, begin) for begin, end in list(self._quiet))
        return sum(overlap for overlap in overlaps if overlap > 0)

    def clock(self) -> int:
        """Return the monotonic clock, ns, less the time in which blocks were timed."""
        now = time.monotonic_ns()
        return now - self.quiet_ns(0, now)


@cache
def _answers(method: Step[..., Any]) -> msgspec.json.Decoder[Any]:
    """Return what decodes answers to a request, checked against the method's annotation."""
    kind = get_type_hints(method)["return"]
    fields = ("answer", kind | msgspec.UnsetType, msgspec.UNSET), ("failure", Failure | None, None)
    return msgspec.json.Decoder(msgspec.defstruct("Answer", fields))


def _problem(step: str, failure: Failure) -> UsageError | WorkerError:
    """Return what a worker's failure in a step means here; see ``SETS_UP``."""
    if step in SETS_UP and failure.status == "user-model":
        return UserModelError(failure.message)
    if step in SETS_UP and failure.status == "usage":
        return UsageError(failure.message)
    faults: dict[str, Fault] = {known: known for known in get_args(Fault)}
    return WorkerError(faults.get(failure.status, "failed"), failure.message)


def _python_line(output: str) -> str:
    """Return where in Python a fault happened, from faulthandler's or a traceback's text."""
    fault = re.search(r'most recent call first\):\n\s+File "([^"]+)", line (\d+) in (\S+)', output)
    if fault:
        return f" at {fault[1]}:{fault[2]} in {fault[3]}"
    raised = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', output)
    return f" at {raised[-1][0]}:{raised[-1][1]} in {raised[-1][2]}" if raised else ""
