"""What machine code does, on instructions written here, and on torch with its symbols hidden."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from pathlib import Path

import native_code
import pytest

from frameworktax.attribution import machine_code
from frameworktax.attribution.buckets import classify, is_judged
from frameworktax.attribution.machine_code import MOVERS, Known, judge, judge_function, jump_slot
from frameworktax.attribution.perf_event import PerfEventSampler, placed, probe
from frameworktax.attribution.symbols import JIT, Leaf, Resolver, SymbolTable

START = 0x1000
FRAME = ["push rbp", "mov rbp, rsp"]
RETURN = ["pop rbp", "ret"]
COMPUTES = ["vmovups ymm0, ymmword ptr [rax]", "vfmadd231ps ymm1, ymm0, ymm2", "add rax, 0x20"]
COPIES = ["mov rdx, qword ptr [rax]", "mov qword ptr [rcx], rdx", "add rax, 8"]
WALKS = ["mov rax, qword ptr [rax]", "cmp rax, rbx"]
CALLS = ["mov rdi, rax", "call 0x9000", "mov qword ptr [rcx], rax"]


def instructions(*lines):
    """Return instructions of four bytes each, from ``START`` on."""
    found = []
    for number, line in enumerate(lines):
        name, _, operands = line.partition(" ")
        found.append((START + 4 * number, 4, name, operands))
    return found


def loop(body, at):
    """Return the lines of a loop whose first line is the function's line number ``at``."""
    return [*body, f"jne {START + 4 * at:#x}"]


def work_of(judged, line):
    """Return what was judged of a line's instruction."""
    return [work for address, work in judged if address <= START + 4 * line][-1]


@pytest.mark.parametrize(
    ("body", "work"),
    [(COMPUTES, "kernel"), (COPIES, "copy"), (WALKS, "other"), (CALLS, "other")],
)
def test_a_loop_is_known_by_what_it_does(body, work):
    judged = judge(instructions(*FRAME, *loop(body, 2), *RETURN * 60))
    assert work_of(judged, 3) == work
    assert work_of(judged, 100) == "other"


def test_of_an_operator_that_computes_only_its_loops_are_a_kernel():
    code = instructions(*FRAME, *loop(COMPUTES, 2), *RETURN)
    whole, loops = judge(code), judge(code, loops_only=True)
    assert [work_of(whole, line) for line in (0, 3)] == ["kernel", "kernel"]
    assert [work_of(loops, line) for line in (0, 3)] == ["other", "kernel"]


@pytest.mark.skipif(
    native_code.COMPILER is None or not machine_code.is_available(),
    reason="no C compiler, or no machine code is judged here",
)
@pytest.mark.parametrize(("number", "line"), [("unsigned long", "remainder"), ("double", "kernel")])
def test_the_loop_of_the_known_answers_is_host_time_and_the_same_of_reals_a_kernel(
    tmp_path, number, line
):
    code = native_code.SPIN.replace("unsigned long", number)
    code = code.replace('"r"', '"x"') if number == "double" else code
    spin = native_code.load(code, "spin", tmp_path)
    spin(10)
    begin = ctypes.cast(spin, ctypes.c_void_p).value
    leaves = Resolver(judged=is_judged).resolve(range(begin, begin + 40)).values()
    assert {(leaf.library, leaf.symbol) for leaf in leaves} == {("libspin_operator.so", "spin")}
    assert line in {classify(leaf)[0] for leaf in leaves} <= {line, "remainder"}


def test_a_loop_of_calls_to_memcpy_is_a_copy():
    body = ["mov rdi, rax", "call 0x9000", "add rax, 8"]  # no store of its own
    code = instructions(*FRAME, *loop(body, 2), *RETURN)
    assert work_of(judge(code, moves=lambda at: at == 0x9000), 3) == "copy"
    assert work_of(judge(code, moves=lambda at: at == 0x9004), 3) == "other"


WIDE_COPY = ["vmovups ymm0, ymmword ptr [rax]", "vmovups ymmword ptr [rcx], ymm0"]


@pytest.mark.parametrize(("body", "work"), [(WALKS, "kernel"), (WIDE_COPY, "copy")])
def test_steps_of_a_nest_that_computes_belong_to_it_but_no_wide_copy(body, work):
    outer = loop(["mov rbx, rcx", *loop(body, 3), "mulss xmm0, xmm1"], 2)
    assert work_of(judge(instructions(*FRAME, *outer, *RETURN)), 4) == work


def test_stores_to_the_own_stack_frame_are_no_copy():
    body = ["mov qword ptr [rsp + 8], rdx", "dec rcx"]
    judged = judge(instructions(*FRAME, *loop(body, 2), *RETURN))
    assert work_of(judged, 2) == "other"


def test_nothing_is_known_of_compiled_code_without_a_disassembler(monkeypatch):
    monkeypatch.setattr(machine_code, "disassembler", lambda: None)
    assert judge_function(b"\x90", START) == [(START, "unknown")]
    assert classify(Leaf("libengine.so", "", "unknown")) == ("remainder", "unread")


