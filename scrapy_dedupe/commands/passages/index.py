"""``passages index PATH…``: add documents to the index."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted, number_text, size_text
from scrapy_dedupe.errors import StoreRefused, UsageError

from .root_folder import add_root, not_merged, root_of
from .snippets import printable

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages import PassageIndex
    from scrapy_dedupe.passages.sources import DocumentSources
    from scrapy_dedupe.passages.text_reading import Skipped
    from scrapy_dedupe.tasks.faults import Faults

HELP = (
    "Add documents to the index from folders and files of text or HTML, WARC, ARC and WACZ files, and JSON lines. The"
    " canonical text of HTML and XML is indexed; other text is indexed unchanged. A document replaces an indexed document"
    " with the same id. If the command is stopped by damaged input or Ctrl-C, the index is not changed; with --keep-going,"
    " documents that have been written remain."
)

TOKENISERS: Final = ("words", "cjk", "code")
BLOTTERS: Final = ("rolling", "xor", "interleaved")
_MAX_BYTES: Final = 64_000_000
_SHOWN: Final = 20
# Bytes that have been read but not prepared: a few batches for each of many processes, or one large document.
_MOST_AHEAD: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class IndexResult:
    """The result of indexing.

    *documents* were added. *replaced* counts the texts that were replaced by another one, including texts of this run;
    *unchanged* counts documents that had the same text before. *texts* were stored; *copies* counts documents whose text
    was already stored. *undecodable* counts documents with bytes that were replaced by U+FFFD.

    *skipped* counts skipped documents by reason. *loud* of them are reported as problems. *named* lists at most a thousand
    of *to_name* skipped documents, *faults* at most a thousand of *fault_count* faults.

    *text_bytes* is the size of the texts that were read, as UTF-8; *bytes_per_s* is the speed in these bytes.
    *not_merged* is the reason why small segments could not be merged. The documents are in the index nevertheless.
    """

    root: str
    documents: int
    replaced: int
    unchanged: int
    texts: int
    copies: int
    tokens: int
    posts: int
    text_bytes: int
    seconds: float
    bytes_per_s: int
    undecodable: int
    skipped: dict[str, int]
    loud: int
    to_name: int
    named: list[dict[str, str]]
    fault_count: int
    faults: list[dict[str, str]]
    not_merged: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a file, a folder (with subfolders), a pattern such as 'folder/*.warc.gz', the URL of a WARC file, or - for"
        " JSON lines on standard input",
    )
    add_root(parser)
    parser.add_argument("--append", action="store_true", help="add to an index that already has documents")
    parser.add_argument(
        "--tokeniser",
        choices=TOKENISERS,
        help="how texts are split into tokens (default: words, or that of the index)",
    )
    parser.add_argument(
        "--blotter",
        choices=BLOTTERS,
        help="the kind of fingerprints (default: rolling, or that of the index)",
    )
    parser.add_argument(
        "--k", metavar="N", type=int, help="the number of tokens of a fingerprint (rolling: 8)"
    )
    parser.add_argument(
        "--window",
        metavar="N",
        type=int,
        help="keep one of N consecutive fingerprints (8); shared runs of k + window - 1 tokens are always found",
    )
    parser.add_argument(
        "--no-text",
        dest="store_text",
        action="store_false",
        default=None,
        help="store no texts: passages are then reported by their positions only, and not compared word by word",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="the number of processes; 0 for all cores (default: %(default)s)",
    )
    parser.add_argument(
        "--url-field",
        metavar="NAME",
        default="url",
        help="the field of JSON lines with the id (default: %(default)s)",
    )
    parser.add_argument(
        "--text-field",
        metavar="NAME",
        default="text",
        help="the field of JSON lines with the text (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        help="the host of all documents (default: the host of an id that is a URL; none for other ids)",
    )
    parser.add_argument(
        "--base",
        metavar="DIR",
        type=Path,
        help="make the ids of files relative to this folder (default: paths as given)",
    )
    parser.add_argument(
        "--max-bytes",
        metavar="N",
        type=int,
        default=_MAX_BYTES,
        help="skip larger documents (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="skip damaged input and continue (exit code 4); keep documents that have been written if the command fails",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> IndexResult:
    # Every command loads this module, so import expensive modules only when they are used.
    from scrapy_dedupe.content.canonical import canonical
    from scrapy_dedupe.content.markup import HostileMarkup
    from scrapy_dedupe.live.content.stored_pages import decoded_page
    from scrapy_dedupe.passages import PassageIndex
    from scrapy_dedupe.passages.preparation import host_named
    from scrapy_dedupe.passages.text_reading import ReadingOptions, Skipped, batches, prepare_batch, weight_of
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.jobs import run_in_order

    for option in ("max_bytes", "jobs"):
        least = 0 if option == "jobs" else 1
        if getattr(opts, option) < least:
            name = f"--{option.replace('_', '-')}"
            raise UsageError(f"{name} is {getattr(opts, option)}. Give a number of at least {least}.")
    if opts.host is not None:
        opts.host = host_named(opts.host)
    begin = time.monotonic()
    root = root_of(place, opts)
    faults, skipped = Faults(keep_going=opts.keep_going), Skipped()
    sources = _sources(opts, root, faults, skipped)
    reading = ReadingOptions(canonical, (HostileMarkup,), opts.max_bytes, decoded_page)
    text_bytes = 0
    with (
        Bars(opts) as watch,
        PassageIndex(
            root,
            tokeniser=opts.tokeniser,
            blotter=_blotter(opts),
            store_text=opts.store_text,
            command="passages index",
        ) as index,
        index.writing(atomic=not opts.keep_going),
    ):
        index.watch = watch
        _refuse_filled(index, root, is_appending=opts.append)
        watch.begin("Indexing", 0)
        prepared = run_in_order(
            partial(prepare_batch, reading=reading, parameters=index.parameters),
            batches(sources.documents()),
            opts.jobs,
            weight_of,
            _MOST_AHEAD,
        )
        with closing(prepared) as batches_taken:
            for taken in batches_taken:
                for piece in taken.prepared:
                    index.add_prepared(piece)
                skipped.merge(taken.skipped)
                text_bytes += taken.text_bytes
                watch.advance(taken.read_bytes)
        watch.end()
    opts.is_written = True
    return _result(root, index, skipped, faults, text_bytes, time.monotonic() - begin)


def _sources(opts: argparse.Namespace, root: Path, faults: Faults, skipped: Skipped) -> DocumentSources:
    from scrapy_dedupe.content.canonical import kind_of
    from scrapy_dedupe.crawls.exchanges import exchanges
    from scrapy_dedupe.passages.archived_pages import PageRules
    from scrapy_dedupe.passages.sources import DocumentSources, LineFields, SourceOptions

    options = SourceOptions(
        PageRules(kind_of, exchanges),
        LineFields(opts.url_field, opts.text_field),
        opts.max_bytes,
        host=opts.host,
        base=opts.base,
        without=root,
    )
    return DocumentSources(
        opts.paths, options, faults=faults, skipped=skipped, standard_input=getattr(sys.stdin, "buffer", None)
    )


def _blotter(opts: argparse.Namespace) -> str | dict[str, Any] | None:
    given = {name: getattr(opts, name) for name in ("k", "window") if getattr(opts, name) is not None}
    return {"name": opts.blotter or "rolling", **given} if given else opts.blotter


def _refuse_filled(index: PassageIndex, root: Path, *, is_appending: bool) -> None:
    # Check while the lock is held: another process may have created the index meanwhile.
    if not is_appending and (count := len(index)):
        raise StoreRefused(
            f"The index {root} already has {counted(count, 'document')}. Add to it with --append, or name another folder"
            " with --root."
        )


def _result(
    root: Path, index: PassageIndex, skipped: Skipped, faults: Faults, text_bytes: int, seconds: float
) -> IndexResult:
    added = index.added
    return IndexResult(
        root=str(root),
        documents=added.documents,
        replaced=added.replaced,
        unchanged=added.unchanged,
        texts=added.texts,
        copies=added.copies,
        tokens=added.tokens,
        posts=added.posts,
        text_bytes=text_bytes,
        seconds=round(seconds, 3),
        bytes_per_s=round(text_bytes / seconds) if seconds else 0,
        undecodable=skipped.replaced,
        skipped=skipped.counts,
        loud=skipped.loud,
        to_name=skipped.to_name,
        named=[{"place": fault.place, "reason": fault.reason} for fault in skipped.named],
        fault_count=faults.count,
        faults=[{"place": fault.place, "reason": fault.reason} for fault in faults.first],
        not_merged=not_merged(index),
    )


def stopped(opts: argparse.Namespace) -> str:
    if getattr(opts, "is_written", False):
        return "all documents are in the index"
    if opts.keep_going:
        return "documents that had been written are in the index, and --append adds the others"
    return "the index was not changed"


def text(result: IndexResult) -> str:
    from scrapy_dedupe.passages.text_reading import COUNTED_REASONS, REPORTED_REASONS

    lines = []
    for count, found in (
        (result.fault_count, result.faults),
        (result.to_name, result.named),
    ):
        lines += [printable(f"{fault['place']}: {fault['reason']}") for fault in found[:_SHOWN]]
        if count > _SHOWN:
            lines.append(f"... and {number_text(count - _SHOWN)} more; --json lists a thousand.")
    replaced = f", {number_text(result.replaced)} replacing an older text" if result.replaced else ""
    unchanged = f"; {number_text(result.unchanged)} unchanged" if result.unchanged else ""
    copies = f", {number_text(result.copies)} with a text that was already stored" if result.copies else ""
    lines.append(
        f"{result.root}: {counted(result.documents, 'document')} added{replaced}{copies}{unchanged}."
    )
    lines.append(
        f"{size_text(result.text_bytes)} of text, {number_text(result.tokens)} tokens and {number_text(result.posts)} posts in"
        f" {result.seconds:.1f} s: {size_text(result.bytes_per_s)}/s."
    )
    words = COUNTED_REASONS | REPORTED_REASONS
    if result.skipped:
        counts = (f"{number_text(count)} {words[reason]}" for reason, count in sorted(result.skipped.items()))
        lines.append(f"Skipped: {', '.join(counts)}.")
    if result.undecodable:
        lines.append(
            f"{counted(result.undecodable, 'document')} had bytes that are invalid in the encoding; they were replaced by"
            " U+FFFD."
        )
    return "\n".join(lines)


def caveat(result: IndexResult) -> str | None:
    parts = []
    if result.fault_count:
        parts.append(f"{counted(result.fault_count, 'fault')} in the input skipped")
    opened = result.skipped.get("open", 0)
    if opened:
        parts.append(f"{counted(opened, 'archive')} of a running or killed crawl skipped")
    if loud := result.loud - opened:
        parts.append(f"{counted(loud, 'document')} left out")
    if result.undecodable:
        parts.append(f"{counted(result.undecodable, 'document')} with characters replaced")
    if result.not_merged is not None:
        parts.append(f"the documents were added, but {result.not_merged}")
    return f"{'; '.join(parts)}." if parts else None
