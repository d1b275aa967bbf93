"""``passages like``, ``extract``, ``blot`` and ``unblot``: what documents share, with a text or with each other.

``passages extract`` writes one of these formats:

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
import gzip
import io
import json
import os
import sys
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import FORCE, Option, flag
from scrapy_dedupe.commands.output import as_json, encodable, picked
from scrapy_dedupe.content.canonical import read
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.passages.blots import blotter_of
from scrapy_dedupe.passages.extraction import extract
from scrapy_dedupe.passages.index import parameters_of
from scrapy_dedupe.passages.queries import blots_of, like, unblot
from scrapy_dedupe.passages.snapshot import IndexSnapshot
from scrapy_dedupe.passages.sources import id_of_name
from scrapy_dedupe.passages.text_reading import (
    ARCHIVE,
    BINARY,
    LINES,
    OPEN,
    PLAIN,
    START_BYTES,
    decoded,
    form_of,
)
from scrapy_dedupe.passages.values import Place
from scrapy_dedupe.reports.wording import clean, counted, number
from scrapy_dedupe.tasks.outputs import check_output
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.warc.sources import GZIP_MAGIC

from . import EXCLUSIONS, MIN_TOKENS, ROOT, PassageVerb, place_text, root_of, snippet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages.values import Parameters, Passage

    Write = Callable[[int, Passage], None]

_STDIN: Final = "-"
_MOST_BYTES: Final = 64_000_000


def _like(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    root = root_of(stores, opts)
    taboo = [given_text(name) for name in opts.taboo]
    with Bars(opts) as bars, bars.part("like", 0), IndexSnapshot.open(root) as snapshot:
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
    return {"root": str(root), "asked": opts.asked, "text": text, "hits": hits}


def _query_text(snapshot: IndexSnapshot, asked: str) -> tuple[str, str | None]:
    """The query text, and its host if it is the text of an indexed document."""
    if asked == _STDIN:
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


def _like_lines(result: dict[str, Any]) -> Iterator[str]:
    if not result["hits"]:
        asked = "standard input" if result["asked"] == _STDIN else clean(result["asked"])
        yield f"No document in {result['root']} shares a passage that matches the options with {asked}."
    for hit in result["hits"]:
        yield f"{hit.score:5.0%}  {clean(hit.doc_id)}"
        for passage in hit.passages:
            asked_at = passage.asked
            assert asked_at is not None
            text = passage.text or result["text"][asked_at.char_start : asked_at.char_end]
            yield f"       {number(passage.tokens)} tokens: {snippet(text)}"
            yield f"         here   {place_text(asked_at)}"
            yield from (f"         there  {place_text(there)}" for there in passage.places)


LIKE = PassageVerb(
    _like,
    _like_lines,
    [
        Option(
            "asked",
            "FILE|URL|-",
            "a text or HTML file, the id of an indexed document, or - for standard input",
        ),
        ROOT,
        Option("--top", "N", "the maximum number of documents (default: %(default)s)", type=int, default=10),
        MIN_TOKENS,
        *EXCLUSIONS,
    ],
    # argparse would show the positional argument last, where --taboo would take it as another of its files.
    usage="%(prog)s FILE|URL|- [-h] [--root DIR] [--top N] [--min-tokens N] [--taboo FILE [FILE ...]]"
    " [--boilerplate-share X | --keep-boilerplate] [--json]",
)


def given_text(name: str) -> str:
    """Return the text of a file, or of standard input for ``-``. For HTML and XML, return the canonical text.

    Raises ArchiveError if the file cannot be read, UsageError if it is not a single text, and DamagedInput if it cannot be
    decompressed or parsed.
    """
    shown = "Standard input" if name == _STDIN else name
    data = _data(name, shown)
    form = form_of(name, data[:START_BYTES])
    if form in (ARCHIVE, OPEN, LINES):
        raise UsageError(
            f"{shown} contains many documents, not a single text. Index it, and name one of its documents by the URL."
        )
    if form == BINARY:
        raise UsageError(f"{shown} does not contain text. Give a text or HTML file.")
    text, _ = decoded(data, form)
    if form == PLAIN:
        return text
    try:
        return read(form, text).text
    except HostileMarkup as error:
        raise DamagedInput(f"{shown} cannot be parsed: {error}") from error


def _data(name: str, shown: str) -> bytes:
    with reading(shown):
        if name == _STDIN:
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
    if data.startswith(GZIP_MAGIC) and form_of(name, data[:START_BYTES]) not in (ARCHIVE, OPEN):
        data = _unpacked(data, shown)
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{shown} has more than {_MOST_BYTES:,} bytes. Give a part of it.")
    return data


def _unpacked(data: bytes, shown: str) -> bytes:
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{shown} cannot be decompressed: {error}.") from error


def _blot(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    # Without --root the index need not exist: show the blots that a new index would keep.
    parameters = parameters_of(root_of(stores, opts), None, None, None, create=opts.root is None)
    digits = _digits(parameters)
    files = []
    for name in opts.files:
        text = given_text(name)
        rows = [
            as_json(row) | {"blot": f"{row.blot:0{digits}x}", "text": text[row.char_start : row.char_end]}
            for row in blots_of(text, parameters, every=opts.all)
        ]
        files.append({"file": name, "blots": rows})
    return {"has_offsets": opts.offsets, "files": files}


def _digits(parameters: Parameters) -> int:
    return -(-blotter_of(parameters.blotter).bits // 4)


def _blot_lines(result: dict[str, Any]) -> Iterator[str]:
    for given in result["files"]:
        if result["has_offsets"] and len(result["files"]) > 1:
            yield f"{clean(given['file'])}:"
        for row in given["blots"]:
            if result["has_offsets"]:
                tokens = f"tokens {row['token_start']}-{row['token_end']}"
                characters = f"characters {row['char_start']}-{row['char_end']}"
                yield f"{row['blot']}  {tokens}  {characters}  {snippet(row['text'])}"
            else:
                yield row["blot"]


BLOT = PassageVerb(
    _blot,
    _blot_lines,
    [
        Option("files", "FILE", "a text or HTML file; - for standard input", nargs="+"),
        ROOT,
        flag("--offsets", "also show the tokens, characters and words of each blot"),
        flag("--all", "show the blots of all windows, not only those that are kept"),
    ],
)


def _unblot(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    words = {word: _blot_number(word) for word in _words(opts.blots)}
    with IndexSnapshot.open(root_of(stores, opts)) as snapshot:
        digits = _digits(snapshot.parameters)
        found = unblot(snapshot, list(words.values()))
    blots = [
        {"blot": f"{blot:0{digits}x}", **picked(passage, "text documents places")}
        for blot, passage in found.items()
        if opts.all or passage.documents > 1
    ]
    unknown = [word for word, blot in words.items() if blot not in found]
    # "alone" counts the blots that are left out because only one document has them.
    return {"blots": blots, "alone": len(found) - len(blots), "unknown": unknown}


def _words(given: Iterable[str]) -> Iterator[str]:
    for word in given:
        if word == _STDIN:
            lines = (line.decode("utf-8", "backslashreplace") for line in sys.stdin.buffer)
            yield from (line.split()[0] for line in lines if line.strip())
        else:
            yield word


def _blot_number(word: str) -> int:
    try:
        return int(word, 16)
    except ValueError:
        raise UsageError(
            f"{word!r} is not a blot. Give a hexadecimal number as shown by passages blot."
        ) from None


def _unblot_lines(result: dict[str, Any]) -> Iterator[str]:
    for row in result["blots"]:
        words = "" if row["text"] is None else f": {snippet(row['text'])}"
        yield f"{row['blot']}  {counted(row['documents'], 'document')}{words}"
        yield from (f"    {place_text(place)}  {clean(place.doc_id)}" for place in row["places"])
    if alone := result["alone"]:
        them = "it" if alone == 1 else "them"
        yield f"{counted(alone, 'blot is', 'blots are')} in a single document; use --all to show {them}."
    yield from (f"{word} was not found." for word in result["unknown"])


UNBLOT = PassageVerb(
    _unblot,
    _unblot_lines,
    [
        Option(
            "blots",
            "HEX",
            "a blot as shown by passages blot; - reads one per line from standard input",
            nargs="+",
        ),
        ROOT,
        flag("--all", "also show blots of a single document"),
    ],
)


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
    check_output(path, may_exist=opts.force, choices="or replace it with --force")
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


def _extract_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["output"] != "-":
        yield f"{counted(result['passages'], 'passage')} at {counted(result['places'], 'place')}: {result['output']}"
    elif not result["passages"] and result["format"] == "text":
        yield f"No documents of {result['root']} share a passage that matches the options."


EXTRACT = PassageVerb(
    _extract,
    _extract_lines,
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
