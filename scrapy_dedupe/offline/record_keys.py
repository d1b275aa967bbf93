"""Keys that identify the same record in two files, and the keys of the next records of a file."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.framing import frames
from scrapy_dedupe.warc.reading import KEPT_BYTES, read_record, stored_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.warc.framing import Frame
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_AHEAD = 256


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


class KeysAhead:
    """The keys of the next records of a file. Keys that were read for one offset are kept for the next call."""

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._keys: deque[RecordKey] = deque()
        self._end = 0

    def at(self, offset: int) -> Iterable[RecordKey]:
        """The keys of the records from *offset*, at most 256, up to the next place that is not a record."""
        while self._keys and self._keys[0].offset < offset:
            self._keys.popleft()
        if not self._keys or self._keys[0].offset != offset:
            self._keys.clear()
            self._end = offset
        while len(self._keys) < _AHEAD and (record := record_at(self._file, self._end)) is not None:
            self._keys.append(key_of(record))
            self._end += record.length
        return self._keys


class RecordsInOrder:
    """Reads records at increasing offsets of a file.

    If an offset is the end of the previous record, reading continues there; otherwise the file is opened again.
    """

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._frames: Iterator[Frame] = iter(())
        self._following = -1

    def at(self, offset: int) -> StoredRecord | None:
        """See `record_at`."""
        if offset != self._following:
            self._frames = frames(
                self._file, kept_bytes=KEPT_BYTES, on_damage=lambda damage: None, start=offset
            )
        frame = next(self._frames, None)
        if frame is None or frame.offset != offset or not frame.length:
            self._following = -1
            return None
        self._following = offset + frame.length
        return stored_record(self._file, frame)


def key_of(record: StoredRecord) -> RecordKey:
    """The key of a record."""
    former = record.get("Former-WARC-Record-ID")
    return RecordKey(record.type, record.id, former, record.target_uri, record.date, record.offset)


def record_at(file: ReadableFile, offset: int) -> StoredRecord | None:
    """The record that begins at *offset*; None if there is none, or if it shares a gzip member with others."""
    try:
        record = read_record(file, offset)
    except DamagedInput:
        return None
    return record if record.length else None
