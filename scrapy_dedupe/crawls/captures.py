"""The records of a crawl with the responses of given URLs.

The index knows payloads, not URLs, so all WARC files of the crawl are read: the files that the index names, at their
current locations, and the files in the folder whose warcinfo names the crawl.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.tasks.progress import NO_PROGRESS, Reached
from scrapy_dedupe.warc.capture import target_uri
from scrapy_dedupe.warc.files import warc_files
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import CaptureTable, reference_of

from .crawl_files import crawl_of, named_files
from .places import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .index import CrawlIndex


class CrawlArchive:
    """The WARC files of one crawl; ``paths`` are the existing ones, including those in its WACZ.

    ``on_damage`` is called for every damaged place that is skipped. Raises
    :class:`~scrapy_dedupe.errors.StoreError`.
    """

    def __init__(
        self, index: CrawlIndex, crawl: str, folder: Path, on_damage: Callable[[Damage], None]
    ) -> None:
        self._index = index
        self._crawl = crawl
        self._folder = folder
        self._on_damage = on_damage
        named = (self._present(name) for name in named_files(index, crawl))
        found = {str(file): file for file in named if file is not None}
        for path in warc_files(folder.absolute(), unfinished=True):
            if str(path) not in found and crawl_of(path) == crawl:
                found[str(path)] = path
        self.paths: list[ReadableFile] = list(found.values())
        self._captures: CaptureTable | None = None

    def exchanges(self, urls: Collection[str], watch: Progress = NO_PROGRESS) -> Iterator[StoredRecord]:
        """The ``response`` and ``revisit`` records of *urls*, in the order in which they were written."""
        wanted = {target_uri(url) for url in urls if url.startswith(("http://", "https://"))}
        if not wanted:
            return
        for path in self.paths:
            reached = Reached(watch)
            for record in read_records(path, on_damage=self._on_damage):
                reached(record.offset)
                if record.type in ("response", "revisit") and record.target_uri in wanted:
                    yield record

    def original(self, revisit: StoredRecord) -> StoredRecord | None:
        """The record that a revisit refers to; None if it is not where the index says, or in none of the files."""
        digest = revisit.payload_digest
        entry = None if digest is None else self._index.find(self._crawl, [digest.value])[0]
        try:
            if entry is not None:
                return self._indexed(entry, revisit)
            # The index knows originals only by their digests.
            if self._captures is None:
                self._captures = CaptureTable()
                for path in self.paths:
                    for record in read_records(path, on_damage=lambda damage: None):
                        self._captures.add(record)
            found = self._captures.original(reference_of(revisit))
            return None if found is None else self._captures.record_of(found)
        except (DedupeError, OSError):
            return None

    def close(self) -> None:
        """Delete the temporary table of captures."""
        if self._captures is not None:
            self._captures.close()

    def _indexed(self, entry: Original, revisit: StoredRecord) -> StoredRecord | None:
        path = None if entry.file is None else self._present(entry.file)
        if path is None or entry.offset is None:
            return None
        record = read_record(path, entry.offset)
        is_it = record.type == "response" and record.payload_digest == revisit.payload_digest
        return record if is_it else None

    def _present(self, name: str) -> ReadableFile | None:
        found = readable(name)
        return readable(str(self._folder.absolute() / Path(name).name)) if found is None else found
