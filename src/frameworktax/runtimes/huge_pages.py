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
        before = mapped() if self.refusal is None else set()
        yield
        if self.refusal is None:
            self.collapse(mapped() - before)

    def collapse(self, addresses: Iterable[int]) -> None:
        """Make huge pages at some addresses."""
        size = page_bytes()
        for address in addresses:
            self.asked_bytes += size
            self.used_bytes += size if advise(address, size) else 0

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


def page_bytes() -> int:
    """Return the size of a huge page."""
    return int((SETTINGS / "hpage_pmd_size").read_text())


def mapped() -> set[int]:
    """Return where whole huge pages fit into writable private memory, files and stacks left out."""
    found: set[int] = set()
    size, guard_end = page_bytes(), 0
    for low, high, access, name in MAPPING.findall(MAPS.read_text(errors="replace")):
        start, end = int(low, 16), int(high, 16)
        if access == "rw-p" and name in ("", "[heap]") and start != guard_end:
            found.update(range(-(-start // size) * size, end - size + 1, size))
        # A page without access is below each thread's stack.
        guard_end = end if access == "---p" and end - start == mmap.PAGESIZE else 0
    return found


def advise(address: int, length: int) -> bool:
    """Have the kernel make huge pages; return whether it has, for no length whether it can.

    Memory that another thread has unmapped meanwhile is refused as well.
    """
    madvise = ctypes.CDLL(None).madvise
    return not madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), COLLAPSE)
