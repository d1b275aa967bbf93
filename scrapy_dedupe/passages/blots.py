"""Blots: fingerprints of a few tokens in a row.

A blotter turns the hashes of the tokens of a text into blots. Three of them:

``rolling/1``
    64 bits that depend on k tokens and their order: the sum of h_j x A^j modulo 2^64, mixed. Of every *window* blots in
    a row the smallest is kept (see :mod:`.winnowing`); a text with at least one blot and fewer than *window* keeps its
    smallest. So of any run of k + window - 1 tokens that two texts share, both keep the same blot, and about 2 in
    window + 1 are kept.
``xor/1``
    As dupi has it: the exclusive or of the low 32 bits of k token hashes, each window kept, folded to fewer *bits* by
    the remainder. It is blind to the order of the tokens, and equal tokens cancel each other.
``interleaved/1``
    The same over every *streams*-th token: the blot that ends at token i is that of the tokens i, i - streams, ...,
    i - (k - 1) x streams, so that some blots survive a word that was replaced.

A text with as many tokens as a blot spans has one blot, a shorter one none. What an index stores of a blot is its key:
up to :data:`.KEY_BITS` bits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from scrapy_dedupe.errors import SettingError

from .characters import mixed
from .groups import ranges
from .values import KEY_BITS
from .winnowing import windows, winnowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

MOST: Final = 64
"""The largest k, window and number of streams."""

_A: Final = 0xD1342543DE82EF95
_WORD_BITS: Final = 32
# So many tokens that the arrays of a piece stay in the processor's cache, and that a long text takes little more memory.
_PIECE: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Blots:
    """Blots in the order of the text, and the number of the first token of each."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)


