"""Tokens: the words of a text, each with its hash and where it stands.

A tokeniser has a name and a version, which are part of an index, so that tokens of different ones never meet.

``words/1``
    Runs of letters, marks and numbers of any script, folded (see :mod:`.characters`).
``cjk/1``
    The same, but each character of a script that is written without spaces is a token of its own.
``code/1``
    Runs of letters, marks, numbers and ``_`` with their case; every other character that is not white space is a
    token of its own.

Characters that cannot be seen, such as the soft hyphen, are passed over as if they were not there; offsets count them.
A newline stands between tokens in all three, so texts that are joined by it give the tokens of each. A run of more than
65,536 characters is cut into tokens of 65,536.

The hash of a token of characters c_0 to c_n is the sum of value(c_j) x B^j modulo 2^64, mixed: equal words have the same
one, and two different words of a crawl have the same one about as often as two random numbers of 64 bits. B is odd, so
B^-1 exists, and the sums of all words of a text come out of one running sum over its characters.

A long text is read in pieces, so that beside the text there is little more than the result, 24 bytes a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from scrapy_dedupe.errors import SettingError

from . import characters
from .characters import PASSED, SINGLE, WORD, code_points, mixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

LONGEST: Final = 1 << 16
"""How many characters a token has at most."""

# So many characters that the arrays of a piece stay in the processor's cache; more than a token has.
_PIECE: Final = 1 << 17

# From so many characters on there is no room for the tokens twice; below that, new memory costs more than a copy.
_LARGE: Final = 1 << 23

_B: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a text: their hashes, where each begins and where it ends, as numbers of characters."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)


class Tokeniser(Protocol):
    """What cuts texts into tokens."""

    @property
    def name(self) -> str:
        """Name and version."""

    def tokens(self, text: str) -> Tokens:
        """The tokens of *text*."""

    def words(self, text: str) -> list[str]:
        """The tokens of *text* as they are compared; for a few texts, it is slow."""


@dataclass(frozen=True, slots=True)
class _Characters:
    """A tokeniser that goes by what each character is."""

    name: str
    kinds: Callable[[], NDArray[np.uint8]]
    is_folded: bool = True

    def tokens(self, text: str) -> Tokens:
        if len(text) <= _PIECE:
            return self._cut(text)
        if len(text) <= _LARGE:
            return _together(list(self._pieces(text)))
        # As many as there can be; what is not written takes no memory.
        hashes = np.empty(len(text), dtype=np.uint64)
        starts, ends = np.empty(len(text), dtype=np.int64), np.empty(len(text), dtype=np.int64)
        count = 0
        for part in self._pieces(text):
            places = slice(count, count + len(part))
            hashes[places], starts[places], ends[places] = part.hashes, part.starts, part.ends
            count = places.stop
        return Tokens(hashes[:count], starts[:count], ends[:count])

    def words(self, text: str) -> list[str]:
        tokens, kinds = self.tokens(text), self.kinds()
        return [
            characters.fold((char for char in text[start:end] if kinds[ord(char)] != PASSED), self.is_folded)
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
                # The last one may go on behind the piece, which begins anew with it then. It is not the only one but
                # where very many characters are passed over.
                count -= 1
                next_at = at + int(part.starts[count])
                if next_at == at:
                    size *= 2
                    continue
            yield Tokens(part.hashes[:count], part.starts[:count] + at, part.ends[:count] + at)
            at, size = next_at, _PIECE

    def _cut(self, text: str) -> Tokens:
        """The tokens of a text that is worked on as a whole."""
        points = code_points(text)
        # Code points are within bounds: "clip" leaves out what only makes sure of that.
        kinds = self.kinds().take(points, mode="clip")
        seen = None
        if (kinds == PASSED).any():
            seen = np.flatnonzero(kinds != PASSED)
            points, kinds = points[seen], kinds[seen]
        starts, ends = _bounds(kinds)
        if not len(starts):
            return Tokens(np.zeros(0, dtype=np.uint64), starts, ends)
        powers, inverses = _powers(len(points))
        terms = characters.values(self.is_folded).take(points, mode="clip")
        terms *= powers[: len(terms)]
        sums = np.empty(len(terms) + 1, dtype=np.uint64)
        sums[0] = 0
        np.cumsum(terms, out=sums[1:])
        hashes = sums[ends]
        hashes -= sums[starts]
        hashes *= inverses[starts]
        if seen is not None:
            starts, ends = seen[starts], seen[ends - 1] + 1
        return Tokens(mixed(hashes), starts, ends)


def _bounds(kinds: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where tokens begin and end among characters none of which is passed over."""
    is_word = np.zeros(len(kinds) + 2, dtype=bool)
    np.equal(kinds, WORD, out=is_word[1:-1])
    edges = np.flatnonzero(is_word[1:] != is_word[:-1])
    starts, ends = edges[::2], edges[1::2]
    if len(starts) and int((ends - starts).max()) > LONGEST:
        starts, ends = _shortened(starts, ends)
    singles = np.flatnonzero(kinds == SINGLE)
    if len(singles):
        starts = np.concatenate((starts, singles))
        order = starts.argsort(kind="stable")
        starts, ends = starts[order], np.concatenate((ends, singles + 1))[order]
    return starts, ends


