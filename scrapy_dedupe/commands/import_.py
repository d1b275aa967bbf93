"""``import [SOURCE…]``: adds archives of other programs or machines to the crawl index."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.importing import ImportOptions, ImportStopped, import_sources
from scrapy_dedupe.crawls.sources import places_of
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.stores.crawl_index import PAYLOAD_MODES, checked_crawl_id

from .bars import Bars
from .figures import counted, number_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from types import FrameType

    from scrapy_dedupe.crawls.importing import ImportResult

    from .stores import CommandStores

HELP = (
    "Import WACZ, WARC and CDXJ files, or the files of a multi-WACZ JSON, into the crawl index. Crawls may then refer to"
    " their records. Without SOURCE, continue an import that was interrupted."
)

_SHOWN: Final = 10
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Failure:
    """A source that was not imported, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import into the index of ``store``.

    ``imported`` and ``known`` name sources. ``skipped`` is the number of lines and records that were skipped, ``faults``
    explains the first of them, ``absent`` names CDXJ files whose WARC files are missing. ``captures`` and ``revisits``
    are the numbers read, ``originals`` the number entered. ``waiting`` is the number of payloads that revisits name and
    that are not in the index. ``claimed`` is the number of sources that other processes are importing. ``missing`` are
    crawls that the manifests do not name, ``removed`` those of them that were purged; ``not_removed`` explains why none
    was purged.
    """

    store: str
    imported: tuple[str, ...]
    known: tuple[str, ...]
    failed: tuple[Failure, ...]
    skipped: int
    faults: tuple[str, ...]
    absent: tuple[str, ...]
    captures: int
    originals: int
    revisits: int
    waiting: int
    claimed: int
    missing: tuple[str, ...]
    removed: tuple[str, ...]
    not_removed: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="*",
        help="a WACZ, WARC, ARC or CDXJ file, a multi-WACZ JSON, a pattern such as 'folder/*.wacz', a folder of WACZ"
        " or WARC files, or a URL",
    )
    parser.add_argument(
        "--crawl-id",
        metavar="ID",
        help="the crawl id of sources whose crawl id is in no manifest (default: the id in the file, or else the file name)",
    )
    parser.add_argument(
        "--payload",
        choices=PAYLOAD_MODES,
        help="whether digests are of stored or decoded payloads (default: as the file or its software states, or else as in the index)",
    )
    parser.add_argument(
        "--allow-outside",
        action="store_true",
        help="allow a manifest to name files outside of its own folder",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare the hash of each file with the manifest, not only its size",
    )
    parser.add_argument(
        "--remove",
        action="store_true",
        help="purge committed crawls that the manifests do not name; their files are kept",
    )
    parser.add_argument(
        "--force", action="store_true", help="with --remove: purge crawls even if others depend on them"
    )


def run(place: CommandStores, opts: argparse.Namespace) -> ImportReport:
    if opts.crawl_id is not None:
        checked_crawl_id(opts.crawl_id)
    if opts.force and not opts.remove:
        raise UsageError("--force requires --remove: it purges crawls even if others depend on them.")
    options = ImportOptions(
        crawl=opts.crawl_id,
        payload=opts.payload,
        new_payload=place.settings.warc.payload,
        allow_outside=opts.allow_outside,
        verify=opts.verify,
        remove=opts.remove,
        force=opts.force,
    )
    # Check all sources before a store is created.
    for source in opts.sources:
        places_of(source)
    url = place.index_url
    with _stoppable() as signals:
        try:
            # Continuing a queue never creates a store.
            with (
                open_index(url, timeout_s=place.timeout_s, create=bool(opts.sources)) as index,
                Bars(opts) as bars,
            ):
                watch = ImportBar(bars, signals)
                done = import_sources(index, opts.sources, options, watch)
                watch.end()
            return _report(place.shown(url), done)
        except ImportStopped as stopped:
            print(f"{opts.prog} import: {stopped}", file=sys.stderr, flush=True)
    # End like a program that does not handle the signal.
    signal.signal(signals[0], signal.SIG_DFL)
    os.kill(os.getpid(), signals[0])
    raise AssertionError("The signal did not end this process.")


def _report(store: str, done: ImportResult) -> ImportReport:
    return ImportReport(
        store=store,
        imported=done.imported,
        known=done.known,
        failed=tuple(Failure(failed.source, failed.reason) for failed in done.failed),
        skipped=done.skipped,
        faults=done.faults,
        absent=done.absent,
        captures=done.captures,
        originals=done.originals,
        revisits=done.revisits,
        waiting=done.waiting,
        claimed=done.claimed,
        missing=done.missing,
        removed=done.removed,
        not_removed=done.not_removed,
    )


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM. A second signal of the same kind takes effect immediately."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        signal.signal(number, before[signal.Signals(number)])

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield signals
    finally:
        for number in _SIGNALS:
            signal.signal(number, before[signal.Signals(number)])


class ImportBar:
    """Shows how many sources of an import are done, and stops the import after a signal."""

    def __init__(self, bars: Bars, signals: list[int]) -> None:
        self._signals = signals
        self._bars = bars
        bars.begin("import", 0, "sources")

    def check(self) -> None:
        if self._signals:
            raise ImportStopped(
                "stopped. The sources imported so far are in the index; import, without SOURCE, continues with the rest."
            )

    def show(self, done: float, total: int) -> None:
        self._bars.reach(done, total)

    def tell(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Complete the bar: the import is done."""
        self._bars.end()


