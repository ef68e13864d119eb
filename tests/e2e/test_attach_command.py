"""`frameworktax attach` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from frameworktax.attribution.perf_event import probe
from frameworktax.programs.document import Program

needs_perf_event = pytest.mark.skipif(probe() is not None, reason=str(probe()))


@pytest.fixture
def target(tmp_path):
    """A program that runs all the time, in two threads, and says what it is."""
    code = (
        "import threading\n"
        "def spin():\n"
        "    while True: sum(range(1000))\n"
        "threading.Thread(target=spin, daemon=True).start()\n"
        "print(flush=True)\n"
        "spin()\n"
    )
    script = tmp_path / "server.py"
    script.write_text(code)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def wait_until_attached(process):
    """Wait until a process samples."""
    while process.poll() is None:
        for path in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(OSError):
                if "perf_event" in str(path.readlink()):
                    return
        time.sleep(0.05)


@needs_perf_event
def test_a_program_of_the_interpreter_is_all_tax(shell, target):
    ran = shell(
        "attach", str(target.pid), "--duration", "2s", "--json", "-", "--report", "tax.html",
        "-o", "tax.collapsed",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = ran.json()
    assert found["schema"] == "frameworktax.program"
    assert found["tax_share"]["value"] > 0.95
    assert {one["pid"] for one in found["sections"]} == {target.pid}
    assert found["processes"][0]["is_python"]
    lines = found["sections"][0]["bill_ns"]
    lines.pop("system", None)  # it calls none: these are ticks that a hypervisor took
    assert lines["python"] > 0.8 * sum(lines.values())
    assert f"process {target.pid};python;" in (shell.folder / "tax.collapsed").read_text()
    assert (shell.folder / "tax.html").read_text().count("<table") >= 2
    assert target.poll() is None


@needs_perf_event
def test_ctrl_c_ends_the_observation_with_its_table(shell, target):
    command = [sys.executable, "-m", "frameworktax", "attach", str(target.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until_attached(process)
        process.send_signal(signal.SIGINT)
        out = process.communicate()[0]
    assert process.returncode == 0
    assert str(target.pid) in out
    assert target.poll() is None


@needs_perf_event
def test_a_process_that_is_not_python_has_its_native_breakdown_for_one_at_a_time(shell):
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        command = [sys.executable, "-m", "frameworktax", "attach", str(sleeping.pid), "--quiet"]
        with subprocess.Popen([*command, "--json", "-"], stdout=subprocess.PIPE) as process:
            wait_until_attached(process)
            shell("attach", str(sleeping.pid)).refused("another frameworktax", str(sleeping.pid))
            process.send_signal(signal.SIGINT)
            found = json.loads(process.communicate()[0])
        sleeping.kill()
    assert process.returncode == 0
    (seen,) = found["processes"]
    assert not seen["is_python"] and "not-python" in [note["code"] for note in seen["notes"]]


@pytest.mark.parametrize(
    ("options", "came", "code"),
    [
        ([], signal.SIGINT, 0),
        (["--duration", "10min"], signal.SIGINT, 130),
        ([], signal.SIGTERM, 143),
        (["--duration", "10min"], None, 0),
    ],
)
def test_the_exit_code_says_whether_it_ended_as_asked(here, monkeypatch, options, came, code):
    found = Program(
        verb="attach", command=("server",), headline="none", wall_ns=1, cpu_ns=0, period_ns=1
    )

    class Observed(nullcontext):
        def finish(self):
            return found

    def observe(observed, limit_s, signals, view):
        signals.extend([came] if came else [])

    monkeypatch.setattr("frameworktax.programs.attach.Observation", Observed)
    monkeypatch.setattr("frameworktax.cli.run._observe", observe)
    monkeypatch.setattr(Observed, "__enter__", lambda self: self)
    assert here("attach", "4711", *options).code == code
