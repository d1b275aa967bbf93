"""Tables of Unicode characters for tokenisers, with one entry per code point.

There are three tables of 1,114,112 entries: the *kind* of each character for a tokeniser, the character to which it is
*folded*, and its 64-bit *value* in the hash of a token. Each table is built on first use, which takes about 30 ms, and
cached. Letters, marks and numbers are defined by the Unicode data of the running Python.

Folding maps one code point to one: `str.casefold` if its result has one code point, else the first one of `str.lower`. So
offsets do not change, and "ß" stays "ß" instead of becoming "ss". A lone surrogate counts as U+FFFD.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)

BREAK: Final = 0
"""Separates tokens and belongs to none."""
WORD: Final = 1
"""Forms a token together with neighbouring `WORD` characters."""
SINGLE: Final = 2
"""Is a token of its own."""
IGNORED: Final = 3
"""Is ignored, as if it were not in the text."""

CODE_POINTS: Final = 0x110000

# Other planes have no letter, mark or number: 4 to 13 are unassigned, 15 and 16 private. A test checks this.
_USED: Final = (range(0x40000), range(0xE0000, 0xE1000))
# No character outside this range has case.
_CASED: Final = range(0x20000)
_BLOCK: Final = 0x100

INVISIBLE: Final = (0x00AD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF)
"""Soft hyphen, zero-width spaces and joiners, byte order mark: two texts that differ only in these look the same."""

# Blocks of scripts that are written without spaces between words. Tibetan is not included, because the mark between its
# syllables is punctuation in Unicode; Hangul, which has spaces, is not included either.
UNSPACED: Final = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3000, 0x312F),  # iteration marks, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31BF),  # Bopomofo
    (0x31F0, 0x31FF),  # Katakana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0xA4CF),  # Han, Yi
    (0xA980, 0xA9FF),  # Javanese, Myanmar
    (0xAA60, 0xAADF),  # Myanmar, Tai Viet
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFF9F),  # Katakana, half as wide
    (0x116D0, 0x116FF),  # Myanmar
    (0x16FE0, 0x18DFF),  # Tangut, Khitan
    (0x1AFF0, 0x1B2FF),  # Kana, Nushu
    (0x20000, 0x3FFFF),  # Han
)

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_REPLACEMENT: Final = 0xFFFD
_SURROGATES: Final = slice(0xD800, 0xE000)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each value. The mapping is a bijection; every bit of the result depends on every input bit.

    This is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).

    >>> hex(mixed(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0])
    '0xe220a8397b1dcdaf'
    """
    result = values >> np.uint64(30)
    result ^= values
    result *= np.uint64(0xBF58476D1CE4E5B9)
    result ^= result >> np.uint64(27)
    result *= np.uint64(0x94D049BB133111EB)
    result ^= result >> np.uint64(31)
    return result


_POWERS: dict[int, NDArray[np.uint64]] = {}
_KEPT_POWERS: Final = 1 << 20


def powers_of(base: int, count: int) -> NDArray[np.uint64]:
    """Return the first *count* powers of *base* modulo 2^64, from the power 0 on. A table of each base is kept."""
    powers = _POWERS.get(base)
    if powers is None or len(powers) < count:
        powers = np.full(max(count, min(2 * count, _KEPT_POWERS)), base, np.uint64)
        powers[:1] = 1
        powers = _final(np.multiply.accumulate(powers))
        if len(powers) <= _KEPT_POWERS:
            _POWERS[base] = powers
    return powers[:count]


def code_points(text: str) -> NDArray[np.intp]:
    """Return the code points of *text*, for indexing the tables. Lone surrogates are kept."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    # NumPy would convert any other type to intp at each lookup.
    return points.astype(np.intp)


@cache
def words() -> NDArray[np.uint8]:
    """The kinds for words, which consist of letters, marks and numbers of any script."""
    kinds = np.full(CODE_POINTS, BREAK, dtype=np.uint8)
    is_kept = np.full(256, BREAK, dtype=np.uint8)
    is_kept[list(b"LMN")] = WORD
    for points, chars in _blocks(*_USED):
        if chars.isalpha():
            kinds[points] = WORD
        else:
            categories = "".join(map(unicodedata.category, chars)).encode("ascii")
            kinds[points] = is_kept[np.frombuffer(categories, dtype=np.uint8)[::2]]
    kinds[list(INVISIBLE)] = IGNORED
    return _final(kinds)


@cache
def unspaced() -> NDArray[np.uint8]:
    """Like `words`, but each character of a script that is written without spaces is a separate token."""
    kinds = words().copy()
    for first, last in UNSPACED:
        block = kinds[first : last + 1]
        block[block == WORD] = SINGLE
    return _final(kinds)


@cache
def code() -> NDArray[np.uint8]:
    """The kinds for source code: identifiers and numbers are words, every other non-space character is a token."""
    kinds = words().copy()
    kinds[kinds == BREAK] = SINGLE
    kinds[ord("_")] = WORD
    # Only the first plane has white space.
    kinds[[point for point in range(0x10000) if chr(point).isspace()]] = BREAK
    return _final(kinds)


@cache
def folded() -> NDArray[np.uint32]:
    """The code point to which each code point is folded."""
    result = unfolded().copy()
    for points, chars in _blocks(_CASED):
        if chars.casefold() != chars:
            result[points] = [ord(_folded(char)) for char in chars]
    result[_SURROGATES] = _REPLACEMENT
    return _final(result)


def _folded(char: str) -> str:
    fold = char.casefold()
    return fold if len(fold) == 1 else char.lower()[0]


@cache
def unfolded() -> NDArray[np.uint32]:
    """Every code point itself, except surrogates."""
    result = np.arange(CODE_POINTS, dtype=np.uint32)
    result[_SURROGATES] = _REPLACEMENT
    return _final(result)


@cache
def values(is_folded: bool) -> NDArray[np.uint64]:
    """The value of each code point in a hash. If *is_folded*, only code points that can be part of a word have one."""
    points = folded() if is_folded else unfolded()
    # Pages that are not written take no memory.
    result = np.zeros(CODE_POINTS, dtype=np.uint64)
    for used in _USED if is_folded else (range(CODE_POINTS),):
        part = points[used.start : used.stop].astype(np.uint64)
        part += _GOLDEN
        result[used.start : used.stop] = mixed(part)
    return _final(result)


def _blocks(*ranges: range) -> Iterator[tuple[slice, str]]:
    """The characters of *ranges* in blocks, so that a whole block can be checked with one call."""
    for whole in ranges:
        for first in range(whole.start, whole.stop, _BLOCK):
            yield slice(first, first + _BLOCK), "".join(map(chr, range(first, first + _BLOCK)))


def fold(chars: Iterable[str], is_folded: bool) -> str:
    """Return the characters that are compared instead of *chars*, one for each."""
    table = folded() if is_folded else unfolded()
    return "".join(chr(table[ord(char)]) for char in chars)


def _final(table: NDArray[T]) -> NDArray[T]:
    table.flags.writeable = False
    return table
