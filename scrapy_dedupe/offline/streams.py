"""Comparison of byte streams in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def are_same(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    """Whether two streams have the same bytes, regardless of their division into pieces.

    >>> are_same(iter([b"ab", b"c"]), iter([b"a", b"", b"bc"]))
    True
    """
    left = right = b""
    while True:
        while not left and (piece := next(one, None)) is not None:
            left = piece
        while not right and (piece := next(other, None)) is not None:
            right = piece
        size = min(len(left), len(right))
        if not size:
            return len(left) == len(right)
        # Slices of bytes are compared much faster than those of a memoryview.
        if left[:size] != right[:size]:
            return False
        left, right = left[size:], right[size:]
