"""Templates: processes that have imported what others need, and fork them.

    python -m frameworktax.measure.template SOCKET_FD

Importing torch takes seconds and its models' libraries take more; forking a process that has them
takes milliseconds. A template imports, and does nothing else: it has one thread, starts no engine,
uses no device and builds no model. What is forked of it becomes what a started process is: a
session and process group of its own, the ``TMPDIR`` of the session that asks, random states of its
own, no descriptor of the template's, and the name of a measuring process.

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
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from frameworktax.attribution import symbols
from frameworktax.host.cache import temporary_folder
from frameworktax.host.machine import stat_fields
from frameworktax.measure import worker
from frameworktax.models.libraries import begun, import_library, uses_device

MODULE = "frameworktax.measure.template"
ROOM = "FRAMEWORKTAX_ROOM"
"""A variable as long as any path: what is forked has its ``TMPDIR`` there, for ``/proc``."""
PREFIX = "frameworktax-templates-"
"""How their ``TMPDIR`` is called."""
MESSAGE_BYTES = 65_536
SELDOM = 50_000
"""Objects after which an import collects garbage; with Python's own 700 it takes a tenth longer.
Where nothing is collected, what is forked has 2 to 3 % more memory."""
GRACE_S = 5.0
"""How long a template may take to end what it has forked."""


class Order(NamedTuple):
    """What a fork is to be.

    Attributes:
        library: to import and to be a template with; empty for a process that measures.
        temporary: its ``TMPDIR``; empty for none of its own.
        memory_bytes: anonymous memory it may hold, 0 for no limit.
    """

    library: str = ""
    temporary: str = ""
    memory_bytes: int = 0


# --- the session's end ----------------------------------------------------------------------------


class Process:
    """What is measured in, or a template: the leader of a session and of a group of its own."""

    number: int | None = None
    """None while it is not there yet."""
    refusal = ""
    """Why there is no such process."""

    def begun(self, timeout_s: float) -> bool:
        """Return whether it is there; a forked one is waited for."""
        return True

    def signal(self, which: signal.Signals) -> None:
        """Send a signal to its group; nothing is signalled that is not there yet."""
        if self.number is not None:
            with contextlib.suppress(ProcessLookupError):  # the group is empty
                os.killpg(self.number, which)


class Interpreter(Process):
    """A process that is started, to run a module: ``words`` are its name and its arguments.

    It keeps the descriptor ``channel``, and prints to ``output``.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        channel: int,
        output: int = subprocess.DEVNULL,
    ) -> None:
        # -P: a file named like a module in the current folder must not shadow it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(channel,),
            start_new_session=True,  # ended as a group, and Ctrl-C is the caller's
            env=environment,
        )
        self.number = self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and return its exit code; raises TimeoutError if it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error

    def end(self) -> None:
        """End its group."""
        self.signal(signal.SIGKILL)
        self._process.wait()


