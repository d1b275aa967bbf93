"""The maximal runs of tokens that two texts share.

Tokens are compared by their 64-bit hashes. A *run* has a start token in each text and a length. It is *maximal* if it
cannot be extended: before it, and after it, the tokens differ or one of the texts ends. On each diagonal (the difference
between the two start tokens) runs do not touch.

The length of a run is found by bisection over sums of h_j x B^j modulo 2^64 (Karp and Rabin, "Efficient randomized
pattern-matching algorithms", 1987), so the cost of a step does not depend on the length.

The work is bounded. For highly repetitive texts not all pairs of places are considered (see `Occurrences`), and of very
many overlapping runs only enough are kept to cover all shared tokens (`thinned`). So a pair of places may be missing, but
every shared token is in some run.

Upper bounds for the number of tokens that texts share with a query text follow from their keys only. Two texts that
share *window* consecutive blots keep the same one of them. So a text that shares a run has the keys of all windows in the
run: these windows of the query text form a *chain* without gaps. A chain of n windows allows a run of up to n + guarantee
- 1 tokens. The run cannot be longer if the text lacks the keys of the windows before and after the chain.

A key with very many places in the query text and in the index would be too expensive. Such common keys are assumed to be
in all texts, which may make a bound larger, but never too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .characters import powers_of
from .groups import group_bounds, ranges
from .values import Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Hashes = NDArray[np.uint64]
    Numbers = NDArray[np.int64]

_MOST_PLACES = 2_000_000
_LIMITS = (256, 64, 16, 4, 1)


class Chains:
    """The windows of a query text. *keys* is the number of the key of each window, or -1 if no indexed text has the key."""

    def __init__(self, keys: Numbers, guarantee: int) -> None:
        bounds = group_bounds(keys[1:] != keys[:-1], len(keys))
        self._begins, self._ends = bounds[:-1], bounds[1:]
        self._keys = keys[self._begins]
        self._count = len(keys)
        self._guarantee = guarantee

    def bounds(self, keys: Numbers, texts: Numbers, min_tokens: int) -> tuple[Numbers, Numbers]:
        """The texts that can share a run of *min_tokens* tokens, and the maximum number of tokens that each can share.

        *min_tokens* must be at least the guarantee. *keys* and *texts* are all pairs of a key and a text with it. A pair may occur twice.
        """
        none = np.zeros(0, np.int64)
        if not len(texts) or not self._count:
            return none, none
        size = max(int(keys.max()), int(self._keys.max())) + 1
        is_known = self._keys >= 0
        places = np.bincount(self._keys[is_known], minlength=size)
        is_common = self._common(places, np.bincount(keys, minlength=size))
        links = np.flatnonzero(~(is_known & is_common[self._keys]))
        begins, ends = self._begins[links], self._ends[links]
        # The extent of a chain that begins or ends with each link. Windows with common keys are not links.
        open_begins = np.append(0, ends)[: len(links)]
        open_ends = np.append(begins[1:], self._count)[: len(links)]
        at_texts, at_links = self._links_of(keys, texts, links, is_common, places)
        step = len(links) + 1
        codes = np.sort(at_texts * step + at_links)
        chains = group_bounds(np.diff(codes) > 1, len(codes))
        firsts, lasts = chains[:-1], chains[1:] - 1
        of_text = codes[firsts] // step
        first_link, last_link = codes[firsts] - of_text * step, codes[lasts] - of_text * step
        lengths = open_ends[last_link] - open_begins[first_link] + self._guarantee - 1
        is_long = lengths >= min_tokens
        of_text, lengths = of_text[is_long], lengths[is_long]
        # Series of windows with common keys only.
        gaps = np.append(begins, self._count) - np.append(0, ends) + self._guarantee - 1
        extra = int(gaps[gaps >= max(min_tokens, self._guarantee)].sum())
        if extra:
            others = np.unique(texts[is_common[keys]])
            of_text = np.concatenate((of_text.astype(np.int64), others))
            lengths = np.concatenate((lengths, np.full(len(others), extra)))
            order = of_text.argsort(kind="stable")
            of_text, lengths = of_text[order], lengths[order]
        if not len(of_text):
            return none, none
        firsts = group_bounds(of_text[1:] != of_text[:-1], len(of_text))[:-1]
        totals = np.add.reduceat(lengths, firsts)
        return of_text[firsts].astype(np.int64), np.minimum(totals, self._count + self._guarantee - 1)

    @staticmethod
    def _common(places: Numbers, times: Numbers) -> NDArray[np.bool_]:
        """Which keys are assumed to be in all texts."""
        costs = places * times
        for limit in (int(places.max(initial=0)), *_LIMITS):
            is_common = places > limit
            if int(costs[~is_common].sum()) <= _MOST_PLACES:
                break
        return is_common

    def _links_of(
        self, keys: Numbers, texts: Numbers, links: Numbers, is_common: NDArray[np.bool_], places: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Pairs of a text and a link. The text has the key of the link."""
        link_keys = self._keys[links]
        order = link_keys.argsort(kind="stable")
        order = order[int(link_keys[order].searchsorted(0)) :]
        own = np.where(is_common, 0, places)
        starts = own.cumsum() - own
        counts = own[keys]
        return texts.repeat(counts), order[ranges(starts[keys], counts)]


