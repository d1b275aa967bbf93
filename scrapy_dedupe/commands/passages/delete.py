"""``passages delete DOC_ID…``: delete documents from the index."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import number_text
from scrapy_dedupe.errors import ArchiveError, UsageError

from .root_folder import add_root, not_merged, root_of
from .snippets import printable

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = (
    "Delete documents from the index by their ids, which are the URLs or paths under which they were indexed. passages"
    " compact frees their space."
)

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """*documents* is the number of deleted documents, *missing* are the ids that are not in the index.

    *not_merged* is the reason why small segments could not be merged. The documents are deleted nevertheless.
    """

    root: str
    documents: int
    missing: list[str]
    not_merged: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="DOC_ID", nargs="*", help="the id of a document")
    parser.add_argument(
        "--from", dest="list", metavar="FILE", help="a file with one id per line; - for standard input"
    )
    add_root(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> DeleteResult:
    from scrapy_dedupe.passages import PassageIndex
    from scrapy_dedupe.passages.sources import id_of_name

    ids = [*opts.ids, *(_listed(opts.list) if opts.list is not None else ())]
    if not ids and opts.list is None:
        raise UsageError("No documents were given. Give their ids, or a file of ids with --from.")
    # Ignore duplicates.
    ids = list(dict.fromkeys(map(id_of_name, ids)))
    root = root_of(place, opts)
    with Bars(opts) as bars, PassageIndex(root, create=False, command="passages delete") as index:
        index.watch = bars
        with bars.part("delete", 0):
            was_there = index.delete_many(ids)
    missing = [doc_id for doc_id, was in zip(ids, was_there, strict=True) if not was]
    return DeleteResult(str(root), len(ids) - len(missing), missing, not_merged(index))


def _listed(name: str) -> list[str]:
    where = "standard input" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(name, "rb") as file:  # noqa: PTH123 - the name may also be that of a pipe
                data = file.read()
    except OSError as error:
        raise ArchiveError(f"{where} cannot be read: {error.strerror or error}.") from error
    try:
        # Not splitlines(): an id may contain other characters that it treats as line ends.
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where} is not UTF-8 at byte {error.start}. Give a file with one id per line, in UTF-8."
        ) from error
    return [line for line in (line.removesuffix("\r") for line in lines) if line]


def text(result: DeleteResult) -> str:
    lines = [f"{printable(doc_id)} is not in the index." for doc_id in result.missing[:_SHOWN]]
    if len(result.missing) > _SHOWN:
        lines.append(f"... and {number_text(len(result.missing) - _SHOWN)} more, listed by --json.")
    documents = (
        "1 document was" if result.documents == 1 else f"{number_text(result.documents)} documents were"
    )
    lines.append(f"{documents} deleted from {result.root}.")
    return "\n".join(lines)


def caveat(result: DeleteResult) -> str | None:
    parts = []
    if count := len(result.missing):
        parts.append(
            f"{'1 document was' if count == 1 else f'{number_text(count)} documents were'} not in the index"
        )
    if result.not_merged is not None:
        parts.append(result.not_merged)
    return f"{'; '.join(parts)}." if parts else None
