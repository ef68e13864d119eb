"""Every error the project raises on purpose.

FrameworktaxError            one line, names what to do next; carries the exit code
├── UsageError        (2)    what was asked for cannot be: wrong name, number, file, device
│   └── UserModelError       the user's own function is missing, raises or returns something else
├── StoreError        (2)    a store cannot be read or written
├── DeploymentError   (2)    a deployment cannot be loaded here, or does not serve a call
├── TraceError        (2)    a recorded timeline cannot be read
├── WorkerError       (1)    a measuring process failed; becomes a record, the rest goes on
└── NothingMeasuredError (1)    not one point could be measured
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

Fault = Literal["failed", "unavailable", "timeout", "out-of-memory", "crashed"]
"""How a measuring process can fail; a record's status is one of these or ``ok``."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of an OSError that says that nothing more can be written."""


class FrameworktaxError(Exception):
    """Base of the tree; the message is one line that says what to do next.

    ``status`` is what a measuring process answers that ends a step with it.
    """

    exit_code = 1
    status: str = "failed"


class UsageError(FrameworktaxError):
    """What was asked for cannot be."""

    exit_code = 2
    status = "usage"


class UserModelError(UsageError):
    """The user's own model function is missing, raises, or returns something else."""

    status = "user-model"


class StoreError(FrameworktaxError):
    """A store cannot be read or written."""

    exit_code = 2


class DeploymentError(FrameworktaxError):
    """A deployment cannot be loaded here, or does not serve what it was called with."""

    exit_code = 2


class TraceError(FrameworktaxError):
    """A recorded timeline cannot be read."""

    exit_code = 2


class WorkerError(FrameworktaxError):
    """A measuring process failed.

    Attributes:
        status: which ``Fault`` it was.
    """

    status: Fault

    def __init__(self, status: Fault, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[WorkerError], tuple[Fault, str]]:
        return type(self), (self.status, str(self))


class NothingMeasuredError(FrameworktaxError):
    """Not one point could be measured.

    Attributes:
        results: an ``api.Results`` with every status and reason, where a session was begun.
    """

    def __init__(self, message: str, results: Any = None) -> None:
        super().__init__(message)
        self.results = results


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Import what an extra installs; where it is missing, raise UsageError with the remedy."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{what}; pip install 'frameworktax[{extra}]'") from error


def check_suffix(path: Path | None, suffixes: Sequence[str]) -> None:
    """Raise UsageError if a file to write has none of these suffixes."""
    if path is not None and not path.name.endswith(tuple(suffixes)):
        raise UsageError(f"cannot write '{path.name}'; choose {', '.join(suffixes)}")


def as_path(name: str, value: Any) -> Path:
    """Return a path that is given from Python; raises UsageError for what is none."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{name} is of type {type(value).__name__}; give a path")
    return Path(value)


def write_text(path: Path, text: str | bytes) -> None:
    """Write a text or picture that people asked for; what could not be written whole is removed.

    Raises:
        UsageError: the disk is full, or the file cannot be written.
    """
    begun = False
    data = text if isinstance(text, bytes) else text.encode("utf-8", errors="replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            begun = path.is_file()  # and no pipe or device
            file.write(data)
    except OSError as error:
        if begun:
            path.unlink()
        raise UsageError(
            f"cannot write {path}: {error.strerror}; free space, or name another file, and run "
            "the same command again: what a store has is kept"
        ) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the closest known name, or an empty string."""
    close = get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f", did you mean '{close[0]}'?" if close else ""


def check_known(what: str, name: str, known: Collection[str]) -> None:
    """Raise UsageError, with the nearest name, if a name is none of those known."""
    if name not in known:
        raise UsageError(
            f"no {what} '{name}'{nearest(name, known) or ';'} choose {', '.join(known)}"
        )


ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""A sequence that drives a terminal, as a whole."""
INVISIBLE = re.compile(r"[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]+")
"""Marks without width, among them those that turn the direction of what follows."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]+")
"""What drives a terminal, or what XML 1.0 and UTF-8 cannot hold, escaped or not."""
ONE_LINE, WITH_CAUSE = 400, 160
"""Most characters of a message or a foreign error, and of one before its cause."""


def counted(count: int, noun: str) -> str:
    """Return ``1 point``, ``2 points``, ``1,000 points``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def quoted(word: Any) -> str:
    """Return a path or name as it stands in a command that a message gives, for the shell."""
    return shlex.quote(str(word))


def flat(text: str) -> str:
    """Return text from anywhere in one line that every format can hold and a terminal shows."""
    if text.isprintable() and "  " not in text and text == text.strip():
        return text  # as most is, and a table has thousands of cells
    return " ".join(CONTROL.sub(" ", INVISIBLE.sub("", ESCAPE.sub("", text))).split())


def indented(line: str) -> str:
    """Return a line as ``flat`` does, its indentation kept."""
    return " " * (len(line) - len(line.lstrip())) + flat(line)


def cut(text: str, most: int = 200) -> str:
    """Return text from anywhere as ``flat`` does, its end left out where it is longer."""
    line = flat(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def shortened(text: str) -> str:
    """Return text of ``ONE_LINE`` characters at most: its begin, and its end with the remedy."""
    if len(text) <= ONE_LINE:
        return text
    return f"{text[: ONE_LINE // 2]} … {text[3 - ONE_LINE // 2 :]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python's, torch's or ONNX Runtime's says that memory ran out.

    Only torch's allocator of a device has a class for it; a kernel's launch, cuBLAS, cuDNN, ONNX
    Runtime's arena and allocators of host memory say it in words.
    """
    text = str(error).lower()
    return type(error).__name__ in ("OutOfMemoryError", "MemoryError") or any(
        words in text
        for words in (
            *("out of memory", "not enough memory", "can't allocate memory", "bad_alloc"),
            *("failed to allocate memory", "alloc_failed", "allocation_failed"),
        )
    )


def ends_device(error: BaseException) -> bool:
    """Return whether a process has no use of its device any more after an error.

    After an illegal access or a failed assertion in a kernel every later call of CUDA gives the
    same error, until the process ends (CUDA C++ programming guide, error checking).
    """
    words = r"(CUDA|HIP) ((driver )?error|failure)|Triton Error \[|CUDNN_STATUS_EXECUTION_FAILED"
    is_device = type(error).__name__ == "AcceleratorError" or re.search(words, str(error))
    return bool(is_device) and not is_out_of_memory(error)


def one_line(error: BaseException) -> str:
    """Return a foreign error as one line: what it says, and what the first error under it says."""
    first = error
    seen: set[int] = set()
    while first.__cause__ is not None and id(first) not in seen:  # `raise e from e` is its own
        seen.add(id(first))
        first = first.__cause__
    if first is error:
        return _said(error, ONE_LINE)
    return f"{_said(error, WITH_CAUSE)}; because {_said(first, ONE_LINE - WITH_CAUSE)}"


def _said(error: BaseException, most: int) -> str:
    text = flat(str(error))
    name = type(error).__name__
    return f"{name}: {text[:most]}" if text else name
