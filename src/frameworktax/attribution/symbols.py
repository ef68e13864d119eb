"""From program counters to (library, symbol), without external tools.

An address is looked up in ``/proc/self/maps``, turned from a file offset into an ELF address, and
searched in the file's symbol table, which is read with numpy when first hit: 450,000 symbols in
under 0.1 s. Names are read for addresses that were hit. Functions of a stripped file get the start
that ``.eh_frame_hdr`` gives them.

Source: System V ABI, "Symbol Table"; LSB Core 5.0, ".eh_frame_hdr".
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from frameworktax.attribution.machine_code import MOVERS, Known, Work, judge_function, jump_slot

Judging = Literal["", "all", "loops"]
JIT = "[jit]"
GENERATED = ("/memfd:", "/dev/zero", "[anon", "//anon", "[heap]")
"""Names of mappings that are no file's."""
KERNEL = "[kernel]"
UNKNOWN = "[unknown]"
STUB = "plt"
"""Symbol of the stubs through which a library calls another's functions: they have none."""
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
_NOTYPE, _FUNC, _IFUNC = 0, 2, 10
_RELOCATION = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
_SYMTAB, _RELA, _DYNSYM = 2, 4, 11
_GLOBAL_DATA, _JUMP_SLOT = 6, 7  # of x86-64
DAMAGED = (struct.error, IndexError, KeyError, OverflowError, ValueError)
"""What reading a damaged file may raise."""
_LOAD, _EH_FRAME = 1, 0x6474E550
_UNDEFINED, _LOCAL = 0, 0
_EXECUTABLE = 4  # flag of a section
_PAGE = 4096
_CALL = re.compile(rb".*(\xe8.{4}|\xff[\xd0-\xd7\x10-\x13\x16\x17].{0}|\xff[\x50-\x57].{1}"
                   rb"|\xff\x14.{1}|\xff\x54.{2}|\xff\x15.{4}|\xff[\x90-\x97].{4}|\xff\x94.{5})",
                   re.DOTALL)  # fmt: skip
"""The end of a call instruction."""
_NESTING = 8  # how many earlier symbols may enclose an address (labels inside a function)


class Leaf(NamedTuple):
    """Where a program counter was: basename of the library, symbol in words ('' if none).

    ``work`` is what the machine code does there, where no symbol says it. ``made_by`` is the line
    of the breakdown of what called a copy or a lookup, where that is known and no kernel.
    """

    library: str
    symbol: str
    work: Work | None = None
    made_by: str = ""


