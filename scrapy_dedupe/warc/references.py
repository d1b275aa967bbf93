"""Finds the original of a revisit: the record whose payload the revisit refers to. Used by every command.

A revisit may name its original by record id (WARC-Refers-To), by URI and date (WARC-Refers-To-Target-URI and
WARC-Refers-To-Date), or only by payload digest, as Heritrix did before 2015. Early versions of warcprox wrote URI and
date without a digest. Only a ``response`` or ``resource`` record is an original: an id of any other record, such as the
request or a metadata record, is ignored, and a revisit of a revisit leads nowhere.

`Captures.ways` gives the evidence in this order:

1. ``place``: the captures of the named URI in the named second: those with the named id, or else those with the nearest
   date. pywb and wabac.js use only URI and date, and compare dates to the second, so a revisit and its original may
   write the fraction of a second differently.
2. ``target``: the captures of the named URI with the digest, the nearest date first, if ``place`` gave none.
3. ``id``: the captures with the named id.
4. ``own``: the captures of the revisit's own URI with the digest, if nothing else was found.
5. ``digest``: any capture with the digest, if nothing else was found.
6. ``unmodified``: a server-not-modified revisit without a digest confirms the capture of the named URI that is nearest
   in time, if nothing else was found.

A capture with another digest than the revisit is not an original, unless its bytes have that digest: programs hash the
stored body with or without its transfer chunks, or decoded. A digest of an unsupported algorithm is compared only with
digests of the same algorithm.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.bodies import body_forms, payload_digest
from scrapy_dedupe.warc.capture import parse_digest, target_uri
from scrapy_dedupe.warc.codings import Undecodable
from scrapy_dedupe.warc.dates import date_from_digits, parse_date
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_MS = 1_000
# Digests that already have the form of `digest_key`, as most in records do.
_DIGEST_KEY = re.compile(r"sha1:[A-Z2-7]{32}|(?:sha256:[0-9a-f]{32}|md5:)[0-9a-f]{32}")
_KEY_BYTES = 16

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Reference(Generic[K]):
    """The fields of a revisit that refer to its original. Ids and URIs are keys of type K: texts, or hashes of them.

    ``id`` has no angle brackets. ``date`` and ``own_date`` are milliseconds since 1970. ``digest`` has the form of
    `digest_key`. ``is_unmodified``: the revisit records a 304 (Not Modified).
    """

    id: K | None
    uri: K | None
    date: int | None
    digest: str | None
    own_uri: K
    own_date: int | None
    is_unmodified: bool


def reference_of(revisit: StoredRecord) -> Reference[str]:
    """The reference in the head of a revisit of any WARC version, with normalized values."""
    return Reference(
        bare_id(revisit.refers_to),
        (revisit.refers_to_uri or "").strip() or None,
        milliseconds(revisit.refers_to_date),
        digest_key(revisit.get("WARC-Payload-Digest")),
        revisit.target_uri or "",
        milliseconds(revisit.date),
        is_unmodified(revisit),
    )


def is_unmodified(revisit: StoredRecord) -> bool:
    """Whether a revisit records a 304, by its profile in any WARC version or by its HTTP status."""
    profile = (revisit.profile or "").strip().lower()
    return profile.endswith("server-not-modified") or revisit.http_status == 304


def can_be_original(record: StoredRecord) -> bool:
    """Whether a revisit may refer to a record. A 304 or an interim response has no payload of its own."""
    status = record.http_status
    return record.type in ("response", "resource") and (status is None or (status >= 200 and status != 304))


def bare_id(record_id: str | None) -> str | None:
    """A record id without white space and angle brackets, which some writers leave out."""
    return (record_id or "").strip().strip("<>").strip() or None


def digest_key(text: str | None) -> str | None:
    """A digest in one text form for all cases, bases and labels; a digest of an unknown form is returned unchanged.

    >>> digest_key("SHA-1:da39a3ee5e6b4b0d3255bfef95601890afd80709")
    'sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    text = (text or "").strip()
    if _DIGEST_KEY.fullmatch(text):
        return text
    try:
        return str(parse_digest(text)) if text else None
    except ValueError:
        return text


