"""What every character of Unicode is to a tokeniser, in tables with an entry a code point.

Three tables of 1,114,112 entries: the *kind* of each character for a tokeniser, the one it is *folded* to, and the
64-bit *value* that stands for it in the hash of a token. Each is made when it is first asked for, in some 30 ms, and
kept. What is a letter, a mark or a number, the Unicode data of the running Python says.

Folding takes one code point to one: `str.casefold` if that gives one, else the first of `str.lower`. So offsets are
those of the text, and "ß" stays itself rather than becoming "ss". A lone surrogate counts as U+FFFD.
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
"""Stands between tokens and belongs to none."""
WORD: Final = 1
"""Is in one token with its neighbours that are `WORD`, too."""
SINGLE: Final = 2
"""Is a token of its own."""
PASSED: Final = 3
"""Is passed over as if it were not there."""

CODE_POINTS: Final = 0x110000

# Beyond there is no letter, mark or number: planes 4 to 13 are unassigned, 15 and 16 private. A test looks.
_USED: Final = (range(0x40000), range(0xE0000, 0xE1000))
# Nothing has a case beyond.
_CASED: Final = range(0x20000)
_BLOCK: Final = 0x100

INVISIBLE: Final = (0x00AD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF)
"""Soft hyphen, zero-width spaces and joiners, byte order mark: two texts that differ in these alone look the same."""

# Blocks of scripts that are written without spaces between words. Tibetan is not among them: it has a mark between
# syllables, which is punctuation to Unicode. Nor is Hangul, which has spaces.
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
    """A bijection of 64 bits in which every bit of the result depends on every bit that goes in.

    It is the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).

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


def code_points(text: str) -> NDArray[np.intp]:
    """The code points of *text*, as the tables are indexed; lone surrogates stay what they are."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    # Other types would be turned into this one at each look-up.
    return points.astype(np.intp)


@cache
def words() -> NDArray[np.uint8]:
    """The kinds for words: letters, marks and numbers of any script."""
    kinds = np.full(CODE_POINTS, BREAK, dtype=np.uint8)
    is_kept = np.full(256, BREAK, dtype=np.uint8)
    is_kept[list(b"LMN")] = WORD
    for points, chars in _blocks(*_USED):
        if chars.isalpha():
            kinds[points] = WORD
        else:
            categories = "".join(map(unicodedata.category, chars)).encode("ascii")
            kinds[points] = is_kept[np.frombuffer(categories, dtype=np.uint8)[::2]]
    kinds[list(INVISIBLE)] = PASSED
    return _final(kinds)


@cache
def unspaced() -> NDArray[np.uint8]:
    """As `words`, but each character of a script that is written without spaces is a token of its own."""
    kinds = words().copy()
    for first, last in UNSPACED:
        block = kinds[first : last + 1]
        block[block == WORD] = SINGLE
    return _final(kinds)


@cache
def code() -> NDArray[np.uint8]:
    """The kinds for source code: identifiers and numbers are words, all but white space is a token."""
    kinds = words().copy()
    kinds[kinds == BREAK] = SINGLE
    kinds[ord("_")] = WORD
    # There is no white space beyond the first plane.
    kinds[[point for point in range(0x10000) if chr(point).isspace()]] = BREAK
    return _final(kinds)


@cache
def folded() -> NDArray[np.uint32]:
    """To what each code point is folded."""
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
    """Every code point for itself, but for surrogates."""
    result = np.arange(CODE_POINTS, dtype=np.uint32)
    result[_SURROGATES] = _REPLACEMENT
    return _final(result)


@cache
def values(is_folded: bool) -> NDArray[np.uint64]:
    """The value of each code point in a hash; of the folded ones, of those alone that can be part of a word."""
    points = folded() if is_folded else unfolded()
    # What is not written takes no memory.
    result = np.zeros(CODE_POINTS, dtype=np.uint64)
    for used in _USED if is_folded else (range(CODE_POINTS),):
        part = points[used.start : used.stop].astype(np.uint64)
        part += _GOLDEN
        result[used.start : used.stop] = mixed(part)
    return _final(result)


def _blocks(*ranges: range) -> Iterator[tuple[slice, str]]:
    """The characters of *ranges* in blocks, so that what holds for a whole block is asked once."""
    for whole in ranges:
        for first in range(whole.start, whole.stop, _BLOCK):
            yield slice(first, first + _BLOCK), "".join(map(chr, range(first, first + _BLOCK)))


def fold(chars: Iterable[str], is_folded: bool) -> str:
    """The characters that are compared, one for one."""
    table = folded() if is_folded else unfolded()
    return "".join(chr(table[ord(char)]) for char in chars)


def _final(table: NDArray[T]) -> NDArray[T]:
    table.flags.writeable = False
    return table