class PerfMap:
    """Names of code made while running, which a process writes for profilers: ``perf-PID.map``.

    Python does with ``-X perf``, other runtimes have options of their own. The file grows while
    the process runs and is read on from where it ended.

    Source: tools/perf/Documentation/jit-interface.txt of the Linux kernel.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._starts: list[int] = []
        self._entries: dict[int, tuple[int, str]] = {}

    def find(self, address: int) -> str | None:
        """Return the name of the code at an address."""
        at = bisect_right(self._starts, address)
        end, name = self._entries[self._starts[at - 1]] if at else (0, "")
        if address < end:
            return name
        return self.find(address) if self._read_on() else None

    def _read_on(self) -> bool:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return False
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            start, size, name = (*line.split(maxsplit=2), b"", b"", b"")[:3]
            try:
                begin, length = int(start, 16), int(size, 16)
            except ValueError:
                continue
            self._entries[begin] = begin + length, name.decode("utf-8", "replace")
        self._starts = sorted(self._entries)
        return bool(whole)


@dataclass(frozen=True, slots=True)
class Region:
    """One executable mapping: ``[start, end)`` holds the file ``path`` from ``offset`` on."""

    start: int
    end: int
    offset: int
    path: str

    @property
    def is_generated(self) -> bool:
        """Whether code lies here that was generated while running: oneDNN's, XNNPACK's."""
        return not self.path or self.path.startswith(GENERATED)


def parse_maps(text: str) -> list[Region]:
    """Return the executable mappings of a ``/proc/PID/maps`` text, by address."""
    regions = []
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 5 or "x" not in fields[1]:
            continue
        start, end = (int(part, 16) for part in fields[0].split("-"))
        path = fields[5] if len(fields) > 5 else ""
        regions.append(Region(start, end, int(fields[2], 16), path))
    return sorted(regions, key=lambda region: region.start)


@cache
def _demangler() -> Callable[[bytes], str] | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")  # every engine written in C++ brings it
    except OSError:
        return None
    function, free = library.__cxa_demangle, ctypes.CDLL(None).free
    function.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]

    def apply(name: bytes) -> str:
        status = ctypes.c_int()
        pointer = function(name, None, None, ctypes.byref(status))
        if not pointer:
            return name.decode()
        text = ctypes.string_at(pointer).decode("utf-8", "replace")
        free(pointer)
        return text

    return apply


def demangle(name: str) -> str:
    """Return a C++ symbol in words; anything else, and all where libstdc++ is absent, as it is."""
    base, dot, clone = name.partition(".")
    apply = _demangler() if base.startswith("_Z") else None
    if apply is None:
        return name
    return apply(base.encode()) + (f" [clone .{clone}]" if dot else "")


_tables: dict[tuple[int, int, int], SymbolTable] = {}
"""Device, number and time of a file → symbols, read once in a process: reading torch's takes longer
than a sample."""


def read_table(path: str) -> SymbolTable | None:
    """Return the symbols of a file; None where it is gone, no ELF file, or damaged."""
    try:
        file = Path(path).stat()
        key = file.st_dev, file.st_ino, file.st_mtime_ns
        if key not in _tables:
            _tables[key] = SymbolTable(path)
        return _tables[key]
    except (OSError, ValueError):
        return None


class _Map:
    """The executable mappings of a process."""

    def __init__(self, text: str) -> None:
        self.regions = parse_maps(text)
        self._starts = [region.start for region in self.regions]

    def find(self, address: int) -> Region | None:
        at = bisect_right(self._starts, address)
        region = self.regions[at - 1] if at else None
        return region if region is not None and address < region.end else None


_read: tuple[tuple[int, int], _Map] | None = None
"""This process's mappings, and how many libraries it had loaded and unloaded until then."""


def _own_map(addresses: Iterable[int]) -> _Map:
    """Return the mappings of this process; they are read anew where they may have changed.

    Reading takes up to 5 ms, a tenth of a sample. Files are mapped when libraries are loaded, which
    the loader counts; where generated code was there is only generated code without it.
    """
    global _read
    counts = _loaded_libraries()
    if _read is None or _read[0] != counts or None in map(_read[1].find, addresses):
        _read = counts, _read_map(Path("/proc/self"))
    return _read[1]


def _read_map(process: Path) -> _Map:
    return _Map((process / "maps").read_text(errors="replace"))


_LOADER = ctypes.CDLL(None)
_VISIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_ulonglong), ctypes.c_size_t, ctypes.c_void_p
)


def _loaded_libraries() -> tuple[int, int]:
    """Return how many libraries this process has loaded until now, and unloaded."""
    found: list[tuple[int, int]] = []

    def first(words: Any, size: int, nothing: int | None) -> int:
        found.append((words[4], words[5]))  # of struct dl_phdr_info, dl_iterate_phdr(3)
        return 1  # every object has the same counts

    _LOADER.dl_iterate_phdr(_VISIT(first), None)
    return found[0]


