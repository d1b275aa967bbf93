"""``passages unblot HEX...``: show the places of blots."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.figures import number_text
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.passages.blots import blotter_of
from scrapy_dedupe.passages.queries import unblot

from .given_texts import STDIN
from .root_folder import add_root, opened, root_of
from .snippets import place_text, printable, snippet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages.values import Place as PassagePlace

HELP = "Show the words of blots and all their places."


@dataclass(frozen=True, slots=True)
class BlotPlaces:
    """The places of a blot. *text* is None if the index keeps no texts."""

    blot: str
    text: str | None
    documents: int
    places: list[PassagePlace]


@dataclass(frozen=True, slots=True)
class UnblotResult:
    """*alone* is the number of blots left out because only one document has them; *unknown* are blots of no document."""

    blots: list[BlotPlaces]
    alone: int
    unknown: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "blots",
        nargs="+",
        metavar="HEX",
        help="a blot as shown by passages blot; - reads blots from standard input, the first word of each line",
    )
    add_root(parser)
    parser.add_argument("--all", action="store_true", help="also show blots of a single document")


def run(place: CommandStores, opts: argparse.Namespace) -> UnblotResult:
    words = dict.fromkeys(_words(opts.blots))
    with opened(root_of(place, opts)) as snapshot:
        digits = -(-blotter_of(snapshot.parameters.blotter).bits // 4)
        found = unblot(snapshot, [_number(word) for word in words])
    shown, single = [], 0
    for item in found:
        documents = item.passage.documents
        if documents < 2 and not opts.all:
            single += 1
            continue
        blot = f"{item.blot:0{digits}x}"
        shown.append(BlotPlaces(blot, item.passage.text, documents, list(item.passage.places)))
    known = {item.blot for item in found}
    return UnblotResult(shown, single, [word for word in words if _number(word) not in known])


def _words(given: Iterable[str]) -> Iterator[str]:
    for word in given:
        if word == STDIN:
            lines = (line.decode("utf-8", "backslashreplace") for line in sys.stdin.buffer)
            yield from (line.split()[0] for line in lines if line.strip())
        else:
            yield word


def _number(word: str) -> int:
    try:
        return int(word, 16)
    except ValueError:
        raise UsageError(
            f"{word!r} is not a blot. Give a hexadecimal number as shown by passages blot."
        ) from None


def text(result: UnblotResult) -> str:
    lines = []
    for item in result.blots:
        documents = "1 document" if item.documents == 1 else f"{number_text(item.documents)} documents"
        words = "" if item.text is None else f": {snippet(item.text)}"
        lines.append(f"{item.blot}  {documents}{words}")
        lines += [f"    {place_text(place)}  {printable(place.doc_id)}" for place in item.places]
    if result.alone:
        blots = "1 blot is" if result.alone == 1 else f"{number_text(result.alone)} blots are"
        lines.append(
            f"{blots} in a single document; use --all to show {'it' if result.alone == 1 else 'them'}."
        )
    lines += [f"{word} was not found." for word in result.unknown]
    return "\n".join(lines)
