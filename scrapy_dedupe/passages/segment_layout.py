"""The layout of a segment, and its writer. A segment is a file that is written once and never changed.

A segment holds texts, the documents that have them, and posts, which record the keys of each text. Texts, documents and
hosts are numbered within the segment from 0, in the order in which they were added. All numbers are little-endian, and
unsigned unless noted. CRC-32 is that of zlib.

NAME.segment::

    magic                16 bytes   "sd-segment 2", zeros
    sections             at multiples of 8, with zeros between them, to the end of the file
      blobs              for each text its UTF-8, or its outline (see below), as a raw deflate stream
      blob ends          8 bytes per text: the end offset of its blob in "blobs"
      blob sizes         4 bytes per text: the decompressed size of its blob
      blob checksums     4 bytes per text: the CRC-32 of its blob
      posts              sorted by key, then by value, all different: each is the key without its bucket bits, times
                         2 ^ value bits, plus the value, in as few whole bytes as all fit. 8 zero bytes follow. With
                         texts, the value is the number of the text, and a text has one post per key. With outlines,
                         the value is the number of the blot among all blots of the segment, in the order of the texts
      post checksums     4 bytes   the CRC-32 of each 4,096 bytes of "posts"; the last block may be shorter
      buckets            4 bytes   for each bucket (the highest bits of a key) the number of its first post; and a final
                         item for the end of the last bucket
      digests            16 bytes per text
      digest heads       4 bytes   the first 4 bytes of the digests as big-endian numbers, sorted
      digest order       4 bytes   the texts in the order of their digests
      token counts       4 bytes per text
      char counts        4 bytes per text
      post counts        4 bytes per text
      document texts     4 bytes per document, signed: its text, or -1 - i for the i-th foreign digest
      document hosts     4 bytes per document: its host
      foreign digests    16 bytes each: of texts that other segments hold
      names              the doc ids in UTF-8, each followed by a zero byte; 64 at a time as a raw deflate stream
      name ends          8 bytes per stream: its end offset in "names"
      name sizes         4 bytes per stream: its decompressed size
      name heads         4 bytes   the first 4 bytes of the SHA-256 of the doc ids as big-endian numbers, sorted
      name order         4 bytes   the documents in that order
      hosts              in UTF-8, each followed by a zero byte

The entry of a segment in the manifest has its counts, and the offset, size and CRC-32 of each section. So the cost of
opening a segment does not depend on its size. A section is compared with its CRC-32 on first use, posts by blocks of
4,096 bytes, and a blob on every use.

An *outline* is the positions of the blots of a text, for an index that keeps no texts: numbers of 4 bytes, first the lowest
bytes of all numbers, then the next higher bytes, and so on::

    token starts   for each blot, its token start minus that of the blot before it; for the first blot, its token start
    char starts    in the same way
    lengths        for each blot, the number of characters from its char start to its char end

A segment is written to a temporary file that is synced, and renamed when it is complete. Blobs are written to the disk
immediately. Posts are kept in memory, 12 bytes each, and sorted at the end. A caller whose posts are already sorted
passes them in pieces to `SegmentWriter.add_sorted_posts`; then only one piece is kept in memory.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
from deflate import deflate_compress

from scrapy_dedupe.files import whole_file

from .folder_files import NEW_SUFFIX, writing
from .values import Outline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any, BinaryIO

    from numpy.typing import NDArray

    from .values import Parameters

MAGIC: Final = b"sd-segment 2".ljust(16, b"\0")
SUFFIX: Final = ".segment"
NAMES_PER_BLOCK: Final = 64
DIGEST_SIZE: Final = 16
BLOCK_SIZE: Final = 4096
"""The size of a block of posts in bytes."""
TAIL: Final = 8
"""How many zero bytes follow the last post, so that 8 bytes can be read from the beginning of each."""

BLOBS, POSTS, POST_CHECKSUMS, BUCKETS = "blobs", "posts", "post checksums", "buckets"
BLOB_SECTIONS: Final = (BLOBS, "blob ends", "blob sizes", "blob checksums")
TYPES: Final = {
    BLOBS: "u1",
    "blob ends": "<u8",
    POSTS: "u1",
    "digests": "u1",
    "document texts": "<i4",
    "foreign digests": "u1",
    "names": "u1",
    "name ends": "<u8",
    "hosts": "u1",
}
"""The types of the numbers in the sections; those of all others are ``<u4``."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """The entry of a segment in the manifest: its counts, its size, and offset, size and CRC-32 of each section."""

    name: str
    posts: int
    texts: int
    documents: int
    bucket_bits: int
    size: int
    sections: dict[str, list[int]]

    @property
    def texts_size(self) -> int:
        """The size of the stored texts or outlines, with their tables."""
        return sum(self.sections[section][1] for section in BLOB_SECTIONS)


def bucket_bits_for(posts: int, key_bits: int, value_bits: int) -> int:
    """Return the number of bucket bits with which this many posts take the least space, with 4 to 32 per bucket.

    >>> bucket_bits_for(7_000_000, 40, 15)
    18
    """
    middle = (posts >> 4).bit_length()
    least = max(0, key_bits + value_bits - 64)
    choices = (min(key_bits, max(least, middle + more)) for more in (-1, 0, 1))
    return min(choices, key=lambda bits: posts * post_width(key_bits - bits, value_bits) + (4 << bits))


def post_width(low_bits: int, value_bits: int) -> int:
    """Return how many bytes a post takes."""
    return -(-(low_bits + value_bits) // 8)


def value_bits_for(values: int) -> int:
    """Return how many bits are needed for one of this many values.

    >>> value_bits_for(256), value_bits_for(257), value_bits_for(0)
    (8, 9, 0)
    """
    return max(0, values - 1).bit_length()


def name_head(name: bytes) -> int:
    """Return the number that a doc id is looked up by."""
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big")


def encode_outline(outline: Outline) -> bytes:
    """Encode *outline*, uncompressed."""
    numbers = np.concatenate(
        (
            np.diff(outline.token_starts, prepend=0),
            np.diff(outline.char_starts, prepend=0),
            outline.char_ends - outline.char_starts,
        )
    )
    return numbers.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()


def decode_outline(data: bytes) -> Outline:
    """Decode the result of `encode_outline`."""
    numbers = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(4, -1).T).view("<u4")
    tokens, chars, lengths = numbers.reshape(3, -1).astype(np.int64)
    char_starts = np.cumsum(chars)
    return Outline(np.cumsum(tokens), char_starts, char_starts + lengths)


_LEVEL = 6  # compression level of names
_BUFFER = 1 << 20
_SORTED = 1 << 19  # posts written at a time


@contextmanager
def new_segment(folder: Path, name: str, parameters: Parameters) -> Iterator[SegmentWriter]:
    """Write the segment *name* to *folder*. Its entry is `SegmentWriter.entry` after the block.

    An error in the block leaves no file. Raises StoreUnavailable if the folder cannot be written to.
    """
    path = folder / f"{name}{SUFFIX}"
    with writing(path), whole_file.replacing(path, suffix=NEW_SUFFIX, buffering=_BUFFER) as file:
        writer = SegmentWriter(file, name, parameters)
        yield writer
        writer.finish()


class SegmentWriter:
    """Writes a segment to *file*: first texts, then documents and posts in any order."""

    entry: SegmentEntry

    def __init__(self, file: BinaryIO, name: str, parameters: Parameters) -> None:
        self._name = name
        self._parameters = parameters
        self._file = _SectionWriter(file)
        self._digests = bytearray()
        self._columns = tuple(array("I") for _ in range(6))
        self._document_texts, self._document_hosts = array("i"), array("I")
        self._hosts: dict[str, int] = {}
        self._foreign: dict[bytes, int] = {}
        self._names: list[bytes] = []
        self._keys: list[NDArray[np.uint64]] = []
        self._texts: list[NDArray[np.uint32]] = []
        self._posts: _PostsSection | None = None
        self._file.begin(BLOBS)

    @property
    def text_count(self) -> int:
        """How many texts have been added."""
        return len(self._columns[0])

    @property
    def post_count(self) -> int:
        """How many posts the added texts have."""
        return sum(self._columns[2])

    def add_texts(self, digests: bytes, columns: Sequence[NDArray[Any]], blobs: bytes | memoryview) -> None:
        """Add texts. *blobs* are their concatenated blobs.

        *columns* are six numbers of each text: tokens, characters, posts, size of the blob, its decompressed size, and its
        CRC-32.
        """
        self._file.write(blobs)
        self._digests += digests
        for column, numbers in zip(self._columns, columns, strict=True):
            column.frombytes(numbers.astype(np.uint32, copy=False).tobytes())

    def add_document(self, doc_id: str, host: str, text: int | bytes) -> None:
        """Add a document. *text* is a number in this segment, or the digest of a text in another segment."""
        if isinstance(text, bytes):
            text = -1 - self._foreign.setdefault(text, len(self._foreign))
        self._names.append(doc_id.encode())
        self._document_texts.append(text)
        self._document_hosts.append(self._hosts.setdefault(host, len(self._hosts)))

    def add_posts(self, keys: NDArray[np.uint64], texts: NDArray[np.int64]) -> None:
        """Add posts. *texts* are text numbers in this segment.

        With stored texts, the order is free, and a text may have each key once. Without stored texts, posts must be in the
        order of their texts and of their blots.
        """
        self._keys.append(keys)
        if self._parameters.has_texts:
            self._texts.append(texts.astype(np.uint32))

    def add_sorted_posts(self, keys: NDArray[np.uint64], values: NDArray[np.integer]) -> None:
        """Add a piece of the sorted posts: all keys must be larger than those of the previous piece.

        All texts must have been added. *values* are those of the layout.
        """
        if self._posts is None:
            self._posts = _PostsSection(self._file, self._parameters, self.text_count, self.post_count)
        self._posts.add(keys, values)

    def finish(self) -> None:
        """Write what is kept in memory.

        Raises ValueError if the number of posts is not the sum of the post counts of the texts.
        """
        tokens, chars, posts, sizes, raw_sizes, checksums = self._columns
        keys = np.concatenate([np.zeros(0, np.uint64), *self._keys])
        self._keys.clear()
        if self._parameters.has_texts:
            values = np.concatenate([np.zeros(0, np.uint32), *self._texts])
        else:
            values = np.arange(len(keys), dtype=np.uint32)
        self.add_sorted_posts(keys, values)
        assert self._posts is not None
        self._posts.finish(self.post_count)
        self._add("blob ends", np.cumsum(np.array(sizes, np.uint64)))
        self._add("blob sizes", raw_sizes)
        self._add("blob checksums", checksums)
        self._file.add("digests", bytes(self._digests))
        self._add_heads("digest", np.frombuffer(self._digests, ">u4")[::4])
        self._add("token counts", tokens)
        self._add("char counts", chars)
        self._add("post counts", posts)
        self._add("document texts", self._document_texts)
        self._add("document hosts", self._document_hosts)
        self._file.add("foreign digests", b"".join(self._foreign))
        self._add_names()
        self._add_heads("name", np.array([name_head(name) for name in self._names], np.uint32))
        self._file.add("hosts", "".join(f"{host}\0" for host in self._hosts).encode())
        self.entry = SegmentEntry(
            self._name,
            self.post_count,
            self.text_count,
            len(self._names),
            self._posts.bucket_bits,
            self._file.size,
            self._file.sections,
        )

    def _add(self, section: str, numbers: array[int] | NDArray[Any]) -> None:
        self._file.add(section, np.asarray(numbers).astype(TYPES.get(section, "<u4")).tobytes())

    def _add_heads(self, kind: str, heads: NDArray[np.integer]) -> None:
        order = np.argsort(heads, kind="stable")
        self._add(f"{kind} heads", heads[order])
        self._add(f"{kind} order", order)

    def _add_names(self) -> None:
        blocks = [
            b"".join(name + b"\0" for name in self._names[start : start + NAMES_PER_BLOCK])
            for start in range(0, len(self._names), NAMES_PER_BLOCK)
        ]
        streams = [deflate_compress(block, _LEVEL) for block in blocks]
        self._file.add("names", b"".join(streams))
        self._add("name ends", np.array(list(accumulate(map(len, streams))), np.uint64))
        self._add("name sizes", array("I", map(len, blocks)))


class _SectionWriter:
    """Writes the sections of a file, and keeps the offset, size and CRC-32 of each."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.write(MAGIC)
        self.sections: dict[str, list[int]] = {}

    def begin(self, section: str) -> None:
        self.size += self._file.write(bytes(-self.size % 8))
        self._current = self.sections[section] = [self.size, 0, 0]

    def write(self, data: bytes | memoryview) -> None:
        self.size += self._file.write(data)
        self._current[1] += len(data)
        self._current[2] = zlib.crc32(data, self._current[2])

    def add(self, section: str, data: bytes) -> None:
        self.begin(section)
        self.write(data)


