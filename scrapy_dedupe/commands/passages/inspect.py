"""``passages inspect``: show what an index contains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted, number_text, size_text
from scrapy_dedupe.passages.boilerplate import SHARE
from scrapy_dedupe.passages.inspection import inspect, inspected_documents

from .root_folder import add_root, opened, root_of
from .snippets import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages.inspection import Inspected, InspectedDocument

HELP = "Show what the index contains: documents, tokens, posts, sizes, boilerplate and parameters."


@dataclass(frozen=True, slots=True)
class InspectResult:
    """*documents* is None unless ``--documents`` was given."""

    root: str
    index: Inspected
    documents: list[InspectedDocument] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_root(parser)
    parser.add_argument("--documents", action="store_true", help="also list the documents")
    parser.add_argument(
        "--boilerplate-share",
        type=float,
        default=SHARE,
        metavar="X",
        help=f"the share of a host's documents above which text is boilerplate (default: {SHARE})",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> InspectResult:
    root = root_of(place, opts)
    with Bars(opts) as bars, bars.part("inspect", 0), opened(root) as snapshot:
        index = inspect(snapshot, opts.boilerplate_share)
        documents = list(inspected_documents(snapshot)) if opts.documents else None
    return InspectResult(str(root), index, documents)


def text(result: InspectResult) -> str:
    documents = [
        f"{number_text(document.tokens)} tokens, {number_text(document.characters)} characters  {printable(document.doc_id)}"
        for document in result.documents or ()
    ]
    return "\n".join([result.root, *_lines(result.index), *documents])


def _lines(index: Inspected) -> Iterator[str]:
    blotter = dict(index.parameters["blotter"])
    numbers = ", ".join(f"{name} {value}" for name, value in blotter.items() if name != "name")
    kept = "with texts" if index.parameters["has_texts"] else "without texts"
    yield (
        f"made with   {index.parameters['tokeniser']}, {blotter['name']} ({numbers}),"
        f" keys of {index.parameters['key_bits']} bits, {kept}"
    )
    yield (
        f"documents   {number_text(index.documents)}, {number_text(index.copies)} of them copies,"
        f" of {counted(index.hosts, 'host')}; {number_text(index.deleted)} deleted ones await compaction"
    )
    yield (
        f"texts       {number_text(index.texts)}, with {number_text(index.tokens)} tokens and"
        f" {number_text(index.characters)} characters"
    )
    yield (
        f"posts       {number_text(index.posts)} under {number_text(index.distinct_keys)} keys; documents a key: mean"
        f" {index.documents_a_key_mean:.2f}, sigma {index.documents_a_key_sigma:.2f}"
    )
    yield (
        f"boilerplate {number_text(index.boilerplate_keys)} keys, {number_text(index.boilerplate_posts)} posts"
    )
    parts = "texts" if index.parameters["has_texts"] else "outlines"
    share = (
        "" if index.share_of_text is None else f"; without texts {index.share_of_text:.1%} of the characters"
    )
    yield (
        f"size        {size_text(index.posts_bytes)} of posts, {size_text(index.texts_bytes)} of {parts}{share}"
    )
    for segment in index.segments:
        yield (
            f"segment     {segment.name}: {counted(segment.documents, 'document')} ({number_text(segment.deleted)}"
            f" deleted), {counted(segment.texts, 'text')}, {counted(segment.posts, 'post')},"
            f" {size_text(segment.posts_bytes)} + {size_text(segment.texts_bytes)}"
        )
