"""The peak memory of a measuring process is its own, not that of whoever started it."""

import subprocess
import sys

from frameworktax.measure.worker import peak_memory_bytes


def test_the_kernel_tells_the_peak_of_the_program(tmp_path):
    status = tmp_path / "status"
    status.write_bytes(b"Name:\t\xff\nVmPeak:\t  99 kB\nVmHWM:\t  1234 kB\nVmRSS:\t   12 kB\n")
    assert peak_memory_bytes(status) == 1234 * 1024


def test_without_it_the_process_is_asked(tmp_path):
    assert peak_memory_bytes(tmp_path / "none") > 1_000_000
    (tmp_path / "status").write_text("Name:\tpython\n")
    assert peak_memory_bytes(tmp_path / "status") > 1_000_000


def test_a_large_parent_does_not_count():
    ballast = bytearray(200_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])
    code = "from frameworktax.measure.worker import peak_memory_bytes; print(peak_memory_bytes())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(told.stdout) < len(ballast)
