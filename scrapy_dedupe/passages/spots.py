"""Spots: the approximate position of a key in its text, in one byte.

A spot is a node of a binary tree over the characters of a text: 1 is the whole text, 2 and 3 are its halves, 4 to 7 its
quarters, and so on to 128 to 255, each of which is a 128th. Part *i* of 2^d begins at the first character c with
c x 2^d >= i x n in a text of n characters. The spot of a key is the smallest node that contains the first characters of
all blots of the key in the text. 0 is not a spot.

With spots, a key with one place, or with a few places near each other, is found by reading a small part of a long text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPOT_BITS: Final = 8
"""The number of bits of a spot."""

PART_BITS: Final = SPOT_BITS - 1
"""The smallest nodes are 2 ** 7 parts of a text."""

WHOLE: Final = 1
"""The spot that is the whole text."""

_BIT_LENGTHS: Final = np.array([part.bit_length() for part in range(1 << PART_BITS)], np.uint8)


def parts_of(char_starts: NDArray[np.int64], char_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the smallest part, numbered from 0, of each character. *char_counts* are the lengths of the texts.

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
