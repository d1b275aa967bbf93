"""Spots: about where in its text a key stands, in one byte.

A spot is a node of a binary tree over the characters of a text: 1 is the whole text, 2 and 3 are its halves, 4 to 7 its
quarters, and so on to 128 to 255, of which each is a 128th. Part *i* of 2^d begins at the first character c with
c x 2^d >= i x n in a text of n characters. The spot of a key is the smallest node that has the first characters of all
blots of the key in the text. 0 is no spot.

So who looks for a key that stands once, or in a few places near each other, reads a small part of a long text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPOT_BITS: Final = 8
"""Bits of a spot."""

PART_BITS: Final = SPOT_BITS - 1
"""The smallest nodes are 2 ** 7 parts of a text."""

WHOLE: Final = 1
"""The spot that is the whole text."""

_BIT_LENGTHS: Final = np.array([part.bit_length() for part in range(1 << PART_BITS)], np.uint8)


def parts_of(char_starts: NDArray[np.int64], char_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """In which of the smallest parts, from 0, characters are; *char_counts* tells how many each one's text has.

    >>> parts_of(np.array([0, 99, 100, 199]), np.array([200, 200, 200, 200])).tolist()
    [0, 63, 64, 127]
    """
    parts: NDArray[np.int64] = (char_starts << PART_BITS) // char_counts
    return parts


def spots_between(first: NDArray[np.integer], last: NDArray[np.integer]) -> NDArray[np.uint8]:
    """The smallest nodes that have two parts each.

    >>> spots_between(np.array([0, 0, 0, 63]), np.array([0, 1, 127, 64])).tolist()
    [128, 64, 1, 1]
    """
    first = first.astype(np.uint8)
    return (first | np.uint8(1 << PART_BITS)) >> _BIT_LENGTHS[first ^ last.astype(np.uint8)]


def characters_of(
    spots: NDArray[np.int64], char_counts: NDArray[np.int64] | int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first character of each spot in a text of so many characters, and the one behind the last.

    >>> begins, ends = characters_of(np.array([1, 3, 255]), 300)
    >>> begins.tolist(), ends.tolist()
    ([0, 150, 298], [300, 300, 300])
    """
    exponents: NDArray[np.int32] = np.frexp(spots)[1]
    depths = exponents.astype(np.int64) - 1
    numbers: NDArray[np.int64] = spots - (np.int64(1) << depths)
    # Rounded up: the first character that is not in the part before.
    begins: NDArray[np.int64] = -np.right_shift(-numbers * char_counts, depths)
    ends: NDArray[np.int64] = -np.right_shift(-(numbers + 1) * char_counts, depths)
    return begins, ends
