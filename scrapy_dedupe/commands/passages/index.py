"""``passages index PATH…``: add documents to the index."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import JOBS, Option, flag
from scrapy_dedupe.commands.output import first, picked
from scrapy_dedupe.content.canonical import canonical, kind_of
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.live.responses import decoded_page
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.preparation import host_named
from scrapy_dedupe.passages.sources import DocumentSources, SourceOptions
from scrapy_dedupe.passages.text_reading import (
    COUNTED_REASONS,
    REPORTED_REASONS,
    ReadingOptions,
    Skipped,
    batches,
    prepare_batch,
    weight_of,
)
from scrapy_dedupe.reports.wording import clean, counted, number, size
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.jobs import run_in_order

from . import ROOT, PassageVerb, not_merged, root_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

TOKENISERS: Final = ("words", "cjk", "code")
BLOTTERS: Final = ("rolling", "xor", "interleaved")
_MAX_BYTES: Final = 64_000_000
# Bytes that have been read but not prepared: a few batches for each of many processes, or one large document.
_MOST_AHEAD: Final = 64 << 20


def _index(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    if opts.host is not None:
        opts.host = host_named(opts.host)
    begin = time.monotonic()
    root = root_of(stores, opts)
    faults, skipped = Faults(keep_going=opts.keep_going), Skipped()
    options = SourceOptions(kind_of, without=root, **picked(opts, "max_bytes url_field text_field host base"))
    standard_input = getattr(sys.stdin, "buffer", None)
    sources = DocumentSources(
        opts.paths, options, faults=faults, skipped=skipped, standard_input=standard_input
    )
    reading = ReadingOptions(canonical, (HostileMarkup,), opts.max_bytes, decoded_page)
    text_bytes = 0
    with (
        Bars(opts) as bars,
        PassageIndex(
            root,
            tokeniser=opts.tokeniser,
            blotter=_blotter(opts),
            store_text=opts.store_text,
            command="passages index",
        ) as index,
        index.writing(atomic=not opts.keep_going),
    ):
        index.watch = bars
        _refuse_filled(index, root, is_appending=opts.append)
        prepared = run_in_order(
            partial(prepare_batch, reading=reading, parameters=index.parameters),
            batches(sources.documents()),
            opts.jobs,
            weight_of,
            _MOST_AHEAD,
        )
        with bars.part("Indexing", 0), closing(prepared) as batches_taken:
            for taken in batches_taken:
                for piece in taken.prepared:
                    index.add_prepared(piece)
                skipped.merge(taken.skipped)
                text_bytes += taken.text_bytes
                bars.advance(taken.read_bytes)
    opts.is_written = True
    seconds = time.monotonic() - begin
    return {
        "root": str(root),
        **picked(index.added, "documents replaced unchanged texts copies tokens posts"),
        "text_bytes": text_bytes,
        "seconds": round(seconds, 3),
        "bytes_per_s": round(text_bytes / seconds) if seconds else 0,
        "undecodable": skipped.replaced,
        "skipped": skipped.counts,
        "loud": skipped.loud,
        "to_name": skipped.reported.count,
        "named": skipped.reported.first,
        "fault_count": faults.count,
        "faults": faults.first,
        # The reason why small segments could not be merged. The documents are in the index nevertheless.
        "not_merged": not_merged(index),
    }


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


def _stopped(opts: argparse.Namespace) -> str:
    if getattr(opts, "is_written", False):
        return "all documents are in the index"
    if opts.keep_going:
        return "documents that had been written are in the index, and --append adds the others"
    return "the index was not changed"


def _lines(result: dict[str, Any]) -> Iterator[str]:
    yield from first([clean(str(fault)) for fault in result["faults"]], result["fault_count"])
    yield from first([clean(str(fault)) for fault in result["named"]], result["to_name"])
    replaced = f", {number(result['replaced'])} replacing an older text" if result["replaced"] else ""
    copies = f", {number(result['copies'])} with a text that was already stored" if result["copies"] else ""
    unchanged = f"; {number(result['unchanged'])} unchanged" if result["unchanged"] else ""
    yield f"{result['root']}: {counted(result['documents'], 'document')} added{replaced}{copies}{unchanged}."
    yield (
        f"{size(result['text_bytes'])} of text, {number(result['tokens'])} tokens and {number(result['posts'])} posts in"
        f" {result['seconds']:.1f} s: {size(result['bytes_per_s'])}/s."
    )
    if result["skipped"]:
        words = COUNTED_REASONS | REPORTED_REASONS
        counts = (f"{number(count)} {words[reason]}" for reason, count in sorted(result["skipped"].items()))
        yield f"Skipped: {', '.join(counts)}."
    if result["undecodable"]:
        yield (
            f"{counted(result['undecodable'], 'document')} had bytes that are invalid in the encoding; they were replaced"
            " by U+FFFD."
        )


def _caveats(result: dict[str, Any]) -> Iterator[str]:
    if result["fault_count"]:
        yield f"{counted(result['fault_count'], 'fault')} in the input skipped"
    if opened := result["skipped"].get("open", 0):
        yield f"{counted(opened, 'archive')} of a running or killed crawl skipped"
    if others := result["loud"] - opened:
        yield f"{counted(others, 'document')} left out"
    if result["undecodable"]:
        yield f"{counted(result['undecodable'], 'document')} with characters replaced"
    if result["not_merged"] is not None:
        yield f"the documents were added, but {result['not_merged']}"


INDEX = PassageVerb(
    _index,
    _lines,
    [
        Option(
            "paths",
            "PATH",
            "a file, a folder, a pattern, the URL of a WARC file, or - for JSON lines",
            nargs="+",
        ),
        ROOT,
        flag("--append", "add to an index that already has documents"),
        Option(
            "--tokeniser", None, "how to split texts (default: words, or as the index)", choices=TOKENISERS
        ),
        Option(
            "--blotter",
            None,
            "the kind of fingerprints (default: rolling, or as the index)",
            choices=BLOTTERS,
        ),
        Option("--k", "N", "the number of tokens of a fingerprint (rolling: 8)", type=int),
        Option(
            "--window",
            "N",
            "keep one of N fingerprints (8); runs of k + N - 1 tokens are always found",
            type=int,
        ),
        Option(
            "--no-text",
            None,
            "store no texts: passages have only positions, and are not compared word by word",
            dest="store_text",
            action="store_false",
            default=None,
        ),
        JOBS,
        Option(
            "--url-field", "NAME", "the field of JSON lines with the id (default: %(default)s)", default="url"
        ),
        Option(
            "--text-field", "NAME", "the field of JSON lines with the text (default: text)", default="text"
        ),
        Option("--host", "NAME", "the host of all documents (default: that of an id that is a URL)"),
        Option(
            "--base", "DIR", "make the ids of files relative to this folder (default: as given)", type=Path
        ),
        Option(
            "--max-bytes", "N", "skip larger documents (default: %(default)s)", least=1, default=_MAX_BYTES
        ),
        flag(
            "--keep-going",
            "skip damaged input and continue (exit code 4); keep documents that have been written if the command fails",
        ),
    ],
    caveats=_caveats,
    stopped=_stopped,
)
