"""Importing sources into the crawl index in SQLite. The tables are described in :mod:`.sqlite_index_tables`.

The records of a source belong to a part of its crawl. Only the crawl itself finds them until the source ends, which
changes a few rows, whatever its size. A source that is begun again gets a new part, and the old part becomes waste.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from . import sqlite_crawl_files as crawl_files
from .base import Counts, ImportNotes, Need, Original, Source, UrlCapture, Waiting
from .index_values import (
    payload_message,
    read_source,
    software,
    source_json,
    state_message,
    utc_now,
)
from .sqlite_faults import sqlite_faults
from .sqlite_index_base import NEXT_ORDER
from .sqlite_source_queue import SqliteSourceQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

# Writing this many rows takes about ten milliseconds, during which other processes cannot write.
_ENTERED_AT_ONCE = 1_000
_RESOLVED_AT_ONCE = 500

# Revisits with their possible originals: those of their own crawl, or of a committed one.
_MATCH = """
c.state IN ('uncommitted', 'committed')
AND substr(o.digest, 1, 8) = substr(w.digest, 1, 8) AND o.digest = w.digest
AND (oc.state = 'committed' OR oc.number = c.number)
"""

_RESOLVABLE = f"""
SELECT w.crawl, w.digest, w.size FROM crawl_waiting w JOIN crawl c ON c.number = w.crawl
WHERE (w.crawl, w.digest, w.size) > (?, ?, ?)
AND EXISTS (SELECT 1 FROM original o JOIN crawl oc ON oc.number = o.id >> 32 WHERE {_MATCH})
ORDER BY w.crawl, w.digest, w.size LIMIT ?
"""  # noqa: S608 - constants

_RESOLVED = f"""
SELECT coalesce(c.part_of, c.number), w.revisits, o.size,
coalesce(oc.part_of, oc.number), coalesce(m.id, oc.id), o.wacz_index, f.name
FROM crawl_waiting w JOIN crawl c ON c.number = w.crawl
JOIN original o JOIN crawl oc ON oc.number = o.id >> 32
LEFT JOIN crawl m ON m.number = oc.part_of
LEFT JOIN crawl_file f ON f.crawl = oc.number AND f.number = o.file
WHERE w.crawl = ? AND w.digest = ? AND w.size = ? AND {_MATCH}
ORDER BY coalesce(oc.part_of, oc.number) != coalesce(c.part_of, c.number), oc.commit_order, o.id LIMIT 1
"""  # noqa: S608 - constants


class SqliteImports(SqliteSourceQueue):
    """The methods of :class:`~.crawl_index.CrawlIndex` that import sources and resolve revisits."""

    def _begin_source(self, source: Source, payload: str) -> int:
        with self._transaction():
            self._require_holder(source)
            if self._was_ended_by_another(source):
                raise self._taken_over(source)
            if self._is_done(source.name):
                raise CrawlStateError(
                    f"The source {source.name} was imported into the index {self._url} before, so it cannot be imported"
                    f" into the crawl {source.crawl}. Purge the crawl that contains it first."
                )
            mode = self._other_payload(payload)
            if mode is not None:
                raise StoreRefused(payload_message(source.name, payload, mode, self._url))
            number, state, imported = self._row(source.crawl)
            if not imported and state in ("uncommitted", "committed"):
                state = "crawled" if state == "committed" else state
                raise CrawlStateError(state_message(source.crawl, state, "extended by an import", self._url))
            earlier = self._forget_begun(source, number)
            if number is None or state == "canceled":
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
                place = crawl_files.container_number(self._connection, number, source.name)
        self._clear(earlier)
        return place

    def _add_imported(
        self, source: Source, originals: Sequence[Original], urls: Sequence[UrlCapture], files: Sequence[str]
    ) -> None:
        if files:
            with self._transaction():
                _, part = self._part(source)
                for name in files:
                    crawl_files.file_number(self._connection, part, name)
        entered: dict[bytes, int] = {}
        for first in range(0, len(originals), _ENTERED_AT_ONCE):
            with self._transaction():
                crawl, part = self._part(source)
                batch = originals[first : first + _ENTERED_AT_ONCE]
                entered |= crawl_files.add_originals(self._connection, part, crawl, batch)
        for first in range(0, len(urls), _ENTERED_AT_ONCE):
            with self._transaction():
                _, part = self._part(source)
                captures = urls[first : first + _ENTERED_AT_ONCE]
                crawl_files.add_urls(self._connection, part, captures, entered, latest=True)
        if not originals and not urls:
            with sqlite_faults(self._url):
                self._part(source)

    def _end_source(
        self, source: Source, counts: Counts, needs: Sequence[Need], waiting: Sequence[Waiting]
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
            crawl_files.add_counts(self._connection, crawl, counts)
            crawl_files.add_needs(self._connection, crawl, needs)
            if source.is_container and source.size is not None:
                crawl_files.set_container(self._connection, crawl, source.name, source.hash, source.size)
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
        with sqlite_faults(self._url):
            rows = self._connection.execute("SELECT source FROM source_begun ORDER BY name").fetchall()
        found = [read_source(text) for (text,) in rows]
        self.unreadable += found.count(None)
        return [source for source in found if source is not None]

    def resolve(self) -> int:
        resolved = 0
        last: tuple[int, bytes, int] = (0, b"", 0)
        while True:
            with sqlite_faults(self._url):
                rows = self._connection.execute(_RESOLVABLE, (*last, _RESOLVED_AT_ONCE)).fetchall()
            if not rows:
                return resolved
            last = rows[-1]
            with self._transaction():
                resolved += sum(self._resolve(row) for row in rows)

    @property
    def import_notes(self) -> ImportNotes:
        with sqlite_faults(self._url):
            text = self._mark("imports")
        if text is None:
            return ImportNotes()
        notes = json.loads(text)
        return ImportNotes(
            notes["progress"], notes["finished"], notes["removedCrawls"], notes["removedCrawlSize"]
        )

    def note_imports(self, notes: ImportNotes) -> None:
        text = json.dumps(
            {
                "progress": notes.progress,
                "finished": notes.finished,
                "removedCrawls": notes.removed_crawls,
                "removedCrawlSize": notes.removed_size,
            }
        )
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO index_mark VALUES ('imports', ?)", (text,))

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
        with sqlite_faults(self._url):
            row = self._connection.execute(
                "SELECT (SELECT count(*) FROM source_done WHERE name = ?1)"
                " > (SELECT count(*) FROM source_begun WHERE name = ?1)",
                (source.name,),
            ).fetchone()
        return bool(row[0])

    def _enter_waiting(self, source: Source, waiting: Sequence[Waiting]) -> None:
        """Record revisits for the part of a source, where they are invisible until the source has ended."""
        with self._transaction():
            _, part = self._part(source)
            # Remove those of an interrupted attempt to end the source.
            self._connection.execute("DELETE FROM crawl_waiting WHERE crawl = ?", (part,))
        for first in range(0, len(waiting), _ENTERED_AT_ONCE):
            with self._transaction():
                _, part = self._part(source)
                batch = waiting[first : first + _ENTERED_AT_ONCE]
                crawl_files.add_waiting(self._connection, part, batch)

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
            crawl_files.drop_container(self._connection, crawl, source.name)
            is_empty = self._connection.execute(
                "SELECT state != 'committed' AND NOT EXISTS (SELECT 1 FROM source_begun WHERE crawl = ?1)"
                " FROM crawl WHERE number = ?1",
                (crawl,),
            ).fetchone()[0]
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
        crawl_files.add_counts(self._connection, crawl, Counts(conserved_size=conserved))
        if owner != crawl:
            crawl_files.add_needs(self._connection, crawl, [Need(owner_id, wacz_index, file)])
        return int(revisits)