def test_a_jump_slot_is_where_the_stub_reads():
    if machine_code.disassembler() is None:
        pytest.skip("no disassembler for this processor")
    stub = bytes.fromhex("f30f1efa") + b"\xff\x25" + struct.pack("<i", 0x100)
    assert jump_slot(stub, START) == START + len(stub) + 0x100
    assert jump_slot(b"\xc3", START) is None


def test_stubs_of_memcpy_are_found_in_a_library():
    """By its relocations; numpy's own calls of it go through stubs, as every library's do."""
    if machine_code.disassembler() is None:
        pytest.skip("no disassembler for this processor")
    path = Path(sys.modules["numpy._core._multiarray_umath"].__file__)
    table, code = SymbolTable(path), path.read_bytes()
    stubs = [found.start() for found in re.finditer(rb"\xff\x25", code)]
    movers = [at for at in stubs if table._is_mover(at)]
    assert 1 <= len(movers) <= len(MOVERS) < len(stubs)
    assert len({jump_slot(code[at : at + 16], at) for at in movers}) == len(movers)


@pytest.mark.parametrize(
    ("leaf", "place"),
    [
        (Leaf("libengine.so", "sub_10", "kernel"), ("kernel", "unnamed")),
        (Leaf("libengine.so", "sub_10", "copy"), ("kernel", "copying")),
        (Leaf("libengine.so", "sub_10", "other"), ("runtime", "")),
        (Leaf("libgcc_s.so.1", "sub_10", "kernel"), ("dispatch", "")),
        (Leaf("libpython3.11.so.1.0", "sub_10", "kernel"), ("python", "")),
        (Leaf(JIT, ""), ("kernel", "jit")),
    ],
)
def test_work_decides_where_no_symbol_does(leaf, place):
    assert classify(leaf) == place


def test_code_is_judged_where_there_is_no_cache(monkeypatch):
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", "/proc/cache")
    known = Known(b"library", 7)
    assert known.get(1, lambda: [(1, "kernel")]) == [(1, "kernel")]
    known.save()
    assert known.get(1, lambda: [(1, "other")]) == [(1, "kernel")]


def test_what_was_judged_once_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path / "cache"))
    first = Known(b"library", 7)
    assert first.get(1, lambda: [(1, "kernel")]) == [(1, "kernel")]
    first.save()
    assert Known(b"library", 7).get(1, lambda: [(1, "other")]) == [(1, "kernel")]
    assert Known(b"library", 8).get(1, lambda: [(1, "other")]) == [(1, "other")]
    (kept,) = (tmp_path / "cache" / "machine-code").iterdir()
    for damaged in ('{"1": 3}', "[]", "{"):
        kept.write_text(damaged)
        assert Known(b"library", 7).get(1, lambda: [(1, "other")]) == [(1, "other")]


def test_what_is_known_needs_no_disassembler(tmp_path, monkeypatch):
    """Importing it takes longer than a sample."""
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path / "cache"))
    first = Known(b"library", 7)
    first.get(1, lambda: [(1, "kernel")])
    first.save()
    monkeypatch.setattr(machine_code, "disassembler", None)
    assert Known(b"library", 7).get(1, lambda: [(1, "other")]) == [(1, "kernel")]


def test_functions_have_ends():
    table = SymbolTable(_largest_library())
    starts, ends = table.functions, table.ends
    assert (ends > starts).mean() > 0.99
    assert (ends[:-1] < starts[1:]).any()  # gaps: alignment, and what was written by hand


def convolutions():
    """Strided and grouped ones: some are products of rows that a loop has copied together."""
    import torch

    layers = [torch.nn.Conv2d(3, 32, 3, stride=2)]
    for groups in (1, 32, 1):
        layers += [torch.nn.Conv2d(32, 32, 3, groups=groups), torch.nn.BatchNorm2d(32)]
        layers += [torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.MaxPool2d(2)), torch.randn(1, 3, 48, 48)


@pytest.mark.skipif(probe() is not None, reason="this host allows no sampling")
@pytest.mark.skipif(machine_code.disassembler() is None, reason="no disassembler here")
def test_hidden_symbols_change_the_kernel_share_little():
    import torch

    torch.set_num_threads(1)
    layer, inputs = convolutions()
    layer.eval()
    sampler = PerfEventSampler(2_000_000_000, period_ns=500_000)
    with torch.inference_mode(), sampler as event:
        for _ in range(20):
            layer(inputs)
        drained = []
        while sum(len(part.user) for part in drained) < 600:
            event.resume()
            for _ in range(100):
                layer(inputs)
            event.pause()
            drained.append(event.drain())
    by_symbol, by_code = (
        [classify(leaf) for part in placed(drained, hidden) for leaf in part]
        for hidden in (lambda library: False, lambda library: library.startswith("libtorch"))
    )
    shares = [
        sum(bucket == "kernel" for bucket, _ in found) / len(found)
        for found in (by_symbol, by_code)
    ]
    assert by_symbol != by_code
    assert 0.05 < shares[0] < 0.95
    assert shares[1] == pytest.approx(shares[0], abs=0.04)


def _largest_library():
    """Return the path of the largest library mapped into a process that has imported torch."""
    import torch  # noqa: F401 - maps its libraries

    maps = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in maps if "libtorch_cpu" in line)
