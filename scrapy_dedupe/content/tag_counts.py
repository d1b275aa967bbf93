"""A first look at the markup of a page, which clears nearly all pages at a small part of the cost of parsing them.

Start and end tags are told apart by their first two letters and counted in one pass of array operations. A page is
*plain* if its tags pair off, are nested no deeper than the budget allows, and have few attributes, and if the
formatting elements that differ are few. Comments and scripts are not told from markup, so a page can be contrived to
look plain; what that costs is bounded elsewhere: the time by the deadline of :mod:`.markup`, the memory here, because
the number of different formatting elements times the number of tags is counted wherever they stand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A tag of this many bytes is looked at for itself.
_LONG: Final = 2_000
_MOST_LONG: Final = 100
# Copies of elements, of which each takes lexbor some 700 bytes; half as many as the page has bytes, if that is more.
_MOST_COPIES: Final = 700_000
# Of formatting elements with the same name and attributes no more than three are opened again.
_MOST_ALIKE: Final = 3

_LETTERS: Final = 27
_NO_NAME: Final = 26 * _LETTERS

# Attributes that nobody can read otherwise, and the end of the tag.
_ATTRIBUTES: Final = (
    rb"""(?:\s++[\w:.-]++(?:="[^"<>]*+"|='[^'<>]*+'|=[\w\#%.,:;?&/+-]++)?+(?=[\s/>])){0,50}+\s*+/?>"""
)
_SIMPLE_TAG: Final = re.compile(rb"</?[a-zA-Z][^\s/>]*+" + _ATTRIBUTES)

# Formatting elements of which more than one can be open again in one block: <a> and <nobr> end the one before.
_FORMATTING_NAMES: Final = (
    "b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u",
)  # fmt: skip
# Letter by letter, because a pattern that ignores case is searched for several times more slowly.
_AFTER_FIRST_LETTER: Final = "|".join(
    "".join(f"[{letter}{letter.upper()}]" for letter in name[1:]) for name in _FORMATTING_NAMES
)
# One whose end tag follows, with nothing between but text and elements of the same simplicity, is never opened again.
_LEFT_OPEN: Final = re.compile(
    rb"""(<([bceifstuBCEIFSTU](?:%(rest)s))(?=[\s/>])
    (?!%(attributes)s(?:[^<]++|<(a|b|code|em|i|span|strong|tt|var)%(attributes)s[^<]*+</\3>)*+</\2>)
    (?:%(attributes)s)?+)"""
    % {b"rest": _AFTER_FIRST_LETTER.encode(), b"attributes": _ATTRIBUTES},
    re.VERBOSE,
)


def _key(name: str) -> int:
    return (ord(name[0]) - 97) * _LETTERS + (ord(name[1]) - 96 if len(name) > 1 else 0)


def _keys_of_pairs() -> NDArray[np.uint16]:
    """The key of each two bytes that may stand after ``<`` or ``</``."""
    first, second = np.divmod(np.arange(0x10000), 0x100)
    first = (first | 0x20) - 97
    second = (second | 0x20) - 96
    second[(second < 1) | (second > 26)] = 0
    keys = first * _LETTERS + second
    keys[(first < 0) | (first > 25)] = _NO_NAME
    return keys.astype(np.uint16)


def _table(values: dict[str, int], default: int, dtype: type[np.signedinteger]) -> NDArray[np.signedinteger]:
    table = np.full(_NO_NAME + 1, default, dtype)
    table[[_key(name) for name in values]] = list(values.values())
    table[_NO_NAME] = 0
    return table


_KEYS: Final = _keys_of_pairs()
# Empty elements, and those whose end tag may be left out, count nothing: they nest inside others that count alone.
_WEIGHTS: Final = _table(
    dict.fromkeys(
        ("p", "br", "hr", "im", "in", "li", "wb", "co", "td", "th", "tr", "tb", "tf", "dd", "dt", "rt", "rp"),
        0,
    ),
    1,
    np.int32,
)
_LEVELS: Final = np.concatenate((_WEIGHTS, -_WEIGHTS))
# How long a name with these letters has to be to be that of a formatting element; 0 if none is, and for end tags.
_FORMATTING_LENGTHS: Final = np.concatenate(
    (_table({name: len(name) for name in _FORMATTING_NAMES}, 0, np.int64), np.zeros(_NO_NAME + 1, np.int64))
)


class TagCounts:
    """What shows at once of a page, given as UTF-8.

    *steps* is about how many open elements lexbor has to walk through; *is_light* says that neither attributes nor
    copies of formatting elements can become a burden.
    """

    __slots__ = ("is_light", "steps")

    def __init__(self, source: bytes) -> None:
        data = np.frombuffer(source + b"   ", np.uint8)
        tags = np.flatnonzero(data == 0x3C)
        names = tags + 1
        is_end = data[names] == 0x2F
        names += is_end
        keys = _KEYS[(data[names].astype(np.uint16) << 8) | data[names + 1]].astype(np.int64)
        keys[is_end] += _NO_NAME + 1
        counts = np.bincount(keys, minlength=len(_LEVELS)).reshape(2, -1)
        # What is no tag may stand in an attribute.
        unpaired = int((np.abs(counts[0] - counts[1]) * _WEIGHTS).sum() + counts[:, _NO_NAME].sum())
        level = np.cumsum(_LEVELS[keys])
        # End tags that nothing precedes do not make what follows less deep.
        ground = np.minimum(np.minimum.accumulate(level), 0)
        self.steps = int(level.sum() - ground.sum()) + unpaired * len(tags)
        lengths = _FORMATTING_LENGTHS[keys]
        formatting = np.flatnonzero(lengths)
        after = np.minimum(tags[formatting] + lengths[formatting] + 1, len(source))
        is_bare = data[after] == 0x3E
        kinds = len(np.unique(keys[formatting[is_bare]]))
        most = max(_MOST_COPIES, len(source) // 2) // max(len(tags), 1)
        self.is_light = _has_few_attributes(source, tags) and _has_few_formats(
            source, kinds, tags[formatting[~is_bare]].tolist(), most
        )


def _has_few_formats(source: bytes, kinds: int, with_attributes: list[int], most: int) -> bool:
    """Whether no more than *most* formatting elements can be open at once: three of each kind.

    There are so many *kinds* without attributes; of the others the places are given.
    """
    if _MOST_ALIKE * kinds + len(with_attributes) <= most:
        return True
    different = {source[at : source.find(b">", at) + 1] for at in with_attributes}
    if _MOST_ALIKE * (kinds + len(different)) <= most and all(map(_SIMPLE_TAG.fullmatch, different)):
        return True
    return _different(source) <= most


def _has_few_attributes(source: bytes, tags: NDArray[np.int64]) -> bool:
    long = tags[np.diff(tags, append=len(source)) > _LONG].tolist()
    return len(long) <= _MOST_LONG and all(
        not source[at + 1 : at + 2].isalpha() or _SIMPLE_TAG.match(source, at) is not None for at in long
    )


def _different(source: bytes) -> int:
    """The most formatting elements that can be open again in one block."""
    found = [tag for tag, *_ in _LEFT_OPEN.findall(source)]
    # One whose attributes are not read to their end may differ from any other.
    unread = sum(not tag.endswith(b">") for tag in found)
    return _MOST_ALIKE * len(set(found)) + unread
