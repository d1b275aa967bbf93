"""Facts about both versions of an archive, on disk: payloads by place and id, revisits, and references.

Each pair of compared files has one SQLite file without indexes, written by the process that reads the pair
(`evidence_writer`). They are merged into one file with indexes (`Evidence`). The files are deleted after the
verification, so they are neither synced nor journalled. The tables ``captures``, ``revisits`` and ``links`` have the rows of
`Held`, `RevisitRow` and `LinkRow`; a revisit or response that got a new id is also in the view ``renamed``. ``others`` has the
ids of all records that are neither captures nor revisits. ``ambiguous`` has the places after at which there are several payloads.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import contextmanager
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.warc.references import (
    Captures,
    Reference,
    bare_id,
    digest_key,
    has_payload,
    is_unmodified,
    milliseconds,
    uri_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.warc.bodies import BodyDigest
    from scrapy_dedupe.warc.reading import StoredRecord

HashedRecord = tuple["StoredRecord", "Sequence[BodyDigest]"]
"""A record with the digests of its payload in the algorithms of `algorithms_of`."""

BEFORE, AFTER, BOTH, ELSEWHERE = 1, 2, 3, 7
"""The archives that contain a capture: bit 1 before, bit 2 after. ELSEWHERE: an original that is outside of both."""

UNCHANGED, CONVERTED, REPOINTED, UNDONE, RECHUNKED = range(5)
"""What happened to a record. UNDONE: its reference was reverted, or it became a response again. RECHUNKED: only one side stores
its payload in chunks."""

PAYLOAD_TYPES = ("response", "resource")

_MOST_HELD = 1_000
_KEPT_ANSWERS = 1_024
_ALIKE = "sha, digest, text, whole, chunked, page"
# Each has all columns of its queries, since looking up rows would read a page of the file for each.
_INDEXES = (
    "CREATE INDEX by_place ON captures (place, sha, sides) WHERE place IS NOT NULL",
    "CREATE INDEX by_id ON captures (id, sides, file) WHERE id IS NOT NULL",
    "CREATE INDEX by_key ON captures (key, sides, chunked) WHERE key IS NOT NULL",
    "CREATE INDEX by_target ON revisits (key, a_unchunked) WHERE key IS NOT NULL",
    "CREATE INDEX by_new_id ON revisits (new_id, change, old_id, former_id, a_uri) WHERE new_id IS NOT NULL",
    "CREATE INDEX by_old_id ON revisits (old_id, new_id, change, a_uri, pair) WHERE old_id IS NOT NULL",
    "CREATE INDEX changed ON links (old, new, field, pair) WHERE old IS NOT new",
    "CREATE INDEX by_other_id ON others (id)",
    "CREATE VIEW renamed AS SELECT * FROM revisits WHERE change = 1 OR (change = 3 AND a_uri IS NULL)",
    "CREATE TABLE ambiguous (place PRIMARY KEY) WITHOUT ROWID",
    (
        "INSERT INTO ambiguous SELECT place FROM captures WHERE sides & 2 AND place IS NOT NULL"
        " GROUP BY place HAVING min(sha) <> max(sha)"
    ),
)


class ReferenceRow(NamedTuple):
    """The reference of a revisit to its original, hashed as in ``captures``.

    ``target`` is the URI that it refers to, ``uri`` its own. ``date``, ``own_date`` and ``digest`` are texts.
    ``unmodified`` is 1 if it represents a 304; ``unchunked`` is 1 if it has an HTTP head that does not announce chunks.
    """

    id: bytes | None
    bare: int
    place: bytes | None
    date: str | None
    target: bytes | None
    uri: bytes
    own_date: str | None
    digest: str | None
    unmodified: int
    unchunked: int

    @property
    def named(self) -> Reference[bytes]:
        """The reference, in the form that `Captures` resolves."""
        dates = milliseconds(self.date), milliseconds(self.own_date)
        digest = digest_key(self.digest)
        return Reference(self.id, self.target, dates[0], digest, self.uri, dates[1], bool(self.unmodified))


class Held(NamedTuple):
    """A response or resource. A row that was queried represents all rows that are equal in the queried columns.

    ``uri`` is the key of the URI, ``place`` a hash of the URI and the date to the second, ``id`` a hash of the record id;
    ``bare`` is `is_bare` of the id. ``sides`` is BEFORE, AFTER, BOTH or ELSEWHERE. ``sha`` is the SHA-256 of the stored
    payload. ``digest`` is the WARC-Payload-Digest in normal form, or the SHA-1 that replay programs compute if there is none;
    ``text`` is the WARC-Payload-Digest as written, if that differs. ``whole`` is 0 for a truncated payload, ``chunked`` 1 for
    one stored in chunks. ``page`` is 1 for a response with status 200, and None for a capture that cannot be an original, such
    as a 304. ``file`` numbers the files: 2n and 2n + 1 are the files of pair n before and after. ``position`` distinguishes
    records that share a gzip member. ``key`` is its `key_of`, None if it is truncated.
    """

    uri: bytes
    sides: int
    place: bytes | None
    id: bytes | None
    bare: int
    date: str | None
    sha: bytes
    digest: str | None
    text: str | None
    whole: int
    chunked: int
    page: int | None
    file: int
    offset: int
    position: int | None
    key: bytes | None

    @property
    def date_ms(self) -> int | None:
        return milliseconds(self.date)

    @property
    def digest_text(self) -> str | None:
        """The digest as the record writes it."""
        return self.text or self.digest


class RevisitRow(NamedTuple):
    """A revisit before, after or on both sides, or a response that was one.

    ``sha`` is the required payload, None if only the reference identifies it. ``new_id`` is the record id after,
    ``former_id`` its former id according to the record. If a response became a revisit (``change`` is CONVERTED), or a
    revisit became a response, ``old_id`` is the record id before. ``key`` is the `key_of` its original, if a response became a
    revisit.
    """

    pair: int
    change: int
    before_offset: int | None
    before_position: int | None
    after_offset: int | None
    sha: bytes | None
    old_id: bytes | None
    new_id: bytes | None
    former_id: bytes | None
    key: bytes | None = None
    before: ReferenceRow | None = None
    after: ReferenceRow | None = None


class LinkRow(NamedTuple):
    """The id in a WARC-Concurrent-To, or in the WARC-Refers-To of a record that is no revisit, before and after.

    With field ``place``: a reference by URI and date that changed.
    """

    pair: int
    before_offset: int | None
    after_offset: int
    field: str
    old: bytes | None
    new: bytes | None


_OWN = RevisitRow._fields[:-2]
_REFERENCE = ReferenceRow._fields
NO_REFERENCE = (None,) * len(_REFERENCE)
TABLES = {
    "captures": Held._fields,
    "revisits": (*_OWN, *(f"{side}_{name}" for side in "ba" for name in _REFERENCE)),
    "links": LinkRow._fields,
    "others": ("id",),
}


def hashed_id(text: str | None) -> bytes | None:
    """The hash of a record id in the tables. Angle brackets, which some writers omit, are ignored."""
    record_id = bare_id(text)
    return (
        blake2b(record_id.encode("utf-8", "surrogateescape"), digest_size=16).digest() if record_id else None
    )


def hashed_place(uri: str | None, date: str | None) -> bytes | None:
    """The hash of a URI and a date to the second in the tables."""
    time = milliseconds(date)
    return None if not uri or time is None else place_of_key(uri_key(uri), time // 1_000)


def place_of_key(key: bytes, second: int) -> bytes:
    """Like `hashed_place`, from the key of a URI and the seconds since 1970."""
    return blake2b(key + b" %d" % second, digest_size=16).digest()


def key_of(
    place: bytes | None,
    record_id: bytes | None,
    bare: int,
    date: str | None,
    sha: bytes | None,
    digest: str | None,
) -> bytes | None:
    """A hash of the values in which the reference of a new revisit must equal its original; None if one is missing."""
    if place is None or record_id is None or date is None or sha is None or digest is None:
        return None
    texts = f"{bare}\n{date}\n{digest}".encode("utf-8", "surrogateescape")
    return blake2b(place + record_id + sha + texts, digest_size=16).digest()


def row_of(revisit: StoredRecord) -> ReferenceRow:
    """The reference of a revisit."""
    record_id, date, http = revisit.refers_to, revisit.refers_to_date, revisit.http
    target = (revisit.refers_to_uri or "").strip()
    return ReferenceRow(
        hashed_id(record_id),
        is_bare(record_id),
        hashed_place(target, date),
        date,
        uri_key(target) if target else None,
        uri_key(revisit.target_uri or ""),
        revisit.date,
        payload_digest_text(revisit),
        int(is_unmodified(revisit)),
        int(http is not None and not http.is_chunked),
    )


def payload_digest_text(record: StoredRecord) -> str | None:
    """The text of WARC-Payload-Digest; None if it is missing or empty."""
    return (record.get("WARC-Payload-Digest") or "").strip() or None


def algorithms_of(record: StoredRecord) -> tuple[str, ...]:
    """The algorithms of the payload digests that are needed as evidence."""
    if record.type not in PAYLOAD_TYPES:
        return ()
    # Replay programs compute a SHA-1 if no digest is stored.
    return ("sha256",) if payload_digest_text(record) else ("sha256", "sha1")


def is_bare(record_id: str | None) -> int:
    """0 for an id in angle brackets, or none; 1 for an id without them; 2 for an id with other or single brackets."""
    text, bare = (record_id or "").strip(), bare_id(record_id)
    return 0 if not text or text == f"<{bare}>" else 1 if text == bare else 2


class Evidence:
    """The facts about all pairs, and queries to resolve references.

    All methods raise sqlite3.Error, for example if the disk is full; see `as_archive_errors`.
    """

    def __init__(self, path: Path) -> None:
        self._db = open_tables(path)
        self._has_digests = False

    def add(self, parts: Iterable[Path]) -> None:
        """Add the files of the `evidence_file` of all pairs, in the order of the pairs, and remove them."""
        for part in parts:
            self._db.execute("ATTACH ? AS part", (bytes(part),))  # a file name may not be valid text
            for table in TABLES:
                self._db.execute(f"INSERT INTO {table} SELECT * FROM part.{table}")  # noqa: S608 - constant names
            self._db.commit()
            self._db.execute("DETACH part")
            part.unlink()
        for statement in _INDEXES:
            self._db.execute(statement)

    @cached_property
    def converted_count(self) -> int:
        """The number of responses that became revisits."""
        ((count,),) = self._db.execute("SELECT count(*) FROM revisits WHERE change = ?", (CONVERTED,))
        return int(count)

    def sample(self, size: int, seed: int) -> Iterator[RevisitRow]:
        """At most *size* random responses that became revisits."""
        count = self.converted_count
        chosen = set(random.Random(seed).sample(range(count), min(size, count)))  # noqa: S311 - not for cryptography
        rows = self._db.execute("SELECT rowid FROM revisits WHERE change = ? ORDER BY rowid", (CONVERTED,))
        for rowid in [rowid for number, (rowid,) in enumerate(rows) if number in chosen]:
            yield from self.revisits(f"SELECT {rowid}")

    def revisits(self, query: str) -> Iterator[RevisitRow]:
        """The rows of ``revisits`` whose rowid an SQL query yields, in the order of the files."""
        own, size = len(_OWN), len(_REFERENCE)
        for row in self._rows("revisits", query):
            found = [ReferenceRow(*row[start : start + size]) for start in (own, own + size)]
            yield RevisitRow._make((*row[:own], *(None if one.uri is None else one for one in found)))

    def links(self, query: str) -> Iterator[LinkRow]:
        """The rows of ``links`` whose rowid an SQL query yields, in the order of the files."""
        return map(LinkRow._make, self._rows("links", query))

    def _rows(self, table: str, query: str) -> Iterable[Any]:
        return self._db.execute(f"SELECT * FROM {table} WHERE rowid IN ({query}) ORDER BY rowid")  # noqa: S608 - constants

    def captures(self, where: str, alike: str, side: int, *keys: object) -> tuple[Held, ...]:
        """The captures of a side that match an SQL condition. Captures that are equal in the columns *alike* are returned once."""
        if where.startswith(("digest", "uri")) and not self._has_digests:
            # Only revisits with a missing or wrong date need these indexes.
            self._db.execute("CREATE INDEX by_digest ON captures (digest, uri)")
            self._db.execute("CREATE INDEX by_uri ON captures (uri)")
            self._has_digests = True
        # Group in SQL: a URI that was captured a million times in one second must not yield a million rows.
        rows = self._db.execute(
            f"SELECT *, min(rowid) FROM captures WHERE {where} AND sides & ? GROUP BY {alike} LIMIT {_MOST_HELD}",  # noqa: S608 - constants
            (*keys, side),
        )
        return tuple(Held(*row[:-1]) for row in rows)

    def close(self) -> None:
        self._db.close()


class Side(Captures[bytes, Held]):
    """The captures on one side, to resolve the references of revisits. *read* returns the record of a capture."""

    def __init__(self, evidence: Evidence, side: int, read: Callable[[Held], StoredRecord]) -> None:
        self._read = read
        # Revisits of one original are often next to each other.
        self._find = lru_cache(_KEPT_ANSWERS)(
            lambda where, alike, *keys: evidence.captures(where, alike, side, *keys)
        )
        self._computed = lru_cache(_KEPT_ANSWERS)(self._has_payload)

    def at_place(self, place: bytes) -> tuple[Held, ...]:
        """The captures of a URI and second. Captures that differ only in the value of their id are returned once."""
        return self._find("place = ?", f"date, id IS NULL, {_ALIKE}", place)

    def named(self, record_id: bytes) -> tuple[Held, ...]:
        """The captures with a record id, also if they cannot be originals."""
        return self._find("id = ?", f"place, date, bare, {_ALIKE}", record_id)

    def of_digest(self, digest: str, uri: bytes | None) -> tuple[Held, ...]:
        """The captures with a digest (as from `digest_key`), of one URI or all. Each payload is returned once."""
        if uri is None:
            return self._find("digest = ?", _ALIKE, digest)
        return self._find("digest = ? AND uri = ?", _ALIKE, digest, uri)

    def of_payload(self, uri: bytes, sha: bytes) -> tuple[Held, ...]:
        """The captures of a URI whose payload has this SHA-256, regardless of their digest."""
        return self._find("uri = ? AND sha = ?", _ALIKE, uri, sha)

    def with_id(self, record_id: bytes) -> list[Held]:
        return _originals(self.named(record_id))

    def in_second(self, uri: bytes, second: int) -> list[Held]:
        return _originals(self.at_place(place_of_key(uri, second)))

    def with_digest(self, digest: str, uri: bytes | None, date_ms: int) -> list[Held]:
        return _nearest_first(_originals(self.of_digest(digest, uri)), date_ms)

    def of_uri(self, uri: bytes, date_ms: int) -> list[Held]:
        # The whole captures with status 200, one for each date and payload.
        pages = self._find("uri = ? AND whole AND page", f"date, {_ALIKE}", uri)
        return _nearest_first(pages, date_ms)[:1]

    def has_payload(self, capture: Held, digest: str) -> bool:
        return digest == f"sha256:{capture.sha.hex()}" or self._computed(capture, digest)

    def _has_payload(self, capture: Held, digest: str) -> bool:
        try:
            return has_payload(self._read(capture), digest)
        except DamagedInput:
            return False


def _originals(captures: Iterable[Held]) -> list[Held]:
    return [held for held in captures if held.page is not None]


def _nearest_first(captures: Iterable[Held], date_ms: int) -> list[Held]:
    return sorted(captures, key=lambda held: abs((held.date_ms or 0) - date_ms))


def open_tables(path: Path) -> sqlite3.Connection:
    """A new database with the tables of the evidence. Raises sqlite3.Error."""
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -65536")
        # By default SQLite may sort in memory, or in another folder.
        db.execute("PRAGMA temp_store = FILE")
        for table, columns in TABLES.items():
            db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    except sqlite3.Error:
        db.close()
        raise
    return db


@contextmanager
def as_archive_errors(folder: Path) -> Iterator[None]:
    """Raise ArchiveError for an error of SQLite, which stores the facts in *folder*."""
    try:
        yield
    except sqlite3.Error as error:
        raise ArchiveError(
            f"Cannot use {folder}, where the verification stores its data: {error}. The verification needs about"
            " 300 bytes for each record there, and 30 for sorting in the folder for temporary files (TMPDIR)."
        ) from error
