"""Adds the records of an imported crawl again, from its files instead of its sources.

The values of a record are the same as in an import (see :func:`.imported_records.imported_record`); responses with status 200
take precedence as originals. A record without a payload digest keeps the digest of its entry, which came from an index
of its source. All revisits wait for :meth:`~scrapy_dedupe.crawls.index.CrawlIndex.resolve`, which knows the originals
of all files and of the other crawls.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.stores.base import Counts, Original, UrlCapture, Waiting
from scrapy_dedupe.tasks.progress import NO_PROGRESS, Reached, part
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import is_unmodified

from .comparing import differences
from .imported_records import counted_record
from .places import WACZ_SUFFIX, size_of, sizes_of
from .rebuilding import CONSERVES_NOTHING, container_number
from .values import EMPTY_PAYLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .imported_records import ImportedRecord
    from .index import CrawlIndex
    from .sorted_entries import SortedEntries

logger = logging.getLogger(__name__)

_BATCH = 500


def enter_imported_files(
    index: CrawlIndex,
    crawl: str,
    files: Mapping[str, ReadableFile],
    *,
    in_place_of: str,
    known: SortedEntries,
    watch: Progress = NO_PROGRESS,
) -> Counts:
    """Add the records of *files*, each under its name, to an uncommitted crawl; return their counts.

    The containers, and the needs from the metadata of sources, are those of the crawl *in_place_of*, whose entries
    *known* holds.
    """
    containers = [str(container.get("filename", "")) for container in index.containers(in_place_of)]
    index.add(crawl, [], needs=[need for need in index.needs(in_place_of) if need.crawl != in_place_of])
    total = Counts()
    has_others = False
    with part(watch, in_place_of, sizes_of(files.values())):
        for name, file in files.items():
            reached = Reached(watch)
            index.add_file(crawl, name)
            batch = _EntryBatch(index, crawl, name, container_number(name, containers), known)
            for record, method in _exchanges(file):
                reached(record.offset)
                has_others |= batch.take(record, method)
            size = 0 if f"{WACZ_SUFFIX}/" in name else size_of(file)
            batch.counts += Counts(total_crawl_size=size)
            total += batch.end()
    for name, file in files.items() if has_others else ():
        batch = _EntryBatch(index, crawl, name, container_number(name, containers), known)
        for record, method in _exchanges(file):
            if record.http_status != 200:
                batch.take_original(record, method)
        batch.end()
    return total


class _EntryBatch:
    """The index entries for the records of a file, added in batches."""

    def __init__(
        self, index: CrawlIndex, crawl: str, file: str, wacz_index: int, known: SortedEntries
    ) -> None:
        self.counts = Counts()
        self._index = index
        self._crawl = crawl
        self._file = file
        self._wacz_index = wacz_index
        self._known = known
        self._entered = Counts()
        self._originals: list[Original] = []
        self._urls: list[UrlCapture] = []
        self._waiting: list[Waiting] = []

    def take(self, record: StoredRecord, method: str) -> bool:
        """Process an exchange; return True if it may be an original with another status than 200."""
        taken = counted_record(record, method)
        if taken is None:
            return False
        is_revisit, digest = record.type == "revisit", taken.digest
        self.counts += Counts(total_urls=1, dupe_urls=int(is_revisit))
        if digest is not None and taken.validators:
            self._urls.append(UrlCapture(taken.url, digest, taken.date, taken.validators))
        if is_revisit:
            if digest is not None and digest not in EMPTY_PAYLOADS:
                is_copy = not is_unmodified(record)
                self._waiting.append(Waiting(digest, record.length if is_copy else CONSERVES_NOTHING))
        elif record.http_status != 200:
            return self._digest_of(record, taken) is not None
        else:
            self._take_original(record, taken)
        if len(self._urls) + len(self._waiting) >= _BATCH:
            self.end()
        return False

    def take_original(self, record: StoredRecord, method: str) -> None:
        """Process a response, if other records may refer to its payload."""
        taken = counted_record(record, method)
        if taken is not None:
            self._take_original(record, taken)

    def _take_original(self, record: StoredRecord, taken: ImportedRecord) -> None:
        named = self._digest_of(record, taken)
        if named is None:
            return
        digest, form = named
        status = None if record.http_status == 200 else record.http_status
        original = Original(
            digest=digest,
            crawl=self._crawl,
            date=taken.date,
            url=taken.url,
            size=record.length,
            wacz_index=self._wacz_index,
            record_id=None if form or status else record.id,
            file=self._file,
            offset=record.offset,
            status=status,
            form=form,
        )
        self._originals.append(original)
        if len(self._originals) >= _BATCH:
            self.end()

    def end(self) -> Counts:
        """Add the current batch; return the counts of everything that was added."""
        self._index.add(self._crawl, self._originals, self.counts, self._urls, (), self._waiting)
        self._entered += self.counts
        self.counts = Counts()
        self._originals, self._urls, self._waiting = [], [], []
        return self._entered

    def _digest_of(self, record: StoredRecord, taken: ImportedRecord) -> tuple[str, str] | None:
        """The payload digest of a response that may be an original, and its form; else None."""
        if not taken.is_original:
            return None
        if taken.digest is not None:
            return taken.digest, taken.form
        entries = self._known.at(self._file, record.offset)
        return next(((entry.digest, entry.form) for entry in entries if not differences(entry, record)), None)


def _exchanges(file: ReadableFile) -> Iterator[tuple[StoredRecord, str]]:
    try:
        yield from exchanges(read_records(file))
    except DamagedInput as error:
        logger.warning("%s Its other records are added to the index.", error)
