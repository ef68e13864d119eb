"""Sessions that start no process: documented commands take seconds and depend on no speed.

A point's latency follows from its runtime and its batch size, exactly; a user's own model is built
and called once. Everything before and after the session is the real thing: parsing, checks, store,
document, report.

    python fake_measuring.py frameworktax measure bert-tiny     a command
    python fake_measuring.py example.py                         a program
    pytest -p fake_measuring                                    tests with the plugin
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
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
        session: str,
        reporter: Any = None,
        *_: object,
        **__: object,
    ) -> None:
        self._plan, self._writer, self._session = plan, writer, session
        self._reporter = reporter or Reporter()

    def run(self) -> None:
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

    def spent_ns(self) -> Mapping[str, int]:
        return {}

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


def pytest_configure() -> None:
    install()


def environment(folder: Path) -> dict[str, str]:
    """Return variables under which ``frameworktax``, ``python`` and ``pytest`` measure nothing.

    Args:
        folder: takes the commands.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, words in {
        "frameworktax": f"{__file__} frameworktax",
        "python": __file__,
        "pytest": "-m pytest -p fake_measuring",
    }.items():
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        command.chmod(0o755)
    return {
        "PATH": os.pathsep.join(
            [str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder as a reader would, with the fake session."""
    commands = environment(folder.with_name(f"{folder.name}-commands"))
    variables = {**os.environ, **commands, "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def main() -> None:
    """Run a command or a program with the fake session."""
    install()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.getcwd()
    if sys.argv[0] == "frameworktax":
        from frameworktax.cli import main as command

        command()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
