"""Files that are whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a new path in the same folder; what is written there becomes ``path`` at the end.

    It may be a file, which replaces an older one, or a folder, which replaces an empty one at
    most. If the block raises, ``path`` stays as it was. A killed process leaves a hidden
    ``.NAME-….partial``, which nothing reads.
    """
    partial = path.with_name(f".{path.name}-{os.urandom(4).hex()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
