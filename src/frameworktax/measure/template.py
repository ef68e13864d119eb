"""Templates: processes that have imported what others need, and fork them.

    python -m frameworktax.measure.template SOCKET_FD

Importing torch takes seconds and its models' libraries take more; forking a process that has them
takes milliseconds. A template imports, and does nothing else: it has one thread, starts no engine,
uses no device and builds no model. What is forked of it becomes what a started process is: a
session and process group of its own, the ``TMPDIR`` and processors of the session that asks, random
states of its own, no descriptor of the template's, and the name of a measuring process.

A template serves those whose folder and environment variables are exactly its own.
Templates form a tree: torch's is forked of one with the standard library and numpy alone,
transformers' of torch's. One that cannot be forked says why (an import began threads that a fork
would lose, or a device), and a process is started instead.

``Templates`` is the measuring session's end; ``_Server`` is the template's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from frameworktax.measure import worker
from frameworktax.models.libraries import begun, import_library, uses_device

MODULE = "frameworktax.measure.template"
ROOM = "FRAMEWORKTAX_ROOM"
"""A variable as long as any path: what is forked has its ``TMPDIR`` there, for ``/proc``."""
MESSAGE_BYTES = 65_536
AGAIN_S = 0.1
"""A thread that waits for news looks at this interval whether another has taken them in."""
GRACE_S = 5.0
"""How long a template may take to end what it has forked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a fork is to be.

    Attributes:
        library: to import and to be a template with; empty for a process that measures.
        temporary: its ``TMPDIR``; empty for none of its own.
        cpus: it may run on.
        memory_bytes: anonymous memory it may hold, 0 for no limit.
    """

    library: str = ""
    temporary: str = ""
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 0


# --- the session's end ----------------------------------------------------------------------------


class Forked:
    """A process that a template forks: like ``subprocess.Popen``, and it may not be there yet.

    Args:
        status: the template writes here what becomes of the process; closing it ends the process.
    """

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        self._taking = threading.Lock()
        self._is_over = False
        self.number: int | None = None
        self.returncode: int | None = None
        self.refusal = ""
        """Why there is no such process."""

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs or is not there yet."""
        self._take()
        return self.returncode

    @property
    def is_over(self) -> bool:
        """Whether nothing more is heard of it: it has ended, or its template has."""
        self._take()
        return self._is_over or self.returncode is not None

    def begun(self, timeout_s: float, other: socket.socket | None = None) -> bool:
        """Wait until it is there; False where it will not be, or ``other`` was shut down.

        Raises:
            TimeoutError: neither in time.
        """
        self._wait(lambda: self.is_over or self.number is not None, timeout_s, other)
        self._take()
        return self.number is not None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end; None where its template ended too, so that no code is known.

        Raises:
            TimeoutError: it still runs.
        """
        self._wait(lambda: self.is_over, timeout_s)
        return self.returncode

    def signal(self, which: signal.Signals) -> None:
        """Send a signal to its process group; nothing is signalled that is not there yet."""
        self._take()
        if self.number is not None:
            with contextlib.suppress(ProcessLookupError):  # the group is empty
                os.killpg(self.number, which)

    def let_go(self) -> None:
        """End it, wherever it is on its way; its number is free after that."""
        with contextlib.suppress(OSError):  # the template has ended
            self._status.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor."""
        self._status.close()

    def _take(self) -> None:
        """Take in what the template has written until now."""
        with self._taking:
            while not self._is_over:
                try:
                    word, _, rest = self._status.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT).partition(
                        b" "
                    )
                except BlockingIOError:
                    return
                except OSError:  # reset, or closed here
                    word, rest = b"", b""
                if word == b"number":
                    self.number = int(rest)
                elif word == b"code":
                    self.returncode = int(rest)
                elif word == b"refused":
                    self.refusal = rest.decode()
                else:
                    self._is_over = True

    def _wait(
        self, done: Callable[[], bool], timeout_s: float | None, other: socket.socket | None = None
    ) -> None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._status, select.POLLIN)
        if other is not None:
            poller.register(other, 0)  # being shut down is reported unasked
        while not done():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            # Another thread may take the message in: nothing is readable any more then.
            wait_s = AGAIN_S if left is None else min(AGAIN_S, left)
            for descriptor, _ in poller.poll(wait_s * 1e3):
                if other is not None and descriptor == other.fileno():
                    return


