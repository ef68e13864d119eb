"""What an earlier session found out about a named model, in this user's cache.

Descriptions, and eager's outputs on the CPU to compare others with. With both, and with exports in
the cache too, a session needs no process that imports the model's library. The folder's name is a
key over the model, its sizes, the device, the installed versions and this package's code.
"""

from __future__ import annotations

import contextlib
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from frameworktax import host, runtimes
from frameworktax.host.cache import own_entry, private_file
from frameworktax.measure import parity
from frameworktax.measure.protocol import Described
from frameworktax.measure.series import artifact_key, is_fixed
from frameworktax.records import Point, device_of

DESCRIPTION = "description.json"
COUNTS = ("parameters", "flops", "macs", "operators")


class KnownModels:
    """Reads and writes, in this user's cache, what is known of models that their names define.

    Nothing is known of a live module (see ``Plan``).
    """

    def __init__(self, cache: Path, live: str | None = None) -> None:
        self._cache = cache
        self._live = live

    def description(self, point: Point, batches: Iterable[int]) -> Described | None:
        """Return what is known of these batch sizes, or None where one of them is missing."""
        known, wanted = self._read(self._folder(point)), list(batches)
        if known is None or not set(wanted) <= set(known.facts):
            return None
        return replace(known, facts={batch: known.facts[batch] for batch in wanted})

    def keep_description(self, point: Point, described: Described) -> None:
        """Keep a description beside that of other batch sizes.

        Facts that were scaled and came out unknown are left out: more time may find them.
        """
        folder = self._folder(point)
        if folder is None:
            return
        known = self._read(folder)
        facts = {
            batch: found
            for batch, found in described.facts.items()
            if all(note.code != "counts-scaled" for note in found.notes)
            or None not in (getattr(found, count) for count in COUNTS)
        }
        whole = replace(described, facts={**(known.facts if known else {}), **facts})
        with contextlib.suppress(OSError):  # a full cache keeps nothing more
            folder.mkdir(mode=0o700, exist_ok=True)
            with private_file(folder / DESCRIPTION) as partial:
                partial.write_bytes(msgspec.json.encode(whole))

    def _read(self, folder: Path | None) -> Described | None:
        if folder is None:
            return None
        try:
            known = msgspec.json.decode((folder / DESCRIPTION).read_bytes(), type=Described)
            (folder / DESCRIPTION).touch()  # pruning takes what was not used for longest
        except (OSError, msgspec.DecodeError):
            return None  # missing or damaged: it is described anew
        return known

    def output(self, point: Point) -> Path | None:
        """Return the file of eager's outputs, or None if not known."""
        folder = self._folder(point, on_cpu=True)
        if folder is None:
            return None
        path = folder / f"eager-{point.workload.batch}.npz"
        try:
            parity.read_outputs(path)
            path.touch()
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None  # missing or damaged: eager is run
        return path

    def keep_output(self, point: Point, path: Path) -> None:
        """Keep a copy of eager's outputs of a point."""
        folder = self._folder(point, on_cpu=True)
        if folder is None or point.workload.twin:
            return
        with contextlib.suppress(OSError):  # as above
            folder.mkdir(mode=0o700, exist_ok=True)
            with private_file(folder / f"eager-{point.workload.batch}.npz") as partial:
                shutil.copyfile(path, partial)

    @cached_property
    def _libraries(self) -> dict[str, str]:
        return host.libraries(runtimes.distributions())

    def _folder(self, point: Point, *, on_cpu: bool = False) -> Path | None:
        """Return the folder of a point's model; ``on_cpu``: None on any other device."""
        eager = replace(point, runtime="eager")
        other_device = on_cpu and device_of(point.platform) != "cpu"
        if self._live is not None or other_device or not is_fixed(eager):
            return None
        return own_entry(self._cache / artifact_key(eager, [], self._libraries))
