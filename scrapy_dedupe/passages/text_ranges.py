"""Stretches of long texts: what of a text has to be read to find the runs that go through some of its spots.

A stretch is cut anywhere, so its first and its last token may be parts of tokens, unless the text begins or ends there:
they are not used. A stretch is wide enough if *least* tokens stand before the spots that it is read for, and as many
behind them, so that a run of so many tokens through a blot there lies in it; and if no run that is found reaches one of
its ends, beyond which it may go on. A stretch that is not is read again, with twice as much around the spots.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .groups import group_bounds
from .spots import SPOT_BITS, characters_of
from .token_counts import token_count
from .tokens import LONGEST, Tokens, tokens_of_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from .alignment import AlignedRuns
    from .tokens import Tokeniser

    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

_SHORT = 1 << 12
"""Texts of so many characters are read as a whole."""

_CHARACTERS_A_TOKEN = 16
# Stands in for a token that is not used: no token has this number, but for a chance of 2^-64.
_BARRIER = np.uint64(0xA24BAED4963EE407)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches in the order of texts, and within each of places: the number of the text, and characters.

    They are read from *begins* to *ends* for what is between *inner_begins* and *inner_ends*. They do not touch.
    """

    texts: Numbers
    begins: Numbers
    ends: Numbers
    inner_begins: Numbers
    inner_ends: Numbers

    @classmethod
    def whole(cls, lengths: Numbers) -> Stretches:
        """All of texts with so many characters."""
        begins = np.zeros(len(lengths), np.int64)
        return cls(np.arange(len(lengths)), begins, lengths, begins, lengths)

    @classmethod
    def around(cls, lengths: Numbers, texts: Numbers, spots: Numbers, least: int) -> Stretches:
        """What is read first of texts with so many characters, if *spots* are those in the *texts* beside them."""
        is_asked = np.zeros(len(lengths) << SPOT_BITS, np.bool_)
        is_asked[(texts << SPOT_BITS) + spots] = True
        texts, spots = np.divmod(np.flatnonzero(is_asked), 1 << SPOT_BITS)
        begins, ends = characters_of(spots, lengths[texts])
        margin = _CHARACTERS_A_TOKEN * (least + 1)
        around = cls(
            texts, np.maximum(begins - margin, 0), np.minimum(ends + margin, lengths[texts]), begins, ends
        )
        return around._merged(lengths, lengths <= _SHORT)

    def __len__(self) -> int:
        return len(self.texts)

    def wider(self, lengths: Numbers, at_begin: Mask, at_end: Mask, is_whole: Mask) -> Stretches:
        """With twice as much around some; all of the texts that *is_whole* tells by their numbers."""
        begins = np.where(at_begin, 2 * self.begins - self.inner_begins, self.begins)
        ends = np.where(at_end, 2 * self.ends - self.inner_ends, self.ends)
        wider = Stretches(
            self.texts,
            np.maximum(begins, 0),
            np.minimum(ends, lengths[self.texts]),
            self.inner_begins,
            self.inner_ends,
        )
        return wider._merged(lengths, is_whole)

    def of_texts(self, is_chosen: Mask) -> Stretches:
        """Those of some of the texts."""
        own = is_chosen[self.texts]
        return Stretches(
            self.texts[own], self.begins[own], self.ends[own], self.inner_begins[own], self.inner_ends[own]
        )

    def _merged(self, lengths: Numbers, is_whole: Mask) -> Stretches:
        """Those that touch made one; texts of which most would be read, and those of *is_whole*, as a whole."""
        # In one row of all texts; a character between two of them keeps them apart.
        bases = np.cumsum(lengths + 1) - lengths - 1
        order = np.lexsort((self.begins, self.texts))
        texts = self.texts[order]
        begins, ends = self.begins[order] + bases[texts], self.ends[order] + bases[texts]
        reached = np.maximum.accumulate(ends)
        bounds = group_bounds(begins[1:] > reached[:-1], len(texts))
        firsts, lasts = bounds[:-1], bounds[1:] - 1
        texts, begins, ends = texts[firsts], begins[firsts], reached[lasts]
        covered = np.bincount(texts, ends - begins, minlength=len(lengths))
        there = np.bincount(texts, minlength=len(lengths)) > 0
        is_whole = there & (is_whole | (2 * covered > lengths))
        inner = self._inner(order, firsts)
        rest = ~is_whole[texts]
        more = np.flatnonzero(is_whole)
        none = np.zeros(len(more), np.int64)
        result = [
            np.concatenate((part[rest], other))
            for part, other in (
                (texts, more),
                (begins - bases[texts], none),
                (ends - bases[texts], lengths[more]),
                (inner[0], none),
                (inner[1], lengths[more]),
            )
        ]
        order = result[0].argsort(kind="stable")
        return Stretches(*(part[order] for part in result))

    def _inner(self, order: Numbers, firsts: Numbers) -> tuple[Numbers, Numbers]:
        if not len(firsts):
            return firsts, firsts
        return (
            np.minimum.reduceat(self.inner_begins[order], firsts),
            np.maximum.reduceat(self.inner_ends[order], firsts),
        )


