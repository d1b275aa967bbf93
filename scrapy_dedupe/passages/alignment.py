"""Which runs of tokens two texts share.

Tokens are compared by their 64-bit hashes. A *run* stands at a token of the one text and at a token of the other; it is
*maximal* if the tokens before it differ, or one text begins there, and those behind it as well. On each diagonal (the
difference between the two places) runs do not touch.

How far two places agree is found by bisection over sums of h_j x B^j modulo 2^64 (Karp and Rabin, "Efficient randomized
pattern-matching algorithms", 1987), so a step costs the same however long the run is.

Work is bounded. What stands p times in one text and q times in the other makes p x q pairs; if these are more than
`_MANY`, only the first and last few places in either text are paired with all of the other, so pairs grow with p + q. Of a
run only the first pair is made where what stands before is the same at all places in the first text. Of very many runs that
lie one over the other, as in a line that is repeated without end, so many are told as cover all that is shared (`thinned`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

_MULTIPLIER = 0x9E3779B97F4A7C15
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_MANY = 1 << 10
_FEW = 1
_LONGEST = 256
_LAYERS = 8
_BLOCK = 1 << 14
_MOST_KEPT = 1 << 20
_powers: dict[int, Hashes] = {}


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs that two texts share: the first token in the one, the first token in the other, and how many tokens."""

    a_starts: Positions
    b_starts: Positions
    lengths: Positions

    def __len__(self) -> int:
        return len(self.lengths)

    def picked(self, which: NDArray[Any]) -> Runs:
        """Those that a mask or an array of numbers picks."""
        return Runs(self.a_starts[which], self.b_starts[which], self.lengths[which])


