"""Callers from unwind tables and copied stacks: entries and stacks written here."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace

import pytest

from frameworktax.attribution import call_stacks, operators
from frameworktax.attribution.call_stacks import BP, PC, SP, Caught, Rule, Unwinder, read_rule
from frameworktax.attribution.operators import torch_operator
from frameworktax.attribution.symbols import Resolver

CFA = None


def entry(*instructions):
    """Return a file with a common entry (code unit 1, data unit −8) and a function's after it."""
    body = struct.pack("<IB", 0, 1) + b"zR\0" + bytes([1, 0x78, 16, 1, 0x1B])
    body += bytes([0x0C, SP, 8, 0x80 | PC, 1])  # CFA = rsp + 8, return address at CFA − 8
    body += bytes(-(len(body)) % 4)
    common = struct.pack("<I", len(body)) + body
    program = b"".join(bytes(one) for one in instructions)
    function = struct.pack("<III", len(common) + 4, 0, 100) + b"\0" + program
    return common + struct.pack("<I", len(function)) + function, len(common)


def test_the_rule_of_an_instruction_is_what_was_carried_out_before_it():
    data, at = entry(
        (0x41,), (0x0E, 16), (0x86, 2),  # push rbp
        (0x43,), (0x0D, BP),  # mov rbp, rsp
        (0x02, 60), (0x0A,), (0x0C, SP, 8), (0xC6,),  # pop rbp; ret
        (0x41,), (0x0B,),  # what follows the ret
    )  # fmt: skip
    pushed = {PC: (CFA, -8), BP: (CFA, -16)}
    assert read_rule(data, at, 0) == Rule((SP, 8), False, {PC: (CFA, -8)})
    assert read_rule(data, at, 1) == Rule((SP, 16), False, pushed)
    assert read_rule(data, at, 4) == Rule((BP, 16), False, pushed)
    assert read_rule(data, at, 64) == Rule((SP, 8), False, {PC: (CFA, -8)})
    assert read_rule(data, at, 65) == Rule((BP, 16), False, pushed)


def test_a_frame_that_aligns_the_stack_reads_its_address():
    data, at = entry((0x10, BP, 2, 0x76, 0), (0x0F, 3, 0x76, 0x68, 0x06))
    assert read_rule(data, at, 0) == Rule((BP, -24), True, {PC: (CFA, -8), BP: (BP, 0)})


@pytest.mark.parametrize("unknown", [(0x16, BP, 1, 0x96), (0x0F, 2, 0x11, 0x01), (0x3F,)])
def test_what_is_not_known_gives_no_rule(unknown):
    data, at = entry(unknown)
    assert read_rule(data, at, 0) is None


BEGIN = 0x7000_0000
RULES = {0x100: Rule((SP, 24), False, {PC: (CFA, -8), BP: (CFA, -16)})} | {
    0x200 + 0x10 * i: Rule((SP, 16), False, {PC: (CFA, -8)}) for i in range(10)
}


def unwinder(monkeypatch):
    made = Unwinder(SimpleNamespace(follows_call=lambda address: (address - 1) & ~0xF in RULES))
    monkeypatch.setattr(made, "_rule", lambda address: RULES.get(address & ~0xF))
    return made


def caught(address, words, sp=BEGIN, **registers):
    stack = b"".join(struct.pack("<Q", word) for word in words)
    return Caught(address, False, 0, {PC: address, SP: sp, BP: 1} | registers, stack)


def addresses(made, one):
    return [address for address, _ in made.callers(one)]


def chain(count):
    """Return the frames of callers at 0x208, 0x218 …: a local word and the return address."""
    return [word for i in range(count) for word in (7, 0x209 + 0x10 * i)][1:]


def test_callers_are_followed_to_the_end_of_the_stack(monkeypatch):
    words = [5, 0xBEEF, *chain(3)]  # a local word, rbp, the return address
    found = addresses(unwinder(monkeypatch), caught(0x104, words))
    assert found == [0x104, 0x208, 0x218, 0x228]


def test_code_without_a_table_is_stepped_over(monkeypatch):
    left_over = 0x231  # a call that was made before: no further callers follow it
    words = [1, 2, left_over, 4, 5, *chain(9)]
    found = addresses(unwinder(monkeypatch), caught(0x999, words))
    assert found[:3] == [0x999, 0x208, 0x218]
    assert len(found) == 10


def test_a_frame_that_is_longer_than_the_search_keeps_the_former_stack_pointer(monkeypatch):
    gap = [0] * 4_000
    words = [9, BEGIN + 8 * (2 + len(gap)), *gap, *chain(9)]
    found = addresses(unwinder(monkeypatch), caught(0x999, words))
    assert found[:2] == [0x999, 0x208]
    without = [9, 9, *gap, *chain(9)]
    assert addresses(unwinder(monkeypatch), caught(0x999, without)) == [0x999]


