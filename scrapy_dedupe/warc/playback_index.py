"""A temporary index of the captures in a set of WARC and ARC files, for the duration of a crawl.

Every record is read once. The records stay in the files; the index keeps only the lookup keys, in a temporary SQLite
database that SQLite itself moves to disk when it grows. URLs are kept as hashes of 16 bytes: of the URL of the record,
and of its canonical form.

The method, body and cookies are those of the request (see `exchanges`). A response without a request counts as the
answer to a GET without cookies.
"""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from w3lib.url import canonicalize_url

from scrapy_dedupe.warc.exchanges import method_of
from scrapy_dedupe.warc.references import (
    Captures,
    bare_id,
    can_be_original,
    digest_key,
    digest_of,
    has_payload,
    is_unmodified,
    milliseconds,
    uri_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord

_KEY_BYTES = 16
_BATCH = 1000

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE captures (
    number INTEGER PRIMARY KEY,  -- in the order of the files
    file INTEGER NOT NULL, offset INTEGER NOT NULL, block_position INTEGER NOT NULL,
    crawl INTEGER NOT NULL,      -- what isPartOf of the warcinfo before it says, else one a file
    kind TEXT NOT NULL,          -- response, resource, revisit or unmodified (a revisit: server-not-modified)
    status INTEGER,              -- NULL for a revisit without an HTTP head
    is_partial INTEGER NOT NULL, -- truncated, a segment, or a 206
    id TEXT, uri BLOB NOT NULL, canonical BLOB NOT NULL, date_ms INTEGER NOT NULL, digest TEXT,
    method TEXT NOT NULL, body BLOB NOT NULL, cookies BLOB NOT NULL
);
"""
_CAPTURE = (
    "INSERT INTO captures (number, file, offset, block_position, crawl, kind, status, is_partial, id,"
    " uri, canonical, date_ms, digest, method, body, cookies)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INDEXES = """
CREATE INDEX captures_by_uri ON captures (uri);
CREATE INDEX captures_by_canonical ON captures (canonical);
CREATE INDEX captures_by_id ON captures (id);
CREATE INDEX captures_by_digest ON captures (digest);
"""
_COLUMNS = "file, offset, block_position, kind, status, crawl, is_partial, cookies, date_ms, digest"
_NEWEST_FIRST = "ORDER BY is_partial, date_ms DESC, number DESC"
_ORIGINAL = "kind IN ('response', 'resource') AND status IS NOT 304"
_WITH_PAYLOAD = f"{_ORIGINAL} AND method <> 'HEAD'"
_NEAREST_FIRST = "ORDER BY is_partial, abs(date_ms - ?), number"


@dataclass(frozen=True, slots=True)
class CapturePlace:
    """Where a capture is: the number of its file, the offset, and the position in a shared gzip member."""

    file: int
    offset: int
    block_position: int
    kind: str
    status: int | None
    crawl: int
    is_partial: int
    cookies: bytes
    date_ms: int
    digest: str | None


class PlaybackIndex(Captures[str, CapturePlace]):
    """Filled with `add`, completed with `finish`, then queried. For the thread that made it.

    *read* returns the record at a place.
    """

    def __init__(self, read: Callable[[CapturePlace], StoredRecord]) -> None:
        self._read = read
        # An empty name makes a private temporary database.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_TABLES)
        self._number = 0
        self._file = -1
        self._crawl = -1
        self._crawls: dict[tuple[str | None, int], int] = {}
        self._names: list[str | None] = []
        self._captures: list[tuple[object, ...]] = []

    def add(self, file: int, record: StoredRecord, request: StoredRecord | None) -> bool:
        """Add a record of the file with that number, and its request; False if they are not an HTTP exchange."""
        if file != self._file:
            self._file = file
            self._enter_crawl(None, file)
        if record.type == "warcinfo" and (crawl := record.info().get("ispartof")):
            self._enter_crawl(crawl, 0)
        if not (record.target_uri or "").lower().startswith(("http://", "https://")):
            return False
        kind = _kind(record)
        if kind is None:
            return False
        self._add_capture(file, record, kind, request if request and request.http else None)
        if len(self._captures) >= _BATCH:
            self._flush()
        return record.type != "resource"

    def finish(self) -> None:
        """Make the captures ready for queries."""
        self._flush()
        self._database.executescript(_INDEXES)

    def close(self) -> None:
        """Delete the index."""
        self._database.close()

    def captures(
        self, method: str, body: bytes, url: str, cookies: bytes, *, canonical: bool
    ) -> list[CapturePlace]:
        """The captures of a request, whole ones before others, then the newest first.

        With *canonical*, the captures of other URLs with the same canonical form instead. Within the newest crawl,
        captures with the same request cookies come first: a page may set a cookie and then redirect to itself, or
        differ after a login.
        """
        is_url, keys = "uri = ?", [uri_key(url)]
        if canonical:
            is_url, keys = "canonical = ? AND uri <> ?", [canonical_key(url), uri_key(url)]
        places = self._places(
            f"{is_url} AND kind <> 'resource' AND method = ? AND body = ? {_NEWEST_FIRST}",
            (*keys, method.upper(), body_key(body)),
        )
        newest_first = list(places)
        wanted = cookie_key([cookies])

        def is_second(place: CapturePlace) -> bool:
            return place.crawl != newest_first[0].crawl or place.cookies != wanted

        return sorted(newest_first, key=lambda place: (place.is_partial, is_second(place)))

    # The lookups that find the original of a revisit

    def with_id(self, record_id: str) -> Iterator[CapturePlace]:
        return self._places(f"id = ? AND {_ORIGINAL}", (record_id,))

    def in_second(self, uri: str, second: int) -> Iterator[CapturePlace]:
        first = second * 1_000
        where = f"uri = ? AND date_ms BETWEEN ? AND ? AND {_WITH_PAYLOAD} ORDER BY is_partial, number"
        return self._places(where, (uri_key(uri), first, first + 999))

    def with_digest(self, digest: str, uri: str | None, date_ms: int) -> Iterator[CapturePlace]:
        if uri is None:
            return self._places(f"digest = ? AND {_WITH_PAYLOAD} {_NEAREST_FIRST} LIMIT 1", (digest, date_ms))
        where = f"digest = ? AND uri = ? AND {_WITH_PAYLOAD} {_NEAREST_FIRST} LIMIT 1"
        return self._places(where, (digest, uri_key(uri), date_ms))

    def of_uri(self, uri: str, date_ms: int) -> Iterator[CapturePlace]:
        where = f"uri = ? AND status = 200 AND NOT is_partial AND {_WITH_PAYLOAD} {_NEAREST_FIRST} LIMIT 1"
        return self._places(where, (uri_key(uri), date_ms))

    def has_payload(self, capture: CapturePlace, digest: str) -> bool:
        return has_payload(self._read(capture), digest)

    def crawl_name(self, crawl: int) -> str | None:
        """The name of the crawl with that number; None if its files do not name it."""
        return self._names[crawl]

    def _enter_crawl(self, name: str | None, file: int) -> None:
        if (name, file) not in self._crawls:
            self._crawls[name, file] = len(self._names)
            self._names.append(name)
        self._crawl = self._crawls[name, file]

    def _places(self, condition: str, values: tuple[object, ...]) -> Iterator[CapturePlace]:
        statement = f"SELECT {_COLUMNS} FROM captures WHERE {condition}"  # noqa: S608 - no value is in it
        return (CapturePlace(*row) for row in self._database.execute(statement, values))

    def _add_capture(self, file: int, record: StoredRecord, kind: str, request: StoredRecord | None) -> None:
        uri = record.target_uri or ""
        status = record.http_status
        is_partial = record.is_truncated or status == 206 or record.get("WARC-Segment-Number") is not None
        is_revisit = kind in ("revisit", "unmodified")
        digest = digest_key(record.get("WARC-Payload-Digest")) if is_revisit else digest_of(record)
        self._number += 1
        self._captures.append(
            (
                self._number,
                file,
                record.offset,
                record.frame.block_position,
                self._crawl,
                kind,
                status,
                is_partial,
                bare_id(record.id),
                uri_key(uri),
                canonical_key(uri),
                milliseconds(record.date) or 0,
                digest,
                method_of(request).upper() if request else "GET",
                body_key(request.payload()) if request else b"",
                cookie_key(request.http.get_all(b"Cookie")) if request and request.http else b"",
            )
        )

    def _flush(self) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(_CAPTURE, self._captures)
        self._database.execute("COMMIT")
        self._captures.clear()


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
    if record.type == "response":
        # Interim responses (1xx) are not answers.
        status = record.http_status
        return "response" if status is not None and status >= 200 else None
    return "resource" if can_be_original(record) else None
