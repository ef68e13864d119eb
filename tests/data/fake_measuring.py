"""Sessions that start no process: documented commands take seconds and depend on no speed.

A point's latency follows from its runtime and its batch size, exactly; a user's own model is built
and called once. Everything before and after the session is the real thing: parsing, checks, store,
document, report.

    python fake_measuring.py frameworktax measure bert-tiny     a command
    python fake_measuring.py example.py                         a program
    python fake_measuring.py pytest                             tests with the plugin

``run`` has commands and programs forked from one server that has imported what they need, torch
too: that takes seconds, and the documentation has a hundred of them.
"""

from __future__ import annotations

import array
import atexit
import functools
import importlib
import json
import os
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import sample_records as data

from frameworktax import models, runtimes
from frameworktax.measure import session as measuring
from frameworktax.measure.reporter import Reporter
from frameworktax.records import (
    Calibration,
    Effort,
    Outcome,
    Parity,
    Point,
    Subject,
    Workload,
    device_of,
)
from frameworktax.runtimes.base import Target

OVERHEAD_NS = {"eager": 600_000, "torchscript-frozen": 250_000, "onnxruntime": 100_000}
"""Tax of a call; other runtimes 300 µs."""
KERNEL_NS = 400_000
"""Kernel time of a sample."""


class FakeSession:
    """Writes the records of a session whose every point is measured."""

    def __init__(
        self,
        plan: Any,
        writer: Any,
        reporter: Any = None,
        *_: object,
        **__: object,
    ) -> None:
        self._plan, self._writer, self._session = plan, writer, writer.session
        self._reporter = reporter or Reporter()

    def run(self) -> None:
        self._reporter.asked(self._plan.points, self._plan.until)
        if self._plan.live is None:
            call_once(self._plan.points[0].workload)
        for i in range(6):
            self._write(Calibration(session=self._session, round=i, latency_ns=(1_000_000,)))
        self._floor()
        for point in self._plan.points:
            self._point(point)

    @property
    def effort(self) -> Effort:
        return Effort(
            session=self._session, wall_ns=2_000, setup_ns=500, measuring_ns=1_000, calls_ns=800
        )

    def _write(self, record: Any) -> None:
        self._writer.write(replace(record, session=self._session))

    def _floor(self) -> None:
        point = Point(workload=Workload(model="null"), runtime="null")
        self._write(Subject(session="", point=point, paradigm="floor"))
        for block in data.blocks(point, 200):
            self._write(block)

    def _point(self, point: Point) -> None:
        runtime = runtimes.get(point.runtime)
        self._write(Subject(session="", point=point, paradigm=runtime.paradigm, flops=1000))
        target = Target(device_of(point.platform), point.workload.precision, point.threads)
        reason = runtime.missing(target) or runtime.cannot(point.workload)
        key = point.key()
        if reason:
            self._write(Outcome(session="", point=key, process=0, status="unavailable",
                                reason=reason))  # fmt: skip
            return
        tax_ns = OVERHEAD_NS.get(runtime.name, 300_000)
        kernel_ns = KERNEL_NS * point.workload.batch
        latency_ns = tax_ns + kernel_ns
        for process in range(3):
            self._write(Outcome(session="", point=key, process=process, status="ok"))
        for block in data.blocks(point, latency_ns):
            self._write(block)
        self._reporter.measured(point, [[latency_ns * p] for p in data.PROCESS_FACTORS])
        share = round(1000 * kernel_ns / latency_ns)
        self._write(data.sampled(point, latency_ns, {"kernel": share, "dispatch": 900 - share}))
        if runtime.name != "eager":
            self._write(Parity(session="", point=key, reference="eager", max_abs_difference=0.0,
                               max_relative_difference=0.0, tolerance=1e-4,
                               within_tolerance=True))  # fmt: skip


def call_once(workload: Workload) -> None:
    """Build a user's own model and call it, as a measuring process would."""
    if models.is_user_model(workload.model):
        model = models.build(workload)
        inputs = model.inputs(1)
        model.module(*inputs.args, **inputs.kwargs)


