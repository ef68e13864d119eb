"""Work in C that takes a known time, for the sampler's known answers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SPIN = """
void spin(long n) {
    unsigned long x = 1;
    for (long i = 0; i < n; i++) {
        x = x * 6364136223846793005ul + 1;
        __asm__ volatile("" :: "r"(x));
    }
}
"""


def load(code: str, name: str, folder: Path) -> Any:
    """Return a function that takes a number, compiled into a library of its own."""
    assert COMPILER is not None
    source, library = folder / f"{name}.c", folder / f"lib{name}_operator.so"
    source.write_text(code)
    flags = ("-O2", "-fno-builtin", "-shared", "-fPIC")
    subprocess.run([COMPILER, *flags, "-o", library, source], check=True)
    function = getattr(ctypes.CDLL(str(library)), name)
    function.argtypes = [ctypes.c_long]
    return function
