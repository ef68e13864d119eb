"""A store: a folder of append-only JSON-lines shards, one per writing process.

The first line of a shard is ``{"schema": "frameworktax.store", "version": 1}``; each further line
is one record (``records.RECORDS``), on disk when ``write`` returns, so a killed process loses at
most the line it was writing. A reader skips a torn line and says so, and drops the second of two
records with the same identity, so that copying one store's shards into another gives a valid one.

``write`` and ``shards`` are the format, ``read`` gives records, ``columns`` all blocks together,
``upkeep`` says whether a store is whole.
"""

from __future__ import annotations

from frameworktax.store.read import Where, read, read_columns
from frameworktax.store.shards import decode
from frameworktax.store.write import HEADER, Writer, new_session_id

__all__ = ["HEADER", "Where", "Writer", "decode", "new_session_id", "read", "read_columns"]
