"""Which functions call the one that a sample fell in, from the stack that comes with the sample.

Every sample has the registers of the thread and the top of its stack. Compiled code keeps no frame
pointers, but its unwind tables (``.eh_frame``) say for every instruction where the return address
lies. So the callers are found afterwards, and nothing is added to the program. Code without such a
table (generated while running, or written in assembler) is stepped over: its caller is the first
word above that follows a call instruction and from which further callers are found.

x86-64 only: other processors save other registers in other places.

Source: DWARF 5, section 6.4; System V ABI for x86-64; perf_event_open(2).
"""

from __future__ import annotations

import platform
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from mmap import mmap
from typing import NamedTuple

from frameworktax.attribution import perf_event as perf
from frameworktax.attribution.sampler import Ticks
from frameworktax.attribution.symbols import Resolver

STACK_BYTES = 65_400
"""Copied with each sample: products have frames of up to 55 KB; a record ends at 64 KiB."""
MOST_FRAMES = 100
NEAR, SEARCHED = 32, 1_024
"""Words that are searched for the caller of code without an unwind table, and in the end."""
CALLERS, PAGE = 6, 4_096
"""How many further callers make a word a return address, or half of them in the last page."""

BP, SP, PC = 6, 7, 16
_KERNEL_NUMBERS = {3: 1, BP: 6, SP: 7, PC: 8, 12: 20, 13: 21, 14: 22, 15: 23}
"""DWARF's number → the kernel's (``PERF_REG_X86_*``), of registers that a call preserves."""
_REGISTERS = sorted(_KERNEL_NUMBERS, key=lambda one: _KERNEL_NUMBERS[one])
_FURTHER_BYTES = 48 + 8 * len(_REGISTERS)
"""Of a sample, besides the stack."""
_MASK = sum(1 << number for number in _KERNEL_NUMBERS.values())


def missing() -> str | None:
    """Return why callers cannot be found here, None if they can."""
    machine = platform.machine()
    return None if machine == "x86_64" else f"call stacks are read on x86_64 only, not on {machine}"


class Caught(NamedTuple):
    """A sample: where it fell, in which mode and when, registers by DWARF's number, the stack."""

    address: int
    in_kernel: bool
    time_ns: int
    registers: Mapping[int, int]
    stack: bytes


class StackSampler(perf.PerfEventSampler):
    """Samples that come with the stack.

    The ring holds few of them: ``relieve`` is to be called after every call of what is sampled.
    """

    def __init__(self, period_ns: int) -> None:
        # As large a ring as there may be.
        super().__init__(10**9, period_ns=period_ns, registers=_MASK, stack_bytes=STACK_BYTES)
        self._stretches: list[tuple[bytes, int]] = []
        """Records as they came, and how many were lost."""
        self._open_stretch: list[bytes] = []

    def room(self) -> int:
        """Return how many samples the ring holds."""
        return self._size // (STACK_BYTES + _FURTHER_BYTES)

    def relieve(self) -> None:
        """Empty the ring once half of it is full; no samples are taken meanwhile."""
        if self.is_half_full():
            self.pause()
            self._open_stretch.append(self.take())
            self.resume()

    def stop(self) -> None:
        """End a stretch."""
        self.pause()
        data = b"".join([*self._open_stretch, self.take()])
        self._stretches.append((data, self.newly_lost(data)))
        self._open_stretch.clear()

    def ticks(self) -> list[Ticks]:
        """Return how many ticks each stretch lost; ``caught`` has the others."""
        return [Ticks(Counter(), None, lost) for _, lost in self._stretches]

    def caught(self) -> list[list[Caught]]:
        """Return the samples of each stretch, in the order of time."""
        return [list(_caught(data)) for data, _ in self._stretches]


def _caught(data: bytes) -> Iterator[Caught]:
    for kind, misc, at, _ in perf.records(data):
        if kind != perf.SAMPLE:
            continue
        address, time_ns, has_registers = struct.unpack_from("<QQQ", data, at + 8)
        if not has_registers:  # a thread of the operating system's own
            continue
        in_kernel = misc & perf.MODE_MASK == perf.MODE_KERNEL
        values = struct.unpack_from(f"<{len(_REGISTERS)}Q", data, at + 32)
        begin = at + 40 + 8 * len(_REGISTERS)
        (room,) = struct.unpack_from("<Q", data, begin - 8)
        (used,) = struct.unpack_from("<Q", data, begin + room) if room else (0,)
        registers = dict(zip(_REGISTERS, values, strict=True))
        yield Caught(address, in_kernel, time_ns, registers, data[begin : begin + used])


