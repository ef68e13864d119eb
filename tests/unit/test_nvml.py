"""The state of a device, read through a fake of ``pynvml``."""

import sys

import pytest

from frameworktax.host import nvml


class NVMLError(Exception):
    pass


class FakePynvml:
    """One device, whose answers are scripted; what is None is not supported."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, sm=1980, memory=3201, power=690_000, heat=71, reasons=0, processes=(7, 8)):
        self.clocks = {1: sm, 2: memory}
        self.power, self.heat, self.reasons, self.processes = power, heat, reasons, processes

    def answer(self, value):
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in ("GPU-1", "MIG-3"):
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetClockInfo(self, device, kind):
        return self.answer(self.clocks[kind])

    def nvmlDeviceGetPowerUsage(self, device):
        return self.answer(self.power)

    def nvmlDeviceGetTemperature(self, device, kind):
        return self.answer(self.heat)

    def nvmlDeviceGetCurrentClocksEventReasons(self, device):
        return self.answer(self.reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, device):
        return self.answer(self.processes)


def test_a_reading_has_what_the_driver_says():
    assert nvml.reader("GPU-1", FakePynvml())() == {
        "sm_mhz": 1980,
        "memory_mhz": 3201,
        "power_mw": 690_000,
        "celsius": 71,
        "reasons": 0,
        "processes": 2,
    }
    silent = FakePynvml(None, None, None, None, None, None)
    assert nvml.reader("GPU-1", silent)() == {}


def test_what_is_missing_is_named(monkeypatch):
    with pytest.raises(OSError, match="Not Found"):
        nvml.reader("GPU-2", FakePynvml())
    with pytest.raises(OSError, match=r"part of a GPU \(MIG\), of which it gives no clocks"):
        nvml.reader("GPU-3", FakePynvml())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(OSError, match="nvidia-ml-py"):
        nvml.reader("GPU-1")


def test_state_has_the_lowest_clock_the_highest_power_and_every_reason():
    first = {"sm_mhz": 1980, "memory_mhz": 3201, "power_mw": 400, "celsius": 60, "reasons": 0x4}
    second = {"sm_mhz": 1700, "power_mw": 690, "celsius": 72, "reasons": 0x20}
    readings = [first, second, {}]
    assert nvml.state(readings) == {
        "sm_mhz": 1700,
        "memory_mhz": 3201,
        "power_mw": 690,
        "celsius": 72,
        "reasons": 0x24,
    }
    assert nvml.state([{}]) == {}


def codes(before, after):
    return [code for code, _ in nvml.notes(before, after)]


def test_clocks_that_fell_were_held_down_or_were_not_read_are_noted():
    steady = {"sm_mhz": 1980, "memory_mhz": 2619, "reasons": 0}
    assert codes(steady, steady) == []
    assert codes(steady, {**steady, "sm_mhz": 1921}) == []
    lower = {"sm_mhz": 1920, "memory_mhz": 2540, "reasons": 0}
    assert codes(steady, lower) == ["clocks-dropped", "clocks-dropped"]
    assert codes({}, steady) == ["clocks-unread"]
    # An idle device and clocks that the user chose are no fault.
    assert codes({**steady, "reasons": 0x1}, {**steady, "reasons": 0x2}) == []
    assert codes({**steady, "reasons": 0x4}, steady) == ["clocks-held-down"]
    ((_, text),) = nvml.notes(steady, {**steady, "reasons": 0x60})
    assert "by software" in text and "by hardware" in text