class ReadStretches:
    """The tokens of *stretches* of *texts*, one stretch after another, each told by the place in its text.

    ``hashes`` are those of the tokens with a barrier between two stretches and in place of what is not used, ``groups``
    the number of each one's text, ``bounds`` the first token of each stretch, and one more.
    """

    def __init__(
        self, texts: Sequence[str], lengths: Numbers, stretches: Stretches, tokeniser: Tokeniser
    ) -> None:
        self._stretches = stretches
        self._lengths = lengths
        rows = zip(stretches.texts.tolist(), stretches.begins.tolist(), stretches.ends.tolist(), strict=True)
        tokens, self.bounds = tokens_of_all([texts[text][begin:end] for text, begin, end in rows], tokeniser)
        counts = np.diff(self.bounds)
        offsets = stretches.begins.repeat(counts)
        self.tokens = Tokens(tokens.hashes, tokens.starts + offsets, tokens.ends + offsets)
        self._is_cut_before = stretches.begins > 0
        self._is_cut_behind = stretches.ends < lengths[stretches.texts]
        # The tokens that are used.
        self._firsts = self.bounds[:-1] + self._is_cut_before
        self._lasts = self.bounds[1:] - self._is_cut_behind
        hashes = tokens.hashes.copy()
        hashes[self.bounds[:-1][self._is_cut_before & (counts > 0)]] = _BARRIER
        hashes[self.bounds[1:][self._is_cut_behind & (counts > 0)] - 1] = _BARRIER
        self.hashes = np.insert(hashes, self.bounds[1:-1], _BARRIER)
        self.groups = stretches.texts.repeat(counts + 1)[: len(self.hashes)]
        self._shifted = self.bounds[:-1] + np.arange(len(stretches))

    def stretches_of(self, places: Numbers) -> Numbers:
        """The numbers of the stretches in which *places* in ``hashes`` are: each place less that is a token's number."""
        return self._shifted.searchsorted(places, "right") - 1

    def anchors(self, stretches: Numbers) -> tuple[list[int], list[int]]:
        """Of each stretch a token, by its number, and the character where it begins, from which others are counted."""
        is_cut = self._is_cut_before[stretches]
        firsts = self._firsts[stretches]
        return firsts.tolist(), np.where(is_cut, self.tokens.starts[firsts], 0).tolist()

    def wider(self, runs: AlignedRuns, least: int) -> Stretches | None:
        """What has to be read instead, of the texts of which too little was read; None if there are none."""
        if not (self._is_cut_before.any() or self._is_cut_behind.any()):
            return None
        at_begin = self._is_cut_before & ~self._has(
            self._firsts + least - 1, self._stretches.inner_begins, -1
        )
        at_end = self._is_cut_behind & ~self._has(self._lasts - least, self._stretches.inner_ends, 1)
        own = self.stretches_of(runs.b_starts)
        starts = runs.b_starts - own
        at_begin[own[self._is_cut_before[own] & (starts <= self._firsts[own])]] = True
        at_end[own[self._is_cut_behind[own] & (starts + runs.lengths >= self._lasts[own])]] = True
        is_whole = np.zeros(len(self._lengths), np.bool_)
        # The place where a run of characters begins decides where it is cut if it is too long for a token.
        long = np.flatnonzero(self.tokens.ends - self.tokens.starts >= LONGEST)
        owners = self.bounds.searchsorted(long, "right") - 1
        is_whole[self._stretches.texts[owners[(self._is_cut_before | self._is_cut_behind)[owners]]]] = True
        is_narrow = is_whole.copy()
        is_narrow[self._stretches.texts[at_begin | at_end]] = True
        if not is_narrow.any():
            return None
        return self._stretches.wider(self._lengths, at_begin, at_end, is_whole).of_texts(is_narrow)

    def _has(self, tokens: Numbers, limits: Numbers, side: int) -> Mask:
        """Whether the token of each stretch is one that is used, and begins before the limit (-1) or not (1)."""
        is_used = (tokens >= self._firsts) & (tokens < self._lasts)
        starts = np.append(self.tokens.starts, 0)[np.where(is_used, tokens, -1)]
        found: Mask = is_used & ((starts < limits) if side < 0 else (starts >= limits))
        return found


def tokens_before(text: str, anchors: Iterable[int], tokeniser: Tokeniser) -> dict[int, int]:
    """How many tokens stand in *text* before each of some characters, with which a token begins."""
    counts = {0: 0}
    for begin, end in pairwise(sorted({0, *anchors})):
        counts[end] = counts[begin] + token_count(text[begin:end], tokeniser)
    return counts
