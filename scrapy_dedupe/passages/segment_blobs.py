"""Reading the blobs of a segment. Each blob is compared with its checksum whenever it is decompressed."""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
from deflate import DeflateError, deflate_decompress

from .segment_files import MappedFile
from .segment_layout import BLOBS_HEADER_SIZE, MAX_INFLATION, BlobsHeader, SegmentEntry, blobs_name

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class Blobs:
    """The file NAME.blobs of *entry* in *folder*. Raises as `MappedFile` does."""

    def __init__(self, folder: Path, entry: SegmentEntry) -> None:
        self.file = MappedFile(folder / blobs_name(entry.name), entry.blobs_size)
        try:
            self._header = self.file.header(BlobsHeader.from_bytes, BLOBS_HEADER_SIZE, entry.blobs_checksum)
            if self._header.texts != entry.texts or self._header.file_size != entry.blobs_size:
                self.file.refuse("its header contradicts the manifest")
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self.__dict__.pop("_table", None)
        self.file.close()

    def inflated(self, text: int) -> bytes:
        """Return the decompressed blob of a text."""
        data, size = self.stored(text)
        checksums = self._table.checksums
        # No text is compressed by more than MAX_INFLATION. Without this check, a wrong size could exhaust the memory.
        if zlib.crc32(data) != int(checksums[text]) or size > len(data) * MAX_INFLATION:
            self.refuse_text(text)
        try:
            raw = bytes(deflate_decompress(data, size))
        except DeflateError:
            self.refuse_text(text)
        if len(raw) != size:
            self.refuse_text(text)
        return raw

    def stored(self, text: int) -> tuple[bytes, int]:
        """Return the blob of a text as stored, and its decompressed size. It is not compared with its checksum."""
        start, stop = self._bounds(text, text + 1)
        return self.file.bytes(start, stop - start), int(self._table.sizes[text])

    def stored_many(
        self, start: int, stop: int
    ) -> tuple[memoryview, NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the blobs of consecutive texts, concatenated: data, sizes, decompressed sizes and checksums."""
        first, last = self._bounds(start, stop)
        table = self._table
        sizes = np.diff(table.ends[start:stop].astype(np.int64), prepend=first - BLOBS_HEADER_SIZE)
        if np.any(sizes < 0):
            self.file.refuse("its table is damaged")
        return (
            self.file.view(first, last - first),
            sizes.astype(np.uint32),
            table.sizes[start:stop],
            table.checksums[start:stop],
        )

    def damage(self) -> str | None:
        """Compare the table with its checksum, and describe the damage; None if there is none."""
        stop = BLOBS_HEADER_SIZE + self._header.blobs_size
        if not self._has_sound_table() or any(self.file.bytes(stop, self._header.table_offset - stop)):
            return "its table is damaged"
        return None

    def refuse_text(self, text: int) -> NoReturn:
        """Raise StoreRefused for the damaged blob of *text*."""
        start, _ = self._bounds(text, text + 1)
        self.file.refuse(f"the blob of text {text} at byte {start} is damaged")

    @cached_property
    def _table(self) -> _Table:
        if not self._has_sound_table():
            self.file.refuse("its table is damaged")
        texts, table = self._header.texts, self._header.table_offset
        return _Table(
            self.file.array("<u8", table, texts),
            self.file.array("<u4", table + 8 * texts, texts),
            self.file.array("<u4", table + 12 * texts, texts),
        )

    def _has_sound_table(self) -> bool:
        offset = self._header.table_offset
        table = self.file.view(offset, self._header.file_size - offset)
        return zlib.crc32(table) == self._header.table_checksum

    def _bounds(self, start: int, stop: int) -> tuple[int, int]:
        if not 0 <= start <= stop <= self._header.texts:
            raise IndexError(f"there is no text {start if start < 0 else stop - 1}")
        ends = self._table.ends
        first = int(ends[start - 1]) if start else 0
        last = int(ends[stop - 1]) if stop else 0
        if not first <= last <= self._header.blobs_size:
            self.file.refuse("its table is damaged")
        return BLOBS_HEADER_SIZE + first, BLOBS_HEADER_SIZE + last


class _Table(NamedTuple):
    """For each text the end of its blob, its decompressed size, and the checksum of its blob."""

    ends: NDArray[np.uint64]
    sizes: NDArray[np.uint32]
    checksums: NDArray[np.uint32]
