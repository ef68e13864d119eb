"""The symbol reader on an ELF file written here, and on this process."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest

from frameworktax.attribution import operators, symbols
from frameworktax.attribution.buckets import classify
from frameworktax.attribution.symbols import (
    JIT,
    Leaf,
    PerfMap,
    Resolver,
    SymbolTable,
    demangle,
    parse_maps,
)

BASE = 0x400000  # where the file's only segment is loaded, from file offset 0
FUNC, NOTYPE, OBJECT = 2, 0, 1
GLOBAL, LOCAL = 1, 0


def write_elf(path, symbols, *, functions=(), load=(0x0, BASE, 0x10000), stubs=(0, 0)):
    """Write an ELF: a PT_LOAD, a .symtab of (name, value, size, kind, bind), unwind starts."""
    strings, entries = b"\0", [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    for name, value, size, kind, bind in symbols:
        section = 0 if value == 0 else 1
        entries.append(
            struct.pack("<IBBHQQ", len(strings), bind << 4 | kind, 0, section, value, size)
        )
        strings += name.encode() + b"\0"
    table = b"".join(entries)
    eh_at = 64 + 2 * 56
    eh_vaddr = BASE + eh_at
    eh = bytes([1, 0x1B, 0x03, 0x3B]) + struct.pack("<iI", 0, len(functions))
    for start in functions:
        eh += struct.pack("<ii", start - eh_vaddr, 0)
    sym_at = eh_at + len(eh)
    str_at = sym_at + len(table)
    sec_at = str_at + len(strings)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sec_at, 0, 64, 56, 2, 64, 4, 0)
    offset, vaddr, size = load
    head += struct.pack("<IIQQQQQQ", 1, 5, offset, vaddr, vaddr, size, size, 4096)
    head += struct.pack("<IIQQQQQQ", 0x6474E550, 4, eh_at, eh_vaddr, eh_vaddr, len(eh), len(eh), 4)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, sym_at, len(table), 2, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, str_at, len(strings), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 0, 1, 6, *stubs[:1], 0, *stubs[1:], 0, 0, 16, 16)
    path.write_bytes(head + eh + table + strings + sections)
    return path


SIZED = [("f", 0x100, 0x10, FUNC, GLOBAL)]
UNSIZED = [("asm", 0x100, 0, NOTYPE, LOCAL), ("f", 0x200, 0x80, FUNC, GLOBAL),
           ("label", 0x220, 0, NOTYPE, LOCAL)]  # fmt: skip
NESTED = [("outer", 0x100, 0x100, FUNC, GLOBAL), ("inner", 0x140, 8, FUNC, GLOBAL)]


@pytest.mark.parametrize(
    ("symbols", "found"),
    [
        (SIZED, {0xFF: None, 0x100: "f", 0x10F: "f", 0x110: None}),
        # without a size it reaches to the next; not the label inside f, but behind it
        (UNSIZED, {0x1FF: "asm", 0x230: "f", 0x280: "label"}),
        (NESTED, {0x144: "inner", 0x150: "outer"}),
    ],
)
def test_a_symbol_holds_its_size_and_no_more(tmp_path, symbols, found):
    placed = [(name, BASE + start, *rest) for name, start, *rest in symbols]
    table = SymbolTable(write_elf(tmp_path / "a.so", placed))
    assert {at: table.find(BASE + at) for at in found} == found


def test_stubs_behind_a_symbol_without_a_size_are_not_of_it(tmp_path):
    init = ("_init", BASE + 0x100, 0, FUNC, GLOBAL)
    table = SymbolTable(write_elf(tmp_path / "a.so", [init], stubs=(BASE + 0x120, 0x40)))
    found = {0x118: "_init", 0x120: "plt", 0x15F: "plt", 0x160: "_init"}
    assert {at: table.find(BASE + at) for at in found} == found


def test_of_equal_addresses_the_exported_function_wins(tmp_path):
    same = BASE + 0x100
    names = [("exported", FUNC, GLOBAL), ("hidden", FUNC, LOCAL), ("mark", NOTYPE, GLOBAL)]
    for order in (names, names[::-1]):
        symbols = [(name, same, 0x10, kind, bind) for name, kind, bind in order]
        assert SymbolTable(write_elf(tmp_path / "a.so", symbols)).find(same) == "exported"


def test_data_and_undefined_symbols_are_not_functions(tmp_path):
    file = write_elf(
        tmp_path / "a.so",
        [("data", BASE + 0x100, 0x10, OBJECT, GLOBAL), ("needed", 0, 0, FUNC, GLOBAL)],
    )
    table = SymbolTable(file)
    assert table.find(BASE + 0x104) is None
    assert table.spans(["data", "needed"]) == []


def test_function_starts_come_from_the_unwind_table(tmp_path):
    file = write_elf(tmp_path / "a.so", [], functions=[BASE + 0x300, BASE + 0x100])
    table = SymbolTable(file)
    assert table.function(BASE + 0xFF) is None
    assert table.function(BASE + 0x100) == BASE + 0x100
    assert table.function(BASE + 0x2FF) == BASE + 0x100
    assert table.function(BASE + 0x301) == BASE + 0x300


def test_code_behind_the_end_of_a_function_was_written_by_hand(tmp_path):
    table = SymbolTable(write_elf(tmp_path / "a.so", [], functions=[BASE + 0x100]))
    assert table.work(BASE + 0xFF) is None
    assert table.work(BASE + 0x104) in ("other", "unknown")
    assert table.work(int(table.ends[0])) == "kernel"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are listed on Linux")
def test_symbols_stay_readable_without_a_descriptor(tmp_path):
    path = write_elf(tmp_path / "a.so", SIZED)
    before = os.listdir("/proc/self/fd")
    table = SymbolTable(path)
    path.unlink()
    assert os.listdir("/proc/self/fd") == before
    assert table.find(0x108) == "f"


def test_not_elf_is_refused(tmp_path):
    (tmp_path / "a.so").write_bytes(b"MZ" + bytes(100))
    with pytest.raises(ValueError, match="not a little-endian 64-bit ELF"):
        SymbolTable(tmp_path / "a.so")


def test_maps_keep_only_executable_regions():
    text = (
        "1000-2000 r--p 00000000 08:01 7 /lib/a b.so\n"
        "2000-4000 r-xp 00001000 08:01 7 /lib/a b.so\n"
        "9000-a000 rwxp 00000000 00:00 0 \n"
        "7000-8000 r-xp 00000000 00:00 0 [vdso]\n"
    )
    assert [(r.start, r.end, r.offset, r.path) for r in parse_maps(text)] == [
        (0x2000, 0x4000, 0x1000, "/lib/a b.so"),
        (0x7000, 0x8000, 0, "[vdso]"),
        (0x9000, 0xA000, 0, ""),
    ]


def test_an_address_is_resolved_through_the_program_header(tmp_path):
    # The segment's file offset, its address in the file and its place in memory all differ.
    file = write_elf(
        tmp_path / "lib.so", [("f", 0x5100, 0x10, FUNC, GLOBAL)], load=(0x1000, 0x5000, 0x1000)
    )
    maps = (
        f"7f0000001000-7f0000002000 r-xp 00001000 08:01 7 {file}\n"
        "7f0000008000-7f0000009000 r-xp 00000000 00:00 0 \n"
        "7f000000a000-7f000000b000 r-xp 00000000 00:01 5 /memfd:xbyak (deleted)\n"
        "7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0 [vdso]\n"
        "7f000000c000-7f000000d000 r-xp 00000000 08:01 7 /gone/away.so (deleted)\n"
    )
    resolver = Resolver(maps)
    addresses = {
        0x7F0000001108: Leaf("lib.so", "f"),
        0x7F0000001000: Leaf("lib.so", ""),
        0x7F0000008004: Leaf(JIT, ""),
        0x7F000000A004: Leaf(JIT, ""),
        0x7FFE00000010: Leaf("[vdso]", ""),
        0x7F000000C010: Leaf("away.so", ""),
        0x7F0000002000: Leaf("[unknown]", ""),  # just behind the region
        0x10: Leaf("[unknown]", ""),
    }
    assert resolver.resolve(addresses) == addresses


def test_words_of_a_stack_that_are_no_addresses_have_no_mappings_read_for_them(monkeypatch):
    read = []
    whole = symbols._read_map

    def counted(process):
        read.append(process)
        return whole(process)

    monkeypatch.setattr(symbols, "_read", None)
    monkeypatch.setattr(symbols, "_read_map", counted)
    resolver = symbols.Resolver()
    assert not any(resolver.follows_call(word) for word in range(1, 100))
    assert len(read) == 1


def test_own_mappings_are_read_anew_only_where_they_may_have_changed(monkeypatch):
    code, generated = "1000-2000 r-xp 00000000 08:01 7 /lib/a.so\n", "5000-6000 r-xp 0 0:0 0 \n"
    texts, loaded = [code, code + generated, code + generated], [(1, 0)]
    reads = []

    def read_text(path, errors):
        reads.append(str(path))
        return texts[min(len(reads), len(texts)) - 1]

    monkeypatch.setattr(symbols, "_read", None)
    monkeypatch.setattr(symbols, "_loaded_libraries", lambda: loaded[0])
    monkeypatch.setattr(symbols.Path, "read_text", read_text)
    assert symbols._own_map([0x1100]).find(0x1100).path == "/lib/a.so"
    assert symbols._own_map([0x1200]).find(0x5100) is None
    assert reads == ["/proc/self/maps"]
    assert symbols._own_map([0x1200, 0x5100]).find(0x5100).is_generated  # nothing was there
    symbols._own_map([0x5100])
    assert len(reads) == 2
    loaded[0] = (2, 0)
    symbols._own_map([0x5100])
    symbols._own_map([0x1100])
    assert len(reads) == 3


def test_a_library_that_is_loaded_is_counted(tmp_path):
    before = symbols._loaded_libraries()
    ctypes.CDLL(shutil.copy(np._core._multiarray_umath.__file__, tmp_path / "other.so"))
    assert symbols._loaded_libraries() > before


def test_a_stripped_function_is_named_by_its_start(tmp_path):
    file = write_elf(tmp_path / "lib.so", [], functions=[BASE + 0x100], load=(0, BASE, 0x1000))
    resolver = Resolver(f"10000-11000 r-xp 00000000 08:01 7 {file}\n")
    assert resolver.resolve([0x10104]) == {0x10104: Leaf("lib.so", "sub_400100", "other")}


def test_libc_functions_of_this_process_are_found():
    libc = ctypes.CDLL(None)
    address = {
        name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        for name in ("malloc", "free", "memcpy", "memset", "getpid")
    }
    found = Resolver().resolve(address.values())
    names = {name: found[at].symbol for name, at in address.items()}
    if not found[address["malloc"]].library.startswith("libc."):
        pytest.skip("malloc is not libc's here")
    assert "malloc" in names["malloc"]
    assert "free" in names["free"]
    assert names["memcpy"] in ("memcpy", "memmove")  # one code for both on some processors
    assert names["memset"] == "memset"
    assert names["getpid"] in ("getpid", "__getpid")


def test_libc_functions_of_another_process_are_found_where_it_has_loaded_them():
    """Its own variants of ``memcpy`` are this process's, at other addresses."""
    memcpy = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value
    regions = symbols._own_map([]).regions
    (libc,) = (region for region in regions if region.start <= memcpy < region.end)
    if "libc" not in libc.path:
        pytest.skip("memcpy is not libc's here")
    away = 1 << 30
    maps = f"{libc.start + away:x}-{libc.end + away:x} r-xp {libc.offset:x} 00:00 0 {libc.path}\n"
    leaf = Resolver(maps).resolve([memcpy + away])[memcpy + away]
    assert leaf.symbol in ("memcpy", "memmove")


