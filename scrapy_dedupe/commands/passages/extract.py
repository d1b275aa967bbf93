"""``passages extract``: list the passages that several documents share, as text, JSON lines or CSV."""

from __future__ import annotations

import io
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.passages.extraction import extract
from scrapy_dedupe.tasks.state import writing

from .given_texts import given_text
from .like import add_exclusions
from .passage_output import WRITERS
from .root_folder import add_root, opened, root_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "List the passages that several documents share, sorted by the number of tokens that storing each once would save."


@dataclass(frozen=True, slots=True)
class ExtractResult:
    """The numbers of *passages* and *places* written to *output* ("-" is standard output), and the *format*."""

    root: str
    output: str
    format: str
    passages: int
    places: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_root(parser)
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE", help="the file to write (default: standard output)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--format",
        choices=tuple(WRITERS),
        default="text",
        help="text; jsonl: one JSON object per passage; csv: one line per place (default: text)",
    )
    parser.add_argument(
        "--min-docs",
        type=int,
        default=2,
        metavar="N",
        help="the minimum number of documents with a passage (default: 2)",
    )
    parser.add_argument(
        "--max-docs", type=int, metavar="N", help="the maximum number of documents with a passage"
    )
    parser.add_argument(
        "--min-tokens",
        type=int,
        metavar="N",
        help="the minimum length of a passage in tokens (default: the length that the index guarantees to find, which is 15"
        " unless --k or --window was given; without texts the length of one blot, which is 8 unless --k was given)",
    )
    parser.add_argument(
        "--sigma",
        type=float,
        metavar="X",
        help="ignore blots in fewer documents than the mean plus X standard deviations over all blots, rounded to whole"
        " documents",
    )
    parser.add_argument("--top", type=int, metavar="N", help="list only the best N passages (default: all)")
    parser.add_argument("--nested", action="store_true", help="include passages that better passages cover")
    parser.add_argument(
        "--skip-copies",
        action="store_true",
        help="count documents with the same text once, under the first name",
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="the folder for temporary files of several times the size of the texts (default: TMPDIR)",
    )
    add_exclusions(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> ExtractResult:
    if opts.output == "-" and opts.json:
        raise UsageError(
            "The passages are written to standard output, so --json needs -o FILE. To write the passages as JSON, use"
            " --format jsonl."
        )
    root = root_of(place, opts)
    taboo = [given_text(name) for name in opts.taboo]
    passages = places = 0
    with opened(root) as snapshot, Bars(opts) as bars, _output(opts) as file:
        writer = WRITERS[opts.format](file)
        for passage in extract(
            snapshot,
            min_docs=opts.min_docs,
            max_docs=opts.max_docs,
            min_tokens=opts.min_tokens,
            sigma=opts.sigma,
            top=opts.top,
            taboo=taboo,
            boilerplate_share=None if opts.keep_boilerplate else opts.boilerplate_share,
            nested=opts.nested,
            skip_copies=opts.skip_copies,
            work=_work(opts),
            watch=bars,
        ):
            writer.write(passage)
            passages += 1
            places += len(passage.places)
    return ExtractResult(str(root), opts.output, opts.format, passages, places)


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


def text(result: ExtractResult) -> str:
    if result.output == "-" and result.format != "text":
        return ""  # the output is read by a program
    if result.output == "-":
        return (
            ""
            if result.passages
            else f"No documents of {result.root} share a passage that matches the options."
        )
    return f"{counted(result.passages, 'passage')} at {counted(result.places, 'place')}: {result.output}"