class Resolver:
    """Turns program counters of a process into leaves; tables are read when first hit.

    A library of another process is read where that process sees it, in its container too. One that
    was replaced or removed since it was loaded is read where the kernel still has it (to root
    only), or is known by its name alone.

    Args:
        maps: text of ``/proc/PID/maps``; None to read it, again where an address is in no mapping.
        process: ``/proc/PID`` of another process; None for this one.
        perf_map: names of code that is made while running.
        hidden: whether a library's symbols are to be ignored, to test what is done without.
        judged: whether machine code is judged, by library and symbol: all of a function, or only
            its loops.
    """

    def __init__(
        self,
        maps: str | None = None,
        *,
        process: Path | None = None,
        perf_map: PerfMap | None = None,
        hidden: Callable[[str], bool] = lambda library: False,
        judged: Callable[[str, str | None], Judging] = lambda library, name: "" if name else "all",
    ) -> None:
        self._hidden, self._judged = hidden, judged
        self._process, self._perf_map = process, perf_map
        self._table = cache(self._find_table)
        self.follows_call = cache(self._follows_call)
        self._map: _Map | None = None
        """None for this process, which reads its own when it needs to."""
        if maps is not None:
            self._map = _Map(maps)
        elif process is not None:
            self._map = _read_map(process)

    @property
    def libraries(self) -> set[str]:
        """Paths of everything that is mapped as code."""
        return {region.path for region in (self._map or _own_map([])).regions}

    def resolve(self, addresses: Iterable[int]) -> dict[int, Leaf]:
        """Return address → leaf for every distinct user-space address."""
        wanted = set(addresses)
        found_in = self._map or _own_map(wanted)
        if self._process and None in map(found_in.find, wanted):
            with suppress(OSError):  # the process has ended: what it had is known
                read = _read_map(self._process)
                self._map = found_in = read if read.regions else found_in  # none while it ends
        found = {address: self._leaf(address, found_in.find(address)) for address in wanted}
        for table in list(_tables.values()):
            if table.known is not None:
                table.known.save()
        return found

    def find(self, address: int) -> tuple[str, SymbolTable, int] | None:
        """Return path, table and ELF address of code that a readable file holds, else None."""
        # What files hold is mapped by the loader: an address elsewhere is no reason to read anew.
        region = (self._map or _own_map([])).find(address)
        return self._place(address, region) if region else None

    def _place(self, address: int, region: Region) -> tuple[str, SymbolTable, int] | None:
        table = self._table(region)
        vaddr = table.address(address - region.start + region.offset) if table else None
        return None if table is None or vaddr is None else (region.path, table, vaddr)

    def _follows_call(self, address: int) -> bool:
        """Return whether a call instruction (of x86-64) lies before an address."""
        found = self.find(address - 1) if address else None
        return found is not None and _CALL.fullmatch(found[1].code(found[2] - 7, 8)) is not None

    def _leaf(self, address: int, region: Region | None) -> Leaf:
        if region is None:
            return Leaf(UNKNOWN, "")
        if region.is_generated:
            return Leaf(JIT, (self._perf_map and self._perf_map.find(address)) or "")
        path = region.path
        if path.startswith("["):
            return Leaf(path, "")
        library = path.removesuffix(" (deleted)").rpartition("/")[2]
        place = self._place(address, region)
        if place is None:
            return Leaf(library, "")
        _, table, vaddr = place
        if library.startswith(("libc.so", "libc-2")):
            special = _libc_names(table, path).find(vaddr)
            if special is not None:
                return Leaf(library, special)
        name = None if self._hidden(library) else table.find(vaddr)
        judged = self._judged(library, name)
        work = table.work(vaddr, loops_only=judged == "loops") if judged else None
        if name is not None:
            return Leaf(library, demangle(name), work)
        start = table.function(vaddr)
        return Leaf(library, f"sub_{start:x}" if start is not None else "", work)

    def _find_table(self, region: Region) -> SymbolTable | None:
        """Read what is mapped where its process sees it, or where the kernel still has it."""
        if self._process is None:
            return read_table(region.path)
        if region.path.endswith(" (deleted)"):
            return read_table(f"{self._process}/map_files/{region.start:x}-{region.end:x}")
        return read_table(f"{self._process}/root{region.path}")


def _bias(table: SymbolTable, path: str) -> int | None:
    """Return where this process has loaded the file of a table, None where it has not."""
    if table is not read_table(path):
        return None
    for region in _own_map([]).regions:
        vaddr = table.address(region.offset) if region.path == path else None
        if vaddr is not None:
            return region.start - vaddr
    return None


def read_tables() -> None:
    """Read the symbols of every library of this process; what is forked from it has them too."""
    for path in Resolver().libraries:
        if path.startswith("/"):
            read_table(path)


_MALLOC_OBJECT = (
    "malloc", "free", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign",
    "valloc", "pvalloc", "malloc_trim", "malloc_usable_size", "mallinfo", "mallinfo2", "mallopt",
    "malloc_info", "malloc_stats", "__default_morecore",
)  # fmt: skip
_CHOSEN_AT_LOAD = (
    "memcpy", "memmove", "memset", "memcmp", "memchr", "strlen", "strcmp", "strncmp", "strchr",
)  # fmt: skip


