"""The crawl index in SQLite. Its tables are described in :mod:`.sqlite_index_tables`.

Each call that changes a crawl is one transaction. Forgotten data is hidden in one transaction and deleted in many
small ones afterwards, so that other processes need not wait long.
"""

from __future__ import annotations

from dataclasses import astuple
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from .base import Counts, CrawlInfo, Need, Original
from .index_values import (
    capture_file_number,
    container_fields,
    digest_start,
    need_order,
    packed_digest,
    payload_mode_message,
    read_capture,
    read_stats,
    state_message,
    stats_json,
    unknown_file_message,
    unpacked_digest,
    url_hash,
    utc_now,
)
from .sqlite_file import sqlite_faults, transaction
from .sqlite_index_base import COUNTS, NEXT_ORDER, id_range, referenced_record
from .sqlite_index_imports import SqliteImports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .base import OnDone, UrlCapture
    from .crawl_index import Addition

# Hidden rows have ids that no crawl has, so the id identifies the crawl's own rows.
_FIND = """
SELECT coalesce(m.id, c.id), o.wacz_index, o.date, o.url, o.size, o.record, f.name, o."offset",
c.commit_order, o.id
FROM original o JOIN crawl c ON c.number = o.id >> 32
LEFT JOIN crawl m ON m.number = c.part_of
LEFT JOIN crawl_file f ON f.crawl = c.number AND f.number = o.file
WHERE substr(o.digest, 1, 8) = substr(?1, 1, 8) AND o.digest = ?1
AND (c.commit_order IS NOT NULL OR coalesce(m.id, c.id) = ?2)
"""

_FIND_URL = """
SELECT coalesce(m.id, c.id), u.capture, u.crawl FROM crawl_url u JOIN crawl c ON c.number = u.crawl
LEFT JOIN crawl m ON m.number = c.part_of
WHERE u.hash = ?1 AND (c.state = 'committed' OR coalesce(m.id, c.id) = ?2)
"""

# The file of a capture and, if its digest is a reference, the digest.
_FIND_DETAILS = """
SELECT (SELECT name FROM crawl_file WHERE crawl = ?1 AND number = ?2), (SELECT digest FROM original WHERE id = ?3)
"""

_READ_AT_ONCE = 1_000

# A file of a crawl or of one of its parts.
_HAS_FILE = """
SELECT 1 FROM crawl_file WHERE crawl IN (SELECT number FROM crawl WHERE number = ?1 OR part_of = ?1) AND name = ?2
"""
_RENAME = _HAS_FILE.replace("SELECT 1 FROM crawl_file", "UPDATE crawl_file SET name = ?3", 1)

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