_MOST_PAIRS = 1 << 22
# The maximum number of pairs of one value. The next lower limit applies if all values together have too many pairs.
_PAIR_LIMITS = (1 << 10, 1 << 6, 1 << 2)
# If pairs are not extended to runs, a missing pair splits a run, so the limits are higher.
_PAIR_LIMITS_UNEXTENDED = (_MOST_PAIRS, 1 << 18, 1 << 14, *_PAIR_LIMITS)
_LONG = 1 << 14


class Occurrences:
    """An index of the places of each value in *values*, for finding equal values in other arrays.

    The number of pairs is limited. A value with p places in one text and q places in the other has p x q pairs. If all values
    together have more than four million pairs, the most frequent values have fewer: the first place in each text is paired
    with all places in the other text. Their pairs then grow with p + q.

    A caller that extends pairs to runs (*are_extended*) needs fewer: a value has all its pairs only if these are at most 1024.
    """

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

        Their number is limited, as described above.

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
        for limit in _PAIR_LIMITS if are_extended else _PAIR_LIMITS_UNEXTENDED:
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


_MULTIPLIER = 0x9E3779B97F4A7C15
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_LONGEST = 256
_LAYERS = 8
_BLOCK = 1 << 14
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class AlignedRuns(Columns):
    """Runs that two texts share: their start tokens in both texts, and their lengths in tokens."""

    a_starts: Positions
    b_starts: Positions
    lengths: Positions


class Windows:
    """An index of all windows of *size* tokens of one text, for finding them in other texts."""

    def __init__(self, hashes: Hashes, size: int) -> None:
        self.hashes = hashes
        self.size = size
        self._sums = _sums(hashes)
        # Index the text in pieces, so that the memory for sorting does not grow with the text.
        self._pieces = [
            (begin, Occurrences(_windows(self._sums, size, begin, begin + _PIECE)))
            for begin in range(0, max(1, len(hashes) - size + 1), _PIECE)
        ]

    def runs_in(self, other: Hashes, groups: Positions | None = None) -> AlignedRuns:
        """The maximal runs of at least *size* tokens that *other* shares. If a run has many places, only some of them.

        *other* may consist of several texts, separated by a token that equals nothing. *groups* is then the number of the
        text of each token.
        """
        sums = _sums(other)
        values = _windows(sums, self.size)
        own = None if groups is None else groups[: len(values)]
        found = [(begin, piece.pairs_with(values, own, are_extended=True)) for begin, piece in self._pieces]
        seeds = (
            np.concatenate([a + begin for begin, (a, _) in found]),
            np.concatenate([b for _, (_, b) in found]),
        )
        return _runs(self.hashes, self._sums, other, sums, seeds, self.size)


def thinned(runs: AlignedRuns) -> AlignedRuns:
    """All runs; or, if the average token is in too many of them, a selection that covers the same tokens in both texts.

    The runs are in the order of the first text.
    """
    if len(runs) <= _LAYERS:
        return runs
    covers = [_cover(starts, runs.lengths) for starts in (runs.a_starts, runs.b_starts)]
    if int(runs.lengths.sum()) <= _LAYERS * sum(int(runs.lengths[cover].sum()) for cover in covers):
        return runs
    return runs.picked(np.unique(np.concatenate(covers)))


def _cover(starts: Positions, lengths: Positions) -> Positions:
    """The indexes of spans that together cover the same items as all spans. No item is in more than two of them."""
    order = np.lexsort((-lengths, starts))
    ends = starts[order] + lengths[order]
    # Keep only spans that reach further than all spans that begin before them.
    order = order[np.append(True, ends[1:] > np.maximum.accumulate(ends)[:-1])]
    firsts, ends = starts[order], starts[order] + lengths[order]
    chosen, at = [], 0
    while at < len(order):
        chosen.append(at)
        # Continue with the last span that begins within or at the end of this one; otherwise with the next span.
        at = max(at + 1, int(firsts.searchsorted(ends[at], "right")) - 1)
    return order[chosen]


