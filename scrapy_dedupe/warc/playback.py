"""Responses from an archive: what a server once sent for a method, a URL and a body.

The newest whole capture is the answer; within its crawl, captures with the same request cookies come first. A
truncated capture or a range (206) is used only if there is no whole one. If a URL is not found, its canonical form is
looked up, so that the order of query parameters does not matter. A response without a request (see `exchanges`) is the
answer to a GET without cookies.

A revisit answers with its own HTTP head, if it has one, and the payload of its original (see `references`). If the
original is missing, the next older capture is used. A 304, or a revisit with the server-not-modified profile, answers
only a conditional request; for any other request the original, or the next older capture, is used.

Transfer coding is removed and Content-Length is corrected. The content coding is kept as it was sent, since payload
and header belong together: if the head of a revisit names another coding, it gets the coding of its original.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from bisect import bisect
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from w3lib.url import canonicalize_url

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.exchanges import cookie_key, method_of, paired
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import (
    CaptureTable,
    bare_id,
    is_unmodified,
    milliseconds,
    reference_of,
    uri_key,
)
from scrapy_dedupe.warc.remote import read_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.references import FiledCapture
    from scrapy_dedupe.warc.sources import ReadableFile

logger = logging.getLogger(__name__)

_NOT_MODIFIED = 304
_BODILESS = (204, _NOT_MODIFIED)

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
-- Answers without a request near them, and requests without an answer near them. The link is the id of the response, or
-- that of the request, with the letter p or q before it.
CREATE TABLE lone_answers (link TEXT NOT NULL, number INTEGER NOT NULL);
CREATE TABLE lone_requests (link TEXT NOT NULL, method TEXT NOT NULL, body BLOB NOT NULL, cookies BLOB NOT NULL);
BEGIN;
"""
_LINKED = """
SELECT r.method, r.body, r.cookies FROM lone_answers a JOIN lone_requests r ON r.link = a.link WHERE a.number = answers.number
"""
_FINISH = f"""
CREATE INDEX lone_answers_by_number ON lone_answers (number);
CREATE INDEX lone_requests_by_link ON lone_requests (link);
UPDATE answers SET (method, body, cookies) = ({_LINKED} LIMIT 1)
    WHERE number IN (SELECT a.number FROM lone_answers a JOIN lone_requests r ON r.link = a.link);
DROP TABLE lone_answers;
DROP TABLE lone_requests;
CREATE INDEX answers_by_uri ON answers (uri);
CREATE INDEX answers_by_canonical ON answers (canonical);
"""  # noqa: S608 - constants
_INSERT = "INSERT INTO answers VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT file, offset, block_position, crawl, kind, status, is_partial, cookies FROM answers"


@dataclass(frozen=True, slots=True)
class PlayedOriginal:
    """The original of a revisit; `crawl` is the isPartOf value of its warcinfo."""

    record_id: str | None
    url: str | None
    date: str | None
    crawl: str | None


@dataclass(frozen=True, slots=True)
class Playable:
    """An answer, with the record that it comes from.

    `payload` has its content coding and no transfer coding; `headers` are in order. `type` is ``response`` or
    ``revisit``, `date` the text of WARC-Date, `digest` the payload digest with its label. `truncated` is the
    reason for a truncated payload, or None.
    """

    url: str
    status: int
    headers: Headers
    payload: bytes
    ip_address: str | None
    protocol: str | None
    record_id: str | None
    file: str
    offset: int
    type: str
    date: str | None
    digest: str | None
    truncated: str | None
    refers_to: PlayedOriginal | None


class _AnswerPlace(NamedTuple):
    """Where an answer is: the number of its file, the offset, and the position in a shared gzip member."""

    file: int
    offset: int
    block_position: int
    crawl: str | int
    kind: str
    status: int | None
    is_partial: int
    cookies: bytes


class TooLarge(Exception):
    """The answer is larger than allowed."""