class LibcNames:
    """Names for the two parts of a stripped libc that matter here.

    The allocator's inner functions (``_int_malloc`` …) are static; but glibc compiles its allocator
    as one object, which reaches from the end of the exported function before malloc.c's first to
    the end of malloc.c's last. (The gap in front may also hold unexported functions of the object
    before: the timer_* family, which inference does not call.)

    ``memcpy`` and its like are IFUNCs: which of their variants this processor uses is what
    ``dlsym`` returns in a process that has loaded this libc, as this one has; the variant's extent
    comes from the unwind table.
    """

    def __init__(self, table: SymbolTable, path: str) -> None:
        self._table = table
        own = table.spans(_MALLOC_OBJECT)
        first = min((start for start, _ in own), default=0)
        self._malloc = table.end_before(first), max((end for _, end in own), default=0)
        self._variants: dict[int, str] = {}
        load_bias = _bias(table, path)
        if load_bias is None:  # another libc than this process has
            return
        libc = ctypes.CDLL(None)
        for name in _CHOSEN_AT_LOAD:
            target = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0
            start = table.function(target - load_bias)
            if start is not None:
                self._variants.setdefault(start, name)

    def find(self, address: int) -> str | None:
        """Return ``malloc-internal`` or the chosen variant's public name, or None."""
        if self._malloc[0] <= address < self._malloc[1]:
            return self._table.find(address) or "malloc-internal"
        start = self._table.function(address)
        return self._variants.get(start) if start is not None else None


_libc_names = cache(LibcNames)


# --- ELF files ----------------------------------------------------------------------------------


_MAP_FIXED = 0x10
_MAP = _LOADER.mmap
_MAP.restype = ctypes.c_void_p
_MAP.argtypes = ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long


