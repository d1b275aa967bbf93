"""Importing sources into the crawl index in SQLite. The tables are described in :mod:`.sqlite_index_tables`.

The records of a source belong to a part of its crawl. Only the crawl itself finds them until the source ends, which
changes a few rows, regardless of its size. A source that is begun again gets a new part; the old part becomes waste.

The queue is in the tables ``source_queue`` and ``source_done``. A claimed source stays in the queue until it has ended
or is released. A claim is valid for a limited time, by the clock of the machine, in seconds since the epoch. After that
time the source still belongs to the same process until another one claims it, which changes the token.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError, StoreRefused, TakenOver

from .base import Counts, ImportNotes, Need, Original, Source, UrlCapture, Waiting
from .index_values import (
    payload_message,
    read_source,
    software,
    source_json,
    state_message,
    twice_message,
    utc_now,
)
from .sqlite_file import sqlite_faults
from .sqlite_index_base import NEXT_ORDER, SqliteIndexBase, let_others_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Writing this many rows takes about ten milliseconds, during which other processes cannot write.
_ENTERED_AT_ONCE = 1_000
_RESOLVED_AT_ONCE = 500

# The original of waiting revisits, which is in their own crawl or in a committed crawl.
_RESOLVED = """
SELECT coalesce(c.part_of, c.number), w.revisits, o.size,
coalesce(oc.part_of, oc.number), coalesce(m.id, oc.id), o.wacz_index, f.name
FROM crawl_waiting w JOIN crawl c ON c.number = w.crawl
JOIN original o ON substr(o.digest, 1, 8) = substr(w.digest, 1, 8) AND o.digest = w.digest
JOIN crawl oc ON oc.number = o.id >> 32
LEFT JOIN crawl m ON m.number = oc.part_of
LEFT JOIN crawl_file f ON f.crawl = oc.number AND f.number = o.file
WHERE w.crawl = ? AND w.digest = ? AND w.size = ? AND c.state IN ('uncommitted', 'committed')
AND (oc.state = 'committed' OR oc.number = c.number)
ORDER BY coalesce(oc.part_of, oc.number) != coalesce(c.part_of, c.number), oc.commit_order, o.id LIMIT 1
"""

_QUEUED_AT_ONCE = 1_000

# The containers of a crawl that was crawled here are done when it is committed; a container of an imported crawl is
# done when its source has ended.
_IS_DONE = """
SELECT EXISTS (SELECT 1 FROM source_done WHERE name = ?1) OR EXISTS (
    SELECT 1 FROM crawl_container k JOIN crawl c ON c.number = k.crawl
    WHERE k.filename = ?1 AND c.state = 'committed' AND NOT c.imported
)
"""

_QUEUE = f"INSERT OR IGNORE INTO source_queue (name, source) SELECT ?1, ?2 WHERE NOT ({_IS_DONE})"

# Sources with an expired claim come first.
_NEXT = """
SELECT position, source FROM source_queue WHERE claimed_until IS NULL OR claimed_until <= ?
ORDER BY claimed_until IS NULL, position LIMIT 1
"""


# A source belongs to the process that claimed it last, even if another process began it.
_HOLDER = """
SELECT coalesce(
    (SELECT token FROM source_queue WHERE name = ?1), (SELECT token FROM source_begun WHERE name = ?1)
)
"""


class SqliteImports(SqliteIndexBase):
    """The methods of :class:`~.crawl_index.CrawlIndex` that import sources and resolve revisits."""

    # The queue

    def _queue_sources(self, sources: Sequence[Source]) -> int:
        queued = 0
        for first in range(0, len(sources), _QUEUED_AT_ONCE):
            began = time.monotonic()
            with self._transaction():
                batch = sources[first : first + _QUEUED_AT_ONCE]
                rows = [(source.name, source_json(source)) for source in batch]
                queued += self._connection.executemany(_QUEUE, rows).rowcount
            if first + _QUEUED_AT_ONCE < len(sources):
                let_others_write(began)
        return queued

    def claim_source(self, lease_s: float = 300.0) -> Source | None:
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

    def renew_lease(self, source: Source, lease_s: float = 300.0) -> None:
        with self._transaction():
            self._require_holder(source)
            self._connection.execute(
                "UPDATE source_queue SET claimed_until = ? WHERE name = ? AND claimed_until IS NOT NULL",
                (time.time() + lease_s, source.name),
            )

    def release_source(self, source: Source) -> None:
        with self._transaction():
            self._require_holder(source)
            self._connection.execute("DELETE FROM source_queue WHERE name = ?", (source.name,))

    def queue_length(self) -> tuple[int, int]:
        ((queued, claimed),) = self._read(
            "SELECT count(*) - count(claimed_until), count(claimed_until) FROM source_queue"
        )
        return int(queued), int(claimed)

    def done_sources(self, names: Sequence[str]) -> list[bool]:
        with sqlite_faults(self._url):
            return [self._is_done(name) for name in names]

    # Sources

    def _begin_source(self, source: Source, payload: str) -> int:
        with self._transaction():
            self._require_holder(source)
            if self._was_ended_by_another(source):
                raise self._taken_over(source)
            if self._is_done(source.name):
                raise CrawlStateError(twice_message(source, self._url))
            mode = self._other_payload(payload)
            if mode is not None:
                raise StoreRefused(payload_message(source.name, payload, mode, self._url))
            number, state, imported = self._row(source.crawl)
            if state == "committed" and not imported:
                state = "crawled"
            if state in ("uncommitted", "crawled"):
                raise CrawlStateError(state_message(source.crawl, state, "extended by an import", self._url))
            earlier = self._forget_begun(source, number)
            if state in ("unknown", "canceled"):
                number = self._begin(source.crawl, imported=True)
            part = self._connection.execute(
                "INSERT INTO crawl (id, state, started, software, imported, part_of)"
                " SELECT ? || '/' || (max(number) + 1), 'hidden', ?, ?, 1, ? FROM crawl",
                (source.crawl, utc_now(), software(), number),
            ).lastrowid
            self._connection.execute(
                "INSERT INTO source_begun (name, crawl, part, source, token) VALUES (?, ?, ?, ?, ?)",
                (source.name, number, part, source_json(source), source.token),
            )
            place = 0
            if source.is_container:
                place = self._container_number(number, source.name)
        self._clear(earlier)
        return place

    def _add_imported(
        self, source: Source, originals: Sequence[Original], urls: Sequence[UrlCapture], files: Sequence[str]
    ) -> None:
        with self._transaction():
            crawl, part = self._part(source)
            for name in files:
                self._file_number(part, name)
            self._add_records(part, crawl, originals, urls, latest=True)

    def _end_source(
        self, source: Source, counts: Counts, needs: Sequence[Need], waiting: Iterable[Waiting]
    ) -> None:
        if self._is_ended(source):
            return
        self._enter_waiting(source, waiting)
        with self._transaction():
            if self._is_ended(source):
                return
            crawl, part = self._part(source)
            self._connection.execute(
                "UPDATE crawl SET state = 'committed', committed = coalesce(committed, ?),"  # noqa: S608
                f" commit_order = coalesce(commit_order, {NEXT_ORDER}) WHERE number = ?",
                (utc_now(), crawl),
            )
            self._connection.execute(
                "UPDATE crawl SET state = 'committed', commit_order ="
                " (SELECT commit_order FROM crawl WHERE number = ?) WHERE number = ?",
                (crawl, part),
            )
            self._add_counts(crawl, counts)
            self._add_needs(crawl, needs)
            if source.is_container and source.size is not None:
                self._fill_container(crawl, source.name, source.hash, source.size)
            self._connection.execute("DELETE FROM source_begun WHERE name = ?", (source.name,))
            self._connection.execute(
                "INSERT INTO source_done (name, crawl, ended_after) SELECT ?, ?, max(number) FROM crawl",
                (source.name, crawl),
            )
            self._connection.execute("DELETE FROM source_queue WHERE name = ?", (source.name,))

    def drop_source(self, source: Source) -> None:
        with self._transaction():
            self._require_holder(source)
            self._forget_begun(source, None)
            self._forget_payload()
        self._clear()

    def unfinished_sources(self) -> list[Source]:
        rows = self._read("SELECT source FROM source_begun ORDER BY name")
        found = [read_source(text) for (text,) in rows]
        self.unreadable += found.count(None)
        return [source for source in found if source is not None]

    def resolve(self) -> int:
        resolved = 0
        last: tuple[int, bytes, int] = (0, b"", 0)
        query = (
            "SELECT crawl, digest, size FROM crawl_waiting WHERE (crawl, digest, size) > (?, ?, ?)"
            " ORDER BY crawl, digest, size LIMIT ?"
        )
        while rows := self._read(query, (*last, _RESOLVED_AT_ONCE)):
            last = rows[-1]
            found = [row for row in rows if self._read(_RESOLVED, row)]
            if found:
                with self._transaction():
                    resolved += sum(self._resolve(row) for row in found)
        return resolved

    @property
    def import_notes(self) -> ImportNotes:
        with sqlite_faults(self._url):
            text = self._mark("imports")
        return ImportNotes() if text is None else ImportNotes(**json.loads(text))

    def note_imports(self, notes: ImportNotes) -> None:
        with self._transaction():
            self._set_mark("imports", json.dumps(asdict(notes)))

    # Helpers

    def _part(self, source: Source) -> tuple[int, int]:
        """The numbers of the crawl and of the part of a source that this process has begun."""
        self._require_holder(source)
        row = self._connection.execute(
            "SELECT crawl, part FROM source_begun WHERE name = ? AND token = ?", (source.name, source.token)
        ).fetchone()
        if row is None:
            if self._was_ended_by_another(source):
                raise self._taken_over(source)
            raise CrawlStateError(
                state_message(source.crawl, "dropped", f"extended by {source.name}", self._url)
            )
        return int(row[0]), int(row[1])

    def _is_ended(self, source: Source) -> bool:
        ((is_ended,),) = self._read(
            "SELECT (SELECT count(*) FROM source_done WHERE name = ?1)"
            " > (SELECT count(*) FROM source_begun WHERE name = ?1)",
            (source.name,),
        )
        return bool(is_ended)

    def _enter_waiting(self, source: Source, waiting: Iterable[Waiting]) -> None:
        """Record revisits for the part of a source, where they are invisible until the source has ended."""
        with self._transaction():
            _, part = self._part(source)
            # Remove the revisits that an interrupted attempt to end the source has added.
            self._connection.execute("DELETE FROM crawl_waiting WHERE crawl = ?", (part,))
        rest = iter(waiting)
        while batch := list(islice(rest, _ENTERED_AT_ONCE)):
            with self._transaction():
                _, part = self._part(source)
                self._add_waiting(part, batch)

    def _forget_begun(self, source: Source, number: int | None) -> list[int]:
        """Mark the data of an earlier attempt with a source as waste. Return the numbers of its parts.

        A crawl other than ``number`` that has no other data is forgotten too.
        """
        row = self._connection.execute(
            "SELECT crawl, part FROM source_begun WHERE name = ?", (source.name,)
        ).fetchone()
        if row is None:
            return []
        crawl, part = row
        self._waste(part)
        if crawl != number:
            # The positions of later containers must not change.
            self._connection.execute(
                "DELETE FROM crawl_container WHERE crawl = ?1 AND filename = ?2 AND size IS NULL"
                " AND number = (SELECT max(number) FROM crawl_container WHERE crawl = ?1)",
                (crawl, source.name),
            )
            is_empty = self._value(
                "SELECT state != 'committed' AND NOT EXISTS (SELECT 1 FROM source_begun WHERE crawl = ?1)"
                " FROM crawl WHERE number = ?1",
                crawl,
            )
            if is_empty:
                self._waste(crawl)
                return [part, crawl]
        return [part]

    def _resolve(self, row: tuple[int, bytes, int]) -> int:
        found = self._connection.execute(_RESOLVED, row).fetchone()
        if found is None:
            return 0
        crawl, revisits, original_size, owner, owner_id, wacz_index, file = found
        self._connection.execute("DELETE FROM crawl_waiting WHERE crawl = ? AND digest = ? AND size = ?", row)
        conserved = revisits * max(0, original_size - row[2])
        self._add_counts(crawl, Counts(conserved_size=conserved))
        if owner != crawl:
            self._add_needs(crawl, [Need(owner_id, wacz_index, file)])
        return int(revisits)

    def _require_holder(self, source: Source) -> None:
        """Raise TakenOver if another process has claimed or begun the source since."""
        token = self._value(_HOLDER, source.name)
        if token is not None and token != source.token:
            raise self._taken_over(source)

    def _was_ended_by_another(self, source: Source) -> bool:
        """Whether a source that this process has claimed is done and no longer in the queue."""
        query = (
            "SELECT EXISTS (SELECT 1 FROM source_done WHERE name = ?1)"
            " AND NOT EXISTS (SELECT 1 FROM source_queue WHERE name = ?1)"
        )
        return bool(source.token and self._value(query, source.name))

    def _taken_over(self, source: Source) -> TakenOver:
        action = f"extended by {source.name}"
        return TakenOver(state_message(source.crawl, "taken", action, self._url))

    def _is_done(self, name: str) -> bool:
        return bool(self._value(_IS_DONE, name))
