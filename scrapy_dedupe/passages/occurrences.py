"""Where the values of one array stand, and the pairs of places of equal values in two.

Pairs are bounded. What stands p times in one text and q times in the other makes p x q pairs; if all pairs together are
more than four million, then of values that have the most only the first and the last place in either text are paired with
all of the other, so pairs grow with p + q.

Who extends pairs to runs needs but some of them: of no value more than 1024 are made. Of a run only the first is made where
what stands before is the same at all places in the first text. In a periodic stretch, such as one word or line without end,
of the pairs with a first or last place so many are made as their runs are needed to cover the stretch.
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
# More than so many pairs of places of one value are not made; fewer, if they are too many in all.
_LIMITS = (1 << 10, 1 << 6, 1 << 2)
# A run that is told by its pairs alone breaks where one of them is left out.
_LIMITS_UNEXTENDED = (_MOST_PAIRS, 1 << 18, 1 << 14, *_LIMITS)
_LONG = 1 << 14


class Occurrences:
    """Where each value of an array stands, made ready for finding the same values in others.

    A value stands for *size* tokens, of which the first is at its place.
    """

    def __init__(self, values: Hashes, size: int = 1) -> None:
        self._size = size
        self._places: Positions = values.argsort(kind="stable").astype(np.int64, copy=False)
        self._values = values[self._places]
        # Most of what is looked up is not there, which a table of the highest bits tells at once.
        self._shift = np.uint64(64 - max(12, min(22, 4 + len(values).bit_length())))
        self._may_be_there = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._may_be_there[values >> self._shift] = True

    @cached_property
    def _before(self) -> Positions:
        """For each value, at its first place in the order of values: where the one before it has its first place.

        -1 if different ones stand before it, or none.
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
        """Pairs of places, here and in *values*, of equal values; of many, only some (see above).

        *groups* tells, ascending, to which text each of *values* belongs: it is for each text as if it were alone.
        *begins_only*, for pairs that are extended, leaves out those that follow from the pair of the places before.
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
        """Which of its places in the other text each one found is, and how many there are."""
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
        """Those of which the pairs do not follow from the pairs of the one before."""
        follows = found[1:] == found[:-1] + 1
        if groups is not None:
            follows &= groups[found[1:]] == groups[found[:-1]]
        follows &= self._before[low[1:]] == low[:-1]
        # Of many not all pairs are made, so nothing follows from them, unless they are as many.
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
        """Of the places of values that have many, in order: the first and the last on either side with all others."""
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
    """Of places of values: how many stand before and behind each in its chain, and the step between these, or 0.

    A chain is of one value, each a step of at most its size behind the one before: what it stands for is periodic.
    """

    before: Positions
    behind: Positions
    steps: Positions

    @classmethod
    def none(cls, count: int) -> _Chains:
        """Each alone."""
        zeros = np.zeros(count, np.int64)
        return cls(zeros, zeros, zeros)

    @classmethod
    def of(cls, values: NDArray[Any], places: Positions, size: int) -> _Chains:
        """Of places in the order of the values."""
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
        """Which of the pairs of *own* here and *at* in the *others* have to be made to cover all that is shared here.

        In what has the same period, the run of a pair reaches as far as the chain there goes on: on *side* 1 behind the
        place, on -1 before it. Not until then another one is needed. If all others are in one chain, which *is_one*
        tells on side -1, what stands in a chain is covered from the other end.
        """
        steps = self.steps[own]
        reach = np.where(others.steps[at] == steps, (others.behind if side > 0 else others.before)[at], 0)
        turn = np.where(steps > 0, reach + size // np.maximum(steps, 1), 1)
        begun, left = (self.before, self.behind) if side > 0 else (self.behind, self.before)
        if side > 0:
            needed: NDArray[np.bool_] = (begun[own] % turn == 0) | (left[own] == 0)
        else:
            is_covered = is_one & (steps > 0)
            needed = (begun[own] == 0) | (~is_covered & ((begun[own] % turn == 0) | (left[own] == 0)))
        return needed