def install(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Put the fake session in the place of the real one.

    Args:
        replace: sets an attribute; ``monkeypatch.setattr`` undoes it after a test.
    """
    import frameworktax.api
    import frameworktax.sweep.run  # noqa: F401 - imported now, so that its name is replaced too

    real = measuring.MeasuringSession
    for module in [m for name, m in sys.modules.items() if name.startswith("frameworktax")]:
        if vars(module).get("MeasuringSession") is real:
            replace(module, "MeasuringSession", FakeSession)


def environment(folder: Path) -> dict[str, str]:
    """Return variables under which ``frameworktax``, ``python`` and ``pytest`` measure nothing.

    Args:
        folder: takes the commands.
    """
    folder.mkdir(parents=True, exist_ok=True)
    client = folder / "client.py"
    client.write_text(CLIENT)
    for name, first in {"frameworktax": "frameworktax", "python": "", "pytest": "pytest"}.items():
        command = folder / name
        words = f'{sys.executable} -S -E {client} {server()} {first} "$@"'
        command.write_text(f"#!/bin/sh\nexec {words}\n")
        command.chmod(0o755)
    path = [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {"PATH": os.pathsep.join(path)}


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder as a reader would, with the fake session."""
    commands = environment(folder.with_name(f"{folder.name}-commands"))
    variables = {**os.environ, **commands, "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


CLIENT = """
import array, json, os, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    fds = socket.SCM_RIGHTS, array.array("i", [0, 1, 2])
    server.sendmsg([b"."], [(socket.SOL_SOCKET, *fds)])
    server.sendall(json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(16) or 1))
"""
"""Hands a command's words, folder, variables and streams to the server; ends with its code."""


@functools.cache
def server() -> str:
    """Return the socket of a server that lives as long as this process."""
    folder = tempfile.mkdtemp(prefix="fake-")
    path = os.path.join(folder, "socket")
    child = subprocess.Popen(
        [sys.executable, __file__, "serve", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None

    def end() -> None:
        child.communicate()
        shutil.rmtree(folder)

    atexit.register(end)
    assert child.stdout.readline() == b"ready\n"
    return path


IMPORTED = (
    "_strptime", "jinja2", "pydantic", "rich.live", "rich.markup", "rich.table", "scipy.special",
    "torch", "vl_convert", "zoneinfo", "frameworktax.ablate.blocks", "frameworktax.api",
    "frameworktax.analysis.document", "frameworktax.cli.progress", "frameworktax.comparing",
    "frameworktax.explaining", "frameworktax.integrations.readers", "frameworktax.report.export",
    "frameworktax.report.html", "frameworktax.report.render_markdown",
    "frameworktax.report.render_terminal", "frameworktax.sweep.run",
)  # fmt: skip
"""What takes long to import, once for all commands."""


def serve(path: str) -> None:
    """Fork a process for each command until the standard input ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    for name in runtimes.names():
        runtimes.get(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            asked, _ = listener.accept()
            if os.fork() == 0:
                if os.fork():  # nobody waits for the second, which answers by itself
                    os._exit(0)
                listener.close()
                answer(asked)
            os.wait()
            asked.close()


def answer(asked: socket.socket) -> None:
    """Run a command in this process, which ends with it."""
    _, ancillary, *_ = asked.recvmsg(1, socket.CMSG_LEN(3 * 4))
    fds = array.array("i", ancillary[0][2])
    with asked.makefile("rb") as sent:
        words, folder, variables = json.load(sent)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    code: object = 1
    try:
        sys.argv = [__file__, *words]
        main()
        code = 0
    except SystemExit as left:
        code = left.code
    except BaseException:  # noqa: BLE001 - as at the end of any program
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    asked.sendall(str(code if isinstance(code, int) else int(code is not None)).encode())
    os._exit(0)


def main() -> None:
    """Run a command or a program with the fake session."""
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "serve":
        serve(sys.argv[1])
        return
    install()
    sys.path[0] = os.getcwd()
    if sys.argv[0] == "frameworktax":
        from frameworktax.cli import main as command

        command()
    elif sys.argv[0] == "pytest":
        import pytest

        sys.exit(pytest.main(sys.argv[1:]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
