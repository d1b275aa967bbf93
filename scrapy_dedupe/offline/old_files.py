"""The file before, as a verification reads it.

Without facts, its bytes are compared with the file after, so it is read completely.

With facts (`OldRecord`), which an earlier reading of the file has stored, it is hardly read at all. The file after is
compared with the digests of the stored bytes; a response that became a revisit is compared with its stored heads and the
SHA-256 of its payload, and a short record is in the facts itself. Any other record that changed is read, and so are bytes
between records. This finds the same differences, on the condition that the facts are those of the file. It does not find a
fault of the reading that computed the facts, nor a change to the file since then: the caller must check that size and
modification time are still the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from zlib_ng import zlib_ng

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.offline.engine import open_engine, rows_of, source
from scrapy_dedupe.offline.evidence import algorithms_of
from scrapy_dedupe.offline.windows import HeldFile, WindowedFile
from scrapy_dedupe.warc.bodies import BodyDigest, hashed_records, payload_digests
from scrapy_dedupe.warc.framing import Frame, known_head
from scrapy_dedupe.warc.reading import KEPT_BYTES, read_record, stored_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from scrapy_dedupe.warc.framing import Layouts
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_PIECE: Final = 1 << 20
_LOOK_BYTES: Final = 1 << 12  # at a record of unknown length
_RECORD_END: Final = b"\r\n\r\n"
# A file of rows is sorted by offset.
_QUERY: Final = """
SELECT "offset", length, stored, start, head_bytes, block_bytes, CASE WHEN sha256 IS NOT NULL THEN size_bytes END, sha256
FROM read_parquet({}) WHERE stored IS NOT NULL
"""

HashedRecord = tuple["StoredRecord", "Sequence[BodyDigest]"]
"""A record with digests of its payload."""


class OldRecord(NamedTuple):
    """Facts about one record that shares its gzip member with no other.

    ``offset`` and ``length`` count stored bytes, the blank lines after the record included (`StoredRecord`). ``stored`` is
    their digest (`stored_digest`). The other facts are None if they are not known. ``start`` has the head with its blank line,
    which is ``head_bytes`` long, and after it the HTTP head of a response, or the whole block of a short record of another
    type; ``block_bytes`` is the length of the block. ``payload_bytes`` and ``payload_sha256`` are size and digest of the
    stored payload of a response.
    """

    offset: int
    length: int
    stored: bytes
    start: bytes | None = None
    head_bytes: int | None = None
    block_bytes: int | None = None
    payload_bytes: int | None = None
    payload_sha256: bytes | None = None


def stored_digest(file: WindowedFile, offset: int, length: int) -> bytes:
    """The digest of stored bytes of a file: BLAKE2b with 32 bytes."""
    hasher = blake2b(digest_size=32)
    for at in range(offset, offset + length, _PIECE):
        hasher.update(file.read(at, min(_PIECE, offset + length - at)))
    return hasher.digest()


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Iterates over the facts in a file of rows, in the order of the records. Can be pickled. Raises ArchiveError."""

    rows: Path

    def __iter__(self) -> Iterator[OldRecord]:
        query = _QUERY.format(source(self.rows))
        with open_engine("A verification with rows", self._refused) as engine:
            yield from map(OldRecord._make, rows_of(engine.execute(query)))

    def _refused(self, text: str) -> ArchiveError:
        return ArchiveError(f"{self.rows} cannot be read: {text}.")


