"""Writing a segment: to temporary files that are synced, and renamed when they are complete.

Blobs are written to the disk immediately. Posts are kept in memory, 13 bytes each, and sorted when the segment is closed.
A caller whose posts are already sorted passes them in pieces to `SegmentWriter.add_sorted_posts`; then only one piece is
kept in memory.
"""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING

import numpy as np
from deflate import deflate_compress

from scrapy_dedupe.files.folders import sync_folder

from .folder_files import NewFile, writing
from .packing import PostStream
from .segment_layout import (
    BLOBS_HEADER_SIZE,
    DIGEST_SIZE,
    GROUP_BITS,
    NAMES_PER_BLOCK,
    POSTS_HEADER_SIZE,
    SPOT_BITS,
    WHOLE,
    BlobsHeader,
    PostsHeader,
    Section,
    SegmentEntry,
    Span,
    blobs_name,
    bucket_bits_for,
    header_checksum,
    name_head,
    posts_name,
    value_bits_for,
)

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Self

    from numpy.typing import NDArray

    from .values import Parameters

_MOST = (1 << 32) - 1
_LEVEL = 6  # compression level of names


class SegmentWriter:
    """Writes the segment *name* to *folder*. As a context manager, abandons the segment if the block raises.

    Raises StoreUnavailable if the folder cannot be written to, and ValueError for inconsistent input: a document whose
    text was not added, or posts that do not match the post count of their text.
    """

    def __init__(self, folder: Path, name: str, parameters: Parameters) -> None:
        self.name = name
        self._folder = folder
        self._parameters = parameters
        self._digests = bytearray()
        self._token_counts, self._char_counts, self._post_counts = array("I"), array("I"), array("I")
        self._blob_sizes, self._raw_sizes, self._blob_checksums = array("I"), array("I"), array("I")
        self._text_columns = (
            self._token_counts, self._char_counts, self._post_counts,
            self._blob_sizes, self._raw_sizes, self._blob_checksums,
        )  # fmt: skip
        self._document_texts, self._document_hosts = array("i"), array("I")
        self._hosts: dict[str, int] = {}
        self._foreign: dict[bytes, int] = {}
        self._names = _Names()
        self._keys: list[NDArray[np.uint64]] = []
        self._texts: list[NDArray[np.uint32]] = []
        self._spots: list[NDArray[np.uint8]] = []
        self._pending = 0
        self._counted = np.zeros(0, np.int64)
        self._last_text = 0
        self._stream: PostStream | None = None
        self._posts = NewFile(folder / posts_name(name))
        try:
            self._blobs = NewFile(folder / blobs_name(name))
            self._posts.write(bytes(POSTS_HEADER_SIZE))
            self._blobs.write(bytes(BLOBS_HEADER_SIZE))
        except BaseException:
            self.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abandon()

    @property
    def text_count(self) -> int:
        """How many texts have been added."""
        return len(self._post_counts)

    def add_text(
        self, digest: bytes, n_tokens: int, n_chars: int, n_posts: int, blob: bytes, blob_size: int
    ) -> int:
        """Add a text and return its number. *blob* is compressed with deflate, *blob_size* its decompressed size."""
        if len(digest) != DIGEST_SIZE:
            raise ValueError(f"a digest of {len(digest)} bytes")
        if max(blob_size, len(blob), n_tokens, n_chars, n_posts) > _MOST:
            raise ValueError("a text of 4 GB or more")
        self._blobs.write(blob)
        self._digests += digest
        numbers = (n_tokens, n_chars, n_posts, len(blob), blob_size, zlib.crc32(blob))
        for column, number in zip(self._text_columns, numbers, strict=True):
            column.append(number)
        return len(self._post_counts) - 1

    def add_stored_texts(
        self,
        digests: NDArray[np.uint8],
        counts: NDArray[np.integer],
        blobs: memoryview,
        blob_sizes: NDArray[np.integer],
        raw_sizes: NDArray[np.integer],
        checksums: NDArray[np.integer],
    ) -> None:
        """Add texts as another segment stores them.

        *digests* are n x 16, *counts* 3 x n (tokens, characters, posts); *blobs* are the concatenated blobs.
        """
        self._blobs.write(blobs)
        self._digests += digests.tobytes()
        columns = (*counts, blob_sizes, raw_sizes, checksums)
        for column, numbers in zip(self._text_columns, columns, strict=True):
            column.frombytes(numbers.astype(np.uint32, copy=False).tobytes())

    def add_document(self, doc_id: str, host: str, text: int | bytes) -> int:
        """Add a document and return its number. *text* is a number in this segment, or the digest of a foreign text.

        Raises ValueError if doc id or host contain a NUL character, or cannot be encoded as UTF-8.
        """
        if "\0" in host:
            raise ValueError(f"the host {host!r} contains a NUL character")
        host.encode()
        if isinstance(text, bytes):
            if len(text) != DIGEST_SIZE:
                raise ValueError(f"a digest of {len(text)} bytes")
        elif not 0 <= text < self.text_count:
            raise ValueError(f"the text of document {doc_id!r} was not added")
        self._names.add(doc_id)
        if isinstance(text, bytes):
            self._document_texts.append(-1 - self._foreign.setdefault(text, len(self._foreign)))
        else:
            self._document_texts.append(text)
        self._document_hosts.append(self._hosts.setdefault(host, len(self._hosts)))
        return len(self._document_texts) - 1

    def add_posts(
        self, keys: NDArray[np.uint64], texts: NDArray[np.int64], spots: NDArray[np.uint8] | None = None
    ) -> None:
        """Add posts. *texts* are text numbers in this segment, *spots* the spots of the keys (None: `WHOLE`).

        With stored texts, the order is free, and a text may have each key once. Without stored texts, posts must be
        grouped by text in the order in which the texts were added, in the order of their ordinals, complete for each
        text, and without spots.
        """
        if len(keys) != len(texts) or (spots is not None and len(spots) != len(keys)):
            raise ValueError("keys, texts and spots must have the same length")
        if not len(keys):
            return
        if self._pending + len(keys) > _MOST:
            raise ValueError("a segment of more than 4,294,967,295 posts")
        if int(texts.min()) < 0 or int(texts.max()) >= self.text_count:
            raise ValueError("posts of a text that was not added")
        if self._parameters.has_texts:
            if spots is None:
                spots = np.full(len(keys), WHOLE, np.uint8)
            elif not spots.all():
                raise ValueError("0 is not a valid spot")
            self._texts.append(texts.astype(np.uint32))
            self._spots.append(np.array(spots, np.uint8))
        elif spots is not None:
            raise ValueError("an index without texts has no spots")
        else:
            if texts[0] < self._last_text or np.any(texts[1:] < texts[:-1]):
                raise ValueError("posts must be in the order of their texts")
            self._last_text = int(texts[-1])
        self._count_posts(texts)
        self._keys.append(np.array(keys, np.uint64))
        self._pending += len(keys)

    def add_sorted_posts(
        self, keys: NDArray[np.uint64], values: NDArray[np.int64], n_posts: int, n_values: int
    ) -> None:
        """Add the next piece of the sorted posts; all keys must be larger than those of the previous piece.

        *values* are as in the layout: text numbers x 256 + spots, or numbers of blots in the segment. *n_posts* is the
        number of posts of the whole segment, *n_values* the number of possible values; both must not change between
        pieces.
        """
        if self._stream is None:
            self._stream = self._stream_for(n_posts, n_values)
        self._stream.add(np.array(keys, np.uint64), values)

    def close(self) -> SegmentEntry:
        """Sort the posts, write, sync and rename the files. Abandons the segment after an error."""
        try:
            return self._close()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove the files of the segment."""
        for file in (self._posts, getattr(self, "_blobs", None)):
            if file is not None:
                file.remove()

    def _stream_for(self, n_posts: int, n_values: int) -> PostStream:
        key_bits = self._parameters.key_bits
        value_bits = value_bits_for(n_values)
        bucket_bits = bucket_bits_for(n_posts, key_bits, value_bits)
        spot_bits = SPOT_BITS if self._parameters.has_texts else 0
        return PostStream(self._posts.write, key_bits, bucket_bits, value_bits, spot_bits)

    def _count_posts(self, texts: NDArray[np.int64]) -> None:
        """Count posts by text. Without stored texts, the number of a blot follows from these counts."""
        first = int(texts.min())
        counts = np.bincount(texts - first)
        if len(self._counted) < first + len(counts):
            more = np.zeros(max(first + len(counts), 2 * len(self._counted)) - len(self._counted), np.int64)
            self._counted = np.concatenate((self._counted, more))
        self._counted[first : first + len(counts)] += counts

    def _close(self) -> SegmentEntry:
        stream = self._finished_stream()
        spans = [Span(0, 0, 0)] * len(Section)
        spans[Section.POSTS] = Span(POSTS_HEADER_SIZE, stream.size, stream.checksum)
        bucket_item, sections = self._sections(stream)
        for section, data in sections:
            self._posts.pad()
            spans[section] = Span(self._posts.size, len(data), zlib.crc32(data))
            self._posts.write(data)
        header = PostsHeader(
            spans,
            self._parameters.has_texts,
            self._parameters.key_bits,
            stream.bucket_bits,
            stream.value_bits,
            bucket_item,
            stream.count,
            self.text_count,
            len(self._document_texts),
            len(self._hosts),
            len(self._foreign),
        ).to_bytes()
        blobs_header = self._write_blob_table()
        self._posts.finish(header)
        self._blobs.finish(blobs_header)
        self._posts.rename()
        self._blobs.rename()
        with writing(self._folder):
            sync_folder(self._folder)
        return SegmentEntry(
            self.name,
            stream.count,
            self.text_count,
            len(self._document_texts),
            self._posts.size,
            self._blobs.size,
            header_checksum(header),
            header_checksum(blobs_header),
        )

    def _finished_stream(self) -> PostStream:
        stream = self._stream
        expected = sum(self._post_counts)
        if stream is None:
            n_values = self.text_count << SPOT_BITS if self._parameters.has_texts else self._pending
            stream = self._stream_for(self._pending, n_values)
            counts = np.zeros(self.text_count, np.int64)
            counted = self._counted[: self.text_count]
            counts[: len(counted)] = counted
            if not np.array_equal(counts, np.array(self._post_counts, np.int64)):
                raise ValueError("the posts of a text do not match its post count")
            keys = np.concatenate([np.zeros(0, np.uint64), *self._keys])
            self._keys.clear()
            stream.add(keys, self._pending_values())
        stream.finish()
        if stream.count != expected:
            raise ValueError(
                f"{stream.count} posts were added, but the post counts of the texts add up to {expected}"
            )
        return stream

    def _pending_values(self) -> NDArray[np.uint64]:
        if not self._parameters.has_texts:
            return np.arange(self._pending, dtype=np.uint64)
        values = np.concatenate([np.zeros(0, np.uint32), *self._texts]).astype(np.uint64)
        values <<= np.uint64(SPOT_BITS)
        values |= np.concatenate([np.zeros(0, np.uint8), *self._spots])
        self._texts.clear()
        self._spots.clear()
        return values

    def _sections(self, stream: PostStream) -> tuple[int, list[tuple[Section, bytes]]]:
        bases, buckets = _directory(stream.bucket_counts)
        digest_heads, digest_order = _sorted_heads(
            np.frombuffer(bytes(self._digests), ">u4")[:: DIGEST_SIZE // 4].astype(np.uint32)
        )
        self._names.finish()
        name_heads, name_order = _sorted_heads(np.array(self._names.heads, np.uint32))
        hosts = "".join(f"{host}\0" for host in self._hosts).encode()
        return buckets.itemsize, [
            (Section.BASES, _bytes(bases, "<u8")),
            (Section.BUCKETS, _bytes(buckets, f"<u{buckets.itemsize}")),
            (Section.DIGESTS, bytes(self._digests)),
            (Section.DIGEST_HEADS, _bytes(digest_heads, "<u4")),
            (Section.DIGEST_ORDER, _bytes(digest_order, "<u4")),
            (Section.TOKEN_COUNTS, _bytes(self._token_counts, "<u4")),
            (Section.CHAR_COUNTS, _bytes(self._char_counts, "<u4")),
            (Section.POST_COUNTS, _bytes(self._post_counts, "<u4")),
            (Section.DOCUMENT_TEXTS, _bytes(self._document_texts, "<i4")),
            (Section.DOCUMENT_HOSTS, _bytes(self._document_hosts, "<u4")),
            (Section.FOREIGN, b"".join(self._foreign)),
            (Section.NAMES, bytes(self._names.data)),
            (Section.NAME_ENDS, _bytes(self._names.ends, "<u8")),
            (Section.NAME_SIZES, _bytes(self._names.sizes, "<u4")),
            (Section.NAME_HEADS, _bytes(name_heads, "<u4")),
            (Section.NAME_ORDER, _bytes(name_order, "<u4")),
            (Section.HOSTS, hosts),
            (Section.POST_CHECKSUMS, _bytes(stream.blocks.finished(), "<u4")),
        ]

    def _write_blob_table(self) -> bytes:
        blobs_size = self._blobs.size - BLOBS_HEADER_SIZE
        ends = np.cumsum(np.array(self._blob_sizes, np.uint64), dtype=np.uint64)
        table = _bytes(ends, "<u8") + _bytes(self._raw_sizes, "<u4") + _bytes(self._blob_checksums, "<u4")
        self._blobs.pad()
        self._blobs.write(table)
        return BlobsHeader(zlib.crc32(table), self.text_count, blobs_size).to_bytes()


class _Names:
    """Doc ids, compressed in blocks."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends, self.sizes, self.heads = array("Q"), array("I"), array("I")
        self._block: list[bytes] = []

    def add(self, doc_id: str) -> None:
        name = doc_id.encode()
        if b"\0" in name:
            raise ValueError(f"the doc id {doc_id!r} contains a NUL character")
        self.heads.append(name_head(name))
        self._block.append(name + b"\0")
        if len(self._block) == NAMES_PER_BLOCK:
            self.finish()

    def finish(self) -> None:
        if self._block:
            block = b"".join(self._block)
            self._block.clear()
            self.data += deflate_compress(block, _LEVEL)
            self.ends.append(len(self.data))
            self.sizes.append(len(block))


def _sorted_heads(heads: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    order = np.argsort(heads, kind="stable")
    return heads[order], order


def _directory(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    bases = starts[:: 1 << GROUP_BITS]
    buckets = starts - np.repeat(bases, 1 << GROUP_BITS)[: len(starts)]
    return bases, buckets.astype(np.uint16 if int(buckets.max()) < 1 << 16 else np.uint32)


def _bytes(numbers: array[int] | NDArray[Any], dtype: str) -> bytes:
    return np.asarray(numbers).astype(dtype).tobytes()
