"""``passages like FILE|URL|-``: find documents that share passages with a text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import number_text
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.passages.boilerplate import SHARE
from scrapy_dedupe.passages.queries import like
from scrapy_dedupe.passages.sources import id_of_name

from .given_texts import STDIN, given_text
from .root_folder import add_root, opened, root_of
from .snippets import place_text, printable, snippet

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages.snapshot import IndexSnapshot
    from scrapy_dedupe.passages.values import Hit

HELP = "Find documents that share passages with a text, the most similar first, and show the passages."


@dataclass(frozen=True, slots=True)
class LikeResult:
    """*asked* is the file, document or ``-`` that was given, *text* its text."""

    root: str
    asked: str
    text: str
    hits: list[Hit]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # argparse would show the positional argument last, where --taboo would take it as another of its files.
    parser.usage = (
        "%(prog)s FILE|URL|- [-h] [--root DIR] [--top N] [--min-tokens N] [--taboo FILE [FILE ...]]"
        " [--boilerplate-share X | --keep-boilerplate] [--json]"
    )
    parser.add_argument(
        "asked",
        metavar="FILE|URL|-",
        help="a text or HTML file, the id of an indexed document (which is not listed itself), or - for standard input",
    )
    add_root(parser)
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="the maximum number of documents (default: 10)"
    )
    parser.add_argument(
        "--min-tokens",
        type=int,
        metavar="N",
        help="the minimum length of a passage in tokens (default: the length that the index guarantees to find, which is 15"
        " unless --k or --window was given)",
    )
    add_exclusions(parser)


def add_exclusions(parser: argparse.ArgumentParser) -> None:
    """Add the options that exclude text from passages."""
    parser.add_argument(
        "--taboo",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="exclude the text of these files from passages",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--boilerplate-share",
        type=float,
        default=SHARE,
        metavar="X",
        help=f"exclude text in more than this share of a host's documents, if it is in at least ten (default: {SHARE})",
    )
    group.add_argument("--keep-boilerplate", action="store_true", help="do not exclude boilerplate")


def run(place: CommandStores, opts: argparse.Namespace) -> LikeResult:
    root = root_of(place, opts)
    taboo = [given_text(name) for name in opts.taboo]
    with Bars(opts) as bars, bars.part("like", 0), opened(root) as snapshot:
        text, host = _query_text(snapshot, opts.asked)
        hits = like(
            snapshot,
            text,
            opts.top,
            min_tokens=opts.min_tokens,
            boilerplate_share=None if opts.keep_boilerplate else opts.boilerplate_share,
            taboo=taboo,
            left_out={id_of_name(opts.asked)},
            host=host,
        )
    return LikeResult(str(root), opts.asked, text, hits)


def _query_text(snapshot: IndexSnapshot, asked: str) -> tuple[str, str | None]:
    """The query text, and its host if it is the text of an indexed document."""
    if asked == STDIN:
        return given_text(asked), None
    is_url = asked.lower().startswith(("http://", "https://"))
    if is_url or not os.path.exists(asked):  # noqa: PTH110 - an id may be longer than a path
        number = snapshot.document_number(id_of_name(asked))
        if number is not None:
            return snapshot.text(int(snapshot.text_numbers[number])), snapshot.host_of_document(number)
    if is_url:
        raise UsageError(
            f"The index {snapshot.folder} has no document {asked}. To query with a page that is not indexed, pipe it in:"
            f" curl {asked} | scrapy-dedupe passages like - ..."
        )
    if not os.path.lexists(asked):
        raise ArchiveError(
            f"{asked} is neither a file nor a document of the index {snapshot.folder}. Give a file, an id that passages"
            " inspect --documents lists, or - for standard input."
        )
    return given_text(asked), None


def text(result: LikeResult) -> str:
    if not result.hits:
        return f"No document in {result.root} shares a passage that matches the options with {_named(result.asked)}."
    lines = []
    for hit in result.hits:
        lines.append(f"{hit.score:5.0%}  {printable(hit.doc_id)}")
        for passage in hit.passages:
            assert passage.asked is not None
            asked = passage.asked
            written = result.text[asked.char_start : asked.char_end] if passage.text is None else passage.text
            lines.append(f"       {number_text(passage.tokens)} tokens: {snippet(written)}")
            lines.append(f"         here   {place_text(asked)}")
            lines += [f"         there  {place_text(there)}" for there in passage.places]
    return "\n".join(lines)


def _named(asked: str) -> str:
    return "standard input" if asked == STDIN else printable(asked)
