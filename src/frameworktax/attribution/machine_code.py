"""What a library without symbols was doing at an address, by its machine code.

A stripped library still has the range of every compiled function in its unwind table. What lies
outside all ranges is assembler written by hand: products and convolutions.
A compiled function is disassembled: inside a loop that computes (floating-point or packed integer
arithmetic) it is a kernel; a loop that only moves data is a copy; all else is the runtime itself.

``benchmarks/stripped.py`` holds this against torch's libraries, whose symbols are known. Rules are
for x86-64; on other processors, and without the ``capstone`` package, only what lies outside all
ranges is known to be a kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from frameworktax.errors import UsageError
from frameworktax.host.cache import cache_folder, own_entry, private_file

Work = Literal["kernel", "copy", "other", "unknown"]
"""What an instruction belongs to; ``unknown`` where nothing can be disassembled."""

LARGEST_BYTES = 400_000
"""Of a longer function only this much is disassembled: about 0.5 s."""
KERNEL_FRAME = 0.02
"""Share of arithmetic from which code around a function's computing loops is part of the kernel."""
KERNEL_STRAIGHT = 0.05
"""The same for a function without such loops: an unrolled kernel."""
MOVING_LOOP = 64
"""A loop that stores, in at most so many instructions and without a call, is a copy. So is one of
any length whose calls are all to ``memcpy`` and its like: im2col in front of a product."""
MOVERS = ("memcpy", "memmove", "memset", "__memcpy_chk", "__memmove_chk", "__memset_chk")

_COMPUTES = re.compile(
    r"v?(add|sub|mul|div|max|min|sqrt|rcp(14)?|rsqrt(14)?|hadd|hsub|addsub|round|rndscale|scalef"
    r"|getexp|getmant|range|reduce|fixupimm|dp|cmp\w*)(p[sdh]|s[sdh])"
    r"|vf(n?m(add|sub)\w*|maddsub\w*|msubadd\w*)(p[sdh]|s[sdh])"
    r"|vp(dp\w+|madd\w+|mul\w+)|pm(add|ul)\w+|tdp\w+"
    r"|v?cvt(t?ps2|t?dq2p|ph2ps|ps2ph)\w*|v?u?comis[sd]|vpmovsx\w+"
)
_VECTOR = re.compile(r"[xyz]mm")
_STORE = re.compile(r"v?mov\w*|rep movs\w*|stos\w*|vpscatter\w*|vcompress\w*")

_computes: Callable[[str], bool] = cache(lambda mnemonic: bool(_COMPUTES.fullmatch(mnemonic)))
_stores: Callable[[str], bool] = cache(lambda mnemonic: bool(_STORE.fullmatch(mnemonic)))

Instruction = tuple[int, int, str, str]
"""Address, bytes, mnemonic, operands."""
Judged = list[tuple[int, Work]]
"""Addresses at which the work of a function's instructions changes, and to what."""


@cache
def is_available() -> bool:
    """Return whether compiled functions can be judged here; imports nothing."""
    return platform.machine() == "x86_64" and find_spec("capstone") is not None


@cache
def disassembler() -> Any:
    """Return capstone's for this processor, None where there is none or no rules for it."""
    if not is_available():
        return None
    import capstone

    found = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    found.skipdata = True  # tables between instructions are stepped over
    return found


def judge_function(
    code: bytes,
    start: int,
    moves: Callable[[int], bool] = lambda target: False,
    *,
    loops_only: bool = False,
) -> Judged:
    """Return (address, work) at which the work changes, for the code of one function.

    Args:
        code: its bytes.
        start: its address.
        moves: whether the function at an address is ``memcpy`` or its like.
        loops_only: it is an operator's, of which only loops that compute are a kernel.
    """
    engine = disassembler()
    if engine is None:
        return [(start, "unknown")]
    found = list(engine.disasm_lite(code[:LARGEST_BYTES], start))
    return judge(found, moves, loops_only=loops_only)


