"""``passages blot FILE...``: show the blots of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.passages.blots import blotter_of
from scrapy_dedupe.passages.index import parameters_of
from scrapy_dedupe.passages.queries import blots_of

from .given_texts import given_text
from .root_folder import add_root, root_of
from .snippets import printable, snippet

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Show the blots that an index keeps, or would keep, of texts, one per line, in hexadecimal."


@dataclass(frozen=True, slots=True)
class BlotLine:
    """A blot in hexadecimal, its ranges of tokens and characters, and its text. Ends are exclusive."""

    blot: str
    token_start: int
    token_end: int
    char_start: int
    char_end: int
    text: str


@dataclass(frozen=True, slots=True)
class FileBlots:
    file: str
    blots: list[BlotLine]


@dataclass(frozen=True, slots=True)
class BlotResult:
    has_offsets: bool
    files: list[FileBlots]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a text or HTML file; - for standard input")
    add_root(parser)
    parser.add_argument(
        "--offsets",
        action="store_true",
        help="also show the tokens, characters and words of each blot",
    )
    parser.add_argument(
        "--all", action="store_true", help="show the blots of all windows, not only those that are kept"
    )


def run(place: CommandStores, opts: argparse.Namespace) -> BlotResult:
    # Without --root the index need not exist: show the blots that a new index would keep.
    parameters = parameters_of(root_of(place, opts), None, None, None, create=opts.root is None)
    digits = -(-blotter_of(parameters.blotter).bits // 4)
    files = []
    for name in opts.files:
        content = given_text(name)
        lines = [
            BlotLine(
                f"{row.blot:0{digits}x}",
                row.token_start,
                row.token_end,
                row.char_start,
                row.char_end,
                content[row.char_start : row.char_end],
            )
            for row in blots_of(content, parameters, every=opts.all)
        ]
        files.append(FileBlots(name, lines))
    return BlotResult(opts.offsets, files)


def text(result: BlotResult) -> str:
    lines = []
    for file in result.files:
        if result.has_offsets and len(result.files) > 1:
            lines.append(f"{printable(file.file)}:")
        for row in file.blots:
            if not result.has_offsets:
                lines.append(row.blot)
                continue
            places = f"tokens {row.token_start}-{row.token_end}  characters {row.char_start}-{row.char_end}"
            lines.append(f"{row.blot}  {places}  {snippet(row.text)}")
    return "\n".join(lines)
