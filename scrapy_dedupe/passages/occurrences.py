"""The places of each value of an array, and pairs of places with equal values in two arrays.

The number of pairs is limited. A value with p places in one text and q places in the other has p x q pairs. If all values
together have more than four million pairs, the most frequent values have fewer: the first place in each text is paired
with all places in the other text. Their pairs then grow with p + q.

With ``begins_only``, for callers that extend pairs to runs, fewer pairs are returned:

*   A value has all its pairs only if these are at most 1024.
*   A pair is left out if it follows from the pair of the places before it, because the same value precedes all places in
    the first text.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .groups import group_bounds, ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

_MOST_PAIRS = 1 << 22
# The maximum number of pairs of one value. The next lower limit applies if all values together have too many pairs.
_LIMITS = (1 << 10, 1 << 6, 1 << 2)
# If pairs are not extended to runs, a missing pair splits a run, so the limits are higher.
_LIMITS_UNEXTENDED = (_MOST_PAIRS, 1 << 18, 1 << 14, *_LIMITS)
_LONG = 1 << 14


class Occurrences:
    """An index of the places of each value in *values*, for finding equal values in other arrays."""

    def __init__(self, values: Hashes) -> None:
        self._places: Positions = values.argsort(kind="stable").astype(np.int64, copy=False)
        self._values = values[self._places]
        # Most lookups fail. A table of the highest bits rejects them quickly.
        self._shift = np.uint64(64 - max(12, min(22, 4 + len(values).bit_length())))
        self._may_be_there = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._may_be_there[values >> self._shift] = True

    @cached_property
    def _before(self) -> Positions:
        """For each value, the value that precedes it, or -1 if no value or different values precede its places.

        Values are identified by the index of their first place in sorted order; other items of the array are unused.
        """
        bounds = group_bounds(self._values[1:] != self._values[:-1], len(self._values))
        firsts = bounds[:-1]
        first_of = firsts.repeat(np.diff(bounds))
        at = np.empty(len(self._places), np.int64)
        at[self._places] = first_of
        before = np.append(-1, at)[self._places]
        before[firsts] = np.where(
            np.minimum.reduceat(before, firsts) == np.maximum.reduceat(before, firsts), before[firsts], -1
        )
        return before

    def pairs_with(
        self, values: Hashes, groups: Positions | None = None, *, begins_only: bool = False
    ) -> tuple[Positions, Positions]:
        """Pairs of places with equal values: the place here and the place in *values*.

        Their number is limited, as described at the top of the module.

        *groups* is the ascending number of the text of each of *values*. Each text is treated independently.
        *begins_only* returns only the pairs that are needed to find all runs by extending pairs.
        """
        if not len(self._values):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found = np.flatnonzero(self._may_be_there[values >> self._shift])
        values = values[found]
        low = self._values.searchsorted(values)
        low[low == len(self._values)] = 0
        there = self._values[low] == values
        low, values, found = low[there], values[there], found[there]
        if not len(found):
            return found, found
        counts = self._values.searchsorted(values, side="right") - low
        rank, total = self._ranks(low, counts, found, groups)
        for limit in _LIMITS if begins_only else _LIMITS_UNEXTENDED:
            is_many = counts * total > limit
            left = np.arange(len(found))
            if begins_only:
                left = self._begins(low, counts, found, total, is_many, groups)
            if int(counts[left][~is_many[left]].sum()) <= _MOST_PAIRS:
                break
        few, many = left[~is_many[left]], left[is_many[left]]
        # Of frequent values, one side has only the first place of each text.
        is_first = rank[many] == 0
        first, others = many[is_first], many[~is_first]
        pairs = (
            self._pairs(low[few], counts[few], found[few]),
            self._pairs(low[first], counts[first], found[first]),
            self._pairs(low[others], np.ones_like(others), found[others]),
        )
        own, there = (np.concatenate(side) for side in zip(*pairs, strict=True))
        return own, there

    def _ranks(
        self, low: Positions, counts: Positions, found: Positions, groups: Positions | None
    ) -> tuple[Positions, Positions]:
        """For each found item, its rank among the places of its value in the other text, and their number."""
        rank, total = np.zeros_like(low), np.ones_like(low)
        several = np.flatnonzero(counts > 2) if len(found) < _LONG else np.arange(len(found))
        if len(several):
            values_there = low[several]
            if groups is not None:
                values_there = values_there + len(self._values) * groups[found[several]]
            order = values_there.argsort(kind="stable")
            values_there = values_there[order]
            bounds = group_bounds(values_there[1:] != values_there[:-1], len(order))
            times = np.diff(bounds)
            rank[several[order]] = np.arange(len(order)) - bounds[:-1].repeat(times)
            total[several[order]] = times.repeat(times)
        return rank, total

    def _begins(
        self,
        low: Positions,
        counts: Positions,
        found: Positions,
        total: Positions,
        is_many: NDArray[np.bool_],
        groups: Positions | None,
    ) -> Positions:
        """The found items whose pairs do not follow from the pairs of the previous item."""
        follows = found[1:] == found[:-1] + 1
        if groups is not None:
            follows &= groups[found[1:]] == groups[found[:-1]]
        follows &= self._before[low[1:]] == low[:-1]
        # A frequent value does not have all its pairs. The next value's pairs follow from it only if both have the same
        # number of places.
        follows &= ~is_many[:-1] | ((counts[1:] == counts[:-1]) & (total[1:] == total[:-1]))
        return group_bounds(~follows, len(found))[:-1]

    def _pairs(self, low: Positions, counts: Positions, others: Positions) -> tuple[Positions, Positions]:
        return self._places[ranges(low, counts)], others.repeat(counts)
