"""``import [SOURCE…]``: adds archives of other programs or machines to the crawl index."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.console import handling_signals
from scrapy_dedupe.commands.options import Option, flag
from scrapy_dedupe.commands.output import as_json, listed, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.importing import ImportOptions, ImportStopped, import_sources
from scrapy_dedupe.crawls.sources import places_of
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.reports.wording import counted, number
from scrapy_dedupe.stores.crawl_index import PAYLOAD_MODES, checked_crawl_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls.importing import ImportResult

_SHOWN: Final = 10


def _import(stores: CommandStores, opts: argparse.Namespace) -> tuple[str, ImportResult]:
    if opts.crawl_id is not None:
        checked_crawl_id(opts.crawl_id)
    if opts.force and not opts.remove:
        raise UsageError("--force requires --remove: it purges crawls even if others depend on them.")
    options = ImportOptions(
        crawl=opts.crawl_id,
        new_payload=stores.settings.warc.payload,
        digest=stores.settings.warc.digest,
        **picked(opts, "payload allow_outside verify remove force"),
    )
    # Check all sources before a store is created.
    for source in opts.sources:
        places_of(source)
    signals: list[int] = []
    try:
        with handling_signals(signals.append):
            return import_into_index(stores, opts, opts.sources, options, signals)
    except ImportStopped:
        # The former handler is installed again and ends the verb.
        signal.raise_signal(signals[0])
        raise


def import_into_index(
    stores: CommandStores,
    opts: argparse.Namespace,
    sources: Sequence[str],
    options: ImportOptions,
    signals: Sequence[int] = (),
) -> tuple[str, ImportResult]:
    """Import the sources into the crawl index; return its URL and the result.

    Raises ImportStopped soon after a signal has been added to *signals*.
    """
    # Continuing a queue never creates a store.
    with stores.open_index(create=bool(sources)) as index, Bars(opts) as bars:
        watch = _ImportWatch(bars, signals)
        with bars.part("import", 0, "sources"):
            done = import_sources(index, sources, options, watch)
    return stores.shown(stores.index_url), done


class _ImportWatch:
    """Shows how many sources of an import are done, and stops the import after a signal."""

    def __init__(self, bars: Bars, signals: Sequence[int]) -> None:
        self._signals = signals
        self.show = bars.reach
        self.tell = bars.tell

    def check(self) -> None:
        if self._signals:
            raise ImportStopped("stopped by a signal")


def _lines(result: tuple[str, ImportResult]) -> Iterator[str]:
    store, done = result
    yield (
        f"{counted(len(done.imported), 'source')} imported into {store}"
        + (f", {number(len(done.known))} known already" if done.known else "")
        + (f", {number(len(done.failed))} failed" if done.failed else "")
        + "."
    )
    if done.imported:
        yield (
            f"{counted(done.captures, 'response')}, {number(done.revisits)} of them revisits;"
            f" {counted(done.originals, 'original')}."
        )
    yield from notes_on_digests(done)
    if done.waiting:
        yield (
            f"The originals of {counted(done.waiting, 'payload')} are not in the index yet. Import or commit the crawls"
            " that contain them."
        )
    if done.claimed:
        yield f"{counted(done.claimed, 'source')} of the queue are being imported by another process."
    if done.removed:
        yield f"Removed: {', '.join(done.removed)}."
    if left := [crawl for crawl in done.missing if crawl not in done.removed]:
        yield f"Not named by a manifest: {listed(left, _SHOWN)}. --remove purges them."
    # Containers are known by file name, other sources by path or URL. The latter are not compared with their present
    # content.
    if any("/" in name for name in done.known):
        yield (
            "Known WARC files and CDXJ are not read again. If one has changed, purge its crawl and import it again, or"
            " use check --repair."
        )
    yield from (f"{failed.source}: NOT imported. {failed.reason}" for failed in done.failed)
    yield from done.absent
    yield from done.faults[:_SHOWN]
    if len(done.faults) > _SHOWN:
        yield f"and {number(done.skipped - _SHOWN)} more lines and records that were skipped."


def notes_on_digests(done: ImportResult) -> Iterator[str]:
    """Sentences about the imported originals that crawls with the present settings cannot find."""
    for algorithm, count in sorted(done.other_digests.items()):
        advice = (
            "No value of DEDUPE_WARC_DIGEST finds them."
            if algorithm == "other"
            else f'Set DEDUPE_WARC_DIGEST = "{algorithm}" to find them.'
        )
        yield (
            f"Originals with {algorithm} digests: {number(count)}. Crawls with the present settings do not find them, and"
            f" store their payloads again. {advice}"
        )


def _caveats(result: tuple[str, ImportResult]) -> Iterator[str]:
    _, done = result
    clauses = []
    if done.failed:
        clauses.append(f"{counted(len(done.failed), 'source')} could not be imported")
    if done.skipped:
        clauses.append(f"{counted(done.skipped, 'line or record', 'lines or records')} skipped")
    if done.absent:
        clauses.append(f"WARC files that {counted(len(done.absent), 'CDXJ names', 'CDXJ name')} are missing")
    sentences = ["; ".join(clauses)] if clauses else []
    if done.not_removed:
        sentences.append(done.not_removed)
    if sentences:
        yield ". ".join(sentences)


IMPORT = Verb(
    _import,
    _lines,
    [
        Option(
            "sources",
            "SOURCE",
            "a WACZ, WARC, ARC or CDXJ file, a multi-WACZ JSON, a folder, a pattern, or a URL",
            nargs="*",
        ),
        Option(
            "--crawl-id",
            "ID",
            "the crawl of sources that no manifest assigns (default: that in the file, or its name)",
        ),
        Option(
            "--payload",
            None,
            "what digests are of, if the sources do not state it (default: as in the index)",
            choices=PAYLOAD_MODES,
        ),
        flag("--allow-outside", "allow a manifest to name files outside of its own folder"),
        flag("--verify", "compare the hash of each file with the manifest, not only its size"),
        flag("--remove", "purge committed crawls that the manifests do not name; their files are kept"),
        flag("--force", "with --remove: purge crawls even if others depend on them"),
    ],
    json=lambda result: {"store": result[0], **as_json(result[1])},
    caveats=_caveats,
    stopped=lambda opts: (
        "the sources imported so far are in the index, and import without SOURCE continues with the rest"
    ),
)
