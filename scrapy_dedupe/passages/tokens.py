"""Tokens: the words of a text, each with its hash and position.

A tokeniser has a name and a version, which the index stores, so that tokens of different tokenisers are never compared.

``words/1``
    Runs of letters, marks and numbers of any script, folded (see :mod:`.characters`).
``cjk/1``
    The same, but each character of a script that is written without spaces is a separate token.
``code/1``
    Runs of letters, marks, numbers and ``_``, case-sensitive. Every other character that is not white space is a
    separate token.

Invisible characters, such as the soft hyphen, are ignored, but offsets count them. A newline separates tokens in all three
tokenisers, so texts joined by newlines have the tokens of the single texts. A run of more than 65,536 characters is cut
into tokens of 65,536 characters.

The hash of a token with the characters c_0 to c_n is the sum of value(c_j) x B^j modulo 2^64, passed through `mixed`. Equal
words have equal hashes. Two different words of a crawl collide about as often as two random 64-bit numbers. B is odd, so
B^-1 exists, and the sums of all words of a text are computed from one cumulative sum over its characters.

A long text is processed in pieces, so that little more memory is needed than for the text and the result, 24 bytes per
token.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from scrapy_dedupe.errors import SettingError

from . import characters
from .characters import IGNORED, SINGLE, WORD, code_points, mixed, powers_of
from .values import Columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Span = tuple[int, int, int, int]
    """Start token, end token, start character, end character. Ends are exclusive."""

LONGEST: Final = 1 << 16
"""The maximum number of characters of a token."""

# Characters of a piece: few enough for its arrays to fit into the processor's cache, and more than a token can have.
_PIECE: Final = 1 << 17

# Above this number of characters, a second copy of the tokens takes too much memory. Below, allocating arrays for the
# maximum number of tokens is slower than a copy.
_LARGE: Final = 1 << 23

_B: Final = 0x9E3779B97F4A7C15
_INVERSE: Final = pow(_B, -1, 1 << 64)


@dataclass(frozen=True, slots=True)
class Tokens(Columns):
    """The tokens of a text: their hashes, and the character offsets of their starts and ends."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def moved(self, offset: NDArray[np.int64] | int) -> Tokens:
        """The tokens with their characters counted from *offset* characters earlier."""
        return Tokens(self.hashes, self.starts + offset, self.ends + offset)

    def spans(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[Span]:
        """The spans of the runs of tokens from *starts* to before *ends*."""
        columns = starts, ends, self.starts[starts], self.ends[ends - 1]
        return list(zip(*(column.tolist() for column in columns), strict=True))


@dataclass(frozen=True, slots=True)
class Tokeniser:
    """Splits texts into tokens.

    *name* has the version, such as ``words/1``. *kinds* returns the table of the kinds of all characters, which decide
    what the tokens are.
    """

    name: str
    kinds: Callable[[], NDArray[np.uint8]]
    is_folded: bool = True

    def tokens(self, text: str) -> Tokens:
        """The tokens of *text*."""
        if len(text) <= _PIECE:
            return self._cut(text)
        if len(text) <= _LARGE:
            return Tokens.joined(list(self._pieces(text)))
        # Allocate the maximum number of tokens: pages that are not written take no memory.
        hashes = np.empty(len(text), dtype=np.uint64)
        starts, ends = np.empty(len(text), dtype=np.int64), np.empty(len(text), dtype=np.int64)
        count = 0
        for part in self._pieces(text):
            places = slice(count, count + len(part))
            hashes[places], starts[places], ends[places] = part.hashes, part.starts, part.ends
            count = places.stop
        return Tokens(hashes[:count], starts[:count], ends[:count])

    def words(self, text: str) -> list[str]:
        """The tokens of *text* as strings, in the form in which they are compared. Slow."""
        tokens, kinds = self.tokens(text), self.kinds()
        return [
            characters.fold((char for char in text[start:end] if kinds[ord(char)] != IGNORED), self.is_folded)
            for start, end in zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)
        ]

    def _pieces(self, text: str) -> Iterator[Tokens]:
        """The tokens of *text* piece by piece."""
        at, size = 0, _PIECE
        while at < len(text):
            stop = min(at + size, len(text))
            part = self._cut(text[at:stop])
            count, next_at = len(part), stop
            if stop < len(text) and count:
                # The last token may be cut off, so the next piece begins with it. A single token that fills the piece is
                # possible only with very many ignored characters.
                count -= 1
                next_at = at + int(part.starts[count])
                if next_at == at:
                    size *= 2
                    continue
            yield part.picked(slice(count)).moved(at)
            at, size = next_at, _PIECE

    def _cut(self, text: str) -> Tokens:
        """The tokens of a text, without splitting it into pieces."""
        points = code_points(text)
        # "clip" skips the check of the bounds, which cannot be exceeded.
        kinds = self.kinds().take(points, mode="clip")
        seen = None
        if (kinds == IGNORED).any():
            seen = np.flatnonzero(kinds != IGNORED)
            points, kinds = points[seen], kinds[seen]
        starts, ends = _bounds(kinds)
        if not len(starts):
            return Tokens(np.zeros(0, dtype=np.uint64), starts, ends)
        terms = characters.values(self.is_folded).take(points, mode="clip")
        terms *= powers_of(_B, len(terms))
        sums = np.empty(len(terms) + 1, dtype=np.uint64)
        sums[0] = 0
        np.cumsum(terms, out=sums[1:])
        hashes = sums[ends]
        hashes -= sums[starts]
        hashes *= powers_of(_INVERSE, len(terms))[starts]
        if seen is not None:
            starts, ends = seen[starts], seen[ends - 1] + 1
        return Tokens(mixed(hashes), starts, ends)