class Template:
    """One template, as a session has it.

    Args:
        process: it runs in.
        control: takes orders.
        below: it is forked of; None where it was started.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes] | Forked,
        control: socket.socket,
        below: Template | None = None,
    ) -> None:
        self._process = process
        self._control = control
        self._below = below
        self._sending = threading.Lock()
        self._is_ready = False

    @classmethod
    def start(cls, python: Path | None, environment: Mapping[str, str]) -> Template:
        """Start one with the standard library and numpy alone.

        Args:
            python: interpreter of another environment, None for this process's own.
            environment: all its variables.
        """
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        room = os.pathconf("/", "PC_PATH_MAX") + len("TMPDIR=")
        with theirs:
            process = subprocess.Popen(
                [str(python or sys.executable), "-P", "-m", MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**environment, ROOM: "_" * room},
            )
        return cls(process, control)

    def branch(self, library: str) -> Template:
        """Fork a template that has imported a library more."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            return Template(self.fork(Order(library=library), (theirs.fileno(),)), control, self)

    def fork(self, order: Order, descriptors: Sequence[int]) -> Forked:
        """Have it fork; the process is there later, once the template has imported everything.

        Args:
            order: what for.
            descriptors: its socket, and its output where it measures; still open here.
        """
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = json.dumps(asdict(order)).encode()
            with self._sending, contextlib.suppress(OSError):  # it has ended: so the status says
                socket.send_fds(self._control, [message], [*descriptors, theirs.fileno()])
        return Forked(status)

    @property
    def alive(self) -> bool:
        """Whether it takes orders, now or once it has imported everything."""
        if isinstance(self._process, Forked):
            return not self._process.is_over
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has imported everything, or had when it ended."""
        with contextlib.suppress(OSError):  # nothing has come yet
            self._is_ready = self._is_ready or bool(self._control.recv(1, socket.MSG_DONTWAIT))
        return self._is_ready

    def stop(self, forked: Forked) -> None:
        """Have what it forks take no processor time until ``go_on``, nor its own imports."""
        if self.is_ready:
            with contextlib.suppress(TimeoutError):  # a moment
                forked.begun(GRACE_S)
        else:
            self.pause()
        forked.signal(signal.SIGSTOP)

    def pause(self) -> None:
        """Have its own imports take no processor time until ``go_on``."""
        if self.is_ready:
            return
        if self._below is not None and isinstance(self._process, Forked):
            self._below.stop(self._process)
        else:
            self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)
        if self._below is not None:
            self._below.go_on()

    def _signal(self, which: signal.Signals) -> None:
        if isinstance(self._process, Forked):
            self._process.signal(which)
        elif self._process.poll() is None:
            os.killpg(self._process.pid, which)

    def close(self) -> None:
        """End it, and what it has forked."""
        if not self.is_ready:  # it imports, and hears nothing
            self._signal(signal.SIGKILL)
        self._control.close()
        try:
            self._process.wait(GRACE_S)
        except (TimeoutError, subprocess.TimeoutExpired):
            self._signal(signal.SIGKILL)
            self._process.wait()
        if isinstance(self._process, Forked):
            self._process.let_go()
            self._process.close()


_Kind = tuple[Path | None, tuple[tuple[str, str], ...], str]
"""Interpreter, environment variables, folder."""


class Templates:
    """The templates of one process that measures, started as they are asked for."""

    def __init__(self) -> None:
        self._found: dict[tuple[_Kind, tuple[str, ...]], Template] = {}
        self._finding = threading.Lock()
        self._paused: list[Template] = []

    def get(
        self,
        python: Path | None,
        environment: Mapping[str, str],
        libraries: tuple[str, ...] = (),
    ) -> Template | None:
        """Return a template for processes with these libraries; None where there can be none.

        It is begun and may still import: what it is to fork is forked afterwards.

        Args:
            python: interpreter of another environment, None for this process's own.
            environment: all variables of the process to fork; its ``TMPDIR`` does not matter.
            libraries: imported one after the other.
        """
        if not hasattr(os, "pidfd_open"):  # other systems than Linux
            return None
        variables = {name: value for name, value in environment.items() if name != "TMPDIR"}
        kind = (python, tuple(sorted(variables.items())), str(Path.cwd()))
        if "TMPDIR" in os.environ:
            variables["TMPDIR"] = os.environ["TMPDIR"]
        with self._finding:
            return self._get(kind, libraries, variables)

    def _get(
        self, kind: _Kind, libraries: tuple[str, ...], variables: Mapping[str, str]
    ) -> Template | None:
        found = self._found.get((kind, libraries))
        if found is not None and found.alive:
            return found
        if found is not None and not found.is_ready:  # its imports end it, and would again
            return None
        if found is not None:
            found.close()
        if libraries:
            below = self._get(kind, libraries[:-1], variables)
            if below is None:
                return None
            found = below.branch(libraries[-1])
        else:
            found = Template.start(kind[0], variables)
        self._found[kind, libraries] = found
        return found

    def pause(self) -> None:
        """Have those that still import take no processor time until ``go_on``."""
        with self._finding:
            self._paused = [one for one in self._found.values() if not one.is_ready]
            for template in self._paused:
                template.pause()

    def go_on(self) -> None:
        """Let those run again."""
        with self._finding:
            for template in self._paused:
                template.go_on()
            self._paused = []

    def close(self) -> None:
        """End them all."""
        with self._finding:
            for template in reversed(self._found.values()):
                template.close()
            self._found.clear()


# --- the template's own end -----------------------------------------------------------------------


_GIVEN = frozenset(os.environ)
"""Variables of the environment that this process was started with."""
Job = tuple[Order, list[int]]
"""What a forked process is for, and the descriptors it was given."""


@dataclass(slots=True)
class _Child:
    number: int
    status: socket.socket
    ended: int | None
    """Descriptor that is readable once it has ended; None once that was reported."""


class _Server:
    """Forks on request; what it has forked is reaped only once its number is no longer used."""

    def __init__(self, control: socket.socket, library: str = "") -> None:
        self._control = control
        self._refusal = _refusal(library)
        self._kept = _descriptors() - {control.fileno()}
        """What its imports have opened is for what is forked, too."""
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._by_status: dict[int, _Child] = {}
        self._by_end: dict[int, _Child] = {}

    def serve(self) -> Job:
        """Fork until the other end is closed; returns in each process that was forked."""
        with contextlib.suppress(OSError):
            self._control.send(b"!")  # ready
        while True:
            # One at a time: the number of a descriptor that one closes may be the next one's.
            descriptor = self._poller.poll()[0][0]
            if descriptor == self._control.fileno():
                job = self._take()
                if job is not None:
                    return job
            elif descriptor in self._by_end:
                self._ended(self._by_end[descriptor])
            else:
                self._let_go(self._by_status.pop(descriptor))

    def _take(self) -> Job | None:
        """Carry out one order; returns its job in the process that was forked for it."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 3)
        except OSError:
            message = b""
        if not message:
            for child in self._by_status.values():
                self._let_go(child)
            os._exit(0)
        status = socket.socket(fileno=descriptors.pop())
        refusal, number, own = self._refusal, -1, os.getpid()
        if not refusal and not _is_hung_up(status):
            try:
                number = os.fork()
            except OSError as error:  # no memory, too many processes
                refusal = f"{error.strerror}"
        if not number:
            fields = json.loads(message)
            order = Order(**{**fields, "cpus": tuple(fields["cpus"])})
            try:
                self._leave(order, descriptors, status, own)
            except BaseException:  # noqa: BLE001 - not again the loop of the template
                os._exit(1)
            return order, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        if number > 0:
            self._watch(number, status)
            return None
        with contextlib.suppress(OSError):
            status.send(f"refused {refusal}".encode())
        status.close()
        return None

    def _watch(self, number: int, status: socket.socket) -> None:
        ended = os.pidfd_open(number)
        child = _Child(number, status, ended)
        self._by_status[status.fileno()] = self._by_end[ended] = child
        self._poller.register(status, 0)
        self._poller.register(ended, select.POLLIN)

    def _ended(self, child: _Child) -> None:
        """Report an exit code; the number stays taken until it is let go."""
        self._forget_end(child)
        found = os.waitid(os.P_PID, child.number, os.WEXITED | os.WNOWAIT)
        if found is not None:
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            with contextlib.suppress(OSError):
                child.status.send(f"code {code}".encode())

    def _let_go(self, child: _Child) -> None:
        """End a process that was let go, and whatever is in its group."""
        for end in (os.killpg, os.kill):  # it may not have a group yet
            with contextlib.suppress(OSError):
                end(child.number, signal.SIGKILL)
        os.waitpid(child.number, 0)
        self._poller.unregister(child.status)
        child.status.close()
        self._forget_end(child)

    def _forget_end(self, child: _Child) -> None:
        if child.ended is not None:
            del self._by_end[child.ended]
            self._poller.unregister(child.ended)
            os.close(child.ended)
            child.ended = None

    def _leave(
        self, order: Order, descriptors: list[int], status: socket.socket, parent: int
    ) -> None:
        """Be a process of its own, with what was ordered, and say that it is there."""
        os.setsid()
        worker.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        self._control.close()
        for child in self._by_status.values():
            child.status.close()
        for descriptor in _descriptors() - self._kept - {*descriptors, status.fileno()}:
            os.close(descriptor)
        if not order.library:
            _settle(order)
            for descriptor in (1, 2):
                os.dup2(descriptors[1], descriptor)
            os.close(descriptors[1])
        status.send(f"number {os.getpid()}".encode())
        status.close()


