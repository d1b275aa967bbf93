"""The head of a gzip member (RFC 1952, section 2.3), parsed without a decompressor.

After damage, every occurrence of GZIP_MAGIC may begin a member, and a hostile file has one in every third byte. Most
false ones are recognized by the bytes after it, at a fraction of the cost of setting up a decompressor.
"""

from __future__ import annotations

from typing import Final

from zlib_ng import zlib_ng

GZIP_MAGIC: Final = b"\x1f\x8b\x08"

_HAS_CHECKSUM, _HAS_EXTRA, _HAS_NAME, _HAS_COMMENT, _RESERVED = 2, 4, 8, 16, 0xE0
_FLAGS_AT, _FIXED_BYTES = 3, 10
# RFC 1951, section 3.2.3, from the second bit on.
_STORED, _NO_BLOCK_TYPE = 0, 3
_STORED_BYTES = 5  # one with the type of the block, its length, and its length complemented


def deflate_start(raw: bytes, at: int, end: int) -> int:
    """Where the deflated data of the member whose head is at *at* begins; -1 if there is no valid head before *end*.

    The head must end before *end*. Everything that a decompressor checks in it, and in the head of the first block, is
    checked.
    """
    flags = raw[at + _FLAGS_AT] if at + _FIXED_BYTES < end else _RESERVED
    if flags & _RESERVED:
        return -1
    start = at + _FIXED_BYTES
    if flags & _HAS_EXTRA:
        start += 2 + int.from_bytes(raw[start : start + 2], "little")
    for flag in (_HAS_NAME, _HAS_COMMENT):
        if flags & flag:
            start = raw.find(b"\0", start, end) + 1
            if not start:
                return -1
    if flags & _HAS_CHECKSUM:
        checksum = int.from_bytes(raw[start : start + 2], "little")
        if start + 2 >= end or zlib_ng.crc32(memoryview(raw)[at:start]) & 0xFFFF != checksum:
            return -1
        start += 2
    return start if start < end and _begins_block(raw[start : min(start + _STORED_BYTES, end)]) else -1


def _begins_block(raw: bytes) -> bool:
    block_type = raw[0] >> 1 & 3
    if block_type != _STORED:
        return block_type != _NO_BLOCK_TYPE
    length, complement = raw[1:3], raw[3:5]
    return len(raw) == _STORED_BYTES and all(
        one ^ other == 0xFF for one, other in zip(length, complement, strict=True)
    )
