"""Character ranges of long texts: the parts that must be read to find the runs that contain a blot in some spots.

A range may begin and end inside a token, so its first and last tokens are not used, unless the text begins or ends there.
A range is wide enough if it has *least* tokens before and after its spots, so that it contains every run of this length
through a blot in the spots, and if no run that is found reaches an end of the range, where it might continue. A range that
is not wide enough is read again, with twice as many characters around the spots.

The tokens of a text are counted in a tenth of the time that finding them takes (`token_count`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from . import characters
from .characters import IGNORED, SINGLE, WORD
from .groups import group_bounds
from .segment_layout import SPOT_BITS, characters_of
from .tokens import LONGEST, tokens_of_all
from .values import Columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from .alignment import AlignedRuns
    from .tokens import Tokeniser

    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

_ASCII: Final = 128
_PIECE: Final = 1 << 18  # characters; their kinds fit into the processor's cache
# A run that is long enough to be cut into several tokens fills at least one block of this many characters.
_BLOCK: Final = LONGEST // 2


def token_count(text: str, tokeniser: Tokeniser) -> int:
    """Return the number of tokens of *text*.

    >>> from .tokens import tokeniser_named
    >>> token_count("One, two; 3!", tokeniser_named("words")), token_count("a+b", tokeniser_named("code"))
    (3, 3)
    """
    is_ascii = text.isascii()
    kinds_of = tokeniser.kinds()
    ascii_kinds = kinds_of[:_ASCII].tobytes().ljust(256, b"\0")
    count = 0
    before = np.uint8(0)
    for begin in range(0, len(text), _PIECE):
        piece = text[begin : begin + _PIECE]
        if is_ascii:
            kinds = np.frombuffer(piece.encode("ascii").translate(ascii_kinds), np.uint8)
        else:
            kinds = kinds_of.take(characters.code_points(piece), mode="clip")
            if (kinds == IGNORED).any():
                return len(tokeniser.tokens(text).hashes)
        is_word = kinds == WORD
        blocks = is_word[: len(is_word) // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
        if blocks.all(axis=1).any():
            return len(tokeniser.tokens(text).hashes)
        count += int(is_word[0] > before) + int(np.count_nonzero(is_word[1:] > is_word[:-1]))
        count += int(np.count_nonzero(kinds == SINGLE))
        before = is_word[-1]
    return count


_SHORT = 1 << 12
"""Texts of up to this many characters are read as a whole."""

_CHARACTERS_A_TOKEN = 16
# Replaces the hash of a token that is not used. It equals no token, except with a probability of 2^-64.
_BARRIER = np.uint64(0xA24BAED4963EE407)


@dataclass(frozen=True, slots=True)
class TextRanges(Columns):
    """Ranges of characters, ordered by the number of their text and by position. They do not touch.

    A range is read from *begins* to *ends* to find the runs with a blot between *inner_begins* and *inner_ends*.
    """

    texts: Numbers
    begins: Numbers
    ends: Numbers
    inner_begins: Numbers
    inner_ends: Numbers

    @classmethod
    def whole(cls, lengths: Numbers) -> TextRanges:
        """Ranges that cover texts of *lengths* characters completely."""
        begins = np.zeros(len(lengths), np.int64)
        return cls(np.arange(len(lengths)), begins, lengths, begins, lengths)

    @classmethod
    def around(cls, lengths: Numbers, texts: Numbers, spots: Numbers, least: int) -> TextRanges:
        """The ranges to read first, around *spots* of *texts*. *lengths* are the characters of all texts."""
        is_wanted = np.zeros(len(lengths) << SPOT_BITS, np.bool_)
        is_wanted[(texts << SPOT_BITS) + spots] = True
        texts, spots = np.divmod(np.flatnonzero(is_wanted), 1 << SPOT_BITS)
        begins, ends = characters_of(spots, lengths[texts])
        margin = _CHARACTERS_A_TOKEN * (least + 1)
        around = cls(
            texts, np.maximum(begins - margin, 0), np.minimum(ends + margin, lengths[texts]), begins, ends
        )
        return around._merged(lengths, lengths <= _SHORT)

    def wider(self, lengths: Numbers, at_begin: Mask, at_end: Mask, is_whole: Mask) -> TextRanges:
        """Ranges with twice the margin before or after the spots.

        *at_begin* and *at_end* select the ranges to extend on that side. *is_whole* selects the texts to read completely.
        """
        begins = np.where(at_begin, 2 * self.begins - self.inner_begins, self.begins)
        ends = np.where(at_end, 2 * self.ends - self.inner_ends, self.ends)
        ends = np.minimum(ends, lengths[self.texts])
        wider = replace(self, begins=np.maximum(begins, 0), ends=ends)
        return wider._merged(lengths, is_whole)

    def _merged(self, lengths: Numbers, is_whole: Mask) -> TextRanges:
        """Merge ranges that touch. Texts in *is_whole*, and texts that would mostly be read, get one range."""
        # Use positions in the concatenation of all texts, with one character between texts.
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
        return TextRanges(*result).picked(result[0].argsort(kind="stable"))

    def _inner(self, order: Numbers, firsts: Numbers) -> tuple[Numbers, Numbers]:
        if not len(firsts):
            return firsts, firsts
        return (
            np.minimum.reduceat(self.inner_begins[order], firsts),
            np.maximum.reduceat(self.inner_ends[order], firsts),
        )


class ReadRanges:
    """The tokens of *ranges* of *texts*, one range after another. Their characters are counted in the whole text.

    ``hashes`` are the hashes of the tokens, with a barrier between two ranges and instead of unused tokens; ``groups`` is
    the number of the text of each hash; ``bounds`` is the index of the first token of each range, and the end.
    """

    def __init__(
        self, texts: Sequence[str], lengths: Numbers, ranges: TextRanges, tokeniser: Tokeniser
    ) -> None:
        self._ranges = ranges
        self._lengths = lengths
        rows = zip(ranges.texts.tolist(), ranges.begins.tolist(), ranges.ends.tolist(), strict=True)
        tokens, self.bounds = tokens_of_all([texts[text][begin:end] for text, begin, end in rows], tokeniser)
        counts = np.diff(self.bounds)
        self.tokens = tokens.moved(ranges.begins.repeat(counts))
        self._is_cut_before = ranges.begins > 0
        self._is_cut_after = ranges.ends < lengths[ranges.texts]
        # The range of used tokens.
        self._firsts = self.bounds[:-1] + self._is_cut_before
        self._lasts = self.bounds[1:] - self._is_cut_after
        hashes = tokens.hashes.copy()
        hashes[self.bounds[:-1][self._is_cut_before & (counts > 0)]] = _BARRIER
        hashes[self.bounds[1:][self._is_cut_after & (counts > 0)] - 1] = _BARRIER
        self.hashes = np.insert(hashes, self.bounds[1:-1], _BARRIER)
        self.groups = ranges.texts.repeat(counts + 1)[: len(self.hashes)]
        self._shifted = self.bounds[:-1] + np.arange(len(ranges))

    def ranges_of(self, places: Numbers) -> Numbers:
        """The number of the range of each of *places*, which are indexes in ``hashes``.

        A place minus this number is the index of the token.
        """
        return self._shifted.searchsorted(places, "right") - 1

    def anchors(self, ranges: Numbers) -> tuple[list[int], list[int]]:
        """The anchor of each range: the index of a token, and its first character. Other tokens are counted from it."""
        is_cut = self._is_cut_before[ranges]
        firsts = self._firsts[ranges]
        return firsts.tolist(), np.where(is_cut, self.tokens.starts[firsts], 0).tolist()

    def wider(self, runs: AlignedRuns, least: int) -> TextRanges | None:
        """The ranges to read instead, for the texts with a range that is too narrow. None if there is no such text."""
        if not (self._is_cut_before.any() or self._is_cut_after.any()):
            return None
        at_begin = self._is_cut_before & ~self._has(self._firsts + least - 1, self._ranges.inner_begins, -1)
        at_end = self._is_cut_after & ~self._has(self._lasts - least, self._ranges.inner_ends, 1)
        own = self.ranges_of(runs.b_starts)
        starts = runs.b_starts - own
        at_begin[own[self._is_cut_before[own] & (starts <= self._firsts[own])]] = True
        at_end[own[self._is_cut_after[own] & (starts + runs.lengths >= self._lasts[own])]] = True
        is_whole = np.zeros(len(self._lengths), np.bool_)
        # A series of word characters that is too long for one token is cut into tokens from its start, so read all of
        # it.
        long = np.flatnonzero(self.tokens.ends - self.tokens.starts >= LONGEST)
        owners = self.bounds.searchsorted(long, "right") - 1
        is_whole[self._ranges.texts[owners[(self._is_cut_before | self._is_cut_after)[owners]]]] = True
        is_narrow = is_whole.copy()
        is_narrow[self._ranges.texts[at_begin | at_end]] = True
        if not is_narrow.any():
            return None
        wider = self._ranges.wider(self._lengths, at_begin, at_end, is_whole)
        return wider.picked(is_narrow[wider.texts])

    def _has(self, tokens: Numbers, limits: Numbers, side: int) -> Mask:
        """Whether the given token of each range is used and begins before the limit (*side* -1), or not before it (1)."""
        is_used = (tokens >= self._firsts) & (tokens < self._lasts)
        starts = np.append(self.tokens.starts, 0)[np.where(is_used, tokens, -1)]
        found: Mask = is_used & ((starts < limits) if side < 0 else (starts >= limits))
        return found


def tokens_before(text: str, anchors: Iterable[int], tokeniser: Tokeniser) -> dict[int, int]:
    """The number of tokens of *text* before each of *anchors*, the first characters of tokens."""
    counts = {0: 0}
    for begin, end in pairwise(sorted({0, *anchors})):
        counts[end] = counts[begin] + token_count(text[begin:end], tokeniser)
    return counts
