"""How two canonical texts differ, so that a person can read it.

A canonical text has no lines. It is broken after each sentence, and a longer one between words, at places that depend
on the words before them alone: a word more or less moves the breaks of its own neighbourhood, and the rest of the
lines stay equal.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH: Final = 80

# A long sentence is broken from here on, after one word in four.
_LEAST: Final = 40
_ONE_IN: Final = 4

# Ends of sentences; those of scripts without spaces are followed by none.
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…][\"'”’)\]]) |(?<=[.!?…]) |(?<=[。！？])(?=.)|\n")
_WORD: Final = re.compile(rf"\S{{1,{_WIDTH}}}(?:\s+|(?=\S)|\Z)")


def lines_of(text: str) -> list[str]:
    """*text* in lines of at most about 80 characters.

    >>> lines_of("One. Two! Three")
    ['One.', 'Two!', 'Three']
    """
    return [line for sentence in _SENTENCE_END.split(text) for line in _short_lines(sentence)]


def unified_diff(old: str, new: str, old_name: str, new_name: str) -> list[str]:
    """A unified diff of two canonical texts, with one line around each change. Empty for equal texts."""
    return list(difflib.unified_diff(lines_of(old), lines_of(new), old_name, new_name, n=1, lineterm=""))


def _short_lines(sentence: str) -> Iterator[str]:
    sentence = sentence.strip()
    if len(sentence) <= _WIDTH:
        if sentence:
            yield sentence
        return
    line = ""
    for word in _WORD.findall(sentence):
        if line and len(line) + len(word.rstrip()) > _WIDTH:
            yield line.rstrip()
            line = ""
        line += word
        if len(line) >= _LEAST and crc32(word.strip().encode("utf-8", "replace")) % _ONE_IN == 0:
            yield line.rstrip()
            line = ""
    if line.strip():
        yield line.rstrip()