def text(result: ImportReport) -> str:
    lines = [
        f"{counted(len(result.imported), 'source')} imported into {result.store}"
        + (f", {number_text(len(result.known))} known already" if result.known else "")
        + (f", {number_text(len(result.failed))} failed" if result.failed else "")
        + "."
    ]
    if result.imported:
        lines.append(
            f"{counted(result.captures, 'response')}, {number_text(result.revisits)} of them revisits;"
            f" {counted(result.originals, 'original')}."
        )
    if result.waiting:
        lines.append(
            f"The originals of {counted(result.waiting, 'payload')} are not in the index yet. Import or commit the crawls"
            " that contain them."
        )
    if result.claimed:
        lines.append(
            f"{counted(result.claimed, 'source')} of the queue are being imported by another process."
        )
    if result.removed:
        lines.append(f"Removed: {', '.join(result.removed)}.")
    left = [crawl for crawl in result.missing if crawl not in result.removed]
    if left:
        lines.append(f"Not named by a manifest: {_some(left)}. --remove purges them.")
    # Containers are known by file name, other sources by path or URL. The latter are not compared with their present
    # content.
    if any("/" in name for name in result.known):
        lines.append(
            "Known WARC files and CDXJ are not read again. If one has changed, purge its crawl and import it again, or"
            " use check --repair."
        )
    lines += [f"{failed.source}: NOT imported. {failed.reason}" for failed in result.failed]
    lines += result.absent
    lines += result.faults[:_SHOWN]
    if len(result.faults) > _SHOWN:
        lines.append(f"and {number_text(result.skipped - _SHOWN)} more lines and records that were skipped.")
    return "\n".join(lines)


def caveat(result: ImportReport) -> str | None:
    parts = []
    if result.failed:
        parts.append(f"{counted(len(result.failed), 'source')} could not be imported")
    if result.skipped:
        parts.append(f"{counted(result.skipped, 'line or record', 'lines or records')} skipped")
    if result.absent:
        parts.append(f"WARC files that {counted(len(result.absent), 'CDXJ names', 'CDXJ name')} are missing")
    sentences = [f"{'; '.join(parts)}."] if parts else []
    if result.not_removed:
        sentences.append(result.not_removed)
    return " ".join(sentences) or None


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {number_text(more)} more" if more > 0 else "")
