"""Folders that hold what only this user may have put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from frameworktax.errors import UsageError


def private_folder(folder: Path, variable: str, *, parents: bool) -> Path:
    """Return a folder, made private where it is new.

    Args:
        folder: where it is to be.
        variable: of the environment, that names another.
        parents: whether the folders above it may be made too.

    Raises:
        UsageError: it cannot be made, is a link, or belongs to someone else.
    """
    try:
        folder.mkdir(mode=0o700, parents=parents, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise UsageError(
            f"cannot make {folder}: {error.strerror}; name another folder in {variable}"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UsageError(f"{folder} is not this user's folder; name another in {variable}")
    return folder