def _bounds(kinds: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The starts and ends of tokens. No character has the kind `IGNORED`."""
    is_word = np.zeros(len(kinds) + 2, dtype=bool)
    np.equal(kinds, WORD, out=is_word[1:-1])
    edges = np.flatnonzero(is_word[1:] != is_word[:-1])
    starts, ends = edges[::2], edges[1::2]
    if len(starts) and int((ends - starts).max()) > LONGEST:
        starts, ends = _cut_long_tokens(starts, ends)
    singles = np.flatnonzero(kinds == SINGLE)
    if len(singles):
        starts = np.concatenate((starts, singles))
        order = starts.argsort(kind="stable")
        starts, ends = starts[order], np.concatenate((ends, singles + 1))[order]
    return starts, ends


def _cut_long_tokens(
    starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    counts = (ends - starts + LONGEST - 1) // LONGEST
    firsts = counts.cumsum() - counts
    steps = np.arange(int(counts.sum())) - firsts.repeat(counts)
    cut = starts.repeat(counts) + steps * LONGEST
    return cut, np.minimum(cut + LONGEST, ends.repeat(counts))


TOKENISERS: Final[Mapping[str, Tokeniser]] = MappingProxyType(
    {
        tokeniser.name: tokeniser
        for tokeniser in (
            Tokeniser("words/1", characters.words),
            Tokeniser("cjk/1", characters.unspaced),
            Tokeniser("code/1", characters.code, is_folded=False),
        )
    }
)
"""All tokenisers by name and version."""


def tokeniser_named(name: str) -> Tokeniser:
    """Return the tokeniser with this name, with or without version. Raises :class:`SettingError` if there is none.

    >>> tokeniser_named("words").name
    'words/1'
    >>> tokeniser_named("code").words("if (a_b >= 10):")
    ['if', '(', 'a_b', '>', '=', '10', ')', ':']
    """
    tokeniser = TOKENISERS.get(name) or TOKENISERS.get(f"{name}/1")
    if tokeniser is None:
        known = ", ".join(known.partition("/")[0] for known in TOKENISERS)
        raise SettingError(f"There is no tokeniser {name!r}. Choose one of {known}.")
    return tokeniser


def tokens_of_all(texts: Sequence[str], tokeniser: Tokeniser) -> tuple[Tokens, NDArray[np.int64]]:
    """Return the tokens of all *texts*, and the index of the first token of each text, followed by the end.

    Offsets of tokens are relative to their text.

    >>> tokens, bounds = tokens_of_all(["One two", "", "three"], tokeniser_named("words"))
    >>> bounds.tolist(), tokens.starts.tolist(), tokens.ends.tolist()
    ([0, 2, 2, 3], [0, 4, 0], [3, 7, 5])
    """
    parts: list[Tokens] = []
    counts: list[NDArray[np.int64]] = []
    for group in _groups(texts):
        # Process texts together, because the fixed cost per call is higher than that of a short text.
        tokens = tokeniser.tokens("\n".join(group))
        begins = _begins(group)
        bounds = np.append(tokens.starts.searchsorted(begins), len(tokens))
        shares = np.diff(bounds)
        if len(group) > 1:
            tokens = tokens.moved(-begins.repeat(shares))
        parts.append(tokens)
        counts.append(shares)
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    if counts:
        np.cumsum(np.concatenate(counts), out=bounds[1:])
    return Tokens.joined(parts or [tokeniser.tokens("")]), bounds


def _begins(group: Sequence[str]) -> NDArray[np.int64]:
    lengths = np.fromiter(map(len, group), dtype=np.int64, count=len(group))
    return np.cumsum(lengths + 1) - lengths - 1


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Consecutive texts to process together: up to about one piece of characters, or a single longer text."""
    first = total = 0
    for number, text in enumerate(texts):
        if number > first and total + len(text) > _PIECE:
            yield texts[first:number]
            first, total = number, 0
        total += len(text) + 1
    if first < len(texts):
        yield texts[first:]