def digest_of(capture: StoredRecord) -> str | None:
    """The digest of a capture in the form of `digest_key`; the SHA-1 of its payload if its head has none.

    ARC files have no digests, and replay programs compute the SHA-1.
    """
    if digest := digest_key(capture.get("WARC-Payload-Digest")):
        return digest
    with suppress(DamagedInput):
        return digest_key(f"sha1:{payload_digest(capture, 'sha1').hex}")
    return None


@lru_cache(16)  # a record and its revisit often have the same date
def milliseconds(date: str | None) -> int | None:
    """The time of a WARC-Date, or of a timestamp of 14 or 17 digits, since 1970; None for any other text."""
    text = (date or "").strip()
    try:
        if text.isdigit() and len(text) > len("2020"):
            text = date_from_digits(text)
        return (parse_date(text) - _EPOCH) // timedelta(milliseconds=1)
    except ValueError:
        return None


@lru_cache(16)  # replay needs the key of a record several times in a row
def uri_key(url: str) -> bytes:
    """The key of a URI, without its fragment and percent-encoded as in WARC-Target-URI."""
    text = target_uri(url) if url.partition("#")[0] else ""
    return hashlib.blake2b(text.encode("ascii"), digest_size=_KEY_BYTES).digest()


def has_payload(record: StoredRecord, digest: str) -> bool:
    """Whether the stored body of a record has a digest: without its transfer chunks, with them, or decoded."""
    return payload_fault(record, digest) is None


def payload_fault(record: StoredRecord, digest: str) -> str | None:
    """None if `has_payload`; else why the body cannot be read or decoded, empty if it can."""
    label = digest.partition(":")[0]
    fault = ""
    for pieces in body_forms(record):
        hasher = hashlib.new(label, usedforsecurity=False)
        try:
            for piece in pieces(record):
                hasher.update(piece)
        except (DamagedInput, Undecodable) as error:
            fault = str(error)
        else:
            if digest == digest_key(f"{label}:{hasher.hexdigest()}"):
                return None
    return fault


class NamedCapture(Protocol):
    """A result of a lookup: the date in milliseconds since 1970, and the digest in the form of `digest_key`."""

    @property
    def date_ms(self) -> int | None: ...
    @property
    def digest(self) -> str | None: ...


C = TypeVar("C", bound=NamedCapture)