class Playback:
    """The captures in *files*. For use on one thread: create, `read`, `find`, `close`.

    The records stay in the files. Their lookup keys are in temporary SQLite databases, which SQLite moves to disk when
    they grow. URLs are kept as hashes of 16 bytes: of the URL of the record, and of its canonical form.
    `unresolved` counts the revisits that could not be used because their original is missing; `is_complete` is True
    once all files were read.
    """

    def __init__(self, files: Sequence[ReadableFile]) -> None:
        self._files = list(files)
        self._originals = CaptureTable()  # the records that revisits may refer to
        self._last_original = 0
        # Crawls in the order of the files: the number of the first original, and the name, or the number of the file.
        self._crawls: list[tuple[int, str | int]] = []
        # An empty name makes a private temporary database.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_TABLES)
        self._has_warned = False
        self._max_bytes = 0
        self.unresolved = 0
        self.is_complete = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(
        self, *, on_damage: Callable[[Damage], None], is_wanted: Callable[[], bool] = lambda: True
    ) -> int:
        """Read every record of the files and return the number of exchanges. Call once, before `find`.

        *on_damage* is called for every damaged place. Reading ends early when *is_wanted* returns False. Raises
        ArchiveError if a file cannot be read.
        """
        count = 0
        try:
            for number, file in enumerate(self._files):
                shares_members = False
                self._enter_crawl(number)
                with read_errors(file):
                    records = read_records(file, on_damage=on_damage)
                    for record, request in paired(records, self._add_lone_request):
                        if not is_wanted():
                            return count
                        if self._add(number, record, request):
                            count += 1
                            shares_members = shares_members or record.length == 0
                if shares_members:
                    logger.warning(
                        "%s has several records in one gzip member. Each lookup decompresses the member from its"
                        " beginning, which is slow for a large file; `warcio recompress` gives every record its own"
                        " member.",
                        file,
                    )
            self._database.executescript(_FINISH)
        except sqlite3.Error as error:
            raise ArchiveError(
                f"The index of the archive cannot be written to a temporary file: {error}. Free some space in the"
                " temporary folder, or set the environment variable TMPDIR to another one."
            ) from error
        self.is_complete = True
        return count

    def close(self) -> None:
        """Delete the index."""
        self._originals.close()
        self._database.close()

    def find(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        cookies: bytes = b"",
        is_conditional: bool = False,
        max_bytes: int = 0,
    ) -> Playable | None:
        """Return the answer to a request, None if there is none.

        *cookies* is the value of its Cookie header. *is_conditional*: whether the request allows a 304 (Not Modified).
        Raises TooLarge for an answer with a body of more than *max_bytes* (0: no limit); ArchiveError and
        DamagedInput if a record cannot be read again.
        """
        self._max_bytes = max_bytes
        try:
            return self._find(method, url, body, cookies, is_conditional)
        except OSError as error:
            raise ArchiveError(f"The archive with {url} can no longer be read: {error}.") from error

    def _add(self, file: int, record: StoredRecord, request: StoredRecord | None) -> bool:
        """Add a record of the file with that number, and its request; False if they are not an HTTP exchange."""
        if record.type == "warcinfo" and (crawl := record.info().get("ispartof")):
            self._enter_crawl(crawl)
        if not (record.target_uri or "").lower().startswith(("http://", "https://")):
            return False
        method = method_of(request).upper() if request and request.http else "GET"
        # The answer to HEAD has no payload.
        if method != "HEAD":
            self._last_original = self._originals.add(record) or self._last_original
        kind = _kind(record)
        if kind is None:
            return False
        uri = record.target_uri or ""
        answer = self._database.execute(
            _INSERT,
            (
                file,
                record.offset,
                record.frame.block_position,
                self._crawls[-1][1],
                kind,
                record.http_status,
                not record.is_whole,
                milliseconds(record.date) or 0,
                uri_key(uri),
                _canonical_key(uri),
                *(_request_keys(request) if request and request.http else ("GET", b"", b"")),
            ),
        )
        if request is None:
            links = [(link, answer.lastrowid) for link in _links(record, "p", "q")]
            self._database.executemany("INSERT INTO lone_answers VALUES (?, ?)", links)
        return True

    def _add_lone_request(self, request: StoredRecord) -> None:
        """Add a request without a response near it, which is linked to a response by their ids at the end."""
        if request.http:
            keys = _request_keys(request)
            links = [(link, *keys) for link in _links(request, "q", "p")]
            self._database.executemany("INSERT INTO lone_requests VALUES (?, ?, ?, ?)", links)

    def _find(
        self, method: str, url: str, body: bytes, cookies: bytes, is_conditional: bool
    ) -> Playable | None:
        originals, unresolved = self._originals, 0
        for canonical in (False, True):
            for place in self._answers(method, body, url, cookies, canonical=canonical):
                if place.status == _NOT_MODIFIED and place.kind == "response" and not is_conditional:
                    continue
                file = self._files[place.file]
                record = read_record(file, place.offset, block_position=place.block_position)
                if place.kind == "response" or (place.kind == "unmodified" and is_conditional):
                    return playable(record, method, record, max_bytes=self._max_bytes)
                original = originals.original(reference_of(record))
                if original is not None:
                    stored, crawl = originals.record_of(original), self._crawl_of(original)
                    reference = PlayedOriginal(stored.id, stored.target_uri, stored.date, crawl)
                    return playable(
                        record,
                        method,
                        stored,
                        reference,
                        is_unmodified=place.kind == "unmodified",
                        max_bytes=self._max_bytes,
                    )
                if place.kind == "revisit":
                    self.unresolved += 1
                    self._warn_about_missing_original(record)
                else:
                    unresolved += 1
        # Count these only now: an older capture might still have been the answer.
        self.unresolved += unresolved
        return None

    def _answers(
        self, method: str, body: bytes, url: str, cookies: bytes, *, canonical: bool
    ) -> list[_AnswerPlace]:
        """The answers to a request, whole ones before others, then the newest first.

        With *canonical*, the answers of other URLs with the same canonical form instead. Within the newest crawl,
        answers to the same request cookies come first: a page may set a cookie and then redirect to itself, or differ
        after a login.
        """
        where, keys = "uri = ?", [uri_key(url)]
        if canonical:
            where, keys = "canonical = ? AND uri <> ?", [_canonical_key(url), uri_key(url)]
        rows = self._database.execute(
            f"{_SELECT} WHERE {where} AND method = ? AND body = ? ORDER BY is_partial, date_ms DESC, number DESC",
            (*keys, method.upper(), _body_key(body)),
        )
        newest_first = [_AnswerPlace(*row) for row in rows]
        wanted = cookie_key([cookies])

        def is_second(place: _AnswerPlace) -> bool:
            return place.crawl != newest_first[0].crawl or place.cookies != wanted

        return sorted(newest_first, key=lambda place: (place.is_partial, is_second(place)))

    def _crawl_of(self, original: FiledCapture) -> str | None:
        """The name of the crawl of an original; None if its file does not name it."""
        _, crawl = self._crawls[bisect(self._crawls, original.number, key=itemgetter(0)) - 1]
        return crawl if isinstance(crawl, str) else None

    def _enter_crawl(self, crawl: str | int) -> None:
        self._crawls.append((self._last_original + 1, crawl))

    def _warn_about_missing_original(self, revisit: StoredRecord) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "The revisit of %s in %s, offset %d, refers to %s of %s, but no file of the archive has that payload."
            " Add the files of the crawl that has it. Further missing originals are only counted.",
            revisit.target_uri,
            revisit.path,
            revisit.offset,
            revisit.refers_to_uri or revisit.refers_to or "no URL",
            revisit.refers_to_date or "no date",
        )