@pytest.mark.parametrize(
    ("code", "is_call"),
    [
        ("e8 01 02 03 04", True),  # call rel32
        ("ff d0", True),  # call rax
        ("41 ff d4", True),  # call r12
        ("ff 50 18", True),  # call [rax + 0x18]
        ("ff 15 01 02 03 04", True),  # call [rip + …]
        ("ff 94 24 01 02 03 04", True),  # call [rsp + …]
        ("48 89 c3", False),
        ("ff e0", False),  # jmp rax
    ],
)
def test_a_return_address_follows_a_call(code, is_call, monkeypatch):
    before = (bytes(8) + bytes.fromhex(code))[-8:]
    table = SimpleNamespace(code=lambda address, size: before)
    made = Resolver("")
    monkeypatch.setattr(made, "find", lambda address: ("lib.so", table, address))
    assert made.follows_call(0x1000) == is_call


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN2at4_ops5addmm4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_", "aten::addmm"),
        ("_ZN2at4_ops10add_Tensor10redispatchEN3c1014DispatchKeySetERKNS_6TensorES6_RKNS2_6ScalarE",
         "aten::add"),
        ("_ZN2at12_GLOBAL__N_112_GLOBAL__N_141wrapper_CompositeImplicitAutograd__linearERKNS_6TensorE",
         "aten::linear"),
        ("_ZN5torch8autograd12VariableType12_GLOBAL__N_14reluEN3c1014DispatchKeySetERKN2at6TensorE",
         "aten::relu"),
        ("_ZN2at6native6linearERKNS_6TensorES3_", ""),
        ("PyEval_EvalFrame", ""),
    ],
)  # fmt: skip
def test_torch_functions_name_operators(symbol, name):
    pytest.importorskip("torch")
    assert torch_operator(symbol) == name


def test_what_lies_behind_the_end_of_a_function_is_no_part_of_its_node(monkeypatch):
    table = SimpleNamespace(
        find=lambda address: None,
        function=lambda address: 0x100,
        unwind_entry=lambda address: (b"", 0, 0x100) if address < 0x120 else None,
    )
    namer = operators.Namer(SimpleNamespace(find=lambda address: ("engine.so", table, address)))
    monkeypatch.setattr(operators, "engine", lambda path: operators.Engine({0x100: "MatMul"}, {}))
    monkeypatch.setattr(namer._unwinder, "callers", lambda one: iter([(one.address, {})]))
    places = [namer.place(Caught(address, False, 0, {}, b"")) for address in (0x110, 0x130)]
    assert places == [(None, "MatMul"), (None, "")]


def test_stripped_engines_name_the_classes_of_their_nodes():
    engine = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    found = set(operators.engine(engine.__file__).functions.values())
    assert {"Gemm", "Conv", "Softmax", "LayerNorm", "Gelu"} <= found
    assert "OpKernel" not in found


def test_a_library_that_cannot_be_read_names_nothing(tmp_path):
    file = tmp_path / "broken.so"
    file.write_bytes(b"\x7fELF\x02\x01" + bytes(200))
    assert operators.engine(str(file)) == ({}, {})
    assert operators.engine(str(tmp_path / "none.so")) == ({}, {})


BIAS = 0x1000


def in_memory(*words):
    """Return an array of words, which has to be kept, and its address."""
    made = (ctypes.c_uint64 * len(words))(*words)
    return made, ctypes.addressof(made)


def text(at, value, kept):
    """Return the words of a ``std::string`` that lies at an address."""
    if len(value) < 16:
        return at + 16, len(value), *struct.unpack("<QQ", value.ljust(16, b"\0"))
    kept.append(ctypes.create_string_buffer(value))
    return ctypes.addressof(kept[-1]), len(value), len(value), 0


@pytest.mark.parametrize("name", [b"/add", b"/layers.0/attention/MatMul"])
def test_the_name_of_a_node_is_read_from_its_object(name):
    """An object whose second word points to what holds a number, the name and the type."""
    kept = []
    held, at = in_memory(*[0] * 12)
    for i, word in enumerate((7, *text(at + 8, name, kept), *text(at + 40, b"MatMul", kept))):
        held[i] = word
    _kept, address = in_memory(0x500 + BIAS, at)
    known = operators.Engine({}, {0x500: operators.Root(path=(8,), reach=16)})
    assert operators.node_at(address, known, BIAS) == (name.decode(), "MatMul")
    held[5:7] = 0, 0  # the type is no text any more
    assert operators.node_at(address, known, BIAS) is None
    for nowhere in (address + 8, 0, 8, 2**47, 2**64 - 8):
        assert operators.node_at(nowhere, known, BIAS) is None


def test_stacks_are_read_on_one_processor_only(monkeypatch):
    monkeypatch.setattr(call_stacks.platform, "machine", lambda: "aarch64")
    assert "aarch64" in call_stacks.missing()