def _mapped(path: str | Path) -> mmap.mmap:
    """Return a file as memory that is only to be read, without a descriptor that stays open.

    ``mmap`` would keep one of the file, so memory without one becomes that of the file.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        made = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        at = np.frombuffer(made, np.uint8).ctypes.data
        if _MAP(at, size, mmap.PROT_READ, mmap.MAP_PRIVATE | _MAP_FIXED, file.fileno(), 0) != at:
            raise OSError(f"{path} cannot be mapped")
    return made


class SymbolTable:
    """Function symbols of one ELF file.

    Raises:
        ValueError: not a little-endian 64-bit ELF file, or a damaged one.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self._data = _mapped(path)
        try:
            self._read(path)
        except DAMAGED as error:
            raise ValueError(f"{path} is a damaged ELF file: {error}") from error

    def _read(self, path: str | Path) -> None:
        data = self._data
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a little-endian 64-bit ELF file")
        header = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        phoff, shoff, phsize, phnum, shsize, shnum = *header[4:6], *header[8:12]
        self._loads: list[tuple[int, int, int]] = []  # file offset, address, size in the file
        self.functions = self.ends = self._entries = np.zeros(0, np.int64)
        self.known: Known | None = None
        self._movers: set[int] | None = None
        unwind = None
        for i in range(phnum):
            kind, _, offset, vaddr, _, size = struct.unpack_from(
                "<IIQQQQ", data, phoff + i * phsize
            )
            if kind == _LOAD:
                self._loads.append((offset, vaddr, size))
            elif kind == _EH_FRAME:
                unwind = offset, vaddr
        if unwind is not None:
            self.functions, self.ends, self._entries = self._read_unwind_table(*unwind)
        self._sections = sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * shsize) for i in range(shnum)
        ]
        # what is executable and made of entries of one size: stubs that jump into other libraries
        self._stubs = [(s[3], s[3] + s[5]) for s in sections if s[2] & _EXECUTABLE and s[9]]
        tables = [_functions_in(data, sections, s) for s in sections if s[1] in (_SYMTAB, _DYNSYM)]
        value, size, name, better = (
            np.concatenate([t[i] for t in tables]) if tables else np.zeros(0, np.int64)
            for i in range(4)
        )
        order = np.lexsort((better, value))  # the best of equal addresses comes last
        value, size, name = value[order], size[order], name[order]
        self._starts, self._names = value, name
        sized = size > 0
        self._sized = value[sized], value[sized] + size[sized], name[sized]
        self._unsized = value[~sized], name[~sized]
        self._sizes = size

    def address(self, offset: int) -> int | None:
        """Return the ELF address of a file offset, None outside every loaded segment."""
        for start, vaddr, size in self._loads:
            if start <= offset < start + size:
                return offset - start + vaddr
        return None

    def find(self, address: int) -> str | None:
        """Return the symbol whose ``[value, value + size)`` holds an ELF address.

        A symbol of size 0 (hand-written assembly) reaches to the next symbol, and is taken only
        where no sized symbol fits. Stubs are ``STUB``, whatever is before them.
        """
        if any(start <= address < end for start, end in self._stubs):
            return STUB
        starts, ends, names = self._sized
        at = int(np.searchsorted(starts, address, side="right"))
        for i in range(at - 1, max(-1, at - 1 - _NESTING), -1):  # at most down to the first
            if address < ends[i]:
                return self._text(int(names[i]))
        starts, names = self._unsized
        at = int(np.searchsorted(starts, address, side="right"))
        if at:
            after = int(np.searchsorted(self._starts, starts[at - 1], side="right"))
            if after == len(self._starts) or address < self._starts[after]:
                return self._text(int(names[at - 1]))
        return None

    def end_before(self, address: int) -> int:
        """Return where the last sized symbol that starts before ``address`` ends."""
        starts, ends, _ = self._sized
        at = int(np.searchsorted(starts, address, side="left"))
        return int(ends[at - 1]) if at else address

    def _function_at(self, address: int) -> int:
        """Return the number of the last function that begins at or before an address, or −1."""
        return int(np.searchsorted(self.functions, address, side="right")) - 1

    def function(self, address: int) -> int | None:
        """Return the start of the function around an ELF address by unwind tables, or None."""
        at = self._function_at(address)
        return int(self.functions[at]) if at >= 0 else None

    def unwind_entry(self, address: int) -> tuple[mmap.mmap, int, int] | None:
        """Return the file, where in it the function's ``.eh_frame`` entry is, and its start.

        None outside every compiled function, and where its entry cannot be read.
        """
        at = self._function_at(address)
        if at < 0 or address >= self.ends[at] or self._entries[at] < 0:
            return None
        return self._data, int(self._entries[at]), int(self.functions[at])

    def holds(self, text: bytes) -> bool:
        """Return whether a text is anywhere in the file."""
        return self._data.find(text) >= 0

    def text(self, address: int) -> str:
        """Return the text at an ELF address up to a zero byte; empty outside loaded segments."""
        offset = self._offset(address)
        return "" if offset is None else self._bytes(offset).decode("ascii", "replace")

    def relocations(self) -> Iterator[tuple[Any, Callable[[int], tuple[str, int]]]]:
        """Yield each table of relocations, and what gives (name, address) of its symbols."""
        for section in self._sections:
            if section[1] != _RELA:
                continue
            symbols = self._sections[section[6]]
            strings = self._sections[symbols[6]][4]

            def symbol(index: int, at: int = symbols[4], strings: int = strings) -> tuple[str, int]:
                name, value = struct.unpack_from("<I4xQ", self._data, at + 24 * index)
                return self._text(strings + name), int(value)

            yield np.frombuffer(self._data, _RELOCATION, section[5] // 24, section[4]), symbol

    def code(self, address: int, size: int) -> bytes:
        """Return the bytes at an ELF address; empty outside every loaded segment."""
        offset = self._offset(address)
        return b"" if offset is None else self._data[offset : offset + size]

    def work(self, address: int, *, loops_only: bool = False) -> Work | None:
        """Return what the machine code does at an ELF address; None without an unwind table.

        What no entry of the table covers was written by hand: a kernel. Of a function always the
        same is asked.
        """
        at = self._function_at(address)
        if at < 0:
            return None
        start, end = int(self.functions[at]), int(self.ends[at])
        if address >= end:
            return "kernel"
        offset = self._offset(start)
        if offset is None:
            return None
        if self.known is None:
            self.known = Known(self._data[: 1 << 20], len(self._data))
        judged = self.known.get(
            start,
            lambda: judge_function(
                self._data[offset : offset + end - start],
                start,
                self._is_mover,
                loops_only=loops_only,
            ),
        )
        before = bisect_right(judged, address, key=lambda change: change[0])
        return judged[before - 1][1] if before else None

    def _is_mover(self, address: int) -> bool:
        """Return whether a call to an address is one of ``memcpy`` or its like, elsewhere."""
        offset = self._offset(address)
        if offset is None:
            return False
        if self._movers is None:
            self._movers = set()
            with suppress(*DAMAGED):
                self._movers.update(
                    int(slot["offset"])
                    for table, symbol in self.relocations()
                    for slot in table[
                        np.isin(table["info"] & 0xFFFFFFFF, (_JUMP_SLOT, _GLOBAL_DATA))
                    ]
                    if symbol(int(slot["info"] >> 32))[0] in MOVERS
                )
        return jump_slot(self._data[offset : offset + 16], address) in self._movers

    def _offset(self, address: int) -> int | None:
        """Return the file offset of an ELF address, None outside every loaded segment."""
        for offset, vaddr, size in self._loads:
            if vaddr <= address < vaddr + size:
                return address - vaddr + offset
        return None

    def _read_unwind_table(self, offset: int, vaddr: int) -> tuple[Any, Any, Any]:
        """Return sorted starts and ends of functions by ``.eh_frame_hdr`` and ``.eh_frame``.

        Also where in the file each function's entry is. One whose entry cannot be read reaches to
        the next one, its entry is −1.
        """
        data = self._data
        if tuple(data[offset : offset + 4]) != (1, 0x1B, 0x03, 0x3B):  # the one usual encoding
            none = np.zeros(0, np.int64)
            return none, none, none
        (count,) = struct.unpack_from("<I", data, offset + 8)
        pairs = np.frombuffer(data, "<i4", count * 2, offset + 12).astype(np.int64) + vaddr
        order = np.argsort(pairs[::2])
        starts, entries = pairs[::2][order], pairs[1::2][order]
        ends = np.append(starts[1:], starts[-1:] + _PAGE)
        found = np.full(len(starts), -1)
        first = self._offset(int(entries[0])) if count else None
        if first is not None:
            at = entries - int(entries[0]) + first  # one segment holds the whole section
            inside = (at >= 0) & (at + 16 <= len(data))
            at = np.where(inside, at, 0)
            words = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(8, 16)]
            begin, size = words.copy().view("<i4").T.astype(np.int64)
            readable = inside & (entries + 8 + begin == starts) & (size > 0)
            ends = np.where(readable, starts + size, ends)
            found = np.where(readable, at, -1)
        return starts, ends, found

    def spans(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """Return start and end of what is exported under ``names``."""
        wanted = {name.encode() for name in names}
        table = zip(self._starts.tolist(), self._sizes.tolist(), self._names.tolist(), strict=True)
        return [(start, start + size) for start, size, at in table if self._bytes(at) in wanted]

    def _bytes(self, at: int) -> bytes:
        return self._data[at : self._data.find(b"\0", at)]

    def _text(self, at: int) -> str:
        # A version suffix (malloc@@GLIBC_2.2.5) is part of a .symtab name only.
        return self._bytes(at).decode("ascii", "replace").split("@")[0]


def _functions_in(
    data: mmap.mmap, sections: Sequence[tuple[Any, ...]], section: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return (address, size, file offset of the name, preference) of a table's functions."""
    table = np.frombuffer(data, _SYMBOL, section[5] // _SYMBOL.itemsize, section[4])
    kind = table["info"] & 15
    keep = ((kind == _FUNC) | (kind == _IFUNC) | (kind == _NOTYPE)) & (table["value"] > 0)
    keep &= (table["section"] != _UNDEFINED) & (table["section"] < 0xFF00)
    table = table[keep]
    names = sections[section[6]][4] + table["name"].astype(np.int64)
    typed = (table["info"] & 15) != _NOTYPE
    shared = (table["info"] >> 4) != _LOCAL
    preference = typed.astype(np.int64) * 2 + shared
    return table["value"].astype(np.int64), table["size"].astype(np.int64), names, preference
