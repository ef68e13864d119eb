"""The checks of the method on a fake device: they pass on a good one and name what is wrong."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path[:0] = [
    str(Path(__file__).parents[2] / "benchmarks"),
    str(Path(__file__).parents[1] / "data"),
]

from fake_device import DEFAULT_STREAM, FakeDevice

import gpu_method
from frameworktax.attribution import torch_device
from frameworktax.runtimes.cuda_graph import missing_gpu
from frameworktax.testing import FakeClock
from frameworktax.traces.events import KERNEL, MEMSET

KERNEL_NS, GAP_NS, LAUNCH_NS = 2_000, 900, 5_000


def run(monkeypatch, capsys, **options):
    """Return the rows of all checks on one device, and the exit code."""
    clock = FakeClock(1_751_410_836_000_000_000)
    device = FakeDevice(clock, gap_ns=GAP_NS, event_ns=500, **options)

    def layers():
        for _ in range(40):
            device.launch(host_ns=LAUNCH_NS, kernel_ns=KERNEL_NS, name="gemm")

    def chain():
        for _ in range(10):
            device.launch(host_ns=LAUNCH_NS, kernel_ns=2_000_000, name="big")

    def replayed(call):
        rows = [(KERNEL, "gemm", KERNEL_NS)] * 40
        return lambda: device._enqueue("cudaGraphLaunch", rows, 9_000, DEFAULT_STREAM)

    def times(gpu, call, calls=30):
        gpu.synchronize()
        begin = clock.now_ns
        call()
        enqueue = clock.now_ns - begin
        gpu.synchronize()
        return clock.now_ns - begin, enqueue, clock.now_ns - begin

    def zero():
        device.launch(host_ns=LAUNCH_NS, kernel_ns=60_000, category=MEMSET)

    def now_ns():
        clock.work(1_000)
        return clock.now_ns

    fake = SimpleNamespace(
        inference_mode=nullcontext, uint8=None, empty=lambda *_, **__: SimpleNamespace(zero_=zero)
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(torch_device, "TorchDevice", lambda name: device)
    monkeypatch.setattr(
        gpu_method, "time", SimpleNamespace(perf_counter_ns=now_ns, sleep=lambda s: None)
    )
    for name, stand_in in (
        ("small_mlp", lambda: layers), ("big_chain", lambda: chain), ("replayed", replayed),
        ("times", times),
    ):  # fmt: skip
        monkeypatch.setattr(gpu_method, name, stand_in)
    code = gpu_method.check_method()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {row["check"]: row for row in rows}, code


def failed(rows):
    return [name for name, row in rows.items() if not row["ok"]]


@pytest.mark.parametrize("calls", ["cuda-12", "cuda-13", "cuda-13-unnamed"])
def test_a_good_device_passes_every_check(monkeypatch, capsys, calls):
    rows, code = run(monkeypatch, capsys, calls=calls, stray=1, cycles_per_ns=1.98)
    assert (failed(rows), code) == ([], 0)
    assert len(rows) == 25
    assert rows["40 layers: launches by the profile, eager and graph"]["result"] == (
        "40 and 1 launches"
    )
    assert rows["40 layers: K with cold L2 against warm"]["ratio"] == pytest.approx(1)


def test_lost_records_fail_the_checks(monkeypatch, capsys):
    rows, code = run(monkeypatch, capsys, lose=lambda number: number > 520 and number % 97 == 0)
    assert code == 3
    assert "ten profiles" in failed(rows)


def test_a_profile_that_slows_the_device_afterwards_is_found(monkeypatch, capsys):
    profile = FakeDevice.profile

    def hooked(self, work, operators=False):
        trace = profile(self, work, operators)
        self.gap_ns = 2 * GAP_NS
        return trace

    monkeypatch.setattr(FakeDevice, "profile", hooked)
    rows, code = run(monkeypatch, capsys)
    assert code == 3
    wrong = [
        f"40 layers, {way}, after a profile against before: D" for way in ("eager", "graph replay")
    ]
    assert failed(rows)[:2] == wrong


@pytest.mark.skipif(missing_gpu() is None, reason="there may be a GPU")
def test_without_a_device_it_says_so_in_one_line():
    done = subprocess.run([sys.executable, gpu_method.__file__], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    (said,) = done.stderr.splitlines()
    assert "GPU" in said or "CUDA" in said
