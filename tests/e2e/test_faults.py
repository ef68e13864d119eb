"""Faults of models: each a record with its reason, while the rest goes on."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.timing

HEAD = """
import os, signal, subprocess, sys, time
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        if x.device.type == "cpu":
            x = self.fault(x)
        return self.linear(x)

    def fault(self, x):
        # fault
        return x

def build():
    return Net(), torch.randn(1, 8)
"""


def measure(shell, fault: str, *words: str):
    shell.write(
        "own.py",
        HEAD.replace("        return x\n\ndef", f"        {fault}\n        return x\n\ndef"),
    )
    return shell(
        "measure",
        "own.py:build",
        "--runtimes",
        "eager",
        "--processes",
        "1",
        "--twin",
        "none",
        "--time-budget",
        "10s",
        "--json",
        "-",
        *words,
    )


def by_batch(ran) -> dict:
    assert "Traceback" not in ran.err
    return {
        m["workload"]["batch"]: m for m in ran.json()["measurements"] if m["runtime"] == "eager"
    }


def the_rest_went_on(ran, status: str, *says: str) -> None:
    assert ran.code == 0, ran.err
    found = by_batch(ran)
    assert found[1]["status"] == "ok" and found[1]["latency_ns"]["value"] > 0
    assert found[2]["status"] == status
    assert found[2]["latency_ns"] is None and found[2]["samples_ns"] == []
    for word in says:
        assert word in found[2]["reason"]


def test_a_model_that_segfaults(shell):
    ran = measure(shell, "if len(x) == 2: os.kill(os.getpid(), signal.SIGSEGV)", "--batch", "1,2")
    the_rest_went_on(ran, "crashed", "SIGSEGV", "own.py:17 in fault")


def test_a_model_that_exits(shell):
    ran = measure(shell, "if len(x) == 2: sys.exit(3)", "--batch", "1,2")
    the_rest_went_on(ran, "crashed", "code 3")


def test_a_model_that_raises(shell):
    ran = measure(shell, "if len(x) == 2: raise ValueError('no two')", "--batch", "1,2")
    the_rest_went_on(ran, "failed", "ValueError: no two")


def test_a_model_that_eats_memory(shell):
    ran = measure(shell, "if len(x) == 2: torch.empty(10**13)", "--batch", "1,2")
    the_rest_went_on(ran, "out-of-memory")


def test_a_model_that_is_killed_for_memory(shell):
    ran = measure(shell, "if len(x) == 2: os.kill(os.getpid(), signal.SIGKILL)", "--batch", "1,2")
    the_rest_went_on(ran, "out-of-memory", "killed")


def test_a_model_that_hangs(shell):
    ran = measure(
        shell, "if len(x) == 2: time.sleep(10000)", "--batch", "1,2", "--time-budget", "30s"
    )
    the_rest_went_on(ran, "timeout", "not done after")


def test_a_model_that_prints_without_end(shell):
    fault = (
        "print('x' * 100_000_000) if len(x) == 1 and not hasattr(self, 'n') else None; self.n = 1"
    )
    ran = measure(shell, fault, "--batch", "1")
    found = by_batch(ran)[1]
    assert found["status"] == "ok"
    assert "chatty" in [n["code"] for n in found["notes"]]
    assert len(ran.out) < 200_000 and len(ran.err) < 100_000


def test_a_model_that_returns_nan(shell):
    found = by_batch(measure(shell, "x = x * float('nan')", "--batch", "1"))[1]
    assert found["status"] == "ok"
    assert found["parity"]["within_tolerance"] is None
    assert "NaN" in found["parity"]["reason"]


def test_a_model_whose_outputs_differ_each_call(shell):
    found = by_batch(measure(shell, "x = x + torch.rand_like(x)", "--batch", "1"))[1]
    assert found["status"] == "ok"
    assert found["parity"]["within_tolerance"] is None
    assert "differs from call to call" in found["parity"]["reason"]


def test_children_of_a_model_end_with_it(shell):
    mark = "86399.4711"
    fault = f"hasattr(self, 'c') or setattr(self, 'c', subprocess.Popen(['sleep', '{mark}']))"
    ran = measure(shell, fault, "--batch", "1")
    assert by_batch(ran)[1]["status"] == "ok"
    alive = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            alive.append(path.read_bytes())
        except OSError:
            continue  # it ended while we looked
    assert not any(mark.encode() in line for line in alive)


def test_nothing_measured_is_exit_1_and_one_line(shell):
    ran = measure(shell, "raise RuntimeError('never works')", "--batch", "1")
    assert ran.code == 1
    assert ran.out == ""
    (line,) = [x for x in ran.err.splitlines() if x.startswith("frameworktax: ")]
    assert "never works" in line and "Traceback" not in ran.err
