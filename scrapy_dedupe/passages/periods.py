"""Periodic sections of a sequence, and the positions in them where no run begins.

A *section* of period *q* is a maximal range in which each value equals the value *q* positions before it and is not 0. It
may have millions of values, for example in a text that repeats one line.

A run of more than *q* values at a position *p* after the first period overlaps the same run at *p* - *q*, so its place at
*p* does not count (see `repeats`). The exception is a run that continues beyond the end *E* of the section, because the
values after *p* - *q* differ there. Such a run can be extended to the left at all its places, and is not maximal, unless
one of its places is the start of a section. That section ends with the same values and has *E* - *p* of them. So *p* is
kept if another section with the same end has *E* - *p* values. The positions of the last period are also kept, because
the other section may be too short to have been found.

The kept positions and the last *q* - 1 positions of a section are *possible overlaps*: they may overlap an earlier
position that was dropped, so the remaining positions are not enough to detect the overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .characters import powers_of
from .groups import ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Values = NDArray[np.uint32]
    Mask = NDArray[np.bool_]

_MOST: Final = 31
"""The longest period that is detected."""

_COMPARED: Final = 32
_ROWS: Final = 1 << 16
_LENGTH_BITS: Final = 32
_A: Final = 0xD1342543DE82EF95


class _Sections(NamedTuple):
    """The sections of one period, in order. *starts* is where the second period of each section begins.

    *kept* are positions at which a run may begin, *near_ends* the last positions of the sections.
    """

    shift: int
    starts: Numbers
    ends: Numbers
    kept: Numbers
    near_ends: Numbers


class Periods:
    """Finds the periodic sections of a sequence that is given in parts, for runs of at least *known* values."""

    def __init__(self, known: int) -> None:
        self._known = known
        self._shifts = range(1, min(known, _MOST + 1))
        self._edges: list[list[Numbers]] = [[] for _ in self._shifts]
        self._tail: Values = np.zeros(_MOST, np.uint32)
        self._size = 0
        self._sections: list[_Sections] = []

    def add(self, values: Values) -> None:
        """Add the next values of the sequence."""
        joined = np.concatenate((self._tail, values))
        is_value = values != 0
        for shift, edges in zip(self._shifts, self._edges, strict=True):
            is_same = values == joined[_MOST - shift : len(joined) - shift]
            is_same &= is_value
            found = np.flatnonzero(np.diff(is_same, prepend=False, append=False)).reshape(-1, 2)
            is_long = found[:, 1] - found[:, 0] >= self._known
            # A section that touches an end of the part may be longer.
            is_long |= (found[:, 0] == 0) | (found[:, 1] == len(values))
            edges.append(found[is_long] + self._size)
        self._tail = joined[-_MOST:]
        self._size += len(values)

    def finish(self, sequence: Values) -> None:
        """Complete the sections. *sequence* has all values again, followed by a 0."""
        for shift, edges in zip(self._shifts, self._edges, strict=True):
            if not edges:
                continue
            starts, ends = np.concatenate(edges).T
            if not len(starts):
                continue
            is_cut = starts[1:] != ends[:-1]
            starts, ends = starts[np.append(True, is_cut)], ends[np.append(is_cut, True)]
            is_long = ends - starts >= self._known
            starts, ends = starts[is_long], ends[is_long]
            if len(starts):
                near_ends = np.unique(ends[:, None] - np.arange(1, shift))
                kept = self._kept(shift, starts, ends, sequence)
                self._sections.append(_Sections(shift, starts, ends, kept, near_ends))
        self._edges = []

    def masks(self, start: int, end: int) -> tuple[Mask, Mask]:
        """Which positions from *start* to *end* begin no run, and which of the others are possible overlaps."""
        dropped, overlapping = np.zeros(end - start, np.bool_), np.zeros(end - start, np.bool_)
        for sections in self._sections:
            section_ends = sections.ends - self._known + 1
            here = slice(np.searchsorted(section_ends, start, "right"), np.searchsorted(sections.starts, end))
            begins = np.maximum(sections.starts[here], start) - start
            counts = np.minimum(section_ends[here], end) - start - begins
            if len(counts):
                at = ranges(begins, counts)
                overlapping[at] = True
                repeated = np.zeros(end - start, np.bool_)
                repeated[at] = True
                repeated[_between(sections.kept, start, end)] = False
                dropped |= repeated
            overlapping[_between(sections.near_ends, start, end)] = True
        return dropped, overlapping & ~dropped

    def _kept(self, shift: int, starts: Numbers, ends: Numbers, sequence: Values) -> Numbers:
        """The positions after the first period that may begin a run which continues beyond the end of the section."""
        continues = sequence[ends] != 0
        starts, ends = starts[continues], ends[continues]
        if not len(starts):
            return starts
        _, groups = np.unique(self._hashes_of_ends(ends, sequence), return_inverse=True)
        groups = groups.reshape(-1) << _LENGTH_BITS
        lengths = np.unique(groups | (ends - starts + shift))
        lows = np.searchsorted(lengths, groups | (self._known + shift))
        counts = np.maximum(np.searchsorted(lengths, groups | (ends - starts), "right") - lows, 0)
        which = ranges(lows, counts)
        at_lengths = np.repeat(ends, counts) - (lengths[which] & ((1 << _LENGTH_BITS) - 1))
        last = np.maximum(ends[:, None] - self._known - np.arange(shift), starts[:, None])
        return np.unique(np.append(at_lengths, last))

    def _hashes_of_ends(self, ends: Numbers, sequence: Values) -> NDArray[np.uint64]:
        """Hashes of the last values of sections, including the value after the section."""
        steps = np.arange(min(self._known, _COMPARED) + 1)
        factors = powers_of(_A, len(steps))
        parts = [
            (sequence[ends[first : first + _ROWS, None] - steps] * factors).sum(axis=1, dtype=np.uint64)
            for first in range(0, len(ends), _ROWS)
        ]
        return np.concatenate(parts)


def _between(positions: Numbers, start: int, end: int) -> Numbers:
    """The positions from *start* to *end*, relative to *start*. *positions* are sorted."""
    low, high = np.searchsorted(positions, [start, end])
    return positions[low:high] - start
