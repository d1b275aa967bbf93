"""The texts in SQLite.

=========================  ====================================================================================
``content_parameters``     name and value of each parameter of the near layer
``content_crawls``         crawl ids, kept once; the number stands for them elsewhere
``content_texts``          digest (16 bytes) of a text, and its first capture: URL, crawl, time in milliseconds
                           since the epoch
``content_captures``       which other URLs had a text: the first 16 bytes of BLAKE2b of digest and URL. The
                           first URL of a text is in ``content_texts`` alone
``content_signatures``     digest and row bytes of each kept text
``content_bands``          band hash, as a signed 64-bit number (big-endian), and the digest of the last text
                           that was kept in this bucket
=========================  ====================================================================================

The connection is in autocommit mode. What tests and inserts is one statement, or one transaction that takes
the write lock first, so that several processes can share a file.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused

from .base import SeenText
from .faults import sqlite_faults

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

SCHEMA = """
CREATE TABLE IF NOT EXISTS content_parameters (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS content_crawls (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS content_texts (
    digest BLOB PRIMARY KEY, url TEXT NOT NULL, crawl INTEGER NOT NULL, seen_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS content_captures (pair BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS content_signatures (digest BLOB PRIMARY KEY, row_bytes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS content_bands (hash INTEGER PRIMARY KEY, digest BLOB NOT NULL);
"""

_FIRST_CAPTURE = """
SELECT url, id, seen_ms FROM content_texts JOIN content_crawls ON number = crawl WHERE digest = ?
"""


class SqliteContent:
    """The :class:`~.base.ContentStore` of an open SQLite store."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._url = url
        self._crawl_numbers: dict[str, int] = {}

    def check_parameters(self, parameters: Mapping[str, str]) -> None:
        with sqlite_faults(self._url):
            self._connection.executemany(
                "INSERT INTO content_parameters VALUES (?, ?) ON CONFLICT DO NOTHING",
                list(parameters.items()),
            )
            stored = dict(self._connection.execute("SELECT name, value FROM content_parameters"))
        refuse_other_parameters(self._url, stored, parameters)

    def claim_text(self, digest: bytes, url: str, crawl: str, seen_ms: int) -> SeenText | None:
        with sqlite_faults(self._url):
            inserted = self._connection.execute(
                "INSERT INTO content_texts VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (digest, url, self._crawl_number(crawl), seen_ms),
            ).rowcount
            if inserted:
                return None
            first_url, first_crawl, first_ms = self._connection.execute(_FIRST_CAPTURE, (digest,)).fetchone()
            if first_url == url:
                return SeenText(first_url, first_crawl, first_ms, had_this_url=True)
            noted = self._connection.execute(
                "INSERT INTO content_captures VALUES (?) ON CONFLICT DO NOTHING", (_pair(digest, url),)
            ).rowcount
            return SeenText(first_url, first_crawl, first_ms, had_this_url=not noted)

    def claim_near(
        self, digest: bytes, bands: Sequence[bytes], rows: bytes, min_equal: int, url: str
    ) -> SeenText | None:
        """See :meth:`.base.ContentStore.claim_near`. The similarity is the share of equal ``rows``."""
        hashes = [int.from_bytes(band, "big", signed=True) for band in bands]
        with sqlite_faults(self._url):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                best = self._most_similar(digest, hashes, rows, min_equal)
                if best is None:
                    self._keep(digest, hashes, rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            if best is None:
                return None
            equal, kept = best
            first_url, first_crawl, first_ms = self._connection.execute(_FIRST_CAPTURE, (kept,)).fetchone()
            had_this_url = first_url == url or bool(
                self._connection.execute(
                    "SELECT 1 FROM content_captures WHERE pair = ?", (_pair(kept, url),)
                ).fetchone()
            )
        return SeenText(first_url, first_crawl, first_ms, had_this_url, equal / len(rows))

    def statistics(self) -> dict[str, int]:
        with sqlite_faults(self._url):
            texts, kept = self._connection.execute(
                "SELECT (SELECT count(*) FROM content_texts), (SELECT count(*) FROM content_signatures)"
            ).fetchone()
        return {"texts": texts, "kept": kept}

    def flush(self) -> None:
        """Move everything from the write-ahead log into the file and sync it."""
        with sqlite_faults(self._url):
            self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()

    def _most_similar(
        self, digest: bytes, hashes: list[int], rows: bytes, min_equal: int
    ) -> tuple[int, bytes] | None:
        places = ", ".join("?" * len(hashes))
        candidates = self._connection.execute(
            f"""SELECT digest, row_bytes FROM content_signatures WHERE digest <> ? AND digest IN
                (SELECT digest FROM content_bands WHERE hash IN ({places}))""",  # noqa: S608 - question marks
            (digest, *hashes),
        )
        return max(
            (
                (equal, kept)
                for kept, kept_rows in candidates
                if (equal := equal_bytes(rows, kept_rows)) >= min_equal
            ),
            default=None,
        )

    def _keep(self, digest: bytes, hashes: list[int], rows: bytes) -> None:
        self._connection.execute(
            "INSERT INTO content_signatures VALUES (?, ?) ON CONFLICT DO NOTHING", (digest, rows)
        )
        # Faster than one statement with sixteen rows.
        self._connection.executemany(
            "INSERT INTO content_bands VALUES (?, ?) ON CONFLICT DO UPDATE SET digest = excluded.digest",
            [(band, digest) for band in hashes],
        )

    def _crawl_number(self, crawl: str) -> int:
        number = self._crawl_numbers.get(crawl)
        if number is None:
            self._connection.execute(
                "INSERT INTO content_crawls (id) VALUES (?) ON CONFLICT DO NOTHING", (crawl,)
            )
            number = self._connection.execute(
                "SELECT number FROM content_crawls WHERE id = ?", (crawl,)
            ).fetchone()[0]
            self._crawl_numbers[crawl] = number
        return number


def equal_bytes(one: bytes, other: bytes) -> int:
    """In how many places two byte strings of the same length are equal.

    >>> equal_bytes(b"abcd", b"abxd")
    3
    """
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(len(one), "big").count(0)


def refuse_other_parameters(url: str, stored: Mapping[str, str], parameters: Mapping[str, str]) -> None:
    """Raise :class:`StoreRefused`, naming both values, for the first parameter that differs."""
    for name, value in parameters.items():
        if stored[name] != value:
            raise StoreRefused(
                f"The store {url} was written with {name} = {stored[name]}, this crawl compares texts with"
                f" {name} = {value}. Use the version or the setting that wrote it, or start another store with"
                " DEDUPE_CONTENT_STORE_URL."
            )


def _pair(digest: bytes, url: str) -> bytes:
    return blake2b(digest + url.encode("utf-8", "surrogatepass"), digest_size=16).digest()