def test_names_are_put_into_words():
    if demangle("_ZN2at6native3addEv") == "_ZN2at6native3addEv":
        pytest.skip("no libstdc++ here")
    assert demangle("_ZN2at6native3addEv") == "at::native::add()"
    assert demangle("_ZN2at3mulEi.isra.0") == "at::mul(int) [clone .isra.0]"
    assert demangle("mkl_blas_sgemm") == "mkl_blas_sgemm"
    assert demangle("_Znotaname") == "_Znotaname"


def test_lookup_agrees_with_a_plain_search(tmp_path):
    generator = np.random.default_rng(7)
    starts = np.sort(generator.choice(0x8000, 200, replace=False)) + BASE
    sizes = np.minimum(generator.integers(1, 64, 200), np.diff(starts, append=BASE + 0x9000))
    symbols = [
        (f"s{i}", int(a), int(n), FUNC, GLOBAL)
        for i, (a, n) in enumerate(zip(starts, sizes, strict=True))
    ]
    table = SymbolTable(write_elf(tmp_path / "a.so", symbols))
    for address in generator.integers(BASE, BASE + 0x9000, 500):
        expected = [n for n, a, size, _, _ in symbols if a <= address < a + size]
        assert table.find(int(address)) == (expected[0] if expected else None)


@pytest.fixture
def other(tmp_path):
    """Another process in a container: a library that only it sees, and one that was replaced."""
    process = tmp_path / "proc/7"
    library = process / "root/opt/only_there.so"
    library.parent.mkdir(parents=True)
    write_elf(library, [("f", BASE + 0x100, 0x10, FUNC, GLOBAL)])
    (process / "maps").write_text(
        "10000-20000 r-xp 00000000 08:01 5 /opt/only_there.so\n"
        "30000-40000 r-xp 00000000 08:01 6 /opt/replaced.so (deleted)\n"
        "50000-60000 r-xp 00000000 00:00 0\n"
    )
    return process


