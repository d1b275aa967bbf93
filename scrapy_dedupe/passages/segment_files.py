"""The files of a segment, mapped into memory and checked against the manifest."""

from __future__ import annotations

import mmap
import os
import zlib
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

from .packing import PackedArray, packed_size
from .segment_blocks import CheckedBlocks, block_count
from .segment_layout import (
    DIGEST_SIZE,
    GROUP_BITS,
    NAMES_PER_BLOCK,
    POSTS_HEADER_SIZE,
    PostsHeader,
    Section,
    SegmentEntry,
    Span,
    header_checksum,
    posts_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

_Header = TypeVar("_Header")


class MappedFile:
    """The file *path*, of *size* bytes.

    Raises FileNotFoundError if it does not exist, StoreRefused if it has another size, StoreUnavailable if it cannot be
    read.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != size or not size:
                    self.refuse(f"it has {found} bytes, but the manifest says {size}")
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
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