def _shortened(
    starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    counts = (ends - starts + LONGEST - 1) // LONGEST
    firsts = counts.cumsum() - counts
    steps = np.arange(int(counts.sum())) - firsts.repeat(counts)
    cut = starts.repeat(counts) + steps * LONGEST
    return cut, np.minimum(cut + LONGEST, ends.repeat(counts))


@cache
def _first_powers() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return _powers_of(_B, _PIECE), _powers_of(pow(_B, -1, 1 << 64), _PIECE)


def _powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """At least *count* powers of B and of its inverse."""
    if count <= _PIECE:
        return _first_powers()
    return _powers_of(_B, count), _powers_of(pow(_B, -1, 1 << 64), count)


def _powers_of(base: int, count: int) -> NDArray[np.uint64]:
    result = np.ones(count, dtype=np.uint64)
    done = 1
    while done < count:
        more = min(done, count - done)
        np.multiply(result[:more], np.uint64(pow(base, done, 1 << 64)), out=result[done : done + more])
        done += more
    return result


def _together(parts: Sequence[Tokens]) -> Tokens:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return Tokens(np.zeros(0, dtype=np.uint64), nothing, nothing)
    return Tokens(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.ends for part in parts]),
    )


TOKENISERS: Final[Mapping[str, Tokeniser]] = MappingProxyType(
    {
        tokeniser.name: tokeniser
        for tokeniser in (
            _Characters("words/1", characters.words),
            _Characters("cjk/1", characters.unspaced),
            _Characters("code/1", characters.code, is_folded=False),
        )
    }
)
"""All tokenisers by name and version."""


def tokeniser_named(name: str) -> Tokeniser:
    """The tokeniser with that name, with or without a version. Raises :class:`SettingError` if there is none.

    >>> tokeniser_named("words").name
    'words/1'
    >>> tokeniser_named("code").words("if (a_b >= 10):")
    ['if', '(', 'a_b', '>', '=', '10', ')', ':']
    """
    tokeniser = TOKENISERS.get(name) or TOKENISERS.get(f"{name}/1")
    if tokeniser is None:
        known = ", ".join(known.partition("/")[0] for known in TOKENISERS)
        raise SettingError(f"There is no tokeniser {name!r}. Take one of {known}.")
    return tokeniser


def tokens_of_all(texts: Sequence[str], tokeniser: Tokeniser) -> tuple[Tokens, NDArray[np.int64]]:
    """The tokens of all *texts*, and the number of the first one of each text, with one more number for the end.

    Where tokens stand is counted from the beginning of their text.

    >>> tokens, bounds = tokens_of_all(["One two", "", "three"], tokeniser_named("words"))
    >>> bounds.tolist(), tokens.starts.tolist(), tokens.ends.tolist()
    ([0, 2, 2, 3], [0, 4, 0], [3, 7, 5])
    """
    parts: list[Tokens] = []
    counts: list[NDArray[np.int64]] = []
    for group in _groups(texts):
        # Together, since what is done for each text alone costs more than a short one itself.
        tokens = tokeniser.tokens("\n".join(group))
        begins = _begins(group)
        bounds = np.append(tokens.starts.searchsorted(begins), len(tokens))
        shares = np.diff(bounds)
        if len(group) > 1:
            offsets = begins.repeat(shares)
            tokens = Tokens(tokens.hashes, tokens.starts - offsets, tokens.ends - offsets)
        parts.append(tokens)
        counts.append(shares)
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    if counts:
        np.cumsum(np.concatenate(counts), out=bounds[1:])
    return _together(parts), bounds


def _begins(group: Sequence[str]) -> NDArray[np.int64]:
    lengths = np.fromiter(map(len, group), dtype=np.int64, count=len(group))
    return np.cumsum(lengths + 1) - lengths - 1


def _groups(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts in a row that are worked on together: about a piece of characters, or one text that is longer."""
    first = total = 0
    for number, text in enumerate(texts):
        if number > first and total + len(text) > _PIECE:
            yield texts[first:number]
            first, total = number, 0
        total += len(text) + 1
    if first < len(texts):
        yield texts[first:]
