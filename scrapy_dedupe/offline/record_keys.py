"""Keys that identify the same record in two files, and the records of a file by offset."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.warc.bodies import hashed_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.warc.bodies import BodyDigest
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_AHEAD = 256

HashedRecord = tuple["StoredRecord", "Sequence[BodyDigest]"]
"""A record with digests of its payload."""


class RecordKey(NamedTuple):
    """Identifies the same record in two files."""

    type: str
    id: str | None
    former_id: str | None
    uri: str | None
    date: str | None
    offset: int

    def is_of(self, other: RecordKey) -> bool:
        """Whether both are the same record, by its present or former id."""
        if self.id is None or other.id is None:
            return self[:2] == other[:2] and self[3:5] == other[3:5]
        return self.id == other.id or self.former_id == other.id or self.id == other.former_id

    def looks_like(self, other: RecordKey) -> bool:
        """Whether both could be the same record with a wrong id."""
        return self.uri is not None and self[3:5] == other[3:5] and (
            self.type == other.type or {self.type, other.type} == {"response", "revisit"}
        )  # fmt: skip


class RecordsInOrder:
    """Reads records at increasing offsets of a file, with the digests that *wanted* names (see `hashed_records`).

    If an offset is the end of the previous record, reading continues there; otherwise the file is opened again.
    """

    def __init__(
        self, file: ReadableFile, wanted: Callable[[StoredRecord], Sequence[str]] = lambda _: ()
    ) -> None:
        self._file = file
        self._wanted = wanted
        self._records: Iterator[HashedRecord] = iter(())
        self._following = -1

    def at(self, offset: int) -> HashedRecord | None:
        """The record that begins at *offset*; None if there is none, or if it shares a gzip member with others."""
        if offset != self._following:
            self._records = hashed_records(
                self._file, self._wanted, on_damage=lambda damage: None, start=offset
            )
        found = next(self._records, None)
        if found is None or found[0].offset != offset or not found[0].length:
            self._following = -1
            return None
        self._following = offset + found[0].length
        return found


class KeysAhead:
    """The keys of the next records of a file. Keys that were read for one offset are kept for the next call."""

    def __init__(self, file: ReadableFile) -> None:
        self._records = RecordsInOrder(file)
        self._keys: deque[RecordKey] = deque()
        self._end = 0

    def at(self, offset: int) -> Iterable[RecordKey]:
        """The keys of the records from *offset*, at most 256, up to the next place that is not a record."""
        while self._keys and self._keys[0].offset < offset:
            self._keys.popleft()
        if not self._keys or self._keys[0].offset != offset:
            self._keys.clear()
            self._end = offset
        while len(self._keys) < _AHEAD and (found := self._records.at(self._end)) is not None:
            self._keys.append(key_of(found[0]))
            self._end += found[0].length
        return self._keys


def key_of(record: StoredRecord) -> RecordKey:
    """The key of a record."""
    former = record.get("Former-WARC-Record-ID")
    return RecordKey(record.type, record.id, former, record.target_uri, record.date, record.offset)
