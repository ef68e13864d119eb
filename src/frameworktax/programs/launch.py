"""Runs a program as it would run, with samples from outside and notes from inside.

The program is a process of its own with this one's standard streams and terminal. Its Python is
started with a folder in front of ``PYTHONPATH``, whose ``sitecustomize`` loads ``calls`` before the
program; every Python that the program starts inherits that. What is noted lies in files, so that
nothing is lost however a process ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from shutil import which

from frameworktax.attribution.threads import TreeSampler, TreeSamples
from frameworktax.errors import UsageError
from frameworktax.programs import calls

STOPS = signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU
TERMINAL = (*STOPS, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH)
"""Signals that a terminal sends to the program as well."""
DRAIN_S = 0.25
"""Between two readings of the samples."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has run.

    Attributes:
        status: exit code, or the number of the signal that ended it, negative.
        samples: None where sampling is refused, for the reason ``refused``.
        sees_kernel: whether there are samples in kernel mode.
    """

    pid: int
    status: int
    begin_ns: int
    end_ns: int
    samples: TreeSamples | None
    sees_kernel: bool
    period_ns: int
    refused: str | None


def command(program: str, arguments: Sequence[str], *, module: bool) -> list[str]:
    """Return what is executed for ``run``'s arguments.

    A script is run by this Python, a program that names its own (``other/bin/pytest``) by that one.

    Args:
        program: a script, a program by its path or on ``PATH``; with ``module`` a module's name.
        arguments: of the program.
        module: whether it is run as ``python -m`` does.

    Raises:
        UsageError: there is no such program, or it is not Python.
    """
    if module:
        if not _has_module(program):
            raise UsageError(f"no module named '{program}'; install it, or name another")
        return [sys.executable, "-m", program, *arguments]
    path = Path(program)
    if path.exists():
        try:
            is_python = _is_python(path)
        except OSError as error:
            raise UsageError(f"cannot read '{program}': {error.strerror}; name another") from error
        if path.suffix != ".py" and os.access(path, os.X_OK) and _interpreter(path):
            return [str(path.absolute()), *arguments]  # as one on the path, by its own Python
        if is_python:
            return [sys.executable, program, *arguments]
    # A folder may have the name of a program: it is looked for as a shell does.
    found = which(program)
    if found is None and path.exists():
        raise UsageError(f"'{program}' is not a Python program; run observes Python only")
    if found is None:
        raise UsageError(f"no file '{program}', and no such program; name a script, or -m MODULE")
    if not (Path(found).name.startswith("python") or _interpreter(Path(found))):
        raise UsageError(f"{found} is not a Python program; name its script, or use -m MODULE")
    return [found, *arguments]


def _has_module(name: str) -> bool:
    """Return whether a module can be found; nothing is imported."""
    path: Sequence[str] | None = ["", *sys.path]
    for inner in accumulate(name.split("."), "{}.{}".format):
        # A package that is installed in place may be found by a finder of its own.
        found = (finder.find_spec(inner, path) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def _interpreter(path: Path) -> bool:
    """Return whether a file says that Python is to run it."""
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def _is_python(path: Path) -> bool:
    if not path.is_file():  # a pipe can be read once, and a device may never end
        return (path / "__main__.py").exists()
    if zipfile.is_zipfile(path) or path.suffix in (".py", ".pyc"):
        return True
    source = path.read_bytes()
    if source.startswith(b"#!"):
        return _interpreter(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # the program itself gives them
            compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def run(command: Sequence[str], folder: Path, *, by: str, inputs: str) -> Ended:
    """Run a program to its end; signals that this process gets are the program's.

    Args:
        command: what is executed.
        folder: an empty one, which takes the notes of all processes.
        by: ``module`` or ``none``: what is noted of calls in detail.
        inputs: ``shapes`` or ``values`` of what modules are called with are noted; empty for none.

    Raises:
        UsageError: it cannot be executed.
    """
    hook = (
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        f"spec = spec_from_file_location('_frameworktax_calls', {calls.__file__!r})\n"
        "module = module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"module.start({str(folder)!r}, {by!r}, {inputs!r})\n"
    )
    (folder / "sitecustomize.py").write_text(hook, encoding="utf-8")
    environment = dict(os.environ)
    paths = [str(folder), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    sys.stdout.flush()
    sys.stderr.flush()
    watched = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        gate_out, gate = os.pipe()
        failed, failing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(gate)
            _execute(command, environment, gate_out, failing, before)
        os.close(gate_out)
        os.close(failing)
        sampler, refused = None, None
        try:
            sampler = TreeSampler(pid)
        except OSError as error:
            refused = str(error.strerror or error)
        begin_ns = time.perf_counter_ns()
        os.close(gate)
        problem = os.read(failed, 4096).decode("utf-8", "replace")
        os.close(failed)
        status = _wait(pid, sampler, watched)
        end_ns = time.perf_counter_ns()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if sampler is not None:
        sampler.drain()
        sampler.close()
    if problem:
        raise UsageError(f"cannot run {command[0]}: {problem}")
    return Ended(
        pid=pid,
        status=status,
        begin_ns=begin_ns,
        end_ns=end_ns,
        samples=sampler.samples if sampler else None,
        sees_kernel=sampler is not None and sampler.kernel,
        period_ns=sampler.period_ns if sampler else 0,
        refused=refused,
    )


def _execute(
    command: Sequence[str],
    environment: dict[str, str],
    gate: int,
    failing: int,
    mask: set[signal.Signals] | set[int],
) -> None:
    """Become the program, once it is sampled; in the child."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; programs do not
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while os.read(gate, 1):
            pass
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        os.write(failing, (error.strerror or str(error)).encode())
    finally:
        os._exit(127)


def _wait(pid: int, sampler: TreeSampler | None, watched: Iterable[int]) -> int:
    """Wait for the program's end; return its exit code, or the signal's number, negative.

    Where a terminal's signal stops the program, Ctrl-Z or one sent to this process, this process
    stops as well, for the shell that waits for it. Both go on with SIGCONT. By SIGSTOP another
    process stops the program alone, and lets it go on.
    """
    while True:
        info = signal.sigtimedwait(watched, DRAIN_S)
        if sampler is not None:
            sampler.drain()
        if info is not None and info.si_signo != signal.SIGCHLD:
            # One of the system's own has a positive code: a terminal's, or this process's alarm.
            if info.si_code <= 0 or info.si_signo not in TERMINAL:
                os.kill(pid, info.si_signo)
            continue
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if ended and not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        if ended and os.WSTOPSIG(status) in STOPS:
            os.kill(os.getpid(), os.WSTOPSIG(status))  # blocked, as all are, until the next line
            before = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
