"""The crawl index in SQLite. Its tables are described in :mod:`.sqlite_index_tables`.

Each call that changes a crawl is one transaction. Forgotten data is hidden in one transaction and deleted in many
small ones afterwards, so that other processes need not wait long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import CrawlStateError, StoreRefused

from . import sqlite_crawl_files as crawl_files
from .index_values import (
    packed_digest,
    read_capture,
    state_message,
    stats_json,
    unknown_file_message,
    url_hash,
    utc_now,
)
from .sqlite_faults import sqlite_faults
from .sqlite_index_base import COUNTS, NEXT_ORDER
from .sqlite_index_imports import SqliteImports
from .sqlite_index_removal import SqliteRemoval
from .sqlite_index_survey import SqliteSurvey
from .sqlite_index_tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .base import Counts, Need, Original, UrlCapture, Waiting
    from .index_model import OnDone

__all__ = ["SCHEMA", "SqliteIndex"]

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


class SqliteIndex(SqliteImports, SqliteRemoval, SqliteSurvey):
    """An :class:`~.base.IndexStore` on an autocommit connection, used by one thread at a time.

    ``unreadable`` counts the stored values that were skipped because they cannot be parsed.
    """

    # Crawls

    def start(self, crawl: str, payload: str, *, concurrent: bool = False) -> None:
        """Begin a crawl, or continue one that is not committed."""
        with self._transaction():
            mode = self._other_payload(payload)
            if mode is not None:
                raise StoreRefused(
                    f"The index {self._url} holds digests of {mode} payloads; this crawl computes digests of {payload} payloads."
                    f' Set DEDUPE_PAYLOAD = "{mode}", or use another index (DEDUPE_INDEX_URL).'
                )
            _, state, imported = self._row(crawl)
            if state == "uncommitted" and imported:
                state = "importing"
            if state in ("committed", "importing"):
                raise CrawlStateError(state_message(crawl, state, "crawled again", self._url))
            if state != "uncommitted":
                self._begin(crawl, concurrent=concurrent)

    def find(self, crawl: str, digests: Sequence[str], *, lasting: bool = False) -> list[Original | None]:
        """Look up payloads: in the crawl itself first, then in committed and concurrent crawls.

        ``lasting`` has no effect: only Browsertrix marks crawls, and it does not use SQLite.
        """
        with sqlite_faults(self._url):
            return [self._find(crawl, digest) for digest in digests]

    def find_urls(self, crawl: str, urls: Sequence[str]) -> list[UrlCapture | None]:
        """Look up URLs: in the crawl itself first, then the latest capture of the committed crawls."""
        with sqlite_faults(self._url):
            return [self._find_url(crawl, url) for url in urls]

    def add(
        self,
        crawl: str,
        originals: Sequence[Original],
        counts: Counts,
        urls: Sequence[UrlCapture] = (),
        needs: Sequence[Need] = (),
        waiting: Sequence[Waiting] = (),
    ) -> None:
        """Add records that are on disk, URLs, needs and waiting revisits, and add ``counts``, in one transaction."""
        with self._change(crawl, "added to") as number:
            entered = crawl_files.add_originals(self._connection, number, number, originals)
            crawl_files.add_urls(self._connection, number, urls, entered)
            crawl_files.add_needs(self._connection, number, needs)
            crawl_files.add_waiting(self._connection, number, waiting)
            crawl_files.add_counts(self._connection, number, counts)

    def add_file(self, crawl: str, name: str) -> None:
        """Record a WARC file of the crawl."""
        with self._change(crawl, "added to") as number:
            crawl_files.file_number(self._connection, number, name)

    def rename_file(self, crawl: str, old: str, new: str) -> None:
        """Record that a WARC file of the crawl has another name now."""
        with self._transaction():
            number, state, _ = self._row(crawl)
            if state not in ("uncommitted", "committed"):
                raise CrawlStateError(state_message(crawl, state, "changed", self._url))
            if not crawl_files.rename_file(self._connection, crawl, self._numbers(number), old, new):
                raise CrawlStateError(unknown_file_message(crawl, old, self._url))

    def add_container(self, crawl: str, filename: str) -> int:
        """Add a container that is not packed yet. Return its position among those of the crawl."""
        with self._change(crawl, "added to") as number:
            return crawl_files.container_number(self._connection, number, filename)

    def set_container(self, crawl: str, filename: str, sha256_hex: str, size: int) -> None:
        """Record the hash and the size in bytes of a packed container."""
        with self._change(crawl, "added to", allow_committed=True) as number:
            known = crawl_files.containers_of(self._connection, number)
            packed = {"filename": filename, "hash": sha256_hex, "size": size}
            is_free = not known or {"filename": filename} in known or packed in known
            if not is_free and self._row(crawl)[1] == "committed":
                raise CrawlStateError(state_message(crawl, "committed", "added to", self._url))
            crawl_files.set_container(self._connection, number, filename, sha256_hex, size)

    def set_counts(self, crawl: str, counts: Counts) -> None:
        """Replace the counts of a crawl."""
        with self._change(crawl, "counted anew") as number:
            self._connection.execute(
                f"UPDATE crawl SET ({COUNTS}) = (?, ?, ?, ?) WHERE number = ?",  # noqa: S608 - a constant
                (*crawl_files.numbers_of(counts), number),
            )

    def mark_incomplete(self, crawl: str, flag: bool) -> None:
        """Record whether some records of the crawl are on disk and not yet in the index."""
        with self._change(crawl, "marked") as number:
            self._connection.execute("UPDATE crawl SET incomplete = ? WHERE number = ?", (int(flag), number))

    def reset(self, crawl: str) -> None:
        """Forget an uncommitted crawl except its files and containers."""
        with self._change(crawl, "reset") as old:
            new = self._renew(old)
            for table in ("crawl_file", "crawl_container"):
                self._connection.execute(f"UPDATE {table} SET crawl = ? WHERE crawl = ?", (new, old))  # noqa: S608
        self._clear([old])

    def commit(
        self, crawl: str, stats: Mapping[str, object] | None = None, on_done: OnDone | None = None
    ) -> None:
        """Make the crawl's records visible to other crawls."""
        text = stats_json(stats)
        with self._transaction():
            number, state, imported = self._row(crawl)
            if state == "committed":
                return
            if state == "uncommitted" and imported:
                state = "importing"
            if state != "uncommitted":
                raise CrawlStateError(state_message(crawl, state, "committed", self._url))
            self._connection.execute(
                "UPDATE crawl SET state = 'committed', committed = ?, stats = coalesce(?, stats),"  # noqa: S608
                f" commit_order = coalesce(commit_order, {NEXT_ORDER}) WHERE number = ?",
                (utc_now(), text, number),
            )

    def cancel(self, crawl: str, on_done: OnDone | None = None) -> None:
        """Forget an uncommitted crawl."""
        with self._transaction():
            number, state, _ = self._row(crawl)
            if state not in ("uncommitted", "canceled"):
                raise CrawlStateError(state_message(crawl, state, "canceled", self._url))
            if state == "uncommitted":
                assert number is not None
                new = self._renew(number)
                self._connection.execute(
                    "UPDATE crawl SET state = 'canceled', incomplete = 0, stats = NULL, commit_order = NULL,"
                    " imported = 0, concurrent = 0 WHERE number = ?",
                    (new,),
                )
                self._forget_payload()
            self._connection.execute("DELETE FROM report WHERE crawl = ?", (crawl,))
        self._clear(on_done=on_done)

    # Helpers

    def _find(self, own: str, digest: str) -> Original | None:
        rows = self._connection.execute(_FIND, (packed_digest(digest), own)).fetchall()
        if not rows:
            return None
        # There is rarely more than one row, so sorting here costs nothing; ORDER BY made the query slower.
        row = rows[0] if len(rows) == 1 else min(rows, key=lambda row: _owner_order(row, own))
        return self._original(digest, row[:8])

    def _find_url(self, own: str, url: str) -> UrlCapture | None:
        rows = self._connection.execute(_FIND_URL, (url_hash(url), own)).fetchall()
        if not rows:
            return None
        _, value, number = max(rows, key=lambda row: (row[0] == own, row[1]))
        capture = read_capture(url, crawl_files.whole_capture(self._connection, number, value))
        self.unreadable += capture is None
        return capture


def _owner_order(row: tuple[Any, ...], own: str) -> tuple[bool, bool, int, int]:
    owner, commit_order, number = row[0], *row[8:]
    # A record of another source of this crawl may still be dropped.
    return owner != own, commit_order is None, 0 if owner == own else commit_order, number
