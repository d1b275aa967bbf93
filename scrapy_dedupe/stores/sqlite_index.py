"""The crawl index in SQLite. Its tables are described in :mod:`.sqlite_index_tables`.

A crawl is changed in one transaction a call.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from . import sqlite_crawl_files as crawl_files
from .base import Counts, CrawlInfo, Need, Original, UrlCapture
from .faults import sqlite_faults
from .index_values import (
    is_date,
    packed_capture,
    packed_digest,
    packed_record_id,
    read_capture,
    read_stats,
    software,
    state_message,
    stats_json,
    unknown_file_message,
    unpacked_record_id,
    url_hash,
    utc_now,
)
from .sqlite_index_tables import LATER_SCHEMA, SCHEMA

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SCHEMA", "SqliteIndex"]

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

_FIND_URL = """
SELECT u.crawl, u.capture FROM crawl_url u JOIN crawl c ON c.number = u.crawl
WHERE u.hash = ?1 AND (c.number = ?2 OR c.commit_order IS NOT NULL)
"""

_ADD_URL = """
INSERT INTO crawl_url (hash, crawl, capture) VALUES (?, ?, ?)
ON CONFLICT (hash, crawl) DO UPDATE SET capture = excluded.capture
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
        self._add_later_tables()

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

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """Look up URLs: in the crawl itself first, else the latest capture of the committed crawls."""
        with sqlite_faults(self._url):
            number = self._number(crawl)
            return [self._find_url(number, url) for url in urls]

    def add(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
    ) -> None:
        """Enter records that are on disk, URLs and needs, and add ``counts``, in one transaction."""
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
                    files[name] = crawl_files.file_number(self._connection, number, name)
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
            self._connection.executemany(
                _ADD_URL, [(url_hash(capture.url), number, packed_capture(capture)) for capture in urls]
            )
            crawl_files.add_needs(self._connection, number, needs)
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
            crawl_files.file_number(self._connection, number, name)

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Note that a WARC file of the crawl is found under another name."""
        with self._transaction():
            state = self._state(crawl)
            if state not in ("uncommitted", "committed"):
                raise CrawlStateError(state_message(crawl, state, "changed", self._url))
            number = self._number(crawl)
            if number is None or not crawl_files.rename_file(self._connection, number, old, new):
                raise CrawlStateError(unknown_file_message(crawl, old, self._url))

    def add_container(self, crawl: str, filename: str) -> int:
        """Give the crawl a container that is not packed yet; its place among the crawl's."""
        with self._change(crawl, "added to") as number:
            return crawl_files.container_number(self._connection, number, filename)

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Note the hash and the size in bytes of a packed container."""
        with self._change(crawl, "added to", allow_committed=True) as number:
            known = crawl_files.containers_of(self._connection, number)
            packed = {"filename": filename, "hash": sha256_hex, "size": size}
            is_free = not known or {"filename": filename} in known or packed in known
            if not is_free and self._state(crawl) == "committed":
                raise CrawlStateError(state_message(crawl, "committed", "added to", self._url))
            place = crawl_files.container_number(self._connection, number, filename)
            self._connection.execute(
                "UPDATE crawl_container SET hash = ?, size = ? WHERE crawl = ? AND number = ?",
                (sha256_hex, size, number, place),
            )

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
        """Forget all of an uncommitted crawl but its files and containers."""
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
            self._connection.execute("DELETE FROM crawl_container WHERE crawl = ?", (number,))
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
                files=tuple(dict.fromkeys(files.get(number, ()))),
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
        """The WACZ files of a crawl."""
        with sqlite_faults(self._url):
            return crawl_files.containers_of(self._connection, self._number(crawl))

    def needs(self, crawl: str) -> list[Need]:
        """What the revisits of the crawl refer to in other crawls."""
        with sqlite_faults(self._url):
            return crawl_files.needs_of(self._connection, self._number(crawl))

    # Helpers

    def _add_later_tables(self) -> None:
        statements = [text for text in LATER_SCHEMA.split(";") if text.strip()]
        with sqlite_faults(self._url):
            found = self._connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
                " AND name IN ('crawl_container', 'crawl_url', 'crawl_need')"
            ).fetchone()[0]
        if found < len(statements):
            with self._transaction():
                for statement in statements:
                    self._connection.execute(statement)

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
    def _change(self, crawl: str, action: str, *, allow_committed: bool = False) -> Iterator[int]:
        """A transaction on an uncommitted crawl; gives its number."""
        with self._transaction():
            state = self._state(crawl)
            if state != "uncommitted" and not (allow_committed and state == "committed"):
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

    def _forget_records(self, number: int) -> None:
        self._connection.execute(
            "DELETE FROM original WHERE id BETWEEN ? AND ?", (number << _SHIFT, ((number + 1) << _SHIFT) - 1)
        )
        self._connection.execute("DELETE FROM crawl_url WHERE crawl = ?", (number,))
        self._connection.execute("DELETE FROM crawl_need WHERE crawl = ?", (number,))
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

    def _find_url(self, own: int | None, url: str) -> UrlCapture | None:
        rows = self._connection.execute(_FIND_URL, (url_hash(url), own)).fetchall()
        if not rows:
            return None
        value = max(rows, key=lambda row: (row[0] == own, row[1]))[1]
        capture = read_capture(url, value)
        self.unreadable += capture is None
        return capture

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