# --- callers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """How the caller's registers are found at an instruction.

    Attributes:
        base: register and offset that the canonical frame address (CFA) counts from.
        is_read: whether it is the word stored there instead, as in frames that align the stack.
        saved: register → (register or None for the CFA, offset): where its value is stored.
    """

    base: tuple[int, int]
    is_read: bool
    saved: Mapping[int, tuple[int | None, int]]


class Unwinder:
    """Finds callers in this process; the rules of an instruction are read once."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._rule = cache(self._read)

    def callers(self, caught: Caught) -> Iterator[tuple[int, Mapping[int, int]]]:
        """Yield the address that a sample fell at, then one inside the call of each caller.

        With each come the registers that are known there, by DWARF's number. Ends where the stack
        that was copied ends, or where no caller is found.
        """
        registers = dict(caught.registers)
        begin = caught.registers[SP]
        address = caught.registers[PC]
        for _ in range(MOST_FRAMES):
            yield address, registers
            above = self._caller(address, registers, begin, caught.stack)
            if above is None and self._rule(address) is None:
                above = self._searched(registers, begin, caught.stack)
            if above is None:
                return
            registers = above
            address = registers[PC] - 1  # of the call, not of what follows it

    def _caller(
        self, address: int, registers: Mapping[int, int], begin: int, stack: bytes
    ) -> dict[int, int] | None:
        """Return the registers of the caller, None where its return address is not known."""
        rule = self._rule(address)
        if rule is None or rule.base[0] not in registers:
            return None
        read = partial(_word, stack, begin)
        place = registers[rule.base[0]] + rule.base[1]
        cfa = read(place) if rule.is_read else place
        if cfa is None or cfa <= registers[SP]:
            return None
        found = {number: value for number, value in registers.items() if number != PC}
        for number, (base, offset) in rule.saved.items():
            start = cfa if base is None else registers.get(base)
            value = read(start + offset) if start is not None else None
            found.pop(number, None)
            if value is not None:
                found[number] = value
        found[SP] = cfa
        return found if PC in found and self._resolver.follows_call(found[PC]) else None

    def _searched(
        self, registers: Mapping[int, int], begin: int, stack: bytes
    ) -> dict[int, int] | None:
        """Return the first registers up the stack that are those of a caller."""
        first, end = registers[SP], begin + len(stack)
        near = [_word(stack, begin, first + 8 * at) or 0 for at in range(NEAR)]
        # Code that aligns the stack keeps the former stack pointer in its frame.
        former = sorted(word for word in {*near, *registers.values()} if first < word < end)
        starts = [(first, NEAR), *((word, NEAR) for word in former), (first, SEARCHED)]
        for start, words in starts:
            for at in range(start, min(start + 8 * words, end - 7), 8):
                value = _word(stack, begin, at) or 0
                rule = self._rule(value - 1) if self._resolver.follows_call(value) else None
                if rule is None:
                    continue
                # What is saved below is its caller's frame register, where it uses that itself.
                below = [_word(stack, begin, at - 8 * back) or 0 for back in range(1, NEAR)]
                frames = [word for word in below if at < word < end] if rule.base[0] == BP else []
                for frame in [registers.get(BP, 0), *frames]:
                    tried = {**registers, BP: frame, SP: at + 8, PC: value}
                    if self._is_called(tried, begin, stack):
                        return tried
        return None

    def _is_called(self, registers: dict[int, int], begin: int, stack: bytes) -> bool:
        """Return whether enough callers are found: a few can come from words left over."""
        for count in range(CALLERS):
            above = self._caller(registers[PC] - 1, registers, begin, stack)
            if above is None:  # they may go on where the copied stack ends
                return count > CALLERS // 2 and registers[SP] > begin + len(stack) - PAGE
            registers = above
        return True

    def _read(self, address: int) -> Rule | None:
        found = self._resolver.find(address)
        entry = found[1].unwind_entry(found[2]) if found else None
        if found is None or entry is None:
            return None
        data, at, start = entry
        return read_rule(data, at, found[2] - start)


def _word(stack: bytes, begin: int, address: int) -> int | None:
    at = address - begin
    if at < 0 or at + 8 > len(stack):
        return None
    return int.from_bytes(stack[at : at + 8], "little")


# --- .eh_frame ------------------------------------------------------------------------------------


class _UnreadableError(Exception):
    """An entry holds what is not known here."""


class _Reader:
    def __init__(self, data: mmap | bytes, at: int) -> None:
        self.data, self.at = data, at

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def leb(self, *, signed: bool = False) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value - (1 << shift) if signed and byte & 0x40 else value


