"""Blots: fingerprints of k consecutive tokens.

A blotter computes blots from the token hashes of a text. There are three:

``rolling/1``
    64 bits that depend on k tokens and their order: the sum of h_j x A^j modulo 2^64, passed through `mixed`. Of every
    *window* consecutive blots the smallest is kept (Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for
    document fingerprinting", SIGMOD 2003). A text with fewer blots keeps its smallest one. If several blots of a window
    are the smallest, at least one of them is kept. The value that is kept does not depend on the blots around the window.
    So of any run of k + window - 1 tokens that two texts share, both keep the same blot. About 2 in window + 1 blots are
    kept.
``xor/1``
    The blots of dupi: the exclusive or of the low 32 bits of k token hashes, reduced to *bits* bits by the remainder. All
    blots are kept. They do not depend on the order of the tokens, and equal tokens cancel each other.
``interleaved/1``
    The same for every *streams*-th token: the blot that ends at token i is computed from the tokens i, i - streams, ...,
    i - (k - 1) x streams, so that some blots survive the replacement of a word.

A text with exactly as many tokens as a blot spans has one blot, a shorter text has none. An index stores the key of a
blot: up to :data:`.KEY_BITS` bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np

from scrapy_dedupe.errors import SettingError

from .characters import mixed
from .groups import ranges
from .values import KEY_BITS, Columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

MOST: Final = 64
"""The maximum of k, window and streams."""

_A: Final = 0xD1342543DE82EF95
_WORD_BITS: Final = 32
# Tokens of a piece: few enough for its arrays to fit into the processor's cache, and for a long text to need little memory.
_PIECE: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Blots(Columns):
    """Blots in text order, and the index of the first token of each."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]


