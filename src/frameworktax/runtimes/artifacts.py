"""What ``prepare`` leaves for ``load``: one folder, whole or not there at all.

    DIRECTORY/artifact/manifest.json    what is there
                       inputs-N.npz     the inputs of batch N, tensors only, in order
                       …                the engine's own files

Reading it needs numpy only, so that a measuring process need not import the model's library.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from frameworktax.errors import WorkerError
from frameworktax.host.files import atomic_path

if TYPE_CHECKING:
    import numpy as np

FOLDER = "artifact"
MANIFEST = "manifest.json"


@dataclass(kw_only=True)
class Manifest:
    """The contents of an artefact.

    Attributes:
        files: batch size → the engine's file that serves it, by name within the folder.
        names: of the inputs, in the order of the exported program.
        dtypes: of the inputs, as torch writes them without its prefix (``bfloat16``).
        batch_dims: of the inputs; None for one without a batch.
        notes: (code, text) pairs that belong beside every number.
        free_dimension: the engine's name for the batch, where it has one.
        new_tokens: how many to generate; None for a forward pass.
        cache: heads and head dimension of each tensor of the cache, where generating has one.
    """

    files: dict[int, str]
    names: list[str]
    dtypes: list[str]
    batch_dims: list[int | None]
    notes: list[tuple[str, str]] = field(default_factory=list)
    free_dimension: str | None = None
    new_tokens: int | None = None
    cache: list[list[int]] = field(default_factory=list)


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes the artefact only when the block ends well.

    A killed ``prepare`` leaves a folder that nothing reads; a later one replaces the artefact.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / FOLDER
    with atomic_path(final) as partial:
        partial.mkdir()
        yield partial
        if final.exists():
            shutil.rmtree(final)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into the staged folder."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest)), encoding="utf-8")


class Artifact:
    """A finished artefact, read."""

    def __init__(self, directory: Path) -> None:
        """Read the manifest.

        Raises:
            WorkerError: nothing was prepared in ``directory``.
        """
        self.folder = directory / FOLDER
        path = self.folder / MANIFEST
        if not path.is_file():
            raise WorkerError("failed", f"nothing prepared in {directory}; measure again")
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["files"] = {int(batch): name for batch, name in fields["files"].items()}
        fields["notes"] = [(code, text) for code, text in fields["notes"]]
        self.manifest = Manifest(**fields)

    def file(self, batch: int) -> Path:
        """Return the engine's file for a batch size.

        Raises:
            WorkerError: this batch size was not prepared.
        """
        name = self.manifest.files.get(batch)
        if name is None:
            raise WorkerError("failed", f"batch {batch} was not prepared; measure again")
        return self.folder / name

    def inputs(self, batch: int) -> list[np.ndarray]:
        """Return the inputs of a batch size, in order; bfloat16 is stored as float32.

        Raises:
            WorkerError: this batch size was not prepared.
        """
        import numpy as np

        self.file(batch)
        with np.load(self.folder / inputs_name(batch)) as stored:
            return [np.ascontiguousarray(stored[f"{i}"]) for i in range(len(stored.files))]


def inputs_name(batch: int) -> str:
    """Return the name of the file with the inputs of a batch size."""
    return f"inputs-{batch}.npz"
