"""A readable diff of two canonical texts.

A canonical text has no lines. It is broken into lines after each sentence; long sentences are also broken between
words, at places that depend only on the preceding words. An added or removed word therefore moves only the breaks
near it, and all other lines stay equal.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH: Final = 80

# A long sentence is broken after this many characters, at one word in four.
_LEAST: Final = 40
_ONE_IN: Final = 4

# Ends of sentences. In scripts without spaces no space follows.
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…][\"'”’)\]]) |(?<=[.!?…]) |(?<=[。！？])(?=.)|\n")
_WORD: Final = re.compile(rf"\S{{1,{_WIDTH}}}(?:\s+|(?=\S)|\Z)")


def lines_of(text: str) -> list[str]:
    """Split *text* into lines of about 80 characters at most.

    >>> lines_of("One. Two! Three")
    ['One.', 'Two!', 'Three']
    """
    return [line for sentence in _SENTENCE_END.split(text) for line in _short_lines(sentence)]


def unified_diff(old: str, new: str, old_name: str, new_name: str) -> list[str]:
    """Return a unified diff of two canonical texts, with one context line. Empty for equal texts."""
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