class Occurrences:
    """Where each value of an array stands, made ready for finding the same values in others."""

    def __init__(self, values: Hashes) -> None:
        order = np.argsort(values, kind="stable")
        self._places = order.astype(np.int64)
        self._values = values[order]
        # Most of what is looked up is not there, which a table of the highest bits tells at once.
        self._shift = np.uint64(64 - max(12, min(22, 4 + len(values).bit_length())))
        self._may_be_there = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._may_be_there[values >> self._shift] = True

    @cached_property
    def _before(self) -> Positions:
        """For each value, at its first place in the order of values: where the one before it has its first place.

        -1 if different ones stand before it, or none.
        """
        firsts = np.flatnonzero(np.append(True, self._values[1:] != self._values[:-1]))
        first_of = np.repeat(firsts, np.diff(firsts, append=len(self._values)))
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
        *begins_only* leaves out those that follow from the pair of the places before.
        """
        if not len(self._values):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found = np.flatnonzero(self._may_be_there[values >> self._shift])
        values = values[found]
        low = np.searchsorted(self._values, values)
        low[low == len(self._values)] = 0
        there = self._values[low] == values
        low, values, found = low[there], values[there], found[there]
        if not len(found):
            return self._pairs(low, low, found)
        counts = np.searchsorted(self._values, values, side="right") - low
        # How often each value stands in the other text, and which of its places there this is.
        rank, total = np.zeros_like(low), np.ones_like(low)
        several = np.flatnonzero(counts > 2 * _FEW)
        if len(several):
            values_there = low[several]
            if groups is not None:
                values_there = values_there + len(self._values) * groups[found[several]]
            order = np.argsort(values_there, kind="stable")
            first = np.flatnonzero(np.diff(values_there[order], prepend=-1))
            times = np.diff(first, append=len(order))
            rank[several[order]] = np.arange(len(order)) - np.repeat(first, times)
            total[several[order]] = np.repeat(times, times)
        is_many = counts * total > _MANY
        if begins_only:
            follows = found[1:] == found[:-1] + 1
            if groups is not None:
                follows &= groups[found[1:]] == groups[found[:-1]]
            follows &= self._before[low[1:]] == low[:-1]
            # Of many not all pairs are made, so nothing follows from them, unless they are as many.
            follows &= ~is_many[:-1] | ((counts[1:] == counts[:-1]) & (total[1:] == total[:-1]))
            left = np.flatnonzero(np.append(True, ~follows))
            low, counts, found = low[left], counts[left], found[left]
            rank, total, is_many = rank[left], total[left], is_many[left]
        is_inner = is_many & (rank >= _FEW) & (rank < total - _FEW)
        if not is_inner.any():
            return self._pairs(low, counts, found)
        inner, whole = np.flatnonzero(is_inner), ~is_inner
        some = np.full(len(inner), _FEW)
        pairs = (
            self._pairs(low[whole], counts[whole], found[whole]),
            self._pairs(low[inner], some, found[inner]),
            self._pairs((low + counts)[inner] - _FEW, some, found[inner]),
        )
        own, others = (np.concatenate(side) for side in zip(*pairs, strict=True))
        return own, others

    def _pairs(self, low: Positions, counts: Positions, others: Positions) -> tuple[Positions, Positions]:
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
        return self._places[np.repeat(low, counts) + within], np.repeat(others, counts)


class Windows:
    """All windows of *size* tokens of one text, made ready for finding them in others."""

    def __init__(self, hashes: Hashes, size: int) -> None:
        self.hashes = hashes
        self.size = size
        self._sums = _sums(hashes)
        self._occurrences = Occurrences(_windows(self._sums, size))

    def runs_in(self, other: Hashes, groups: Positions | None = None) -> Runs:
        """The maximal runs of at least *size* tokens that *other* has as well; of many places of a run, some.

        *other* may be several texts with a token between them that equals nothing; *groups* tells which text each token
        belongs to.
        """
        sums = _sums(other)
        values = _windows(sums, self.size)
        seeds = self._occurrences.pairs_with(
            values, None if groups is None else groups[: len(values)], begins_only=True
        )
        return _runs(self.hashes, self._sums, other, sums, seeds, self.size)


def shared_runs(
    a_hashes: Hashes, b_hashes: Hashes, seeds: tuple[Positions, Positions], min_tokens: int
) -> Runs:
    """The maximal equal runs of at least *min_tokens* tokens that go through *seeds*, each once.

    Seeds are pairs of places that may agree; those that do not are passed over. In the order of the first text.
    """
    return _runs(a_hashes, _sums(a_hashes), b_hashes, _sums(b_hashes), seeds, min_tokens)


def thinned(runs: Runs) -> Runs:
    """All runs, unless tokens are on average in very many of them: then those that cover the same in both texts.

    In the order of the first text.
    """
    if len(runs) <= _LAYERS:
        return runs
    covers = [_cover(starts, runs.lengths) for starts in (runs.a_starts, runs.b_starts)]
    if int(runs.lengths.sum()) <= _LAYERS * sum(int(runs.lengths[cover].sum()) for cover in covers):
        return runs
    return runs.picked(np.unique(np.concatenate(covers)))


def _cover(starts: Positions, lengths: Positions) -> Positions:
    """The numbers of some spans that together have all that any has; nothing is in three of them."""
    order = np.lexsort((-lengths, starts))
    ends = starts[order] + lengths[order]
    # Each that is left reaches further than all that begin before.
    order = order[np.append(True, ends[1:] > np.maximum.accumulate(ends)[:-1])]
    firsts, ends = starts[order], starts[order] + lengths[order]
    chosen, at = [], 0
    while at < len(order):
        chosen.append(at)
        # The last that begins before this one ends, or the next there is.
        at = max(at + 1, int(np.searchsorted(firsts, ends[at], "right")) - 1)
    return order[chosen]


def outermost(runs: Runs) -> Runs:
    """Those that do not lie, in both texts, within the span of one of the longest.

    What repeats within itself agrees with itself shifted: of all these runs the longest says all.
    """
    by_place = np.argsort(runs.a_starts, kind="stable")
    ends = runs.a_starts[by_place] + runs.lengths[by_place]
    if np.all(runs.a_starts[by_place][1:] >= ends[:-1]):
        return runs
    longest = np.argsort(-runs.lengths, kind="stable")[:_LONGEST]
    a_ends, b_ends = runs.a_starts + runs.lengths, runs.b_starts + runs.lengths
    inside = np.zeros(len(runs), np.bool_)
    for begin in range(0, len(runs), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        within = runs.a_starts[longest, None] <= runs.a_starts[block]
        within &= runs.b_starts[longest, None] <= runs.b_starts[block]
        within &= a_ends[longest, None] >= a_ends[block]
        within &= b_ends[longest, None] >= b_ends[block]
        # Each is within itself.
        inside[block] = np.count_nonzero(within, axis=0) > np.isin(np.arange(len(runs))[block], longest)
    return runs.picked(~inside)


def _runs(
    a: Hashes, a_sums: Hashes, b: Hashes, b_sums: Hashes, seeds: tuple[Positions, Positions], min_tokens: int
) -> Runs:
    a_at, b_at = (np.asarray(side, np.int64) for side in seeds)
    if len(a_at):
        equal = a[a_at] == b[b_at]
        a_at, b_at = a_at[equal], b_at[equal]
    empty = np.empty(0, np.int64)
    if not len(a_at):
        return Runs(empty, empty, empty)
    # By diagonal, along it: of seeds in a row only the first can be the first of a run.
    step = len(a) + len(b) + 2
    code = np.sort((b_at - a_at + len(a)) * step + a_at)
    code = code[np.diff(code, prepend=-2) > 1]
    diagonal, a_at = np.divmod(code, step)
    b_at = a_at + diagonal - len(a)
    after = _reach(a_sums, b_sums, a_at, b_at, np.minimum(len(a) - a_at, len(b) - b_at))
    before = _reach_back(a_sums, b_sums, a_at, b_at)
    starts, lengths = a_at - before, before + after
    code = diagonal * step + starts
    # Those of one run are neighbours, since the order is that of the diagonals.
    first = np.flatnonzero(np.diff(code, prepend=-1))
    starts, diagonal, lengths = starts[first], diagonal[first], lengths[first]
    long = lengths >= min_tokens
    starts, diagonal, lengths = starts[long], diagonal[long], lengths[long]
    b_starts = starts + diagonal - len(a)
    order = np.lexsort((b_starts, starts))
    return Runs(starts[order], b_starts[order], lengths[order])


def _reach(a_sums: Hashes, b_sums: Hashes, a: Positions, b: Positions, most: Positions) -> Positions:
    """How many tokens from *a* and from *b* on are equal, at most *most*."""
    low, high = np.zeros_like(a), most.copy()
    while True:
        open_ = np.flatnonzero(low < high)
        if not len(open_):
            return low
        middle = (low[open_] + high[open_] + 1) // 2
        equal = _agree(a_sums, b_sums, a[open_], b[open_], middle)
        low[open_[equal]] = middle[equal]
        high[open_[~equal]] = middle[~equal] - 1


def _reach_back(a_sums: Hashes, b_sums: Hashes, a: Positions, b: Positions) -> Positions:
    """How many tokens before *a* and before *b* are equal."""
    low, high = np.zeros_like(a), np.minimum(a, b)
    while True:
        open_ = np.flatnonzero(low < high)
        if not len(open_):
            return low
        middle = (low[open_] + high[open_] + 1) // 2
        equal = _agree(a_sums, b_sums, a[open_] - middle, b[open_] - middle, middle)
        low[open_[equal]] = middle[equal]
        high[open_[~equal]] = middle[~equal] - 1


def _agree(
    a_sums: Hashes, b_sums: Hashes, a: Positions, b: Positions, length: Positions
) -> NDArray[np.bool_]:
    # The sum of the one that begins further left is lifted to where the other begins.
    up = _powers_up_to(_MULTIPLIER, int(max(a.max(), b.max())) + 1)
    shift = np.minimum(a, b)
    return (a_sums[a + length] - a_sums[a]) * up[b - shift] == (b_sums[b + length] - b_sums[b]) * up[
        a - shift
    ]


def _sums(hashes: Hashes) -> Hashes:
    """Sums of h_j x B^j over the tokens before each place, one more than there are tokens."""
    sums = np.zeros(len(hashes) + 1, np.uint64)
    np.cumsum(hashes * _powers_up_to(_MULTIPLIER, len(hashes)), out=sums[1:])
    return sums


def _windows(sums: Hashes, size: int) -> Hashes:
    count = len(sums) - size
    if count <= 0:
        return np.empty(0, np.uint64)
    return (sums[size:] - sums[:count]) * _powers_up_to(_INVERSE, count)


def _powers_up_to(base: int, count: int) -> Hashes:
    """The first powers of *base* modulo 2^64; kept, and made longer when more are asked for."""
    kept = _powers.get(base)
    if kept is None or len(kept) < count:
        made = np.ones(max(1 << 14, 1 << (count - 1).bit_length() if count > 1 else 1), np.uint64)
        done = 1
        while done < len(made):
            made[done : 2 * done] = made[:done] * np.uint64(pow(base, done, 1 << 64))
            done *= 2
        kept = made
        if count <= _MOST_KEPT:
            _powers[base] = made
    return kept[:count]