def read_rule(data: mmap | bytes, at: int, distance: int) -> Rule | None:
    """Return the rule for an instruction, None where its entry holds what is not known here.

    Args:
        data: the ELF file.
        at: where the function's entry (FDE) is.
        distance: of the instruction from the function's start, bytes.
    """
    with suppress(_UnreadableError, struct.error, IndexError, KeyError):
        entry = _Reader(data, at)
        end = entry.number("<I") + at + 4
        common = _Reader(data, at + 4 - entry.number("<I"))
        common_end = common.number("<I") + common.at
        common.at += 5  # id, version
        augmentation = bytes(data[common.at : data.find(b"\0", common.at)])
        common.at += len(augmentation) + 1
        code_unit, data_unit = common.leb(), common.leb(signed=True)
        common.leb()  # the return address's register
        if augmentation[:1] != b"z":
            return None
        size = common.leb()
        common.at += size
        entry.at += 8  # start and size
        size = entry.leb()
        entry.at += size
        program = _Program(code_unit, data_unit)
        program.run(common, common_end, distance)
        program.initial = dict(program.saved)
        program.run(entry, end, distance)
        return Rule(program.base, program.is_read, program.saved)
    return None


class _Program:
    """Carries out call frame instructions up to one instruction of the function."""

    def __init__(self, code_unit: int, data_unit: int) -> None:
        self._code_unit, self._data_unit = code_unit, data_unit
        self.base, self.is_read = (SP, 8), False
        self.saved: dict[int, tuple[int | None, int]] = {}
        self.initial: dict[int, tuple[int | None, int]] = {}
        self._remembered: list[tuple[tuple[int, int], bool, dict[int, tuple[int | None, int]]]] = []

    def run(self, reader: _Reader, end: int, distance: int) -> None:
        """Carry out what stands before ``end`` and applies at ``distance`` from the start."""
        passed = 0
        while reader.at < end and passed <= distance:
            code = reader.number("<B")
            operand = code & 0x3F
            match code & 0xC0 or code:
                case 0x40:  # DW_CFA_advance_loc
                    passed += operand * self._code_unit
                case 2 | 3 | 4:  # DW_CFA_advance_loc1, 2, 4
                    passed += reader.number({2: "<B", 3: "<H", 4: "<I"}[code]) * self._code_unit
                case 0x80:  # DW_CFA_offset
                    self.saved[operand] = None, reader.leb() * self._data_unit
                case 0x05 | 0x11:  # DW_CFA_offset_extended, offset_extended_sf
                    register = reader.leb()
                    self.saved[register] = None, reader.leb(signed=code == 0x11) * self._data_unit
                case 0xC0 | 0x06:  # DW_CFA_restore, restore_extended
                    register = operand if code & 0xC0 else reader.leb()
                    self.saved.pop(register, None)
                    if register in self.initial:
                        self.saved[register] = self.initial[register]
                case 0x07 | 0x08:  # DW_CFA_undefined, same_value
                    self.saved.pop(reader.leb(), None)
                case 0x0A:  # DW_CFA_remember_state
                    self._remembered.append((self.base, self.is_read, dict(self.saved)))
                case 0x0B:  # DW_CFA_restore_state
                    self.base, self.is_read, self.saved = self._remembered.pop()
                case 0x0C:  # DW_CFA_def_cfa
                    self.base, self.is_read = (reader.leb(), reader.leb()), False
                case 0x0D:  # DW_CFA_def_cfa_register
                    self.base = reader.leb(), self.base[1]
                case 0x0E:  # DW_CFA_def_cfa_offset
                    self.base = self.base[0], reader.leb()
                case 0x0F:  # DW_CFA_def_cfa_expression: the word at a register and an offset
                    self.base, self.is_read = _place(reader, is_read=True), True
                case 0x10:  # DW_CFA_expression
                    register = reader.leb()
                    self.saved[register] = _place(reader, is_read=False)
                case 0x2E:  # DW_CFA_GNU_args_size
                    reader.leb()
                case 0x00:  # DW_CFA_nop
                    pass
                case _:
                    raise _UnreadableError


def _place(reader: _Reader, *, is_read: bool) -> tuple[int, int]:
    """Return (register, offset) of an expression that says no more than that.

    Compilers write it for frames that align the stack.
    """
    end = reader.leb() + reader.at
    operation = reader.number("<B")
    if not 0x70 <= operation <= 0x8F:  # DW_OP_breg0 to 31
        raise _UnreadableError
    place = operation - 0x70, reader.leb(signed=True)
    if is_read and reader.number("<B") != 0x06:  # DW_OP_deref
        raise _UnreadableError
    if reader.at != end:
        raise _UnreadableError
    return place
