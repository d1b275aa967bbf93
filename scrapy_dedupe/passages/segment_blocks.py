"""The packed posts of a segment in blocks, each with its own checksum.

A query reads a few bytes here and there of a section that may have gigabytes. To find damage without reading the whole
section, each block of 4,096 bytes has a CRC-32; the blocks that a query touches are checked once.
"""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from numpy.typing import NDArray

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
