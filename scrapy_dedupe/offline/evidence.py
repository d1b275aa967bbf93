"""What both sides of an archive hold, on disk: payloads by place and id, revisits, and who refers to whom.

One SQLite file for each pair of files that is compared, without any index, written by the process that reads the pair
(`EvidenceWriter`); all of them together in one more, with indexes (`Evidence`). Nothing of it is kept after the
verification, so it is neither synced nor journalled.

``captures``: a response or resource. ``place`` is a hash of its URI and its date to the second, ``uri`` the key of the URI,
``id`` one of the record id, ``bare`` is 1 if that stands without angle brackets; ``sha`` is the SHA-256 of its stored
payload; ``digest`` its digest in one form, the SHA-1 that replay programs compute where it has none, and ``text`` what
WARC-Payload-Digest says if that is another text;
``whole`` is 0 for a payload that was cut, ``chunked`` 1 for one that is stored in chunks; ``page`` is 1 for a response with
status 200, and NULL for one that is no original, such as a 304. ``sides`` has the bit 1 if it
is in the archive before, 2 if in that after. ``file`` counts the files: 2n and 2n + 1 are those of pair n before and
after.

``revisits``: one that is there before (``b_`` columns), after (``a_``) or on both sides; ``sha`` is what its payload
has to be, NULL if only its reference tells; ``own_id`` is its record id after, and ``own_former`` the one which it says
that it had. A ``position`` tells apart records that share a gzip member.

``links``: what other records name in WARC-Concurrent-To or WARC-Refers-To, before (``old``) and after (``new``); as
``place`` what they name by URI and date, where that changed.

``renamed``: the ids of responses that became revisits (``change`` is CONVERTED) and the other way round, as they were and
as they are.

``others``: the ids of all records that are neither captures nor revisits.
"""

from __future__ import annotations

