"""Posts on their way to a segment: sorted, packed and counted by bucket, a piece at a time."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from .packing import TAIL, pack_words
from .segment_blocks import BlockChecksums

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BLOCK = 1 << 19  # posts packed at a time


class PostStream:
    """Give *write* the packed posts of pieces with rising keys.

    A post is told by its key and its value without the lowest *spot_bits*, which only say where.

    *size* and *checksum* are those of what was written, *blocks* the checksums of its blocks, *bucket_counts* how many
    posts each bucket has.
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
        self._rest = np.zeros(0, np.uint64)  # fewer than 64, which are packed with what follows
        self._last = (-1, -1)

    def add(self, keys: NDArray[np.uint64], values: NDArray[np.integer]) -> None:
        """Add posts in any order, all with keys not below those of the piece before; *keys* is changed.

        Raises ValueError for a post that is there already, or a key or value that is too large.
        """
        if not len(keys):
            return
        least, most = int(keys.min()), int(keys.max())
        if most >> self._key_bits or int(values.max()) >> self.value_bits or int(values.min()) < 0:
            raise ValueError("a key or value is too large")
        if (most - least).bit_length() + self.value_bits > 64:
            # By halves of the keys, until a key less the least of them and a value are one number.
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
        """Write what is left."""
        self._put(pack_words(self._rest, self._low_bits + self.value_bits) + bytes(TAIL))
        self._rest = self._rest[:0]

    def _add_joined(self, joined: NDArray[np.uint64], least: int) -> None:
        value_bits = np.uint64(self.value_bits)
        mask = np.uint64((1 << self.value_bits) - 1)
        for start in range(0, len(joined), _BLOCK):
            block = joined[start : start + _BLOCK]
            keys = (block >> value_bits) + np.uint64(least)
            self._add_sorted(keys, block & mask)

    def _add_sorted(self, keys: NDArray[np.uint64], values: NDArray[np.uint64]) -> None:
        owners = values >> self._spot_bits
        is_after = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (owners[1:] > owners[:-1]))
        if (int(keys[0]), int(owners[0])) <= self._last or not is_after.all():
            raise ValueError("a post is there twice, or is added after larger ones")
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
