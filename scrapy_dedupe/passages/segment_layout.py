"""The layout of a segment: two files that are written once and never changed.

A segment holds texts, the documents that have them, and posts, which record the keys of each text. Texts, documents and
hosts are numbered within the segment from 0, in the order in which they were added. All numbers are little-endian, and
unsigned unless noted. CRC-32 is that of zlib.

NAME.posts::

    header               536 bytes
      magic              8 bytes   "sd-posts"
      version            4 bytes   1
      has texts          4 bytes   1 if the index stores texts, 0 if it stores outlines
      key bits           4 bytes   size of a key
      bucket bits        4 bytes   how many of the highest bits of a key are the number of its bucket
      value bits         4 bytes   size of the value of a post
      bucket item        4 bytes   size of a number in "buckets": 2 or 4
      counts             5 x 8 bytes   posts, texts, documents, hosts, foreign digests
      sections           19 x 24 bytes: offset (8), size (8), CRC-32 (4), zero (4); in the order below
      zero               4 bytes
      CRC-32             4 bytes   of the header up to here
    sections             at the offsets in the header, multiples of 8, with zeros between them, to the end of the file
      posts              sorted by key, then by value, all different: each is the key without its bucket bits, times
                         2 ^ value bits, plus the value; packed (see the module `packing`). With texts, the value is
                         the number of the text times 256, plus the spot of the key in the text (see below), and a
                         text has one post per key. With outlines, the value is the number of the blot
                         among all blots of the segment, in the order of the texts
      bases              8 bytes   for each 256th bucket, the number of its first post
      buckets            2 or 4 bytes   for each bucket, the number of its first post, minus the base of its group of
                         256; and a final item for the end of the last bucket
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
      post checksums     4 bytes   the CRC-32 of each 4,096 bytes of "posts"; the last block may be shorter

NAME.blobs::

    header               64 bytes
      magic              8 bytes   "sd-blobs"
      version            4 bytes   1
      table's CRC-32     4 bytes
      texts              8 bytes   number of texts
      blobs              8 bytes   total size of the blobs
      zero               28 bytes
      CRC-32             4 bytes   of the header up to here
    blobs                for each text its UTF-8, or its outline (see below), as a raw deflate stream
    zeros                up to a multiple of 8
    table                ends: 8 bytes per text, the end offset of its blob in "blobs"; then sizes: 4 bytes per text,
                         its decompressed size; then checksums: 4 bytes per text, the CRC-32 of its blob

The entry of a segment in the manifest has the sizes of both files and the CRC-32 of both headers, so the cost of opening
a segment does not depend on its size. A section and the table of blobs are compared with their CRC-32 on first use, posts
by blocks of 4,096 bytes, and a blob on every use.

A *spot* is the approximate position of a key in its text, in one byte: a node of a binary tree over the characters of
the text. 1 is the whole text, 2 and 3 are its halves, 4 to 7 its quarters, and so on to 128 to 255, each of which is a
128th. Part *i* of 2^d begins at the first character c with
c x 2^d >= i x n in a text of n characters. The spot of a key is the smallest node that contains the first characters of
all blots of the key in the text. 0 is not a spot.

With spots, a key with one place, or with a few places near each other, is found by reading a small part of a long text.

An *outline* is the positions of the blots of a text, for an index that keeps no texts::

    count          the number of blots
    token starts   the first one, then the difference of each one to the previous one
    char starts    in the same way
    lengths        for each blot, the number of characters from its char start to its char end

Every number is a varint: 7 bits per byte, lowest bits first, with the highest bit set in all bytes except the last; at
most 9 bytes.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from .packing import MAX_WIDTH
from .values import Outline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SPOT_BITS: Final = 8
"""The number of bits of a spot."""

PART_BITS: Final = SPOT_BITS - 1
"""The smallest nodes are 2 ** 7 parts of a text."""

WHOLE: Final = 1
"""The spot that is the whole text."""

_BIT_LENGTHS: Final = np.array([part.bit_length() for part in range(1 << PART_BITS)], np.uint8)


def parts_of(char_starts: NDArray[np.int64], char_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the part that contains each character. *char_counts* are the lengths of the texts.

    A text has 2 ** PART_BITS parts, numbered from 0.

    >>> parts_of(np.array([0, 99, 100, 199]), np.array([200, 200, 200, 200])).tolist()
    [0, 63, 64, 127]
    """
    parts: NDArray[np.int64] = (char_starts << PART_BITS) // char_counts
    return parts