import base64
import sqlite3
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.offline.eligibility import is_whole
from scrapy_dedupe.warc.bodies import payload_digest, payload_pieces
from scrapy_dedupe.warc.references import (
    Captures,
    Reference,
    bare_id,
    can_be_original,
    digest_key,
    has_payload,
    milliseconds,
    reference_of,
    uri_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.warc.reading import StoredRecord

BEFORE, AFTER, BOTH = 1, 2, 3

UNCHANGED, CONVERTED, REPOINTED, UNDONE = range(4)
"""What happened to a revisit. UNDONE: its reference was put back, or it became a response again."""

_BATCH_ROWS = 5_000
_MOST_HELD = 1_000
_KEPT_ANSWERS = 1_024
_ALIKE = "sha, digest, text, whole, chunked, page"
_REFERENCE = (
    "id", "bare", "place", "date", "target", "uri", "own_date", "digest", "unmodified", "unchunked"
)  # fmt: skip

_TABLES = {
    "captures": "place, uri, id, bare, date, sha, digest, text, whole, chunked, page, sides, file, offset, position",
    "revisits": "pair, change, b_offset, a_offset, sha, own_id, own_former, b_position, "
    + ", ".join(f"{side}_{name}" for side in "ba" for name in _REFERENCE),
    "links": "pair, b_offset, a_offset, field, old, new",
    "renamed": "pair, b_offset, a_offset, change, old, new",
    "others": "id",
}
_INDEXES = (
    "CREATE INDEX by_place ON captures (place)",
    "CREATE INDEX by_id ON captures (id) WHERE id IS NOT NULL",
    "CREATE INDEX by_own_id ON revisits (own_id)",
    "CREATE INDEX by_old ON renamed (old, new)",
    "CREATE INDEX by_new ON renamed (new)",
)


class ReferenceRow(NamedTuple):
    """What a revisit says of its original, hashed as in ``captures``.

    ``target`` is the URI that it refers to, ``uri`` its own; ``date``, ``own_date`` and ``digest`` are texts;
    ``unmodified`` is 1 if it stands for a 304, ``unchunked`` if it has an HTTP head and that does not say that the body
    is in chunks.
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
        """The reference, to be resolved."""
        dates = milliseconds(self.date), milliseconds(self.own_date)
        digest = digest_key(self.digest)
        return Reference(self.id, self.target, dates[0], digest, self.uri, dates[1], bool(self.unmodified))


class Held(NamedTuple):
    """A row of ``captures``, for all that are alike in what is asked."""

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

    @property
    def date_ms(self) -> int | None:
        return milliseconds(self.date)

    @property
    def digest_text(self) -> str | None:
        """The digest as the record writes it."""
        return self.text or self.digest


class RevisitRow(NamedTuple):
    """A row of ``revisits``."""

    pair: int
    change: int
    before_offset: int | None
    after_offset: int | None
    sha: bytes | None
    before: ReferenceRow | None
    after: ReferenceRow | None


def hashed(text: str) -> bytes:
    """A text as the tables keep it."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def hashed_id(text: str | None) -> bytes | None:
    """A record id as the tables keep it; some writers leave the angle brackets out."""
    record_id = bare_id(text)
    return hashed(record_id) if record_id else None


def hashed_place(uri: str | None, date: str | None) -> bytes | None:
    """A URI and a date to the second as the tables keep them."""
    time = milliseconds(date)
    return None if not uri or time is None else place_of_key(uri_key(uri), time // 1_000)


def place_of_key(key: bytes, second: int) -> bytes:
    """The same, of the key of a URI and a second since 1970."""
    return blake2b(key + b" %d" % second, digest_size=16).digest()


def row_of(revisit: StoredRecord) -> ReferenceRow:
    """What a revisit says of its original."""
    named = reference_of(revisit)
    target = named.uri
    return ReferenceRow(
        hashed_id(named.id),
        is_bare(revisit.refers_to),
        hashed_place(target, revisit.refers_to_date),
        revisit.refers_to_date,
        uri_key(target) if target else None,
        uri_key(named.own_uri),
        revisit.date,
        stored_digest(revisit),
        int(named.is_unmodified),
        int(revisit.http is not None and not revisit.http.is_chunked),
    )


def stored_digest(record: StoredRecord) -> str | None:
    """The text of WARC-Payload-Digest; an empty one is none."""
    return (record.get("WARC-Payload-Digest") or "").strip() or None


def _is_in_chunks(record: StoredRecord) -> bool:
    """Whether a body is stored in chunks, and not only announced so."""
    if record.http is None or not record.http.is_chunked:
        return False
    return sum(map(len, payload_pieces(record))) != record.frame.block_length - record.http.length


def is_bare(record_id: str | None) -> int:
    """Whether an id stands without angle brackets, as 0 or 1."""
    return int(bool(record_id) and not str(record_id).strip().startswith("<"))


class EvidenceWriter:
    """Writes what one pair of files tells, a batch of rows at a time."""

    def __init__(self, path: Path, pair: int) -> None:
        self._pair = pair
        self._rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in _TABLES}
        with _in_words(path):
            self._db = _open(path)
        self._path = path

    def add_capture(self, record: StoredRecord, sha: bytes, sides: int, *, sha1: bytes | None = None) -> None:
        """A response or resource of the file before (``BEFORE``), or of that after.

        *sha1* is that of its payload; without it, it is computed if the record has no digest.
        """
        uri, date = record.target_uri, record.date
        text = stored_digest(record)
        digest = digest_key(text)
        if digest is None:
            sha1 = sha1 or bytes.fromhex(payload_digest(record, "sha1").hex)
            digest = f"sha1:{base64.b32encode(sha1).decode()}"
        row = (
            hashed_place(uri, date), uri_key(uri or ""), hashed_id(record.id), is_bare(record.id), date, sha,
            digest, None if text == digest else text, int(is_whole(record)), int(_is_in_chunks(record)),
            int(record.http_status == 200) if can_be_original(record) else None,
            sides, 2 * self._pair + (sides != BEFORE), record.offset, _position(record),
        )  # fmt: skip
        self._add("captures", row)

    def add_revisit(
        self,
        change: int,
        before: StoredRecord | None,
        after: StoredRecord | None,
        *,
        before_offset: int | None = None,
        sha: bytes | None = None,
    ) -> None:
        """A revisit and its former self, either of which may be a response.

        *before_offset* is given if *before* was read from the file after, where it has the same bytes.
        """
        references = [
            row_of(record) if record and record.type == "revisit" else (None,) * len(_REFERENCE)
            for record in (before, after)
        ]
        own_id = own_former = None
        if after and after.type == "revisit":
            own_id, own_former = hashed_id(after.id), hashed_id(after.get("Former-WARC-Record-ID"))
        before_offset = before.offset if before_offset is None and before else before_offset
        row = (
            self._pair, change, before_offset, after.offset if after else None, sha,
            own_id, own_former, _position(before), *references[0], *references[1],
        )  # fmt: skip
        self._add("revisits", row)

    def add_link(
        self, field: str, old: str | None, new: str | None, before_offset: int | None, after_offset: int
    ) -> None:
        """A value of a field that names another record, and what it was before."""
        self._add("links", (self._pair, before_offset, after_offset, field, hashed_id(old), hashed_id(new)))

    def add_place(self, before: StoredRecord, after: StoredRecord) -> None:
        """What a record that is no revisit names by URI and date, if that changed."""
        old, new = (hashed_place(record.refers_to_uri, record.refers_to_date) for record in (before, after))
        if (before.refers_to_uri, before.refers_to_date) != (after.refers_to_uri, after.refers_to_date):
            self._add("links", (self._pair, before.offset, after.offset, "place", old, new))

    def add_renamed(self, change: int, before: StoredRecord, after: StoredRecord) -> None:
        """The id of a record before and after. A record of an ARC file had the one which the revisit says."""
        old = before.id if before.format != "arc" else after.get("Former-WARC-Record-ID")
        row = (self._pair, before.offset, after.offset, change, hashed_id(old), hashed_id(after.id))
        self._add("renamed", row)

    def add_other(self, record: StoredRecord) -> None:
        """A record that is neither a capture nor a revisit."""
        if record.id is not None:
            self._add("others", (hashed_id(record.id),))

    def close(self) -> None:
        for table in self._rows:
            self._flush(table)
        with _in_words(self._path):
            self._db.commit()
            self._db.close()

    def _add(self, table: str, row: tuple[object, ...]) -> None:
        rows = self._rows[table]
        rows.append(row)
        if len(rows) >= _BATCH_ROWS:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._rows[table]
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            with _in_words(self._path):
                self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 - names of ours
            rows.clear()


class Evidence:
    """What all pairs tell, and what references lead to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _in_words(path):
            self._db = _open(path)
        self._has_digests = False
        # Revisits of one original stand together as often as not.
        self._answers = lru_cache(_KEPT_ANSWERS)(self._held)

    def add_part(self, path: Path) -> None:
        """Take what an `EvidenceWriter` has written, and remove its file. Parts come in the order of the pairs."""
        with _in_words(self._path):
            self._db.execute("ATTACH ? AS part", (bytes(path),))  # a text cannot hold every name
            for table in _TABLES:
                self._db.execute(f"INSERT INTO {table} SELECT * FROM part.{table}")  # noqa: S608 - names of ours
            self._db.commit()
            self._db.execute("DETACH part")
        path.unlink()

    def make_indexes(self) -> None:
        """Make it fit for questions, after the last part."""
        with _in_words(self._path):
            for statement in _INDEXES:
                self._db.execute(statement)

    def revisits(self) -> Iterator[RevisitRow]:
        """All revisits, in the order of the files."""
        for row in self._rows("SELECT * FROM revisits ORDER BY rowid"):
            pair, change, before_offset, after_offset, sha, _, _, _, *references = row
            before, after = references[: len(_REFERENCE)], references[len(_REFERENCE) :]
            yield RevisitRow(
                pair, change, before_offset, after_offset, sha,
                ReferenceRow(*before) if before[5] is not None else None,
                ReferenceRow(*after) if after[5] is not None else None,
            )  # fmt: skip

    def converted_count(self) -> int:
        """How many responses became revisits."""
        return int(next(self._rows("SELECT count(*) FROM revisits WHERE change = ?", (CONVERTED,)))[0])

    def converted_places(self, numbers: Iterable[int]) -> Iterator[tuple[int, int, int | None, int]]:
        """Pair, offset and position before, offset after of the converted records of these numbers, from 0 on."""
        wanted = iter(sorted(numbers))
        number = next(wanted, None)
        columns = "pair, b_offset, b_position, a_offset"
        rows = self._rows(f"SELECT {columns} FROM revisits WHERE change = ? ORDER BY rowid", (CONVERTED,))  # noqa: S608 - names of ours
        for index, row in enumerate(rows):
            if number is None:
                return
            if index == number:
                yield row
                number = next(wanted, None)

    def at_place(self, place: bytes, sides: int) -> tuple[Held, ...]:
        """The captures of a URI and second, one for all with the same date, payload and digest, with an id or without."""
        return self._answers("place = ?", f"date, id IS NULL, {_ALIKE}", sides, place)

    def with_id(self, record_id: bytes, sides: int) -> tuple[Held, ...]:
        """The captures with a record id, one for all that are alike."""
        return self._answers("id = ?", f"place, date, bare, {_ALIKE}", sides, record_id)

    def with_digest(self, digest: str, uri: bytes | None, sides: int) -> tuple[Held, ...]:
        """The captures with a digest, as `digest_key` gives it, of a URI or of any, one for each payload."""
        self._index_digests()
        if uri is None:
            return self._answers("digest = ?", _ALIKE, sides, digest)
        return self._answers("digest = ? AND uri = ?", _ALIKE, sides, digest, uri)

    def with_payload(self, uri: bytes, sha: bytes, sides: int) -> tuple[Held, ...]:
        """The captures of a URI with the payload of a SHA-256, whatever digest they have."""
        self._index_digests()
        return self._answers("uri = ? AND sha = ?", _ALIKE, sides, uri, sha)

    def of_uri(self, uri: bytes, sides: int) -> tuple[Held, ...]:
        """The whole captures of a URI with status 200, one for all with the same date and payload."""
        self._index_digests()
        return self._answers("uri = ? AND whole AND page", f"date, {_ALIKE}", sides, uri)

    def _index_digests(self) -> None:
        if not self._has_digests:
            # Only revisits that name no date or a wrong one are resolved in this way.
            with _in_words(self._path):
                self._db.execute("CREATE INDEX by_digest ON captures (digest, uri)")
                self._db.execute("CREATE INDEX by_uri ON captures (uri)")
            self._has_digests = True

    def was_renamed(self, old: bytes, new: bytes) -> Iterator[int]:
        """The pairs in which a record with the id *old* before has the id *new* after."""
        rows = self._rows("SELECT pair FROM renamed WHERE old = ? AND new = ?", (old, new))
        return (row[0] for row in rows)

    def files_with_id(self, record_id: bytes, sides: int) -> Iterator[int]:
        """The files whose captures have a record id."""
        rows = self._rows("SELECT file FROM captures WHERE id = ? AND sides & ?", (record_id, sides))
        return (row[0] for row in rows)

    def is_on_a_record(self, record_id: bytes) -> bool:
        """Whether any record of either archive has an id."""
        return any(
            next(self._rows(f"SELECT 1 FROM {table} WHERE {column} = ? LIMIT 1", (record_id,)), None)  # noqa: S608 - names of ours
            for table, column in (("captures", "id"), ("revisits", "own_id"), ("others", "id"))
        )

    def reused_ids(self) -> Iterator[tuple[int, int, int]]:
        """Pair and offsets of each new revisit whose id stands on another record.

        Revisits of records that had one id have one id too, whenever they were made.
        """
        yield from self._rows(
            "SELECT pair, b_offset, a_offset FROM renamed r WHERE change = ? AND new IS NOT NULL AND ("
            " EXISTS (SELECT 1 FROM captures WHERE id = r.new)"
            " OR EXISTS (SELECT 1 FROM revisits WHERE own_id = r.new AND own_former IS NOT r.old)"
            " OR EXISTS (SELECT 1 FROM renamed WHERE new = r.new AND old IS NOT r.old)"
            " OR new IN (SELECT id FROM others)) ORDER BY rowid",
            (CONVERTED,),
        )

    def changed_links(self) -> Iterator[tuple[int, int, int, str, bytes | None, bytes | None]]:
        """Pair, offsets, field, old and new id of each link that is another one than before."""
        yield from self._rows("SELECT * FROM links WHERE old IS NOT new ORDER BY rowid")

    def dangling_links(self) -> Iterator[tuple[int, int, int, str]]:
        """Pair, offsets and field of each link to an id that a record had, and none has now."""
        yield from self._rows(
            "SELECT links.pair, links.b_offset, links.a_offset, field FROM links"
            " WHERE field <> 'place' AND new IN (SELECT old FROM renamed)"
            " AND NOT EXISTS (SELECT 1 FROM captures WHERE captures.id = links.new AND sides & ?)"
            " AND NOT EXISTS (SELECT 1 FROM revisits WHERE own_id = links.new) ORDER BY links.rowid",
            (AFTER,),
        )

    def close(self) -> None:
        self._db.close()

    def _held(self, where: str, alike: str, sides: int, *keys: object) -> tuple[Held, ...]:
        # A URI that was captured a million times in one second must not be read a million times.
        rows = self._rows(
            "SELECT place, id, bare, date, sha, digest, text, whole, chunked, page, file, offset, position, min(rowid) FROM captures"  # noqa: S608 - as above
            f" WHERE {where} AND sides & ? GROUP BY {alike} LIMIT {_MOST_HELD}",
            (*keys, sides),
        )
        return tuple(Held(*row[:-1]) for row in rows)

    def _rows(self, statement: str, values: tuple[object, ...] = ()) -> Iterator[tuple]:
        with _in_words(self._path):
            yield from self._db.execute(statement, values)


class Side(Captures[bytes, Held]):
    """The captures before or after, as revisits refer to them. *read* gives the record of a capture."""

    def __init__(self, evidence: Evidence, side: int, read: Callable[[Held], StoredRecord]) -> None:
        self._evidence = evidence
        self._side = side
        self._read = read
        self._computed = lru_cache(_KEPT_ANSWERS)(self._has_payload)

    def with_id(self, record_id: bytes) -> list[Held]:
        return _originals(self._evidence.with_id(record_id, self._side))

    def in_second(self, uri: bytes, second: int) -> list[Held]:
        return _originals(self._evidence.at_place(place_of_key(uri, second), self._side))

    def with_digest(self, digest: str, uri: bytes | None, date_ms: int) -> list[Held]:
        return _nearest_first(_originals(self._evidence.with_digest(digest, uri, self._side)), date_ms)

    def of_uri(self, uri: bytes, date_ms: int) -> list[Held]:
        return _nearest_first(self._evidence.of_uri(uri, self._side), date_ms)[:1]

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


def _position(record: StoredRecord | None) -> int | None:
    return record.frame.block_position if record is not None and not record.length else None


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA cache_size = -65536")
    # What SQLite sorts for an index would lie in memory or in another folder otherwise.
    db.execute("PRAGMA temp_store = FILE")
    for table, columns in _TABLES.items():
        db.execute(f"CREATE TABLE {table} ({columns})")
    return db


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ArchiveError(
            f"{path.parent}, where the verification keeps what it has read: {error}. It needs some 300 bytes for each record."
        ) from error
