"""Faults of models: each a record with its reason, while the rest goes on."""

import os
from pathlib import Path

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
        FAULT
        return x

def build():
    return Net(), torch.randn(1, 8)
"""


def measure(command, faults: str | dict[int, str], *words: str, budget: str = "300s"):
    """Measure a model that runs one fault, or another at each batch size."""
    lines = [faults] if isinstance(faults, str) else by_size(faults)
    command.write("own.py", HEAD.replace("        FAULT", "\n".join(f"        {x}" for x in lines)))
    common = ("--runtimes", "eager", "--processes", "1", "--twin", "none", "--until", "50%")
    return command(
        "measure", "own.py:build", *common, "--json", "-", "--time-budget", budget, *words
    )


def by_size(faults: dict[int, str]) -> list[str]:
    return [f"if len(x) == {batch}: {fault}" for batch, fault in faults.items()]


def by_batch(ran) -> dict:
    assert "Traceback" not in ran.err
    return {
        m["workload"]["batch"]: m for m in ran.json()["measurements"] if m["runtime"] == "eager"
    }


ENDED = {
    2: ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", ["SIGSEGV", "own.py:16 in fault"]),
    3: ("sys.exit(3)", "failed", ["SystemExit: 3", "own.py:17"]),
    4: ("raise ValueError('no four')", "failed", ["ValueError: no four", "own.py:18"]),
    5: ("torch.empty(10**13)", "out-of-memory", []),
    6: ("os.kill(os.getpid(), signal.SIGKILL)", "out-of-memory", ["killed"]),
}


HANGS = "torch._C._len_torch_dispatch_stack() or time.sleep(10000)"
"""Not while the model's operators are counted."""
WRONG = {
    8: ("x = x * float('nan')", "NaN"),
    9: ("x = x + torch.rand_like(x)", "differs from call to call"),
}


def test_batches_that_end_the_process_fail_hang_or_cannot_be_compared(measuring):
    """Each becomes a record with its reason, and what is beside it is measured."""
    faults = {batch: fault for batch, (fault, *_) in {**ENDED, **WRONG}.items()} | {10: HANGS}
    ran = measure(measuring, faults, "--batch", "1,2,3,4,5,6,7,8,9,10")
    assert ran.code == 0, ran.err
    found = by_batch(ran)
    for batch in (1, 7, *WRONG):
        assert found[batch]["status"] == "ok" and found[batch]["latency_ns"]["value"] > 0
    for batch, (_, status, says) in ENDED.items():
        assert found[batch]["status"] == status
        assert found[batch]["latency_ns"] is None and found[batch]["samples_ns"] == []
        assert all(word in found[batch]["reason"] for word in says), found[batch]["reason"]
    for batch, (_, says) in WRONG.items():
        assert found[batch]["parity"]["within_tolerance"] is None
        assert says in found[batch]["parity"]["reason"]
    assert found[10]["status"] == "timeout" and "not done after" in found[10]["reason"]


def test_a_model_that_prints_without_end_and_has_children(measuring):
    """What it prints is not kept, and what it started ends with it, in its group or not."""
    mark, away = (f"86399.{os.getpid()}{which}" for which in "12")  # of this run alone
    fault = (
        "hasattr(self, 'c') or (print('x' * 20_000_000), setattr(self, 'c', ["
        f"subprocess.Popen(['sleep', '{mark}']), "
        f"subprocess.Popen(['sleep', '{away}'], start_new_session=True)]))"
    )
    ran = measure(measuring, fault, "--batch", "1")
    found = by_batch(ran)[1]
    assert found["status"] == "ok"
    notes = {n["code"]: n["text"] for n in found["notes"]}
    assert "chatty" in notes
    assert away in notes["left-behind"] and mark not in notes["left-behind"]
    assert len(ran.out) < 200_000 and len(ran.err) < 100_000
    alive = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            alive.append(path.read_bytes())
        except OSError:
            continue  # it ended while we looked
    assert not any(mark.encode() in line or away.encode() in line for line in alive)
