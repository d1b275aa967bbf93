"""Integers packed at a fixed width in bits, and read in place.

::

    number i     the bits from i * width to (i + 1) * width, the lowest bit of the lowest byte first
    zeros        up to a multiple of 8 bytes, and 8 bytes more

The zeros at the end let a reader take 8 bytes from the first byte of any number. The width is therefore at most 57 bits:
the first byte may hold up to 7 bits of the previous number.

The packed posts of a segment are divided into blocks of 4,096 bytes, each with a CRC-32. A query reads a few bytes here
and there of a section that may have gigabytes; the blocks that it touches are checked once. `PostStream` sorts and packs
posts that are added in pieces.
"""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap
    from typing import NoReturn

    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview | mmap

BLOCK_SIZE = 4096
"""Size of a block in bytes; the last one may be shorter."""


def block_count(size: int) -> int:
    """Return how many blocks *size* bytes take.

    >>> block_count(4096), block_count(4097)
    (1, 2)
    """
    return -(-size // BLOCK_SIZE)


class BlockChecksums:
    """Computes the checksums of blocks from data that is written in pieces of any size."""

    def __init__(self) -> None:
        self._whole = array("I")
        self._last = 0
        self._filled = 0  # bytes in the block that is not complete yet

    def add(self, data: bytes) -> None:
        """Continue with *data*."""
        view = memoryview(data)
        while len(view):
            piece = view[: BLOCK_SIZE - self._filled]
            self._last = zlib.crc32(piece, self._last)
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == BLOCK_SIZE:
                self._whole.append(self._last)
                self._last = self._filled = 0

    def finished(self) -> array[int]:
        """Return the checksums of all blocks."""
        return self._whole + array("I", [self._last] if self._filled else [])


class CheckedBlocks:
    """The blocks in *data* with their *checksums*. A wrong checksum calls *refuse*, which must raise."""

    def __init__(
        self, data: memoryview, checksums: NDArray[np.uint32], refuse: Callable[[], NoReturn]
    ) -> None:
        self._data = data
        self._checksums = checksums
        self._refuse = refuse
        self._is_sound = np.zeros(len(checksums), np.bool_)

    def check(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Check the blocks that cover each range from *starts* to *stops*, unless they were checked before."""
        has_bytes = stops > starts
        first, last = starts[has_bytes] // BLOCK_SIZE, (stops[has_bytes] - 1) // BLOCK_SIZE
        counts = last - first + 1
        ends = counts.cumsum()
        blocks = np.repeat(first - (ends - counts), counts)
        blocks += np.arange(len(blocks))
        unknown = blocks[~self._is_sound[blocks]]
        for block in np.unique(unknown).tolist():
            found = zlib.crc32(self._data[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE])
            if found != int(self._checksums[block]):
                self._refuse()
            self._is_sound[block] = True


MAX_WIDTH = 57

TAIL = 8
"""How many zero bytes follow the last number."""

_BLOCK = 1 << 14  # numbers packed at a time, which fit the processor's cache


def packed_size(count: int, width: int) -> int:
    """Return how many bytes *count* numbers take.

    >>> packed_size(3, 20)
    16
    """
    return (count * width + 63) // 64 * 8 + TAIL


def pack(values: NDArray[np.uint64], width: int) -> bytes:
    """Return *values* packed. Raises ValueError if one does not fit the width."""
    return pack_words(values, width) + bytes(TAIL)


def pack_words(values: NDArray[np.uint64], width: int) -> bytes:
    """Like `pack`, without the tail. The result for a multiple of 64 numbers can be followed by more packed numbers."""
    _check_width(width)
    values = np.ascontiguousarray(values, dtype=np.uint64)
    if len(values) and int(values.max()) >> width:
        raise ValueError(f"{int(values.max())} does not fit {width} bits")
    return b"".join(
        _packed_block(values[start : start + _BLOCK], width) for start in range(0, len(values), _BLOCK)
    )


class PackedArray:
    """*count* numbers of *width* bits, read from *buffer*. Raises ValueError if the buffer is too short."""

    def __init__(self, buffer: Buffer, width: int, count: int) -> None:
        _check_width(width)
        size = memoryview(buffer).nbytes
        if count < 0 or size < packed_size(count, width):
            raise ValueError(f"{size} bytes do not hold {count} numbers of {width} bits")
        self.width = width
        self.count = count
        self._buffer = buffer
        # Overlapping words of 8 bytes, one per byte: the array is a view and takes no memory.
        self._words: NDArray[np.uint64] = np.ndarray((size - 7,), "<u8", buffer, strides=(1,))
        self._mask = np.uint64((1 << width) - 1)

    def gather(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the numbers at *positions*, which must be in range; the range is not checked."""
        bits = positions * self.width
        numbers = self._words[bits >> 3]
        bits &= 7
        numbers >>= bits.view(np.uint64)
        numbers &= self._mask
        return numbers

    def range(self, start: int, stop: int) -> NDArray[np.uint64]:
        """Return the numbers from *start* to before *stop*. Raises ValueError if the range is invalid."""
        if not 0 <= start <= stop <= self.count:
            raise ValueError(f"the range {start} to {stop} is outside of the {self.count} numbers")
        first = start & ~7
        if stop - first < 128:  # too few for the method below to be faster
            return self.gather(np.arange(start, stop, dtype=np.int64))
        groups = (stop - first) >> 3
        numbers = np.empty((groups, 8), np.uint64)
        for lane in range(
            8
        ):  # numbers 8 positions apart are `width` bytes apart, at the same bit of their byte
            bit = lane * self.width
            lanes: NDArray[np.uint64] = np.ndarray(
                (groups,),
                "<u8",
                self._buffer,
                offset=(first >> 3) * self.width + (bit >> 3),
                strides=(self.width,),
            )
            np.right_shift(lanes, np.uint64(bit & 7), out=numbers[:, lane])
        numbers &= self._mask
        rest = self.gather(np.arange(first + groups * 8, stop, dtype=np.int64))
        return np.concatenate((numbers.reshape(-1)[start - first :], rest))


def _packed_block(values: NDArray[np.uint64], width: int) -> bytes:
    groups = -(-len(values) // 64)
    # 64 numbers fill `width` words of 64 bits, so the words and the shift of each number in a group are fixed.
    lanes = np.zeros((groups, 64), np.uint64)
    lanes.reshape(-1)[: len(values)] = values
    lanes = np.ascontiguousarray(lanes.T)
    words = np.zeros((width, groups), np.uint64)
    for lane in range(64 if width else 0):
        word, shift = divmod(lane * width, 64)
        words[word] |= lanes[lane] << np.uint64(shift)
        if shift + width > 64:
            words[word + 1] |= lanes[lane] >> np.uint64(64 - shift)
    data = np.ascontiguousarray(words.T).astype("<u8", copy=False).tobytes()
    return data[: packed_size(len(values), width) - TAIL]


def _check_width(width: int) -> None:
    if not 0 <= width <= MAX_WIDTH:
        raise ValueError(f"the width must be from 0 to {MAX_WIDTH} bits, not {width}")


_SORTED = 1 << 19  # posts added at a time


class PostStream:
    """Packs posts, added in pieces with ascending keys, and passes the bytes to *write*.

    A post is identified by its key and its value without the lowest *spot_bits*, which are its spot.

    *size* and *checksum* describe the bytes written, *blocks* has the checksums of their blocks, and *bucket_counts* the
    number of posts in each bucket.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        key_bits: int,
        bucket_bits: int,
        value_bits: int,
        spot_bits: int = 0,
    ) -> None:
        self.bucket_bits = bucket_bits
        self.value_bits = value_bits
        self.bucket_counts = np.zeros(1 << bucket_bits, np.int64)
        self.count = 0
        self.size = 0
        self.checksum = 0
        self.blocks = BlockChecksums()
        self._write = write
        self._key_bits = key_bits
        self._spot_bits = np.uint64(spot_bits)
        self._low_bits = key_bits - bucket_bits
        self._rest = np.zeros(0, np.uint64)  # fewer than 64 posts, packed together with the next ones
        self._last = (-1, -1)

    def add(self, keys: NDArray[np.uint64], values: NDArray[np.integer]) -> None:
        """Add a piece of posts in any order. No key may be less than a key of the previous piece. Modifies *keys*.

        Raises ValueError for a duplicate post, and for a key or value that is too large.
        """
        if not len(keys):
            return
        least, most = int(keys.min()), int(keys.max())
        if most >> self._key_bits or int(values.max()) >> self.value_bits or int(values.min()) < 0:
            raise ValueError("a key or value is too large")
        if (most - least).bit_length() + self.value_bits > 64:
            # Split at the middle key until the difference to the smallest key and a value fit into 64 bits together.
            is_low = keys < np.uint64((least + most + 1) // 2)
            self.add(keys[is_low], values[is_low])
            self.add(keys[~is_low], values[~is_low])
            return
        keys -= np.uint64(least)
        keys <<= np.uint64(self.value_bits)
        keys |= values.astype(np.uint64, copy=False)
        keys.sort()
        self._add_joined(keys, least)

    def finish(self) -> None:
        """Write the remaining posts."""
        self._put(pack(self._rest, self._low_bits + self.value_bits))
        self._rest = self._rest[:0]

    def _add_joined(self, joined: NDArray[np.uint64], least: int) -> None:
        value_bits = np.uint64(self.value_bits)
        mask = np.uint64((1 << self.value_bits) - 1)
        for start in range(0, len(joined), _SORTED):
            block = joined[start : start + _SORTED]
            keys = (block >> value_bits) + np.uint64(least)
            self._add_sorted(keys, block & mask)

    def _add_sorted(self, keys: NDArray[np.uint64], values: NDArray[np.uint64]) -> None:
        owners = values >> self._spot_bits
        is_after = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (owners[1:] > owners[:-1]))
        if (int(keys[0]), int(owners[0])) <= self._last or not is_after.all():
            raise ValueError("a post was added twice, or after larger posts")
        self._last = int(keys[-1]), int(owners[-1])
        buckets = (keys >> np.uint64(self._low_bits)).astype(np.int64)
        first = int(buckets[0])
        counts = np.bincount(buckets - first)
        self.bucket_counts[first : first + len(counts)] += counts
        self.count += len(keys)
        keys &= np.uint64((1 << self._low_bits) - 1)
        keys <<= np.uint64(self.value_bits)
        keys |= values
        posts = np.concatenate((self._rest, keys))
        whole = len(posts) & ~63
        self._put(pack_words(posts[:whole], self._low_bits + self.value_bits))
        self._rest = posts[whole:].copy()

    def _put(self, data: bytes) -> None:
        self._write(data)
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)
        self.blocks.add(data)
