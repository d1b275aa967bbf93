"""Sums of a sequence of numbers by which any two stretches of it are compared at once, however long they are.

The sum before item *i* is that of value_j x B^j for all j < i, modulo 2^64. So two stretches are told apart by two
differences. Different ones that are taken to be the same are as rare as collisions of 64 bits in texts that were not
made for it; what is given out is compared word by word afterwards.

The file: uint64, the sum before each fourth item, from the first one on. The others are made of it and of the items.
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
    """Those of *sequence*, which has fewer than 2^32 items, in the file *path*."""

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

    def are_equal(self, ours: Numbers, others: Numbers, lengths: Numbers) -> Mask:
        """Whether so many items from *ours* and from *others* on are the same."""
        low, high = np.minimum(ours, others), np.maximum(ours, others)
        below = self._before(low + lengths) - self._before(low)
        above = self._before(high + lengths) - self._before(high)
        result: Mask = below * _powers(high - low) == above
        return result

    def reaches(self, ours: Numbers, others: Numbers, least: Numbers, most: Numbers) -> Numbers:
        """How many items from *ours* and from *others* on are the same: at least *least*, at most *most* are."""
        least, most = least.copy(), most.copy()
        left = np.flatnonzero(least < most)
        while len(left):
            middle = (least[left] + most[left] + 1) >> 1
            is_equal = self.are_equal(ours[left], others[left], middle)
            least[left] = np.where(is_equal, middle, least[left])
            most[left] = np.where(is_equal, most[left], middle - 1)
            left = left[least[left] < most[left]]
        return least

    def release(self, sequence: NDArray[np.uint32]) -> None:
        """Give back the memory of what was read; here is the sequence, read anew."""
        self._sums = None
        self._sequence = sequence

    def _before(self, places: Numbers) -> NDArray[np.uint64]:
        """The sums before items."""
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