def judge(
    instructions: list[Instruction],
    moves: Callable[[int], bool] = lambda target: False,
    *,
    loops_only: bool = False,
) -> Judged:
    """Return (address, work) at which the work of a function's instructions changes."""
    if not instructions:
        return []
    addresses = [address for address, *_ in instructions]
    names = [mnemonic for _, _, mnemonic, _ in instructions]
    computing = _running(_computes(name) for name in names)
    vector = _running(bool(_VECTOR.search(operands)) for *_, operands in instructions)
    moving_calls = [
        name == "call" and operands.startswith("0x") and moves(int(operands, 16))
        for _, _, name, operands in instructions
    ]
    by_call = _running(moving_calls)
    calls = _running(
        name == "call" and not moving for name, moving in zip(names, moving_calls, strict=True)
    )
    stores = _running(
        _stores(name) and _into_memory(operands) for _, _, name, operands in instructions
    )
    count = len(instructions)
    share = computing[count] / count
    loops = _loops(instructions)
    spans = [(bisect_left(addresses, a), bisect_right(addresses, b)) for a, b in loops]
    computes_in_loop = any(computing[end] > computing[begin] for begin, end in spans)
    is_kernel = not loops_only and share > (KERNEL_FRAME if computes_in_loop else KERNEL_STRAIGHT)
    work = np.full(count, 0 if is_kernel else 2, np.int8)  # 0 kernel, 1 copy, 2 other
    inside_computing = np.zeros(count, bool)
    for begin, end in sorted(spans, key=lambda span: span[0] - span[1]):  # the innermost comes last
        length = end - begin
        if computing[end] > computing[begin]:
            work[begin:end] = 0
            inside_computing[begin:end] = True
            continue
        by_itself = calls[end] == calls[begin]
        moved = by_itself and stores[end] > stores[begin]
        called = by_itself and by_call[end] > by_call[begin]
        wide = (vector[end] - vector[begin]) / length > 0.1
        copies = called or (moved and (wide or length <= MOVING_LOOP))
        # Steps of a loop nest that computes are part of it; a wide copy is a copy wherever it is.
        nested = inside_computing[begin:end] & (not (moved and wide))
        work[begin:end] = np.where(nested, 0, 1 if copies else 2)
    change = np.flatnonzero(np.diff(work, prepend=-1))
    kinds: tuple[Work, ...] = ("kernel", "copy", "other")
    return [(addresses[at], kinds[work[at]]) for at in change]


def _running(flags: Iterable[bool]) -> list[int]:
    """Return running totals, one longer than what they count."""
    return list(accumulate(flags, initial=0))


def _into_memory(operands: str) -> bool:
    """Return whether an instruction writes to memory that is not its own stack frame."""
    target = operands.split(",", 1)[0]
    return "[" in target and "[rsp" not in target and "[rbp" not in target


def _loops(instructions: list[Instruction]) -> set[tuple[int, int]]:
    """Return (first, last address) of loops: the targets and places of jumps backwards."""
    first = instructions[0][0]
    found = set()
    for address, _, mnemonic, operands in instructions:
        if mnemonic[0] == "j" and operands.startswith("0x"):
            target = int(operands, 16)
            if first <= target <= address:
                found.add((target, address))
    return found


def jump_slot(code: bytes, address: int) -> int | None:
    """Return where a stub of the procedure linkage table reads its target from, None for others."""
    engine = disassembler()
    if engine is None:
        return None
    for at, size, name, operands in engine.disasm_lite(code, address, 2):
        found = re.fullmatch(r"qword ptr \[rip ([+-]) (0x[0-9a-f]+|\d)\]", operands)
        if name.endswith("jmp") and found:
            distance = int(found[2], 16)
            return int(at + size + (distance if found[1] == "+" else -distance))
        if name != "endbr64":
            return None
    return None


class Known:
    """Functions of one library that were judged before, on this machine and by these rules.

    A library is known by its first MiB, which holds its build id, and its size. A file of the cache
    that cannot be read counts as empty; without a cache each process judges anew.
    """

    def __init__(self, head: bytes, size: int) -> None:
        rules = Path(__file__).read_bytes() + bytes(is_available())
        name = hashlib.blake2b(rules + head, digest_size=12).hexdigest()
        self._file: Path | None = None
        self._judged: dict[int, Judged] = {}
        self._is_new = False
        with contextlib.suppress(UsageError, OSError, ValueError, TypeError, AttributeError):
            self._file = own_entry(cache_folder() / "machine-code") / f"{name}-{size}.json"
            for start, judged in json.loads(self._file.read_bytes()).items():
                self._judged[int(start)] = [(int(address), work) for address, work in judged]

    def get(self, start: int, judge: Callable[[], Judged]) -> Judged:
        """Return what is known of the function that starts there, else ``judge`` it."""
        if start not in self._judged:
            self._judged[start] = judge()
            self._is_new = True
        return self._judged[start]

    def save(self) -> None:
        """Keep what was judged since; nothing is kept where the cache takes nothing more."""
        if self._is_new and self._file:
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(mode=0o700, exist_ok=True)
                with private_file(self._file) as partial:
                    partial.write_text(json.dumps(self._judged))
            self._is_new = False
