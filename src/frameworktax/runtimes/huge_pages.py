"""Huge pages for the memory that an engine keeps its weights in: fewer misses of the TLB.

Most systems give them only to processes that ask (``transparent_hugepage/enabled`` is ``madvise``),
and engines do not ask. ``benchmarks/huge_pages.py`` shows what they gain and take.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MAPS = Path("/proc/self/maps")
COLLAPSE = 25
"""``MADV_COLLAPSE`` of Linux 6.1: copies what is in small pages into a huge one, at once."""
MAPPING = re.compile(r"^(\w+)-(\w+) (\S+) \S+ \S+ \d+ *(.*)$", re.MULTILINE)
Range = tuple[int, int]
"""Addresses, the last excluded."""


class HugePages:
    """What of an engine's memory is in huge pages.

    Attributes:
        refusal: why nothing is; None where they are asked for.
        asked_bytes: that huge pages were asked for.
        used_bytes: in huge pages; the kernel may refuse any, and memory that was never touched.
    """

    def __init__(self, refusal: str | None = None) -> None:
        self.refusal = refusal or missing()
        self.asked_bytes = self.used_bytes = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Put memory that the block maps and keeps into huge pages, but no files and no stacks."""
        before = mapped() if self.refusal is None else []
        yield
        if self.refusal is None:
            self.collapse(new(before, mapped()))

    def collapse(self, ranges: Iterable[Range]) -> None:
        """Put the whole huge pages that lie in the ranges together."""
        size = int((SETTINGS / "hpage_pmd_size").read_text())
        for start, end in ranges:
            for page in range(-(-start // size) * size, end // size * size, size):
                self.asked_bytes += size
                self.used_bytes += size if advise(page, size) else 0

    def __str__(self) -> str:
        if self.refusal is not None:
            return f"no huge pages: {self.refusal}"
        return f"{self.used_bytes / 1e6:.0f} of {self.asked_bytes / 1e6:.0f} MB in huge pages"


def missing() -> str | None:
    """Return why the system has none to ask for; None where it has."""
    try:
        setting = (SETTINGS / "enabled").read_text()
    except OSError:
        return "the system has none"
    if "[never]" in setting:
        return f"{SETTINGS}/enabled is never"
    return None if advise(0, 0) else "the kernel has no MADV_COLLAPSE; Linux 6.1 has"


def mapped() -> list[Range]:
    """Return writable private memory of this process in order, files and stacks left out."""
    found, guard_end = [], 0
    for low, high, access, name in MAPPING.findall(MAPS.read_text()):
        start, end = int(low, 16), int(high, 16)
        if access == "rw-p" and name in ("", "[heap]") and start != guard_end:
            found.append((start, end))
        # A page without access is below each thread's stack.
        guard_end = end if access == "---p" and end - start == mmap.PAGESIZE else 0
    return found


def new(before: Iterable[Range], after: Iterable[Range]) -> Iterator[Range]:
    """Yield what is mapped after and was not before; both are in order."""
    for start, end in after:
        rest = start
        for low, high in before:
            if low < end and high > rest:
                if low > rest:
                    yield rest, low
                rest = high
        if rest < end:
            yield rest, end


def advise(address: int, length: int) -> bool:
    """Have the kernel make huge pages; return whether it has, for no length whether it can.

    Memory that another thread has unmapped meanwhile is refused as well.
    """
    madvise = ctypes.CDLL(None).madvise
    return not madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), COLLAPSE)
