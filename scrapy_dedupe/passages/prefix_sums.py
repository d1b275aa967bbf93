"""Prefix sums of a sequence of numbers, with which any two ranges of it are compared in constant time.

The sum before item *i* is the sum of value_j x B^j for all j < i, modulo 2^64. Two ranges are compared by the differences
of the sums at their ends. Different ranges compare equal as rarely as 64-bit hashes collide in texts that were not
constructed for it; results are compared word by word afterwards.

The file has the sum before every fourth item, starting with the first, as uint64. Other sums are computed from these and
from the items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_BASE: Final = 0x9E6C63D0876A9A47
_BITS: Final = 16
_BLOCK: Final = 1 << 18
_STEP_BITS: Final = 2
_STEP: Final = 1 << _STEP_BITS


def _powers_of(base: int, count: int) -> NDArray[np.uint64]:
    powers = np.full(count, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


_LOW: Final = _powers_of(_BASE, 1 << _BITS)
_HIGH: Final = _powers_of(pow(_BASE, 1 << _BITS, 1 << 64), 1 << _BITS)


class PrefixSums:
    """The prefix sums of *sequence*, which has fewer than 2^32 items, in the file *path*."""

    def __init__(self, path: Path, sequence: NDArray[np.uint32]) -> None:
        total = np.uint64(0)
        with path.open("wb") as file:
            for start in range(0, len(sequence), _BLOCK):
                values = sequence[start : start + _BLOCK].astype(np.uint64)
                values *= _powers(np.arange(start, start + len(values)))
                sums = np.append(total, values)
                np.cumsum(sums, out=sums)
                file.write(sums[-start % _STEP : -1 : _STEP].tobytes())
                total = sums[-1]
            if len(sequence) % _STEP == 0:
                file.write(total.tobytes())
        self._path = path
        self._sequence = sequence
        self._sums: NDArray[np.uint64] | None = None

    def are_equal(self, a_starts: Numbers, b_starts: Numbers, lengths: Numbers) -> Mask:
        """For each pair of starts, whether the ranges of *lengths* items that begin there are equal."""
        low, high = np.minimum(a_starts, b_starts), np.maximum(a_starts, b_starts)
        below = self._before(low + lengths) - self._before(low)
        above = self._before(high + lengths) - self._before(high)
        result: Mask = below * _powers(high - low) == above
        return result

    def reaches(self, a_starts: Numbers, b_starts: Numbers, least: Numbers, most: Numbers) -> Numbers:
        """For each pair of starts, the number of equal items from there on. It must be between *least* and *most*."""
        least, most = least.copy(), most.copy()
        left = np.flatnonzero(least < most)
        while len(left):
            middle = (least[left] + most[left] + 1) >> 1
            is_equal = self.are_equal(a_starts[left], b_starts[left], middle)
            least[left] = np.where(is_equal, middle, least[left])
            most[left] = np.where(is_equal, most[left], middle - 1)
            left = left[least[left] < most[left]]
        return least

    def release(self, sequence: NDArray[np.uint32]) -> None:
        """Free the memory of the mapped files. *sequence* is the sequence, mapped again."""
        self._sums = None
        self._sequence = sequence

    def _before(self, places: Numbers) -> NDArray[np.uint64]:
        """The sum before each of *places*."""
        if self._sums is None:
            self._sums = np.memmap(self._path, np.uint64, "r").view(np.ndarray)
        steps = places >> _STEP_BITS
        firsts = steps << _STEP_BITS
        over = places - firsts
        rest = np.zeros(len(places), np.uint64)
        for number in range(_STEP - 2, -1, -1):
            items = self._sequence[np.minimum(firsts + number, len(self._sequence) - 1)]
            rest *= np.uint64(_BASE)
            rest += np.where(number < over, items, 0).astype(np.uint64)
        return self._sums[steps] + rest * _powers(firsts)


def _powers(exponents: Numbers) -> NDArray[np.uint64]:
    powers: NDArray[np.uint64] = _LOW[exponents & ((1 << _BITS) - 1)] * _HIGH[exponents >> _BITS]
    return powers