class OldFile:
    """Context manager for the file before. *facts* are in the order of the file."""

    def __init__(self, file: ReadableFile, facts: Iterable[OldRecord] | None = None) -> None:
        self.window = WindowedFile(file, reads_ahead=facts is None)
        self.has_facts = facts is not None
        self._facts = iter(facts or ())
        self._next = next(self._facts, None)
        self._layouts: Layouts = {}
        self._records: Iterator[HashedRecord] = iter(())
        self._following = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.window.__exit__(kind, error, trace)

    def facts_at(self, offset: int) -> OldRecord | None:
        """The facts about the record at *offset*, if there are any. Offsets must not decrease."""
        while self._next is not None and self._next.offset < offset:
            self._next = next(self._facts, None)
        return self._next if self._next is not None and self._next.offset == offset else None

    def record_at(self, offset: int, *, needs_body: bool = True) -> HashedRecord | None:
        """The record that begins at *offset*; None if there is none, or if it shares a gzip member with others.

        If it does not need its body, it may have only its heads.
        """
        if (facts := self.facts_at(offset)) is not None:
            found = self.known(facts, self.window, offset, needs_body=needs_body)
            return found or record_in(self.window, offset, facts.length, self._layouts)
        if offset != self._following:
            self._records = records_from(self.window, offset, algorithms_of)
        found = next(self._records, None)
        self._following = -1 if found is None else offset + found[0].length
        return found

    def known(
        self, facts: OldRecord, file: ReadableFile, offset: int, *, needs_body: bool
    ) -> HashedRecord | None:
        """A record from its facts, at *offset* of *file*; None if they do not suffice."""
        start, head_bytes, block_bytes = facts.start, facts.head_bytes, facts.block_bytes
        if start is None or head_bytes is None or block_bytes is None:
            return None
        kept_bytes = len(start) - head_bytes
        if needs_body and kept_bytes != block_bytes:
            return None
        known = known_head(start, self._layouts)
        if known is None or known[1].end() != head_bytes:
            return None
        where = (offset, facts.length, 0, head_bytes, block_bytes)
        record = stored_record(file, Frame(False, None, *where, start, kept_bytes, known))
        if kept_bytes == block_bytes:
            return _hashed(record)
        algorithms = algorithms_of(record)
        if not algorithms:
            return record, ()
        if algorithms != ("sha256",) or facts.payload_sha256 is None or facts.payload_bytes is None:
            return None
        return record, (BodyDigest(facts.payload_sha256.hex(), facts.payload_bytes),)


def records_from(
    file: ReadableFile, offset: int, wanted: Callable[[StoredRecord], Sequence[str]] = lambda _: ()
) -> Iterator[HashedRecord]:
    """Yield the records from *offset* on, up to the first place that is not a record or has several in one gzip member.

    *wanted* is as for `hashed_records`.
    """
    for record, digests in hashed_records(file, wanted, on_damage=lambda damage: None, start=offset):
        if record.offset != offset or not record.length:
            return
        yield record, digests
        offset += record.length


def record_in(file: WindowedFile, offset: int, length: int, layouts: Layouts) -> HashedRecord | None:
    """The record that has these stored bytes. No other bytes are read. None if there is none."""
    if (found := usual_record(file, offset, length, layouts)) is not None:
        return found
    try:
        record = read_record(HeldFile(bytes(file.read(offset, length)), str(file), offset), offset)
    except DamagedInput:
        return None
    return _hashed(record)


def usual_record(
    file: WindowedFile, offset: int, length: int | None, layouts: Layouts
) -> HashedRecord | None:
    """A record in the usual form, a gzip member of *length* stored bytes or, if None, of at most 4 KiB; else None."""
    stored = file.read(offset, _LOOK_BYTES if length is None else length)
    member = zlib_ng.decompressobj(31)
    try:
        data = member.decompress(stored, KEPT_BYTES)
    except zlib_ng.error:  # type: ignore[misc]
        return None
    known = known_head(data, layouts)
    if known is None or not member.eof or not data.endswith(_RECORD_END):
        return None
    layout, match = known
    begin, digits = match.end(), match[layout.length_place].strip() if layout.length_place else b""
    stored_bytes = len(stored) - len(member.unused_data)
    if length not in (None, stored_bytes) or digits != b"%d" % (len(data) - begin - len(_RECORD_END)):
        return None
    frame = Frame(False, None, offset, stored_bytes, 0, begin, int(digits), data, KEPT_BYTES, known)
    return _hashed(stored_record(file, frame))


def _hashed(record: StoredRecord) -> HashedRecord:
    algorithms = algorithms_of(record)
    return record, payload_digests(record, algorithms) if algorithms else ()