class _PostsSection:
    """Writes the posts of a segment, which are added in pieces with ascending keys."""

    def __init__(self, file: _SectionWriter, parameters: Parameters, texts: int, posts: int) -> None:
        self._file = file
        self._value_bits = value_bits_for(texts if parameters.has_texts else posts)
        self.bucket_bits = bucket_bits_for(posts, parameters.key_bits, self._value_bits)
        self._low_bits = parameters.key_bits - self.bucket_bits
        self._width = post_width(self._low_bits, self._value_bits)
        self._counts = np.zeros(1 << self.bucket_bits, np.int64)
        self._checksums = array("I")
        self._rest = b""  # of the last block
        file.begin(POSTS)

    def add(self, keys: NDArray[np.uint64], values: NDArray[np.integer]) -> None:
        """Add a piece of posts in any order."""
        if not len(keys):
            return
        first, last = int(keys.min()) >> self._low_bits, int(keys.max()) >> self._low_bits
        if (last - first).bit_length() + self._low_bits + self._value_bits > 64:
            # Split between two buckets until the bits of a post, and those of the bucket, fit into 64 bits together.
            is_low = keys < np.uint64((first + last + 1) // 2 << self._low_bits)
            self.add(keys[is_low], values[is_low])
            self.add(keys[~is_low], values[~is_low])
            return
        joined = keys - np.uint64(first << self._low_bits)
        joined <<= np.uint64(self._value_bits)
        joined |= values.astype(np.uint64, copy=False)
        joined.sort()
        bits = self._low_bits + self._value_bits
        for start in range(0, len(joined), _SORTED):
            posts = joined[start : start + _SORTED]
            counts = np.bincount((posts >> np.uint64(bits)).astype(np.int64))
            self._counts[first : first + len(counts)] += counts
            posts &= np.uint64((1 << bits) - 1)
            lowest_bytes = posts.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, : self._width]
            self._write(lowest_bytes.tobytes())

    def finish(self, posts: int) -> None:
        """Write the end, and the sections that follow. *posts* is the expected number of posts."""
        starts = np.append(0, np.cumsum(self._counts))
        if starts[-1] != posts:
            raise ValueError(f"{starts[-1]} posts were added, but the texts have {posts}")
        self._write(bytes(TAIL))
        if self._rest:
            self._checksums.append(zlib.crc32(self._rest))
        self._file.add(POST_CHECKSUMS, np.asarray(self._checksums).astype("<u4").tobytes())
        self._file.add(BUCKETS, starts.astype("<u4").tobytes())

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        data = self._rest + data
        end = len(data) // BLOCK_SIZE * BLOCK_SIZE
        view = memoryview(data)
        self._checksums.extend(
            zlib.crc32(view[start : start + BLOCK_SIZE]) for start in range(0, end, BLOCK_SIZE)
        )
        self._rest = data[end:]
