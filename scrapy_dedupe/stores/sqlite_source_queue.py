"""The queue of sources to import, in SQLite: the tables ``source_queue`` and ``source_done``.

A claimed source stays in the queue until it has ended or is released. A claim is valid for a limited time, by the clock
of the machine, in seconds since the epoch. After that time the source still belongs to the same process until another
one claims it, which changes the token.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import TakenOver

from .index_values import read_source, source_json, state_message
from .sqlite_faults import sqlite_faults
from .sqlite_index_base import SqliteIndexBase, let_others_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Source

_QUEUED_AT_ONCE = 1_000

# The containers of a crawl that was crawled here are done when it is committed; a container of an imported crawl is
# done when its source has ended.
_IS_DONE = """
SELECT EXISTS (SELECT 1 FROM source_done WHERE name = ?1) OR EXISTS (
    SELECT 1 FROM crawl_container k JOIN crawl c ON c.number = k.crawl
    WHERE k.filename = ?1 AND c.state = 'committed' AND NOT c.imported
)
"""

# Sources with an expired claim come first.
_NEXT = """
SELECT position, source FROM source_queue WHERE claimed_until IS NULL OR claimed_until <= ?
ORDER BY claimed_until IS NULL, position LIMIT 1
"""


# A source belongs to the process that claimed it last, whichever process began it.
_HOLDER = """
SELECT coalesce(
    (SELECT token FROM source_queue WHERE name = ?1), (SELECT token FROM source_begun WHERE name = ?1)
)
"""


class SqliteSourceQueue(SqliteIndexBase):
    """The methods of :class:`~.base.IndexStore` for the queue."""

    def queue_sources(self, sources: Sequence[Source]) -> int:
        """Append sources to the queue, except those that are queued or done already. Return the number appended."""
        queued = 0
        for first in range(0, len(sources), _QUEUED_AT_ONCE):
            began = time.monotonic()
            with self._transaction():
                for source in sources[first : first + _QUEUED_AT_ONCE]:
                    if not self._is_done(source.name):
                        queued += self._connection.execute(
                            "INSERT OR IGNORE INTO source_queue (name, source) VALUES (?, ?)",
                            (source.name, source_json(source)),
                        ).rowcount
            if first + _QUEUED_AT_ONCE < len(sources):
                let_others_write(began)
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
                    source = replace(source, token=secrets.token_hex(8))
                    self._connection.execute(
                        "UPDATE source_queue SET claimed_until = ?, token = ? WHERE position = ?",
                        (now + lease_s, source.token, position),
                    )
                    return source
                self.unreadable += 1
                self._connection.execute("DELETE FROM source_queue WHERE position = ?", (position,))

    def renew_lease(self, source: Source, lease_s: float) -> None:
        """Extend the claim of a source to *lease_s* seconds from now."""
        with self._transaction():
            self._require_holder(source)
            self._connection.execute(
                "UPDATE source_queue SET claimed_until = ? WHERE name = ? AND claimed_until IS NOT NULL",
                (time.time() + lease_s, source.name),
            )

    def release_source(self, source: Source) -> None:
        """Remove a source that could not be imported from the queue."""
        with self._transaction():
            self._require_holder(source)
            self._connection.execute("DELETE FROM source_queue WHERE name = ?", (source.name,))

    def queue_length(self) -> tuple[int, int]:
        """The numbers of queued and of claimed sources."""
        with sqlite_faults(self._url):
            row = self._connection.execute(
                "SELECT count(*) - count(claimed_until), count(claimed_until) FROM source_queue"
            ).fetchone()
        return int(row[0]), int(row[1])

    def done_sources(self, names: Sequence[str]) -> list[bool]:
        """Whether sources with these names were imported, or are containers of committed crawls."""
        with sqlite_faults(self._url):
            return [self._is_done(name) for name in names]

    def _require_holder(self, source: Source) -> None:
        """Raise TakenOver if another process has claimed or begun the source since."""
        (token,) = self._connection.execute(_HOLDER, (source.name,)).fetchone()
        if token is not None and token != source.token:
            raise self._taken_over(source)

    def _was_ended_by_another(self, source: Source) -> bool:
        """Whether a source that this process has claimed is done and no longer in the queue."""
        return bool(source.token) and bool(
            self._connection.execute(
                "SELECT EXISTS (SELECT 1 FROM source_done WHERE name = ?1)"
                " AND NOT EXISTS (SELECT 1 FROM source_queue WHERE name = ?1)",
                (source.name,),
            ).fetchone()[0]
        )

    def _taken_over(self, source: Source) -> TakenOver:
        action = f"extended by {source.name}"
        return TakenOver(state_message(source.crawl, "taken", action, self._url))

    def _is_done(self, name: str) -> bool:
        return bool(self._connection.execute(_IS_DONE, (name,)).fetchone()[0])