class Captures(ABC, Generic[K, C]):
    """The captures of an archive, as revisits refer to them. Subclasses implement the lookups, this class the rule.

    Equal objects are the same capture.
    """

    @abstractmethod
    def with_id(self, record_id: K) -> Iterable[C]:
        """The captures with a record id."""

    @abstractmethod
    def in_second(self, uri: K, second: int) -> Iterable[C]:
        """The captures of a URI in a second since 1970."""

    @abstractmethod
    def with_digest(self, digest: str, uri: K | None, date_ms: int) -> Iterable[C]:
        """The captures with a digest, of a URI or of any, the nearest in time first."""

    @abstractmethod
    def of_uri(self, uri: K, date_ms: int) -> Iterable[C]:
        """The whole captures of a URI with status 200, the nearest in time first."""

    @abstractmethod
    def has_payload(self, capture: C, digest: str) -> bool:
        """Whether the bytes of a capture have a digest (see the module-level function)."""

    def original(self, reference: Reference[K]) -> C | None:
        """The original that a revisit refers to; None if it is not among these captures."""
        return next((capture for _, found in self.ways(reference) for capture in found), None)

    def ways(self, reference: Reference[K]) -> Iterator[tuple[str, list[C]]]:
        """Yield the ways of finding an original, by name, with the captures found; best way and best capture first."""
        named = self._fitting(self.with_id(reference.id), reference) if reference.id is not None else []
        placed = self._placed(reference, named)
        near = reference.date if reference.date is not None else reference.own_date or 0
        targets = []
        if not placed and reference.uri is not None and reference.digest is not None:
            targets = list(self.with_digest(reference.digest, reference.uri, near))
        for way, found in (("place", placed), ("target", targets), ("id", named)):
            if found:
                yield way, found
        if placed or named or targets:
            return
        if reference.digest is not None:
            for way, uri in (("own", reference.own_uri), ("digest", None)):
                if found := list(self.with_digest(reference.digest, uri, near)):
                    yield way, found
                    return
        elif reference.is_unmodified and reference.uri is not None:
            found = list(self.of_uri(reference.uri, near))
            if found:
                yield "unmodified", found

    def _placed(self, reference: Reference[K], named: list[C]) -> list[C]:
        date = reference.date
        if reference.uri is None or date is None:
            return []
        found = self._fitting(self.in_second(reference.uri, date // _SECOND_MS), reference)
        if both := [capture for capture in found if capture in named]:
            return both
        distances = [abs((capture.date_ms or 0) - date) for capture in found]
        return [one for one, distance in zip(found, distances, strict=True) if distance == min(distances)]

    def _fitting(self, captures: Iterable[C], reference: Reference[K]) -> list[C]:
        return [capture for capture in captures if self._fits(capture, reference.digest)]

    def _fits(self, capture: C, digest: str | None) -> bool:
        if digest is None or capture.digest == digest:
            return True
        label = digest.partition(":")[0]
        if label in hashlib.algorithms_guaranteed and not label.startswith("shake"):
            return self.has_payload(capture, digest)
        return capture.digest is None or capture.digest.partition(":")[0] != label


def reference_keys(reference: Reference[str]) -> list[bytes]:
    """The keys in `CaptureRow` of the ids and URIs with which `Captures.ways` looks captures up."""
    ids = [_key(reference.id)] if reference.id is not None else []
    return ids + [uri_key(uri) for uri in (reference.uri, reference.own_uri) if uri is not None]


class FiledCapture(NamedTuple):
    """A row of a `CaptureTable`: its number, in the order of addition, and where the record is."""

    number: int
    date_ms: int
    digest: str | None
    file: int
    offset: int
    block_position: int


class CaptureRow(NamedTuple):
    """What a `CaptureTable` needs of a record that may be an original: its date, digest and place; ``id`` and ``uri`` are
    hashes.
    """

    date_ms: int
    digest: str | None
    offset: int
    block_position: int
    id: bytes | None
    uri: bytes
    is_partial: bool
    is_page: bool


def capture_row(record: StoredRecord) -> CaptureRow | None:
    """The row of a record that may be an original; None for any other record."""
    if not can_be_original(record) or not record.target_uri:
        return None
    record_id, is_whole = bare_id(record.id), record.is_whole
    return CaptureRow(
        milliseconds(record.date) or 0,
        digest_of(record),
        record.offset,
        record.frame.block_position,
        _key(record_id) if record_id else None,
        uri_key(record.target_uri),
        not is_whole,
        is_whole and record.http_status == 200,
    )


_COLUMNS = "number, date_ms, digest, file, offset, block_position"
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE captures (
    number INTEGER PRIMARY KEY, date_ms INTEGER NOT NULL, digest TEXT, file INTEGER NOT NULL, offset INTEGER NOT NULL,
    block_position INTEGER NOT NULL, id BLOB, uri BLOB NOT NULL,
    is_partial INTEGER NOT NULL, -- truncated, a segment, or a 206
    is_page INTEGER NOT NULL     -- status 200 and not partial
);
BEGIN;
"""
_INDEXES = """
CREATE INDEX captures_by_id ON captures (id) WHERE id IS NOT NULL;
CREATE INDEX captures_by_uri ON captures (uri, date_ms);
CREATE INDEX captures_by_digest ON captures (digest, is_partial, date_ms) WHERE digest IS NOT NULL;
"""
_NEAREST = "ORDER BY is_partial, abs(date_ms - ?), number LIMIT 1"


class CaptureTable(Captures[str, FiledCapture]):
    """The captures in files that are read one after the other, in a temporary SQLite database.

    Of several captures whole ones come first. Memory is bounded, except for the list of files: SQLite moves a large
    database to a temporary file. URIs and ids are kept as hashes. `close` deletes the database.
    """

    def __init__(self) -> None:
        # The empty name makes a temporary database that SQLite removes itself.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(_TABLES)
        self._files: list[ReadableFile] = []
        self._is_indexed = False

    def add(self, record: StoredRecord) -> int | None:
        """Add a record that may be an original, and return its number; None for any other record."""
        row = capture_row(record)
        return None if row is None else self.add_row(record.path, row)

    def add_row(self, file: ReadableFile, row: CaptureRow) -> int | None:
        """Add a capture in *file* from its row, and return its number."""
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        values = (
            row.date_ms,
            row.digest,
            len(self._files) - 1,
            row.offset,
            row.block_position,
            row.id,
            row.uri,
            row.is_partial,
            row.is_page,
        )
        return self._database.execute(
            "INSERT INTO captures VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values
        ).lastrowid

    def noted(self, records: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """Yield the records unchanged, adding each to the table."""
        for record in records:
            self.add(record)
            yield record

    def file_of(self, capture: FiledCapture) -> ReadableFile:
        """The file that holds a capture."""
        return self._files[capture.file]

    def record_of(self, capture: FiledCapture) -> StoredRecord:
        """Read a capture again. Raises OSError, and DamagedInput if the record is gone."""
        return read_record(self.file_of(capture), capture.offset, block_position=capture.block_position)

    def close(self) -> None:
        """Delete the table."""
        self._database.close()

    def with_id(self, record_id: str) -> Iterable[FiledCapture]:
        return self._found("id = ? ORDER BY is_partial, number", _key(record_id))

    def in_second(self, uri: str, second: int) -> Iterable[FiledCapture]:
        first = second * _SECOND_MS
        where = "uri = ? AND date_ms BETWEEN ? AND ? ORDER BY is_partial, number"
        return self._found(where, uri_key(uri), first, first + _SECOND_MS - 1)

    def with_digest(self, digest: str, uri: str | None, date_ms: int) -> Iterable[FiledCapture]:
        if uri is not None:
            return self._found(f"digest = ? AND uri = ? {_NEAREST}", digest, uri_key(uri), date_ms)
        # A million records may have one digest. The index gives the nearest before and after a date without sorting.
        found: list[FiledCapture] = []
        for is_partial in (False, True):
            for where in ("date_ms >= ? ORDER BY date_ms", "date_ms < ? ORDER BY date_ms DESC"):
                where = f"digest = ? AND is_partial = ? AND {where}, number LIMIT 1"
                found += self._found(where, digest, is_partial, date_ms)
            if found:
                break
        return sorted(found, key=lambda capture: (abs(capture.date_ms - date_ms), capture.number))[:1]

    def of_uri(self, uri: str, date_ms: int) -> Iterable[FiledCapture]:
        return self._found(f"uri = ? AND is_page {_NEAREST}", uri_key(uri), date_ms)

    def has_payload(self, capture: FiledCapture, digest: str) -> bool:
        try:
            return has_payload(self.record_of(capture), digest)
        except (OSError, DamagedInput):
            return False

    def _found(self, where: str, *values: object) -> list[FiledCapture]:
        if not self._is_indexed:
            self._database.executescript(_INDEXES)
            self._is_indexed = True
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM captures WHERE {where}", values)  # noqa: S608
        return [FiledCapture(*row) for row in rows]


def _key(record_id: str) -> bytes:
    return hashlib.blake2b(record_id.encode("utf-8", "surrogateescape"), digest_size=_KEY_BYTES).digest()
