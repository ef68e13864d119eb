"""Environments of their own, for runtimes whose packages are large or disagree with others.

    frameworktax env create executorch

makes a virtual environment for one runtime on top of the one that runs now: what is installed
there is found first, everything else (torch, this package) comes from here. So nothing large is
installed twice, and nothing here is replaced. The processes of that runtime are then started with
its interpreter; everything else about a session stays the same.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from frameworktax.errors import UsageError, WorkerError
from frameworktax.host.cache import BY_OTHERS

FOLDER_VARIABLE = "FRAMEWORKTAX_ENVIRONMENTS"
MARKER = "frameworktax-environment.json"
"""Written last: an environment without it was never finished."""
SHARED = "torch"
"""Must be the same on both sides: programs are exported here and read there."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to install for one runtime, in the versions that were seen to work together."""

    packages: tuple[str, ...]
    megabytes: int
    """Added to what is installed already."""

    def names(self) -> list[str]:
        """Return the packages without their versions."""
        return [package.partition("==")[0] for package in self.packages]


def base() -> Path:
    """Return the folder of all environments: beside what runs now by default.

    ``$FRAMEWORKTAX_ENVIRONMENTS`` names another. Where the interpreter's own folder cannot be
    written (the system's Python), they go to the home folder, apart for each interpreter.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    prefix = Path(sys.prefix)
    if sys.prefix != sys.base_prefix and os.access(prefix, os.W_OK):
        return prefix / "frameworktax-environments"
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return data / "frameworktax" / f"python-{sys.version_info[0]}.{sys.version_info[1]}"


def python_of(name: str) -> Path | None:
    """Return the interpreter of a finished environment, or None if there is none."""
    folder = base() / name
    python, marker = folder / "bin" / "python", folder / MARKER
    if not (marker.is_file() and python.exists()):
        return None
    return python if all(map(_is_trusted, (folder, python.parent, python, marker))) else None


def _is_trusted(path: Path) -> bool:
    """Return whether only this user or root could have put it there: it will be run."""
    found = path.lstat()
    is_link = stat.S_ISLNK(found.st_mode)  # its own mode means nothing
    return found.st_uid in (os.getuid(), 0) and (is_link or not found.st_mode & BY_OTHERS)


def installed(name: str) -> dict[str, str]:
    """Return package → version as they were when the environment was made."""
    text = (base() / name / MARKER).read_text(encoding="utf-8")
    return dict(json.loads(text)["versions"])


def found(recipes: Mapping[str, Recipe]) -> list[dict[str, Any]]:
    """Return a row for every environment that can be made: its recipe, and whether it is made."""
    return [
        {"name": name, **asdict(recipe), "ready": python_of(name) is not None}
        | {"folder": str(base() / name)}
        for name, recipe in recipes.items()
    ]


def create(name: str, wanted: Recipe, say: Callable[[str], None]) -> Path:
    """Make an environment and return its interpreter; a finished one is left as it is.

    Args:
        name: of the environment.
        wanted: what to install.
        say: called with one line for each step.

    Raises:
        UsageError: the folder cannot be written.
        WorkerError: pip could not install it, with pip's last line.
    """
    ready = python_of(name)
    if ready is not None:
        return ready
    folder = base() / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)  # one that was never finished
        say(f"making {folder}")
        venv.create(folder, with_pip=True, symlinks=True)
        _look_here_too(folder)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder}: {error.strerror}; set {FOLDER_VARIABLE} to another folder"
        ) from error
    say(f"installing {', '.join(wanted.packages)}, about {wanted.megabytes} MB")
    python = folder / "bin" / "python"
    _install(python, wanted)
    versions = _versions(python, wanted)
    (folder / MARKER).write_text(json.dumps({"versions": versions}), encoding="utf-8")
    for made in (folder, python.parent, folder / MARKER):
        made.chmod(made.stat().st_mode & ~BY_OTHERS)
    return python


def remove(name: str) -> bool:
    """Delete an environment; return whether there was one."""
    folder = base() / name
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True


def _look_here_too(folder: Path) -> None:
    """Have the environment find the packages of the one that runs now, after its own.

    ``addsitedir`` and not a bare path: an editable install here is a .pth file of its own.
    """
    here = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    line = "import site; " + "; ".join(f"site.addsitedir({path!r})" for path in here)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # Last by name: what the environment's own .pth files add comes first.
    (packages / "zz-frameworktax.pth").write_text(line + "\n", encoding="utf-8")


def _install(python: Path, wanted: Recipe) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "constraints.txt"
        try:
            constraints.write_text(f"{SHARED}=={version(SHARED).partition('+')[0]}\n")
        except PackageNotFoundError:
            constraints.write_text("")
        done = subprocess.run(
            [*command, "-c", str(constraints), *wanted.packages],
            capture_output=True,
            text=True,
            errors="replace",
        )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")]
        last = (errors or lines or ["no output"])[-1]
        raise WorkerError("failed", f"pip could not install {' '.join(wanted.packages)}: {last}")


def _versions(python: Path, wanted: Recipe) -> dict[str, str]:
    """Return the versions that the environment really finds, torch's among them."""
    names = [*wanted.names(), SHARED]
    code = (
        "import sys, json; from importlib.metadata import version; "
        "print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    )
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise WorkerError("failed", f"the environment does not find its packages: {last}")
    return dict(json.loads(done.stdout))