def _settle(order: Order) -> None:
    """Be as a started process would be where it was ordered."""
    os.sched_setaffinity(0, order.cpus)
    above, tempfile.tempdir = tempfile.gettempdir(), None
    for name, value in os.environ.items():  # as Inductor's import sets the place of its cache
        if name not in _GIVEN and value.startswith(f"{above}/"):
            os.environ[name] = order.temporary + value.removeprefix(above)
    os.environ["TMPDIR"] = order.temporary
    _rename(order.temporary)
    np.random.seed()  # Python's own generator is seeded anew by os.fork


def _refusal(library: str) -> str:
    """Import a library; return why this process cannot be forked after that, empty if it can."""
    try:
        if library:
            import_library(library)
    # Not here, then: the process that builds the model says what is wrong with the library.
    except BaseException as error:  # noqa: BLE001 - foreign code: an import may even exit
        return f"importing {library} raised {type(error).__name__}"
    _read_what_samples_need()
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # the collector of what is forked leaves what was imported alone
    # OpenBLAS ends its threads before a fork and begins them anew after it; others cannot.
    trial = os.fork()
    if not trial:
        os._exit(int(uses_device()))
    if os.waitpid(trial, 0)[1]:
        return f"{library} uses a device as soon as it is imported"
    threads, processes = begun()
    if threads > 1:
        return f"{library} starts threads as soon as it is imported"
    if processes:
        return f"{library} starts processes as soon as it is imported"
    return ""


