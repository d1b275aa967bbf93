"""The files of a segment, mapped into memory and checked against the manifest.

Each blob is compared with its checksum whenever it is decompressed.
"""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from deflate import DeflateError, deflate_decompress

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

from .folder_files import damaged
from .packing import CheckedBlocks, PackedArray, block_count, packed_size
from .segment_layout import (
    BLOBS_HEADER_SIZE,
    DIGEST_SIZE,
    GROUP_BITS,
    MAX_INFLATION,
    NAMES_PER_BLOCK,
    POSTS_HEADER_SIZE,
    BlobsHeader,
    PostsHeader,
    Section,
    SegmentEntry,
    Span,
    blobs_name,
    header_checksum,
    posts_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray


class Blobs:
    """The file NAME.blobs of *entry* in *folder*. Raises the exceptions of `MappedFile`."""

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


_Header = TypeVar("_Header")


class MappedFile:
    """The file *path*, of *size* bytes.

    Raises FileNotFoundError if it does not exist, StoreRefused if it has another size or is not a regular file, StoreUnavailable if it cannot be
    read.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a FIFO would block.
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise damaged(path, "is not a regular file")
                if found.st_size != size or not size:
                    raise damaged(path, f"has {found.st_size} bytes instead of {size}")
                self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(
                f"{path} cannot be read: {error.strerror or error}. Check its permissions."
            ) from error

    def close(self) -> None:
        """Release the mapping; arrays in use keep it until they are released."""
        try:
            self._map.close()
        except BufferError:
            del self._map

    def header(self, read: Callable[[bytes], _Header], size: int, checksum: int) -> _Header:
        """Return the header of *size* bytes. Raises StoreRefused if it is invalid or has another checksum."""
        data = self._map[:size]
        try:
            header = read(data)
        except ValueError as error:
            self.refuse(str(error))
        if header_checksum(data) != checksum:
            self.refuse("it is not the file that the manifest names")
        return header

    def bytes(self, offset: int, size: int) -> bytes:
        """Return a copy of a range of bytes."""
        return self._map[offset : offset + size]

    def view(self, offset: int, size: int) -> memoryview:
        """Return a range of bytes without copying."""
        return memoryview(self._map)[offset : offset + size]

    def array(self, dtype: str, offset: int, count: int) -> NDArray[Any]:
        """Return the numbers at *offset* without copying."""
        return np.ndarray((count,), dtype, self._map, offset=offset)

    def forget(self) -> None:
        """Let the operating system free the memory of pages that were read; they are read again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def refuse(self, what: str) -> NoReturn:
        """Raise StoreRefused; *what* describes the problem."""
        raise StoreRefused(
            f"{self.path} cannot be used: {what}. Restore the index from a backup, or create it again from its sources."
        )


class PostsFile(MappedFile):
    """The file NAME.posts of *entry* in *folder*; all sections are checked to be at valid offsets."""

    def __init__(self, folder: Path, entry: SegmentEntry) -> None:
        super().__init__(folder / posts_name(entry.name), entry.posts_size)
        try:
            self.layout = self.header(PostsHeader.from_bytes, POSTS_HEADER_SIZE, entry.posts_checksum)
            self._check(entry)
        except BaseException:
            self.close()
            raise
        self._sound: set[Section] = set()

    def section(self, section: Section, dtype: str) -> NDArray[Any]:
        """Return the numbers of a section without copying. Raises StoreRefused if its checksum is wrong."""
        span = self.layout.sections[section]
        if section not in self._sound:
            if not self._is_sound(section):
                self.refuse_section(section)
            self._sound.add(section)
        return self.array(dtype, span.offset, span.size // np.dtype(dtype).itemsize)

    def posts(self) -> PackedArray:
        """Return the posts section, unchecked; use `post_blocks` to compare it with its checksums."""
        span = self.layout.sections[Section.POSTS]
        return PackedArray(self.view(span.offset, span.size), self.layout.width, self.layout.posts)

    def post_blocks(self) -> CheckedBlocks:
        """Return the blocks of the posts section, which check ranges before they are read."""
        span = self.layout.sections[Section.POSTS]
        checksums = self.section(Section.POST_CHECKSUMS, "<u4")
        return CheckedBlocks(
            self.view(span.offset, span.size), checksums, lambda: self.refuse_section(Section.POSTS)
        )

    def damage(self) -> str | None:
        """Compare the sections with their checksums, and describe the first damage; None if there is none."""
        stop = POSTS_HEADER_SIZE
        for section, span in self._in_order():
            if not self._is_sound(section):
                return f"its section {section.title!r} is damaged"
            if span.offset < stop or any(self.bytes(stop, span.offset - stop)):
                return f"the bytes before its section {section.title!r} are damaged"
            stop = span.offset + span.size
        return None

    def refuse_section(self, section: Section) -> NoReturn:
        """Raise StoreRefused for the damaged *section*."""
        self.refuse(f"its section {section.title!r} is damaged")

    def _is_sound(self, section: Section) -> bool:
        span = self.layout.sections[section]
        return zlib.crc32(self.view(span.offset, span.size)) == span.checksum

    def _in_order(self) -> list[tuple[Section, Span]]:
        return sorted(
            zip(Section, self.layout.sections, strict=True), key=lambda item: (item[1].offset, item[1].size)
        )

    def _check(self, entry: SegmentEntry) -> None:
        layout = self.layout
        if (layout.posts, layout.texts, layout.documents) != (entry.posts, entry.texts, entry.documents):
            self.refuse("its header contradicts the manifest")
        sizes = _section_sizes(layout)
        for section, span in zip(Section, layout.sections, strict=True):
            is_inside = span.offset % 8 == 0 and span.offset + span.size <= entry.posts_size
            if not is_inside or sizes.get(section, span.size) != span.size:
                self.refuse_section(section)
        stop = POSTS_HEADER_SIZE
        for section, span in self._in_order():
            if span.offset < stop:
                self.refuse_section(section)
            stop = span.offset + span.size
        if stop != entry.posts_size:
            self.refuse("its header is inconsistent")


def _section_sizes(layout: PostsHeader) -> dict[Section, int]:
    """The section sizes that follow from the counts. The sizes of names and hosts are not determined by them."""
    posts_size = packed_size(layout.posts, layout.width)
    buckets = 1 << layout.bucket_bits
    blocks = -(-layout.documents // NAMES_PER_BLOCK)
    return {
        Section.POSTS: posts_size,
        Section.BASES: 8 * ((buckets >> GROUP_BITS) + 1),
        Section.BUCKETS: layout.bucket_item * (buckets + 1),
        Section.DIGESTS: DIGEST_SIZE * layout.texts,
        Section.DIGEST_HEADS: 4 * layout.texts,
        Section.DIGEST_ORDER: 4 * layout.texts,
        Section.TOKEN_COUNTS: 4 * layout.texts,
        Section.CHAR_COUNTS: 4 * layout.texts,
        Section.POST_COUNTS: 4 * layout.texts,
        Section.DOCUMENT_TEXTS: 4 * layout.documents,
        Section.DOCUMENT_HOSTS: 4 * layout.documents,
        Section.FOREIGN: DIGEST_SIZE * layout.foreign,
        Section.NAME_ENDS: 8 * blocks,
        Section.NAME_SIZES: 4 * blocks,
        Section.NAME_HEADS: 4 * layout.documents,
        Section.NAME_ORDER: 4 * layout.documents,
        Section.POST_CHECKSUMS: 4 * block_count(posts_size),
    }
