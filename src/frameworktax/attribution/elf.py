"""Function symbols of an ELF file, read with numpy: 450,000 of them in under 0.1 s.

Only addresses, sizes and name offsets of ``.symtab`` and ``.dynsym`` are kept; names are read for
addresses that were hit. Functions of a stripped file get the start that ``.eh_frame_hdr`` gives
them, so that samples of one function still stand together.

Source: System V ABI, "Symbol Table"; LSB Core 5.0, ".eh_frame_hdr".
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
_NOTYPE, _FUNC, _IFUNC = 0, 2, 10
_SYMTAB, _DYNSYM = 2, 11
_LOAD, _EH_FRAME = 1, 0x6474E550
_UNDEFINED, _LOCAL = 0, 0
_NESTING = 8  # how many earlier symbols may enclose an address (labels inside a function)


class SymbolTable:
    """Function symbols of one ELF file.

    Raises:
        ValueError: not a little-endian 64-bit ELF file.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = self._data
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a little-endian 64-bit ELF file")
        header = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        phoff, shoff, phsize, phnum, shsize, shnum = *header[4:6], *header[8:12]
        self._loads: list[tuple[int, int, int]] = []  # file offset, address, size in the file
        self.functions = np.zeros(0, np.int64)
        for i in range(phnum):
            kind, _, offset, vaddr, _, size = struct.unpack_from(
                "<IIQQQQ", data, phoff + i * phsize
            )
            if kind == _LOAD:
                self._loads.append((offset, vaddr, size))
            elif kind == _EH_FRAME:
                self.functions = _function_starts(data, offset, vaddr)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * shsize) for i in range(shnum)
        ]
        tables = [_read_table(data, sections, s) for s in sections if s[1] in (_SYMTAB, _DYNSYM)]
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
        where no sized symbol fits.
        """
        starts, ends, names = self._sized
        at = int(np.searchsorted(starts, address, side="right"))
        for i in range(at - 1, max(-1, at - 1 - _NESTING), -1):
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

    def function(self, address: int) -> int | None:
        """Return the start of the function around an ELF address by unwind tables, or None."""
        at = int(np.searchsorted(self.functions, address, side="right"))
        return int(self.functions[at - 1]) if at else None

    def values(self, names: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """Return name → [(address, size)] of those exported under one of ``names``."""
        wanted = {name.encode(): name for name in names}
        found: dict[str, list[tuple[int, int]]] = {}
        for value, size, at in zip(self._starts, self._sizes, self._names, strict=True):
            name = wanted.get(self._bytes(int(at)))
            if name is not None:
                found.setdefault(name, []).append((int(value), int(size)))
        return found

    def _bytes(self, at: int) -> bytes:
        return self._data[at : self._data.find(b"\0", at)]

    def _text(self, at: int) -> str:
        # A version suffix (malloc@@GLIBC_2.2.5) is part of a .symtab name only.
        return self._bytes(at).decode("ascii", "replace").split("@")[0]


def _read_table(
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


def _function_starts(data: mmap.mmap, offset: int, vaddr: int) -> np.ndarray[Any, Any]:
    """Return the sorted function addresses of ``.eh_frame_hdr`` in its one usual encoding."""
    version, pointer, count, table = data[offset : offset + 4]
    if (version, pointer, count, table) != (1, 0x1B, 0x03, 0x3B):
        return np.zeros(0, np.int64)
    (entries,) = struct.unpack_from("<I", data, offset + 8)
    pairs = np.frombuffer(data, "<i4", entries * 2, offset + 12)
    return np.sort(pairs[::2].astype(np.int64) + vaddr)