class SqliteIndex(SqliteImports):
    """The crawl index on an autocommit connection."""

    # A transaction writes each page once that it has changed: the more rows of two random orders, the fewer writes of a
    # page. It lasts about 100 ms.
    added_at_once = 8_000

    # Crawls

    def _start(self, crawl: str, payload: str, *, concurrent: bool) -> None:
        with self._transaction():
            mode = self._other_payload(payload)
            if mode is not None:
                raise StoreRefused(payload_mode_message(payload, mode, self._url))
            _, state, _ = self._row(crawl)
            if state in ("committed", "importing"):
                raise CrawlStateError(state_message(crawl, state, "crawled again", self._url))
            if state != "uncommitted":
                self._begin(crawl, concurrent=concurrent)

    def find_plain(self, crawl: str, digests: Sequence[str], *, lasting: bool) -> list[Original | None]:
        # ``lasting`` has no effect: only Browsertrix marks crawls, and it does not use SQLite.
        with self._looking_up(len(digests)):
            return [self._original_of(crawl, digest) for digest in digests]

    def _find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        with self._looking_up(len(urls)):
            return [self._capture_of(crawl, url) for url in urls]

    def add_plain(self, crawl: str, added: Addition) -> None:
        with self._change(crawl, "added to") as number:
            self._add_records(number, number, added.originals, added.urls)
            self._add_needs(number, added.needs)
            self._add_waiting(number, added.waiting)
            self._add_counts(number, added.counts)

    def _add_file(self, crawl: str, name: str) -> None:
        with self._change(crawl, "added to") as number:
            self._file_number(number, name)

    def _rename_file(self, crawl: str, old: str, new: str) -> None:
        with self._transaction():
            number, state, _ = self._row(crawl)
            if state not in ("uncommitted", "importing", "committed"):
                raise CrawlStateError(state_message(crawl, state, "changed", self._url))
            # A repeated call finds the file under its new name.
            renamed = self._connection.execute(_RENAME, (number, old, new)).rowcount
            if not renamed and not self._value(_HAS_FILE, number, new):
                raise CrawlStateError(unknown_file_message(crawl, old, self._url))
            self._connection.execute(
                "UPDATE OR REPLACE crawl_need SET file = ? WHERE other = ? AND file = ?", (new, crawl, old)
            )

    def _add_container(self, crawl: str, filename: str) -> int:
        with self._change(crawl, "added to") as number:
            return self._container_number(number, filename)

    def _set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        with self._change(crawl, "added to", allow_committed=True) as number:
            known = self.containers(crawl)
            packed = {"filename": filename, "hash": sha256_hex, "size": size}
            is_free = not known or {"filename": filename} in known or packed in known
            if not is_free and self._row(crawl)[1] == "committed":
                raise CrawlStateError(state_message(crawl, "committed", "added to", self._url))
            self._fill_container(number, filename, sha256_hex, size)

    def set_counts(self, crawl: str, counts: Counts) -> None:
        with self._change(crawl, "recounted") as number:
            self._connection.execute(
                f"UPDATE crawl SET ({COUNTS}) = (?, ?, ?, ?) WHERE number = ?",  # noqa: S608 - a constant
                (*astuple(counts), number),
            )

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        with self._change(crawl, "marked") as number:
            self._connection.execute("UPDATE crawl SET incomplete = ? WHERE number = ?", (int(flag), number))

    def reset(self, crawl: str) -> None:
        with self._change(crawl, "reset") as old:
            new = self._renew(old)
            for table in ("crawl_file", "crawl_container"):
                self._connection.execute(f"UPDATE {table} SET crawl = ? WHERE crawl = ?", (new, old))  # noqa: S608
        self._clear([old])

    def _commit(self, crawl: str, stats: Mapping[str, object] | None, on_done: OnDone | None) -> None:
        text = stats_json(stats)
        with self._transaction():
            number, state, _ = self._row(crawl)
            if state == "committed":
                return
            if state != "uncommitted":
                raise CrawlStateError(state_message(crawl, state, "committed", self._url))
            self._connection.execute(
                "UPDATE crawl SET state = 'committed', committed = ?, stats = coalesce(?, stats),"  # noqa: S608
                f" commit_order = coalesce(commit_order, {NEXT_ORDER}) WHERE number = ?",
                (utc_now(), text, number),
            )

    def _cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        with self._transaction():
            number, state, _ = self._row(crawl)
            if state not in ("uncommitted", "importing", "canceled"):
                raise CrawlStateError(state_message(crawl, state, "canceled", self._url))
            if state != "canceled":
                new = self._renew(number)
                self._connection.execute(
                    "UPDATE crawl SET state = 'canceled', incomplete = 0, stats = NULL, commit_order = NULL,"
                    " imported = 0, concurrent = 0 WHERE number = ?",
                    (new,),
                )
                self._forget_payload()
            self._connection.execute("DELETE FROM report WHERE crawl = ?", (crawl,))
        self._clear(on_done=on_done)

    # Queries

    def crawls(self) -> list[CrawlInfo]:
        with sqlite_faults(self._url):
            files: dict[int, list[str]] = {}
            for number, name in self._connection.execute(_FILES):
                files.setdefault(number, []).append(name)
            waiting: dict[int, int] = dict(self._connection.execute(_WAITING).fetchall())
            payload = self._mark("payload") or "stored"
            rows = self._connection.execute(
                "SELECT number, id, state, started, committed, stats, software, incomplete, imported,"  # noqa: S608
                f" concurrent, {COUNTS} FROM crawl WHERE part_of IS NULL"
                " AND state IN ('uncommitted', 'committed', 'canceled') ORDER BY started, id"
            ).fetchall()
            self.unreadable += self._value(_UNKNOWN_STATES)
        crawls = []
        for number, crawl, state, started, committed, stats, software, *numbers in rows:
            incomplete, imported, concurrent = map(bool, numbers[:3])
            crawls.append(
                CrawlInfo(
                    id=crawl,
                    state=state,
                    payload=payload,
                    started=started,
                    committed=committed,
                    counts=Counts(*numbers[3:]),
                    files=tuple(dict.fromkeys(files.get(number, ()))),
                    stats=read_stats(stats),
                    incomplete=incomplete,
                    software=software,
                    imported=imported,
                    concurrent=concurrent,
                    waiting=waiting.get(number, 0),
                )
            )
        return crawls

    @property
    def counts(self) -> Counts:
        (row,) = self._read(
            "SELECT total(total_urls), total(dupe_urls), total(conserved_size), total(total_crawl_size)"
            " FROM crawl WHERE state = 'committed'"
        )
        return Counts(*(int(number) for number in row))

    def containers(self, crawl: str) -> list[dict[str, object]]:
        rows = self._read(
            "SELECT filename, hash, size FROM crawl_container JOIN crawl c ON c.number = crawl WHERE c.id = ?"
            " ORDER BY crawl_container.number",
            (crawl,),
        )
        return [container_fields(*row) for row in rows]

    def needs(self, crawl: str) -> list[Need]:
        query = "SELECT other, wacz_index, file FROM crawl_need JOIN crawl ON number = crawl WHERE id = ?"
        rows = self._read(query, (crawl,))
        needs = (Need(other, wacz_index, file or None) for other, wacz_index, file in rows)
        return sorted(needs, key=need_order)

    def records(self, crawl: str) -> Iterator[Original]:
        with sqlite_faults(self._url):
            number, _, _ = self._row(crawl)
        parts = self._read(
            "SELECT number FROM crawl WHERE number = ?1 OR (part_of = ?1 AND state = 'committed') ORDER BY number",
            (number,),
        )
        may_repeat = False
        for (part,) in parts:
            query = f"{_RECORDS}{_NOT_TWICE if may_repeat else ''} ORDER BY o.id LIMIT {_READ_AT_ONCE}"
            following, last = id_range(part)
            parameters = {"following": following, "last": last, "crawl": crawl, "number": number}
            while rows := self._read(query, parameters):
                may_repeat = True
                parameters["following"] = rows[-1][0] + 1
                for _, packed, *row in rows:
                    digest = _read_digest(packed)
                    if digest is None or not isinstance(row[-1], int | None):
                        self.unreadable += 1
                    elif (original := self._original(digest, row)) is not None:
                        yield original

    # Helpers

    def _looking_up(self, count: int) -> AbstractContextManager[None]:
        """The context of *count* look-ups: one transaction, since each transaction locks the file."""
        return transaction(self._connection, self._url, "BEGIN") if count > 1 else sqlite_faults(self._url)

    def _original_of(self, own: str, digest: str) -> Original | None:
        rows = self._connection.execute(_FIND, (packed_digest(digest), own)).fetchall()
        if not rows:
            return None
        # There is rarely more than one row, so sorting here costs nothing; ORDER BY made the query slower.
        row = rows[0] if len(rows) == 1 else min(rows, key=lambda row: _owner_order(row, own))
        return self._original(digest, row[:8])

    def _capture_of(self, own: str, url: str) -> UrlCapture | None:
        rows = self._connection.execute(_FIND_URL, (url_hash(url), own)).fetchall()
        if not rows:
            return None
        # Captures of the same time are compared by their digests, which may have been replaced by references.
        order = [(owner == own, value[:8]) for owner, value, _ in rows]
        latest = max(order)
        wholes = [
            (*self._whole_capture(number, value), number)
            for key, (_, value, number) in zip(order, rows, strict=True)
            if key == latest
        ]
        value, file, _ = max(wholes, key=itemgetter(0, 2))
        capture = read_capture(url, value, file)
        self.unreadable += capture is None
        return capture

    def _whole_capture(self, number: int, value: bytes) -> tuple[bytes, str | None]:
        """A packed capture with its digest, and the name of its file.

        Without the digest if the record that holds it is missing.
        """
        record = referenced_record(number, value)
        parameters = (number, capture_file_number(value), record)
        ((file, digest),) = self._connection.execute(_FIND_DETAILS, parameters)
        return value if record is None else value[: digest_start(value)] + (digest or b""), file


def _owner_order(row: tuple[Any, ...], own: str) -> tuple[bool, bool, int, int]:
    owner, commit_order, number = row[0], *row[8:]
    # A record of another source of this crawl may still be dropped.
    return owner != own, commit_order is None, 0 if owner == own else commit_order, number


def _read_digest(packed: object) -> str | None:
    """A digest from its packed form; None for an invalid value."""
    try:
        return unpacked_digest(packed) if isinstance(packed, bytes) else None
    except UnicodeDecodeError:
        return None
