"""The encoding of an outline: the positions of the blots of a text, for an index that keeps no texts.

::

    count          the number of blots
    token starts   the first one, then the difference of each one to the previous one
    char starts    in the same way
    lengths        for each blot, the number of characters from its char start to its char end

Every number is a varint: 7 bits per byte, lowest bits first, with the highest bit set in all bytes except the last; at
most 9 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .values import Outline

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_BYTES = 9


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
    if int(sizes.max()) > _MAX_BYTES:
        raise ValueError("not an outline")
    numbers = (array[starts] & 0x7F).astype(np.int64)
    for byte in range(1, int(sizes.max())):
        longer = np.flatnonzero(sizes > byte)
        numbers[longer] |= (array[starts[longer] + byte] & 0x7F).astype(np.int64) << (7 * byte)
    return numbers