def spots_between(first: NDArray[np.integer], last: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return the smallest node that contains both parts, for each pair of parts.

    >>> spots_between(np.array([0, 0, 0, 63]), np.array([0, 1, 127, 64])).tolist()
    [128, 64, 1, 1]
    """
    first = first.astype(np.uint8)
    return (first | np.uint8(1 << PART_BITS)) >> _BIT_LENGTHS[first ^ last.astype(np.uint8)]


def characters_of(
    spots: NDArray[np.int64], char_counts: NDArray[np.int64] | int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and end character of each spot in texts of *char_counts* characters.

    >>> begins, ends = characters_of(np.array([1, 3, 255]), 300)
    >>> begins.tolist(), ends.tolist()
    ([0, 150, 298], [300, 300, 300])
    """
    exponents: NDArray[np.int32] = np.frexp(spots)[1]
    depths = exponents.astype(np.int64) - 1
    numbers: NDArray[np.int64] = spots - (np.int64(1) << depths)
    # Round up to the first character that is not in the previous part.
    begins: NDArray[np.int64] = -np.right_shift(-numbers * char_counts, depths)
    ends: NDArray[np.int64] = -np.right_shift(-(numbers + 1) * char_counts, depths)
    return begins, ends


VERSION = 1
POSTS_HEADER_SIZE = 536
BLOBS_HEADER_SIZE = 64
GROUP_BITS = 8
"""A base covers 2 ** 8 buckets."""
NAMES_PER_BLOCK = 64
DIGEST_SIZE = 16
MAX_INFLATION = 1040
"""The largest possible ratio of decompressed to compressed size of deflate data."""

_POSTS_MAGIC = b"sd-posts"
_BLOBS_MAGIC = b"sd-blobs"
_HEAD = struct.Struct("<8s6I5Q")
_SECTION = struct.Struct("<QQII")
_BLOBS_HEAD = struct.Struct("<8sIIQQ28x")
_CHECKSUM = struct.Struct("<I")
_BUCKET_POSTS = 8  # a bucket has 8 to 16 posts on average


class Section(IntEnum):
    """The sections of NAME.posts."""

    POSTS = 0
    BASES = 1
    BUCKETS = 2
    DIGESTS = 3
    DIGEST_HEADS = 4
    DIGEST_ORDER = 5
    TOKEN_COUNTS = 6
    CHAR_COUNTS = 7
    POST_COUNTS = 8
    DOCUMENT_TEXTS = 9
    DOCUMENT_HOSTS = 10
    FOREIGN = 11
    NAMES = 12
    NAME_ENDS = 13
    NAME_SIZES = 14
    NAME_HEADS = 15
    NAME_ORDER = 16
    HOSTS = 17
    POST_CHECKSUMS = 18

    @property
    def title(self) -> str:
        """The name of the section in the layout."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """The entry of a segment in the manifest: its counts, and the sizes and header checksums of its two files."""

    name: str
    posts: int
    texts: int
    documents: int
    posts_size: int
    blobs_size: int
    posts_checksum: int
    blobs_checksum: int


@dataclass(frozen=True, slots=True)
class Span:
    """Offset, size and CRC-32 of a section."""

    offset: int
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class PostsHeader:
    """The header of NAME.posts. The numbers are in the order of the layout."""

    sections: Sequence[Span]
    has_texts: bool
    key_bits: int
    bucket_bits: int
    value_bits: int
    bucket_item: int
    posts: int
    texts: int
    documents: int
    hosts: int
    foreign: int

    @property
    def value_count(self) -> int:
        """How many different values a post can have."""
        return self.texts << SPOT_BITS if self.has_texts else self.posts

    @property
    def low_bits(self) -> int:
        """How many bits of a key are stored in a post."""
        return self.key_bits - self.bucket_bits

    @property
    def width(self) -> int:
        """How many bits a post has."""
        return self.low_bits + self.value_bits

    def to_bytes(self) -> bytes:
        """Return the encoded header."""
        numbers = (getattr(self, name) for name in self.__slots__[1:])
        head = _HEAD.pack(_POSTS_MAGIC, VERSION, *numbers)
        table = b"".join(_SECTION.pack(span.offset, span.size, span.checksum, 0) for span in self.sections)
        return _with_checksum((head + table).ljust(POSTS_HEADER_SIZE - _CHECKSUM.size, b"\0"))

    @classmethod
    def from_bytes(cls, data: bytes) -> PostsHeader:
        """Decode the header. Raises ValueError with the reason if it is invalid."""
        _check_header(data, _POSTS_MAGIC, POSTS_HEADER_SIZE)
        _, _, has_texts, *numbers = _HEAD.unpack_from(data)
        spans = [
            Span(*_SECTION.unpack_from(data, _HEAD.size + number * _SECTION.size)[:3]) for number in Section
        ]
        header = cls(spans, bool(has_texts), *numbers)
        # Checked first, since the checks below shift numbers by these bits.
        is_possible = has_texts <= 1 <= header.key_bits <= MAX_WIDTH and header.bucket_bits <= header.key_bits
        if (
            not is_possible
            or header.bucket_item not in (2, 4)
            or header.value_bits != value_bits_for(header.value_count)
            or header.width > MAX_WIDTH
            or (has_texts and header.posts > header.texts << header.key_bits)
        ):
            raise ValueError("its header is inconsistent")
        return header


@dataclass(frozen=True, slots=True)
class BlobsHeader:
    """The header of NAME.blobs."""

    table_checksum: int
    texts: int
    blobs_size: int

    @property
    def table_offset(self) -> int:
        """The offset of the table in the file."""
        return aligned(BLOBS_HEADER_SIZE + self.blobs_size)

    @property
    def file_size(self) -> int:
        """The size of the file in bytes."""
        return self.table_offset + 16 * self.texts

    def to_bytes(self) -> bytes:
        """Return the encoded header."""
        return _with_checksum(
            _BLOBS_HEAD.pack(_BLOBS_MAGIC, VERSION, self.table_checksum, self.texts, self.blobs_size)
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> BlobsHeader:
        """Decode the header. Raises ValueError with the reason if it is invalid."""
        _check_header(data, _BLOBS_MAGIC, BLOBS_HEADER_SIZE)
        return cls(*_BLOBS_HEAD.unpack_from(data)[2:])


def posts_name(name: str) -> str:
    """Return the file name of a segment's posts."""
    return f"{name}.posts"


def blobs_name(name: str) -> str:
    """Return the file name of a segment's blobs."""
    return f"{name}.blobs"


def aligned(offset: int) -> int:
    """Return the smallest multiple of 8 that is at least *offset*."""
    return (offset + 7) & ~7


def bucket_bits_for(posts: int, key_bits: int, value_bits: int) -> int:
    """Return the number of bucket bits for this many posts.

    >>> bucket_bits_for(7_000_000, 40, 15)
    19
    """
    bits = max(0, (posts // _BUCKET_POSTS).bit_length() - 1)
    return min(key_bits, max(bits, key_bits + value_bits - MAX_WIDTH))


def value_bits_for(values: int) -> int:
    """Return how many bits are needed for one of this many values.

    >>> value_bits_for(256), value_bits_for(257), value_bits_for(0)
    (8, 9, 0)
    """
    return max(0, values - 1).bit_length()


def name_head(name: bytes) -> int:
    """Return the number that a doc id is looked up by."""
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big")


def header_checksum(header: bytes) -> int:
    """Return the CRC-32 at the end of a header."""
    return int(_CHECKSUM.unpack_from(header, len(header) - _CHECKSUM.size)[0])


def _with_checksum(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(zlib.crc32(data))


def _check_header(data: bytes, magic: bytes, size: int) -> None:
    if len(data) < size or data[: len(magic)] != magic:
        raise ValueError("it is not a file of a passage index, or its beginning is damaged")
    version = int.from_bytes(data[8:12], "little")
    if version != VERSION:
        raise ValueError(f"it has format version {version}, but this program reads version {VERSION}")
    if zlib.crc32(data[: size - _CHECKSUM.size]) != header_checksum(data[:size]):
        raise ValueError("the checksum of its header is wrong")


_MAX_VARINT_BYTES = 9


def encode_outline(outline: Outline) -> bytes:
    """Encode *outline*, uncompressed.

    Raises ValueError if its starts are not ascending or a blot ends before it begins.
    """
    count = len(outline.token_starts)
    if len(outline.char_starts) != count or len(outline.char_ends) != count:
        raise ValueError("the arrays of an outline must have the same length")
    numbers = np.concatenate(
        (
            np.array([count], np.int64),
            np.diff(outline.token_starts, prepend=0),
            np.diff(outline.char_starts, prepend=0),
            outline.char_ends - outline.char_starts,
        )
    )
    if numbers.min() < 0:
        raise ValueError("the blots of an outline must be in text order")
    return _encode_varints(numbers)


def decode_outline(data: bytes) -> Outline:
    """Decode the result of `encode_outline`. Raises ValueError for other bytes."""
    numbers = _decode_varints(data)
    if not len(numbers) or int(numbers[0]) * 3 + 1 != len(numbers):
        raise ValueError("not an outline")
    tokens, chars, lengths = numbers[1:].reshape(3, -1)
    char_starts = np.cumsum(chars)
    outline = Outline(np.cumsum(tokens), char_starts, char_starts + lengths)
    # Sums of large numbers overflow and wrap around, so check the order again.
    if any(
        len(array) and (array[0] < 0 or np.any(np.diff(array) < 0))
        for array in (outline.token_starts, outline.char_starts)
    ) or np.any(outline.char_ends < outline.char_starts):
        raise ValueError("not an outline")
    return outline


def _encode_varints(numbers: NDArray[np.int64]) -> bytes:
    sizes = np.ones(len(numbers), np.int64)
    most = int(numbers.max())
    for bits in range(7, most.bit_length(), 7):
        sizes += numbers >= 1 << bits
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]), np.uint8)
    rest, places, left = numbers, ends - sizes, sizes
    while len(rest):
        more = left > 1
        data[places] = (rest & 0x7F) | (more.astype(np.int64) << 7)
        rest, places, left = rest[more] >> 7, places[more] + 1, left[more] - 1
    return data.tobytes()


def _decode_varints(data: bytes) -> NDArray[np.int64]:
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array < 0x80)
    if not len(ends) or ends[-1] != len(array) - 1:
        raise ValueError("not an outline")
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    sizes = ends - starts + 1
    if int(sizes.max()) > _MAX_VARINT_BYTES:
        raise ValueError("not an outline")
    numbers = (array[starts] & 0x7F).astype(np.int64)
    for byte in range(1, int(sizes.max())):
        longer = np.flatnonzero(sizes > byte)
        numbers[longer] |= (array[starts[longer] + byte] & 0x7F).astype(np.int64) << (7 * byte)
    return numbers
