"""Queries about whole crawls in the crawl index in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import sqlite_crawl_files as crawl_files
from .base import Counts, CrawlInfo, Need, Original
from .index_values import read_stats, unpacked_digest
from .sqlite_faults import sqlite_faults
from .sqlite_index_base import COUNTS, SHIFT, SqliteIndexBase

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_AT_ONCE = 1_000

_FILES = """
SELECT coalesce(c.part_of, c.number), f.name FROM crawl_file f JOIN crawl c ON c.number = f.crawl
WHERE c.state != 'hidden' ORDER BY f.crawl, f.number
"""

# Rows that were never crawls, or are no longer crawls, have other states.
_UNKNOWN_STATES = """
SELECT count(*) FROM crawl WHERE part_of IS NULL
AND state NOT IN ('uncommitted', 'committed', 'canceled', 'hidden', 'purging', 'waste', 'gone')
"""

_WAITING = """
SELECT coalesce(c.part_of, c.number), count(DISTINCT w.digest)
FROM crawl_waiting w JOIN crawl c ON c.number = w.crawl WHERE c.state != 'hidden' GROUP BY 1
"""

_RECORDS = """
SELECT o.id, o.digest, :crawl, o.wacz_index, o.date, o.url, o.size, o.record, f.name, o."offset"
FROM original o LEFT JOIN crawl_file f ON f.crawl = o.id >> 32 AND f.number = o.file
WHERE o.id BETWEEN :following AND :last
"""

# Two sources may have added the same payload; the record of the source that was begun first counts. A replaced crawl
# has records of its own, before those of its parts.
_NOT_TWICE = """
AND NOT EXISTS (
    SELECT 1 FROM original e JOIN crawl c ON c.number = e.id >> 32
    WHERE substr(e.digest, 1, 8) = substr(o.digest, 1, 8) AND e.digest = o.digest
    AND coalesce(c.part_of, c.number) = :number AND c.state = 'committed' AND c.number < o.id >> 32
)
"""


class SqliteSurvey(SqliteIndexBase):
    """The methods of :class:`~.base.IndexStore` that query the index."""

    def crawls(self) -> list[CrawlInfo]:
        """All crawls, in the order of their start."""
        with sqlite_faults(self._url):
            files: dict[int, list[str]] = {}
            for number, name in self._connection.execute(_FILES):
                files.setdefault(number, []).append(name)
            waiting: dict[int, int] = dict(self._connection.execute(_WAITING).fetchall())
            payload = self._mark("payload") or "stored"
            rows = self._connection.execute(
                "SELECT number, id, state, started, committed, stats, incomplete, software, imported,"  # noqa: S608
                f" concurrent, {COUNTS} FROM crawl WHERE part_of IS NULL"
                " AND state IN ('uncommitted', 'committed', 'canceled') ORDER BY started, id"
            ).fetchall()
            self.unreadable += int(self._connection.execute(_UNKNOWN_STATES).fetchone()[0])
        return [
            CrawlInfo(
                id=crawl,
                state=state,
                payload=payload,
                started=started,
                committed=committed,
                counts=Counts(*counts),
                files=tuple(dict.fromkeys(files.get(number, ()))),
                stats=read_stats(stats),
                incomplete=bool(incomplete),
                software=software,
                imported=bool(imported),
                concurrent=bool(concurrent),
                waiting=waiting.get(number, 0),
            )
            for (
                number,
                crawl,
                state,
                started,
                committed,
                stats,
                incomplete,
                software,
                imported,
                concurrent,
                *counts,
            ) in rows
        ]

    def totals(self) -> Counts:
        """The sums over the committed crawls."""
        with sqlite_faults(self._url):
            row = self._connection.execute(
                "SELECT total(total_urls), total(dupe_urls), total(conserved_size), total(total_crawl_size)"
                " FROM crawl WHERE state = 'committed'"
            ).fetchone()
        return Counts(*(int(number) for number in row))

    def containers(self, crawl: str) -> list[dict[str, object]]:
        """The WACZ files of a crawl."""
        with sqlite_faults(self._url):
            return crawl_files.containers_of(self._connection, self._number(crawl))

    def needs(self, crawl: str) -> list[Need]:
        """The containers of other crawls that the crawl's revisits refer to."""
        with sqlite_faults(self._url):
            return crawl_files.needs_of(self._connection, self._number(crawl))

    def records(self, crawl: str) -> Iterator[Original]:
        """The originals of a crawl, in batches and in no particular order; without hidden ones."""
        with sqlite_faults(self._url):
            number = self._number(crawl)
            rows = self._connection.execute(
                "SELECT number FROM crawl WHERE number = ?1 OR (part_of = ?1 AND state = 'committed')"
                " ORDER BY number",
                (number,),
            ).fetchall()
        may_repeat = False
        for (part,) in rows:
            is_empty = True
            for original in self._records(crawl, number, part, may_repeat=may_repeat):
                is_empty = False
                yield original
            may_repeat |= not is_empty

    def _records(self, crawl: str, number: int | None, part: int, *, may_repeat: bool) -> Iterator[Original]:
        query = f"{_RECORDS}{_NOT_TWICE if may_repeat else ''} ORDER BY o.id LIMIT {_READ_AT_ONCE}"
        following, last = part << SHIFT, ((part + 1) << SHIFT) - 1
        while True:
            parameters = {"following": following, "last": last, "crawl": crawl, "number": number}
            with sqlite_faults(self._url):
                rows = self._connection.execute(query, parameters).fetchall()
            if not rows:
                return
            following = rows[-1][0] + 1
            for _, packed, *row in rows:
                digest = _read_digest(packed)
                if digest is None or not isinstance(row[-1], int | None):
                    self.unreadable += 1
                    continue
                original = self._original(digest, row)
                if original is not None:
                    yield original


def _read_digest(packed: object) -> str | None:
    """A digest from its packed form; None for an invalid value."""
    try:
        return unpacked_digest(packed) if isinstance(packed, bytes) else None
    except UnicodeDecodeError:
        return None