class Blotter(ABC):
    """Computes blots.

    *span* is the number of tokens from the first to the last token of a blot. *guarantee* is the minimum length of a
    shared run for which both texts are guaranteed to keep the same blot. *bits* is the size of a blot. *spec* is the table
    from which :func:`blotter_of` creates the blotter.
    """

    __slots__ = ()
    name: ClassVar[str]
    bits: int
    span: int

    @property
    def guarantee(self) -> int:
        return self.span

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(cast("Any", self))}

    def blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        """The blots to keep of several texts.

        *bounds* is the index of the first token of each text, followed by the number of tokens. The starts of the blots
        are indexes in *hashes*. No blot spans two texts.
        """
        return self.all_blots(hashes, bounds)

    def all_blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        """The blots of all windows, with the same arguments as `blots`."""
        parts = []
        for texts, begin, end in _groups(bounds):
            if len(texts) > 2:
                starts, _ = _starts(texts - begin, self.span)
                if len(starts):
                    parts.append(Blots(self._values(hashes[begin:end])[starts], starts + begin))
            else:
                for at in range(begin, end - self.span + 1, _PIECE):
                    stop = min(at + _PIECE, end - self.span + 1)
                    parts.append(Blots(self._values(hashes[at : stop + self.span - 1]), np.arange(at, stop)))
        return Blots.joined(parts or [_NO_BLOTS])

    @abstractmethod
    def _values(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The blots of all windows of one text."""


@dataclass(frozen=True, slots=True)
class Rolling(Blotter):
    """64-bit blots that depend on the order of their *k* tokens. The smallest of *window* consecutive blots is kept."""

    name = "rolling/1"
    k: int = 8
    window: int = 8

    def __post_init__(self) -> None:
        _check(self)

    @property
    def bits(self) -> int:  # type: ignore[override]
        return 64

    @property
    def span(self) -> int:  # type: ignore[override]
        return self.k

    @property
    def guarantee(self) -> int:
        return self.k + self.window - 1

    def blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        parts = []
        for texts, begin, end in _groups(bounds):
            windows = end - begin - self.guarantee + 1
            if len(texts) > 2 or windows < 1:
                starts, counts = _starts(texts - begin, self.span)
                if len(starts):
                    values = self._values(hashes[begin:end])[starts]
                    kept = smallest_of_windows(values, counts, self.window)
                    parts.append(Blots(values[kept], starts[kept] + begin))
            else:
                parts.append(self._in_pieces(hashes[begin:end], begin, windows))
        blots = Blots.joined(parts or [_NO_BLOTS])
        return blots.picked(without_ties(blots.values, blots.starts, bounds, self.window))

    def _in_pieces(self, hashes: NDArray[np.uint64], begin: int, windows: int) -> Blots:
        """The smallest blots of one long text, computed in pieces."""
        parts = []
        for at in range(0, windows, _PIECE):
            stop = min(at + _PIECE, windows)
            values = self._values(hashes[at : stop + self.guarantee - 1])
            kept = smallest_of_windows(values, np.array([len(values)]), self.window)
            parts.append(Blots(values[kept], kept + (begin + at)))
        blots = Blots.joined(parts)
        # The pieces overlap.
        return blots.picked(np.unique(blots.starts, return_index=True)[1])

    def _values(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return mixed(windows(hashes, self.k, 1, weighed))


class _Xored(Blotter):
    """The exclusive or of *k* token hashes, of which each is *streams* tokens after the one before."""

    __slots__ = ()
    streams: int
    k: int

    def __post_init__(self) -> None:
        _check(self)

    @property
    def span(self) -> int:  # type: ignore[override]
        return (self.k - 1) * self.streams + 1

    def _values(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return windows(hashes & np.uint64((1 << self.bits) - 1), self.k, self.streams, _xor)


@dataclass(frozen=True, slots=True)
class Xor(_Xored):
    """The blots of dupi: the exclusive or of *k* token hashes, reduced to *bits* bits.

    With tokens numbered from 0, f the hash of a token and ^ the exclusive or, h[i] = f(t[i]) ^ ... ^ f(t[i+k-1]).
    Each blot follows from the previous one: h[i+1] = h[i] ^ f(t[i]) ^ f(t[i+k]).

    >>> f = np.array([3, 5, 9, 17, 3], dtype=np.uint64)
    >>> h = Xor(k=2).blots(f, np.array([0, 5])).values.tolist()
    >>> h
    [6, 12, 24, 18]
    >>> all(h[i + 1] == h[i] ^ int(f[i]) ^ int(f[i + 2]) for i in range(3))
    True
    """

    name = "xor/1"
    streams: ClassVar[int] = 1  # type: ignore[misc]
    k: int = 10
    bits: int = _WORD_BITS


@dataclass(frozen=True, slots=True)
class Interleaved(_Xored):
    """Blots like those of :class:`Xor`, each of *k* tokens of one of *streams* interleaved streams."""

    name = "interleaved/1"
    streams: int = 2
    k: int = 5
    bits: int = _WORD_BITS


BLOTTERS: Final[Mapping[str, Callable[..., Blotter]]] = MappingProxyType(
    {kind.name: kind for kind in (Rolling, Xor, Interleaved)}
)
"""All blotters by name and version."""


def blotter_of(spec: Mapping[str, Any] | str) -> Blotter:
    """Return the blotter for a name, or for a table with a name and the parameters that differ from the defaults.

    Raises :class:`SettingError` if there is no blotter with this name, or if a parameter is unknown or out of range.

    >>> blotter_of("rolling")
    Rolling(k=8, window=8)
    >>> blotter_of({"name": "xor/1", "k": 6, "bits": 18}).spec
    {'name': 'xor/1', 'k': 6, 'bits': 18}
    """
    rest = {} if isinstance(spec, str) else {key: spec[key] for key in spec if key != "name"}
    name = spec if isinstance(spec, str) else spec.get("name")
    kind = BLOTTERS.get(f"{name}") or BLOTTERS.get(f"{name}/1")
    if kind is None:
        known = ", ".join(known.partition("/")[0] for known in BLOTTERS)
        raise SettingError(f"There is no blotter {name!r}. Choose one of {known}.")
    try:
        return kind(**rest)
    except TypeError as error:
        allowed = ", ".join(key for key in kind().spec if key != "name")
        wrong = ", ".join(map(str, rest))
        raise SettingError(
            f"The blotter {name} was given {wrong}, but its only parameters are {allowed}."
        ) from error


def key_bits(blotter: Blotter) -> int:
    """Return the number of bits of each blot that an index stores."""
    return min(KEY_BITS, blotter.bits)


def keys(values: NDArray[np.uint64], blotter: Blotter) -> NDArray[np.uint64]:
    """Return the keys of blots, as an index stores them.

    If a key has fewer bits than a blot, the blots are mixed first. The smallest blot of a window is usually a small number,
    so the highest bits of different blots would often be equal.
    """
    bits = key_bits(blotter)
    if bits == blotter.bits:
        return values
    return mixed(values) >> np.uint64(64 - bits)


_NO_BLOTS: Final = Blots(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))


def _check(blotter: Blotter) -> None:
    name = blotter.name.partition("/")[0]
    for key, number in asdict(cast("Any", blotter)).items():
        least, most = (8, _WORD_BITS) if key == "bits" else (1, MOST)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise SettingError(
                f"The blotter {name} has {key} = {number!r}. Give an integer from {least} to {most}."
            )


def _starts(bounds: NDArray[np.int64], span: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first tokens of all windows within one text, and the number of windows of each text."""
    counts = np.maximum(np.diff(bounds) - (span - 1), 0)
    return ranges(bounds[:-1], counts), counts


def weighed(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    """The join function with which `windows` computes polynomials modulo 2^64, which depend on the order of values."""
    result = second * np.uint64(pow(_A, done, 1 << 64))
    result += first
    return result


def _xor(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    return first ^ second


def _groups(bounds: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """Groups of texts to process together: texts of at most one piece in total, or one longer text.

    Yields the bounds of the texts, the first and the last bound.
    """
    first = 0
    while first < len(bounds) - 1:
        last = int(np.searchsorted(bounds, bounds[first] + _PIECE, "right")) - 1
        last = max(last, first + 1)
        texts = bounds[first : last + 1]
        yield texts, int(texts[0]), int(texts[-1])
        first = last


def smallest_of_windows(
    values: NDArray[np.uint64], counts: NDArray[np.int64], window: int
) -> NDArray[np.int64]:
    """Return the indexes of the blots that are the smallest of a window, with all equal ones.

    *counts* is the number of blots of each text. A text with fewer blots than a window counts as one window.
    """
    ends = np.cumsum(counts)
    is_smallest = np.zeros(len(values), np.bool_)
    if len(values) >= window:
        smallest = windows(values, window, 1, _smaller)
        # Ignore windows that reach into the next text: 0 as their minimum keeps no blot, except blots of 0, which are the
        # smallest in any window.
        crossing = (ends[:-1] - (window - 1))[:, None] + np.arange(window - 1)
        smallest[crossing[(crossing >= 0) & (crossing < len(smallest))]] = 0
        padded = np.zeros(len(smallest) + 2 * (window - 1), dtype=np.uint64)
        padded[window - 1 : len(padded) - (window - 1)] = smallest
        # A blot is the smallest of some window if the largest minimum of the windows that contain it equals the blot.
        is_smallest = values == windows(padded, window, 1, _larger)
    short = np.flatnonzero((counts > 0) & (counts < window))
    if len(short):
        few = counts[short]
        places = ranges(ends[short] - few, few)
        smallest = np.minimum.reduceat(values[places], np.cumsum(few) - few)
        is_smallest[places] = values[places] == smallest.repeat(few)
    return np.flatnonzero(is_smallest)


def without_ties(
    values: NDArray[np.uint64], starts: NDArray[np.int64], bounds: NDArray[np.int64], window: int
) -> NDArray[np.bool_]:
    """Return which of the smallest blots to keep. *starts* are their tokens, *bounds* the first tokens of the texts.

    Of equal neighbours in a block of *window* tokens, the first and the last are enough: any window with another one of them
    contains the first or the last too.
    """
    is_kept = np.ones(len(values), np.bool_)
    ties = np.flatnonzero(values[1:] == values[:-1])
    texts = bounds.searchsorted(starts[ties], "right") - 1
    same_text = starts[ties + 1] < bounds[texts + 1]
    first, second = starts[ties] - bounds[texts], starts[ties + 1] - bounds[texts]
    ties = ties[same_text & (first // window == second // window)]
    # A blot that is tied with the one before and with the one after.
    is_kept[ties[1:][np.diff(ties) == 1]] = False
    return is_kept


def _smaller(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    return np.minimum(first, second)


def _larger(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    return np.maximum(first, second)


def windows(
    values: NDArray[np.uint64],
    k: int,
    step: int,
    join: Callable[[NDArray[Any], NDArray[Any], int], NDArray[Any]],
) -> NDArray[np.uint64]:
    """Return *join* applied to values[i], values[i + step], ..., values[i + (k - 1) x step], for every i.

    *join* gets the results of two shorter windows and the number of items of the first one, so about log2(k) calls are
    enough.
    """
    # Compute windows of 1, 2, 4, ... items, and join those whose sizes add up to k.
    size, doubled = 1, values
    result, done = None, 0
    while True:
        if k & size:
            result = doubled if result is None else _joined(result, doubled, done, step, join)
            done += size
        if 2 * size > k:
            break
        doubled = _joined(doubled, doubled, size, step, join)
        size *= 2
    assert result is not None  # k is at least 1
    return result


def _joined(
    first: NDArray[Any], second: NDArray[Any], done: int, step: int, join: Callable[..., NDArray[Any]]
) -> NDArray[Any]:
    length = max(len(second) - done * step, 0)
    return join(first[:length], second[done * step : done * step + length], done)
