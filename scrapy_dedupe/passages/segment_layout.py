"""The layout of a segment: a file that is written once and never changed.

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
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from .values import Outline

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
