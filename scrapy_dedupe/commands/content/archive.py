"""Texts that the content layer has judged, read again from the archive.

A store keeps no texts, only their digests. So a record of the URL in the crawl's WARC files is the one that was judged
if its canonical text has that digest, whichever canonicaliser made it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.content.canonical import CANONICALIZERS, read, version
from scrapy_dedupe.content.judge import text_digest
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.crawls.captures import CrawlArchive
from scrapy_dedupe.crawls.places import sizes_of
from scrapy_dedupe.errors import DamagedInput, StoreError
from scrapy_dedupe.live.content.stored_pages import PageReader
from scrapy_dedupe.tasks.progress import part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord


@dataclass(frozen=True, slots=True)
class Wanted:
    """The first capture of a text."""

    digest: bytes
    url: str
    crawl: str


@dataclass(frozen=True, slots=True)
class ArchivedText:
    """A canonical text, and the Content-Type of its page without parameters."""

    text: str
    mime: str


class Archive:
    """The WARC files of the crawls that the index knows, and those in a folder.

    ``notes`` are sentences about files that could not be read in full.
    """

    def __init__(self, place: CommandStores, folder: Path | None, watch: Progress) -> None:
        self._place = place
        self._watch = watch
        self._folder = folder or place.settings.warc.folder
        self._reader = PageReader(place.scrapy_settings)
        self.notes: list[str] = []

    def find(self, wanted: Iterable[Wanted]) -> dict[Wanted, ArchivedText | str]:
        """Each text, or the sentence that says why the archive has not got it. A crawl's files are read once."""
        by_crawl: dict[str, set[Wanted]] = {}
        for item in wanted:
            by_crawl.setdefault(item.crawl, set()).add(item)
        if not by_crawl:
            return {}
        found: dict[Wanted, ArchivedText | str] = {}
        try:
            index = self._place.open_index()
        except StoreError as error:
            sentence = f"The archive cannot be searched: {error}"
            return {item: sentence for items in by_crawl.values() for item in items}
        with index:
            for crawl, items in by_crawl.items():
                found |= self._find_in(index, crawl, items)
        return found

    def _find_in(
        self, index: CrawlIndex, crawl: str, wanted: set[Wanted]
    ) -> dict[Wanted, ArchivedText | str]:
        found: dict[Wanted, ArchivedText | str] = {}
        archive = CrawlArchive(index, crawl, self._folder, lambda damage: self._note(f"Damaged: {damage}."))
        if not archive.paths:
            sentence = f"The archive has no WARC files of the crawl {crawl}, neither in {self._folder} nor in its index."
            return dict.fromkeys(wanted, sentence)
        lacking = ""
        try:
            with closing(archive), part(self._watch, crawl, sizes_of(archive.paths)):
                for record in archive.exchanges({item.url for item in wanted}, self._watch):
                    source = record if record.type == "response" else archive.original(record)
                    if source is None:
                        lacking = " A revisit record of it refers to one that is not there."
                        continue
                    for digest, text in self._texts(record, source):
                        found |= {
                            item: text for item in wanted if item.digest == digest and item not in found
                        }
                    if len(found) == len(wanted):
                        break
        except OSError as error:
            lacking = f" A file cannot be read: {error.strerror}."
        files = "file" if len(archive.paths) == 1 else f"{len(archive.paths)} files"
        for item in wanted - found.keys():
            found[item] = (
                f"The archive has not got this text of {item.url}: no record in the WARC {files} of the crawl"
                f" {crawl} has it.{lacking}"
            )
        return found

    def _texts(self, record: StoredRecord, source: StoredRecord) -> Iterator[tuple[bytes, ArchivedText]]:
        """The canonical texts of a record, by every canonicaliser; ``source`` has its payload."""
        if source.http is None or record.target_uri is None:
            return
        try:
            # A revisit has the header of its own exchange, but may have been written without.
            headers = (record.http or source.http).headers
            page = self._reader.page(record.target_uri, headers, source.payload())
        except DamagedInput:
            return
        if isinstance(page, str):
            return
        for canonicalizer in CANONICALIZERS:
            try:
                text = read(page.kind, page.text, canonicalizer).text
            except HostileMarkup:
                continue
            yield text_digest(version(canonicalizer), text), ArchivedText(text, page.mime)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