class Forked(Process):
    """A process that a template forks; it is there once ``begun`` has said so.

    Args:
        status: the template writes here what becomes of the process; closing it ends the process.
    """

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        self._hearing = threading.Lock()
        self._is_over = False
        self._code: int | None = None

    def _hear(self, timeout_s: float | None) -> None:
        """Take in what the template says next; raises TimeoutError where that is nothing."""
        with self._hearing:
            if self._is_over:
                return
            self._status.settimeout(timeout_s)
            try:
                word, _, rest = self._status.recv(MESSAGE_BYTES).partition(b" ")
            except (TimeoutError, BlockingIOError) as error:
                raise TimeoutError from error
            except OSError:  # reset
                word, rest = b"", b""
            if word == b"number":
                self.number = int(rest)
            elif word == b"refused":
                self.refusal = rest.decode()
            else:  # an exit code, or the end of the template
                self._code = int(rest) if word == b"code" else None
                self._is_over = True

    @property
    def is_over(self) -> bool:
        """Whether nothing more is heard of it: it has ended, or its template has."""
        with contextlib.suppress(TimeoutError):
            while not self._is_over:
                self._hear(0)
        return self._is_over

    def begun(self, timeout_s: float) -> bool:
        """Wait until it is there; return False where it will not be.

        Raises:
            TimeoutError: neither in time.
        """
        while not self._is_over and self.number is None:
            self._hear(timeout_s)
        return self.number is not None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end; return its exit code, negative for a signal.

        None where its template ended too, so that no code is known.

        Raises:
            TimeoutError: it still runs.
        """
        while not self._is_over:
            self._hear(timeout_s)
        return self._code

    def end(self) -> None:
        """End its group, wherever it is on its way; its number is free after that."""
        self.signal(signal.SIGKILL)
        if self.number is not None:
            self.wait()
        with contextlib.suppress(OSError):  # the template has ended
            self._status.shutdown(socket.SHUT_RDWR)  # wakes a thread that hears
        with self._hearing:
            self._is_over = True
            self._status.close()


class Template:
    """One template, as a session has it.

    It is started with the standard library and numpy alone, or forked of the one ``above`` and then
    imports a ``library`` more; ``environment`` is that of a started one.
    """

    process: Interpreter | Forked

    def __init__(
        self, environment: Mapping[str, str], above: Template | None = None, library: str = ""
    ) -> None:
        self.above = above
        self._is_ready = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            channel = theirs.fileno()
            if above is not None:
                self.process = above.fork(Order(library=library), (channel,))
                return
            room = "_" * (os.pathconf("/", "PC_PATH_MAX") + len("TMPDIR="))
            variables = {**environment, ROOM: room}
            self.process = Interpreter((MODULE, str(channel)), variables, channel)

    def fork(self, order: Order, descriptors: Sequence[int]) -> Forked:
        """Have it fork; the process is there later, once the template has imported everything.

        ``descriptors`` are its socket, and its output where it measures; still open here.
        """
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = json.dumps(order).encode()
            with contextlib.suppress(OSError):  # it has ended: so the status says
                socket.send_fds(self._control, [message], [*descriptors, theirs.fileno()])
        return Forked(status)

    @property
    def is_ready(self) -> bool:
        """Whether it has imported everything, or had when it ended."""
        with contextlib.suppress(OSError):  # nothing has come yet
            self._is_ready = self._is_ready or bool(self._control.recv(1, socket.MSG_DONTWAIT))
        return self._is_ready

    def close(self) -> None:
        """End it, and what it has forked; one that imports or is not there yet hears nothing."""
        hears = self.process.is_over or self.is_ready
        self._control.close()
        if hears:
            with contextlib.suppress(TimeoutError):
                self.process.wait(GRACE_S)
        self.process.end()


class Templates:
    """The templates of one process that measures, started as they are asked for."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Template] = {}
        """By environment variables, folder and libraries."""
        self._finding = threading.RLock()
        self._temporary: Path | None = None
        """Their ``TMPDIR``: the import of Inductor makes a folder there."""
        self._ends = contextlib.ExitStack()

    def get(
        self, environment: Mapping[str, str], libraries: tuple[str, ...] = ()
    ) -> Template | None:
        """Return a template for processes with these libraries.

        None where imports end it, or where what it forks cannot be watched here.

        It is begun and may still import: what it is to fork is forked afterwards. ``environment``
        has all variables of the process to fork, whose ``TMPDIR`` does not matter.
        """
        if not _can_watch():
            return None
        variables = {name: value for name, value in environment.items() if name != "TMPDIR"}
        key = tuple(sorted(variables.items())), str(Path.cwd()), libraries
        with self._finding:
            found = self._found.get(key)
            if found is not None:
                if not found.process.is_over:
                    return found
                if not found.is_ready:  # its imports end it, and would again
                    return None
                found.close()
            above = self.get(environment, libraries[:-1]) if libraries else None
            if libraries and above is None:
                return None
            if self._temporary is None:
                self._temporary = self._ends.enter_context(temporary_folder(PREFIX))
            variables["TMPDIR"] = str(self._temporary)
            found = self._found[key] = Template(variables, above, *libraries[-1:])
            return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Have none begin inside, and those that still import take no processor time."""
        with self._finding:
            # the number of one that its imports have ended may be another's
            importing = (one for one in self._found.values() if not one.is_ready)
            stopped = [one for one in importing if not one.process.is_over]
            try:
                for one in stopped:
                    if one.above not in stopped:  # it is forked at this moment, or there
                        with contextlib.suppress(TimeoutError):
                            one.process.begun(GRACE_S)
                    one.process.signal(signal.SIGSTOP)
                yield
            finally:
                for one in stopped:
                    one.process.signal(signal.SIGCONT)

    def close(self) -> None:
        """End them all."""
        with self._finding:
            for template in reversed(self._found.values()):
                template.close()
            self._found.clear()
            self._ends.close()
            self._temporary = None


# --- the template's own end -----------------------------------------------------------------------


_GIVEN = frozenset(os.environ)
"""Variables of the environment that this process was started with."""
Job = tuple[Order, list[int]]
"""What a forked process is for, and the descriptors it was given."""


class _Server:
    """Forks on request; what it has forked is reaped only once its number is no longer used."""

    def __init__(self, control: socket.socket, library: str = "") -> None:
        self._control = control
        self._refusal = _refusal(library)
        self._children: dict[int, tuple[int, int]] = {}
        """By number: what says what becomes of it, hung up once it is to be ended; and what is
        readable once it has ended. Both descriptors are this process's own."""
        self._watched = selectors.PollSelector()
        self._watched.register(control, selectors.EVENT_READ, self._take)

    def serve(self) -> Job:
        """Fork until the other end is closed; returns in each process that was forked."""
        with contextlib.suppress(OSError):
            self._control.send(b"!")  # ready
        while True:
            # One at a time: the number of a descriptor that one closes may be the next one's.
            job: Job | None = self._watched.select()[0][0].data()
            if job is not None:
                return job

    def _take(self) -> Job | None:
        """Carry out one order; returns its job in the process that was forked for it."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 3)
        except OSError:
            message = b""
        if not message:
            for number in list(self._children):
                self._let_go(number)
            os._exit(0)
        status = descriptors.pop()
        refusal, number, own = self._refusal, -1, os.getpid()
        if not refusal:
            try:
                number = os.fork()
            except OSError as error:  # no memory, too many processes
                refusal = f"{error.strerror}"
        if not number:
            try:
                order = Order(*json.loads(message))
                self._leave(order, descriptors, status, own)
            except BaseException:  # noqa: BLE001 - not again the loop of the template
                os._exit(1)
            return order, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        if number > 0:
            ended = os.pidfd_open(number)
            self._children[number] = status, ended
            for descriptor, react in ((status, self._let_go), (ended, self._report_end)):
                self._watched.register(descriptor, selectors.EVENT_READ, partial(react, number))
        else:
            _say(status, f"refused {refusal}")
            os.close(status)
        return None

    def _report_end(self, number: int) -> None:
        """Report an exit code; the number stays taken until it is let go."""
        status, ended = self._children[number]
        self._watched.unregister(ended)
        found = os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
        if found is not None:
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            _say(status, f"code {code}")

    def _let_go(self, number: int) -> None:
        """End a process that was let go, and whatever is in its group."""
        for end in (os.killpg, os.kill):  # it may not have a group yet
            with contextlib.suppress(OSError):
                end(number, signal.SIGKILL)
        os.waitpid(number, 0)
        for descriptor in self._children.pop(number):
            with contextlib.suppress(KeyError):  # its end was reported
                self._watched.unregister(descriptor)
            os.close(descriptor)

    def _leave(self, order: Order, descriptors: list[int], status: int, parent: int) -> None:
        """Be a process of its own, with what was ordered, and say that it is there."""
        os.setsid()
        worker.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        self._control.close()
        for descriptor in chain.from_iterable(self._children.values()):
            os.close(descriptor)
        if not order.library:
            _settle(order)
            for descriptor in (1, 2):
                os.dup2(descriptors[1], descriptor)
            os.close(descriptors[1])
        _say(status, f"number {os.getpid()}")
        os.close(status)


def _say(status: int, text: str) -> None:
    """Say what becomes of a process, where anyone still wants to know."""
    with contextlib.suppress(OSError):
        os.write(status, text.encode())


def _settle(order: Order) -> None:
    """Be as a started process would be where it was ordered."""
    above, tempfile.tempdir = tempfile.gettempdir(), None
    for name, value in os.environ.items():  # as Inductor's import sets the place of its cache
        if name not in _GIVEN and value.startswith(f"{above}/"):
            os.environ[name] = order.temporary + value.removeprefix(above)
    os.environ["TMPDIR"] = order.temporary
    _rename(order.temporary)
    np.random.seed()  # Python's own generator is seeded anew by os.fork


def _refusal(library: str) -> str:
    """Import a library; return why this process cannot be forked after that, empty if it can."""
    usual = gc.get_threshold()
    gc.set_threshold(SELDOM, *usual[1:])
    try:
        if library:
            import_library(library)
    # Not here, then: the process that builds the model says what is wrong with the library.
    except BaseException as error:  # noqa: BLE001 - foreign code: an import may even exit
        return f"importing {library} raised {type(error).__name__}"
    # A process alone takes half a second for its first sample: rules and symbols are read once.
    from frameworktax.attribution import buckets  # noqa: F401 - rules are compiled

    symbols.read_tables()
    sys.stdout.flush()
    gc.set_threshold(*usual)
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


def _can_watch() -> bool:
    """Return whether a process can be waited for by a descriptor.

    Pythons of conda, and some that uv installs, lack the function, and kernels before 5.3 the call.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _rename(temporary: str) -> None:
    """Let ``/proc`` show a measuring process with its ``TMPDIR``, as if it had been started.

    The kernel shows the memory in which the words of the command and the variables were given
    (proc(5), ``arg_start`` to ``env_end``); nothing else reads these two places any more.
    """
    fields = stat_fields(Path("/proc/self"))
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