def playable(
    record: StoredRecord,
    method: str,
    source: StoredRecord,
    refers_to: PlayedOriginal | None = None,
    *,
    is_unmodified: bool = False,
    headers: Headers | None = None,
    max_bytes: int = 0,
) -> Playable:
    """The answer of *record* with the payload of *source*, whose head is used for a 304. *headers* replace those of the head.

    Raises TooLarge for a payload of more than *max_bytes* (0: no limit), DamagedInput if it cannot be read again.
    """
    head = source if record.http_status is None or is_unmodified else record
    status = 200 if head.type == "resource" else head.http_status
    if status is None:
        # A server-not-modified revisit without a head has only a status.
        status = _NOT_MODIFIED
    size = source.frame.block_length - (source.http.length if source.http else 0)
    if max_bytes and size > max_bytes:
        raise TooLarge(f"The answer to {record.target_uri} has {size} bytes.")
    payload = source.payload()
    has_body = method.upper() != "HEAD" and status not in _BODILESS
    headers = head.http_headers if headers is None else headers
    if head.type == "resource" and (content_type := head.get("Content-Type")):
        headers = ((b"Content-Type", content_type.encode("latin-1", "replace")),)
    if head is not source:
        headers = _with_coding_of(source, headers)
    digest = record.payload_digest
    return Playable(
        url=record.target_uri or "",
        status=status,
        headers=_true_headers(headers, len(payload) if has_body else None),
        payload=payload if has_body else b"",
        ip_address=record.get("WARC-IP-Address") or record.get("ip-address"),
        protocol=_protocol(record) or _protocol(head),
        record_id=record.id,
        file=str(record.path),
        offset=record.offset,
        type=record.type,
        date=record.date,
        digest=str(digest) if digest else None,
        truncated=source.truncated if source.is_truncated else None,
        refers_to=refers_to,
    )


