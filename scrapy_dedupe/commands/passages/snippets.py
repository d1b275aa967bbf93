"""Format passages and their places for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_dedupe.passages.values import Place

_LONGEST = 100


def snippet(text: str, longest: int = _LONGEST) -> str:
    r"""Return a text as one line of at most about *longest* characters: of a longer text, the beginning and the end.

    >>> snippet("one\n two"), snippet("The quick brown fox jumps over the lazy dog", 30)
    ('one two', 'The quick … the lazy dog')
    """
    if len(text) <= 4 * longest:
        line = _line(text)
        if len(line) <= longest:
            return line
        head, tail = line, line
    else:
        head, tail = _line(text[: 2 * longest]), _line(text[-2 * longest :])
    room = longest - 3
    begin, end = head[: room // 2 + 1], tail[-(room - room // 2) - 1 :]
    # Cut at spaces, unless a single word is longer than its half of the line.
    begin = begin.rpartition(" ")[0] or begin[:-1]
    end = end.partition(" ")[2] or end[1:]
    return f"{begin.rstrip()} … {end.lstrip()}"


def printable(name: str) -> str:
    r"""Return a name with U+FFFD instead of control characters, such as those that move the cursor.

    >>> printable("a\nb\x1b[2J c") == "a\ufffdb\ufffd[2J c"
    True
    """
    return "".join(char if char.isprintable() else "\ufffd" for char in name)


def _line(text: str) -> str:
    # Characters that move the cursor or change the writing direction must not reach the terminal.
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def place_text(place: Place) -> str:
    """Return the ranges of a place. Ends are exclusive.

    >>> from scrapy_dedupe.passages.values import Place
    >>> place_text(Place("a", 0, 15, 3, 90))
    'tokens 0-15, characters 3-90'
    """
    return f"tokens {place.token_start}-{place.token_end}, characters {place.char_start}-{place.char_end}"
