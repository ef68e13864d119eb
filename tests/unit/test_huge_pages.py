"""Huge pages are asked for memory that is new and large; what the kernel refuses is said."""

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from frameworktax.runtimes import huge_pages, serving
from frameworktax.runtimes.huge_pages import HugePages

MB = 1 << 20
MAPS = """\
55d0c0000000-55d0c4000000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
7f0000800000-7f0000a00000 r--p 00000000 08:01 12345                      /usr/lib/libc.so.6
7f0000a00000-7f0000c00000 rw-p 00200000 08:01 12345                      /usr/lib/libc.so.6
7f0000c00000-7f0000e00000 rw-s 00000000 00:01 4                          /dev/zero (deleted)
7f0001000000-7f0001001000 ---p 00000000 00:00 0
7f0001001000-7f0001801000 rw-p 00000000 00:00 0
7f0002000000-7f0004000000 ---p 00000000 00:00 0
7f0004000000-7f0005000000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0                          [stack]
"""


class Kernel:
    """A system with pages of 2 MB; ``refuses`` says of an address whether it is refused."""

    def __init__(self, monkeypatch, folder, refuses=lambda address: False):
        self.asked = []
        for name, text in (("enabled", "always [madvise] never"), ("hpage_pmd_size", f"{2 * MB}")):
            (folder / name).write_text(f"{text}\n")

        def advise(address, length):
            self.asked.append((address, length))
            return not refuses(address)

        monkeypatch.setattr(huge_pages, "SETTINGS", folder)
        monkeypatch.setattr(huge_pages, "advise", advise)


def private(size):
    """Return memory that is written to, and its address."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[::4096] = b"x" * (size // 4096)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def in_huge_pages(address):
    """Return the bytes in huge pages of the mapping that an address is in."""
    for part in re.split(r"^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text(), flags=re.M)[1:]:
        start, end = (int(x, 16) for x in part.split()[0].split("-"))
        if start <= address < end:
            return 1024 * int(re.search(r"AnonHugePages: +(\d+)", part)[1])
    raise AssertionError("not mapped")


def test_memory_that_a_block_maps_is_in_huge_pages_and_older_memory_is_not():
    pages = HugePages()
    if pages.refusal is not None:
        pytest.skip(pages.refusal)
    old, old_address = private(8 * MB)
    old.madvise(mmap.MADV_DONTFORK)  # or both would be one mapping
    before = in_huge_pages(old_address)
    with pages.take():
        memory, address = private(8 * MB)
    assert in_huge_pages(address) >= 6 * MB
    assert pages.used_bytes >= 6 * MB
    assert f"{pages}".startswith(f"{pages.used_bytes / 1e6:.0f} of ")
    assert in_huge_pages(old_address) == before
    assert memory[::4096] == old[::4096] == b"x" * 2048


def test_only_what_is_new_is_asked_for_in_whole_pages(monkeypatch, tmp_path):
    kernel = Kernel(monkeypatch, tmp_path)
    monkeypatch.setattr(huge_pages, "MAPS", tmp_path / "maps")
    (tmp_path / "maps").write_text(MAPS)
    pages = HugePages()
    kernel.asked.clear()
    with pages.take():
        grown = MAPS.replace("55d0c4000000", "55d0c4700000")  # by 7 MB
        grown += "7ffd00100000-7ffd00500000 rw-p 00000000 00:00 0 \n"  # one page and two halves
        (tmp_path / "maps").write_text(grown)
    heap = [(0x55D0C4000000 + n * 2 * MB, 2 * MB) for n in range(3)]
    assert sorted(kernel.asked) == [*heap, (0x7FFD00200000, 2 * MB)]
    assert (pages.used_bytes, pages.asked_bytes) == (8 * MB, 8 * MB)


def test_files_shared_memory_and_stacks_are_left_out(monkeypatch, tmp_path):
    Kernel(monkeypatch, tmp_path)
    monkeypatch.setattr(huge_pages, "MAPS", tmp_path / "maps")
    named = b"7f1000000000-7f1000400000 r--p 00000000 00:1f 7  /lib/gr\xff.so\n"
    (tmp_path / "maps").write_bytes(MAPS.encode() + named)
    assert huge_pages.mapped() == {
        *range(0x55D0C0000000, 0x55D0C4000000, 2 * MB),
        *range(0x7F0000000000, 0x7F0000800000, 2 * MB),
        *range(0x7F0004000000, 0x7F0005000000, 2 * MB),  # behind what an allocator keeps for later
    }


def test_pages_that_the_kernel_refuses_are_said(monkeypatch, tmp_path):
    Kernel(monkeypatch, tmp_path, refuses=lambda address: address >= 4 * MB)
    pages = HugePages()
    pages.collapse(range(0, 8 * MB, 2 * MB))
    assert (pages.used_bytes, pages.asked_bytes) == (4 * MB, 8 * MB)
    assert str(pages) == "4 of 8 MB in huge pages"


def test_without_huge_pages_nothing_is_asked_for_and_the_reason_is_said(monkeypatch, tmp_path):
    kernel = Kernel(monkeypatch, tmp_path, refuses=lambda address: True)
    refusals = [HugePages().refusal]
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    refusals.append(HugePages().refusal)
    (tmp_path / "enabled").unlink()
    pages = HugePages()
    refusals += [pages.refusal, serving.pages_for("cuda:0").refusal]
    refusals += [serving.pages_for("cpu", aim).refusal for aim in ("memory", "startup")]
    for word, refusal in zip(("6.1", "never", "none", "CPU", "memory", "startup"), refusals,
                             strict=True):  # fmt: skip
        assert word in refusal
    with pages.take():
        memory = private(4 * MB)
    assert memory and str(pages) == f"no huge pages: {pages.refusal}"
    assert kernel.asked == [(0, 0)]  # the question whether it can
