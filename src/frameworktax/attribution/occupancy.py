"""How full a kernel makes a device, from its launch: blocks, threads, registers, shared memory.

The two columns of the paper's table 3, without a hardware counter. Of one kernel:

- *SM activity*: the share of the multiprocessors that get a block, min(1, blocks / SMs).
- *Warp occupancy*: resident warps over the most that fit. A multiprocessor holds as many blocks as
  its limits allow (``blocks_at_once``) or as many as there are for it, whichever is less.

Weighted with the time of each kernel and divided by the latency of the call they are what DCGM
calls ``SM_ACTIVE`` and ``SM_OCCUPANCY``. They are upper ends: the last wave of blocks, and blocks
that finish early, leave multiprocessors idle that a counter would see.

Source of the limits: ``cuda_occupancy.h`` of the CUDA toolkit and the table of compute capabilities
in the CUDA programming guide. Kineto's "est. achieved occupancy %" is the same estimate, except
that it gives 0 to a kernel that asked for more shared memory than the default limit of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

WARP = 32
"""Threads; 64 on some AMD devices, whose limits are not known here."""
SIDES = 4
"""Parts of a multiprocessor, each with its share of the registers."""
REGISTERS_AT_ONCE = 256
"""Registers are given to warps in such portions."""
BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}
"""Blocks of a multiprocessor at most, by compute capability; 32 on the others from 5.0 on."""


class Limits(NamedTuple):
    """What a multiprocessor holds at once; a NamedTuple because a profile has one a device."""

    multiprocessors: int
    threads: int
    registers: int
    shared_bytes: int
    capability: tuple[int, int]

    @property
    def blocks(self) -> int:
        """Blocks of a multiprocessor at most."""
        return BLOCKS.get(self.capability, 32)


class Launch(NamedTuple):
    """How one kernel was launched; ``registers`` are those of a thread."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int


def limits_of(properties: Mapping[str, Any]) -> Limits | None:
    """Return the limits from an entry of a trace's ``deviceProperties``; None if it lacks some."""
    names = (
        "numSms", "maxThreadsPerMultiprocessor", "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor", "computeMajor", "computeMinor",
    )  # fmt: skip
    found = [properties.get(name) for name in names]
    numbers = [value for value in found if isinstance(value, int)]
    if len(numbers) < len(found) or numbers[0] < 1 or properties.get("warpSize", WARP) != WARP:
        return None
    multiprocessors, threads, registers, shared_bytes, major, minor = numbers
    return Limits(multiprocessors, threads, registers, shared_bytes, (major, minor))


def blocks_at_once(launch: Launch, limits: Limits) -> int:
    """Return how many blocks of a kernel a multiprocessor holds at once; 0 if not even one."""
    warps = -(-launch.threads // WARP)
    found = [limits.blocks, limits.threads // WARP // warps]
    if launch.registers:
        each = _up(launch.registers * WARP, REGISTERS_AT_ONCE)
        found.append(SIDES * (limits.registers // SIDES // each) // warps)
    # From compute capability 8.0 on a block takes 1 KiB more than it asks for.
    modern = limits.capability >= (8, 0)
    shared = launch.shared_bytes + (1024 if modern else 0)
    if shared:
        found.append(limits.shared_bytes // _up(shared, 128 if modern else 256))
    return min(found)


def sm_activity(launch: Launch, limits: Limits) -> float:
    """Return the share of the multiprocessors that get a block of the kernel."""
    return min(1.0, launch.blocks / limits.multiprocessors)


def warp_occupancy(launch: Launch, limits: Limits) -> float:
    """Return the kernel's resident threads over the most that the device holds."""
    resident = min(launch.blocks / limits.multiprocessors, blocks_at_once(launch, limits))
    return resident * launch.threads / limits.threads


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
