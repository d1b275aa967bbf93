"""The places of each value of an array, and pairs of places with equal values in two arrays.

The number of pairs is limited. A value with p places in one text and q places in the other has p x q pairs. If all values
together have more than four million pairs, only the first and the last place in each text are paired with all places in
the other text for the most frequent values. Their pairs then grow with p + q.

With ``begins_only``, for callers that extend pairs to runs, fewer pairs are returned:

*   A value has all its pairs only if these are at most 1024.
*   A pair is left out if it follows from the pair of the places before it, because the same value precedes all places in
    the first text.
*   In periodic text, such as one word or line repeated many times, only the pairs needed to cover the text are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .groups import group_bounds, ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """An index of the places of each value in *values*, for finding equal values in other arrays.

    A value represents *size* tokens, the first of which is at the place of the value.
    """

    def __init__(self, values: Hashes, size: int = 1) -> None:
        self._size = size
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
        if not is_many[left].any():
            return self._pairs(low[left], counts[left], found[left])
        few, many = left[~is_many[left]], left[is_many[left]]
        of_group = found[many] * 0 if groups is None else groups[found[many]]
        order = np.lexsort((rank[many], low[many], of_group))
        many = many[order]
        pairs = (
            self._pairs(low[few], counts[few], found[few]),
            *self._some_pairs(low[many], counts[many], found[many], rank[many], total[many], begins_only),
        )
        own, others = (np.concatenate(side) for side in zip(*pairs, strict=True))
        return own, others

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

    def _some_pairs(
        self,
        low: Positions,
        counts: Positions,
        found: Positions,
        rank: Positions,
        total: Positions,
        begins_only: bool,
    ) -> Iterator[tuple[Positions, Positions]]:
        """Pairs of frequent values: the first and the last place on either side, with all places on the other side."""
        is_first, is_last = rank == 0, (rank == total - 1) & (rank > 0)
        values = np.cumsum(np.append(True, (np.diff(low) != 0) | (np.diff(rank) <= 0))[: len(low)])
        own = self._chains if begins_only else _Chains.none(len(self._places))
        there = _Chains.of(values, found, self._size) if begins_only else _Chains.none(len(found))
        for which, side in ((is_first, 1), (is_last, -1)):
            some = np.flatnonzero(which)
            at = ranges(low[some], counts[some])
            other = some.repeat(counts[some])
            is_one = there.before[other] == total[other] - 1
            needed = own.needed(at, there, other, side, self._size, is_one)
            yield self._places[at[needed]], found[other[needed]]
        some = np.flatnonzero(~is_first & ~is_last)
        for at, side in ((low[some], 1), (low[some] + counts[some] - 1, -1)):
            is_one = own.before[at] == counts[some] - 1
            needed = there.needed(some, own, at, side, self._size, is_one)
            yield self._places[at[needed]], found[some[needed]]

    @cached_property
    def _chains(self) -> _Chains:
        return _Chains.of(self._values, self._places, self._size)

    def _pairs(self, low: Positions, counts: Positions, others: Positions) -> tuple[Positions, Positions]:
        return self._places[ranges(low, counts)], others.repeat(counts)


@dataclass(frozen=True, slots=True)
class _Chains:
    """For each place: the number of places before and after it in its chain, and the step of the chain (0: no chain).

    A chain consists of places of one value at equal distances of at most the size of a value, so its text is periodic.
    """

    before: Positions
    after: Positions
    steps: Positions

    @classmethod
    def none(cls, count: int) -> _Chains:
        """*count* places without chains."""
        zeros = np.zeros(count, np.int64)
        return cls(zeros, zeros, zeros)

    @classmethod
    def of(cls, values: NDArray[Any], places: Positions, size: int) -> _Chains:
        """The chains of *places*, which are sorted by value."""
        steps = np.diff(places, prepend=0)
        is_apart = (steps > size) | (steps <= 0)
        is_apart |= np.append(True, values[1:] != values[:-1])[: len(values)]
        steps[is_apart] = 0
        previous = np.append(0, steps[:-1])[: len(steps)]
        heads = np.flatnonzero(is_apart | ((steps != previous) & (previous > 0)))
        counts = np.diff(heads, append=len(places))
        before = np.arange(len(places)) - heads.repeat(counts)
        step = np.where(counts > 1, steps[np.minimum(heads + 1, len(places) - 1)], 0)
        return cls(before, np.repeat(counts - 1, counts) - before, step.repeat(counts))

    def needed(
        self, own: Positions, others: _Chains, at: Positions, side: int, size: int, is_one: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which pairs of *own* here and *at* in *others* are needed to cover all shared text here.

        If both chains have the same period, the run of a pair reaches to the end of the other chain: after the place on
        *side* 1, before it on *side* -1. The next pair is needed only where this run ends. *is_one* is true where all
        places of the other text are in one chain; the pairs of *side* 1 then cover the chain here.
        """
        steps = self.steps[own]
        reach = np.where(others.steps[at] == steps, (others.after if side > 0 else others.before)[at], 0)
        interval = np.where(steps > 0, reach + size // np.maximum(steps, 1), 1)
        done, left = (self.before, self.after) if side > 0 else (self.after, self.before)
        if side > 0:
            needed: NDArray[np.bool_] = (done[own] % interval == 0) | (left[own] == 0)
        else:
            is_covered = is_one & (steps > 0)
            needed = (done[own] == 0) | (~is_covered & ((done[own] % interval == 0) | (left[own] == 0)))
        return needed
