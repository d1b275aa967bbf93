"""Sort and pack the posts of a segment in pieces, and count them by bucket."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from .packing import TAIL, BlockChecksums, pack_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BLOCK = 1 << 19  # posts packed at a time


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
