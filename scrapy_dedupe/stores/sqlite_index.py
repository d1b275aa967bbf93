"""The crawl index in SQLite.

The same model as Browsertrix's keys (see :mod:`.redis_index`), in four tables:

``crawl``
    One row a crawl. ``state`` is ``uncommitted``, ``committed`` or ``canceled``; ``commit_order`` counts the
    commits, so that the crawl that was committed first owns a payload that several have.
``crawl_file``
    The WARC files of a crawl, numbered from 0.
``original``
    One row a record. Its ``id`` is the crawl's number x 2^32 + a running number: the records of a crawl lie
    together and can be counted or forgotten without an index of their own. ``digest`` and ``record`` are
    packed as :mod:`.index_values` says, ``date`` holds the 14 or 17 digits as a number.
``index_mark``
    ``payload``: how the crawls hash, ``stored`` or ``decoded``.

Only 8 bytes of each digest are indexed; the whole digest is compared in the row. A commit changes one row,
so it is atomic at any size.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from .base import Counts, CrawlInfo, Original
from .faults import sqlite_faults
from .index_values import (
    is_date,
    packed_digest,
    packed_record_id,
    read_stats,
    software,
    state_message,
    stats_json,
    unpacked_record_id,
    utc_now,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

SCHEMA = """
CREATE TABLE IF NOT EXISTS index_mark (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS crawl (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    started TEXT NOT NULL,
    committed TEXT,
    commit_order INTEGER,
    incomplete INTEGER NOT NULL DEFAULT 0,
    software TEXT NOT NULL,
    stats TEXT,
    total_urls INTEGER NOT NULL DEFAULT 0,
    dupe_urls INTEGER NOT NULL DEFAULT 0,
    conserved_size INTEGER NOT NULL DEFAULT 0,
    total_crawl_size INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS crawl_file (
    crawl INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS original (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    wacz_index INTEGER NOT NULL,
    date INTEGER NOT NULL,
    url TEXT NOT NULL,
    size INTEGER NOT NULL,
    record BLOB,
    file INTEGER,
    "offset" INTEGER
);
CREATE INDEX IF NOT EXISTS original_digest ON original (substr(digest, 1, 8));
"""

_SHIFT = 32

_FIND = """
SELECT c.number, c.commit_order, c.id, o.wacz_index, o.date, o.url, o.size, o.record, f.name, o."offset"
FROM original o JOIN crawl c ON c.number = o.id >> 32
LEFT JOIN crawl_file f ON f.crawl = c.number AND f.number = o.file
WHERE substr(o.digest, 1, 8) = substr(?1, 1, 8) AND o.digest = ?1
AND (c.number = ?2 OR c.commit_order IS NOT NULL)
"""

_ADD = """
INSERT INTO original (id, digest, wacz_index, date, url, size, record, file, "offset")
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE NOT EXISTS (
    SELECT 1 FROM original
    WHERE substr(digest, 1, 8) = substr(?2, 1, 8) AND digest = ?2 AND id BETWEEN ?10 AND ?11
)
"""

_COUNTS = "total_urls, dupe_urls, conserved_size, total_crawl_size"


class SqliteIndex:
    """An :class:`~.base.IndexStore` on an autocommit connection, used by one thread at a time.

    ``unreadable`` counts the stored values that were passed over because they do not parse.
    """

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._url = url
        self._numbers: dict[str, int] = {}
        self.unreadable = 0

    # Life of a crawl

    def start(self, crawl: str, payload: str) -> None:
        """Begin a crawl, or go on with one that is not committed."""
        with self._transaction():
            mode = self._payload()
            if mode is None:
                self._connection.execute("INSERT INTO index_mark VALUES ('payload', ?)", (payload,))
            elif mode != payload:
                raise StoreRefused(
                    f"The index {self._url} holds digests of {mode} payloads, this crawl makes those of"
                    f' {payload} ones. Set DEDUPE_PAYLOAD = "{mode}", or use another index (DEDUPE_INDEX_URL).'
                )
            state = self._state(crawl)
            if state == "committed":
                raise CrawlStateError(state_message(crawl, state, "crawled again", self._url))
            if state == "unknown":
                self._connection.execute(
                    "INSERT INTO crawl (id, state, started, software) VALUES (?, 'uncommitted', ?, ?)",
                    (crawl, utc_now(), software()),
                )
            elif state == "canceled":
                self._connection.execute(
                    "UPDATE crawl SET state = 'uncommitted', started = ?, software = ? WHERE id = ?",
                    (utc_now(), software(), crawl),
                )

    def find(self, crawl: str, digests: Sequence[str]) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed crawls."""
        with sqlite_faults(self._url):
            number = self._number(crawl)
            return [self._find(number, digest) for digest in digests]

    def add(self, crawl: str, originals: Sequence[Original], counts: Counts) -> None:
        """Enter records that are on disk and add ``counts``, in one transaction."""
        with self._change(crawl, "added to") as number:
            first, last = number << _SHIFT, ((number + 1) << _SHIFT) - 1
            row = self._connection.execute(
                "SELECT max(id) FROM original WHERE id BETWEEN ? AND ?", (first, last)
            ).fetchone()
            following = first if row[0] is None else row[0] + 1
            files: dict[str, int] = {}
            for original in originals:
                name = original.file
                if name is not None and name not in files:
                    files[name] = self._file_number(number, name)
                cursor = self._connection.execute(
                    _ADD,
                    (
                        following,
                        packed_digest(original.digest),
                        original.wacz_index,
                        int(original.date),
                        original.url,
                        original.size,
                        None if original.record_id is None else packed_record_id(original.record_id),
                        None if name is None else files[name],
                        original.offset,
                        first,
                        last,
                    ),
                )
                following += cursor.rowcount
            if counts != Counts():
                self._connection.execute(
                    "UPDATE crawl SET total_urls = total_urls + ?, dupe_urls = dupe_urls + ?,"
                    " conserved_size = conserved_size + ?, total_crawl_size = total_crawl_size + ?"
                    " WHERE number = ?",
                    (*_numbers(counts), number),
                )

    def add_file(self, crawl: str, name: str) -> None:
        """Note a WARC file of the crawl."""
        with self._change(crawl, "added to") as number:
            self._file_number(number, name)

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl."""
        with self._change(crawl, "counted anew") as number:
            self._connection.execute(
                f"UPDATE crawl SET ({_COUNTS}) = (?, ?, ?, ?) WHERE number = ?",  # noqa: S608 - a constant
                (*_numbers(counts), number),
            )

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Note whether records of the crawl are on disk that are not entered yet."""
        with self._change(crawl, "marked") as number:
            self._connection.execute("UPDATE crawl SET incomplete = ? WHERE number = ?", (int(flag), number))

    def reset(self, crawl: str) -> None:
        """Forget the records and counts of an uncommitted crawl; its files stay known."""
        with self._change(crawl, "reset") as number:
            self._forget_records(number)

    def commit(self, crawl: str, stats: Mapping[str, object] | None = None) -> None:
        """Make the crawl's records visible to other crawls."""
        text = stats_json(stats)
        with self._transaction():
            state = self._state(crawl)
            if state == "committed":
                return
            if state != "uncommitted":
                raise CrawlStateError(state_message(crawl, state, "committed", self._url))
            self._connection.execute(
                "UPDATE crawl SET state = 'committed', committed = ?, stats = coalesce(?, stats),"
                " commit_order = (SELECT coalesce(max(commit_order), 0) + 1 FROM crawl) WHERE id = ?",
                (utc_now(), text, crawl),
            )

    def cancel(self, crawl: str) -> None:
        """Forget an uncommitted crawl."""
        with self._transaction():
            state = self._state(crawl)
            if state == "canceled":
                return
            if state != "uncommitted":
                raise CrawlStateError(state_message(crawl, state, "canceled", self._url))
            number = self._number(crawl)
            assert number is not None
            self._forget_records(number)
            self._connection.execute("DELETE FROM crawl_file WHERE crawl = ?", (number,))
            self._connection.execute(
                "UPDATE crawl SET state = 'canceled', incomplete = 0, stats = NULL WHERE number = ?",
                (number,),
            )

    # What the index knows

    def crawls(self) -> list[CrawlInfo]:
        """Every crawl, in the order of their start."""
        with sqlite_faults(self._url):
            files: dict[int, list[str]] = {}
            for number, name in self._connection.execute(
                "SELECT crawl, name FROM crawl_file ORDER BY crawl, number"
            ):
                files.setdefault(number, []).append(name)
            payload = self._payload() or "stored"
            rows = self._connection.execute(
                f"SELECT number, id, state, started, committed, stats, incomplete, {_COUNTS}"  # noqa: S608
                " FROM crawl ORDER BY started, id"
            ).fetchall()
        return [
            CrawlInfo(
                id=crawl,
                state=state,
                payload=payload,
                started=started,
                committed=committed,
                counts=Counts(*counts),
                files=tuple(files.get(number, ())),
                stats=read_stats(stats),
                incomplete=bool(incomplete),
            )
            for number, crawl, state, started, committed, stats, incomplete, *counts in rows
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
        """The WACZ files of a crawl: none, since a crawl that is indexed here has plain WARC files."""
        return []

    # Helpers

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with sqlite_faults(self._url):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _change(self, crawl: str, action: str) -> Iterator[int]:
        """A transaction on an uncommitted crawl; gives its number."""
        with self._transaction():
            state = self._state(crawl)
            if state != "uncommitted":
                raise CrawlStateError(state_message(crawl, state, action, self._url))
            number = self._number(crawl)
            assert number is not None
            yield number

    def _state(self, crawl: str) -> str:
        row = self._connection.execute("SELECT state FROM crawl WHERE id = ?", (crawl,)).fetchone()
        return "unknown" if row is None else str(row[0])

    def _number(self, crawl: str) -> int | None:
        # The row of a crawl is never deleted, so its number can be kept.
        number = self._numbers.get(crawl)
        if number is None:
            row = self._connection.execute("SELECT number FROM crawl WHERE id = ?", (crawl,)).fetchone()
            if row is None or self._connection.in_transaction:
                # A number of this transaction may be rolled back and given to another crawl.
                return None if row is None else int(row[0])
            number = self._numbers[crawl] = int(row[0])
        return number

    def _payload(self) -> str | None:
        row = self._connection.execute("SELECT value FROM index_mark WHERE name = 'payload'").fetchone()
        return None if row is None else str(row[0])

    def _file_number(self, crawl_number: int, name: str) -> int:
        row = self._connection.execute(
            "SELECT number FROM crawl_file WHERE crawl = ? AND name = ?", (crawl_number, name)
        ).fetchone()
        if row is not None:
            return int(row[0])
        number = self._connection.execute(
            "SELECT count(*) FROM crawl_file WHERE crawl = ?", (crawl_number,)
        ).fetchone()[0]
        self._connection.execute("INSERT INTO crawl_file VALUES (?, ?, ?)", (crawl_number, number, name))
        return int(number)

    def _forget_records(self, number: int) -> None:
        self._connection.execute(
            "DELETE FROM original WHERE id BETWEEN ? AND ?", (number << _SHIFT, ((number + 1) << _SHIFT) - 1)
        )
        self._connection.execute(
            f"UPDATE crawl SET ({_COUNTS}) = (0, 0, 0, 0) WHERE number = ?",  # noqa: S608 - a constant
            (number,),
        )

    def _find(self, own: int | None, digest: str) -> Original | None:
        rows = self._connection.execute(_FIND, (packed_digest(digest), own)).fetchall()
        if not rows:
            return None
        # Rarely more than one: sorting here costs nothing, a sorter in the query did.
        return self._original(digest, min(rows, key=lambda row: (row[0] != own, row[1]))[2:])

    def _original(self, digest: str, row: tuple[Any, ...]) -> Original | None:
        crawl, wacz_index, date, url, size, record, file, offset = row
        digits = str(date)
        if not (
            is_date(digits.encode("ascii", "replace"))
            and isinstance(url, str)
            and url
            and isinstance(size, int)
            and isinstance(wacz_index, int)
        ):
            self.unreadable += 1
            return None
        record_id = unpacked_record_id(record) if isinstance(record, bytes) else None
        return Original(digest, crawl, digits, url, size, wacz_index, record_id, file, offset)


def _numbers(counts: Counts) -> tuple[int, int, int, int]:
    return counts.total_urls, counts.dupe_urls, counts.conserved_size, counts.total_crawl_size
