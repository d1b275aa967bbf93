"""The places of each value of an array, and pairs of places with equal values in two arrays.

The number of pairs is limited. A value with p places in one text and q places in the other has p x q pairs. If all values
together have more than four million pairs, the most frequent values have fewer: the first place in each text is paired
with all places in the other text. Their pairs then grow with p + q.

A caller that extends pairs to runs (*are_extended*) needs fewer: a value has all its pairs only if these are at most 1024.
"""

from __future__ import annotations

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

    def pairs_with(
        self, values: Hashes, groups: Positions | None = None, *, are_extended: bool = False
    ) -> tuple[Positions, Positions]:
        """Pairs of places with equal values: the place here and the place in *values*.

        Their number is limited, as described at the top of the module.

        *groups* is the ascending number of the text of each of *values*. Each text is treated independently.
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
        for limit in _LIMITS if are_extended else _LIMITS_UNEXTENDED:
            is_many = counts * total > limit
            if int(counts[~is_many].sum()) <= _MOST_PAIRS:
                break
        few, many = np.flatnonzero(~is_many), np.flatnonzero(is_many)
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

    def _pairs(self, low: Positions, counts: Positions, others: Positions) -> tuple[Positions, Positions]:
        return self._places[ranges(low, counts)], others.repeat(counts)
