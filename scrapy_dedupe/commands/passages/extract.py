"""``passages extract``: list the passages that several documents share, as text, JSON lines or CSV.

``text``
    For reading.
``jsonl``
    One object per line with ``rank``, ``score``, ``tokens``, ``documents``, ``text`` (null if the index keeps no texts)
    and ``places``, a list of objects with ``doc_id``, ``token_start``, ``token_end``, ``char_start`` and ``char_end``.
``csv``
    A header line, then one line per place: rank, score, tokens, documents, the fields of the place, and the text. Fields
    are quoted as in RFC 4180.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import FORCE, Option, flag
from scrapy_dedupe.commands.output import encodable, picked
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.passages.extraction import extract
from scrapy_dedupe.passages.snapshot import IndexSnapshot
from scrapy_dedupe.passages.values import Place
from scrapy_dedupe.reports.wording import clean, counted, number
from scrapy_dedupe.tasks.state import writing

from . import EXCLUSIONS, MIN_TOKENS, ROOT, PassageVerb, place_text, root_of, snippet
from .queries import given_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages.values import Passage

    Write = Callable[[int, Passage], None]


def _extract(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    root = root_of(stores, opts)
    taboo = [given_text(name) for name in opts.taboo]
    passages = places = 0
    with IndexSnapshot.open(root) as snapshot, Bars(opts) as bars, _output(opts) as file:
        write = WRITERS[opts.format](file)
        for passage in extract(
            snapshot,
            taboo=taboo,
            boilerplate_share=None if opts.keep_boilerplate else opts.boilerplate_share,
            work=_work(opts),
            watch=bars,
            **picked(opts, "min_docs max_docs min_tokens sigma top nested skip_copies"),
        ):
            passages += 1
            write(passages, passage)
            places += len(passage.places)
    return {"root": str(root), **picked(opts, "output format"), "passages": passages, "places": places}


def _work(opts: argparse.Namespace) -> Path:
    if opts.work is not None and not opts.work.is_dir():
        raise ArchiveError(f"{opts.work} is not a folder. Name a folder with enough space with --work.")
    try:
        return opts.work or Path(tempfile.gettempdir())
    except OSError as error:  # Python could not write to any of the usual folders
        raise ArchiveError(
            f"There is no folder for temporary files: {error.strerror or error}. Name a folder with enough space with"
            " --work."
        ) from error


@contextmanager
def _output(opts: argparse.Namespace) -> Iterator[TextIO]:
    """Standard output, or a file that gets its name only when it is complete."""
    if opts.output == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(opts.output)
    if path.exists() and not opts.force:
        raise UsageError(f"{path} already exists. Choose another file, or replace it with --force.")
    with (
        writing(path),
        whole_file.replacing(path, suffix=".new", durable=False) as file,
        io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="") as text_file,
    ):
        yield text_file


def _text_writer(file: TextIO) -> Write:
    def write(rank: int, passage: Passage) -> None:
        size = f"{number(passage.tokens)} tokens in {number(passage.documents)} documents"
        text = "" if passage.text is None else f": {snippet(passage.text)}"
        lines = [
            f"{number(rank)}. {size}, score {number(passage.score)}{text}",
            *(f"     {clean(place.doc_id)}: {place_text(place)}" for place in passage.places),
        ]
        file.write(encodable("".join(f"{line}\n" for line in lines), file))

    return write


def _json_writer(file: TextIO) -> Write:
    def write(rank: int, passage: Passage) -> None:
        places = [asdict(place) for place in passage.places]
        row = {"rank": rank, **picked(passage, "score tokens documents text"), "places": places}
        # json.dumps escapes all non-ASCII characters, so any encoding works, and so no character ends the line.
        file.write(json.dumps(row) + "\n")

    return write


def _csv_writer(file: TextIO) -> Write:
    rows = csv.writer(file)
    rows.writerow(["rank", "score", "tokens", "documents", *(field.name for field in fields(Place)), "text"])

    def write(rank: int, passage: Passage) -> None:
        head = (rank, passage.score, passage.tokens, passage.documents)
        text = encodable(passage.text or "", file)
        for place in passage.places:
            doc_id, *numbers = astuple(place)
            rows.writerow([*head, encodable(doc_id, file), *numbers, text])

    return write


WRITERS: Final[dict[str, Callable[[TextIO], Write]]] = {
    "text": _text_writer,
    "jsonl": _json_writer,
    "csv": _csv_writer,
}
"""The functions that write passages, one per call with its rank, by the name of their format."""


def _lines(result: dict[str, Any]) -> Iterator[str]:
    if result["output"] != "-":
        yield f"{counted(result['passages'], 'passage')} at {counted(result['places'], 'place')}: {result['output']}"
    elif not result["passages"] and result["format"] == "text":
        yield f"No documents of {result['root']} share a passage that matches the options."


EXTRACT = PassageVerb(
    _extract,
    _lines,
    [
        ROOT,
        Option("-o --output", "FILE", "the file to write (default: standard output)", default="-"),
        FORCE,
        Option(
            "--format",
            None,
            "text; jsonl: one JSON object per passage; csv: one line per place",
            choices=tuple(WRITERS),
            default="text",
        ),
        Option(
            "--min-docs", "N", "the minimum number of documents (default: %(default)s)", type=int, default=2
        ),
        Option("--max-docs", "N", "the maximum number of documents with a passage", type=int),
        MIN_TOKENS,
        Option(
            "--sigma",
            "X",
            "ignore blots in fewer documents than the mean plus X standard deviations",
            type=float,
        ),
        Option("--top", "N", "list only the best N passages (default: all)", type=int),
        flag("--nested", "include passages that better passages cover"),
        flag("--skip-copies", "count documents with the same text once, under the first name"),
        Option(
            "--work",
            "DIR",
            "the folder for temporary files, several times the texts (default: TMPDIR)",
            type=Path,
        ),
        *EXCLUSIONS,
    ],
)