class Blotter(Protocol):
    """What makes blots.

    *span* is the number of tokens from the first to the last of a blot, *guarantee* the length of the shortest run that
    two texts always share a blot of, *bits* the size of a blot, *spec* what :func:`blotter_of` makes the blotter from.
    """

    @property
    def span(self) -> int: ...
    @property
    def guarantee(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def spec(self) -> dict[str, Any]: ...

    def blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        """The blots that are kept of texts whose first tokens *bounds* tells, which ends with the number of tokens.

        Where a blot stands is counted over all tokens given. No blot has tokens of two texts.
        """

    def all_blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        """The blots of every window."""


@dataclass(frozen=True, slots=True)
class Rolling:
    """Blots of 64 bits that know the order of their *k* tokens; the smallest of each *window* in a row is kept."""

    k: int = 8
    window: int = 8

    def __post_init__(self) -> None:
        _check("rolling", k=self.k, window=self.window)

    @property
    def span(self) -> int:
        return self.k

    @property
    def guarantee(self) -> int:
        return self.k + self.window - 1

    @property
    def bits(self) -> int:
        return 64

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": "rolling/1", **asdict(self)}

    def all_blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        return _every(hashes, bounds, self.span, self._values)

    def blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        parts = []
        for texts, begin, end in _stretches(bounds):
            windows = end - begin - self.guarantee + 1
            if len(texts) > 2 or windows < 1:
                starts, counts = _starts(texts - begin, self.span)
                if len(starts):
                    values = self._values(hashes[begin:end])[starts]
                    kept = winnowed(values, counts, self.window)
                    parts.append(Blots(values[kept], starts[kept] + begin))
            else:
                parts += self._in_pieces(hashes[begin:end], begin, windows)
        return _together(parts)

    def _in_pieces(self, hashes: NDArray[np.uint64], begin: int, windows: int) -> Iterator[Blots]:
        """The blots of one text, so many windows at a time."""
        before = -1
        for at in range(0, windows, _PIECE):
            stop = min(at + _PIECE, windows)
            values = self._values(hashes[at : stop + self.guarantee - 1])
            kept = winnowed(values, np.array([len(values)]), self.window, before - at)
            kept = kept[kept != before - at]
            if len(kept):
                before = int(kept[-1]) + at
                yield Blots(values[kept], kept + (begin + at))

    def _values(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return mixed(windows(hashes, self.k, 1, weighed))


@dataclass(frozen=True, slots=True)
class Xor:
    """Blots as of dupi: the exclusive or of *k* token hashes, folded to *bits*.

    With tokens numbered from 0, f the hash of a token and ^ the exclusive or, h[i] = f(t[i]) ^ ... ^ f(t[i+k-1]), so
    that each follows from the one before: h[i+1] = h[i] ^ f(t[i]) ^ f(t[i+k]).

    >>> f = np.array([3, 5, 9, 17, 3], dtype=np.uint64)
    >>> h = Xor(k=2).blots(f, np.array([0, 5])).values.tolist()
    >>> h
    [6, 12, 24, 18]
    >>> all(h[i + 1] == h[i] ^ int(f[i]) ^ int(f[i + 2]) for i in range(3))
    True
    """

    k: int = 10
    bits: int = _WORD_BITS

    def __post_init__(self) -> None:
        _check("xor", k=self.k)
        _check_bits("xor", self.bits)

    @property
    def span(self) -> int:
        return self.k

    @property
    def guarantee(self) -> int:
        return self.k

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": "xor/1", **asdict(self)}

    def all_blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        return _every(hashes, bounds, self.span, lambda part: _xored(part, self.k, 1, self.bits))

    def blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        return self.all_blots(hashes, bounds)


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Blots as of :class:`Xor` in *streams* interleaved streams of tokens, *k* of one stream in each."""

    streams: int = 2
    k: int = 5
    bits: int = _WORD_BITS

    def __post_init__(self) -> None:
        _check("interleaved", streams=self.streams, k=self.k)
        _check_bits("interleaved", self.bits)

    @property
    def span(self) -> int:
        return (self.k - 1) * self.streams + 1

    @property
    def guarantee(self) -> int:
        return self.span

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": "interleaved/1", **asdict(self)}

    def all_blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        return _every(hashes, bounds, self.span, lambda part: _xored(part, self.k, self.streams, self.bits))

    def blots(self, hashes: NDArray[np.uint64], bounds: NDArray[np.int64]) -> Blots:
        return self.all_blots(hashes, bounds)


BLOTTERS: Final[Mapping[str, Callable[..., Blotter]]] = MappingProxyType(
    {"rolling/1": Rolling, "xor/1": Xor, "interleaved/1": Interleaved}
)
"""All blotters by name and version."""


def blotter_of(spec: Mapping[str, Any] | str) -> Blotter:
    """The blotter of a name, or of a table with the name and what is not left to its defaults.

    Raises :class:`SettingError` if there is none with that name, or if a number is out of range.

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
        raise SettingError(f"There is no blotter {name!r}. Take one of {known}.")
    try:
        return kind(**rest)
    except TypeError as error:
        allowed = ", ".join(key for key in kind().spec if key != "name")
        wrong = ", ".join(map(str, rest))
        raise SettingError(f"The blotter {name} takes {allowed}, not all of {wrong}.") from error


def key_bits(blotter: Blotter) -> int:
    """How many bits of its blots an index stores."""
    return min(KEY_BITS, blotter.bits)


def keys(values: NDArray[np.uint64], blotter: Blotter) -> NDArray[np.uint64]:
    """What an index stores of blots.

    If that is less than the whole, they are mixed before: the smallest of a window are mostly small, and their first
    bits alone would tell few of them apart.
    """
    bits = key_bits(blotter)
    if bits == blotter.bits:
        return values
    return mixed(values) >> np.uint64(64 - bits)


_NO_BLOTS: Final = Blots(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))


def _check(name: str, **numbers: int) -> None:
    for key, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
            raise SettingError(
                f"The blotter {name} has {key} = {number!r}. Take a whole number from 1 to {MOST}."
            )


def _check_bits(name: str, bits: int) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 8 <= bits <= _WORD_BITS:
        raise SettingError(
            f"The blotter {name} has bits = {bits!r}. Take a whole number from 8 to {_WORD_BITS}."
        )


def _starts(bounds: NDArray[np.int64], span: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first tokens of all windows that lie in one text, and how many of them each text has."""
    counts = np.maximum(np.diff(bounds) - (span - 1), 0)
    return ranges(bounds[:-1], counts), counts


def weighed(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    """What `windows` makes polynomials modulo 2^64 with, which depend on values and their order."""
    result = second * np.uint64(pow(_A, done, 1 << 64))
    result += first
    return result


def _xor(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    return first ^ second


def _xored(hashes: NDArray[np.uint64], k: int, step: int, bits: int) -> NDArray[np.uint64]:
    return windows(hashes & np.uint64((1 << bits) - 1), k, step, _xor)


def _every(
    hashes: NDArray[np.uint64],
    bounds: NDArray[np.int64],
    span: int,
    values_of: Callable[[NDArray[np.uint64]], NDArray[np.uint64]],
) -> Blots:
    """The blots of every window."""
    parts = []
    for texts, begin, end in _stretches(bounds):
        if len(texts) > 2:
            starts, _ = _starts(texts - begin, span)
            if len(starts):
                parts.append(Blots(values_of(hashes[begin:end])[starts], starts + begin))
        else:
            for at in range(begin, end - span + 1, _PIECE):
                stop = min(at + _PIECE, end - span + 1)
                parts.append(Blots(values_of(hashes[at : stop + span - 1]), np.arange(at, stop)))
    return _together(parts)


def _stretches(bounds: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """The bounds of texts that are worked on together: of a piece at most, or of one text. And its first and last one."""
    first = 0
    while first < len(bounds) - 1:
        last = int(np.searchsorted(bounds, bounds[first] + _PIECE, "right")) - 1
        last = max(last, first + 1)
        texts = bounds[first : last + 1]
        yield texts, int(texts[0]), int(texts[-1])
        first = last


def _together(parts: Sequence[Blots]) -> Blots:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _NO_BLOTS
    return Blots(
        np.concatenate([part.values for part in parts]), np.concatenate([part.starts for part in parts])
    )
