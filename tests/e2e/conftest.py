"""Running the command line as a user does, in an empty folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hurried
import pytest

from frameworktax.measure.template import Templates

MEASURING = ("measure", "sweep")


@dataclass
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> dict:
        return json.loads(self.out)

    def refused(self, *words: str) -> None:
        """Wrong use is one line with these words, what to do among them, and exit code 2."""
        assert (self.code, self.out) == (2, ""), self.err
        assert "Traceback" not in self.err
        (line,) = [x for x in self.err.splitlines() if x.startswith("frameworktax: ")]
        assert [word for word in words if word not in line] == [], line


@dataclass
class Shell:
    folder: Path

    def __call__(self, *words: str, timeout: float = 1800, **variables: str) -> Ran:
        program = hurried.PROGRAM if words[0] in MEASURING else ("-m", "frameworktax")
        done = subprocess.run(
            [sys.executable, *program, *words],
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **variables},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@pytest.fixture(scope="session")
def make_shell() -> type[Shell]:
    return Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@dataclass
class Here(Shell):
    """Runs the command line in this process, which has imported what it needs."""

    patch: pytest.MonkeyPatch
    command: Callable[..., tuple[int, str, str]]

    def __call__(self, *words: str, timeout: float = 0, **variables: str) -> Ran:
        with self.patch.context() as patch:
            for name, value in {"COLUMNS": "80", "NO_COLOR": "1", **variables}.items():
                patch.setenv(name, value)
            patch.delenv("PYTEST_CURRENT_TEST", raising=False)  # templates serve one environment
            patch.chdir(self.folder)
            return Ran(*self.command(*words))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]) -> Here:
    """For commands that measure nothing; those that measure run in a process of their own."""
    return Here(tmp_path, monkeypatch, command)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Templates]]:
    """Return a folder, and templates that import torch once for all sessions in it."""
    templates = Templates()
    yield tmp_path_factory.mktemp("sessions"), templates
    templates.close()


@pytest.fixture
def measuring(here: Here, kept: tuple[Path, Templates], monkeypatch: pytest.MonkeyPatch) -> Here:
    """The command line in this process, for short sessions; all in one folder."""
    here.folder, templates = kept
    hurried.hurry(monkeypatch, templates)
    return here
