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
# Each takes lexbor some 700 bytes.
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


def _marked(names: tuple[str, ...]) -> NDArray[np.bool_]:
    marked = np.zeros(_NO_NAME + 1, np.bool_)
    marked[[_key(name) for name in names]] = True
    return marked


# Empty elements, and those whose end tag may be left out: they nest inside others that count alone.
_UNCOUNTED: Final = (
    "p", "br", "hr", "im", "in", "li", "wb", "co", "td", "th", "tr", "tb", "tf", "dd", "dt", "rt", "rp",
)  # fmt: skip
_WEIGHTS: Final = np.where(_marked(_UNCOUNTED), 0, 1).astype(np.int32)
_WEIGHTS[_NO_NAME] = 0
# How long a name with these two letters has to be to be that of a formatting element; 0 if none is.
_FORMATTING_LENGTHS: Final = np.zeros(_NO_NAME + 1, np.int64)
_FORMATTING_LENGTHS[[_key(name) for name in _FORMATTING_NAMES]] = [len(name) for name in _FORMATTING_NAMES]


class Glance:
    """What shows at once of a page, given as UTF-8.

    *steps* is about how many open elements lexbor has to walk through; *is_light* says that neither attributes nor
    copies of formatting elements can become a burden.
    """

    __slots__ = ("is_light", "steps")

    def __init__(self, source: bytes) -> None:
        data = np.frombuffer(source + b"   ", np.uint8)
        tags = np.flatnonzero(data == 0x3C)
        is_end = data[tags + 1] == 0x2F
        names = tags + is_end
        first = (data[names + 1] | 0x20) - np.uint8(97)
        second = (data[names + 2] | 0x20) - np.uint8(96)
        second[second > 26] = 0
        keys = first.astype(np.int32) * _LETTERS + second
        keys[first > 25] = _NO_NAME
        weights = _WEIGHTS[keys]
        weights[is_end] *= -1
        unpaired = int(np.abs(np.bincount(keys, weights, _NO_NAME + 1)).sum())
        # What is no tag may stand in an attribute.
        unpaired += int(np.count_nonzero(keys == _NO_NAME))
        level = np.cumsum(weights)
        depth = level - np.minimum(np.minimum.accumulate(level), 0)
        self.steps = int(depth.sum()) + unpaired * len(tags)
        lengths = _FORMATTING_LENGTHS[keys]
        lengths[is_end] = 0
        formatting = tags[lengths > 0]
        after = np.minimum(formatting + lengths[lengths > 0] + 1, len(source))
        different = _MOST_ALIKE * len(_FORMATTING_NAMES) + int(np.count_nonzero(data[after] != 0x3E))
        if different * len(tags) > _MOST_COPIES:
            different = _different(source)
        self.is_light = different * len(tags) <= _MOST_COPIES and _has_few_attributes(source, tags)


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