def test_a_library_of_another_process_is_read_where_that_process_sees_it(other):
    found = Resolver(process=other).resolve([0x10108, 0x30108, 0x50108])
    assert found[0x10108] == Leaf("only_there.so", "f")
    assert found[0x30108] == Leaf("replaced.so", "")  # not what lies there now
    assert found[0x50108] == Leaf(JIT, "")


def test_two_containers_have_a_libc_each_under_one_name(tmp_path):
    def symbol_in(number, name):
        process = tmp_path / f"proc/{number}"
        library = process / "root/opt/libc.so.6"
        library.parent.mkdir(parents=True)
        write_elf(library, [(name, BASE + 0x100, 0x40, FUNC, GLOBAL)])
        (process / "maps").write_text("10000-20000 r-xp 00000000 08:01 5 /opt/libc.so.6\n")
        return Resolver(process=process).resolve([0x10108])[0x10108].symbol

    assert [symbol_in(1, "malloc"), symbol_in(2, "getpid")] == ["malloc", "getpid"]


def test_a_replaced_library_is_read_where_the_kernel_still_has_it(other):
    kept = other / "map_files/30000-40000"
    kept.parent.mkdir()
    write_elf(kept, [("old", BASE + 0x100, 0x10, FUNC, GLOBAL)])
    write_elf(other / "root/opt/replaced.so", [("new", BASE + 0x100, 0x10, FUNC, GLOBAL)])
    assert Resolver(process=other).resolve([0x30108])[0x30108] == Leaf("replaced.so", "old")