def outermost(runs: AlignedRuns) -> AlignedRuns:
    """The runs that are not contained, in both texts, in one of the longest runs.

    Text that repeats itself also agrees with a shifted copy of itself. The longest of these runs includes the others.
    """
    if len(runs) <= 1:
        return runs
    by_place = runs.a_starts.argsort(kind="stable")
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
        # A run that is among the longest contains itself, which does not count.
        inside[block] = np.count_nonzero(within, axis=0) > np.isin(np.arange(len(runs))[block], longest)
    return runs.picked(~inside)


def _runs(
    a: Hashes, a_sums: Hashes, b: Hashes, b_sums: Hashes, seeds: tuple[Positions, Positions], min_tokens: int
) -> AlignedRuns:
    """The maximal equal runs of at least *min_tokens* tokens that contain one of *seeds*, each once.

    Seeds are pairs of places that may have equal tokens; others are ignored. The runs are in the order of the first text.
    """
    a_at, b_at = (np.asarray(side, np.int64) for side in seeds)
    if len(a_at):
        equal = a[a_at] == b[b_at]
        a_at, b_at = a_at[equal], b_at[equal]
    empty = np.empty(0, np.int64)
    if not len(a_at):
        return AlignedRuns(empty, empty, empty)
    # Sorted by diagonal and place. Of consecutive seeds only the first can begin a run.
    step = len(a) + len(b) + 2
    code = np.sort((b_at - a_at + len(a)) * step + a_at)
    code = code[group_bounds(np.diff(code) > 1, len(code))[:-1]]
    diagonal, a_at = np.divmod(code, step)
    b_at = a_at + diagonal - len(a)
    after = _reach(a_sums, b_sums, a_at, b_at, np.minimum(len(a) - a_at, len(b) - b_at))
    # Most seeds are at the beginning of their run, so compare the tokens before them first.
    most_before = np.where(a[a_at - 1] == b[b_at - 1], np.minimum(a_at, b_at), 0)
    before = _reach(a_sums, b_sums, a_at, b_at, most_before, -1)
    starts, lengths = a_at - before, before + after
    code = diagonal * step + starts
    # Seeds of the same run are neighbours, because the order is by diagonal.
    first = group_bounds(code[1:] != code[:-1], len(code))[:-1]
    starts, diagonal, lengths = starts[first], diagonal[first], lengths[first]
    long = lengths >= min_tokens
    starts, diagonal, lengths = starts[long], diagonal[long], lengths[long]
    b_starts = starts + diagonal - len(a)
    order = np.lexsort((b_starts, starts))
    return AlignedRuns(starts, b_starts, lengths).picked(order)


def _reach(
    a_sums: Hashes, b_sums: Hashes, a: Positions, b: Positions, most: Positions, step: int = 1
) -> Positions:
    """The number of equal tokens from *a* and *b* on (before *a* and *b* if *step* is -1), at most *most*."""
    # Multiply the sums of the text with the smaller start by a power of B, so that both have the same exponents.
    shift = np.minimum(a, b)
    powers = powers_of(_MULTIPLIER, int(np.abs(a - b).max(initial=0)) + 1)
    a_lift, b_lift = powers[b - shift], powers[a - shift]
    difference = a_sums[a] * a_lift - b_sums[b] * b_lift
    low, high = np.zeros_like(a), most
    while (low < high).any():
        middle = (low + high + 1) >> 1
        at = step * middle
        # The tokens up to there are equal if both sums grow by the same amount.
        is_equal = a_sums[a + at] * a_lift - b_sums[b + at] * b_lift == difference
        low = np.where(is_equal, middle, low)
        high = np.where(is_equal, high, middle - 1)
    return low


def _sums(hashes: Hashes) -> Hashes:
    """The sums of h_j x B^j over the tokens before each place, including the end."""
    sums = np.zeros(len(hashes) + 1, np.uint64)
    np.cumsum(hashes * powers_of(_MULTIPLIER, len(hashes)), out=sums[1:])
    return sums


def _windows(sums: Hashes, size: int, first: int = 0, last: int | None = None) -> Hashes:
    """Hashes of the windows from *first* to *last* (default: to the end).

    Equal windows have equal hashes, in different texts and for any *first*.
    """
    count = len(sums) - size
    end = count if last is None else min(last, count)
    if end <= first:
        return np.empty(0, np.uint64)
    values = sums[first + size : end + size] - sums[first:end]
    values *= np.uint64(pow(_INVERSE, first, 1 << 64))
    values *= powers_of(_INVERSE, len(values))
    return values
