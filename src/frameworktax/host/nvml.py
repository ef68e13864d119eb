"""The state of an NVIDIA device while calls run: clocks, power, heat, what slows it, who shares it.

Read through NVML (the package ``nvidia-ml-py``, an optional extra), which answers within a
millisecond; a started ``nvidia-smi`` would outlast the calls it is to look at. Other makers'
devices are not read.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

PACKAGE = "nvidia-ml-py"
CLOCK_DROP = 0.03
"""A device clock that fell by more than this share is noted."""
SLOWED_BY: Mapping[int, str] = {
    0x4: "a power cap set by software",
    0x8: "the hardware (heat or power)",
    0x10: "another device of its group",
    0x20: "heat, by software",
    0x40: "heat, by hardware",
    0x80: "an external power brake",
}
"""Bits of ``nvmlClocksEventReasons`` (nvml.h) that lower the clock below what was chosen."""

STATE: Mapping[str, Callable[[int, int], int]] = {
    "sm_mhz": min,
    "memory_mhz": min,
    "power_mw": max,
    "celsius": max,
    "reasons": operator.or_,
    "processes": max,
}
"""What is read: clocks of multiprocessors and memory, power of the board, heat of the chip, bits of
why the clock is where it is, processes of any user with a compute context → what is kept of two
readings under load."""


def reader(uuid: str, library: Any = None) -> Callable[[], dict[str, int]]:
    """Return what reads the state of a device: of ``STATE`` what the driver says.

    Args:
        uuid: ``GPU-…``, as ``nvidia-smi -L`` shows it; numbers differ where some are hidden.
        library: the module ``pynvml``, or what stands for it.

    Raises:
        OSError: the package or the driver's library is missing, or the device is not found.
    """
    try:
        nvml = library or importlib.import_module("pynvml")
    except ImportError as error:
        raise OSError(f"{PACKAGE} is not installed; pip install {PACKAGE}") from error
    try:
        nvml.nvmlInit()
        device = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError as error:
        why = str(error)
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-"))
            why = "it is a part of a GPU (MIG), of which it gives no clocks"
        raise OSError(f"NVML: {why}") from error
    questions: dict[str, Callable[[], Any]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
        "power_mw": lambda: nvml.nvmlDeviceGetPowerUsage(device),
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
        "reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(device),
        "processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(device)),
    }

    def read() -> dict[str, int]:
        found = {}
        for name, ask in questions.items():
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                found[name] = int(ask())
        return found

    return read


def state(readings: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the extremes of readings under load, and why clocks were lowered in any of them."""
    found: dict[str, int] = {}
    for reading in readings:
        for name, value in reading.items():
            found[name] = STATE[name](found[name], value) if name in found else value
    return found


def notes(before: Mapping[str, int], after: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return (code, text) of clocks that fell, were held down, or could not be read in between."""
    found = []
    if "sm_mhz" not in before or "sm_mhz" not in after:
        text = "device clocks could not be read; a drop would go unseen"
        found.append(("clocks-unread", text))
    for what, name in (("SM", "sm_mhz"), ("memory", "memory_mhz")):
        was, now = before.get(name), after.get(name)
        if was is not None and now is not None and now < (1 - CLOCK_DROP) * was:
            text = f"the {what} clock fell from {was} to {now} MHz; let the device cool"
            found.append(("clocks-dropped", text))
    reasons = before.get("reasons", 0) | after.get("reasons", 0)
    held = [text for bit, text in SLOWED_BY.items() if reasons & bit]
    if held:
        found.append(("clocks-held-down", f"the device was slowed by {', '.join(held)}"))
    return found