def _read_what_samples_need() -> None:
    """Read rules and symbols once: a process alone takes half a second for its first sample."""
    from frameworktax.attribution import buckets, symbols  # noqa: F401 - rules are compiled

    symbols.read_tables()


def _descriptors() -> set[int]:
    """Return the descriptors that are open in this process."""
    listed = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    return {one for one in listed if _is_open(one)}  # not the one that listed them


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _is_hung_up(connection: socket.socket) -> bool:
    poller = select.poll()
    poller.register(connection, 0)
    return bool(poller.poll(0))


def _rename(temporary: str) -> None:
    """Let ``/proc`` show a measuring process with its ``TMPDIR``, as if it had been started.

    The kernel shows the memory in which the words of the command and the variables were given
    (proc(5), ``arg_start`` to ``env_end``); nothing else reads these two places any more.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    for begin, name, old, new in (
        (int(fields[45]), "cmdline", MODULE, worker.MODULE),
        (int(fields[47]), "environ", f"{ROOM}=", f"TMPDIR={temporary}"),
    ):
        shown = Path(f"/proc/self/{name}").read_bytes()
        at = shown.index(old.encode())
        end = shown.index(b"\0", at)
        ctypes.memmove(begin + at, os.fsencode(new).ljust(end - at, b"\0"), end - at)


def main() -> None:
    """Be a template, and then what it was forked for."""
    control, library = socket.socket(fileno=int(sys.argv[1])), ""
    control.set_inheritable(False)
    os.environ.pop(ROOM, None)
    while True:
        order, descriptors = _Server(control, library).serve()
        if not order.library:
            break
        control, library = socket.socket(fileno=descriptors[0]), order.library
    worker.run(descriptors[0], order.memory_bytes)


if __name__ == "__main__":
    main()
