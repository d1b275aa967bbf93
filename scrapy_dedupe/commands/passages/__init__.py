"""The verbs for text that repeats across documents: their common options and output."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.options import Exclusive, Option, flag
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.passages.boilerplate import SHARE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages import PassageIndex
    from scrapy_dedupe.passages.values import Place

_LONGEST: Final = 100

PassageVerb: Final[Callable[..., Verb[Any]]] = partial(Verb, store_option="--root DIR")
ROOT: Final = Option("--root", "DIR", "the folder of the index (default: DEDUPE_PASSAGES_DIR)", type=Path)
MIN_TOKENS: Final = Option(
    "--min-tokens",
    "N",
    "the minimum length of a passage (default: the length that is always found)",
    type=int,
)
EXCLUSIONS: Final = (
    Option(
        "--taboo",
        "FILE",
        "exclude the text of these files from passages",
        nargs="+",
        action="extend",
        default=[],
    ),
    Exclusive(
        Option(
            "--boilerplate-share",
            "X",
            "exclude text in more than this share of a host's documents (default: %(default)s)",
            type=float,
            default=SHARE,
        ),
        flag("--keep-boilerplate", "do not exclude boilerplate"),
    ),
)
"""The options that exclude text from passages."""


def root_of(stores: CommandStores, opts: argparse.Namespace) -> Path:
    """Return the folder of the index: that of ``--root``, or that of the settings."""
    folder: Path | None = opts.root
    return stores.settings.passages.root if folder is None else folder


def not_merged(index: PassageIndex) -> str | None:
    """Return the reason why small segments of *index* could not be merged, or None if there was no error."""
    error = index.merge_error
    return None if error is None else f"small segments could not be merged: {str(error).rstrip('.')}"


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
