"""The queue of sources that are to be imported, in SQLite: tables ``source_queue`` and ``source_done``.

A source that is claimed stays in the queue until it has ended or is released. Who claims it has it for a time; the
clock is that of the machine, in seconds since the epoch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .faults import sqlite_faults
from .index_values import read_source, source_json
from .sqlite_index_base import SqliteIndexBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Source

# Containers of crawls that were crawled here are done with the commit; those of imported ones when they have ended.
_IS_DONE = """
SELECT EXISTS (SELECT 1 FROM source_done WHERE name = ?1) OR EXISTS (
    SELECT 1 FROM crawl_container k JOIN crawl c ON c.number = k.crawl
    WHERE k.filename = ?1 AND c.state = 'committed' AND NOT c.imported
)
"""

# What was given up comes first.
_NEXT = """
SELECT position, source FROM source_queue WHERE claimed_until IS NULL OR claimed_until <= ?
ORDER BY claimed_until IS NULL, position LIMIT 1
"""


class SqliteSourceQueue(SqliteIndexBase):
    """The methods of :class:`~.base.IndexStore` about the queue."""

    def queue_sources(self, sources: Sequence[Source]) -> int:
        """Put sources at the end of the queue, those apart that are in it or were done; how many were put there."""
        queued = 0
        with self._transaction():
            for source in sources:
                if not self._is_done(source.name):
                    queued += self._connection.execute(
                        "INSERT OR IGNORE INTO source_queue (name, source) VALUES (?, ?)",
                        (source.name, source_json(source)),
                    ).rowcount
        return queued

    def claim_source(self, lease_s: float) -> Source | None:
        """Take the next source of the queue; None if there is none."""
        with self._transaction():
            while True:
                now = time.time()
                row = self._connection.execute(_NEXT, (now,)).fetchone()
                if row is None:
                    return None
                position, text = row
                source = read_source(text)
                if source is not None:
                    self._connection.execute(
                        "UPDATE source_queue SET claimed_until = ? WHERE position = ?",
                        (now + lease_s, position),
                    )
                    return source
                self.unreadable += 1
                self._connection.execute("DELETE FROM source_queue WHERE position = ?", (position,))

    def renew_lease(self, source: Source, lease_s: float) -> None:
        """Keep a claimed source for so many seconds from now on."""
        with self._transaction():
            self._connection.execute(
                "UPDATE source_queue SET claimed_until = ? WHERE name = ? AND claimed_until IS NOT NULL",
                (time.time() + lease_s, source.name),
            )

    def release_source(self, source: Source) -> None:
        """Take a source out of the queue that could not be imported."""
        with self._transaction():
            self._connection.execute("DELETE FROM source_queue WHERE name = ?", (source.name,))

    def queue_length(self) -> tuple[int, int]:
        """How many sources are in the queue, and how many are claimed."""
        with sqlite_faults(self._url):
            row = self._connection.execute(
                "SELECT count(*) - count(claimed_until), count(claimed_until) FROM source_queue"
            ).fetchone()
        return int(row[0]), int(row[1])

    def done_sources(self, names: Sequence[str]) -> list[bool]:
        """Whether sources with these names were imported, or are containers of committed crawls."""
        with sqlite_faults(self._url):
            return [self._is_done(name) for name in names]

    def _is_done(self, name: str) -> bool:
        return bool(self._connection.execute(_IS_DONE, (name,)).fetchone()[0])
