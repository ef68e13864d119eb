"""Reads what an observed process has noted (``calls``)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from frameworktax.programs.calls import DETAILED, HEAD, LIGHT


class Detail(NamedTuple):
    """A call that was noted in detail; times in ns.

    Attributes:
        queued_ns: ready while others had the processor, −1 where the system does not say.
        notes: alternating time and index of the module entered, −1 for one left.
    """

    root: int
    begin_ns: int
    end_ns: int
    cpu_ns: int
    queued_ns: int
    notes: np.ndarray


@dataclass
class ThreadNotes:
    """The calls of a thread: shape (calls, 3) with begin, end and root, in the order of ends."""

    rows: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int64))
    details: list[Detail] = field(default_factory=list)


@dataclass
class ProcessNotes:
    """What a process noted.

    Attributes:
        threads: by the operating system's number.
        names: of threads; ``name`` of the process where multiprocessing started it.
        roots: what is called, by number.
        looks: shape (looks, 3) with thread, time and place, from ``--by line``.
        places: file, line and function by number.
        inputs: (root, text of what it was given) → how often.
        full: why calls are missing, None if none are.
    """

    pid: int
    threads: dict[int, ThreadNotes] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    name: str = ""
    observers: set[int] = field(default_factory=set)
    roots: dict[int, dict[str, Any]] = field(default_factory=dict)
    looks: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int64))
    places: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    inputs: Counter[tuple[int, str]] = field(default_factory=Counter)
    full: str | None = None


def read(folder: Path) -> list[ProcessNotes]:
    """Return what all processes noted; the last word of one that was killed may be cut off."""
    pids = sorted({int(path.stem) for path in folder.iterdir() if path.stem.isdigit()})
    return [_read(folder, pid) for pid in pids]


def _read(folder: Path, pid: int) -> ProcessNotes:
    found = ProcessNotes(pid)
    names = folder / f"{pid}.names"
    if names.exists():
        for line in names.read_text(encoding="utf-8").splitlines():
            try:
                _name(found, json.loads(line))
            except ValueError:  # cut off
                continue
    path = folder / f"{pid}.calls"
    if not path.exists():
        return found
    rows: dict[int, list[np.ndarray]] = defaultdict(list)
    looks = [found.looks]
    for kind, tid, words in _chunks(np.fromfile(path, np.int64)):
        thread = found.threads.setdefault(tid, ThreadNotes())
        if kind == DETAILED:
            thread.details += _details(words)
            continue
        triples = words[: len(words) // 3 * 3].reshape(-1, 3)
        whole = triples[triples[:, 2] > 0]
        if kind == LIGHT:
            rows[tid].append(whole)
        else:
            looks.append(whole)
    for tid, parts in rows.items():
        found.threads[tid].rows = np.concatenate(parts)
    found.looks = np.concatenate(looks)
    return found


def _chunks(words: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    at = 0
    while at < len(words) and words[at] > 0:
        end = at + int(words[at])
        yield int(words[at + 1]), int(words[at + 2]), words[at + HEAD : end]
        at = end


def _details(words: np.ndarray) -> Iterator[Detail]:
    at = 0
    while at < len(words) and words[at] > 0:
        end = at + int(words[at])
        root, begin, here, cpu, queued = map(int, words[at + 1 : at + 6])
        yield Detail(root, begin, here, cpu, queued, words[at + 6 : end])
        at = end


def _name(found: ProcessNotes, known: dict[str, Any]) -> None:
    if "root" in known:
        found.roots[known["root"]] = known
    elif "thread" in known:
        found.names[known["thread"]] = known["name"]
        found.name = known.get("process", found.name)
    elif "place" in known:
        file, line, function = known["at"]
        found.places[known["place"]] = (file, line, function)
    elif "inputs" in known:
        found.inputs[known["inputs"], json.dumps(known["seen"])] += 1
    elif "observer" in known:
        found.observers.add(known["observer"])
    elif "full" in known:
        found.full = known["full"]
