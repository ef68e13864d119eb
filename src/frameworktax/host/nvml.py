"""The state of an NVIDIA device while calls run: clocks, power, heat, what slows it, who shares it.

Read through NVML (the package ``nvidia-ml-py``, an optional extra), which answers within a
millisecond; a started ``nvidia-smi`` would outlast the calls it is to look at. Other makers'
devices are not read.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Reading:
    """A device at one moment; None where the driver does not say.

    Attributes:
        sm_mhz: clock of the multiprocessors.
        memory_mhz: clock of the memory.
        power_mw: drawn by the board.
        celsius: of the chip.
        reasons: bits of why the clock is where it is.
        processes: that hold a compute context, of any user.
    """

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_mw: int | None = None
    celsius: int | None = None
    reasons: int | None = None
    processes: int | None = None


class Nvml:
    """NVML of one device.

    Args:
        uuid: ``GPU-…``, as ``nvidia-smi -L`` shows it; numbers differ where some are hidden.
        library: the module ``pynvml``, or what stands for it.

    Raises:
        OSError: the package or the driver's library is missing, or the device is not found.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        try:
            self._nvml = library or importlib.import_module("pynvml")
        except ImportError as error:
            raise OSError(f"{PACKAGE} is not installed; pip install {PACKAGE}") from error
        try:
            self._nvml.nvmlInit()
            self._device = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    def read(self) -> Reading:
        """Return the state of the device now."""
        nvml, device = self._nvml, self._device
        clock = nvml.nvmlDeviceGetClockInfo
        reasons = getattr(
            nvml, "nvmlDeviceGetCurrentClocksEventReasons",
            getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None),
        )  # fmt: skip
        return Reading(
            sm_mhz=self._ask(lambda: clock(device, nvml.NVML_CLOCK_SM)),
            memory_mhz=self._ask(lambda: clock(device, nvml.NVML_CLOCK_MEM)),
            power_mw=self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(device)),
            celsius=self._ask(
                lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)
            ),
            reasons=self._ask(lambda: reasons(device)) if reasons is not None else None,
            processes=self._ask(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(device))),
        )

    def _ask(self, question: Callable[[], Any]) -> int | None:
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return int(question())
        return None


def state(readings: Iterable[Reading]) -> dict[str, int]:
    """Return the extremes of readings under load, and why clocks were lowered in any of them."""
    found: dict[str, int] = {}
    known = list(readings)
    for name, choose in (
        ("sm_mhz", min), ("memory_mhz", min), ("power_mw", max), ("celsius", max),
        ("processes", max),
    ):  # fmt: skip
        values = [value for r in known if (value := getattr(r, name)) is not None]
        if values:
            found[name] = choose(values)
    reasons = [r.reasons for r in known if r.reasons is not None]
    if reasons:
        found["reasons"] = 0
        for bits in reasons:
            found["reasons"] |= bits
    return found


def notes(before: Mapping[str, int], after: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return (code, text) of clocks that fell, were held down, or could not be read.

    Args:
        before: ``state`` at the begin of a measurement.
        after: ``state`` at its end.
    """
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
