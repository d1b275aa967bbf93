"""A temporary index of the answers in a set of WARC and ARC files, for the duration of a crawl.

Every record is read once. The records stay in the files; the index keeps only the lookup keys, in temporary SQLite
databases that SQLite itself moves to disk when they grow. URLs are kept as hashes of 16 bytes: of the URL of the
record, and of its canonical form.

The method, body and cookies are those of the request (see `exchanges`). A response without a request counts as the
answer to a GET without cookies.
"""

from __future__ import annotations

import hashlib
import sqlite3
from bisect import bisect
from typing import TYPE_CHECKING, NamedTuple

from w3lib.url import canonicalize_url

from scrapy_dedupe.warc.exchanges import method_of
from scrapy_dedupe.warc.references import CaptureTable, is_unmodified, milliseconds, uri_key

if TYPE_CHECKING:
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.references import FiledCapture

_KEY_BYTES = 16
_BATCH = 1000

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE answers (
    number INTEGER PRIMARY KEY,  -- in the order of the files
    file INTEGER NOT NULL, offset INTEGER NOT NULL, block_position INTEGER NOT NULL,
    crawl NOT NULL,              -- its name, else the number of the file
    kind TEXT NOT NULL,          -- response, revisit or unmodified (a revisit: server-not-modified)
    status INTEGER,              -- NULL for a revisit without an HTTP head
    is_partial INTEGER NOT NULL, -- truncated, a segment, or a 206
    date_ms INTEGER NOT NULL, uri BLOB NOT NULL, canonical BLOB NOT NULL,
    method TEXT NOT NULL, body BLOB NOT NULL, cookies BLOB NOT NULL
);
"""
_INDEXES = """
CREATE INDEX answers_by_uri ON answers (uri);
CREATE INDEX answers_by_canonical ON answers (canonical);
"""
_INSERT = "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT file, offset, block_position, crawl, kind, status, is_partial, cookies FROM answers"


class AnswerPlace(NamedTuple):
    """Where an answer is: the number of its file, the offset, and the position in a shared gzip member."""

    file: int
    offset: int
    block_position: int
    crawl: str | int
    kind: str
    status: int | None
    is_partial: int
    cookies: bytes


class PlaybackIndex:
    """Filled with `add`, completed with `finish`, then queried. For the thread that made it.

    `originals` are the records that revisits may refer to.
    """

    def __init__(self) -> None:
        self.originals = CaptureTable()
        # An empty name makes a private temporary database.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_TABLES)
        self._rows: list[tuple[object, ...]] = []
        self._number = 0
        self._file = -1
        # Crawls in the order of the files: the name, or the number of the file; and the number of the first original.
        self._crawls: list[str | int] = []
        self._first_originals: list[int] = []
        self._last_original = 0

    def add(self, file: int, record: StoredRecord, request: StoredRecord | None) -> bool:
        """Add a record of the file with that number, and its request; False if they are not an HTTP exchange."""
        if file != self._file:
            self._file = file
            self._enter_crawl(file)
        if record.type == "warcinfo" and (crawl := record.info().get("ispartof")):
            self._enter_crawl(crawl)
        if not (record.target_uri or "").lower().startswith(("http://", "https://")):
            return False
        http = request.http if request else None
        method = method_of(request).upper() if request and http else "GET"
        # The answer to HEAD has no payload.
        if method != "HEAD":
            self._last_original = self.originals.add(record) or self._last_original
        kind = _kind(record)
        if kind is None:
            return False
        uri = record.target_uri or ""
        self._number += 1
        self._rows.append(
            (
                self._number,
                file,
                record.offset,
                record.frame.block_position,
                self._crawls[-1],
                kind,
                record.http_status,
                not record.is_whole,
                milliseconds(record.date) or 0,
                uri_key(uri),
                canonical_key(uri),
                method,
                body_key(request.payload()) if request and http else b"",
                cookie_key(http.get_all(b"Cookie")) if http else b"",
            )
        )
        if len(self._rows) >= _BATCH:
            self._flush()
        return True

    def finish(self) -> None:
        """Make the answers ready for queries."""
        self._flush()
        self._database.executescript(_INDEXES)

    def close(self) -> None:
        """Delete the index."""
        self.originals.close()
        self._database.close()

    def answers(
        self, method: str, body: bytes, url: str, cookies: bytes, *, canonical: bool
    ) -> list[AnswerPlace]:
        """The answers to a request, whole ones before others, then the newest first.

        With *canonical*, the answers of other URLs with the same canonical form instead. Within the newest crawl,
        answers to the same request cookies come first: a page may set a cookie and then redirect to itself, or differ
        after a login.
        """
        where, keys = "uri = ?", [uri_key(url)]
        if canonical:
            where, keys = "canonical = ? AND uri <> ?", [canonical_key(url), uri_key(url)]
        rows = self._database.execute(
            f"{_SELECT} WHERE {where} AND method = ? AND body = ? ORDER BY is_partial, date_ms DESC, number DESC",
            (*keys, method.upper(), body_key(body)),
        )
        newest_first = [AnswerPlace(*row) for row in rows]
        wanted = cookie_key([cookies])

        def is_second(place: AnswerPlace) -> bool:
            return place.crawl != newest_first[0].crawl or place.cookies != wanted

        return sorted(newest_first, key=lambda place: (place.is_partial, is_second(place)))

    def crawl_of(self, original: FiledCapture) -> str | None:
        """The name of the crawl of an original; None if its file does not name it."""
        crawl = self._crawls[bisect(self._first_originals, original.number) - 1]
        return crawl if isinstance(crawl, str) else None

    def _enter_crawl(self, crawl: str | int) -> None:
        self._crawls.append(crawl)
        self._first_originals.append(self._last_original + 1)

    def _flush(self) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(_INSERT, self._rows)
        self._database.execute("COMMIT")
        self._rows.clear()


def canonical_key(url: str) -> bytes:
    """Return the key shared by URLs that differ only in the order of their query or in their encoding."""
    try:
        return uri_key(canonicalize_url(url))
    except ValueError:  # a URL that cannot be parsed, such as http://[
        return uri_key(url)


def body_key(body: bytes) -> bytes:
    """Return the key of a request body; empty for an empty body."""
    return hashlib.sha256(body).digest() if body else b""


def cookie_key(values: list[bytes]) -> bytes:
    """Return the key of the values of Cookie headers, regardless of their order; empty if there are none."""
    cookies = sorted(cookie for value in values for part in value.split(b";") if (cookie := part.strip()))
    return hashlib.blake2b(b";".join(cookies), digest_size=_KEY_BYTES).digest() if cookies else b""


def _kind(record: StoredRecord) -> str | None:
    if record.type == "revisit":
        return "unmodified" if is_unmodified(record) else "revisit"
    # Interim responses (1xx) are not answers.
    return "response" if record.type == "response" and (record.http_status or 0) >= 200 else None