def _request_keys(request: StoredRecord) -> tuple[str, bytes, bytes]:
    """Return the method of a request, and the keys of its body and cookies."""
    cookies = request.http.get_all(b"Cookie") if request.http else []
    return method_of(request).upper(), _body_key(request.payload()), cookie_key(cookies)


def _links(record: StoredRecord, own: str, other: str) -> list[str]:
    """Return the links of a record: its own id, and the ids in WARC-Concurrent-To, with letters before them."""
    named = [f"{other}{bare_id(name)}" for name in record.get_all("WARC-Concurrent-To")]
    return named if record.id is None else [f"{own}{bare_id(record.id)}", *named]


def _canonical_key(url: str) -> bytes:
    """Return the key shared by URLs that differ only in the order of their query or in their encoding."""
    try:
        return uri_key(canonicalize_url(url))
    except ValueError:  # a URL that cannot be parsed, such as http://[
        return uri_key(url)


def _body_key(body: bytes) -> bytes:
    """Return the key of a request body; empty for an empty body."""
    return hashlib.sha256(body).digest() if body else b""


def _kind(record: StoredRecord) -> str | None:
    if record.type == "revisit":
        return "unmodified" if is_unmodified(record) else "revisit"
    # Interim responses (1xx) are not answers.
    return "response" if record.type == "response" and (record.http_status or 0) >= 200 else None


def _true_headers(headers: Headers, length: int | None) -> Headers:
    """*headers* without Transfer-Encoding, and with this Content-Length; None leaves the length unchanged."""
    kept = []
    has_length = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"transfer-encoding":
            continue
        if lower == b"content-length" and length is not None:
            if has_length:
                continue
            has_length = True
            value = b"%d" % length
        kept.append((name, value))
    return tuple(kept)


def _with_coding_of(source: StoredRecord, headers: Headers) -> Headers:
    def codings(pairs: Headers) -> Headers:
        return tuple((name, value) for name, value in pairs if name.lower() == b"content-encoding")

    own, true = codings(headers), codings(source.http_headers)
    if [value for _, value in own] == [value for _, value in true]:
        return headers
    return (*(pair for pair in headers if pair not in own), *true)


def _protocol(record: StoredRecord) -> str | None:
    """The HTTP version in HTTP's own notation: ``HTTP/1.1``, ``h2``."""
    for value in record.get_all("WARC-Protocol"):
        name = value.strip().lower()
        if name.startswith("http/"):
            return name.upper()
        if name in ("h2", "h2c", "h3"):
            return name
    first = record.http.first_line.split(None, 1)[0] if record.http else b""
    return first.decode("latin-1").upper() or None