def test_what_another_process_loads_later_is_found(other):
    resolver = Resolver(process=other)
    maps = other / "maps"
    maps.write_text(maps.read_text() + "70000-80000 r-xp 00000000 08:01 5 /opt/only_there.so\n")
    assert resolver.resolve([0x70108])[0x70108] == Leaf("only_there.so", "f")
    maps.unlink()  # it has ended: what was known stays, the rest is unknown
    assert resolver.resolve([0x10108, 0x90108])[0x90108] == Leaf("[unknown]", "")


def test_code_made_while_running_has_the_names_of_a_perf_map_as_it_grows(other, tmp_path):
    path = tmp_path / "perf-7.map"
    resolver = Resolver(process=other, perf_map=PerfMap(path))
    assert resolver.resolve([0x50108])[0x50108] == Leaf(JIT, "")
    path.write_text("50100 10 py::f:/app/a b.py\nno line\n50200 8 par")
    assert resolver.resolve([0x50108])[0x50108] == Leaf(JIT, "py::f:/app/a b.py")
    assert resolver.resolve([0x50110])[0x50110] == Leaf(JIT, "")
    path.write_text(path.read_text() + "tial\n")
    assert resolver.resolve([0x50204])[0x50204] == Leaf(JIT, "partial")
    assert classify(Leaf(JIT, "py::f:/app/a b.py")) == ("python", "")
    assert classify(Leaf(JIT, "partial")) == ("kernel", "jit")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A function that compiles a small library with arithmetic in it, and strips it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("built")
    (folder / "spin.c").write_text(
        "#include <string.h>\n"
        "void copy(char *a, char *b, long n) { for (long i = 0; i < n; i++) memcpy(a + i, b, n); }"
        "double spin(long n) { double x = 1; for (long i = 0; i < n; i++) x = x * 0.999 + 1e-9;"
        " return x; }"
    )

    def build(name, *options):
        options = ("-O2", "-shared", "-fPIC", "-fno-builtin", "-nostdlib", "-s", *options)
        subprocess.run([compiler, *options, "-o", folder / name, folder / "spin.c"], check=True)
        return folder / name

    return build


