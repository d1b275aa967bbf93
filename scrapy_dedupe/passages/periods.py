"""Stretches of a sequence that repeat themselves after a few values, and where in them no run begins.

A *stretch* of period *q* is as long as each value is the same as the one *q* before, and no 0. Its values may be
millions, as in a text of one line that comes again and again, and at all but the first *q* of its positions stands what
stood there before. A run of more than *q* values at a later position *p* overlaps the same run at *p* - *q*, so that its
place there does not count (see `repeats`), unless it goes on behind the end *E* of the stretch, where the one before
goes on differently. Such a run is longer to the left in all its places, unless one of them is where some stretch begins:
and that stretch then ends with the same values, and has *E* - *p* of them. So of the later positions those are kept, and
those of the last period, where the other stretch may be too short to have been found.

Those that are kept are the *echoes*: that something stands in front of them which they may overlap cannot be seen by the
positions alone. The same goes for the last *q* - 1 positions of a stretch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from .groups import ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Values = NDArray[np.uint32]
    Mask = NDArray[np.bool_]

_MOST: Final = 31
"""The longest period that is looked for."""

_COMPARED: Final = 32
_ROWS: Final = 1 << 16
_LENGTH_BITS: Final = 32
_A: Final = 0xD1342543DE82EF95


class _Stretches(NamedTuple):
    """Stretches of one period, in order: *starts* is where a second period begins; and positions that are kept."""

    shift: int
    starts: Numbers
    ends: Numbers
    kept: Numbers
    near_ends: Numbers


class Periods:
    """The stretches of a sequence that is given in parts, for runs of at least *known* values."""

    def __init__(self, known: int) -> None:
        self._known = known
        self._shifts = range(1, min(known, _MOST + 1))
        self._edges: list[list[Numbers]] = [[] for _ in self._shifts]
        self._tail: Values = np.zeros(_MOST, np.uint32)
        self._size = 0
        self._stretches: list[_Stretches] = []

    def add(self, values: Values) -> None:
        """The next values."""
        joined = np.concatenate((self._tail, values))
        is_value = values != 0
        for shift, edges in zip(self._shifts, self._edges, strict=True):
            is_same = values == joined[_MOST - shift : len(joined) - shift]
            is_same &= is_value
            found = np.flatnonzero(np.diff(is_same, prepend=False, append=False)).reshape(-1, 2)
            is_long = found[:, 1] - found[:, 0] >= self._known
            # What touches an end of the part may be longer.
            is_long |= (found[:, 0] == 0) | (found[:, 1] == len(values))
            edges.append(found[is_long] + self._size)
        self._tail = joined[-_MOST:]
        self._size += len(values)

    def finish(self, sequence: Values) -> None:
        """All values were given; here they are again, with a 0 at the end."""
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
                self._stretches.append(_Stretches(shift, starts, ends, kept, near_ends))
        self._edges = []

    def masks(self, start: int, end: int) -> tuple[Mask, Mask]:
        """Which of the positions from *start* to *end* begin no run, and which of the others are echoes."""
        dropped, echoes = np.zeros(end - start, np.bool_), np.zeros(end - start, np.bool_)
        for stretches in self._stretches:
            behind = stretches.ends - self._known + 1
            here = slice(np.searchsorted(behind, start, "right"), np.searchsorted(stretches.starts, end))
            begins = np.maximum(stretches.starts[here], start) - start
            counts = np.minimum(behind[here], end) - start - begins
            if len(counts):
                at = ranges(begins, counts)
                echoes[at] = True
                repeated = np.zeros(end - start, np.bool_)
                repeated[at] = True
                repeated[_between(stretches.kept, start, end)] = False
                dropped |= repeated
            echoes[_between(stretches.near_ends, start, end)] = True
        return dropped, echoes & ~dropped

    def _kept(self, shift: int, starts: Numbers, ends: Numbers, sequence: Values) -> Numbers:
        """The later positions at which a run may begin that goes on behind the end of its stretch."""
        goes_on = sequence[ends] != 0
        starts, ends = starts[goes_on], ends[goes_on]
        if not len(starts):
            return starts
        _, groups = np.unique(self._hashes_of_ends(ends, sequence), return_inverse=True)
        groups = groups.reshape(-1) << _LENGTH_BITS
        lengths = np.unique(groups | (ends - starts + shift))
        lows = np.searchsorted(lengths, groups | (self._known + shift))
        counts = np.maximum(np.searchsorted(lengths, groups | (ends - starts), "right") - lows, 0)
        which = ranges(lows, counts)
        as_others = np.repeat(ends, counts) - (lengths[which] & ((1 << _LENGTH_BITS) - 1))
        last = np.maximum(ends[:, None] - self._known - np.arange(shift), starts[:, None])
        return np.unique(np.append(as_others, last))

    def _hashes_of_ends(self, ends: Numbers, sequence: Values) -> NDArray[np.uint64]:
        """What tells the last values of stretches, and the one behind."""
        steps = np.arange(min(self._known, _COMPARED) + 1)
        factors = np.multiply.accumulate(np.full(len(steps), _A, np.uint64))
        parts = [
            (sequence[ends[first : first + _ROWS, None] - steps] * factors).sum(axis=1, dtype=np.uint64)
            for first in range(0, len(ends), _ROWS)
        ]
        return np.concatenate(parts)


def _between(positions: Numbers, start: int, end: int) -> Numbers:
    """The sorted positions from *start* to *end*, counted from there."""
    low, high = np.searchsorted(positions, [start, end])
    return positions[low:high] - start
