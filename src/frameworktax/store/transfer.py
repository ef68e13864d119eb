"""Copying a store to a URL and back, with fsspec: file://, s3://, hf:// and its other systems.

Shards only: what a cache holds is code, and code does not travel with results.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial as partial_of
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from frameworktax.errors import StoreError, UsageError
from frameworktax.store import shards
from frameworktax.store.write import PLAIN, SUFFIX

T = TypeVar("T")
EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hf"}
"""Protocol → the extra that brings it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What was copied.

    Attributes:
        copied: names of shards.
        unchanged: shards that were there already.
        refused: one line for each that was not copied, and why.
    """

    copied: tuple[str, ...]
    unchanged: int
    refused: tuple[str, ...]


def push(folder: Path, url: str) -> Transfer:
    """Copy the shards of a store that the URL lacks, or holds a shorter version of.

    Raises:
        UsageError: what this URL needs is not installed, or there is no such system.
        StoreError: there is no store, or the other side fails.
    """
    found = shards.find(folder)
    for shard in found:
        shards.check(shard)
    system, root = _open(url)

    def copy() -> Transfer:
        there = _listed(system, root)
        copied, refused = [], []
        system.makedirs(root, exist_ok=True)
        for shard in found:
            size, other = shard.stat().st_size, there.get(shard.name)
            if not PLAIN.fullmatch(shard.name):
                refused.append(f"{shard.name}: such a name is not copied")
            elif other is not None and other > size:
                refused.append(f"{shard.name}: there is more of it at {url}; pull first")
            elif other is None or other < size:
                # a transaction, where a system knows it, shows the file whole or not at all
                with (
                    system.transaction,
                    shard.open("rb") as source,
                    system.open(f"{root}/{shard.name}", "wb") as sink,
                ):
                    shutil.copyfileobj(source, sink)
                copied.append(shard.name)
        unchanged = len(found) - len(copied) - len(refused)
        return Transfer(copied=tuple(copied), unchanged=unchanged, refused=tuple(refused))

    return _guarded(copy, url)


def pull(url: str, folder: Path) -> Transfer:
    """Copy the shards at a URL that the store lacks, or holds a shorter version of.

    A name from there becomes a file's only if it is a plain one, and a file becomes a shard only
    once it is whole and begins like one.

    Raises:
        UsageError: what this URL needs is not installed, or there is no such system.
        StoreError: there is nothing at the URL, it fails, or there is no writing here.
    """
    system, root = _open(url)
    there = _guarded(lambda: _listed(system, root), url)
    if not there:
        raise StoreError(f"{url} holds no results (*{SUFFIX}); push a store there first")
    folder.mkdir(parents=True, exist_ok=True)
    copied, refused, unchanged = [], [], 0
    for name, size in sorted(there.items()):
        path = folder / name
        have = path.stat().st_size if path.exists() else None
        if not PLAIN.fullmatch(name):
            refused.append(f"'{name[:80]}': such a name is not copied")
        elif have is not None and have > size:
            refused.append(f"{name}: there is more of it here; push it")
        elif have == size:
            unchanged += 1
        else:
            partial = folder / f".{name}-{os.urandom(4).hex()}.partial"
            try:
                _guarded(partial_of(_fetch, system, f"{root}/{name}", partial), url)
                shards.check(partial)
                partial.replace(path)
                copied.append(name)
            except StoreError as error:
                refused.append(f"{name}: {str(error).replace(str(partial), 'it')}")
            finally:
                partial.unlink(missing_ok=True)
    return Transfer(copied=tuple(copied), unchanged=unchanged, refused=tuple(refused))


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    protocol = url.partition("://")[0] if "://" in url else ""
    if not protocol:
        raise UsageError(f"'{url}' is no URL; write file://, s3:// or hf://, then the folder")
    try:
        import fsspec
    except ImportError as error:
        remedy = f"pip install 'frameworktax[{EXTRAS.get(protocol, 'remote')}]'"
        raise UsageError(f"{url} needs fsspec; {remedy}") from error
    try:
        system, path = fsspec.url_to_fs(url)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        remedy = f"pip install 'frameworktax[{extra}]'" if extra else f"install it: {error}"
        raise UsageError(f"{protocol}:// needs a package that is not here; {remedy}") from error
    except ValueError as error:
        raise UsageError(f"'{url}': {error}; write file://, s3:// or hf://") from error
    return system, str(path).rstrip("/")


def _listed(system: Any, root: str) -> dict[str, int]:
    """Return name → bytes of what lies in a folder and is called like a shard."""
    try:
        found = system.ls(root, detail=True)
    except FileNotFoundError:
        return {}
    return {
        PurePosixPath(entry["name"]).name: int(entry["size"])
        for entry in found
        if entry["type"] == "file" and entry["name"].endswith(SUFFIX)
    }


def _fetch(system: Any, source: str, target: Path) -> None:
    with system.open(source, "rb") as stream, target.open("xb") as file:
        shutil.copyfileobj(stream, file)


def _guarded(step: Callable[[], T], url: str) -> T:
    """Return what a step on the other side gives.

    Raises:
        StoreError: it failed; with its first words.
    """
    try:
        return step()
    except Exception as error:  # each file system raises errors of its own making
        said = " ".join(str(error).split())[:200]
        raise StoreError(f"{url}: {type(error).__name__}: {said}; nothing here was lost") from error