def leaf_of(library):
    """Load a library and return where the function in it is, as sampled code is placed."""
    function = ctypes.CDLL(str(library)).spin
    address = ctypes.cast(function, ctypes.c_void_p).value + 4
    return lambda **more: Resolver(hidden=lambda name: True, **more).resolve([address])[address]


def test_a_library_without_an_unwind_table_is_the_remainder(built):
    file = built("bare.so", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    assert not len(SymbolTable(file).functions)
    leaf = leaf_of(file)()
    assert (leaf.library, leaf.work) == ("bare.so", None)
    assert classify(leaf) == ("remainder", "unread")


def test_a_library_replaced_while_it_is_mapped_is_known_by_its_name(built):
    file = built("replaced.so")
    leaf = leaf_of(file)
    other = file.with_name("new.so")
    other.write_bytes(b"no library")
    other.replace(file)
    assert leaf() == Leaf("replaced.so", "")  # not what lies there now


def test_bytes_that_are_wrong_anywhere_cost_no_more_than_the_answer(built, tmp_path, monkeypatch):
    """A stripped library with bytes of its own exchanged: places are found, or nothing is."""
    monkeypatch.setenv("FRAMEWORKTAX_CACHE", str(tmp_path / "cache"))
    whole = built("whole.so").read_bytes()
    generator = np.random.default_rng(3)
    maps = "7f0000000000-7f0000010000 r-xp 00000000 08:01 7 {}"
    addresses = [0x7F0000000000 + at for at in range(0x1000, 0x1100, 16)]  # of its code
    for number in range(80):
        data = bytearray(whole)
        for at in generator.integers(4, len(data) if number % 2 else 0x400, 1 + number % 40):
            data[at] = generator.integers(256)
        file = tmp_path / f"{number}.so"
        file.write_bytes(data)
        found = Resolver(maps.format(file), hidden=lambda name: True).resolve(addresses)
        assert {leaf.library for leaf in found.values()} == {file.name}
        assert operators.engine(str(file)).functions == {}


def test_a_damaged_library_is_known_by_its_name(tmp_path):
    """Cut off anywhere, or with numbers in its header that lead outside the file."""
    whole = write_elf(
        tmp_path / "a.so", [("f", BASE + 0x100, 0x10, FUNC, GLOBAL)], functions=(BASE + 0x100,)
    ).read_bytes()
    damaged = [whole[:size] for size in range(8, len(whole), 7)]
    for at in range(16, 64, 2):
        damaged.append(whole[:at] + b"\xff\x7f" + whole[at + 2 :])
    refused = 0
    for number, data in enumerate(damaged):
        file = tmp_path / f"{number}.so"
        file.write_bytes(data)
        try:
            SymbolTable(file)
        except ValueError:
            refused += 1
        maps = f"7f0000000000-7f0000010000 r-xp 00000000 08:01 7 {file}"
        address = 0x7F0000000105
        leaf = Resolver(maps).resolve([address])[address]
        assert leaf.library == file.name
    assert refused > len(whole) // 7 // 2
