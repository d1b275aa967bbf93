"""A fast first check of a page's markup, which accepts nearly all pages at a small part of the cost of parsing them.

Start and end tags are identified by their first two letters and counted with array operations. A page is *light* if
its tags are paired, its nesting is within the budget, it has few attributes, and few different formatting elements.
Comments and scripts are not distinguished from markup, so a crafted page can look light. The damage is bounded: the
deadline of :mod:`.markup` bounds the time, and this check bounds the memory, because it counts formatting elements
wherever they occur and limits the number of different ones times the number of tags.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A tag of more than this many bytes is checked individually.
_LONG: Final = 2_000
_MOST_LONG: Final = 100
# Copies of elements, about 700 bytes each in lexbor; half of the page's size in bytes, if that is more.
_MOST_COPIES: Final = 700_000
# At most three formatting elements with the same name and attributes are reopened.
_MOST_ALIKE: Final = 3

_LETTERS: Final = 27
_NO_NAME: Final = 26 * _LETTERS

# Attributes that every parser reads in the same way, and the end of the tag.
_ATTRIBUTES: Final = (
    rb"""(?:\s++[\w:.-]++(?:="[^"<>]*+"|='[^'<>]*+'|=[\w\#%.,:;?&/+-]++)?+(?=[\s/>])){0,50}+\s*+/?>"""
)
_SIMPLE_TAG: Final = re.compile(rb"</?[a-zA-Z][^\s/>]*+" + _ATTRIBUTES)

# Formatting elements that can be reopened several times in one block; <a> and <nobr> close an earlier one.
_FORMATTING_NAMES: Final = (
    "b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u",
)  # fmt: skip
# Both cases are written out, because a case-insensitive pattern is several times slower.
_AFTER_FIRST_LETTER: Final = "|".join(
    "".join(f"[{letter}{letter.upper()}]" for letter in name[1:]) for name in _FORMATTING_NAMES
)
# A start tag whose end tag follows, with only text and simple elements in between, is never reopened.
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
    """The key of each pair of bytes that may follow ``<`` or ``</``."""
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
# Empty elements, and elements with optional end tags, have the weight 0: the elements around them count the depth.
_WEIGHTS: Final = _table(
    dict.fromkeys(
        ("p", "br", "hr", "im", "in", "li", "wb", "co", "td", "th", "tr", "tb", "tf", "dd", "dt", "rt", "rp"),
        0,
    ),
    1,
    np.int32,
)
_LEVELS: Final = np.concatenate((_WEIGHTS, -_WEIGHTS))
# The length of the formatting element whose name starts with these letters; 0 if there is none, and for end tags.
_FORMATTING_LENGTHS: Final = np.concatenate(
    (_table({name: len(name) for name in _FORMATTING_NAMES}, 0, np.int64), np.zeros(_NO_NAME + 1, np.int64))
)


class TagCounts:
    """Tag counts of a page, given as UTF-8.

    *steps* is the approximate number of open elements that lexbor must walk through. *is_light* means that neither
    attributes nor copies of formatting elements can become expensive.
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
        # Unpaired names include non-tags, which may be part of an attribute.
        unpaired = int((np.abs(counts[0] - counts[1]) * _WEIGHTS).sum() + counts[:, _NO_NAME].sum())
        level = np.cumsum(_LEVELS[keys])
        # End tags without a start tag before them do not reduce the depth of the tags after them.
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
    """Whether at most *most* formatting elements can be open at once, counting three of each different one.

    *kinds* is the number of different formatting elements without attributes, *with_attributes* are the positions of
    the others.
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
    """The highest number of formatting elements that can be reopened in one block."""
    found = [tag for tag, *_ in _LEFT_OPEN.findall(source)]
    # A tag whose attributes were not read completely may differ from all others.
    unread = sum(not tag.endswith(b">") for tag in found)
    return _MOST_ALIKE * len(set(found)) + unread
