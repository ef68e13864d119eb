"""Gather the wheels that a machine with a GPU and no network lacks, for its Python.

    python benchmarks/gpu_wheels.py [--python 3.12] [--out gpu-wheels]

What frameworktax needs beside torch, numpy and scipy (a machine with torch for CUDA has them), and
what makes results better there: NVML, a disassembler, pytest. Refused above 40 MB.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGE = ("numpy", "scipy")
ALONE = ("transformers",)
"""Gathered without what they need: which kernels a graph holds changed from 5.17 to 5.23."""
EXTRAS = ("gpu", "disassembly")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64",
             "manylinux_2_5_x86_64", "manylinux1_x86_64")  # fmt: skip
MOST_BYTES = 40_000_000


def requirements(text: str) -> list[str]:
    """Return what is gathered, from ``pyproject.toml``."""
    project = tomllib.loads(text)["project"]
    core = [one for one in project["dependencies"] if re.match(r"[\w-]+", one)[0] not in LARGE]  # type: ignore[index]
    extras = project["optional-dependencies"]
    tests = [one for one in extras["dev"] if one.startswith("pytest>")]
    return core + tests + [one for extra in EXTRAS for one in extras[extra]]


def command(wanted: Sequence[str], python: str, out: Path, *options: str) -> list[str]:
    """Return pip's command; with another Python's number it takes wheels only."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary=:all:", "--implementation", "cp", "--python-version", python),
        *platforms,
        *("--constraint", str(ROOT / "constraints.txt"), "--dest", str(out), *options, *wanted),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--python", default="3.12", help="version of the Python there")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-wheels")
    options = parser.parse_args()
    wanted = requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
        code = subprocess.run(command(wanted, options.python, Path(folder))).returncode
        alone = command(ALONE, options.python, Path(folder), "--no-deps")
        code = code or subprocess.run(alone).returncode
        found = list(Path(folder).glob("*.whl"))
        size = sum(file.stat().st_size for file in found)
        reason = "pip could not gather them all" if code else ""
        if size > MOST_BYTES:
            reason = f"{size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}"
        if reason:
            kept = "what was there stays" if options.out.is_dir() else "is there a network?"
            print(f"gpu_wheels: {reason}; {kept}", file=sys.stderr)
            return 1
        shutil.rmtree(options.out, ignore_errors=True)  # one version of each package
        options.out.mkdir()
        for wheel in found:
            wheel.replace(options.out / wheel.name)
    print(f"{len(found)} wheels, {size / 1e6:.1f} MB, for Python {options.python}: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
