"""The two files of a pair, read record by record at any place.

`RecordReader` reads the next record from a place. `OldFile` is the file before: a verification asks it whether a record is
unchanged in the file after.

Without facts, the records of the file before are read, and their bytes are compared with the file after. With facts
(`OldRecord`), which an earlier reading of the file has stored, the file before is hardly read at all. The file after is
compared with the digests of the stored bytes; a response that became a revisit is compared with its stored heads and the
SHA-256 of its payload, and a short record is in the facts itself. Any other record that changed is read, and so are bytes
between records. This finds the same differences, on the condition that the facts are those of the file. It does not find a
fault of the reading that computed the facts, nor a change to the file since then: the caller must check that size and
modification time are still the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from zlib_ng import zlib_ng

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.stores.duckdb import open_engine, rows_of, source
from scrapy_dedupe.warc.bodies import BodyDigest, hashed_records, payload_digests
from scrapy_dedupe.warc.framing import Frame, is_compressed, known_head, whole_frame
from scrapy_dedupe.warc.reading import KEPT_BYTES, read_record, read_records, stored_record
from scrapy_dedupe.warc.sources import GZIP_MAGIC, Broken
from scrapy_dedupe.warc.windows import HeldFile, WindowedFile

from .evidence import algorithms_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.warc.framing import Damage, Layouts
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .evidence import HashedRecord

_PIECE: Final = 1 << 20
_LOOK_BYTES: Final = 1 << 12  # how much is read of a record of unknown length
# The number of unchanged payloads, of 256, that are hashed again.
_HASHED_AGAIN: Final = 16
_AFTER_A_RECORD: Final = (GZIP_MAGIC, b"WAR", b"\0\0\0", b"")
# A file of rows is sorted by offset.
_QUERY: Final = """
SELECT "offset", length, stored, start, head_bytes, block_bytes, CASE WHEN sha256 IS NOT NULL THEN size_bytes END, sha256
FROM read_parquet({}) WHERE stored IS NOT NULL
"""


class OldRecord(NamedTuple):
    """Facts about one record that shares its gzip member with no other.

    ``offset`` and ``length`` count stored bytes, including the blank lines after the record (`StoredRecord`). ``stored`` is
    the digest of these bytes (`stored_digest`). The other facts are None if they are not known. ``start`` has the head with its blank line,
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
        return ArchiveError(
            f"{self.rows} cannot be read: {text}. Check the disk, then start again without the unfinished work."
        )


class RecordReader:
    """Reads the next record from a place. This is fast if the place is the end of the record before."""

    def __init__(self, window: WindowedFile) -> None:
        self._window = window
        self._is_gzip = is_compressed(window)
        self._layouts: Layouts = {}
        self._records: Iterator[HashedRecord] = iter(())
        self._damages: list[Damage] = []
        self._at = -1  # the place from which the records continue

    def next_from(self, offset: int) -> tuple[HashedRecord | None, list[Damage]]:
        """The next record from *offset*, and the damaged places before it.

        If the record shares its gzip member with others, the next call for the same offset returns the following one.
        """
        if offset != self._at:
            # This is the fastest way to read one record. In an uncompressed file, a gzip member is a damaged place.
            if self._is_gzip and (found := usual_record(self._window, offset, None, self._layouts)):
                return found, []
            self._damages = []
            self._records = hashed_records(
                self._window, algorithms_of, on_damage=self._damages.append, start=offset
            )
        found = next(self._records, None)
        self._at = found[0].offset + found[0].length if found is not None and found[0].length else offset
        damages = [*self._damages]
        self._damages.clear()
        return found, damages


class OldFile:
    """The records of the file before. *facts* are in the order of the file. Places must not decrease."""

    def __init__(self, window: WindowedFile, facts: Iterable[OldRecord] | None = None) -> None:
        self._window = window
        self.is_arc = is_arc(window)
        self._facts = iter(facts or ())
        self._next = next(self._facts, None)
        self._layouts: Layouts = {}
        self._reader = RecordReader(window)
        self._last: tuple[int, HashedRecord | None] = (-1, None)

    def unchanged(self, offset: int, after: WindowedFile, at: int) -> HashedRecord | None:
        """The record at *offset*, if the file after has the same record at the offset *at*; else None.

        The result has its place in one of the two files.
        """
        facts = self._facts_at(offset)
        found = self.record_at(offset) if facts is None else None
        length = facts.length if facts is not None else found[0].length if found is not None else 0
        if not length:
            return None
        # The next bytes rule out most of the changed records.
        following = after.read(at, min(length + len(GZIP_MAGIC), _PIECE))[length:]
        if not self.is_arc and following not in _AFTER_A_RECORD:
            return None
        if not self.has_bytes(offset, length, after, at):
            return None
        # A share of the payloads is hashed again, so that wrong facts are noticed.
        if facts is not None and (facts.payload_sha256 is None or facts.stored[0] >= _HASHED_AGAIN):
            found = self._known(facts, after, at, needs_body=False)
        return found or record_in(after, at, length, self._layouts)

    def has_bytes(self, offset: int, length: int, after: WindowedFile, at: int) -> bool:
        """Whether the bytes from *offset* are also in the file after, at the offset *at*."""
        if (facts := self._facts_at(offset)) is not None:
            return length == facts.length and stored_digest(after, at, length) == facts.stored
        for done in range(0, length, _PIECE):
            size = min(_PIECE, length - done)
            if after.read(at + done, size) != self._window.read(offset + done, size):
                return False
        return True

    def record_at(self, offset: int, *, needs_body: bool = True) -> HashedRecord | None:
        """The record that begins at *offset*; None if there is none, or if it shares a gzip member with others.

        Without *needs_body*, the result may have only the heads of the record.
        """
        if (facts := self._facts_at(offset)) is not None:
            found = self._known(facts, self._window, offset, needs_body=needs_body)
            return found or record_in(self._window, offset, facts.length, self._layouts)
        if self._last[0] != offset:
            found, _ = self._reader.next_from(offset)
            is_here = found is not None and found[0].offset == offset and found[0].length > 0
            self._last = (offset, found if is_here else None)
        return self._last[1]

    def _facts_at(self, offset: int) -> OldRecord | None:
        while self._next is not None and self._next.offset < offset:
            self._next = next(self._facts, None)
        return self._next if self._next is not None and self._next.offset == offset else None

    def _known(
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
    """A record in the usual form of *length* stored bytes; else None.

    If *length* is None, it must be a gzip member of at most 4 KiB.
    """
    data = stored = file.read(offset, _LOOK_BYTES if length is None else length)
    stored_bytes = length
    try:
        if stored.startswith(GZIP_MAGIC[:2]):
            member = zlib_ng.decompressobj(31)
            data = member.decompress(stored, KEPT_BYTES)
            stored_bytes = len(stored) - len(member.unused_data) if member.eof else None
        if stored_bytes is None or length not in (None, stored_bytes):
            return None
        frame = whole_frame(data, offset, stored_bytes, KEPT_BYTES, layouts)
    except (Broken, zlib_ng.error):  # type: ignore[misc]
        return None
    return None if frame is None else _hashed(stored_record(file, frame))


def _hashed(record: StoredRecord) -> HashedRecord:
    algorithms = algorithms_of(record)
    return record, payload_digests(record, algorithms) if algorithms else ()


def is_arc(file: ReadableFile) -> bool:
    """Whether the first record is one of an ARC file."""
    return any(record.format == "arc" for record in islice(read_records(file, on_damage=lambda _: None), 1))
